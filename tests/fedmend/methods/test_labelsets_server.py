"""The server half of the methods for mismatched label sets: weights of positive terms, rows of the classifier."""

import numpy as np
import pytest
from factories import refused

from fedmend.averaging import Contribution, Fold
from fedmend.methods.labelsets import LabelSetWorkflow, positive_weights

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


# ---- rows of the classifier -----------------------------------------------------------------------------------------

KNOWN = {"a": np.array([True, True, False]), "b": np.array([True, False, False])}


def rows_of(workflow, known=KNOWN, **samples):
    return workflow.row_weights(known, {site: Contribution(n, {}) for site, n in samples.items()})


def test_masked_rows_are_shared_by_the_sites_that_know_the_class_or_by_all_where_none_does():
    found = rows_of(LabelSetWorkflow(aggregation="masked"), a=10, b=30)
    assert found["a"].tolist() == [10 / 40, 1, 10 / 40]
    assert found["b"].tolist() == [30 / 40, 0, 30 / 40]
    assert found["a"].dtype == np.float64


def test_by_samples_every_row_has_the_same_shares():
    found = rows_of(LabelSetWorkflow(aggregation="samples"), a=10, b=30)
    assert [found[site].tolist() for site in "ab"] == [[10 / 40] * 3, [30 / 40] * 3]


@pytest.mark.parametrize(
    ("aggregation", "values"), [("masked", [(10 * 1 + 30 * 3) / 40, 1, 2.5]), ("samples", [2.5, 2.5, 2.5])]
)
def test_a_round_averages_the_classifier_row_by_row_and_the_rest_by_samples(aggregation, values):
    workflow = LabelSetWorkflow(aggregation=aggregation)
    fold = Fold(rows=lambda contributions: workflow.row_weights(KNOWN, contributions))
    for site, samples, value in (("a", 10, 1), ("b", 30, 3)):
        classes = np.arange(3, dtype=np.float32)
        weights = {"classifier.bias": classes + value, "conv": np.full((3, 2), value, dtype=np.float32)}
        fold.take(site, samples, {}, weights)
    model, _ = fold.result()
    assert model["conv"].tolist() == [[2.5, 2.5]] * 3
    assert model["classifier.bias"] == pytest.approx(np.arange(3) + values)


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", ["awpa", "mean"])
def test_an_aggregation_that_there_is_not_is_refused(aggregation):
    with refused(f"job variable aggregation: expected one of ['masked', 'samples'], got {aggregation!r}"):
        LabelSetWorkflow(aggregation=aggregation)


@pytest.mark.parametrize("cap", [0.5, float("nan")])
def test_a_cap_below_1_is_refused(cap):
    with refused(f"job variable pos_weight_cap: expected >= 1, got {cap}"):
        LabelSetWorkflow(aggregation="masked", pos_weight_cap=cap)
