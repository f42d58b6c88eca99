"""Class prototypes as functions."""

import numpy as np
import pytest
from torch_factories import in_several_threads

from fedmend.methods.shared.prototypes import (
    classes_without_prototype,
    confidences,
    global_prototypes,
    local_prototypes,
    select_confident,
    tellable,
    whitened_confidences,
)


def test_local_prototypes_are_mean_features_per_class_and_label_of_original_labels():
    features = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)
    labels = np.array([[0, 1, -1], [1, 1, -1], [0, -1, -1]], dtype=np.int8)
    prototypes, counts = local_prototypes(features, labels)
    assert prototypes.tolist() == [[3, 4], [3, 4], [0, 0], [2, 3], [0, 0], [0, 0]]
    assert counts.tolist() == [2, 1, 0, 2, 0, 0]
    assert (prototypes.dtype, counts.dtype) == (np.float32, np.int64)


def test_no_mean_over_few_samples_follows_from_the_sums_of_other_classes():
    features = np.random.default_rng(0).random((40, 8), dtype=np.float32)
    labels = np.zeros((40, 3), dtype=np.int8)
    labels[:20, 0], labels[7, 1], labels[:10, 2] = 1, 1, -1
    prototypes, counts = local_prototypes(features, labels, 5)
    assert counts.tolist() == [20, 20, 0, 1, 30, 0]  # the 39 without the second class would give the one with it away
    assert not prototypes[2].any()  # the row of one is held back by the guard
    alone = local_prototypes(features, labels[:, 1:2], 5)[1]
    assert alone.tolist() == [39, 1]  # nobody knows the sum over all 40


@pytest.mark.parametrize(
    ("sizes", "told"),
    [([10, 8], [True, False]), ([10, 5], [True, True]), ([10, 10], [True, True]), ([3, 10], [True, True])],
)
def test_a_mean_over_all_but_a_few_samples_of_another_is_not_told(sizes, told):
    member = np.arange(12)[:, None] < np.array(sizes)
    assert tellable(member, 5).tolist() == told
    apart = np.stack([np.arange(16) < 10, np.arange(16) >= 8], axis=1)  # 8 and 6 of which the other has none
    assert tellable(apart, 5).tolist() == [True, True]


def test_two_rows_of_a_class_are_not_told_if_they_lack_a_few_samples_of_another_class():
    member = np.zeros((30, 4), dtype=bool)
    member[:15, 0], member[15:, 1] = True, True  # all 30
    member[:10, 2], member[10:27, 3] = True, True  # 3 have no label of the second class
    assert tellable(member, 4, pairs=True).tolist() == [True, True, False, True]
    assert tellable(member, 4).tolist() == [True, True, False, True]  # 15 + 15 - 10 - 17
    assert tellable(member, 3, pairs=True).tolist() == [True] * 4


def test_no_mean_over_the_few_samples_without_any_class_follows_where_each_sample_has_one_class():
    features = np.random.default_rng(0).random((100, 4), dtype=np.float32)
    labels = np.zeros((100, 3), dtype=np.int8)
    labels[:40, 0], labels[40:70, 1], labels[70:99, 2] = 1, 1, 1
    assert local_prototypes(features, labels, 5)[1].tolist() == [60, 40, 70, 30, 0, 0]  # all - 40 - 30 - 29 is one
    assert local_prototypes(features[:98], labels[:98], 5)[1].tolist() == [58, 40, 68, 30, 70, 28]  # none is without
    labels[95:99] = 0
    assert local_prototypes(features, labels, 5)[1].tolist() == [60, 40, 70, 30, 75, 25]  # five are


def test_global_prototypes_average_the_sites_that_have_one_by_their_samples():
    def report(value, count):
        return {"prototypes": np.full((2, 1), value, np.float32), "prototype_counts": np.array([count, 0])}

    reports = {"b": report(3.0, 5), "a": report(1.0, 90), "c": report(7.0, 0)}  # c holds its row back
    result = global_prototypes(reports, {"a": 100, "b": 300, "c": 1000})
    assert result.tolist() == [[2.5], [0.0]]
    assert result.dtype == np.float32


def test_a_class_lacks_a_prototype_where_either_of_its_rows_is_zero():
    rows = np.array([[1, 0], [0, 1], [0, 0], [2, 2], [0, -1], [0, 0], [0, 0], [0, 0]], dtype=np.float32)
    assert classes_without_prototype(rows) == [1, 2, 3]


def test_confidence_is_the_difference_of_cosines():
    features = np.array([[3, 4], [0, 2], [0, 0]], dtype=np.float32)
    prototypes = np.array([[10, 0], [0, 0.5]], dtype=np.float32)
    assert confidences(features, prototypes)[:, 0] == pytest.approx([3 / 5 - 4 / 5, -1.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("far", [0, 100])  # from the origin
def test_whitened_confidence_is_a_discriminant_in_units_of_its_deviation_wherever_the_features_lie(far):
    features = far + np.array([[2, 0], [-2, 0], [0, 1], [0, -1]], dtype=np.float32)  # scatter diag(8, 2), trace / F = 5
    prototypes = far + np.array([[1, 1], [-1, -1]], dtype=np.float32)
    raw = np.array([2 * 2 / 13, -2 * 2 / 13, 2 / 7, -2 / 7])
    assert whitened_confidences(features, prototypes)[:, 0] == pytest.approx(raw / raw.std(), abs=1e-12)


def test_whitened_confidence_is_zero_half_way_between_the_prototypes_and_where_samples_are_all_alike():
    prototypes = np.array([[3, 0], [1, 0]], dtype=np.float32)
    features = np.array([[2, 0], [3, 5], [1, -5], [9, 1]], dtype=np.float32)
    assert whitened_confidences(features, prototypes)[0, 0] == pytest.approx(0, abs=1e-12)
    assert whitened_confidences(np.full((3, 2), 2.0), prototypes)[:, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("score", [confidences, whitened_confidences])
def test_the_number_of_threads_changes_no_digit(score):
    rng = np.random.default_rng(0)
    features, prototypes = (rng.normal(size=(rows, 512)).astype(np.float32) for rows in (1000, 6))
    one, *others = in_several_threads(lambda: [score(features, prototypes)])
    assert others == [one, one]


@pytest.mark.parametrize("score", [confidences, whitened_confidences])
@pytest.mark.parametrize("missing_row", [0, 1])
def test_a_class_without_a_prototype_has_no_confidence_and_selects_nothing(missing_row, score):
    prototypes = np.eye(2, dtype=np.float32)
    prototypes[missing_row] = 0
    z = score(np.array([[1, 2], [2, 1]], dtype=np.float32), prototypes)[:, 0]
    assert np.isnan(z).all()
    assert [len(s) for s in select_confident(z, np.ones(2, bool), 1.0, 1.0, rounding="ceil")] == [0, 0]


def test_the_largest_go_negative_and_the_smallest_positive_with_ties_in_sample_order():
    z = np.array([0.2, -0.1, 0.5, -0.4, 0.5, 0.0, -0.4, -0.4, 0.5])
    negatives, positives = select_confident(z, np.ones(9, bool), 0.4, 0.5)  # floor(.4 * 5), floor(.5 * 4)
    assert (negatives.tolist(), positives.tolist()) == ([2, 4], [3, 6])
    negatives, positives = select_confident(z, np.ones(9, bool), 1.0, 1.0)
    assert (negatives.tolist(), positives.tolist()) == ([2, 4, 8, 0, 5], [3, 6, 7, 1])  # Z = 0 is negative


def test_many_ties_are_in_sample_order_too():
    z = np.tile([0.5, -0.5, 0.25, -0.25], 100)
    negatives, positives = select_confident(z, np.ones(400, bool), 0.5, 0.5)
    assert negatives.tolist() == list(range(0, 400, 4))
    assert positives.tolist() == list(range(1, 400, 4))


def test_only_residual_samples_count_and_are_selected():
    z, residual = np.array([0.9, 0.8, 0.7, -0.9, -0.8]), np.array([False, True, True, False, True])
    negatives, positives = select_confident(z, residual, 0.5, 1.0)
    assert (negatives.tolist(), positives.tolist()) == ([1], [4])


@pytest.mark.parametrize(
    ("ratio", "size", "floor", "ceil"),
    [(0.01, 99, 0, 1), (0.01, 100, 1, 1), (0.015, 100, 1, 2), (0.0, 50, 0, 0), (0.1, 30, 3, 3), (1.0, 7, 7, 7)],
)
@pytest.mark.parametrize("degree", [1.0, np.float32(1.0)])
def test_quotas_are_rounded_as_asked(ratio, size, floor, ceil, degree):
    z, residual = np.linspace(0.1, 1, size), np.ones(size, bool)
    for rounding, expected in (("floor", floor), ("ceil", ceil)):
        assert len(select_confident(z, residual, degree * ratio, 0.0, rounding=rounding)[0]) == expected
        assert len(select_confident(-z, residual, 0.0, degree * ratio, rounding=rounding)[1]) == expected


def test_a_degree_that_travelled_as_float32_does_not_move_a_whole_quota():
    z, residual = np.linspace(0.1, 1, 300), np.ones(300, bool)
    ratio = np.float32(1.0) * 0.01  # 0.01 in float32 is a little less, 300 of it 2.9999999
    assert len(select_confident(z, residual, ratio, 0.0)[0]) == 3
    ratio = np.float32(0.6) * 0.1  # 0.6 in float32 is a little more
    assert len(select_confident(z, residual, ratio, 0.0, rounding="ceil")[0]) == 18
