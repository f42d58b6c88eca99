"""MedMNIST's files as site folders."""

import json

import numpy as np
import pytest
from factories import refused
from medmnist_factories import SIZES, make_medmnist

from fedmend.data.card import load_card
from fedmend.data.readers import read_image
from fedmend.data.tables import load_table
from fedmend.datasets import medmnist_files
from fedmend.datasets.medmnist import prepare, prepare_single_label
from fedmend.datasets.medmnist_files import KNOWN
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.labels import NOT_ANNOTATED

UNIFORM = NoiseProtocol(sites=2, presence=1, noisy_share=0.5, noise="uniform")


def tables(out, site):
    card = load_card(out / f"site-{site}", f"site-{site}")
    files = {**card.splits, "truth": card.truth["train"]}
    return card, {name: load_table(card, file, card.classes) for name, file in files.items()}


def number(image):
    return int(image.removesuffix(".png").rsplit("-")[1])


def test_each_site_has_the_columns_of_its_own_classes_and_the_truth_beside(tmp_path):
    prepare(make_medmnist(tmp_path / "x.npz"), tmp_path / "out", sites=2)
    known = []
    for site in (1, 2):
        card, found = tables(tmp_path / "out", site)
        assert card.classes == ("class_0", "class_1", "class_2", "class_3")
        known.append(found["train"].annotated)
        assert found["test"].annotated.all()
        assert [len(found[split].images) for split in SIZES] == [20, 5, 10]
        for split in ("truth", "test"):
            for image, labels in zip(found[split].images, found[split].labels, strict=True):
                assert labels.tolist() == [int(number(image) % 4 == c) for c in range(4)]
        mine = known[-1]
        assert np.array_equal(found["train"].labels[:, mine], found["truth"].labels[:, mine])
    assert [mine.sum() for mine in known] == [2, 2]
    assert (known[0] | known[1]).all()


def test_every_image_is_at_one_site_and_in_one_split_and_has_its_own_pixels(tmp_path):
    source = make_medmnist(tmp_path / "x.npz", size=9)
    prepare(source, tmp_path / "out", sites=2)
    names = []
    with np.load(source) as arrays:
        for site in (1, 2):
            card, found = tables(tmp_path / "out", site)
            for split in SIZES:
                for image in found[split].images:
                    assert image.startswith(split)
                    stored = arrays[f"{split}_images"][number(image)]
                    assert np.array_equal(read_image(card.image_root / image, None), stored)
                    names.append(image)
    assert len(set(names)) == len(names) == sum(SIZES.values())


def test_colour_is_kept(tmp_path):
    source = make_medmnist(tmp_path / "x.npz", color=True)
    prepare(source, tmp_path / "out", sites=2)
    card, found = tables(tmp_path / "out", 1)
    image = found["train"].images[0]
    assert card.color
    with np.load(source) as arrays:
        stored = arrays["train_images"][number(image)]
    assert np.array_equal(read_image(card.image_root / image, None, color=True), stored)


def test_several_classes_an_image_stay_several(tmp_path):
    prepare(make_medmnist(tmp_path / "x.npz", several=True), tmp_path / "out", sites=2)
    _, found = tables(tmp_path / "out", 2)
    for image, labels in zip(found["truth"].images, found["truth"].labels, strict=True):
        own = {number(image) % 4} | ({(number(image) + 1) % 4} if number(image) % 2 == 0 else set())
        assert set(np.flatnonzero(labels).tolist()) == own


def test_with_label_sets_other_classes_are_blank(tmp_path):
    prepare(make_medmnist(tmp_path / "x.npz"), tmp_path / "out", sites=3, classes_per_site=2, label_sets=True)
    card, found = tables(tmp_path / "out", 1)
    own = {card.classes.index(name) for name in card.provenance["site"]["classes"]}
    assert len(own) == 2
    for image, labels in zip(found["train"].images, found["train"].labels, strict=True):
        assert (labels == NOT_ANNOTATED).all() == (number(image) % 4 not in own)
    assert not (found["test"].labels == NOT_ANNOTATED).any()


def test_some_sites_are_noisy_and_only_they_have_wrong_labels(tmp_path):
    prepare_single_label(make_medmnist(tmp_path / "x.npz"), tmp_path / "out", protocol=UNIFORM)
    wrong = {}
    for site in (1, 2):
        card, found = tables(tmp_path / "out", site)
        assert {image.split("-")[0] for image in found["train"].images} == {"train"}
        assert {image.split("-")[0] for image in found["test"].images} == {"test"}
        wrong[card.provenance["site"]["noisy"]] = (found["train"].labels != found["truth"].labels).any()
    assert wrong == {True: True, False: False}


def test_only_images_in_use_are_written(tmp_path):
    prepare(make_medmnist(tmp_path / "x.npz"), tmp_path / "out", sites=2, train_per_site=8)
    assert len(list((tmp_path / "out" / "images").iterdir())) == 2 * 8 + SIZES["val"] + SIZES["test"]


@pytest.mark.parametrize("stem", ["bloodmnist", "bloodmnist_64"])
def test_a_set_of_medmnist_has_its_class_names_and_says_where_it_is_from(tmp_path, stem):
    prepare(make_medmnist(tmp_path / f"{stem}.npz", classes=8), tmp_path / "out", sites=2)
    about = json.loads((tmp_path / "out" / "site-1" / "site.json").read_text())
    assert about["classes"] == list(KNOWN["bloodmnist"].classes)
    assert about["provenance"]["source"] == "MedMNIST v2, bloodmnist of Acevedo et al."
    assert about["provenance"]["licence"] == "CC BY 4.0"
    assert "10.1038/s41597-022-01721-8" in about["provenance"]["citation"]


SOURCE = "medmnist, argument source: expected "
PICKLED = np.array([{"a": 1}], dtype=object)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"train_images": PICKLED}, "numbers in train_images, got Python objects"),
        ({"val_labels": PICKLED}, "numbers in val_labels, got Python objects"),
        ({"test_labels": None}, "the array test_labels in a format of numpy, got none"),
        (
            {"train_images": np.zeros((40, 8, 8, 8), np.uint8)},
            "2-D images in train_images, (N, H, W) or (N, H, W, 3), got 4 dimensions; 3-D sets are not supported",
        ),
        ({"val_images": np.zeros((10, 8, 8))}, "numbers of type uint8 in val_images, got others"),
        ({"val_images": np.zeros((10, 9, 9), np.uint8)}, "images of one shape in all splits, got several"),
        ({"val_images": np.asfortranarray(np.zeros((10, 8, 8), np.uint8))}, "val_images in C order, got Fortran order"),
        (
            {"train_images": np.zeros((40, 1, 1025), np.uint8)},
            "1 to 1000000 images of at most 1024 pixels in train_images, got others",
        ),
        (
            {"train_labels": np.zeros((39, 1), np.uint8)},
            "40 rows of whole numbers in train_labels, got another array",
        ),
        ({"train_labels": np.full((40, 1), -1)}, "numbers from 0 to 999 in train_labels, got others"),
        ({"train_labels": np.full((40, 1), 10**6)}, "numbers from 0 to 999 in train_labels, got others"),
        ({"val_labels": np.zeros((10, 2), np.uint8)}, "labels of one shape in all splits, got several"),
    ],
)
def test_arrays_that_are_not_as_described_are_refused(tmp_path, arrays, sentence):
    source = make_medmnist(tmp_path / "x.npz", **arrays)
    with refused(SOURCE + sentence):
        prepare(source, tmp_path / "out", sites=2)
    assert not (tmp_path / "out").exists()


def test_labels_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(medmnist_files, "MOST_BYTES", 39)
    with refused(SOURCE + "40 rows of whole numbers in train_labels, got another array"):
        prepare(make_medmnist(tmp_path / "x.npz"), tmp_path / "out", sites=2)


def test_labels_that_are_not_the_sets_are_refused(tmp_path):
    with refused(SOURCE + "the labels of octmnist, got others"):
        prepare(make_medmnist(tmp_path / "octmnist.npz", classes=5), tmp_path / "out")
    with refused(SOURCE + "labels of at least 2 classes, got others"):
        prepare(make_medmnist(tmp_path / "x.npz", classes=1), tmp_path / "out")


def test_a_missing_file_is_refused(tmp_path):
    with refused(SOURCE + "a file, got none"):
        prepare(tmp_path / "x.npz", tmp_path / "out")


def test_a_file_cut_anywhere_or_of_another_kind_is_refused_and_leaves_nothing(tmp_path):
    whole = make_medmnist(tmp_path / "x.npz").read_bytes()
    for length in range(0, len(whole), len(whole) // 20):
        (tmp_path / "x.npz").write_bytes(whole[:length])
        with refused(SOURCE + "an .npz file, got a damaged one or another (BadZipFile)"):
            prepare(tmp_path / "x.npz", tmp_path / "out", sites=2)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_damaged_pixels_leave_nothing_behind(tmp_path):
    source = make_medmnist(tmp_path / "x.npz")
    content = bytearray(source.read_bytes())
    start = content.index(b"test_images.npy")
    content[start + 200 : start + 260] = bytes(60)
    source.write_bytes(content)
    with pytest.raises(Exception, match=r"expected an .npz file, got a damaged one or another"):
        prepare(source, tmp_path / "out", sites=2)
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_a_class_that_a_site_would_not_see_is_refused(tmp_path):
    source = make_medmnist(tmp_path / "x.npz", sizes={"train": 9, "val": 4, "test": 4}, classes=8)
    with pytest.raises(Exception, match=r"^site-\d: train.csv, column class_\d: expected both 0 and 1, got only 0$"):
        prepare(source, tmp_path / "out", sites=3)


def test_several_classes_an_image_cannot_be_noisy_or_blank(tmp_path):
    source = make_medmnist(tmp_path / "x.npz", several=True)
    for write, options in ((prepare, {"label_sets": True}), (prepare_single_label, {"protocol": UNIFORM})):
        with pytest.raises(Exception, match=r"expected a set with one class an image, got one with several"):
            write(source, tmp_path / "out", **options)
