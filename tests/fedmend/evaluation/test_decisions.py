"""Decisions, calibration and studies, with numbers by hand."""

import numpy as np
import pytest

from fedmend.evaluation.decisions import auc_of, calibration, decided, pooled, wilson


def test_the_wilson_interval_of_8_in_10():
    assert wilson(8, 10) == pytest.approx([0.4902, 0.9433], abs=1e-4)  # Wilson 1927, as tables give it
    assert wilson(0, 0) is None


def test_shares_of_decisions():
    labels = np.array([[1], [1], [1], [0], [0], [-1]])
    row = decided(np.array([[1], [1], [0], [1], [0], [1]], dtype=bool), labels)[0]
    assert (row["found"], row["missed"], row["false_alarms"], row["passed"]) == (2, 1, 1, 1)
    assert (row["sensitivity"], row["specificity"]) == (pytest.approx(2 / 3), 0.5)
    assert row["bacc"] == pytest.approx((2 / 3 + 0.5) / 2)
    assert row["f1"] == pytest.approx(4 / 6)
    assert row["sensitivity_interval"] == wilson(2, 3)
    alone = decided(np.array([[True]]), np.array([[0]]))[0]
    assert (alone["sensitivity"], alone["f1"], alone["bacc"], alone["specificity"]) == (None, None, None, 0.0)


def test_calibration_by_hand():
    row = calibration(np.array([[0.1], [0.12], [0.9], [0.5]]), np.array([[0], [1], [1], [-1]]))[0]
    assert row["brier"] == pytest.approx((0.01 + 0.88**2 + 0.01) / 3)
    assert row["bins"] == [[pytest.approx(0.11), 0.5, 2], [0.9, 1.0, 1]]
    assert row["ece"] == pytest.approx((abs(0.22 - 1) + 0.1) / 3)
    assert calibration(np.array([[0.5]]), np.array([[-1]])) == [{"ece": None, "brier": None, "bins": []}]


def test_images_are_pooled_to_studies():
    scores = np.array([[0.2, 0.1], [0.6, 0.3], [0.5, 0.5], [0.9, 0.9]])
    labels = np.array([[0, -1], [1, -1], [0, 0], [1, 1]])
    found = pooled(scores, labels, np.array([0, 0, 1, -1]), one_label=False)
    assert found["max"][0].tolist() == [[0.6, 0.3], [0.5, 0.5]]
    assert found["mean"][0] == pytest.approx(np.array([[0.4, 0.2], [0.5, 0.5]]))
    assert found["mean"][1].tolist() == [[1, -1], [0, 0]]


def test_a_study_of_two_classes_has_no_single_label():
    labels = np.eye(2, dtype=int)[[0, 1, 1]]
    found = pooled(np.full((3, 2), 0.5), labels, np.array([0, 0, 1]), one_label=True)
    assert list(found) == ["mean"]
    assert found["mean"][1].tolist() == [[-1, -1], [0, 1]]


def test_auc_of_one_label_value_is_none():
    assert auc_of(np.array([0.1, 0.2, 0.3]), np.array([0, 1, -1])) == 1.0
    assert auc_of(np.array([0.1, 0.2]), np.array([1, -1])) is None


def test_a_class_of_which_nothing_is_found_has_an_f1_of_0_and_one_without_a_sample_none():
    labels = np.array([[1, 0], [0, 0]])
    assert [row["f1"] for row in decided(np.zeros((2, 2), dtype=bool), labels)] == [0, None]


def test_a_probability_of_1_is_in_the_last_bin():
    (found,) = calibration(np.array([[1.0], [0.98]]), np.array([[1], [0]]))
    assert found["bins"] == [[pytest.approx(0.99), 0.5, 2]]
