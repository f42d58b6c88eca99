"""Networks that see the slices of a study at once."""

import math

import pytest
import torch
from factories import refused
from torch import nn

from fedmend.errors import FedMendError
from fedmend.learning.networks import build_network
from fedmend.learning.slice_pooling import pooled


def test_the_logit_of_a_study_is_the_log_sum_exp_of_those_of_its_slices():
    features = torch.tensor([[[0.0], [0.5]]])  # one study, two slices, one feature, which is the logit of its class
    found, logits = pooled(features, nn.Identity())
    assert logits.item() == pytest.approx((math.log(1 + math.exp(4 * 0.5)) - math.log(2)) / 4)
    share = math.exp(2) / (1 + math.exp(2))
    assert found.item() == pytest.approx(0.5 * share)


def test_each_class_learns_from_the_slices_that_show_it():
    features = torch.tensor([[[8.0, 0.0], [0.0, 8.0], [0.0, 0.0]]], requires_grad=True)
    pooled(features, nn.Identity())[1][0, 1].backward()
    assert features.grad[0, :, 1].tolist() == pytest.approx([0, 1, 0], abs=1e-6)
    assert not features.grad[0, :, 0].any()


def test_of_one_slice_it_is_the_network_itself():
    torch.manual_seed(0)
    model = build_network("study/resnet_narrow", 3).eval()
    images = torch.rand(2, 3, 32, 32)
    features, logits = model(images)
    assert torch.allclose(features, model.features(images), atol=1e-6)
    assert torch.allclose(logits, model.classifier(features), atol=1e-6)


def test_neither_the_order_of_slices_matters_nor_that_all_come_twice():
    torch.manual_seed(0)
    model = build_network("study/resnet_narrow", 3).eval()
    slices = torch.rand(1, 4, 3, 32, 32)
    one, *others = (model(slices[:, order].flatten(1, 2)) for order in ([0, 1, 2, 3], [2, 0, 3, 1], [0, 1, 2, 3] * 2))
    for other in others:
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(one, other, strict=True))


def test_only_networks_for_labels_whose_classifier_reads_their_output_see_studies():
    words = "job variable network: expected behind study/ a network for labels, such as resnet_narrow or"
    for name in ("study/unet_narrow", "study/unet_narrow_twin", "study/stages/resnet_narrow"):
        with refused(f"{words} timm/tf_efficientnet_lite0, got '{name}'"):
            build_network(name, 1)
    with pytest.raises(FedMendError, match="expected behind stages/ a network for labels with stages"):
        build_network("stages/study/resnet_narrow", 3)


def test_its_weights_are_those_of_the_network_for_images():
    plain, study = (build_network(f"{before}resnet_narrow", 3).state_dict() for before in ("", "study/"))
    assert [*plain] == [*study]
