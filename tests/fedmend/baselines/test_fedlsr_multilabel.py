"""FedLSR on multi-label data: the mixed and sharpened answer to two views, and how far apart the two are."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch_factories import make_task

from fedmend.baselines.fedlsr_multilabel import MultiLabelFedLSR, divergence, mixed_logits

LABELS = [[1, -1], [0, -1]]
BOTH = torch.arange(2)


def logit(p):
    return np.log(np.array(p) / (1 - np.array(p)))


class TwoViews(nn.Module):
    """Gives the first view these (B, C) logits and the second one those."""

    def __init__(self, first, second):
        super().__init__()
        self.said = [nn.Parameter(torch.tensor(np.asarray(v), dtype=torch.float32)) for v in (first, second)]
        self.calls = 0

    def forward(self, images):
        self.calls += 1
        return None, self.said[(self.calls - 1) % 2]


def order(round_num=0, total_rounds=100):
    return make_task(round_num=round_num, total_rounds=total_rounds)


def loss_of(method, net, site, task=None):
    return method.start(net, task or order(), site).loss(BOTH)


# ---- the mixed answer -----------------------------------------------------------------------------------------------


def test_the_mixture_of_two_probabilities_is_sharpened_by_squared_odds():
    first, second = (torch.tensor(logit(p)) for p in ([[0.2, 0.9]], [[0.6, 0.5]]))
    found = mixed_logits(first, second, torch.tensor(0.75)).sigmoid()
    odds = [(p / (1 - p)) ** 2 for p in (0.75 * 0.2 + 0.25 * 0.6, 0.75 * 0.9 + 0.25 * 0.5)]
    assert found[0].tolist() == pytest.approx([o / (1 + o) for o in odds], rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_mixture_of_saturated_answers_is_finite_and_so_is_its_gradient(share):
    first = torch.tensor([300.0, -300.0, 300.0, 0.0], requires_grad=True)
    second = torch.tensor([300.0, -300.0, -300.0, 80.0], requires_grad=True)
    found = mixed_logits(first, second, torch.tensor(share))
    found.sum().backward()
    assert found.isfinite().all()
    assert first.grad.isfinite().all()
    assert second.grad.isfinite().all()
    assert found[:2].tolist() == pytest.approx([600, -600])


def test_labels_weigh_as_in_fedavg_and_missing_ones_are_negative(make_site):
    z = np.array([[1.0, -2.0], [0.5, -1.0]])
    loss = loss_of(MultiLabelFedLSR(), TwoViews(z, z), make_site(LABELS))  # both views alike: twice the logit
    terms = [2 * np.log1p(np.exp(-2)), np.log1p(np.exp(1.0)), np.log1p(np.exp(-4)), np.log1p(np.exp(-2))]
    assert loss.item() == pytest.approx(np.sum(terms) / 4, rel=1e-5)


def test_a_logit_beyond_the_limit_has_no_gradient_and_a_finite_loss(make_site):
    net = TwoViews(np.full((2, 2), 9.0), np.full((2, 2), 9.0))
    loss = loss_of(MultiLabelFedLSR(gamma=0.0), net, make_site(LABELS))
    loss.backward()
    assert loss.item() == pytest.approx(3 * 16 / 4, rel=1e-5)  # three wrong entries of four
    assert not net.said[0].grad.any()


def test_as_published_the_probability_is_taken_for_a_logit(make_site):
    z = np.array([[1.0, -2.0], [0.5, -1.0]])
    loss = loss_of(MultiLabelFedLSR(sigmoid_twice=True), TwoViews(z, z), make_site(LABELS))
    q = 1 / (1 + np.exp(-2 * z))
    terms = [2 * np.log1p(np.exp(-q[0, 0])), *np.log1p(np.exp(q)).flatten()[1:]]
    assert loss.item() == pytest.approx(np.sum(terms) / 4, rel=1e-5)


# ---- the divergence -------------------------------------------------------------------------------------------------


def test_the_divergence_is_that_of_the_positive_parts_alone():
    first, second = (torch.tensor(logit(p) / 3) for p in ([[0.2, 0.5]], [[0.6, 0.5]]))
    expected = (0.2 * math.log(0.2 / 0.4) + 0.6 * math.log(0.6 / 0.4)) / 2
    assert divergence(first, second, 1 / 3).item() == pytest.approx(expected / 2, rel=1e-5)  # mean of two entries


def test_the_divergence_of_saturated_answers_is_finite():
    first = torch.tensor([[200.0, -200.0]], requires_grad=True)
    found = divergence(first, -first.detach(), 1 / 3)
    found.backward()
    assert found.item() == pytest.approx(math.log(2) / 2, rel=1e-4)  # both entries: half of 1 * log(1 / .5)
    assert first.grad.isfinite().all()


@pytest.mark.parametrize(("round_num", "share"), [(0, 0), (2, 0.25), (8, 1), (50, 1)])
def test_its_weight_rises_over_the_first_rounds(make_site, round_num, share):
    views, site, task = ([[1.0, 2.0]] * 2, [[-1.0, 0.0]] * 2), make_site(LABELS), order(round_num)
    whole, without = (loss_of(MultiLabelFedLSR(gamma=g), TwoViews(*views), site, task).item() for g in (0.4, 0.0))
    apart = divergence(*(torch.tensor(v) for v in views), 1 / 3).item()
    assert whole - without == pytest.approx(0.4 * share * apart, rel=1e-3, abs=1e-7)
