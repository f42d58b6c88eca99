import numpy as np
import pytest
import torch
from factories import make_site_folder, refused
from nifti_factories import make_volume_site
from torch import nn
from torch_factories import make_mask_site, make_mask_split, make_single_site, make_site, make_split

from fedmend.data.card import load_card
from fedmend.kinds import KINDS, kind_of
from fedmend.kinds.multilabel import BINS
from fedmend.labels import KIND_NAMES, MULTILABEL, SEGMENTATION, SINGLELABEL

WHERE = "site-1: result of round 4, counts test"


def test_every_kind_that_a_card_may_name_is_there():
    assert tuple(KINDS) == KIND_NAMES
    assert all(kind_of(name).name == name for name in KIND_NAMES)


def test_what_people_read_of_a_kind():
    said = {name: (kind.unit, kind.sample, kind.best_metric) for name, kind in KINDS.items()}
    assert said == {
        MULTILABEL: ("labels", "samples", "auc"),
        SINGLELABEL: ("labels", "samples", "bacc"),
        SEGMENTATION: ("pixels", "volumes", "dice"),
    }


@pytest.mark.parametrize(
    ("name", "known", "repairable"),
    [
        (MULTILABEL, [True, True, False], [False, False, True]),
        (SINGLELABEL, [True, False, False], [False, True, False]),
        (SEGMENTATION, [True, True, False], [True, True, True]),
    ],
)
def test_the_kind_says_which_classes_a_site_knows_and_which_repairs_are_recorded(name, known, repairable):
    annotated, positives = np.array([True, True, False]), np.array([4, 0, 7])
    kind = kind_of(name)
    assert kind.known_classes(annotated, positives).tolist() == known
    assert kind.repairable(annotated, positives).tolist() == repairable


def test_rows_of_the_classifier_are_the_classes_and_of_masks_the_background_too():
    assert kind_of(MULTILABEL).row_names(["a", "b"]) == ("a", "b")
    assert kind_of(SINGLELABEL).row_names(["a", "b"]) == ("a", "b")
    assert kind_of(SEGMENTATION).row_names(["lesion"]) == ("background", "lesion")


def test_shapes_of_counts_are_those_of_their_words():
    assert [kind.counts_shape(4) for kind in KINDS.values()] == [(2, 1000), (2004,), (7,)]
    assert [kind.counts_words for kind in KINDS.values()] == ["(C, 2, 1000)", "(C, C + 2000)", "(C, 7)"]


def test_labels_are_counted_without_opening_an_image(tmp_path):
    folder = make_site_folder(tmp_path / "site")
    volumes = make_volume_site(tmp_path / "volumes")
    for image in (*folder.glob("images/*"), *volumes.glob("images/*")):
        image.unlink()
    cards = [load_card(place, "site-1") for place in (folder, volumes)]
    labels, masks = (kind_of(card.kind).label_counts(card, card.classes).tolist() for card in cards)
    assert (labels[0], masks) == ([5, 0, 5], [[2], [2], [0]])


def empty(name, num_classes):
    return np.zeros((num_classes, *kind_of(name).counts_shape(num_classes)), dtype=np.int64)


@pytest.mark.parametrize(("name", "num_classes"), [(MULTILABEL, 2), (SINGLELABEL, 2), (SEGMENTATION, 1)])
def test_counts_of_another_shape_are_refused(name, num_classes):
    counts = empty(name, num_classes)
    kind_of(name).check_counts(counts, num_classes, 0, WHERE)
    for wrong in (counts[..., 1:], np.concatenate([counts, counts]), counts[0]):
        with refused(f"{WHERE}: expected those of {name} data, got others"):
            kind_of(name).check_counts(wrong, num_classes, 0, WHERE)


@pytest.mark.parametrize(
    ("name", "num_classes", "places"),
    [
        (MULTILABEL, 2, [(1, 0, 3), (1, 1, 9)]),
        (SINGLELABEL, 2, [(0, 0), (1, 0)]),
        (SINGLELABEL, 2, [(1, 2), (1, 1 + 2 * BINS)]),
        (SEGMENTATION, 1, [(0, 0), (0, 0)]),
        (SEGMENTATION, 1, [(0, 2), (0, 2)]),
    ],
)
def test_counts_of_more_samples_than_the_census_knows_are_refused(name, num_classes, places):
    counts = empty(name, num_classes)
    for place in places:  # two samples in one part
        counts[place] += 1
    kind_of(name).check_counts(counts, num_classes, 2, WHERE)
    with refused(f"{WHERE}: expected at most the samples of its census, got more"):
        kind_of(name).check_counts(counts, num_classes, 1, WHERE)


def test_a_dice_above_one_is_refused():
    counts = np.array([[2, 2_000_000, 1, 1_000_000, 0, 0, 0]])
    kind_of(SEGMENTATION).check_counts(counts, 1, 2, WHERE)
    for column in (1, 3):
        with refused(f"{WHERE}: expected Dice sums of at most one per sample, got more"):
            kind_of(SEGMENTATION).check_counts(counts + (np.arange(7) == column), 1, 2, WHERE)


class Broken(nn.Module):
    """Of all samples, one has a score that is none."""

    def __init__(self, shape, score):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(shape))
        self.scores.data.view(-1)[3] = score

    def forward(self, images):
        scores = self.scores[: len(images)]
        return scores, scores


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", KIND_NAMES)
def test_a_score_that_is_no_number_is_an_error_of_the_site_and_is_not_counted(tmp_path, name, score):
    labels = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=np.int8)
    if name == SEGMENTATION:
        site, split = make_mask_site(tmp_path, np.zeros((4, 8, 8))), make_mask_split(tmp_path, np.zeros((4, 8, 8)))
        model = Broken((4, 2, 8, 8), score)
    else:
        site = make_site(tmp_path, labels) if name == MULTILABEL else make_single_site(tmp_path, [0, 1, 0, 1], 2)
        split, model = make_split(labels), Broken((4, 2), score)
    with refused("site-1: expected finite scores of the received model, got NaN or infinity"):
        kind_of(name).evaluate(model, split, site)


def test_numbers_of_one_site_leave_out_classes_with_few_samples():
    counts = np.zeros((3, 2, BINS), dtype=np.int64)
    counts[:, 0, 100], counts[:, 1, 900] = [9, 9, 2], [9, 4, 9]
    found = kind_of(MULTILABEL).site_metrics(counts, 5)
    assert found["held_back"] == [False, True, True]
    assert found["per_class"]["auc"] == [1.0, None, None]
    assert found["positives"] == [9, 0, 0]
    assert kind_of(MULTILABEL).site_metrics(counts)["held_back"] == [False] * 3


def test_a_class_that_a_site_lacks_is_not_held_back():
    counts = np.zeros((1, 2, BINS), dtype=np.int64)
    counts[0, 0, 100] = 9
    assert kind_of(MULTILABEL).site_metrics(counts, 5)["held_back"] == [False]


def test_numbers_of_one_site_with_one_label_hide_small_classes_and_the_confusion_matrix():
    counts = np.zeros((3, 3 + 2 * BINS), dtype=np.int64)
    counts[:, :3] = [[8, 2, 0], [0, 9, 1], [1, 1, 1]]
    found = kind_of(SINGLELABEL).site_metrics(counts, 5)
    assert found["held_back"] == [False, False, True]
    assert found["macro"]["bacc"] == pytest.approx((0.8 + 0.9) / 2)
    assert found["per_class"]["recall"] == [0.8, 0.9, None]
    assert "confusion" not in found


def test_a_dice_of_few_volumes_is_held_back():
    counts = np.array([[30, 15_000_000, 4, 2_000_000, 9, 1, 1]])
    assert kind_of(SEGMENTATION).site_metrics(counts, 5)["macro"]["dice"] is None
    assert kind_of(SEGMENTATION).site_metrics(counts, 4)["macro"]["dice"] == 0.5
