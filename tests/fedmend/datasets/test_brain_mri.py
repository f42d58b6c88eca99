"""The brain tumour converter."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets.brain_mri import CLASSES, DIAGNOSES, prepare, prepare_label_sets, prepare_single_label
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.swapped_labels import SwapNoise
from fedmend.errors import FedMendError


@pytest.fixture
def source(tmp_path):
    rows = ["image,diagnosis,split"]
    for i in range(30):
        rows.append(f"images/{i}.png,{[*CLASSES, 'no_tumor'][i % 4]},{'test' if i >= 24 else 'train'}")
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "labels.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "source"


def _tables(out: Path, site: int):
    card = load_card(out / f"site-{site}", f"site-{site}")
    names = {**card.splits, "truth": card.truth["train"]}
    return {k: load_table(card, file, CLASSES) for k, file in names.items()}


def test_each_site_annotates_one_tumour_and_keeps_the_truth_beside(source, tmp_path):
    prepare(source, tmp_path / "out", val_share=0.25)
    for s in (1, 2, 3):
        tables = _tables(tmp_path / "out", s)
        assert tables["train"].annotated.tolist() == [c == s - 1 for c in range(3)]
        assert tables["test"].annotated.all()
        assert [len(tables[k].images) for k in ("train", "val", "test")] == [6, 2, 2]
        truth, train = tables["truth"], tables["train"]
        assert truth.images == train.images
        np.testing.assert_array_equal(truth.labels[:, s - 1], train.labels[:, s - 1])
        for image, labels in zip(truth.images, truth.labels, strict=True):
            number = int(Path(image).stem)
            assert labels.tolist() == [int(number % 4 == c) for c in range(3)]


def test_every_slice_is_at_one_site_and_in_one_split(source, tmp_path):
    prepare(source, tmp_path / "out")
    images = [i for s in (1, 2, 3) for k, t in _tables(tmp_path / "out", s).items() if k != "truth" for i in t.images]
    assert sorted(images) == sorted(f"images/{i}.png" for i in range(30))


def test_the_same_seed_gives_the_same_sites(source, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare(source, tmp_path / name, seed=seed)
    read = [(tmp_path / name / "site-2" / "train.csv").read_text() for name in "abc"]
    assert read[0] == read[1] != read[2]


def test_the_training_slices_of_a_site_can_be_capped(source, tmp_path):
    prepare(source, tmp_path / "out", val_share=0.25, train_per_site=4)
    tables = _tables(tmp_path / "out", 1)
    assert [len(tables[k].images) for k in ("train", "truth", "val", "test")] == [4, 4, 2, 2]


def test_more_sites_can_annotate_two_tumours_each_and_some_of_them_be_noisy(source, tmp_path):
    noise = SwapNoise(noisy_share=0.5, noise_low=1.0, noise_high=1.0)
    prepare(source, tmp_path / "out", sites=4, annotated_per_site=2, val_share=0, noise=noise)
    wrong = []
    for s in range(4):
        tables = _tables(tmp_path / "out", s + 1)
        known = tables["train"].annotated
        assert known.tolist() == [(c - s) % 3 < 2 for c in range(3)]
        wrong.append(bool((tables["train"].labels != tables["truth"].labels)[:, known].any()))
    assert sum(wrong) == 2


def test_an_unknown_diagnosis_is_refused_by_row(source, tmp_path):
    table = source / "labels.csv"
    table.write_text(table.read_text().replace("images/3.png,no_tumor", "images/3.png,healthy"))
    with pytest.raises(
        FedMendError, match=r"labels.csv row 5, column diagnosis: expected one of .*, got another value"
    ):
        prepare(source, tmp_path / "out")


def test_existing_site_folders_are_not_overwritten(source, tmp_path):
    prepare(source, tmp_path / "out")
    with pytest.raises(FedMendError, match="expected a folder without site folders"):
        prepare(source, tmp_path / "out")


@pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA")
def test_the_real_set_has_its_published_counts(tmp_path):
    prepare(Path(os.environ["FEDMEND_REAL_DATA"]) / "brain_mri", tmp_path / "out", val_share=0)
    truth = np.concatenate([_tables(tmp_path / "out", s)[k].labels for s in (1, 2, 3) for k in ("truth", "test")])
    assert truth.sum(0).tolist() == [886, 823, 834]
    assert len(truth) == 2870


def test_as_single_label_data_the_four_diagnoses_are_dealt_to_the_sites_and_the_test_split_stays(source, tmp_path):
    protocol = NoiseProtocol(sites=2, presence=1.0, noisy_share=0.5, noise="uniform", noise_low=1.0, noise_high=1.0)
    prepare_single_label(source, tmp_path / "out", protocol=protocol)
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
    assert sorted(seen["truth"]) == list(range(24))
    assert sorted(seen["test"]) == list(range(24, 30))
    assert sorted(wrong) == [False, True]


def test_as_label_sets_a_site_labels_its_own_diagnoses_and_leaves_the_others_blank(source, tmp_path):
    prepare_label_sets(source, tmp_path / "out", sites=2, classes_per_site=2, val_share=0.25)
    images, identified = [], []
    for s in (1, 2):
        card = load_card(tmp_path / "out" / f"site-{s}", f"site-{s}")
        tables = {k: load_table(card, f, DIAGNOSES) for k, f in {**card.splits, "truth": card.truth["train"]}.items()}
        assert [len(tables[k].images) for k in ("train", "val", "test")] == [9, 3, 3]
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
    assert sorted(images) == sorted(f"images/{i}.png" for i in range(30))
    with pytest.raises(FedMendError, match="expected a folder without site folders"):
        prepare_label_sets(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"val_share": 1.0}, "expected 0 or a number below 1 and at least 2, got 1.0 and 2"),
        ({"classes_per_site": 1}, "expected 0 or a number below 1 and at least 2, got 0.1 and 1"),
        ({"sites": 24}, "site-1: train.csv, column label: expected at least 2 classes, got "),
    ],
)
def test_label_sets_that_no_site_could_train_on_are_refused(source, tmp_path, arguments, sentence):
    with pytest.raises(FedMendError, match=sentence):
        prepare_label_sets(source, tmp_path / "out", **arguments)
    assert not list((tmp_path / "out").glob("site-*"))
