"""Intervals over patients."""

import numpy as np
import pytest

from fedmend.evaluation.bootstrap import multilabel_bootstrap, segmentation_bootstrap, singlelabel_bootstrap
from fedmend.kinds.multilabel import multilabel_intervals, score_histograms
from fedmend.kinds.segmentation import DICE_UNIT

RNG = np.random.default_rng(5)


def slices(patients=30, each=10):
    """Logits, labels and patients of images that are nearly alike within a patient."""
    label = np.repeat(np.arange(patients) % 2, each)
    score = np.repeat(RNG.normal(size=patients), each) + 0.05 * RNG.normal(size=patients * each) + label
    return score[:, None], label[:, None], np.repeat(np.arange(patients), each)


def width(ends):
    return ends[1] - ends[0]


def test_of_ten_alike_slices_a_patient_intervals_over_patients_are_wider():
    logits, labels, patients = slices()
    over_patients = multilabel_bootstrap(logits, labels, patients).macro
    over_images = multilabel_bootstrap(logits, labels, np.arange(len(labels))).macro
    for name in ("auc", "map", "bacc"):
        assert width(over_patients[name]) > 2 * width(over_images[name])


def test_over_images_they_are_those_of_the_counts_that_a_site_sends():
    logits, labels, _ = slices()
    ours = multilabel_bootstrap(logits, labels, np.arange(len(labels))).macro
    theirs = multilabel_intervals(score_histograms(logits, labels))
    for name, ends in ours.items():
        assert ends == pytest.approx(theirs[name], abs=0.02)


def test_a_class_with_one_label_value_has_no_interval():
    logits, labels = RNG.normal(size=(20, 2)), np.zeros((20, 2), dtype=int)
    labels[:10, 0] = 1
    found = multilabel_bootstrap(logits, labels, np.arange(20))
    assert found.per_class["auc"][1] is None
    assert found.macro["auc"] == pytest.approx(found.per_class["auc"][0])


def test_the_same_answer_for_everybody_has_an_interval_without_width():
    labels = np.eye(2, dtype=int)[np.arange(40) % 2]
    found = singlelabel_bootstrap(labels * 8.0, labels, np.arange(40))
    assert found.macro["accuracy"] == [1, 1]
    assert found.macro["auc"] == [1, 1]


def test_dice_of_volumes_is_drawn_patient_by_patient():
    def counts(dice):
        return np.array([[2, 2 * dice * DICE_UNIT, 1, dice * DICE_UNIT, 0, 0, 0]], dtype=np.int64)

    found = segmentation_bootstrap([counts(0.2), counts(0.8), counts(0.5)], np.array([0, 0, 1]))
    assert found.macro["volume_dice"] == pytest.approx([0.5, 0.5])  # both patients have a mean of 0.5
    apart = segmentation_bootstrap([counts(0.2), counts(0.8)], np.array([0, 1]))
    assert apart.macro["dice"] == pytest.approx([0.2, 0.8])
