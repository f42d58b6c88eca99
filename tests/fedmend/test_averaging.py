import numpy as np
import pytest
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

from fedmend.averaging import Contribution, Fold, by_samples, capped, mean_over_sites

CLASSIFIER = ("classifier.weight", "classifier.bias")


def random_models(count, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"conv": (3, 2), "norm.running_mean": (2,), "scale": (), "classifier.weight": (3, 4)}
    return [{k: np.asarray(rng.standard_normal(s), dtype=np.float32) for k, s in shapes.items()} for _ in range(count)]


def fold(models, samples, *, average=None, rows=None, reports=None):
    """The average of the models of site-1, site-2, ..., and their shares."""
    folded = Fold(average, rows)
    for i, (model, n) in enumerate(zip(models, samples, strict=True)):
        folded.take(f"site-{i + 1}", n, reports[i] if reports else {}, model)
    return folded.result()


def plain(*values):
    return {"w": np.array(values, dtype=np.float32)}


def test_the_mean_is_weighted_by_samples():
    model, shares = fold([plain(1, 4), plain(5, -4)], [10, 30])
    np.testing.assert_array_equal(model["w"], np.array([4, -2], dtype=np.float32))  # (10*1 + 30*5) / 40
    assert model["w"].dtype == np.float32
    assert shares == {"site-1": 0.25, "site-2": 0.75}


def test_the_weights_of_federated_averaging_are_the_samples():
    assert by_samples({"a": Contribution(10, {}), "b": Contribution(30, {})}) == {"a": 10.0, "b": 30.0}


@pytest.mark.parametrize(
    ("samples", "most", "counted"),
    [
        ((10, 20, 29), 0.5, (10, 20, 29)),
        ((10, 20, 30), 0.5, (10, 20, 30)),  # half of all
        ((10, 20, 10**8), 0.5, (10, 20, 30)),
        ((10**8, 5, 5, 20), 0.75, (90, 5, 5, 20)),  # 90 of 120
        ((10, 20, 10**8), 1, (10, 20, 10**8)),
        ((10, 10**8), 0.5, (10, 10**8)),  # of two, one has more than half
        ((7,), 0.5, (7,)),
    ],
)
def test_no_site_of_three_or_more_counts_for_more_than_its_share(samples, most, counted):
    sites = {f"site-{i}": n for i, n in enumerate(samples)}
    assert tuple(capped(sites, most).values()) == counted


@pytest.mark.parametrize("average", [None, by_samples, lambda contributions: by_samples(contributions)])
def test_the_mean_is_that_of_flare_to_the_last_bit(average):
    models, samples = random_models(5), [7, 11, 13, 3, 29]
    helper = WeightedAggregationHelper()
    for i, (model, n) in enumerate(zip(models, samples, strict=True)):
        helper.add(data=model, weight=float(n), contributor_name=f"site-{i + 1}", contribution_round=0)
    theirs, ours = helper.get_result(), fold(models, samples, average=average)[0]
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype == np.float32
        np.testing.assert_array_equal(ours[name], value)


def test_received_models_are_not_changed():
    models = random_models(3)
    before = [{k: v.copy() for k, v in model.items()} for model in models]
    shares = {f"site-{i}": np.full(3, 1 / 3) for i in (1, 2, 3)}
    fold(models, [1, 2, 3], rows=lambda contributions: shares)
    fold(models, [1, 2, 3], average=lambda contributions: dict.fromkeys(contributions, 2.0))
    for model, own in zip(models, before, strict=True):
        assert set(model) == set(own)
        assert all(np.array_equal(value, own[name]) for name, value in model.items())


def test_an_average_gives_each_model_its_weight():
    model, shares = fold([plain(0), plain(8)], [10, 30], average=lambda c: {"site-1": 3, "site-2": 1})
    assert model["w"].tolist() == [2]
    assert shares == {"site-1": 0.75, "site-2": 0.25}


def test_an_average_sees_samples_reports_and_models_in_the_order_of_sites():
    seen = {}

    def average(contributions):
        seen.update(contributions)
        return dict.fromkeys(contributions, 1.0)

    fold([plain(1), plain(2)], [10, 30], average=average, reports=[{"loss": np.float32(0.5)}, {}])
    assert list(seen) == ["site-1", "site-2"]
    assert [(c.samples, dict(c.report), c.model["w"].tolist()) for c in seen.values()] == [
        (10, {"loss": 0.5}, [1]),
        (30, {}, [2]),
    ]


def test_a_model_without_weight_is_left_out_whatever_it_holds():
    model, shares = fold([plain(4), plain(np.inf)], [1, 1], average=lambda c: {"site-1": 5.0, "site-2": 0.0})
    assert model["w"].tolist() == [4]
    assert shares == {"site-1": 1, "site-2": 0}


def test_by_samples_no_model_is_kept():
    folded = Fold()
    folded.take("site-1", 10, {}, plain(1))
    assert {site: dict(c.model) for site, c in folded._contributions.items()} == {"site-1": {}}


# ---- row by row -----------------------------------------------------------------------------------------------------


def headed(value, dtype=np.float32):
    """A model of three classes: class c has weights 10 c + value and bias c + value; the backbone is value."""
    classes = np.arange(3, dtype=dtype)
    return {
        "conv": np.full((3, 2), value, dtype=dtype),
        "classifier.weight": np.repeat(10 * classes[:, None], 4, 1) + dtype(value),
        "classifier.bias": classes + dtype(value),
    }


def rows_of(*shares):
    """A row average that gives these shares, (3,) for each site."""
    return lambda contributions: dict(zip(contributions, np.array(shares, dtype=np.float64), strict=True))


def test_rows_of_the_classifier_are_averaged_by_their_shares_and_the_rest_by_samples():
    rows = rows_of([0.25, 0, 0.5], [0.75, 1, 0.5])
    model, shares = fold([headed(1), headed(3)], [10, 30], rows=rows)
    values = [0.25 * 1 + 0.75 * 3, 3, 2]
    assert model["conv"].tolist() == [[2.5, 2.5]] * 3
    assert model["classifier.bias"] == pytest.approx(np.arange(3) + values)
    assert model["classifier.weight"] == pytest.approx((10 * np.arange(3) + values)[:, None].repeat(4, 1))
    assert shares == {"site-1": 0.25, "site-2": 0.75}


def test_rows_and_an_average_go_together():
    rows, average = rows_of([1, 1, 1], [0, 0, 0]), lambda c: {"site-1": 0.0, "site-2": 1.0}
    model, _ = fold([headed(1), headed(3)], [10, 30], average=average, rows=rows)
    assert model["conv"].tolist() == [[3, 3]] * 3
    assert model["classifier.bias"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_keep_their_dtype_and_shape(dtype):
    model, _ = fold([headed(1, dtype), headed(3, dtype)], [10, 30], rows=rows_of([0.5] * 3, [0.5] * 3))
    assert {name: (model[name].dtype, model[name].shape) for name in CLASSIFIER} == {
        "classifier.weight": (np.dtype(dtype), (3, 4)),
        "classifier.bias": (np.dtype(dtype), (3,)),
    }


def test_with_shares_by_samples_the_classifier_is_that_of_federated_averaging():
    models = [headed(0.7), headed(1.1)]
    rows, _ = fold(models, [7, 11], rows=rows_of([7 / 18] * 3, [11 / 18] * 3))
    plain_mean, _ = fold(models, [7, 11])
    for name, value in plain_mean.items():
        np.testing.assert_allclose(rows[name], value, rtol=1e-6)


# ---- what sites report ----------------------------------------------------------------------------------------------


def test_the_mean_over_sites_is_weighted_row_by_row_and_a_row_that_nobody_knows_is_said_by_the_caller():
    values = {"b": np.float32([[2, 4], [6, 8], [1, 1]]), "a": np.float32([[6, 8], [9, 9], [1, 1]])}
    weights = {"a": np.array([1, 0, 0]), "b": np.array([3, 2, 0])}
    found = mean_over_sites(values, weights, unknown=np.full((3, 2), 7.0))
    assert found.tolist() == [[3, 5], [6, 8], [7, 7]]
    assert found.dtype == np.float32
    assert mean_over_sites({"a": np.float32([2, 5])}, {"a": np.array([0, 4])}).tolist() == [0, 5]


def test_a_mean_over_sites_is_summed_in_the_order_of_names_whoever_answered_first():
    values = {"a": np.array([1e16]), "c": np.array([-1e16]), "b": np.array([1.0])}
    weights = dict.fromkeys(values, np.ones(1))
    assert mean_over_sites(values, weights).tolist() == [0]  # (1e16 + 1) - 1e16; else 1/3
