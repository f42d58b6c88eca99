import csv
import json
import shutil

import numpy as np
import pytest
import torch
from factories import refused
from isic_rows import ISIC_2018 as ROWS
from rsna_ich_factories import content

from fedmend.data.card import load_card
from fedmend.data.site import Opening, load_site
from fedmend.data.tables import load_table
from fedmend.datasets import isic2018
from fedmend.datasets.isic2018 import CLASSES, FOLDER, LESIONS, SOURCE, TABLE, DiagnosisProtocol
from fedmend.phantoms.dermoscopy import write_isic2018 as draw

TABLE_NAME = TABLE.rpartition("/")[2]
CLASS_OF = {f"{image}.jpg": name for image, name, _ in ROWS}
LESION_OF = {f"{image}.jpg": lesion for image, _, lesion in ROWS}


def prepare(source, out, *, source_name=SOURCE, progress=None, **protocol):
    isic2018.prepare(source, out, DiagnosisProtocol(**protocol), source_name=source_name, progress=progress)


def one_hot(name):
    return [str(float(c == name)) for c in CLASSES]


@pytest.fixture
def source(tmp_path, write_isic2018):
    return write_isic2018(tmp_path / "download")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "sites"


def rows(file):
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def tables(folder):
    names = ("train.csv", "val.csv", "test.csv", "truth/train.csv")
    return {name: rows(folder / name) for name in names if (folder / name).is_file()}


def folders(out, sites=5):
    return [out / f"site-{s + 1}" for s in range(sites)]


def identified(folder):
    return json.loads((folder / "site.json").read_text())["provenance"]["site"]["identified"]


def images(out, split, sites=5):
    """The pictures of a split at each site."""
    return [[row["image"] for row in rows(folder / f"{split}.csv")] for folder in folders(out, sites)]


def test_lesions_are_split_7_1_2_and_dealt_evenly_to_five_sites(source, out):
    prepare(source, out)
    found = {split: images(out, split) for split in ("train", "val", "test")}
    lesions = {k: [len({LESION_OF[image] for image in site}) for site in sites] for k, sites in found.items()}
    assert lesions == {"train": [20, 20, 20, 19, 19], "val": [3, 3, 3, 3, 2], "test": [6, 6, 6, 5, 5]}
    parts = [site for sites in found.values() for site in sites]
    assert all(len(part) == 2 * len({LESION_OF[image] for image in part}) for part in parts)  # whole lesions
    assert sorted(image for part in parts for image in part) == sorted(CLASS_OF)


def test_the_split_by_image_separates_pictures_of_a_lesion(source, out):
    prepare(source, out, split="image")
    found = {split: images(out, split) for split in ("train", "val", "test")}
    assert {k: [len(site) for site in sites] for k, sites in found.items()} == {
        "train": [40, 39, 39, 39, 39],
        "val": [6, 6, 6, 5, 5],
        "test": [12, 11, 11, 11, 11],
    }
    train, test = ({LESION_OF[i] for site in found[split] for i in site} for split in ("train", "test"))
    assert train & test


def test_a_label_is_written_where_its_class_is_identified_and_blank_elsewhere(source, out):
    prepare(source, out)
    for folder in folders(out):
        own, found = identified(folder), tables(folder)
        assert len(own) == 3
        for name in ("train.csv", "val.csv"):
            expected = [CLASS_OF[row["image"]] for row in found[name]]
            assert [row["label"] for row in found[name]] == [c if c in own else "" for c in expected]
        for name in ("test.csv", "truth/train.csv"):
            assert [row["label"] for row in found[name]] == [CLASS_OF[row["image"]] for row in found[name]]
        assert [row["image"] for row in found["truth/train.csv"]] == [row["image"] for row in found["train.csv"]]
        assert all(row["patient"] == LESION_OF[row["image"]] for table in found.values() for row in table)
    assert set().union(*(identified(folder) for folder in folders(out))) == set(CLASSES)


def test_the_random_assignment_is_drawn_with_the_seed(source, out, monkeypatch):
    asked = []

    def draw(num_sites, num_classes, per_site, *, seed):
        asked.append((num_sites, num_classes, per_site, seed))
        return np.arange(7)[None, :] // 4 == np.arange(2)[:, None]

    monkeypatch.setattr(isic2018, "identified_classes", draw)
    prepare(source, out, sites=2, classes_per_site=4, seed=8)
    assert asked == [(2, 7, 4, 8)]
    assert [identified(folder) for folder in folders(out, 2)] == [list(CLASSES[:4]), list(CLASSES[4:])]


def test_the_released_assignment_is_that_of_the_papers_code(source, out):
    prepare(source, out, assignment="released", seed=1)
    assert [set(identified(folder)) for folder in folders(out)] == [
        {"BKL", "VASC", "NV"},
        {"NV", "DF", "BCC"},
        {"MEL", "DF", "BCC"},
        {"AKIEC", "BCC", "DF"},
        {"BCC", "BKL", "AKIEC"},
    ]


def test_the_card_says_how_the_folder_was_made(source, out):
    lines = []
    prepare(source, out, assignment="released", source_name="PHANTOM", progress=lines.append)
    card = load_card(out / "site-1", "site-1")
    assert (card.kind, card.classes, card.color, card.modality) == ("singlelabel", CLASSES, True, "dermoscopy")
    assert card.splits == {split: f"{split}.csv" for split in ("train", "val", "test")}
    assert card.truth == {"train": "truth/train.csv"}
    labelled = sum(row["label"] != "" for row in rows(out / "site-1" / "train.csv"))
    assert card.provenance == {
        "source": "PHANTOM",
        "arguments": {
            "sites": 5,
            "classes_per_site": 3,
            "assignment": "released",
            "split": "lesion",
            "test_share": 0.2,
            "val_share": 0.1,
            "train_per_site": None,
            "seed": 523,
        },
        "site": {
            "identified": ["NV", "BKL", "VASC"],
            "sizes": {"train": 40, "val": 6, "test": 12},
            "labelled": labelled,
        },
    }
    assert lines == ["280 pictures of 140 lesions", "5 site folders written"]


def test_the_result_does_not_depend_on_the_order_of_rows(source, out, tmp_path, write_isic2018):
    prepare(source, out)
    prepare(write_isic2018(tmp_path / "reversed", ROWS[::-1]), tmp_path / "again")
    one, other = content(out), content(tmp_path / "again")
    assert {k: v for k, v in one.items() if k.endswith("csv")} == {k: v for k, v in other.items() if k.endswith("csv")}


def test_a_cap_shrinks_train_and_val_alike_and_not_test(source, out, tmp_path):
    prepare(source, out, split="image")
    prepare(source, tmp_path / "capped", split="image", train_per_site=28)
    for folder, capped in zip(folders(out), folders(tmp_path / "capped"), strict=True):
        every, some = tables(folder), tables(capped)
        assert (len(some["train.csv"]), len(some["val.csv"])) == (28, 4)
        assert some["test.csv"] == every["test.csv"]
        for name in ("train.csv", "val.csv"):
            assert all(row in every[name] for row in some[name])


def test_no_validation_split_is_written_where_its_share_is_0(source, out):
    prepare(source, out, val_share=0)
    assert sorted(tables(out / "site-1")) == ["test.csv", "train.csv", "truth/train.csv"]
    assert sorted(load_card(out / "site-1", "site-1").splits) == ["test", "train"]
    assert sum(map(len, images(out, "train"))) == 224


def test_the_lesions_may_lie_in_the_folder_of_the_classes(source, out, tmp_path):
    prepare(source, out)
    shutil.move(source / LESIONS, (source / TABLE).parent)
    prepare(source, tmp_path / "again")
    assert content(tmp_path / "again") == content(out)


@pytest.mark.parametrize("name", [FOLDER, TABLE, LESIONS])
def test_a_download_that_lacks_a_part_is_refused(source, out, name):
    (source / name).rename(source / "elsewhere")
    with refused(f"isic2018, argument source: expected {name} in it, not found"):
        prepare(source, out)
    assert not out.exists()


def test_a_site_with_labels_of_one_class_in_its_training_part_is_refused(tmp_path, out, write_isic2018):
    source = write_isic2018(tmp_path / "download", [(image, "NV", lesion) for image, _, lesion in ROWS])
    with refused("site-1: train.csv, column label: expected at least 2 of its classes ['NV', 'BKL', 'VASC'], got 1"):
        prepare(source, out, assignment="released")
    assert not out.exists()


def test_too_few_lesions_are_refused(tmp_path, out, write_isic2018):
    source = write_isic2018(tmp_path / "download", ROWS[:40])
    with refused("isic2018: expected at least 5 lesions in the val split, one for each site, got 2"):
        prepare(source, out)
    with refused("isic2018: expected at least 5 images in the val split, one for each site, got 4"):
        prepare(source, out, split="image")
    with refused("isic2018: expected at least 5 lesions in the test split, one for each site, got 4"):
        prepare(source, out, val_share=0)
    with refused("isic2018: expected at least 5 lesions in the train split, one for each site, got 0"):
        prepare(write_isic2018(tmp_path / "empty", []), out)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("assignment", "seed", "'random' or 'released'"),
        ("split", "patient", "'lesion' or 'image'"),
        ("classes_per_site", 1, "2..7"),
        ("classes_per_site", 8, "2..7"),
        ("test_share", 0, "a number between 0 and 1"),
        ("test_share", 1, "a number between 0 and 1"),
        ("val_share", -0.1, "0 or a number that leaves a share for training"),
        ("val_share", 0.8, "0 or a number that leaves a share for training"),
        ("train_per_site", 1, "None or at least 2"),
        ("seed", -1, "at least 0"),
    ],
)
def test_a_wrong_argument_is_refused(source, out, name, value, expected):
    with refused(f"isic2018, argument {name}: expected {expected}, got {value!r}"):
        prepare(source, out, **{name: value})


@pytest.mark.parametrize(("name", "value", "expected"), [("sites", 4, 5), ("classes_per_site", 2, 3)])
def test_the_released_assignment_is_for_five_sites_with_three_classes(source, out, name, value, expected):
    with refused(f"isic2018, argument {name}: expected {expected} with the released assignment, got {value}"):
        prepare(source, out, assignment="released", **{name: value})


def test_a_class_that_no_site_can_identify_is_refused(source, out):
    with refused(
        "identified classes: expected num_sites >= 1, per_site in 1..7, num_sites * per_site >= 7, the number of"
        " classes, and seed >= 0, got 3, 2, 6 and 523"
    ):
        prepare(source, out, sites=3, classes_per_site=2)


def test_the_phantom_becomes_sites_that_a_job_can_load(tmp_path, out):
    source = tmp_path / "download"
    draw(source, images=120, size=32, processes=1)
    prepare(source, out, sites=3, classes_per_site=4)
    for folder in folders(out, 3):
        opening = Opening(tmp_path / "cache", 16, torch.device("cpu"))
        data = load_site(load_card(folder, folder.name), CLASSES, opening)
        assert data.kind == "singlelabel"
        assert data.train.images.shape == (len(data.train), 16, 16, 3)
        labelled = data.train.labels[(data.train.labels >= 0).all(axis=1)]
        assert 0 < len(labelled) < len(data.train)
        assert {CLASSES[c] for c in labelled.argmax(axis=1)} <= set(identified(folder))
        assert (data.evaluation["test"].labels.sum(axis=1) == 1).all()
        truth = load_table(load_card(folder, folder.name), "truth/train.csv", CLASSES)
        assert truth.images == data.train.table.images
        assert (truth.labels.sum(axis=1) == 1).all()
