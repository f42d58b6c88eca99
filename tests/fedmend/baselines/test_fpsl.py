"""FPSL at a site: the head learns from one batch, the features from another one through the adapted head."""

import numpy as np
import pytest
import torch
from torch_factories import TinyNetwork, make_site, make_task

from fedmend.baselines.fpsl import FPSL
from fedmend.learning.slice_pooling import pooled
from fedmend.methods.labelsets import LabelSetFedAvg

POS_WEIGHT = np.array([2, 3], dtype=np.float32)
MULTI = [[1, -1], [0, -1], [1, -1], [0, -1]]  # class 1 is unknown


def order(round_num=0):
    return make_task(round_num=round_num, pos_weight=POS_WEIGHT)


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def gradients(method, net, site, index):
    """Loss and gradients by name."""
    loss = method.start(net, order(), site).loss(torch.tensor(index))
    loss.backward()
    return loss.item(), {name: p.grad.numpy() for name, p in net.named_parameters()}


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_the_head_learns_from_the_first_batch_and_the_features_from_the_second(site_of, make_net, plain):
    labels, eta = np.array([0, 1, 0, 0]), 0.7
    net, site = make_net(2), site_of(labels, classes=2)
    weight, bias = (p.detach().double().numpy().copy() for p in net.classifier.parameters())
    loss, gradient = gradients(FPSL(local_iterations=1, inner_rate=eta), net, site, [0, 1, 2, 3])
    v = 10 * np.arange(4) / 255
    features, wanted = np.stack([v, 1 - v], 1), np.eye(2)[labels]
    first, second = slice(0, 2), slice(2, 4)
    p = softmax(features[first] @ weight.T + bias)
    slope = (p - wanted[first]) / 2
    d_weight, d_bias = slope.T @ features[first], slope.sum(0)
    changed_weight, changed_bias = weight - eta * d_weight, bias - eta * d_bias
    q = softmax(features[second] @ changed_weight.T + changed_bias)
    d_features = (q - wanted[second]) / 2 @ changed_weight
    expected = -np.log((p * wanted[first]).sum(1)).mean() - np.log((q * wanted[second]).sum(1)).mean()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert gradient["classifier.weight"] == pytest.approx(d_weight, abs=1e-6)
    assert gradient["classifier.bias"] == pytest.approx(d_bias, abs=1e-6)
    assert gradient["scale"] == pytest.approx((d_features * features[second]).sum(0), abs=1e-6)


def test_without_an_inner_step_the_gradients_of_a_repeated_batch_are_fedavgs_on_studies_too(site_of, make_net, plain):
    class OfStudies(make_net):
        def forward(self, images):
            features = super().forward(images)[0]
            return pooled(torch.stack([features, 2 - 3 * features], 1), self.classifier)

    for network in (make_net, OfStudies):
        site = site_of([0, 1, -1, 0], classes=2, folder=network.__name__)
        method = FPSL(local_iterations=1, inner_rate=0.0)
        loss, found = gradients(method, network(2), site, [0, 1, 2, 3, 0, 1, 2, 3])
        once, expected = gradients(LabelSetFedAvg(local_iterations=1), network(2), site, [0, 1, 2, 3])
        assert loss == pytest.approx(2 * once, rel=1e-6)
        assert {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()} == found


def test_a_step_has_two_batches_each_of_its_own_order(site_of, make_net):
    site = site_of([[1, -1]] * 12, classes=2)
    found = torch.stack(list(FPSL(local_iterations=6).start(make_net(2), order(), site).batches(0)))
    assert found.shape == (6, 8)
    for batch in (found[:, :4], found[:, 4:]):
        assert batch[:3].flatten().sort().values.tolist() == list(range(12))
    assert not torch.equal(found[:, :4], found[:, 4:])
    assert FPSL(local_iterations=6).inner_rate == 0.01


def test_all_weights_get_a_gradient_under_mixed_precision(tmp_path):
    net = TinyNetwork(2).train()
    work = FPSL(local_iterations=1).start(net, order(), make_site(tmp_path, MULTI))
    with torch.autocast("cpu", torch.bfloat16):
        loss = work.loss(torch.arange(4).repeat(2))
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())
