"""Intervals over patients."""

import numpy as np
import pytest

from fedmend.evaluation.bootstrap import (
    _drawn_counts,
    multilabel_bootstrap,
    segmentation_bootstrap,
    singlelabel_bootstrap,
)
from fedmend.kinds import kind_of
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


def test_images_of_one_patient_have_no_interval():
    labels = np.eye(2, dtype=int)[np.arange(20) % 2]
    one = np.zeros(20, dtype=int)
    for bootstrap in (multilabel_bootstrap, singlelabel_bootstrap):
        found = bootstrap(RNG.normal(size=(20, 2)), labels, one)
        assert found.macro == {}
        assert found.per_class["auc"] == [None, None]
    counts = np.array([[3, 2, 1, 4, DICE_UNIT, 1, DICE_UNIT]])
    assert segmentation_bootstrap([counts, counts], one[:2]).macro == {}


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


def test_dice_of_a_class_that_one_patient_alone_has_has_no_interval():
    def counts(dice):
        return np.array([[n, n * d * DICE_UNIT] * 2 + [0] * 3 for n, d in dice], dtype=np.int64)

    rare, common = [(1, 0.25), (0, 0), (0, 0)], [(1, 0.5), (1, 0.75), (0, 0)]
    patients = np.array([0, 1, 2])
    found = segmentation_bootstrap([counts(both) for both in zip(rare, common, strict=True)], patients)
    for name in ("dice", "volume_dice"):
        assert found.per_class[name] == [None, pytest.approx([0.5, 0.75])]
        assert found.macro[name] == pytest.approx([0.375, 0.75])  # the first patient alone, and the second
    alone = segmentation_bootstrap([counts([one]) for one in rare], patients)
    assert (alone.macro, alone.per_class) == ({}, {})


def test_nothing_is_measured_of_a_class_with_one_label_value():
    logits, labels = RNG.normal(size=(20, 1)), np.zeros((20, 1), dtype=int)
    found = multilabel_bootstrap(logits, labels, np.arange(20))
    assert found.macro == {}
    assert all(ends == [None] for ends in found.per_class.values())


def test_people_whose_images_are_not_annotated_are_drawn_too():
    drawn = _drawn_counts(np.array([0]), np.array([0]), 1, np.array([0, 1]))
    assert sorted(np.unique(drawn)) == [0, 1, 2]  # how often the first of two is drawn


def test_of_two_patients_with_the_same_images_every_draw_is_the_whole():
    labels, logits = np.eye(2, dtype=int)[[0, 0, 0, 1]], np.eye(2)[[0, 0, 1, 1]]
    found = singlelabel_bootstrap(np.tile(logits, (2, 1)), np.tile(labels, (2, 1)), np.arange(2).repeat(4)).macro
    assert found["bacc"] == pytest.approx([(2 / 3 + 1) / 2] * 2)
    assert found["precision"] == pytest.approx([(1 + 1 / 2) / 2] * 2)


def test_draws_of_people_without_a_label_alone_are_left_out():
    labels = np.array([[1, 0], [0, 1], [-1, -1]])
    found = singlelabel_bootstrap(np.eye(3)[:, :2] * 8, labels, np.array([0, 0, 1]))
    assert found.macro["accuracy"] == [1, 1]


def test_of_two_such_patients_calibration_and_auc_are_those_of_the_counts_that_a_site_sends():
    labels, logits = np.eye(3, dtype=int)[np.arange(30) % 3], RNG.normal(size=(30, 3)) * 3
    kind = kind_of("singlelabel")
    macro = kind.metrics(kind.counted(logits, labels))["macro"]
    found = singlelabel_bootstrap(np.tile(logits, (2, 1)), np.tile(labels, (2, 1)), np.arange(2).repeat(30)).macro
    assert {name: found[name] for name in ("auc", "ece")} == {
        name: pytest.approx([macro[name]] * 2) for name in ("auc", "ece")
    }
