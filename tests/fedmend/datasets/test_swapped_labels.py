"""Labels that are both missing and noisy."""

import numpy as np
import pytest

from fedmend.datasets.swapped_labels import SwapNoise, missing_and_noisy, swap_labels
from fedmend.errors import FedMendError

TEN = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0], dtype=np.int8)
ALL_NOISY = SwapNoise(noisy_share=1.0, noise_low=0.5, noise_high=0.5)


def test_half_of_the_positives_change_places_with_as_many_negatives():
    swapped = swap_labels(TEN, 0.5, seed=0)
    assert swapped[:4].sum() == 2
    assert swapped[4:].sum() == 2
    assert swapped.dtype == TEN.dtype
    assert TEN.sum() == 4  # the true labels are untouched


def test_no_more_positives_are_missed_than_there_are_negatives():
    assert swap_labels(1 - TEN, 1.0, seed=0).tolist().count(0) == 4
    assert swap_labels(np.array([1, 1, 1, 0]), 1.0, seed=0).sum() == 3


def test_the_seed_decides_which_labels_are_swapped():
    assert (swap_labels(TEN, 0.5, seed=(1, 2)) == swap_labels(TEN, 0.5, seed=(1, 2))).all()
    assert any((swap_labels(TEN, 0.5, seed=0) != swap_labels(TEN, 0.5, seed=s)).any() for s in range(1, 5))


def test_a_rate_above_one_is_refused():
    with pytest.raises(FedMendError, match=r"expected a rate in 0\.\.1, got 1\.5"):
        swap_labels(TEN, 1.5, seed=0)


def test_a_noisy_site_is_noisy_in_the_classes_that_it_annotates_alone():
    labels = np.column_stack([np.tile(TEN, 2)] * 3)
    annotated = np.array([[True, False, False], [False, True, True]])
    shown, rates = missing_and_noisy(labels, [np.arange(10), np.arange(10, 20)], annotated, noise=ALL_NOISY, seed=3)
    assert rates == [0.5, 0.5]
    wrong = shown != labels
    assert wrong[:10].sum(0).tolist() == [4, 0, 0]
    assert wrong[10:].sum(0).tolist() == [0, 4, 4]


def test_clean_sites_keep_their_labels():
    labels = np.column_stack([np.tile(TEN, 5)] * 2)
    parts = np.split(np.arange(50), 5)
    noise = SwapNoise(noisy_share=0.4, noise_low=0.5, noise_high=0.7)
    shown, rates = missing_and_noisy(labels, parts, np.ones((5, 2), dtype=bool), noise=noise, seed=1)
    assert sum(rate > 0 for rate in rates) == 2
    for part, rate in zip(parts, rates, strict=True):
        assert (shown[part] != labels[part]).any() == (rate > 0)
        assert rate == 0 or 0.5 <= rate <= 0.7


def test_without_noisy_sites_nothing_changes():
    labels = np.column_stack([TEN, 1 - TEN])
    shown, rates = missing_and_noisy(labels, [np.arange(10)], np.ones((1, 2), dtype=bool), noise=SwapNoise(), seed=0)
    assert rates == [0.0]
    assert (shown == labels).all()
