"""ELR at a site: running means of predictions, their term, and what a round leaves for the next one."""

import math

import monai.losses  # noqa: F401 - takes seconds, which no test shall seem to take
import numpy as np
import pytest
import torch
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.baselines.elr import ELR

MASKS = np.zeros((4, 8, 8), dtype=np.uint8)
MASKS[0, 2, 3] = MASKS[3, 5, 5] = 1
ALL = torch.arange(4)


def start(method, site, p=0.3, round_num=0):
    return method.start(SaysMasks(np.full(MASKS.shape, p)), make_task(round_num=round_num), site)


def step(work, epoch=0):
    """Loss of the first step of an epoch and its gradient by the logits of lesion."""
    work.batches(epoch)
    loss = work.loss(ALL)
    loss.backward()
    return loss.item(), work.model.table.grad.numpy()


def entropy(p):
    return float(np.where(MASKS > 0, -math.log(p), -math.log(1 - p)).mean())


def product(lesion, updates, p, beta=0.7):
    """<t, p>"""
    return lesion * p + (1 - beta**updates - lesion) * (1 - p)


def test_the_term_is_the_log_of_1_less_the_agreement_with_the_running_mean(tmp_path):
    work = start(ELR(augment=False), make_mask_site(tmp_path, MASKS))
    loss, gradient = step(work)
    t = 0.3 * 0.3  # (1 - beta) p
    agreement = product(t, 1, 0.3)
    assert loss == pytest.approx(entropy(0.3) + 3 * math.log(1 - agreement), rel=1e-5)
    slope = -3 * (t - (0.3 - t)) * 0.3 * 0.7 / (1 - agreement)  # the running mean has no gradient
    assert gradient == pytest.approx(((0.3 - MASKS) + slope) / MASKS.size, abs=1e-7)


def test_the_mean_goes_on_over_steps_and_rounds(tmp_path):
    site, method = make_mask_site(tmp_path, MASKS), ELR(augment=False)
    work = start(method, site)
    step(work)
    t = 0.7 * (0.3 * 0.3) + 0.3 * 0.3
    assert step(work, 1)[0] == pytest.approx(entropy(0.3) + 3 * math.log(1 - product(t, 2, 0.3)), rel=1e-3)
    assert work.report() == {}
    t = 0.7 * t + 0.3 * 0.8
    loss = step(start(method, site, 0.8, round_num=1))[0]
    assert loss == pytest.approx(entropy(0.8) + 3 * math.log(1 - product(t, 3, 0.8)), rel=1e-3)


def test_a_repeated_round_and_one_after_a_missed_one_start_from_what_the_round_before_left(tmp_path):
    site, method = make_mask_site(tmp_path, MASKS), ELR(augment=False)

    def play(p, round_num):
        work = start(method, site, p, round_num)
        loss = step(work)[0]
        work.report()
        return loss

    first, second = play(0.3, 0), play(0.8, 1)
    assert play(0.8, 1) == second
    t = 0.7 * 0.3 * 0.3 + 0.3 * 0.8
    t = 0.7 * t + 0.3 * 0.6
    assert play(0.6, 4) == pytest.approx(entropy(0.6) + 3 * math.log(1 - product(t, 3, 0.6)), rel=1e-3)
    assert play(0.3, 0) == first


def test_the_base_loss_may_be_dice(tmp_path):
    work = start(ELR(augment=False, weight=0.0, base_loss="dice"), make_mask_site(tmp_path, MASKS))
    each = [1 - 2 * 0.3 * n / (0.3 * 64 + n) for n in (1, 0, 0, 1)]
    assert step(work)[0] == pytest.approx(np.mean(each), abs=1e-5)


def test_predictions_count_as_a_ten_thousandth_from_0_at_least(tmp_path):
    loss, gradient = step(start(ELR(augment=False, weight=1000.0), make_mask_site(tmp_path, MASKS), 0.0))
    p = 1e-4
    agreement = 0.3 * p * p + 0.3 * (1 - p) * (1 - p)
    assert loss == pytest.approx(entropy(1e-6) + 1000 * math.log(1 - agreement), abs=0.02)
    assert np.abs(gradient[MASKS == 0]).max() < 1e-7


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_predictions_without_any_doubt_give_finite_numbers(tmp_path, p):
    work = start(ELR(augment=False), make_mask_site(tmp_path, MASKS), p)
    for epoch in range(60):
        loss, gradient = step(work, epoch)
    assert math.isfinite(loss)
    assert np.isfinite(gradient).all()
