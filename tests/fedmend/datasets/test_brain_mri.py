"""The brain tumour converter."""

import os
from pathlib import Path

import numpy as np
import pytest
from factories import refused

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets.brain_mri import CLASSES, DIAGNOSES, prepare, prepare_label_sets, prepare_single_label
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.swapped_labels import SwapNoise
from fedmend.errors import FedMendError

DOWNLOAD = "brain"


def _tables(out: Path, site: int):
    card = load_card(out / f"site-{site}", f"site-{site}")
    names = {**card.splits, "truth": card.truth["train"]}
    return {k: load_table(card, file, CLASSES) for k, file in names.items()}


def test_each_site_annotates_one_tumour_and_keeps_the_truth_beside(brain, tmp_path):
    prepare(brain, tmp_path / "out", val_share=0.25)
    for s in (1, 2, 3):
        tables = _tables(tmp_path / "out", s)
        assert tables["train"].annotated.tolist() == [c == s - 1 for c in range(3)]
        assert tables["test"].annotated.all()
        assert [len(tables[k].images) for k in ("train", "val", "test")] == [12, 4, 4]
        truth, train = tables["truth"], tables["train"]
        assert truth.images == train.images
        np.testing.assert_array_equal(truth.labels[:, s - 1], train.labels[:, s - 1])
        for image, labels in zip(truth.images, truth.labels, strict=True):
            number = int(Path(image).stem)
            assert labels.tolist() == [int(number % 4 == c) for c in range(3)]


def test_the_training_slices_of_a_site_can_be_capped(brain, tmp_path):
    prepare(brain, tmp_path / "out", val_share=0.25, train_per_site=9)
    tables = _tables(tmp_path / "out", 1)
    assert [len(tables[k].images) for k in ("train", "truth", "val", "test")] == [9, 9, 4, 4]


def test_a_cap_below_one_slice_is_refused(brain, tmp_path):
    with refused("brain-mri, argument train_per_site: expected None or at least 1, got -1"):
        prepare(brain, tmp_path / "out", train_per_site=-1)


def test_more_sites_can_annotate_two_tumours_each_and_some_of_them_be_noisy(brain, tmp_path):
    noise = SwapNoise(noisy_share=0.5, noise_low=1.0, noise_high=1.0)
    prepare(brain, tmp_path / "out", sites=4, annotated_per_site=2, val_share=0, noise=noise, seed=2)
    wrong = []
    for s in range(4):
        tables = _tables(tmp_path / "out", s + 1)
        known = tables["train"].annotated
        assert known.tolist() == [(c - s) % 3 < 2 for c in range(3)]
        wrong.append(bool((tables["train"].labels != tables["truth"].labels)[:, known].any()))
    assert sum(wrong) == 2


def test_an_unknown_diagnosis_is_refused_by_row(own_copy, tmp_path):
    table = own_copy / "labels.csv"
    table.write_text(table.read_text().replace("images/3.png,no_tumor", "images/3.png,healthy"))
    with pytest.raises(
        FedMendError, match=r"labels.csv row 5, column diagnosis: expected one of .*, got another value"
    ):
        prepare(own_copy, tmp_path / "out")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("image,", "file,", "row 1: expected a header with ['image', 'diagnosis', 'split'], got one without ['image']"),
        ("images/50.png", "images/2.png", "row 52, column image: expected each image once, got the one of row 4"),
        (
            "images/50.png",
            "./images\\2.png",
            "row 52, column image: expected each image once, got the one of row 4",
        ),
        ("images/50.png", "", "row 52, column image: expected the path of a file below the source, got another one"),
        (
            "images/50.png",
            "x.png",
            "row 52, column image: expected the path of a file below the source, got another one",
        ),
    ],
)
def test_a_table_of_other_images_or_with_one_twice_is_refused(own_copy, tmp_path, old, new, sentence):
    table = own_copy / "labels.csv"
    table.write_text(table.read_text().replace(old, new, 1))
    with refused(f"brain-mri, labels.csv {sentence}"):
        prepare(own_copy, tmp_path / "out")


@pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA")
def test_the_real_set_has_its_published_counts(tmp_path):
    prepare(Path(os.environ["FEDMEND_REAL_DATA"]) / "brain_mri", tmp_path / "out", val_share=0)
    truth = np.concatenate([_tables(tmp_path / "out", s)[k].labels for s in (1, 2, 3) for k in ("truth", "test")])
    assert truth.sum(0).tolist() == [886, 823, 834]
    assert len(truth) == 2870


def test_as_single_label_data_the_four_diagnoses_are_dealt_to_the_sites_and_the_test_split_stays(brain, tmp_path):
    protocol = NoiseProtocol(sites=2, presence=1.0, noisy_share=0.5, noise="uniform", noise_low=1.0, noise_high=1.0)
    prepare_single_label(brain, tmp_path / "out", protocol=protocol)
    seen = {"test": [], "truth": []}
    wrong = []
    for s in (1, 2):
        card = load_card(tmp_path / "out" / f"site-{s}", f"site-{s}")
        assert card.classes == DIAGNOSES
        tables = {k: load_table(card, f, DIAGNOSES) for k, f in {**card.splits, "truth": card.truth["train"]}.items()}
        for split, images in seen.items():
            for image, labels in zip(tables[split].images, tables[split].labels, strict=True):
                images.append(int(Path(image).stem))
                assert labels.argmax() == images[-1] % 4
        wrong.append((tables["train"].labels != tables["truth"].labels).any())
    assert sorted(seen["truth"]) == list(range(48))
    assert sorted(seen["test"]) == list(range(48, 60))
    assert sorted(wrong) == [False, True]


def test_as_label_sets_a_site_labels_its_own_diagnoses_and_leaves_the_others_blank(brain, tmp_path):
    prepare_label_sets(brain, tmp_path / "out", sites=2, classes_per_site=2, val_share=0.25)
    images, identified = [], []
    for s in (1, 2):
        card = load_card(tmp_path / "out" / f"site-{s}", f"site-{s}")
        tables = {k: load_table(card, f, DIAGNOSES) for k, f in {**card.splits, "truth": card.truth["train"]}.items()}
        assert [len(tables[k].images) for k in ("train", "val", "test")] == [18, 6, 6]
        assert tables["truth"].images == tables["train"].images
        own = card.provenance["site"]["identified"]
        identified += own
        for name, table in tables.items():
            for image, labels in zip(table.images, table.labels, strict=True):
                number = int(Path(image).stem) % 4
                known = name in ("truth", "test") or DIAGNOSES[number] in own
                assert labels.tolist() == ([int(c == number) for c in range(4)] if known else [-1] * 4)
            images += table.images if name != "truth" else []
    assert sorted(identified) == sorted(DIAGNOSES)
    assert sorted(images) == sorted(f"images/{i}.png" for i in range(60))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"val_share": 1.0}, "expected 0 or a number below 1 and at least 2, got 1.0 and 2"),
        ({"classes_per_site": 1}, "expected 0 or a number below 1 and at least 2, got 0.1 and 1"),
        ({"sites": 48}, "site-1: train.csv, column label: expected at least 2 of its classes .*, got "),
    ],
)
def test_label_sets_that_no_site_could_train_on_are_refused(brain, tmp_path, arguments, sentence):
    with pytest.raises(FedMendError, match=sentence):
        prepare_label_sets(brain, tmp_path / "out", **arguments)
    assert not list((tmp_path / "out").glob("site-*"))
