import builtins

import pytest
import torch
from factories import refused

from fedmend.errors import FedMendError
from fedmend.learning.networks import NETWORKS, build_network, initial_network
from fedmend.learning.weights import get_weights, set_weights
from fedmend.methods.baselines import SingleLabelFedAvg
from fedmend.site.limits import step_bytes
from fedmend.site.private_site import check_bearable

timm = pytest.importorskip("timm", reason="needs fedmend[pretrained]")

SMALL = "timm/test_resnet"
KINDS = [SMALL, "timm/test_efficientnet", "timm/test_convnext"]


@pytest.mark.parametrize("network", KINDS)
@pytest.mark.parametrize("edge", [32, 48])
def test_a_network_of_timm_gives_features_and_one_logit_per_class(network, edge):
    model = initial_network(network, ("a", "b", "c"), 5).eval()
    features, logits = model(torch.rand(2, 3, edge, edge))
    assert (features.shape, logits.shape) == ((2, model.num_features), (2, 3))
    assert torch.equal(logits, model.classifier(features))
    assert {k.partition(".")[0] for k in model.state_dict()} == {"backbone", "classifier"}


def test_the_features_are_those_before_timms_own_classifier():
    model = build_network(SMALL, 3).eval()
    theirs = timm.create_model("test_resnet", num_classes=3).eval()
    theirs.load_state_dict(
        {k.removeprefix("backbone.").replace("classifier", "fc"): v for k, v in model.state_dict().items()}
    )
    mean, std = (torch.tensor(model.backbone.default_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    picture = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    ours = (picture - torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)) / torch.tensor((0.229, 0.224, 0.225)).view(
        3, 1, 1
    )
    assert torch.allclose(model(ours)[1], theirs((picture - mean) / std), atol=1e-5)


def test_a_network_that_timm_trained_with_other_means_gets_its_images_so():
    model = build_network("timm/tf_efficientnet_lite0", 3)  # mean and standard deviation 1/2
    black, white = ((torch.full((3, 1, 1), x) - torch.tensor([[[0.485]], [[0.456]], [[0.406]]])) for x in (0.0, 1.0))
    std = torch.tensor([[[0.229]], [[0.224]], [[0.225]]])
    for given, wanted in ((black, -1.0), (white, 1.0)):
        assert torch.allclose(given / std * model._scale + model._shift, torch.full((3, 1, 1), wanted), atol=1e-6)


def test_the_seed_alone_decides_the_weights_and_they_travel():
    first, again = (get_weights(initial_network(SMALL, ("a", "b"), 5)) for _ in range(2))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    other = initial_network(SMALL, ("a", "b"), 6)
    set_weights(other, first)
    assert all(torch.equal(value, first[name]) for name, value in get_weights(other).items())


@pytest.mark.parametrize(
    "name",
    [
        "resnet19",
        "hf-hub:someone/model",
        "local-dir:/etc",
        "resnet18.a1_in1k",
        "../resnet18",
        "",
        "résnet18",
        "tv_resnet101",
    ],
)
def test_only_names_that_timm_itself_registers_are_built(name):
    with refused(f"job variable network: expected timm/ and a name of timm.list_models(), got {name!r}"):
        build_network(f"timm/{name}", 3)


@pytest.mark.parametrize(("name", "edge"), [("vit_tiny_patch16_224", 224), ("swin_tiny_patch4_window7_224", 224)])
def test_a_network_for_images_of_one_size_is_refused(name, edge):
    with refused(f"job variable network: expected one for images of any size, got timm/{name}, made for {edge} pixels"):
        build_network(f"timm/{name}", 3)


def test_nothing_is_downloaded(monkeypatch):
    class Download(Exception):
        pass

    def refuse(*args, **kwargs):
        raise Download

    # The names that timm has bound; what it calls for a network with weights must be among them.
    monkeypatch.setattr("timm.models._hub.hf_hub_download", refuse)
    monkeypatch.setattr("timm.models._builder.load_state_dict_from_url", refuse)
    with pytest.raises(Download):
        timm.create_model("test_resnet", pretrained=True)
    build_network(SMALL, 3)


@pytest.mark.parametrize(("name", "given"), [("test_convnext", 0.5), ("test_efficientnet", 0.5), ("ghostnet_050", 0)])
def test_training_draws_nothing_by_chance(monkeypatch, name, given):
    """ghostnet_050 drops a fifth of its features by default; the others drop features and paths as told here."""
    real, rates = timm.create_model, {"drop_rate": given, "drop_path_rate": given} if given else {}
    theirs = real(name, num_classes=0, **rates).train()
    images = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(theirs(images), theirs(images))
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: real(*args, **kwargs, **rates))
    model = build_network(f"timm/{name}", 3).train()
    assert torch.equal(model(images)[0], model(images)[0])


def test_timm_that_is_missing_is_said_in_one_sentence(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "timm":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with refused("job variable network: expected the package timm (pip install 'fedmend[pretrained]'), not found"):
        build_network(SMALL, 3)


def test_the_memory_of_a_step_is_estimated_and_grows_with_images_and_edge():
    small = step_bytes(network=SMALL, num_classes=3, images=4, shape=(32, 32))
    weights = 6 * sum(v.nbytes for v in build_network(SMALL, 3).state_dict().values())
    assert weights < small < step_bytes(network=SMALL, num_classes=3, images=8, shape=(32, 32))
    four = step_bytes(network=SMALL, num_classes=3, images=4, shape=(64, 64))
    assert four - weights == pytest.approx(4 * (small - weights), rel=0.05)


def test_differential_privacy_refuses_timms_batchnorm_and_takes_its_groupnorm():
    with refused(
        f"site-1: local/fedmend.json, field privacy: expected a network with GroupNorm, e.g. resnet18_gn, got {SMALL},"
        " whose BatchNorm mixes patients"
    ):
        check_bearable("site-1", SingleLabelFedAvg(), SMALL)
    check_bearable("site-1", SingleLabelFedAvg(), "timm/resnet50_gn")


@pytest.mark.parametrize(
    ("network", "mixes"), [("timm/test_convnext", False), (SMALL, True), ("timm/test_efficientnet_evos", False)]
)
def test_differential_privacy_refuses_networks_in_which_one_image_moves_the_result_of_another(network, mixes):
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    build_network(network, 3).train()(images)[1][0].sum().backward()
    assert bool(images.grad[1].abs().sum() > 0) is mixes
    if mixes:
        with pytest.raises(FedMendError, match="mixes patients"):
            check_bearable("site-1", SingleLabelFedAvg(), network)
    else:
        check_bearable("site-1", SingleLabelFedAvg(), network)


def test_differential_privacy_refuses_a_layer_that_keeps_statistics_of_batches_whatever_its_class(monkeypatch):
    """timm's EvoNorm-B0 is no BatchNorm by its class, and divides by the variance of the batch all the same."""
    from timm.layers import EvoNorm2dB0

    monkeypatch.setitem(NETWORKS, "evonorm", lambda num_classes: EvoNorm2dB0(8))
    with pytest.raises(FedMendError, match="mixes patients"):
        check_bearable("site-1", SingleLabelFedAvg(), "evonorm")
