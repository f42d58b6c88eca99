"""Networks whose classifier reads all stages."""

import copy
from types import SimpleNamespace

import pytest
import torch
from factories import refused
from torch import nn

from fedmend.learning.networks import build_network, initial_network
from fedmend.learning.patient_steps import PatientSteps
from fedmend.learning.stage_features import find_stages, stage_statistics
from fedmend.learning.weights import get_weights, load_initial, weights_file
from fedmend.site.limits import step_bytes
from fedmend.site.privacy import Privacy


class Backbone(nn.Module):
    """Two stages: the image, and twice the image."""

    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = nn.Identity(), nn.Conv2d(1, 1, 1, bias=False)
        nn.init.constant_(self.layer2.weight, 2.0)

    def forward(self, images):
        return self.layer2(self.layer1(images)).mean((2, 3))


def test_features_are_the_output_then_mean_and_deviation_of_each_channel_of_each_stage():
    backbone = Backbone()
    images = torch.tensor([[[[1.0, 3.0], [1.0, 3.0]]]])
    found = stage_statistics(backbone, find_stages(backbone), images)
    assert found.tolist() == [[4.0, 2.0, 1.0, 4.0, 2.0]]


def test_scaled_statistics_have_mean_0_and_variance_1_over_the_channels_of_a_stage_and_no_output():
    backbone = Backbone()
    backbone.layer1, backbone.layer2 = nn.Identity(), nn.Conv2d(2, 2, 1, bias=False)
    # means 1 and 5, deviations 1 and 3; the second stage gives the channels the other way round
    images = torch.tensor([[[[0.0, 2.0]], [[2.0, 8.0]]]])
    backbone.layer2.weight.data = torch.tensor([[0.0, 1], [1, 0]]).view(2, 2, 1, 1)
    found = stage_statistics(backbone, find_stages(backbone), images, scaled=True)
    assert found[0].tolist() == pytest.approx([-1, 1, -1, 1, 1, -1, 1, -1], abs=1e-4)


def test_features_behind_projected_are_random_sums_of_the_scaled_statistics_of_the_run_s_seed():
    one, other = (initial_network("projected/resnet_narrow", ("a", "b"), seed).eval() for seed in (1, 2))
    images = torch.rand(3, 3, 32, 32)
    features, logits = one(images)
    scaled = stage_statistics(one.backbone, one.stages, one.prepared(images), scaled=True)
    assert one.projection.shape == (2 * (16 + 32 + 64 + 128), 64)
    assert torch.equal(features, scaled @ one.projection)
    assert torch.equal(logits, one.classifier(features))
    assert not torch.equal(one.projection, other.projection)
    assert torch.equal(one.projection, get_weights(one)["projection"])


@pytest.mark.parametrize("brightness", [0.1, 1, 100])
def test_features_behind_projected_have_a_length_of_about_1_whatever_the_images_are(brightness):
    model = initial_network("projected/resnet_narrow", ("a", "b"), 1).eval()
    lengths = model(brightness * torch.rand(20, 3, 32, 32))[0].norm(dim=1)
    assert lengths.min() > 0.6
    assert lengths.max() < 1.5


def test_training_behind_projected_moves_the_classifier_alone():
    model = build_network("projected/resnet_narrow", 2)
    model(torch.rand(4, 3, 32, 32))[1].square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is not None] == [
        "classifier.weight",
        "classifier.bias",
    ]


def test_noise_for_differential_privacy_moves_the_classifier_alone_behind_projected():
    model = build_network("projected/resnet_narrow_gn", 2)
    work = SimpleNamespace(model=model, loss=lambda index: model(torch.rand(len(index), 3, 32, 32))[1].square().mean())
    steps = PatientSteps(Privacy(clip=1.0, noise_multiplier=1.0), [torch.tensor([0]), torch.tensor([1])], 2)
    assert len([*steps.losses(work, next(steps.batches()))]) == 2
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "classifier.weight",
        "classifier.bias",
    }


def test_the_memory_of_a_step_behind_projected_is_not_thought_smaller_as_nothing_but_the_classifier_learns():
    assert step_bytes("projected/resnet_narrow", 2, 16, (64, 64)) > 0.9 * step_bytes("resnet_narrow", 2, 16, (64, 64))


def test_weights_of_a_library_leave_the_projection_as_it_is(tmp_path):
    plain, projected = (initial_network(name, ("a", "b"), 1) for name in ("resnet_narrow", "projected/resnet_narrow"))
    file, before = tmp_path / "weights.pt", projected.projection.clone()
    backbone = {k: v + 1 for k, v in get_weights(plain).items() if k.startswith("backbone.")}
    torch.save(backbone, file)
    load_initial(projected, "resnet_narrow", str(file))
    assert torch.equal(projected.backbone.conv1.weight, plain.backbone.conv1.weight + 1)
    assert torch.equal(projected.projection, before)


def test_no_hook_is_left_behind_even_after_an_error():
    backbone = Backbone()
    with pytest.raises(RuntimeError):
        stage_statistics(backbone, find_stages(backbone), torch.zeros(1, 2, 4, 4))
    assert not any(module._forward_hooks for module in backbone.modules())


@pytest.mark.parametrize(
    ("network", "output", "channels"),
    [
        ("resnet_narrow", 128, 16 + 32 + 64 + 128),
        ("resnet18", 512, 64 + 128 + 256 + 512),
        ("monai/resnet18", 512, 960),
    ],
)
def test_the_classifier_reads_the_output_and_twice_the_channels_of_all_stages(network, output, channels):
    model = build_network(f"stages/{network}", 3)
    features, logits = model(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, output + 2 * channels)
    assert (model.num_features, logits.shape) == (output + 2 * channels, (2, 3))
    assert torch.equal(logits, model.classifier(features))


def test_untrained_it_is_the_network_without_stages_and_trains_like_it():
    images, steps = torch.rand(4, 3, 32, 32), []
    for name in ("resnet_narrow", "stages/resnet_narrow"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = build_network(name, 2)
        torch.manual_seed(0)
        model.classifier.weight.data[:, :128] = torch.randn(2, 128)
        model.classifier.bias.data.zero_()
        logits = model(images)[1]
        logits.square().sum().backward()
        steps.append((logits.detach(), model.backbone.conv1.weight.grad, model.classifier.weight.grad))
    for one, other in zip(steps[0][:2], steps[1][:2], strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert torch.allclose(steps[0][2], steps[1][2][:, :128], atol=1e-5)
    assert not steps[1][2][:, 128:].any()  # solved, not trained


def test_a_copy_reads_its_own_stages():
    model = build_network("stages/resnet_narrow", 2).eval()
    other, images = copy.deepcopy(model), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.zero_()
        assert not torch.equal(model(images)[0], other(images)[0])
        assert other(images)[0].any()


def test_backbone_weights_have_the_names_that_they_have_without_stages(tmp_path):
    plain, staged = (initial_network(name, ("a", "b"), 1) for name in ("resnet_narrow", "stages/resnet_narrow"))
    names = [[name for name in get_weights(model) if name.startswith("backbone.")] for model in (plain, staged)]
    assert names[0] == names[1]
    file = tmp_path / "weights.pt"
    torch.save({k: v + 1 for k, v in get_weights(plain).items() if k in names[0]}, file)
    load_initial(staged, "resnet_narrow", str(file))
    assert torch.equal(staged.backbone.conv1.weight, plain.backbone.conv1.weight + 1)


def test_counting_features_leaves_batchnorm_as_it_was():
    model = build_network("stages/resnet_narrow", 2)
    assert model.backbone.bn1.num_batches_tracked == 0
    assert model.backbone.training


def test_imagenet_weights_are_those_of_the_network_without_stages(tmp_path):
    file = tmp_path / "resnet18.pth"
    file.touch()
    for before in ("stages/", "projected/"):
        assert weights_file("imagenet", f"{before}resnet18", tmp_path, tmp_path) == str(file)


@pytest.mark.parametrize("before", ["stages/", "projected/"])
@pytest.mark.parametrize("network", ["unet_narrow", "segresnet", "unet_narrow_twin", "stages/resnet_narrow"])
def test_a_network_for_masks_and_one_that_reads_its_stages_already_are_refused(network, before):
    with refused(
        f"job variable network: expected behind {before} a network for labels with stages of convolutions, such as"
        f" resnet18, densenet121 or timm/tf_efficientnet_lite0, got '{before}{network}'"
    ):
        build_network(f"{before}{network}", 1)
