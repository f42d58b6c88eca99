"""NR-Dice at a site: its loss, and the forms of it."""

import monai.losses  # noqa: F401 - takes seconds, which no test shall seem to take
import numpy as np
import pytest
import torch
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.baselines.nr_dice import NRDice

MASKS = np.zeros((2, 4, 4), dtype=np.uint8)
MASKS[0, 1, 2] = 1


def loss_of(folder, **options):
    """Loss of two slices, one of them without a mark, on which the network says 0.3 everywhere."""
    work = NRDice(augment=False, **options).start(
        SaysMasks(np.full(MASKS.shape, 0.3)), make_task(), make_mask_site(folder, MASKS)
    )
    return work.loss(torch.arange(2)).item()


# Errors of lesion (and of background, which are the same), and sizes.
ERRORS = [0.7**1.5 + 15 * 0.3**1.5, 16 * 0.3**1.5]
SQUARES = [16 * 0.09 + 1, 16 * 0.09]
SUMS = [16 * 0.3 + 1, 16 * 0.3]


def test_by_default_each_slice_has_its_quotient_of_the_lesion_with_squares(tmp_path):
    by_hand = np.mean([e / s for e, s in zip(ERRORS, SQUARES, strict=True)])
    assert loss_of(tmp_path) == pytest.approx(by_hand, rel=1e-4)


def test_sums_may_take_the_place_of_squares_and_the_batch_that_of_slices(tmp_path):
    assert loss_of(tmp_path / "a", denominator="sums") == pytest.approx(
        np.mean([e / s for e, s in zip(ERRORS, SUMS, strict=True)]), rel=1e-4
    )
    assert loss_of(tmp_path / "b", pooling="batch") == pytest.approx(sum(ERRORS) / sum(SQUARES), rel=1e-4)


def test_the_background_may_count_as_much_as_the_lesion(tmp_path):
    background = [16 * 0.7 + 15, 16 * 0.7 + 16]
    by_hand = (sum(ERRORS) / sum(SUMS) + sum(ERRORS) / sum(background)) / 2
    options = {"pooling": "batch", "denominator": "sums", "rows": "both"}
    assert loss_of(tmp_path, **options) == pytest.approx(by_hand, rel=1e-4)


def test_gamma_is_an_argument(tmp_path):
    errors = [0.7**2 + 15 * 0.3**2, 16 * 0.3**2]
    by_hand = np.mean([e / s for e, s in zip(errors, SQUARES, strict=True)])
    assert loss_of(tmp_path, gamma=2.0) == pytest.approx(by_hand, rel=1e-4)
