"""The server half of FedNoRo: reports, loss matrix, detection, ramp, weights."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from factories import refused

from fedmend.averaging import Contribution
from fedmend.methods.fednoro import (
    CLEAN,
    DETECT,
    NOISY,
    FedNoRoWorkflow,
    distance_aware,
    distance_aware_weights,
)
from fedmend.methods.shared import class_losses
from fedmend.methods.shared.dimensions import Detection


def report(loss, count=None):
    count = [5] * len(loss) if count is None else count
    return {"class_loss": np.array(loss, dtype=np.float32), "class_count": np.array(count, dtype=np.int64)}


# ---- reports --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            {"class_count": np.array([3, 4])},
            "report: expected ['class_count', 'class_loss'], got none of ['class_loss']",
        ),
        ({}, "report: expected ['class_count', 'class_loss'], got none of ['class_count', 'class_loss']"),
        (
            report([1, 2], [0, 0]),
            "report field class_count: expected at least one class with enough samples, got none",
        ),
    ],
    ids=["no loss", "nothing", "only held back"],
)
def test_a_report_that_cannot_be_used_is_refused(content, sentence):
    with refused(sentence):
        FedNoRoWorkflow(warmup_rounds=1).check(DETECT, content)


# ---- what settings do -----------------------------------------------------------------------------------------------
SITES = ("a", "b", "c", "d")


def detected(monkeypatch, vote_share, **settings):
    """Losses and settings of the mixtures that find site b with this share, and the noisy sites."""
    asked = []

    def mixtures(losses, **options):
        asked.append((losses[:, 0].tolist(), options))
        return Detection(np.arange(4) == 1, vote_share, "full")

    monkeypatch.setattr(class_losses, "detect_noisy_clients", mixtures)
    told = {site: SimpleNamespace(report=report([loss, 1])) for site, loss in zip(SITES, (1, 3, 2, 1), strict=True)}
    nothing = lambda *args: None  # noqa: E731
    fed = SimpleNamespace(sites=SITES, rows=("x", "y"), record=nothing, warn=nothing)
    fed.collect = lambda stage, *, at_least: told if at_least == 4 else None
    roles = FedNoRoWorkflow(warmup_rounds=1, **settings)._detect(fed)
    return *asked[0], [site for site, role in roles.items() if role == NOISY]


@pytest.mark.parametrize(("vote_share", "noisy"), [(0.66, []), (0.68, ["b"])])
def test_nine_mixtures_vote_on_normalised_losses_and_two_thirds_must_agree(monkeypatch, vote_share, noisy):
    used = {"votes": 9, "covariance": "auto"}
    assert detected(monkeypatch, vote_share) == ([0, 1, 0.5, 0], used, noisy)


def test_the_settings_of_the_detection_reach_it(monkeypatch):
    settings = {"votes": 5, "covariance": "full", "min_vote_share": 0.3, "detection_normalise": False}
    used = {"votes": 5, "covariance": "full"}
    assert detected(monkeypatch, 0.4, **settings) == ([1, 3, 2, 1], used, ["b"])


def test_lambda_follows_the_ramp_of_the_settings():
    told = []
    fed = SimpleNamespace(num_rounds=9, sites=SITES, memory=FedNoRoWorkflow.Memory({"a": CLEAN}))
    fed.train = lambda stage, **given: told.append(float(given["knowledge"]["distillation_weight"])) or {}
    fed.record = lambda *args: None
    workflow = FedNoRoWorkflow(warmup_rounds=2, ramp_begin=1, ramp_end=5, ramp_maximum=0.6)
    for r in (3, 5):
        workflow._robust_round(fed, r)
    assert told == pytest.approx([0.6 * math.exp(-5 / 4), 0.6])


# ---- Eqs. (6)-(7) ---------------------------------------------------------------------------------------------------


def test_a_noisy_model_weighs_its_samples_times_e_to_its_scaled_distance():
    weights = distance_aware_weights([10, 20, 30, 40], np.array([0, 2.0, 0, 4.0]))
    np.testing.assert_allclose(weights, [10, 20 * math.exp(-0.5), 30, 40 * math.exp(-1)], rtol=1e-12)


@pytest.mark.parametrize("distance", [1e-9, 0.3, 1e9])
def test_a_single_noisy_site_always_has_e_to_minus_1_of_its_weight(distance):
    weights = distance_aware_weights([10, 10], np.array([0, distance]))
    assert weights[1] / weights[0] == pytest.approx(math.exp(-1), rel=1e-12)


def test_without_distances_models_weigh_their_samples():
    np.testing.assert_array_equal(distance_aware_weights([10, 30], np.zeros(2)), [10, 30])


def contributions(*models):
    """site-1, site-2, …: samples and the numbers of a model."""
    return {
        f"site-{k}": Contribution(samples, {}, {"w": np.array(values, dtype=np.float32)})
        for k, (samples, *values) in enumerate(models, 1)
    }


def shares(noisy, *models):
    weights = distance_aware(noisy, contributions(*models))
    return {site: weight / sum(weights.values()) for site, weight in weights.items()}


THREE = [(10, 1, 4), (30, 5, -4), (25, -3, 0.5)]


def test_a_noisy_model_counts_less_the_farther_it_is_from_the_nearest_clean_one():
    # Distances to the nearest clean model: site-2 1, site-4 2 (of 4 and 3 to the clean ones of 0 and 5).
    weights = distance_aware(["site-2", "site-4"], contributions((10, 0), (20, 4), (30, 5), (40, 7)))
    expected = [10, 20 * math.exp(-1 / 2), 30, 40 * math.exp(-1)]
    assert list(weights) == ["site-1", "site-2", "site-3", "site-4"]
    assert list(weights.values()) == pytest.approx(expected, rel=1e-6)


def test_buffers_count_in_the_distance_and_it_is_the_sum_over_tensors():
    def far_apart(conv, mean):
        return Contribution(10, {}, {"conv": np.float32(conv), "bn.running_mean": np.float32([mean])})

    weights = distance_aware(
        ["b", "c"], {"a": far_apart([0, 0], 0), "b": far_apart([3, 4], 3), "c": far_apart([0, 4], 5)}
    )
    assert list(weights.values()) == pytest.approx([10, 10 * math.exp(-8 / 9), 10 * math.exp(-1)], rel=1e-6)


@pytest.mark.parametrize("noisy", [[], ["site-9"], ["site-1", "site-2", "site-3"]], ids=["none", "a stranger", "all"])
def test_without_noisy_or_without_clean_models_it_is_federated_averaging(noisy):
    assert distance_aware(noisy, contributions(*THREE)) == {"site-1": 10, "site-2": 30, "site-3": 25}


def test_a_noisy_model_like_a_clean_one_keeps_its_weight():
    assert shares(["site-2"], (10, 1, 4), (30, 1, 4)) == pytest.approx({"site-1": 0.25, "site-2": 0.75})


def test_a_model_as_far_away_as_numbers_go_has_the_weight_of_the_farthest():
    found = distance_aware(["site-2"], contributions((10, 0), (20, 3e38), (30, 5)))
    assert found == pytest.approx({"site-1": 10, "site-2": 20 / math.e, "site-3": 30})


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"warmup_rounds": 0}, "job variable warmup_rounds: expected at least 1, got 0"),
        ({"votes": 0}, "job variable votes: expected at least 1, got 0"),
        ({"ramp_maximum": 1.1}, "job variable ramp_maximum: expected 0 to 1, got 1.1"),
        ({"min_vote_share": math.nan}, "job variable min_vote_share: expected 0 to 1, got nan"),
        ({"covariance": "tied"}, "job variable covariance: expected one of ['auto', 'full', 'spherical'], got 'tied'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, sentence):
    with refused(sentence):
        FedNoRoWorkflow(**{"warmup_rounds": 1, **settings})
