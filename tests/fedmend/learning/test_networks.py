import re
import subprocess
import sys

import pytest
import torch
from factories import refused
from torch_factories import TinyNetwork

from fedmend.learning.networks import build_network, initial_network
from fedmend.learning.weights import get_weights, set_weights

CLASSES = ("a", "b", "c")


@pytest.fixture(scope="module")
def resnet():
    return initial_network("resnet18", CLASSES, 5)


def torchvision_state(classes=1000):
    """A state dict in torchvision's layout, other weights than any seed of ours."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=classes)
    for tensor in model.state_dict().values():
        tensor.fill_(3)
    return model.state_dict()


def saved(path, content):
    torch.save(content, path)
    return str(path)


def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return list(first) == list(second) and all(torch.equal(first[k], second[k]) for k in first)


def test_resnet18_gives_512_features_and_one_logit_per_class(resnet):
    resnet.eval()
    features, logits = resnet(torch.zeros(2, 3, 32, 32))
    assert (features.shape, logits.shape) == ((2, 512), (2, 3))
    assert torch.equal(logits, resnet.classifier(features))
    assert resnet.num_features == 512


def test_the_narrow_resnet_is_the_one_of_monai_to_the_last_digit():
    from monai.networks.nets import ResNet

    torch.manual_seed(5)
    stem = {"conv1_t_size": 3, "conv1_t_stride": 2, "no_max_pool": True, "feed_forward": False}
    theirs = ResNet(
        "basic", [1] * 4, [16, 32, 64, 128], spatial_dims=2, n_input_channels=3, bias_downsample=False, **stem
    )
    ours = initial_network("resnet_narrow", CLASSES, 5).backbone
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
    images = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours.train()(images), theirs.to(memory_format=torch.channels_last).train()(images))


@pytest.mark.parametrize("network", ["resnet18", "resnet_narrow_gn", "monai/resnet10", "timm/resnet10t"])
def test_networks_for_labels_compute_channels_last_and_give_what_they_gave(network):
    if network.startswith("timm"):
        pytest.importorskip("timm")
    model = initial_network(network, CLASSES, 5).eval()
    images = torch.rand(2, model.channels, 32, 32, generator=torch.Generator().manual_seed(0))
    seen = []
    model.backbone.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    with torch.no_grad():
        logits = model(images)[1]
        assert seen[0].is_contiguous(memory_format=torch.channels_last)
        weights = [p for p in model.backbone.parameters() if p.dim() == 4]
        assert weights
        assert all(p.is_contiguous(memory_format=torch.channels_last) for p in weights)
        plain = seen[0].contiguous()
        rows_first = model.classifier(model.to(memory_format=torch.contiguous_format).backbone(plain))
    torch.testing.assert_close(logits, rows_first, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("edge", [32, 48])
def test_the_narrow_resnet_halves_the_edge_four_times_and_gives_128_features(edge):
    model = initial_network("resnet_narrow", CLASSES, 5).eval()
    images = torch.rand(2, 3, edge, edge, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, logits = model(images)
        last = model.backbone.layer4(model.backbone.layer3(torch.zeros(1, 32, edge // 4, edge // 4)))
    assert (features.shape, logits.shape, model.num_features) == ((2, 128), (2, 3), 128)
    assert torch.allclose(logits, model.classifier(features))
    assert last.shape == (1, 128, edge // 16, edge // 16)
    assert sum(p.numel() for p in build_network("resnet_narrow", 7).parameters()) == 308_439
    assert same(initial_network("resnet_narrow", CLASSES, 5), model)


def test_an_unknown_network_is_refused():
    names = ["densenet121", "densenet121_gn", "resnet18", "resnet18_gn", "resnet_narrow", "resnet_narrow_gn"]
    names += ["segresnet", "unet", "unet_narrow", "unet_narrow_twin", "unet_twin"]
    with refused(f"job variable network: expected one of {names}, timm/NAME or monai/NAME, got 'resnet19'"):
        build_network("resnet19", 3)


def test_the_seed_alone_decides_the_random_weights(resnet):
    before = torch.get_rng_state()
    torch.manual_seed(1)
    torch.rand(3)
    assert same(initial_network("resnet18", CLASSES, 5), resnet)
    assert not same(initial_network("resnet18", CLASSES, 6), resnet)
    torch.set_rng_state(before)


def test_making_the_first_network_leaves_global_random_state_alone():
    torch.manual_seed(123)
    before = torch.get_rng_state()
    initial_network("resnet18", CLASSES, 5)
    assert torch.equal(before, torch.get_rng_state())


def test_a_torchvision_file_sets_the_backbone_and_keeps_the_seeded_classifier(tmp_path, resnet):
    model = initial_network("resnet18", CLASSES, 5, saved(tmp_path / "w.pth", torchvision_state()))
    assert torch.equal(model.classifier.weight, resnet.classifier.weight)
    assert torch.equal(model.classifier.bias, resnet.classifier.bias)
    assert all((tensor == 3).all() for tensor in model.backbone.state_dict().values())


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_global_model_that_fedmend_wrote_sets_all_weights(tmp_path, resnet, wrapped):
    state = get_weights(initial_network("resnet18", CLASSES, 99))
    path = saved(tmp_path / "w.pt", {"model": state, "train_conf": {}} if wrapped else state)
    model = initial_network("resnet18", CLASSES, 5, path)
    assert all(torch.equal(value, state[name]) for name, value in get_weights(model).items())
    assert model.backbone.bn1.num_batches_tracked == 0
    assert not same(model, resnet)


def with_key(state, name, value):
    return {k: v for k, v in (state | {name: value}).items() if v is not None}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda state: with_key(state, "conv1.weight", None),
            "expected backbone.conv1.weight with shape (64, 3, 7, 7) for resnet18, got nothing",
        ),
        (
            lambda state: with_key(state, "conv1.weight", torch.zeros(64, 1, 7, 7)),
            "expected backbone.conv1.weight with shape (64, 3, 7, 7) for resnet18, got (64, 1, 7, 7)",
        ),
        (
            lambda state: with_key(state, "layer5.0.weight", torch.zeros(1)),
            "expected only the keys of resnet18, got also ['backbone.layer5.0.weight']",
        ),
        (lambda state: list(state.values()), "expected a PyTorch state dict, got something else"),
        (lambda state: {"epoch": 3}, "expected a PyTorch state dict, got something else"),
    ],
)
def test_a_weights_file_that_does_not_fit_is_refused(tmp_path, change, sentence):
    path = saved(tmp_path / "w.pth", change(torchvision_state(1)))
    with refused(f"weights file: {sentence}"):
        initial_network("resnet18", CLASSES, 5, path)


def test_a_global_model_for_another_number_of_classes_is_refused(tmp_path, resnet):
    path = saved(tmp_path / "w.pt", get_weights(resnet))
    with refused("weights file: expected classifier.weight with shape (2, 512) for resnet18, got (3, 512)"):
        initial_network("resnet18", ("a", "b"), 5, path)


def test_a_weights_file_that_is_not_there_is_refused(tmp_path):
    with refused("job variable weights: expected a local file, not found"):
        initial_network("resnet18", CLASSES, 5, str(tmp_path))


def test_a_weights_file_that_is_not_pytorchs_is_refused(tmp_path):
    (tmp_path / "w.pth").write_text("hello")
    with refused("weights file: expected a PyTorch state dict, got a file that does not load (KeyError)"):
        initial_network("resnet18", CLASSES, 5, str(tmp_path / "w.pth"))


def test_a_weights_file_with_code_in_it_is_refused(tmp_path):
    with refused("weights file: expected a PyTorch state dict, got a file that does not load (UnpicklingError)"):
        initial_network("resnet18", CLASSES, 5, saved(tmp_path / "w.pth", {"run": print}))


def test_weights_are_the_floating_tensors_detached():
    model = TinyNetwork(2)
    weights = get_weights(model)
    assert sorted(weights) == [
        "classifier.bias",
        "classifier.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.weight",
    ]
    assert not any(value.requires_grad for value in weights.values())


def test_set_weights_takes_what_get_weights_gave_and_keeps_counters():
    model, other = TinyNetwork(2, seed=1), TinyNetwork(2, seed=2)
    other.norm.num_batches_tracked += 4
    set_weights(other, get_weights(model))
    assert torch.equal(other.classifier.weight, model.classifier.weight)
    assert other.norm.num_batches_tracked == 4


BOUNDED = "expected numbers from -1e+12 to 1e+12, got larger ones"


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("classifier.bias", None, ": expected the 6 tensors of the network, got others: ['classifier.bias']"),
        ("head", torch.zeros(1), ": expected the 6 tensors of the network, got others: ['head']"),
        ("classifier.bias", torch.zeros(3), ": expected classifier.bias with shape (2,), got (3,)"),
        (
            "classifier.bias",
            torch.tensor([0.0, torch.nan]),
            ": expected finite numbers, got NaN or infinity in classifier.bias",
        ),
        (
            "norm.running_var",
            torch.full((12,), torch.inf),
            ": expected finite numbers, got NaN or infinity in norm.running_var",
        ),
        ("norm.running_mean", torch.full((12,), -2e12), f", norm.running_mean: {BOUNDED}"),
        ("classifier.bias", torch.tensor([0, 2e12]), f", classifier.bias: {BOUNDED}"),
    ],
)
def test_a_global_model_that_does_not_fit_is_refused_and_not_loaded(name, value, sentence):
    model = TinyNetwork(2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    weights = with_key(get_weights(TinyNetwork(2, seed=9)), name, value)
    with refused(f"global model{sentence}"):
        set_weights(model, weights)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


# ---- DenseNet-121 ---------------------------------------------------------------------------------------------------


def densenet_classes():
    return [f"class {i}" for i in range(14)]


@pytest.fixture(scope="module")
def densenet():
    return initial_network("densenet121", densenet_classes(), 5)


def torchvision_densenet(old=False):
    """A state dict in torchvision's layout, ``old``: with the names and without the counters of its published file."""
    from torchvision.models import densenet121

    state = {k: v.fill_(3) for k, v in densenet121().state_dict().items()}
    if not old:
        return state
    names = {k: re.sub(r"(denselayer\d+)\.(norm|conv)([12])\.", r"\1.\2.\3.", k) for k in state}
    return {names[k]: v for k, v in state.items() if "num_batches" not in k}


def test_densenet121_gives_1024_features_and_one_logit_per_class(densenet):
    densenet.eval()
    with torch.no_grad():
        features, logits = densenet(torch.zeros(2, 3, 32, 32))
    assert (features.shape, logits.shape) == ((2, 1024), (2, 14))
    assert torch.equal(logits, densenet.classifier(features))
    assert (features >= 0).all()  # behind the last ReLU
    assert densenet.num_features == 1024


def test_densenet121_has_the_size_of_the_papers_network(densenet):
    assert sum(p.numel() for p in densenet.parameters()) == 6_968_206
    assert len(densenet.state_dict()) == 727
    heads = [k for k in densenet.state_dict() if not k.startswith("backbone.")]
    assert heads == ["classifier.weight", "classifier.bias"]
    assert not any("classifier" in k for k in densenet.backbone.state_dict())


@pytest.mark.parametrize("old", [False, True], ids=["new names", "old names"])
def test_a_torchvision_file_sets_the_densenet_and_keeps_the_seeded_classifier(tmp_path, densenet, old):
    state = torchvision_densenet(old)
    assert ("features.denseblock1.denselayer1.norm.1.weight" in state) is old
    model = initial_network("densenet121", densenet_classes(), 5, saved(tmp_path / "w.pth", state))
    assert torch.equal(model.classifier.weight, densenet.classifier.weight)
    assert torch.equal(model.classifier.bias, densenet.classifier.bias)
    assert all((v == 3).all() for v in model.backbone.state_dict().values() if v.is_floating_point())


def test_a_global_densenet_that_fedmend_wrote_sets_all_weights(tmp_path, densenet):
    path = saved(tmp_path / "w.pt", get_weights(densenet))
    model = initial_network("densenet121", densenet_classes(), 6, path)
    assert same(model, densenet)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda state: with_key(state, "features.conv0.weight", None),
            "expected backbone.features.conv0.weight with shape (64, 3, 7, 7) for densenet121, got nothing",
        ),
        (
            lambda state: with_key(state, "features.extra.weight", torch.zeros(1)),
            "expected only the keys of densenet121, got also ['backbone.features.extra.weight']",
        ),
        (
            lambda state: torchvision_state(),
            "expected backbone.features.conv0.weight with shape (64, 3, 7, 7) for densenet121, got nothing",
        ),
    ],
    ids=["missing", "unknown", "another network"],
)
def test_a_weights_file_that_does_not_fit_the_densenet_is_refused(tmp_path, change, sentence):
    with refused(f"weights file: {sentence}"):
        initial_network("densenet121", densenet_classes(), 5, saved(tmp_path / "w.pth", change(torchvision_densenet())))


def test_a_file_of_the_densenet_is_no_resnet(tmp_path):
    with refused("weights file: expected backbone.conv1.weight with shape (64, 3, 7, 7) for resnet18, got nothing"):
        initial_network("resnet18", CLASSES, 5, saved(tmp_path / "w.pth", torchvision_densenet()))


# ---- U-Net ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unet():
    return initial_network("unet_narrow", ["lesion"], 5)


def brains(height, width, seed=0):
    return torch.rand(2, 1, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("height", "width"), [(48, 48), (16, 31), (60, 50)])
@pytest.mark.parametrize("network", ["unet_narrow", "unet"])
def test_the_unet_is_the_one_of_monai_to_the_last_digit_in_output_and_gradients(network, height, width):
    from monai.networks.nets import BasicUNet

    torch.manual_seed(5)
    widths = {"unet_narrow": (8, 16, 32, 64, 64, 8), "unet": (64, 128, 256, 512, 512, 64)}[network]
    like = {"act": ("relu", {"inplace": True}), "norm": "batch", "bias": False, "upsample": "nontrainable"}
    theirs = BasicUNet(2, 1, 3, widths, **like).to(memory_format=torch.channels_last)
    ours = initial_network(network, ["a", "b"], 5)
    head = {name.replace("final_conv", "classifier"): value for name, value in theirs.state_dict().items()}
    state = {name.removeprefix("backbone."): value for name, value in ours.state_dict().items()}
    assert list(state) == list(head)
    assert all(torch.equal(value, head[name]) for name, value in state.items())
    images = brains(height, width).contiguous(memory_format=torch.channels_last)
    for model, logits in ((ours, ours.train()(images)[1]), (theirs, theirs.train()(images))):
        logits.square().mean().backward()
        model.seen = logits
    assert torch.equal(ours.seen, theirs.seen)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_unet_and_its_loss_need_no_import_of_monai():
    code = (
        "import sys, torch; from fedmend.learning.losses import soft_dice_loss;"
        "from fedmend.learning.networks import build_network;"
        "p = build_network('unet_narrow', 1)(torch.zeros(1, 1, 32, 32))[1].softmax(1)[:, 1];"
        "soft_dice_loss(p, torch.zeros(1, 32, 32)); print({'monai', 'torchvision'} & set(sys.modules))"
    )
    env = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(("height", "width"), [(48, 48), (60, 60), (48, 60), (16, 31)])
@pytest.mark.parametrize("classes", [1, 3])
def test_the_unet_gives_features_and_logits_of_every_pixel_with_the_background_first(height, width, classes):
    model = build_network("unet_narrow", classes).eval()
    with torch.no_grad():
        features, logits = model(brains(height, width))
    assert (features.shape, logits.shape) == ((2, 8, height, width), (2, 1 + classes, height, width))
    assert torch.allclose(logits, model.classifier(features))
    assert model.num_features == 8
    assert (features >= 0).all()  # behind the last ReLU


@pytest.mark.parametrize(("network", "count", "width"), [("unet", 17_963_842, 64), ("unet_narrow", 281_898, 8)])
def test_the_unet_has_the_size_of_the_published_one_or_an_eighth_of_its_widths(network, count, width):
    with torch.device("meta"):
        model = build_network(network, 1)
    assert sum(p.numel() for p in model.parameters()) == count
    assert model.classifier.weight.shape == (2, width, 1, 1)


def test_the_unet_normalises_by_the_batch_and_upsamples_bilinearly_without_dropout():
    model = build_network("unet_narrow", 1).train()
    kinds = [type(m).__name__ for m in model.modules()]
    assert (kinds.count("BatchNorm2d"), kinds.count("ReLU"), kinds.count("ConvTranspose2d")) == (18, 18, 0)
    up = [m for m in model.modules() if isinstance(m, torch.nn.Upsample)]
    assert [(m.mode, m.align_corners, m.scale_factor) for m in up] == [("bilinear", True, 2.0)] * 4
    assert torch.equal(model(brains(32, 32))[1], model(brains(32, 32))[1])


def test_every_weight_of_the_unet_gets_a_gradient():
    model = initial_network("unet_narrow", ["lesion"], 5)
    model(brains(32, 32))[1].softmax(1)[:, 1].square().mean().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_the_seed_alone_decides_the_weights_of_the_unet(unet):
    before = torch.get_rng_state()
    assert same(initial_network("unet_narrow", ["lesion"], 5), unet)
    assert not same(initial_network("unet_narrow", ["lesion"], 6), unet)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_of_a_trained_unet_travel():
    model, other = (initial_network("unet_narrow", ["lesion"], seed) for seed in (1, 2))
    model(brains(32, 32))  # moves the running statistics
    set_weights(other, get_weights(model))
    with torch.no_grad():
        assert torch.equal(other.eval()(brains(32, 32, 1))[1], model.eval()(brains(32, 32, 1))[1])


def test_a_global_unet_that_fedmend_wrote_sets_all_weights(tmp_path, unet):
    model = initial_network("unet_narrow", ["lesion"], 6, saved(tmp_path / "w.pt", get_weights(unet)))
    assert all(torch.equal(value, get_weights(unet)[name]) for name, value in get_weights(model).items())


def test_a_global_unet_of_another_width_is_refused(tmp_path, unet):
    path = saved(tmp_path / "w.pt", get_weights(unet))
    name = "backbone.conv_0.conv_0.conv.weight"
    with refused(f"weights file: expected {name} with shape (64, 1, 3, 3) for unet, got (8, 1, 3, 3)"):
        initial_network("unet", ["lesion"], 5, path)


def test_a_torchvision_file_is_no_unet(tmp_path):
    path = saved(tmp_path / "w.pth", torchvision_state())
    name = "backbone.conv_0.conv_0.conv.weight"
    with refused(f"weights file: expected {name} with shape (8, 1, 3, 3) for unet_narrow, got nothing"):
        initial_network("unet_narrow", ["lesion"], 5, path)


# ---- SegResNet ------------------------------------------------------------------------------------------------------


def test_the_segresnet_is_monais_and_gives_features_and_logits_of_every_pixel():
    from monai.networks.nets import SegResNet

    model = initial_network("segresnet", ["a", "b"], 5).eval()
    with torch.no_grad():
        features, logits = model(brains(48, 64))
    assert (features.shape, logits.shape) == ((2, 8, 48, 64), (2, 3, 48, 64))
    assert torch.equal(logits, model.classifier(features))
    theirs = SegResNet(spatial_dims=2, init_filters=8, in_channels=1, out_channels=3).eval()
    names = [name for name in theirs.state_dict() if not name.startswith("conv_final.2")]
    head = {f"conv_final.2.conv.{key}": value for key, value in model.classifier.state_dict().items()}
    theirs.load_state_dict({**{name: model.backbone.state_dict()[name] for name in names}, **head})
    with torch.no_grad():
        assert torch.equal(theirs(brains(48, 64)), logits)


def test_the_segresnet_has_no_statistics_of_batches():
    with torch.device("meta"):
        model = build_network("segresnet", 1)
    assert sum(p.numel() for p in model.parameters()) == 394_986
    assert not any("running" in name for name in model.state_dict())


# ---- twins ----------------------------------------------------------------------------------------------------------


def test_a_twin_is_two_networks_from_different_starts_of_which_the_first_answers():
    model = initial_network("unet_narrow_twin", ["lesion"], 5).eval()
    names = {name.partition(".")[0] for name in model.state_dict()}
    assert names == {"first", "second"}
    assert same(model.first, initial_network("unet_narrow", ["lesion"], 5))
    first, second = (list(net.parameters()) for net in (model.first, model.second))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True) if a.dim() > 1)
    images = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features, logits = model(images)
        assert torch.equal(logits, model.first(images)[1])
    assert features.shape[1] == model.num_features == 8
    assert {*model.classifier.parameters()} == {
        *model.first.classifier.parameters(),
        *model.second.classifier.parameters(),
    }


def test_the_encoder_of_a_u_net_is_its_five_blocks_of_falling_size():
    model, sizes = build_network("unet_narrow", 1), []
    for block in model.encoder:
        block.register_forward_hook(lambda module, inputs, output: sizes.append(tuple(output.shape[1:3])))
    model(torch.zeros(1, 1, 32, 32))
    assert sizes == [(8, 32), (16, 16), (32, 8), (64, 4), (64, 2)]
