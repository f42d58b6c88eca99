"""Volumes whose masks show several structures, of which a site may mark some."""

import numpy as np
import pytest
import torch
from factories import refused
from nifti_factories import make_volume_site, open_volumes, with_card
from torch import nn
from torch_factories import CPU

from fedmend.data.card import load_card
from fedmend.data.site import Opening
from fedmend.data.slices import load_complete_masks, load_volumes
from fedmend.evaluation.bootstrap import segmentation_bootstrap
from fedmend.evaluation.held_out import labels_of
from fedmend.evaluation.masks import measure_masks
from fedmend.kinds.segmentation import Segmentation
from fedmend.learning.inference import infer_classes
from fedmend.method import Site

CLASSES = ("liver", "spleen", "kidneys")
KIND = Segmentation()


def masks(*boxes, shape=(8, 8, 4)):
    """uint8 mask of (value, (x, x), (y, y), (z, z))."""
    mask = np.zeros(shape, dtype=np.uint8)
    for value, *box in boxes:
        mask[tuple(slice(*ends) for ends in box)] = value
    return mask


LIVER, SPLEEN, KIDNEY = (1, (0, 4), (0, 4), (0, 2)), (2, (5, 8), (0, 2), (1, 3)), (3, (4, 6), (5, 8), (3, 4))
ALL = masks(LIVER, SPLEEN, KIDNEY)


def site(folder, *, train=None, test=None, **card):
    return make_volume_site(folder, train or [ALL, ALL], test=test or [ALL], classes=CLASSES, **card)


def opened(folder, classes=CLASSES, **options):
    return load_volumes(load_card(folder, "site-1"), classes, Opening(folder.parent / "cache", 8, CPU, **options))


class Says(nn.Module):
    """Gives one slice after the other the probabilities (N, 1 + C, H, W) of a table."""

    def __init__(self, table):
        super().__init__()
        self.table, self.at = torch.from_numpy(table), 0

    def forward(self, images):
        found = self.table[self.at : self.at + len(images)].clamp(min=1e-9).log()
        self.at += len(images)
        return found, found


def test_one_structure_may_have_its_value_in_the_field_for_several(tmp_path):
    mask = masks((255, (0, 4), (0, 4), (0, 2)))
    folder = make_volume_site(tmp_path / "site", [mask], test=(), values=[255])
    assert open_volumes(folder).train.masks.max() == 1
    with_card(folder, values=[7])  # the store of the other value is not taken for it
    with refused("site-1: datalist.json, training item 1, label: expected the values 0 and 7, got others"):
        open_volumes(folder)


def test_a_store_is_made_anew_when_the_value_of_the_only_structure_that_is_shown_changes(tmp_path):
    shown = {"train": ["liver"], "test": ["liver"]}
    folder = site(tmp_path / "site", train=[masks(LIVER)], test=[masks(LIVER)], annotated=shown)
    assert opened(folder).train.masks.max() == 1
    with_card(folder, values=[5, 1, 2])
    with refused("site-1: datalist.json, training item 1, label: expected the values 0 and 5, got others"):
        opened(folder)


def test_masks_hold_numbers_in_the_order_of_the_jobs_classes(tmp_path):
    data = opened(site(tmp_path / "site"))
    assert data.annotated.tolist() == [True] * 3
    assert [(data.train.masks[:4] == number).sum() for number in (1, 2, 3)] == [32, 12, 6]
    turned = opened(site(tmp_path / "other"), classes=("kidneys", "liver", "spleen"))
    assert [(turned.train.masks[:4] == number).sum() for number in (1, 2, 3)] == [6, 32, 12]


def test_a_card_can_say_which_value_each_structure_has(tmp_path):
    mask = masks((5, *LIVER[1:]), (9, *SPLEEN[1:]), (2, *KIDNEY[1:]))
    data = opened(site(tmp_path / "site", train=[mask], test=[mask], values=[5, 9, 2]))
    assert [(data.train.masks == number).sum() for number in (1, 2, 3)] == [32, 12, 6]


def test_a_split_shows_the_structures_that_the_card_names_and_no_other_value(tmp_path):
    folder = site(tmp_path / "site", train=[masks(SPLEEN)], annotated={"train": ["spleen"]})
    data = opened(folder)
    assert data.annotated.tolist() == [False, True, False]
    assert (data.train.annotated, data.evaluation["test"].annotated) == ((False, True, False), (True,) * 3)
    assert np.unique(data.train.masks).tolist() == [0, 2]
    folder = site(tmp_path / "more", train=[ALL], annotated={"train": ["spleen", "kidneys"]})
    with refused("site-1: datalist.json, training item 1, label: expected the values 0, 2 and 3, got others"):
        opened(folder)


def test_complete_masks_of_training_show_all_structures(tmp_path):
    folder = site(tmp_path / "site", train=[masks(SPLEEN)], complete=[ALL], annotated={"train": ["spleen"]})
    data = opened(folder, all_labels=True)
    assert data.annotated.tolist() == [True] * 3
    assert np.unique(data.train.masks).tolist() == [0, 1, 2, 3]
    truth = load_complete_masks(load_card(folder, "site-1"), opened(folder).train, CLASSES)
    assert (truth == data.train.masks).all()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"values": [1, 2]}, "field values: expected one for each of 3 classes, got others"),
        ({"values": [1, 2, 2]}, "field values: expected each name once, got a list"),
        ({"values": [0, 1, 2]}, "field values: expected a list of whole numbers >= 1, got a list"),
        ({"annotated": {"train": ["heart"]}}, "field annotated: expected names of classes, got another"),
        ({"annotated": {"train": []}}, "field annotated: expected a mapping of split to class names, got an object"),
    ],
)
def test_a_card_that_cannot_be_is_one_sentence(tmp_path, fields, sentence):
    folder = with_card(site(tmp_path / "site"), **fields)
    with pytest.raises(Exception, match="site-1: site.json, " + sentence.split(", got")[0].replace("(", r"\(")):
        load_card(folder, "site-1")


def test_counts_are_of_each_structure_and_of_unmarked_ones_nothing_is_counted(tmp_path):
    data = opened(site(tmp_path / "site", annotated={"test": ["liver", "spleen", "kidneys"]}))
    test = data.evaluation["test"]
    said = np.stack([test.masks == number for number in range(4)], 1).astype(np.float32)
    row, column = np.argwhere(test.masks[0] == 1)[0]
    said[0, :, row, column] = 0, 0, 1, 0  # a pixel of the liver is said to be spleen
    model = Says(said)
    where = Site("site-1", CPU, data, None, None, 4)
    counts = KIND.evaluate(model, test, where)
    # liver: slices of 16 pixels; one with 15 of 15 right, one with all
    assert counts[0].tolist() == [2, round(1e6 * 30 / 31) + 10**6, 1, round(1e6 * 62 / 63), 31, 0, 1]
    assert counts[1].tolist() == [2, 2 * 10**6, 1, round(1e6 * 24 / 25), 12, 1, 0]
    assert counts[2].tolist() == [1, 10**6, 1, 10**6, 6, 0, 0]
    half = opened(site(tmp_path / "half", test=[masks(SPLEEN)], annotated={"test": ["spleen"]})).evaluation["test"]
    assert KIND.count(np.ones((4, 3, 3), np.int64), half).any(1).tolist() == [False, True, False]


def test_what_a_site_marks_is_counted_and_described_structure_by_structure(tmp_path):
    folder = site(tmp_path / "site", train=[masks(SPLEEN), masks(SPLEEN)], annotated={"train": ["spleen"]})
    card, data = load_card(folder, "site-1"), opened(folder)
    assert KIND.positives(data).tolist() == [0, 4, 0]
    assert KIND.label_counts(card, CLASSES).tolist() == [[0, 2, 0], [0, 2, 0], [2, 0, 2]]
    assert KIND.describe(card, data)[:4] == [
        "train, liver: not annotated here",
        "train, spleen: 2 volumes, 2 with it; 8 slices, 4 with it",
        "train, kidneys: not annotated here",
        "test, liver: 1 volumes, 1 with it; 4 slices, 2 with it",
    ]


def test_of_one_class_more_probable_than_not_is_enough_and_of_several_the_most_probable_counts(tmp_path):
    data = opened(site(tmp_path / "site"))
    said = np.zeros((8, 4, 8, 8), dtype=np.float32)
    said[:, 0], said[:, 2] = 0.4, 0.35  # no class has the majority
    ((index, found), *_) = infer_classes(Says(said), data.train, Site("site-1", CPU, data, None, None, 8))
    assert (index.tolist(), np.unique(found).tolist(), found.dtype) == ([*range(8)], [0], np.uint8)
    lesions = open_volumes(make_volume_site(tmp_path / "lesions"))
    assert lesions.train.annotated == (True,)


def test_volumes_are_measured_structure_by_structure(tmp_path):
    test = opened(site(tmp_path / "site", annotated={"test": ["liver", "spleen"]}, test=[masks(LIVER, SPLEEN)]))
    split = test.evaluation["test"]
    said = np.stack([split.masks == number for number in range(4)], 1).astype(np.float32)
    row, column = np.argwhere(split.masks[0] == 1)[0]
    said[0, :, row, column] = 0, 0, 0, 1  # a pixel of the liver is said to be kidney, which the mask does not show
    found = measure_masks(Says(said), split, Site("site-1", CPU, test, None, None, 4))
    assert found.dice[0, :2].tolist() == pytest.approx([62 / 63, 1])
    assert np.isnan(found.dice[0, 2])
    assert found.hd95[0, :2].tolist() == [0, 0]
    assert found.lesions.tolist() == [[[1, 0, 0], [1, 0, 0], [0, 0, 0]]]
    assert labels_of(split).tolist() == [[1, 1, -1]]
    ends = segmentation_bootstrap([KIND.count(found.pixels, split)] * 2, np.arange(2))  # of one there is no interval
    assert ends.macro["volume_dice"] == pytest.approx([(62 / 63 + 1) / 2] * 2)
    assert ends.per_class["volume_dice"] == [pytest.approx([62 / 63] * 2), [1, 1], None]
