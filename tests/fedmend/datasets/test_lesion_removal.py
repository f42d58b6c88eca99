"""Lesion removal and the papers' settings of completeness."""

import numpy as np
import pytest
from factories import refused

from fedmend.datasets.imperfections import LesionCounts, completeness_settings, remove_lesions


def dots(count):
    """(2 * count, 1, 1) mask with ``count`` lesions of one voxel."""
    mask = np.zeros((2 * count, 1, 1), dtype=np.uint8)
    mask[::2] = 1
    return mask


@pytest.mark.parametrize(
    ("dataset", "m", "expected"),
    [
        ("ms", 0, (0.4, 0.6, 0.8, 1.0)),
        ("ms", 3, (0.1, 0.3, 0.5, 0.7)),
        ("lung", 0, (0.7, 0.8, 0.9, 1.0)),
        ("lung", 2, (0.1, 0.2, 0.3, 0.4)),
    ],
)
def test_the_settings_of_completeness_are_the_papers(dataset, m, expected):
    assert completeness_settings(dataset, m) == expected


def test_fewer_sites_take_the_first_settings():
    assert completeness_settings("ms", 1, 2) == (0.3, 0.5)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("brain", 0), "completeness: expected dataset 'ms' or 'lung', got 'brain'"),
        (("ms", 4), "completeness: expected m in 0..3 and sites in 1..4 for 'ms', got 4 and 4"),
        (("lung", 3), "completeness: expected m in 0..2 and sites in 1..4 for 'lung', got 3 and 4"),
        (("ms", -1), "completeness: expected m in 0..3 and sites in 1..4 for 'ms', got -1 and 4"),
        (("ms", 0, 5), "completeness: expected m in 0..3 and sites in 1..4 for 'ms', got 0 and 5"),
        (("ms", 0, 0), "completeness: expected m in 0..3 and sites in 1..4 for 'ms', got 0 and 0"),
    ],
)
def test_settings_that_the_paper_does_not_have_are_refused(arguments, sentence):
    with refused(sentence):
        completeness_settings(*arguments)


def test_voxels_that_touch_at_a_corner_are_one_lesion_and_stay_together():
    mask = np.zeros((6, 3, 3), dtype=np.uint8)
    mask[0, 0, 0] = mask[1, 1, 1] = mask[2, 2, 2] = 1
    mask[5, 0, 0] = mask[5, 1, 0] = 1
    kept, counts = remove_lesions(mask, 0.5, seed=0)
    assert (kept.dtype, kept.shape) == (np.uint8, mask.shape)
    first = np.zeros_like(mask)
    first[:3] = mask[:3]
    whole = (first, mask - first)
    assert any(np.array_equal(kept, lesion) for lesion in whole)
    assert counts == LesionCounts(lesions=2, kept_lesions=1, voxels=5, kept_voxels=int(kept.sum()))


@pytest.mark.parametrize(
    ("count", "share", "number"),
    [(5, 0.5, 3), (50, 0.29, 15), (5, 0.28, 1), (10, 0.34, 3), (4, 0.1, 1), (7, 1.0, 7), (1, 0.01, 1)],
)
def test_the_number_of_kept_lesions_is_rounded_half_up_and_at_least_one(count, share, number):
    kept, counts = remove_lesions(dots(count), share, seed=1)
    assert counts == LesionCounts(count, number, count, number)
    assert kept.sum() == number
    assert not (kept > dots(count)).any()


def test_a_mask_without_lesions_stays_empty():
    kept, counts = remove_lesions(np.zeros((2, 3, 4), dtype=np.uint8), 0.5, seed=0)
    assert kept.shape == (2, 3, 4)
    assert not kept.any()
    assert counts == LesionCounts(0, 0, 0, 0)


def test_the_seed_alone_decides_which_lesions_stay():
    first, again, other = (remove_lesions(dots(40), 0.5, seed=s)[0] for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_smaller_share_keeps_some_of_the_lesions_of_a_larger_one():
    few, many = (remove_lesions(dots(40), share, seed=3)[0] for share in (0.2, 0.6))
    assert few.sum() == 8
    assert not (few > many).any()


def test_every_lesion_stays_equally_often():
    kept = sum(remove_lesions(dots(4), 0.5, seed=s)[0].astype(int) for s in range(1000))
    assert np.abs(kept[::2] / 1000 - 0.5).max() < 0.06


@pytest.mark.parametrize(
    ("shape", "share", "seed", "got"),
    [
        ((2, 2), 0.5, 0, "2, 0.5 and 0"),
        ((1, 1, 1), 0.0, 0, "3, 0.0 and 0"),
        ((1, 1, 1), 1.5, 0, "3, 1.5 and 0"),
        ((1, 1, 1), 0.5, -1, "3, 0.5 and -1"),
        ((1, 1, 1), float("nan"), 0, "3, nan and 0"),
    ],
)
def test_a_removal_out_of_its_range_is_refused(shape, share, seed, got):
    with refused(f"lesion removal: expected 3 dimensions, share above 0 and at most 1 and seed >= 0, got {got}"):
        remove_lesions(np.ones(shape, dtype=np.uint8), share, seed=seed)
