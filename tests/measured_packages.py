"""Model packages whose networks have their initial weights."""

from dataclasses import replace

from result_factories import PREPARED

from fedmend import Package
from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.records.package_files import write_package

CHOSEN = {"threshold": [0.3, 0.6], "not_sure": [[0.2, 0.4], [0.5, 0.7]]}


def make_package(
    folder,
    kind="multilabel",
    classes=("edema", "nodule"),
    *,
    name="run-1",
    network="resnet_narrow",
    seed=3,
    thresholds=None,
    more=None,
    **prepared,
):
    """The package ``NAME.fedmend``, opened; ``more`` are further fields, ``prepared`` those of the preprocessing."""
    chosen = CHOSEN if kind == "multilabel" and len(classes) == 2 else {}
    about = {
        "name": name,
        "phantom": False,
        "kind": kind,
        "classes": list(classes),
        "network": {"name": network, "arguments": {"num_classes": len(classes)}},
        "preprocessing": replace(PREPARED, **prepared).of_package(kind),
        "thresholds": chosen if thresholds is None else thresholds,
        "provenance": {"settings": {"batch_size": 4}},
        **(more or {}),
    }
    weights = {k: v.numpy() for k, v in get_weights(initial_network(network, list(classes), seed)).items()}
    write_package(folder / f"{name}.fedmend", about, weights)
    return Package(folder / f"{name}.fedmend")
