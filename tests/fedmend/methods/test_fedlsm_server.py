"""The server half of FedLSM: check of reports, shares of the classifier's rows."""

import numpy as np
import pytest
from factories import refused

from fedmend.averaging import Contribution
from fedmend.methods.fedlsm import FedLSMWorkflow
from fedmend.methods.labelsets import LabelSetWorkflow

RULES = ["awpa", "masked", "samples"]


def q_of(*counts):
    return np.array(counts, dtype=np.float32)


@pytest.mark.parametrize("report", [{}, {"uncertainty": np.zeros(20, dtype=np.int64)}], ids=["nothing", "no q"])
def test_without_q_there_is_no_aggregation_by_it(report):
    for rule in ("masked", "samples"):
        FedLSMWorkflow(aggregation=rule).check("train", report)
    with refused("report: expected ['class_knowledge'], got none of ['class_knowledge']"):
        FedLSMWorkflow().check("train", report)


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
    told = {site: Contribution(samples[site], {"class_knowledge": q_of(*v)}) for site, v in (q or Q).items()}
    return FedLSMWorkflow(aggregation=rule).row_weights(known, told)


def test_a_row_is_weighted_by_q_whoever_knows_the_class():
    found = shares("awpa")
    assert found["a"][[0, 1]] == pytest.approx([4 / 16, 6 / 8])
    assert found["b"][[0, 1]] == pytest.approx([12 / 16, 0])
    assert found["c"][[0, 1]] == pytest.approx([0, 2 / 8])
    assert [found[site][4] for site in "abc"] == pytest.approx([0, 1, 0])


def test_a_row_is_weighted_by_q_however_small_it_is():
    found = shares("awpa", {"a": [0] * 5, "b": [0.1] * 5, "c": [0.3] * 5})
    assert [found[site].tolist() for site in "abc"] == [pytest.approx([share] * 5) for share in (0, 0.25, 0.75)]


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


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("q", [Q, {"a": [0] * 5, "b": [1e-30] * 5, "c": [3e38] * 5}], ids=["counts", "extremes"])
def test_shares_sum_to_1_for_every_class_and_are_never_nan(rule, q):
    found = np.array(list(shares(rule, q).values()))
    assert found.shape == (3, 5)
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert found.sum(0) == pytest.approx(np.ones(5))


def test_no_site_knows_more_than_it_has_samples():
    found = shares("awpa", {"a": [4] * 5, "b": [0] * 5, "c": [1e6] * 5})
    assert found["a"].tolist() == pytest.approx([4 / 64] * 5)  # c has 60


@pytest.mark.parametrize("rule", ["masked", "samples"])
def test_without_q_rows_are_shared_as_by_the_baselines(rule):
    told = {site: Contribution(N[site], {}) for site in N}
    found, expected = (w(aggregation=rule).row_weights(KNOWN, told) for w in (FedLSMWorkflow, LabelSetWorkflow))
    assert {site: share.tolist() for site, share in found.items()} == {s: v.tolist() for s, v in expected.items()}
    assert all((share == shares(rule)[site]).all() for site, share in found.items())
