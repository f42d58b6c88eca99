"""The server half of FedLSM: check of reports, weights of positive terms, shares of the classifier's rows."""

import numpy as np
import pytest
from factories import refused

from fedmend.methods.fedlsm import check_report, class_weights, positive_weights


def test_a_report_with_a_count_per_class_passes():
    report = {"class_knowledge": np.zeros(3), "uncertainty": np.zeros(20)}
    check_report(report, num_classes=3, needs_knowledge=True)
    check_report({}, num_classes=3, needs_knowledge=False)


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"uncertainty": np.zeros(20)},
        {"class_knowledge": np.zeros(2)},
        {"class_knowledge": np.zeros((3, 1))},
        {"class_knowledge": np.float32(1)},
        {"class_knowledge": np.array([1, -1, 1])},
    ],
    ids=["nothing", "no q", "two classes", "a matrix", "one number", "a negative count"],
)
def test_a_report_that_cannot_be_aggregated_is_refused(report):
    with refused("report field class_knowledge: expected 3 numbers >= 0"):
        check_report(report, num_classes=3, needs_knowledge=True)


@pytest.mark.parametrize("uncertainty", [np.zeros(19), np.zeros((20, 1)), np.full(20, -1)])
def test_a_histogram_of_another_kind_is_refused_from_baselines_too(uncertainty):
    with refused("report field uncertainty: expected 20 numbers >= 0"):
        check_report({"uncertainty": uncertainty}, num_classes=3, needs_knowledge=False)


# ---- positive terms -------------------------------------------------------------------------------------------------

POSITIVES = {"a": np.array([10, 0, 90]), "b": np.array([5, 2, 0]), "c": np.array([0, 0, 60])}
SAMPLES = {"a": 100, "b": 50, "c": 60}


def test_the_weight_is_negatives_by_positives_over_the_sites_that_identify_the_class():
    weights = positive_weights(POSITIVES, SAMPLES, cap=100.0)
    assert weights.tolist() == pytest.approx([(90 + 45) / 15, 48 / 2, (10 + 0) / 150], rel=1e-6)
    assert weights.dtype == np.float32


def test_the_cap_leaves_small_weights_alone_and_no_weight_is_zero():
    assert positive_weights(POSITIVES, SAMPLES, cap=8.0).tolist() == pytest.approx([8, 8, 1 / 15])
    assert positive_weights({"a": np.array([10])}, {"a": 10}, cap=8.0).tolist() == pytest.approx([0.01])


@pytest.mark.parametrize("positives", [0, 60], ids=["without positives", "without negatives"])
def test_a_class_without_one_kind_of_label_has_a_finite_positive_weight(positives):
    weights = positive_weights({"c": np.array([positives, 6])}, {"c": 60}, cap=100.0)
    assert weights.tolist() == pytest.approx([0.01, 9])


def test_the_weights_do_not_depend_on_the_order_of_sites():
    backwards = {site: POSITIVES[site] for site in "cba"}
    assert np.array_equal(positive_weights(backwards, SAMPLES, cap=9), positive_weights(POSITIVES, SAMPLES, cap=9))


# ---- shares of rows -------------------------------------------------------------------------------------------------

N = {"a": 10, "b": 30, "c": 60}
KNOWN = {
    "a": np.array([1, 1, 0, 0, 1], bool),
    "b": np.array([1, 0, 1, 0, 0], bool),
    "c": np.array([0, 0, 0, 0, 1], bool),
}
#             both  pseudo-labels  nobody has q  nobody knows  q of the unknowing alone
Q = {"a": [4, 6, 0, 0, 0], "b": [12, 0, 0, 0, 5], "c": [0, 2, 0, 0, 0]}


def shares(rule, q=None, samples=N, known=KNOWN):
    q = {site: np.array(v, dtype=np.float32) for site, v in (q or Q).items()}
    return class_weights(q, samples, known, rule=rule)


def test_a_row_is_weighted_by_q_whoever_knows_the_class():
    found = shares("awpa")
    assert found["a"][[0, 1]] == pytest.approx([4 / 16, 6 / 8])
    assert found["b"][[0, 1]] == pytest.approx([12 / 16, 0])
    assert found["c"][[0, 1]] == pytest.approx([0, 2 / 8])
    assert [found[site][4] for site in "abc"] == pytest.approx([0, 1, 0])


def test_a_row_without_any_q_is_weighted_by_samples_over_the_sites_that_know_it():
    found = shares("awpa", {"a": [0] * 5, "b": [0] * 5, "c": [0] * 5})
    assert [found[site][0] for site in "abc"] == pytest.approx([10 / 40, 30 / 40, 0])
    assert [found[site][2] for site in "abc"] == pytest.approx([0, 1, 0])
    assert [found[site][4] for site in "abc"] == pytest.approx([10 / 70, 0, 60 / 70])


def test_by_samples_all_rows_have_the_same_shares_whoever_knows_the_class_and_whatever_q_is():
    found = shares("samples")
    assert [found[site].tolist() for site in "abc"] == [pytest.approx([share] * 5) for share in (0.1, 0.3, 0.6)]


@pytest.mark.parametrize("rule", ["awpa", "masked"])
def test_a_class_that_nobody_knows_is_weighted_by_samples(rule):
    assert [shares(rule)[site][3] for site in "abc"] == pytest.approx([0.1, 0.3, 0.6])


def test_masked_rows_are_weighted_by_samples_over_the_sites_that_know_them_whatever_q_is():
    found = shares("masked")
    assert found["a"] == pytest.approx([0.25, 1, 0, 0.1, 1 / 7])
    assert found["b"] == pytest.approx([0.75, 0, 1, 0.3, 0])
    assert found["c"] == pytest.approx([0, 0, 0, 0.6, 6 / 7])


@pytest.mark.parametrize("rule", ["awpa", "masked", "samples"])
@pytest.mark.parametrize("q", [Q, {"a": [0] * 5, "b": [1e-30] * 5, "c": [3e38] * 5}], ids=["counts", "extremes"])
def test_shares_sum_to_1_for_every_class_and_are_never_nan(rule, q):
    found = np.array(list(shares(rule, q).values()))
    assert found.shape == (3, 5)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert found.sum(0) == pytest.approx(np.ones(5))


def test_a_site_that_missed_the_round_has_no_share_and_changes_no_other_ratio():
    found = shares("awpa", {site: Q[site] for site in "ab"})
    assert set(found) == {"a", "b"}
    assert found["a"][[0, 1, 3]] == pytest.approx([4 / 16, 1, 10 / 40])


@pytest.mark.parametrize("rule", ["awpa", "masked", "samples"])
def test_a_site_alone_has_all_shares(rule):
    assert shares(rule, {"c": Q["c"]})["c"].tolist() == [1] * 5
