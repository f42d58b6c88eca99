"""Unmarked pixels that leave the loss."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.methods.ignore_unmarked import IgnoreUnmarked
from fedmend.repairs.verdicts import REJECT, Verdict

MASKS = np.zeros((2, 8, 8), dtype=np.uint8)
MASKS[0, 2, 3] = MASKS[0, 2, 4] = 1
SURE = np.full(MASKS.shape, 0.2)
SURE[0, 2, 3] = SURE[0, 5, 5] = SURE[1, 1, 1] = 0.9  # one that is marked, two that are not
SURE[1, 6, 6] = 0.3  # not above the threshold
LEFT_OUT = ((0, 5, 5), (1, 1, 1))
PIXELS = MASKS.size


def start(tmp_path, *, round_num=4, **settings):
    """A round of ten at a site whose received model says SURE."""
    method = IgnoreUnmarked(augment=False, **settings)
    return method.start(
        SaysMasks(SURE), make_task(round_num=round_num, total_rounds=10), make_mask_site(tmp_path, MASKS)
    )


def step(work):
    """Loss of all slices and its gradient by the logits of lesion."""
    work.batches(0)
    loss = work.loss(torch.arange(2))
    loss.backward()
    return loss.item(), work.model.table.grad.numpy()


def test_unmarked_pixels_that_the_received_model_takes_for_lesion_have_no_gradient(tmp_path):
    _, gradient = step(start(tmp_path))
    assert sorted(zip(*np.nonzero(gradient == 0), strict=True)) == sorted(LEFT_OUT)


def test_a_pixel_that_people_have_accepted_as_lesion_is_marked_and_counts(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    accepted = MASKS > 0
    accepted[0, 5, 5] = True
    site.ledger.apply = lambda masks: accepted
    task = make_task(round_num=4, total_rounds=10)
    _, gradient = step(IgnoreUnmarked(augment=False).start(SaysMasks(SURE), task, site))
    assert sorted(zip(*np.nonzero(gradient == 0), strict=True)) == [(1, 1, 1)]


def test_a_pixel_that_people_have_refused_as_lesion_is_background_and_counts(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    added = np.zeros(MASKS.shape, dtype=bool)
    added[1, 1, 1] = added[1, 1, 2] = True
    site.ledger.record("fedia.correction", 0, added, np.ones(2))
    site.ledger.judge(Verdict(1, 0, REJECT, 0, 1, "fedia.correction", 0, "AB"))
    _, gradient = step(
        IgnoreUnmarked(augment=False).start(SaysMasks(SURE), make_task(round_num=4, total_rounds=10), site)
    )
    assert sorted(zip(*np.nonzero(gradient == 0), strict=True)) == [(0, 5, 5)]


def test_the_loss_is_dice_and_weighted_entropy_of_the_pixels_that_count(tmp_path):
    loss, _ = step(start(tmp_path, entropy_weight=2.0))
    lesion = 61 * 0.2 + 0.9  # of the first slice, but for the pixel that is left out: 63 pixels, two of them marked
    dice = (1 - 2 * (0.9 + 0.2) / (lesion + 0.2 + 2 + 1e-4) + 1) / 2  # no mark: 1
    entropy = -(math.log(0.9) + math.log(0.2) + 123 * math.log(0.8) + math.log(0.7)) / (PIXELS - 2)
    assert loss == pytest.approx(dice + 2 * entropy, rel=1e-5)


@pytest.mark.parametrize("settings", [{"round_num": 3}, {"threshold": 1.0}, {"warmup_share": 1.0}])
def test_every_pixel_counts_in_the_warm_up_and_where_no_model_can_be_sure_enough(settings, tmp_path):
    _, gradient = step(start(tmp_path, **settings))
    assert (gradient != 0).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"threshold": 1.1}, "job variable threshold: expected 0 to 1, got 1.1"),
        ({"warmup_share": -0.1}, "job variable warmup_share: expected 0 to 1, got -0.1"),
        ({"entropy_weight": math.inf}, "job variable entropy_weight: expected >= 0, got inf"),
    ],
)
def test_settings_out_of_range_are_refused(settings, sentence):
    with refused(sentence):
        IgnoreUnmarked(**settings)
