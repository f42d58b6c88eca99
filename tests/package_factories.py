"""A tiny package, whose network has its initial weights."""

from dataclasses import replace

import torch
from result_factories import PREPARED

from fedmend import Package
from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.records.package_files import write_package

CHOSEN = {"threshold": [0.5, 0.5], "not_sure": [[0.4, 0.6], [0.4, 0.6]]}  # of two classes


def balance(network):
    """Each structure is more probable than the background in half of the pixels of noise."""
    with torch.no_grad():
        noise = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
        background, *structures = network.eval()(noise)[1][0]
        for number, structure in enumerate(structures, 1):
            network.classifier.bias[number] += (background - structure).median()


def make_package(
    folder,
    kind="multilabel",
    network="resnet_narrow",
    classes=("edema", "nodule"),
    change=lambda network: None,
    more=None,
    **prepared,
):
    """A package ``run-1.fedmend`` in a folder.

    Args:
        folder: where it comes.
        kind: of labels.
        network: its name.
        classes: their names.
        change: gets the network before its weights are written.
        more: further fields of ``package.json``.
        prepared: changes the preprocessing.
    """
    half = {"threshold": [0.5] * len(classes), "not_sure": [[0.4, 0.6]] * len(classes)}
    about = {
        "name": "run-1",
        "phantom": True,
        "kind": kind,
        "classes": list(classes),
        "network": {"name": network, "arguments": {"num_classes": len(classes)}},
        "preprocessing": replace(PREPARED, **prepared).of_package(kind),
        "thresholds": half if kind == "multilabel" else {},
        **(more or {}),
    }
    model = initial_network(network, list(classes), 3)
    change(model)
    write_package(folder / "run-1.fedmend", about, {k: v.numpy() for k, v in get_weights(model).items()})
    return Package(folder / "run-1.fedmend")
