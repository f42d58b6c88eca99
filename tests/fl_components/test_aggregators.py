import math

import numpy as np
import pytest
from factories import refused

from fl_components.aggregators import (
    ClasswiseAggregator,
    CompletenessAggregator,
    DistanceAwareAggregator,
    SampleWeightedAggregator,
)
from fl_components.payload import SiteResult, pack_result


def reply(site, samples, *values):
    model = pack_result(SiteResult(samples=samples, weights={"w": np.array(values, dtype=np.float32)}))
    model.meta["client_name"] = site
    return model


def test_the_mean_is_weighted_by_samples():
    aggregator = SampleWeightedAggregator()
    aggregator.accept_model(reply("site-1", 10, 1, 4))
    aggregator.accept_model(reply("site-2", 30, 5, -4))
    merged = aggregator.aggregate_model()
    np.testing.assert_array_equal(merged.params["w"], np.array([4, -2], dtype=np.float32))  # (10*1 + 30*5) / 40
    assert merged.params["w"].dtype == np.float32


def test_a_round_knows_nothing_of_the_one_before():
    aggregator = SampleWeightedAggregator()
    aggregator.accept_model(reply("site-1", 10, 100))
    aggregator.aggregate_model()
    aggregator.reset_stats()
    aggregator.accept_model(reply("site-1", 10, 2))
    assert aggregator.aggregate_model().params["w"].tolist() == [2]


def test_received_models_are_not_changed():
    model = reply("site-1", 10, 1, 4)
    aggregator = SampleWeightedAggregator()
    aggregator.accept_model(model)
    aggregator.accept_model(reply("site-2", 30, 5, -4))
    aggregator.aggregate_model()
    assert model.params["w"].tolist() == [1, 4]


def merged(aggregator, *replies):
    for model in replies:
        aggregator.accept_model(model)
    return aggregator.aggregate_model().params["w"]


def test_a_noisy_model_counts_less_the_farther_it_is_from_the_nearest_clean_one():
    # Distances to the nearest clean model: site-2 1, site-4 2 (of 4 and 3 to the clean ones of 0 and 5).
    aggregator = DistanceAwareAggregator(["site-2", "site-4"])
    replies = [reply("site-1", 10, 0), reply("site-2", 20, 4), reply("site-3", 30, 5), reply("site-4", 40, 7)]
    weights = np.array([10, 20 * math.exp(-1 / 2), 30, 40 * math.exp(-1)])
    mean = merged(aggregator, *replies)
    assert mean.tolist() == pytest.approx([(weights * [0, 4, 5, 7]).sum() / weights.sum()], rel=1e-6)
    assert mean.dtype == np.float32
    assert list(aggregator.shares) == ["site-1", "site-2", "site-3", "site-4"]
    assert list(aggregator.shares.values()) == pytest.approx((weights / weights.sum()).tolist(), rel=1e-6)
    assert sum(aggregator.shares.values()) == pytest.approx(1)


def far_apart(site, samples, conv, mean):
    weights = {"conv": np.float32(conv), "bn.running_mean": np.float32([mean])}
    model = pack_result(SiteResult(samples=samples, weights=weights))
    model.meta["client_name"] = site
    return model


@pytest.mark.parametrize(
    ("settings", "b", "c"),
    [
        ({}, 5 + 3, 4 + 5),
        ({"buffers": False}, 5, 4),
        ({"distance": "l2"}, 34**0.5, 41**0.5),
        ({"distance": "l2", "buffers": False}, 5, 4),
    ],
)
def test_the_distance_is_the_chosen_one(settings, b, c):
    aggregator = DistanceAwareAggregator(["b", "c"], **settings)
    for model in (far_apart("a", 10, [0, 0], 0), far_apart("b", 10, [3, 4], 3), far_apart("c", 10, [0, 4], 5)):
        aggregator.accept_model(model)
    aggregator.aggregate_model()
    expected = np.exp([-d / max(b, c) for d in (0, b, c)])
    assert list(aggregator.shares.values()) == pytest.approx((expected / expected.sum()).tolist(), rel=1e-6)


REPLIES = [reply("site-1", 10, 1, 4), reply("site-2", 30, 5, -4), reply("site-3", 25, -3, 0.5)]


@pytest.mark.parametrize("noisy", [[], ["site-9"], ["site-1", "site-2", "site-3"]], ids=["none", "a stranger", "all"])
def test_without_noisy_or_without_clean_models_it_is_federated_averaging(noisy):
    aggregator = DistanceAwareAggregator(noisy)
    np.testing.assert_allclose(merged(aggregator, *REPLIES), merged(SampleWeightedAggregator(), *REPLIES), rtol=1e-6)
    assert aggregator.shares == pytest.approx({"site-1": 10 / 65, "site-2": 30 / 65, "site-3": 25 / 65})


def test_a_single_noisy_model_has_e_to_minus_1_of_its_weight():
    aggregator = DistanceAwareAggregator(["site-2"])
    merged(aggregator, *REPLIES)
    assert aggregator.shares["site-2"] / aggregator.shares["site-1"] == pytest.approx(3 * math.exp(-1))


def test_a_noisy_model_like_a_clean_one_keeps_its_weight():
    aggregator = DistanceAwareAggregator(["site-2"])
    merged(aggregator, reply("site-1", 10, 1, 4), reply("site-2", 30, 1, 4))
    assert aggregator.shares == pytest.approx({"site-1": 0.25, "site-2": 0.75})


def test_the_order_of_the_models_does_not_matter():
    shares, means = [], []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        aggregator = DistanceAwareAggregator(["site-1"])
        means.append(merged(aggregator, *(REPLIES[i] for i in order)))
        shares.append(aggregator.shares)
    for mean, share in zip(means[1:], shares[1:], strict=True):
        np.testing.assert_allclose(mean, means[0], rtol=1e-6)
        assert share == pytest.approx(shares[0], rel=1e-6)


def test_a_distance_aware_round_knows_nothing_of_the_one_before():
    aggregator = DistanceAwareAggregator(["site-2"])
    merged(aggregator, *REPLIES)
    aggregator.reset_stats()
    assert merged(aggregator, reply("site-1", 10, 2)).tolist() == [2]
    assert aggregator.shares == {"site-1": 1.0}


def test_received_models_are_not_changed_by_distances():
    models = [reply("site-1", 10, 1, 4), reply("site-2", 30, 5, -4)]
    merged(DistanceAwareAggregator(["site-2"]), *models)
    assert [m.params["w"].tolist() for m in models] == [[1, 4], [5, -4]]


def test_a_model_infinitely_far_away_stops_the_round_and_names_its_site():
    aggregator = DistanceAwareAggregator(["site-2"])
    with refused("site-2: weights: expected a finite distance to the clean models, got another"):
        merged(aggregator, reply("site-1", 10, 0), reply("site-2", 20, 3e38), reply("site-3", 30, 5))


# ---- class by class -------------------------------------------------------------------------------------------------

HEAD = ["head.weight", "head.bias"]
KNOWN = {"a": np.array([True, True, False]), "b": np.array([True, False, False])}


def headed(site, samples, value, q=None, dtype=np.float32):
    """A model of three classes: class c has weights 10 c + value and bias c + value; the backbone is value."""
    classes = np.arange(3, dtype=dtype)
    weights = {
        "conv": np.full((3, 2), value, dtype=dtype),
        "head.weight": np.repeat(10 * classes[:, None], 4, 1) + dtype(value),
        "head.bias": classes + dtype(value),
    }
    report = {} if q is None else {"class_knowledge": np.array(q, dtype=np.float32)}
    model = pack_result(SiteResult(samples=samples, weights=weights, report=report))
    model.meta["client_name"] = site
    return model


def classwise(*replies, known=KNOWN, rule="awpa", classifier=HEAD):
    aggregator = ClasswiseAggregator(classifier, known, rule=rule)
    for model in replies:
        aggregator.accept_model(model)
    return aggregator.aggregate_model()


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("awpa", [(1 * 4 + 3 * 12) / 16, 3, (10 * 1 + 30 * 3) / 40]),
        ("masked", [(10 * 1 + 30 * 3) / 40, 1, 2.5]),
        ("samples", [2.5, 2.5, 2.5]),
    ],
)
def test_rows_of_the_classifier_are_averaged_by_q_by_owners_or_like_the_rest_by_samples(rule, values):
    params = classwise(headed("a", 10, 1, [4, 0, 0]), headed("b", 30, 3, [12, 5, 0]), rule=rule).params
    assert set(params) == {"conv", *HEAD}
    assert params["conv"].tolist() == [[2.5, 2.5]] * 3
    assert params["head.bias"] == pytest.approx(np.arange(3) + values)
    assert params["head.weight"] == pytest.approx((10 * np.arange(3) + values)[:, None].repeat(4, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_keep_their_dtype_and_shape(dtype):
    params = classwise(headed("a", 10, 1, [4, 0, 0], dtype), headed("b", 30, 3, [12, 5, 0], dtype)).params
    assert {k: (v.dtype, v.shape) for k, v in params.items() if k in HEAD} == {
        "head.weight": (np.dtype(dtype), (3, 4)),
        "head.bias": (np.dtype(dtype), (3,)),
    }


def test_only_the_named_keys_are_averaged_class_by_class():
    replies = headed("a", 10, 1, [4, 0, 0]), headed("b", 30, 3, [12, 5, 0])
    params = classwise(*replies, classifier=["head.bias"]).params
    assert params["head.weight"] == pytest.approx(10 * np.arange(3.0)[:, None].repeat(4, 1) + 2.5)
    assert params["head.bias"] == pytest.approx([2.5, 4, 4.5])


def test_the_order_of_the_models_changes_no_bit_of_a_classifier_row():
    q = np.random.default_rng(0).random((3, 3))
    replies = [headed(site, n, 0.1 * n, row) for site, n, row in zip("abc", (7, 11, 13), q, strict=True)]
    known = {**KNOWN, "c": np.array([False, True, True])}
    merged_models = [
        classwise(*(replies[i] for i in order), known=known).params for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0))
    ]
    for params in merged_models[1:]:
        assert all(np.array_equal(params[k], merged_models[0][k]) for k in HEAD)
        np.testing.assert_allclose(params["conv"], merged_models[0]["conv"], rtol=1e-6)


@pytest.mark.parametrize("rule", ["awpa", "masked", "samples"])
def test_models_received_for_classwise_averaging_are_not_changed(rule):
    replies = [headed("a", 10, 1, [4, 0, 0]), headed("b", 30, 3, [12, 5, 0])]
    before = [{k: v.copy() for k, v in model.params.items()} for model in replies]
    classwise(*replies, rule=rule)
    for model, own in zip(replies, before, strict=True):
        assert set(model.params) == set(own)
        assert all(np.array_equal(v, own[k]) for k, v in model.params.items())


@pytest.mark.parametrize(("rule", "bias"), [("masked", [2.5, 2, 4.5]), ("samples", [2.5, 3.5, 4.5])])
def test_without_awpa_averaging_needs_no_report(rule, bias):
    assert classwise(headed("a", 10, 1), headed("b", 30, 3), rule=rule).params["head.bias"] == pytest.approx(bias)


def test_by_samples_the_classifier_is_averaged_as_by_federated_averaging():
    replies = [headed(site, n, 0.1 * n, [n, 0, 1]) for site, n in (("a", 7), ("b", 11))]
    plain = SampleWeightedAggregator()
    for model in replies:
        plain.accept_model(model)
    params = classwise(*replies, rule="samples").params
    for key, value in plain.aggregate_model().params.items():
        np.testing.assert_allclose(params[key], value, rtol=1e-6)


def test_without_any_q_no_row_becomes_nan():
    params = classwise(headed("a", 10, 1, [0, 0, 0]), headed("b", 30, 3, [0, 0, 0])).params
    assert params["head.bias"] == pytest.approx([2.5, 2, 4.5])


def test_a_classwise_round_knows_nothing_of_the_one_before():
    aggregator = ClasswiseAggregator(HEAD, KNOWN)
    aggregator.accept_model(headed("a", 10, 1, [4, 0, 0]))
    aggregator.accept_model(headed("b", 30, 3, [12, 5, 0]))
    aggregator.aggregate_model()
    aggregator.reset_stats()
    aggregator.accept_model(headed("b", 30, 3, [12, 5, 0]))
    params = aggregator.aggregate_model().params
    assert params["head.bias"].tolist() == [3, 4, 5]
    assert params["conv"] == pytest.approx(np.full((3, 2), 3.0))


# ---- completeness ---------------------------------------------------------------------------------------------------


def complete_reply(site, loss, *values):
    weights = {"w": np.array(values, dtype=np.float32)}
    report = {"dice_loss": np.array([loss], dtype=np.float32)}
    model = pack_result(SiteResult(samples=10, weights=weights, report=report))
    model.meta["client_name"] = site
    return model


def test_models_are_averaged_by_completeness_over_loss():
    aggregator = CompletenessAggregator({"site-1": 0.5, "site-2": 1.0})
    a, b = math.exp(0.5 / 0.5), math.exp(1.0 / 0.25)
    mean = merged(aggregator, complete_reply("site-1", 0.5, 0, 8), complete_reply("site-2", 0.25, 4, 0))
    assert mean.tolist() == pytest.approx([4 * b / (a + b), 8 * a / (a + b)], rel=1e-6)
    assert aggregator.shares == pytest.approx({"site-1": a / (a + b), "site-2": b / (a + b)})


def test_a_share_that_vanishes_leaves_the_other_models():
    aggregator = CompletenessAggregator({"site-1": 0.1, "site-2": 1.0})
    assert merged(aggregator, complete_reply("site-1", 1, 9), complete_reply("site-2", 0, 4)).tolist() == [4]
    assert aggregator.shares == {"site-1": 0, "site-2": 1}  # exp(0.1 - 1000)


def test_a_completeness_round_knows_nothing_of_the_one_before():
    aggregator = CompletenessAggregator({"site-1": 1.0, "site-2": 1.0})
    merged(aggregator, complete_reply("site-1", 0.5, 100))
    aggregator.reset_stats()
    assert merged(aggregator, complete_reply("site-2", 0.5, 2)).tolist() == [2]
    assert aggregator.shares == {"site-2": 1}
