import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from factories import refused
from nifti_factories import lesion, make_volume_site
from torch_factories import CPU, SaysMasks, SaysStructures, make_mask_site

from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.kinds import kind_of
from fedmend.kinds.segmentation import Segmentation, mask_repair_counts, segmentation_counts, segmentation_metrics
from fedmend.method import Site
from fedmend.repairs.mask_ledger import MaskLedger
from fedmend.repairs.verdicts import REJECT, Verdict

KIND = Segmentation()
NO_LESION = np.zeros((8, 8, 4), dtype=bool)
MASKS = np.zeros((4, 8, 8), dtype=np.uint8)  # slices 1 and 3 have a lesion of four pixels
MASKS[1, 2:4, 2:4] = MASKS[3, 5:7, 5:7] = 1


@pytest.fixture
def card(tmp_path):
    return load_card(make_volume_site(tmp_path / "volumes", complete=[lesion()] * 2, foreground=4), "site-1")


def opened(card, tmp_path):
    return KIND.load(card, card.classes, Opening(tmp_path / "cache", 8, CPU))


def test_data_is_opened_with_its_ledger_and_truth(card, tmp_path):
    data = opened(card, tmp_path)
    book = KIND.open_ledger(tmp_path / "m.sqlite", card, data)
    assert isinstance(book, MaskLedger)
    assert KIND.load_truth(card, data).sum((1, 2)).tolist() == [0, 6, 6, 0] * 2
    book.record("rule", 0, data.train.masks == 0, np.ones(len(data.train)))  # refuses no foreground of 4
    assert book.apply(data.train.masks).all()
    assert [row["new"] for row in book.history()] == [64] * 8


def test_positives_are_slices_with_a_lesion(card, tmp_path):
    positives = KIND.positives(opened(card, tmp_path))
    assert (positives.tolist(), positives.dtype) == ([4], np.int64)


def test_a_folder_is_described_for_the_person_who_prepared_it(card, tmp_path):
    assert KIND.describe(card, opened(card, tmp_path)) == [
        "train: 2 volumes, 2 with lesion; 8 slices, 4 with lesion",
        "test: 1 volumes, 1 with lesion; 4 slices, 2 with lesion",
        "window: none, grey values are scaled volume by volume",
    ]
    ct = load_card(make_volume_site(tmp_path / "ct", [lesion(), NO_LESION], test=(), window="lung"), "site-1")
    assert KIND.describe(ct, opened(ct, tmp_path)) == [
        "train: 2 volumes, 1 with lesion; 8 slices, 2 with lesion",
        "window: centre -600 HU, width 1500 HU",
    ]


def test_masks_are_evaluated_at_probability_one_half(tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS, volumes=2, batch_size=3)
    probability = np.full(MASKS.shape, 0.4)
    probability[1, 2, 2:4] = 0.51  # half of the first lesion
    probability[2, 0, :4] = 0.9  # false alarms on a slice without lesion, in the volume of slice 3
    probability[3, 5:7, 5:7] = 0.6
    counts = KIND.evaluate(SaysMasks(probability), site.data.train, site)
    assert counts.tolist() == [[2, 1666667, 2, 666667 + 666667, 6, 4, 2]]
    metrics = segmentation_metrics(counts)["per_class"]
    assert metrics["dice"] == pytest.approx([(2 / 3 + 1) / 2], abs=1e-6)
    assert metrics["volume_dice"] == pytest.approx([2 / 3], abs=1e-6)  # 4 / 6 and 8 / 12


def test_a_pixel_with_probability_one_half_is_no_lesion(tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS)
    assert KIND.evaluate(SaysMasks(np.full(MASKS.shape, 0.5)), site.data.train, site)[0, 4:].tolist() == [0, 0, 8]


def test_repaired_pixels_are_counted(tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS)
    assert KIND.repairs(site, None) == {}
    added = np.zeros(MASKS.shape, dtype=bool)
    added[0, 0, :3] = True
    complete = MASKS > 0
    complete[0, 0, 1:6] = True
    site.ledger.record("rule", 0, added, np.ones(4))
    counts = KIND.repairs(site, complete)
    assert {name: value.tolist() for name, value in counts.items()} == {
        "positive": [3],
        "negative": [0],
        "untagged": [0],
        "correct_positive": [2],
        "correct_negative": [0],
        "missing": [5],
    }
    site.ledger.judge(Verdict(0, 0, REJECT, 0, 3, "rule", 0, "AB"))
    assert KIND.repairs(site, None)["positive"].tolist() == [0]  # rather than the last counts that the server knows
    site.ledger.undo()
    assert KIND.repairs(site, complete) == {}


def test_removed_pixels_are_counted(tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS)
    change = np.zeros(MASKS.shape, dtype=np.int8)
    change[1, 2, 2:4] = -1  # two of the four pixels of a lesion
    site.ledger.record("rule", 0, change, np.ones(4))
    complete = MASKS > 0
    complete[1, 2, 2] = False
    counts = {name: int(value[0]) for name, value in KIND.repairs(site, complete).items()}
    assert (counts["positive"], counts["negative"], counts["correct_negative"], counts["missing"]) == (0, 2, 1, 0)


def test_a_model_doubts_what_was_changed_however_much_lesion_is_beside_it(tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS, batch_size=3)
    change, probability = np.zeros(MASKS.shape, dtype=np.int8), np.full(MASKS.shape, 0.3)
    change[0, 0, :2] = 1  # two pixels became lesion
    probability[0, 0, :2] = 0.9, 0.5
    change[1, 2, 2] = -1  # one became background
    probability[1, 2, 2] = 0.8
    site.ledger.record("rule", 0, change, np.ones(4))
    doubts = KIND.opinions(SaysMasks(probability), site)
    assert doubts.dtype == np.float32
    assert doubts[:, 0] == pytest.approx([(0.1 + 0.5) / 2, 0.8, 0, 0])


def test_repairs_are_counted_structure_by_structure():
    masks, change, complete = (np.zeros((1, 2, 4), dtype=np.int8) for _ in range(3))
    masks[0, 0] = 0, 0, 0, 2
    change[0, 0] = 1, 1, 2, -1
    change[0, 1, 0] = 1
    complete[0, 0] = 1, 2, 2, 1
    complete[0, 1] = 3
    counts = mask_repair_counts(change, masks, complete, 3)
    assert {name: value.tolist() for name, value in counts.items()} == {
        "positive": [3, 1, 0],
        "negative": [0, 1, 0],
        "untagged": [0, 0, 0],
        "correct_positive": [1, 1, 0],
        "correct_negative": [0, 1, 0],
        "missing": [1, 2, 4],
    }


def test_a_model_doubts_the_changed_pixels_of_each_structure(tmp_path):
    masks = np.zeros((8, 8, 4), dtype=np.uint8)
    masks[:4, :4] = 2
    folder = make_volume_site(tmp_path / "site", [masks], test=(), classes=("liver", "spleen"), complete=[masks])
    card = load_card(folder, "site-1")
    data = KIND.load(card, card.classes, Opening(tmp_path / "cache", 8, CPU))
    ledger = KIND.open_ledger(tmp_path / "l.sqlite", card, data)
    site = Site("site-1", CPU, data, ledger, StateStore(tmp_path), 4)
    assert KIND.repairs(site, KIND.load_truth(card, data)) == {}
    change = np.zeros(data.train.masks.shape, dtype=np.int8)
    change[0, 0, :2] = 1  # background in the site's masks
    change[1, 7, 0] = -1  # spleen
    ledger.record("rule", 0, change, np.ones((4, 2)))
    p = np.full((3, 8, 8), 1 / 3)
    p[:, 0, 0], p[:, 0, 1], p[:, 7, 0] = (0.1, 0.8, 0.1), (0.4, 0.4, 0.2), (0.3, 0.1, 0.6)
    doubts = KIND.opinions(SaysStructures(p), site)
    assert doubts[0].tolist() == pytest.approx([(0.2 + 0.6) / 2, 0])
    assert doubts[1].tolist() == pytest.approx([0, 0.6])
    assert not doubts[2:].any()
    counts = KIND.repairs(site, KIND.load_truth(card, data))
    assert [counts[name].tolist() for name in ("positive", "negative", "correct_negative")] == [[2, 0], [0, 1], [0, 0]]


def test_the_gallery_shows_repaired_masks(tmp_path):
    site = make_mask_site(tmp_path / "site", MASKS)
    site.ledger.record("rule", 0, np.roll(MASKS, 1, axis=0) > 0, np.ones(4))
    assert "<h1>Corrected masks" in KIND.gallery(site, None, phantom=False)


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
def test_removed_lesions_are_known_where_a_converter_removed_them(card, provenance, expected):
    known = KIND.census_extras(dataclasses.replace(card, provenance=provenance))
    assert {name: value.tolist() for name, value in known.items()} == expected


def test_volumes_are_counted_by_whether_their_mask_has_a_lesion(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(), NO_LESION, lesion()], foreground=3)
    assert KIND.label_counts(load_card(folder, "site-1"), ["lesion"]).tolist() == [[3], [2], [0]]


def test_a_mask_that_cannot_be_read_is_named_by_its_number(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    (folder / "labels" / "case-2.nii.gz").unlink()
    card = load_card(folder, "site-1")
    with refused("site-1: datalist.json, training item 2, image: expected a NIfTI file, not found"):
        KIND.label_counts(card, ["lesion"])


# Slices of two volumes: hit pixels, predicted ones, those of the mask. Slice 1 has no lesion, but two false alarms.
HITS, PREDICTED, TRUE, CASE = map(np.array, ([2, 0, 0, 1], [3, 2, 0, 4], [3, 0, 2, 2], [0, 0, 1, 1]))


def test_dice_of_slices_and_volumes_by_hand():
    counts = segmentation_counts(HITS, PREDICTED, TRUE, CASE)
    assert counts.dtype == np.int64
    # Slices with lesion 4/6, 0/2, 2/6; volumes 4/(5 + 3), 2/(4 + 4).
    assert counts.tolist() == [[3, 666667 + 0 + 333333, 2, 500000 + 250000, 3, 6, 4]]
    metrics = segmentation_metrics(counts)
    expected = {"dice": 1 / 3, "volume_dice": 3 / 8, "precision": 3 / 9, "recall": 3 / 7}
    assert metrics == {
        "per_class": {name: [pytest.approx(value, abs=1e-6)] for name, value in expected.items()},
        "macro": {name: pytest.approx(value, abs=1e-6) for name, value in expected.items()},
        "positives": [3],
    }
    assert Segmentation().metrics(counts) == metrics


def test_a_slice_without_lesion_counts_in_the_dice_of_its_volume_alone():
    with_it = segmentation_counts(HITS, PREDICTED, TRUE, CASE)[0]
    kept = [0, 2, 3]
    without = segmentation_counts(HITS[kept], PREDICTED[kept], TRUE[kept], CASE[kept])[0]
    assert with_it[:2].tolist() == without[:2].tolist()
    assert (with_it - without)[2:].tolist() == [0, 500000 - 666667, 0, 2, 0]


def test_a_volume_without_lesion_has_no_dice_but_false_alarms():
    counts = segmentation_counts(*map(np.array, ([0, 5], [7, 5], [0, 5], [0, 1])))
    assert counts.tolist() == [[1, 1000000, 1, 1000000, 5, 7, 0]]


def test_segmentation_counts_of_sites_add_up_to_the_pooled_ones():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 4, 60) * 10
    hits = rng.integers(0, true + 1)
    predicted = hits + rng.integers(0, 20, 60)
    case = np.arange(60) // 6
    pooled = segmentation_counts(hits, predicted, true, case)
    sites = [np.flatnonzero(np.isin(case, cases)) for cases in ([0, 3, 4], [1, 2, 5, 6, 7], [8, 9])]
    parts = [segmentation_counts(hits[s], predicted[s], true[s], case[s]) for s in sites]
    assert np.array_equal(sum(parts), pooled)
    dice = (2 * hits / np.maximum(predicted + true, 1))[true > 0].mean()
    assert segmentation_metrics(pooled)["macro"]["dice"] == pytest.approx(dice, abs=1e-6)


def test_segmentation_without_any_lesion_has_no_dice():
    nothing = np.zeros(3, dtype=np.int64)
    metrics = segmentation_metrics(segmentation_counts(nothing, nothing, nothing, np.array([0, 0, 1])))
    assert metrics["per_class"] == {name: [None] for name in ("dice", "volume_dice", "precision", "recall")}
    assert metrics["macro"] == dict.fromkeys(("dice", "volume_dice", "precision", "recall"))
    assert metrics["positives"] == [0]


def test_repaired_pixels_are_counted_and_compared_with_complete_masks():
    masks = np.array([[[1, 0, 0, 0]]], dtype=np.uint8)
    complete = np.array([[[1, 1, 1, 0]]], dtype=bool)
    added = np.array([[[0, 1, 0, 1]]], dtype=bool)
    known = {name: value.tolist() for name, value in mask_repair_counts(added, masks, complete).items()}
    unknown = {"positive": [2], "negative": [0], "untagged": [0]}
    assert known == unknown | {"correct_positive": [1], "correct_negative": [0], "missing": [2]}
    counts = mask_repair_counts(added, masks, None)
    assert {name: value.tolist() for name, value in counts.items()} == unknown
    assert all(value.dtype == np.int64 for value in counts.values())


def test_pixels_count_as_repaired_where_they_differ_from_the_own_annotation():
    masks = np.array([[[1, 1, 1, 0, 0, 0]]], dtype=np.uint8)
    change = np.array([[[-1, -1, 1, 1, -1, 0]]], dtype=np.int8)  # the third is lesion anyway, the fifth background
    complete = np.array([[[0, 1, 1, 1, 0, 1]]], dtype=bool)
    known = {name: value.tolist() for name, value in mask_repair_counts(change, masks, complete).items()}
    unknown = {"positive": [1], "negative": [2], "untagged": [0]}
    assert known == unknown | {"correct_positive": [1], "correct_negative": [1], "missing": [2]}
    counts = mask_repair_counts(change, masks, None)
    assert {name: value.tolist() for name, value in counts.items()} == unknown


def test_what_a_model_finds_of_a_structure_that_masks_do_not_show_is_no_false_alarm():
    scored = np.array([[[2, 3, 4], [0, 9, 0]]] * 2)  # two slices: found and in the mask, found, in the mask
    split = SimpleNamespace(case=np.array([0, 0]), annotated=(True, False))
    counts = kind_of("segmentation").count(scored, split)
    assert counts[0, 4:].tolist() == [4, 2, 4]
    assert counts[1].tolist() == [0] * 7
