import dataclasses

import numpy as np
import pytest
from factories import CLASSES, LABELS, make_site_folder
from nifti_factories import lesion, make_volume_site
from torch_factories import CPU, Says, SaysMasks, make_mask_site, make_site

from fedmend.annotation import LabelAnnotation, MaskAnnotation, annotation_of
from fedmend.data.manifest import load_card
from fedmend.evaluation import evaluation_counts, segmentation_metrics
from fedmend.ledger import LabelLedger, Repairs
from fedmend.mask_ledger import MaskLedger

MASKS = np.zeros((4, 8, 8), dtype=np.uint8)  # slices 1 and 3 have a lesion of four pixels
MASKS[1, 2:4, 2:4] = MASKS[3, 5:7, 5:7] = 1


def annotation(folder):
    return annotation_of(load_card(folder, "site-1"))


def loaded(given, tmp_path):
    return given.load(given.card.classes, max_unreadable=0, cache_dir=tmp_path, image_size=8, device=CPU)


@pytest.fixture
def masks(tmp_path):
    return annotation(make_volume_site(tmp_path / "volumes", complete=[lesion()] * 2, foreground=4))


@pytest.fixture
def labels(tmp_path):
    return annotation(make_site_folder(tmp_path / "labels", splits=["test"], truth=np.maximum(LABELS, 0)))


def test_the_task_of_the_card_says_what_a_site_has(labels, masks):
    assert isinstance(labels, LabelAnnotation)
    assert isinstance(masks, MaskAnnotation)


def test_data_is_opened_with_its_ledger_and_truth(labels, masks, tmp_path):
    data = loaded(labels, tmp_path)
    assert isinstance(labels.open_ledger(tmp_path / "l.sqlite", data), LabelLedger)
    assert np.array_equal(labels.load_truth(data), np.maximum(LABELS, 0))
    data = loaded(masks, tmp_path)
    book = masks.open_ledger(tmp_path / "m.sqlite", data)
    assert isinstance(book, MaskLedger)
    assert masks.load_truth(data).sum((1, 2)).tolist() == [0, 6, 6, 0] * 2
    book.record("rule", 0, data.train.masks == 0, np.ones(len(data.train)))  # refuses no foreground of 4
    assert book.apply(data.train.masks).all()
    assert [row["new"] for row in book.history()] == [64] * 8


def test_positives_are_labels_or_slices_with_a_lesion(labels, masks, tmp_path):
    assert labels.positives(loaded(labels, tmp_path)).tolist() == [2, 0, 2]
    positives = masks.positives(loaded(masks, tmp_path))
    assert (positives.tolist(), positives.dtype) == ([4], np.int64)


def test_a_folder_is_described_for_the_person_who_prepared_it(labels, masks, tmp_path):
    assert labels.describe(loaded(labels, tmp_path)) == [
        "train, edema: 2 positive, 3 negative, 1 blank",
        "train, fracture: not annotated here",
        "train, nodule: 2 positive, 3 negative, 1 blank",
        "test, edema: 2 positive, 4 negative, 0 blank",
        "test, fracture: 0 positive, 6 negative, 0 blank",
        "test, nodule: 2 positive, 4 negative, 0 blank",
    ]
    assert masks.describe(loaded(masks, tmp_path)) == [
        "train: 2 volumes, 2 with lesion; 8 slices, 4 with lesion",
        "test: 1 volumes, 1 with lesion; 4 slices, 2 with lesion",
        "window: none, grey values are scaled volume by volume",
    ]
    folder = make_volume_site(tmp_path / "ct", [lesion(), ~lesion() & False], test=(), window="lung")
    assert annotation(folder).describe(loaded(annotation(folder), tmp_path)) == [
        "train: 2 volumes, 1 with lesion; 8 slices, 2 with lesion",
        "window: centre -600 HU, width 1500 HU",
    ]


def test_labels_are_evaluated_by_histograms(labels, tmp_path):
    site = make_site(tmp_path, LABELS)
    logits = np.arange(18.0).reshape(6, 3) - 9
    model = Says(logits)
    split = dataclasses.replace(
        site.data.train, images=np.broadcast_to(10 * np.arange(6, dtype=np.uint8)[:, None, None], (6, 8, 8))
    )
    assert np.array_equal(labels.evaluate(model, split, site), evaluation_counts(logits, LABELS, "multilabel"))


def test_masks_are_evaluated_at_probability_one_half(masks, tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS, volumes=2, batch_size=3)
    probability = np.full(MASKS.shape, 0.4)
    probability[1, 2, 2:4] = 0.51  # half of the first lesion
    probability[2, 0, :4] = 0.9  # false alarms on a slice without lesion, in the volume of slice 3
    probability[3, 5:7, 5:7] = 0.6
    counts = masks.evaluate(SaysMasks(probability), site.data.train, site)
    assert counts.tolist() == [[2, 1666667, 2, 666667 + 666667, 6, 4, 2]]
    metrics = segmentation_metrics(counts)["per_class"]
    assert metrics["dice"] == pytest.approx([(2 / 3 + 1) / 2], abs=1e-6)
    assert metrics["volume_dice"] == pytest.approx([2 / 3], abs=1e-6)  # 4 / 6 and 8 / 12


def test_a_pixel_with_probability_one_half_is_no_lesion(masks, tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS)
    assert masks.evaluate(SaysMasks(np.full(MASKS.shape, 0.5)), site.data.train, site)[0, 4:].tolist() == [0, 0, 8]


def test_repaired_labels_are_counted(labels, tmp_path):
    site = make_site(tmp_path, LABELS)
    assert labels.repairs(site, None) == {}
    site.ledger.record("rule", 0, LABELS, Repairs(*np.array([[2, 0, 1, 1], [5, 2, 0, 1]]).T))
    counts = labels.repairs(site, np.maximum(LABELS, 0))
    assert (counts["positive"].tolist(), counts["negative"].tolist()) == ([1, 0, 0], [0, 0, 1])


def test_repaired_pixels_are_counted(masks, tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS)
    assert masks.repairs(site, None) == {}
    added = np.zeros(MASKS.shape, dtype=bool)
    added[0, 0, :3] = True
    complete = MASKS > 0
    complete[0, 0, 1:6] = True
    site.ledger.record("rule", 0, added, np.ones(4))
    counts = masks.repairs(site, complete)
    assert {name: value.tolist() for name, value in counts.items()} == {
        "positive": [3],
        "negative": [0],
        "untagged": [0],
        "correct_positive": [2],
        "correct_negative": [0],
        "missing": [5],
    }
    site.ledger.undo()
    assert masks.repairs(site, complete) == {}


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        ({"site": {"kept_lesions": 3, "lesions": 5, "completeness": 0.6}}, {"lesions": [3, 5]}),
        ({"site": {"kept_lesions": 3}}, {}),
        ({"site": "St Mary"}, {}),
        ({}, {}),
        ("by hand", {}),
    ],
)
def test_removed_lesions_are_known_where_a_converter_removed_them(masks, provenance, expected):
    known = MaskAnnotation(dataclasses.replace(masks.card, provenance=provenance)).lesions()
    assert {name: value.tolist() for name, value in known.items()} == expected


def test_labels_have_no_lesions_to_count(labels):
    assert labels.lesions() == {}
    assert labels.card.classes == CLASSES
