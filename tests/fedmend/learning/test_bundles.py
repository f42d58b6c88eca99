"""Weights that go to a MONAI bundle and come back."""

import pytest
import torch
from factories import refused

from fedmend.learning.bundles import as_library
from fedmend.learning.networks import build_network, initial_network
from fedmend.learning.weights import is_global_model
from fedmend.server.fingerprint import fingerprint

CLASSES = ["a", "b"]


def bundle(folder, state):
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "configs" / "metadata.json").write_text("{}")
    torch.save(state, folder / "models" / "model.pt")
    return str(folder)


@pytest.mark.parametrize(
    "network",
    [
        "resnet_narrow",
        "resnet_narrow_gn",
        "resnet18",
        "unet_narrow",
        "segresnet",
        "monai/DenseNet121",
        "stages/resnet_narrow",
        "projected/resnet_narrow",
    ],
)
def test_a_bundle_sets_all_weights_of_a_new_run(tmp_path, network):
    trained = initial_network(network, CLASSES, 1)
    folder = bundle(tmp_path / "bundle", as_library(trained, network))
    started = initial_network(network, CLASSES, 2, folder)
    assert is_global_model(folder)
    for name, value in started.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name


def test_names_are_those_of_the_library():
    names = set(as_library(build_network("resnet_narrow", 2), "resnet_narrow"))
    assert {"conv1.weight", "layer2.0.downsample.0.weight", "fc.weight", "fc.bias"} <= names
    twin = build_network("unet_narrow_twin", 1)
    assert torch.equal(as_library(twin, "unet_narrow_twin")["final_conv.weight"], twin.first.classifier.weight)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda s: s.pop("fc.weight"), "and nothing else, got one that lacks ['fc.weight']"),
        (lambda s: s.update(more=torch.zeros(1)), "and nothing else, got one that has also ['more']"),
    ],
)
def test_a_bundle_of_another_network_is_refused(tmp_path, change, sentence):
    state = as_library(build_network("resnet_narrow", 2), "resnet_narrow")
    change(state)
    with refused(f"weights file: expected a MONAI bundle with the weights of resnet_narrow {sentence}"):
        initial_network("resnet_narrow", CLASSES, 2, bundle(tmp_path / "bundle", state))


def test_a_bundle_of_other_classes_or_without_a_model_is_refused(tmp_path):
    state = as_library(build_network("resnet_narrow", 3), "resnet_narrow")
    with refused("weights file: expected classifier.weight with shape (2, 128) for resnet_narrow, got (3, 128)"):
        initial_network("resnet_narrow", CLASSES, 2, bundle(tmp_path / "bundle", state))
    (tmp_path / "bundle" / "models" / "model.pt").unlink()
    with refused("job variable weights: expected a local file, not found"):
        initial_network("resnet_narrow", CLASSES, 2, str(tmp_path / "bundle"))


def test_a_bundle_is_for_one_network(tmp_path):
    folder = bundle(tmp_path / "bundle", as_library(build_network("unet_narrow", 1), "unet_narrow"))
    with refused("weights file: expected one network to start from a MONAI bundle, got unet_narrow_twin"):
        initial_network("unet_narrow_twin", ["a"], 2, folder)


def test_other_weights_in_a_bundle_make_another_run(tmp_path):
    folder = bundle(tmp_path / "bundle", as_library(build_network("resnet_narrow", 2), "resnet_narrow"))
    before = fingerprint({}, weights=folder)["weights_file"]
    torch.save(as_library(build_network("resnet_narrow", 2), "resnet_narrow"), tmp_path / "bundle/models/model.pt")
    assert len(before) == 64
    assert fingerprint({}, weights=folder)["weights_file"] != before
