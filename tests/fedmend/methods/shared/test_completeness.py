"""FedIA's estimate of completeness and its average, hand-computed."""

import math

import numpy as np
import pytest

from fedmend.averaging import Contribution
from fedmend.methods.shared.completeness import completeness, completeness_aware, completeness_weights


def test_completeness_is_a_ratio_of_counts_and_never_divides_by_zero():
    assert completeness(np.array([3, 12])) == 0.25
    assert completeness(np.array([3, 2])) == 1.5
    assert completeness(np.array([3, 0])) == 0
    assert completeness(np.array([0, 5])) == 0


def test_weights_are_exp_of_completeness_over_loss_without_overflow():
    a, b = math.exp(0.5 / 0.5), math.exp(0.2 / 0.4)
    assert completeness_weights({"x": 0.5, "y": 0.2}, {"x": 0.5, "y": 0.4}) == pytest.approx(
        {"x": a / (a + b), "y": b / (a + b)}
    )
    assert completeness_weights({"x": 1.0, "y": 1.0}, {"x": 1e-9, "y": 0.5}) == {"x": 1, "y": 0}
    assert completeness_weights({}, {"x": 0.3, "y": 0.3}) == {"x": 0.5, "y": 0.5}


def test_weights_with_a_temperature_do_not_sharpen_as_losses_shrink():
    # a / largest a: 1/2 and 1; l / mean l: 1.5 and 0.5, at any scale of the losses.
    low, high = math.exp(0.5 / 1.5 / 2), math.exp(1 / 0.5 / 2)
    expected = {"x": low / (low + high), "y": high / (low + high)}
    for scale in (1.0, 0.01):
        losses = {"x": 0.6 * scale, "y": 0.2 * scale}
        assert completeness_weights({"x": 1.0, "y": 2.0}, losses, temperature=2.0) == pytest.approx(expected)
    assert completeness_weights({"x": 0.0, "y": 0.0}, losses, temperature=1.0) == {"x": 0.5, "y": 0.5}


def contribution(loss, samples=10):
    return Contribution(samples, {"dice_loss": np.array([loss], dtype=np.float32)})


def test_models_are_averaged_by_completeness_over_loss():
    found = completeness_aware(
        {"site-1": 0.5, "site-2": 1.0}, {"site-1": contribution(0.5), "site-2": contribution(0.25)}
    )
    a, b = math.exp(0.5 / 0.5), math.exp(1.0 / 0.25)
    assert found == pytest.approx({"site-1": a / (a + b), "site-2": b / (a + b)})


def test_a_share_that_vanishes_leaves_the_other_models():
    estimates = {"site-1": 0.1, "site-2": 1.0}
    told = {"site-1": contribution(1), "site-2": contribution(0)}
    assert completeness_aware(estimates, told) == {"site-1": 0, "site-2": 1}  # exp(0.1 - 1000)


def test_a_site_without_an_estimate_counts_as_the_least_complete_one():
    told = {site: contribution(0.5) for site in ("a", "b", "c")}
    found = completeness_aware({"a": 0.9, "b": 0.2}, told)
    assert found["c"] == found["b"] < found["a"]
