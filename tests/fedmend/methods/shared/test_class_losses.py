"""Class-wise losses of the sites: their matrix, and its normalisation."""

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmend.methods.shared.class_losses import class_losses, find_noisy_sites, loss_matrix, normalise_losses

NAN = math.nan


def report(loss, count=None):
    count = [5] * len(loss) if count is None else count
    return {"class_loss": np.array(loss, dtype=np.float32), "class_count": np.array(count, dtype=np.int64)}


def test_the_loss_matrix_has_sites_in_sorted_order_and_nan_for_classes_without_samples():
    losses = loss_matrix({"site-2": report([3, 4]), "site-10": report([1, 0], [7, 0])})
    assert losses.dtype == np.float64
    np.testing.assert_array_equal(losses, [[1, NAN], [3, 4]])  # site-10 sorts before site-2


def test_a_class_of_one_sample_counts_and_the_last_class_may_have_none():
    logits = torch.tensor([[0, math.log(3), 0], [0, 0, 0]])
    told = class_losses(logits, np.array([1, 0]))
    assert told["class_loss"] == pytest.approx([math.log(3), math.log(5 / 3), 0], rel=1e-6)
    assert told["class_count"].tolist() == [1, 1, 0]
    assert np.isnan(loss_matrix({"a": told})).tolist() == [[False, False, True]]


def test_one_loss_per_site_is_the_mean_over_its_samples():
    reports = {"a": report([1, 4], [3, 1]), "b": report([2, 0], [5, 0])}
    np.testing.assert_allclose(loss_matrix(reports, per_class=False), [[7 / 4], [2]])


def test_each_class_is_scaled_to_0_to_1_after_missing_ones_got_the_smallest_loss():
    losses = np.array([[1.0, 10], [3, NAN], [2, 30], [NAN, 20]])
    np.testing.assert_allclose(normalise_losses(losses), [[0, 0], [1, 0], [0.5, 1], [0, 0.5]])


def test_without_normalisation_missing_classes_are_filled_only():
    losses = np.array([[1.0, 10], [3, NAN], [NAN, 20]])
    np.testing.assert_array_equal(normalise_losses(losses, normalise=False), [[1, 10], [3, 10], [1, 20]])


def test_a_constant_class_and_one_that_is_nowhere_become_0_without_a_warning():
    losses = np.array([[2.0, NAN, 1, NAN], [2, NAN, 3, 7], [2, NAN, 2, NAN]])  # the last one at a single site
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(normalise_losses(losses), [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0]])
        np.testing.assert_array_equal(
            normalise_losses(losses, normalise=False), [[2, 0, 1, 7], [2, 0, 3, 7], [2, 0, 2, 7]]
        )


def test_where_all_mixtures_must_agree_and_do_the_noisy_sites_are_found():
    told = {}
    fed = SimpleNamespace(sites=[f"site-{i}" for i in range(6)], record=told.__setitem__, rows=("a", "b"))
    reports = {site: report([2.0, 2.0] if site in ("site-1", "site-4") else [0.1, 0.2]) for site in fed.sites}
    assert find_noisy_sites(fed, reports, min_vote_share=1.0) == ["site-1", "site-4"]
    assert told["noisy_client_detection"]["vote_share"] == 1.0
