"""MOON at a site: contrastive loss, and the local model of the round before."""

import math

import numpy as np
import pytest
import torch
from torch_factories import Says, make_task

from fedmend.baselines.moon import Moon, contrastive_loss
from fedmend.methods.labelsets import LabelSetFedAvg

MULTI = [[1, -1], [0, -1], [1, -1]]
ALL = torch.arange(3)


def order(round_num=0):
    return make_task(round_num=round_num, pos_weight=np.array([2, 3], dtype=np.float32))


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def finished(method, net, round_num, site):
    """A round that ends with this local model."""
    assert started(method, net, round_num, site).report() == {}


def started(method, net, round_num, site):
    return method.start(net, order(round_num), site)


def added(work, net):
    """What the contrastive term adds to the loss of another student."""
    work.model = net
    supervised = LabelSetFedAvg(local_iterations=1).start(net, work.task, work.site)
    return (work.loss(ALL) - supervised.loss(ALL)).item()


# ---- the loss -------------------------------------------------------------------------------------------------------


def test_the_contrastive_loss_prefers_the_features_of_the_received_model_to_the_previous_ones():
    z = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    received = torch.tensor([[5.0, 0.0], [0.0, 1.0], [4.0, 0.0]])
    previous = torch.tensor([[0.0, 1.0], [7.0, 0.0], [0.0, 2.0]])
    # Cosines to the received and previous features: 1 and 0, both the root of 1/2, 0 and 1.
    expected = [-math.log(math.exp(2) / (math.exp(2) + 1)), math.log(2), -math.log(1 / (1 + math.exp(2)))]
    assert contrastive_loss(z, received, previous, tau=0.5).item() == pytest.approx(np.mean(expected), rel=1e-6)


def test_the_contrastive_loss_of_features_of_0_or_of_a_low_temperature_is_finite():
    z = torch.zeros(2, 3, requires_grad=True)
    loss = contrastive_loss(z, torch.ones(2, 3), torch.zeros(2, 3), tau=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert z.grad.isfinite().all()
    low = contrastive_loss(torch.ones(1, 2), -torch.ones(1, 2), torch.ones(1, 2), tau=1e-4)
    assert low.item() == pytest.approx(2e4, rel=1e-4)


def test_a_step_adds_mu_times_the_contrastive_loss_of_the_strong_views(site_of, plain):
    site, method = site_of(MULTI, classes=2), Moon(local_iterations=1, mu=3.0, temperature=0.25)
    finished(method, Says([[0, 1], [1, 0], [0, -1]]), 0, site)
    work = started(method, Says([[1, 0], [1, 0], [0, 1]]), 1, site)
    student = Says([[1, 0], [0, 1], [1, 0]])  # cosines to received and previous: 1 and 0, 0 and 0, 0 and 0
    expected = (math.log(1 + math.exp(-1 / 0.25)) + 2 * math.log(2)) / 3
    assert added(work, student) == pytest.approx(3 * expected, rel=1e-5)
    without = started(Moon(local_iterations=1, mu=0.0), Says([[1, 0], [1, 0], [0, 1]]), 1, site)
    assert added(without, student) == 0
    assert (Moon(local_iterations=1).mu, Moon(local_iterations=1).temperature) == (1.0, 0.5)


def test_both_models_that_it_is_compared_with_see_the_strong_views_in_eval_mode(site_of, monkeypatch):
    monkeypatch.setattr(
        "fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images + 2 / 25.5
    )
    site, method, table = site_of(MULTI, classes=2), Moon(local_iterations=1), np.ones((5, 2))
    finished(method, Says(table), 0, site)
    net = Says(table).train()
    work = started(method, net, 1, site)
    work.loss(ALL)
    assert [other.calls for other in work._compared] == [[(False, [2, 3, 4])]] * 2
    assert net.calls == [(True, [2, 3, 4])]


def test_what_a_site_keeps_is_the_model_that_it_has_trained_in_every_round(site_of, plain):
    site, method = site_of(MULTI, classes=2), Moon(local_iterations=1)
    finished(method, Says([[1, 0]] * 3), 0, site)
    net = Says([[1, 0]] * 3)
    work = started(method, net, 1, site)
    with torch.no_grad():
        net.table.copy_(torch.tensor([0.0, 1.0]))
    work.report()
    work = started(method, Says([[1, 0]] * 3), 2, site)
    student = Says([[1, 0]] * 3)  # cosines to received and previous: 1 and 0
    assert added(work, student) == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-5)


@pytest.mark.parametrize(("left", "round_num"), [([], 0), ([0], 2), ([0, 1], 0)], ids=["first", "missed", "repeated"])
def test_without_a_model_of_the_round_before_there_is_no_contrastive_term(site_of, plain, left, round_num):
    site, method = site_of(MULTI, classes=2), Moon(local_iterations=1)
    for r in left:
        finished(method, Says([[0, 1], [1, 0], [0, -1]]), r, site)
    assert added(started(method, Says([[1, 0], [1, 0], [0, 1]]), round_num, site), Says(np.ones((3, 2)))) == 0


def test_a_model_that_an_earlier_run_with_another_seed_left_does_not_count(site_of, plain):
    site, method = site_of(MULTI, classes=2), Moon(local_iterations=1)
    earlier = make_task(round_num=0, seed=order().seed + 1, **order().knowledge)
    method.start(Says([[0, 1], [1, 0], [0, -1]]), earlier, site).report()
    assert added(started(method, Says([[1, 0], [1, 0], [0, 1]]), 1, site), Says(np.ones((3, 2)))) == 0
