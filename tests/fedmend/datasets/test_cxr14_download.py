import pytest
from cxr14_factories import (
    BASE,
    HEADER,
    film_rows,
    load,
    name,
    prepare,
    write_rows,
)
from factories import refused

from fedmend.datasets.cxr14 import CLASSES

DOWNLOAD = "cxr14"


def test_films_are_found_in_the_folders_of_the_archives(cxr14, own_copy, tmp_path):
    films = sorted((own_copy / "images").iterdir())
    for number, own in (("001", films[:9]), ("002", films[9:])):
        folder = own_copy / f"images_{number}" / "images"
        folder.mkdir(parents=True)
        for film in own:
            film.rename(folder / film.name)
    (own_copy / "images").rmdir()
    prepare(own_copy, tmp_path / "out", **BASE)
    prepare(cxr14, tmp_path / "plain", **BASE)
    images, plain = load(tmp_path / "out", 1).images, load(tmp_path / "plain", 1).images
    assert {image.split("/")[0] for image in images} == {"images_001", "images_002"}
    assert [image.split("/")[-1] for image in images] == [image.split("/")[-1] for image in plain]


def test_the_newer_name_of_the_table_is_accepted(cxr14, own_copy, tmp_path):
    (own_copy / "Data_Entry_2017.csv").rename(own_copy / "Data_Entry_2017_v2020.csv")
    prepare(own_copy, tmp_path / "out", **BASE)
    assert len(load(tmp_path / "out", 1).images) == 6


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("Data_Entry_2017.csv", "expected Data_Entry_2017.csv in it, not found"),
        ("test_list.txt", "expected test_list.txt in it for split 'official', not found"),
        ("train_val_list.txt", "expected train_val_list.txt in it for split 'official', not found"),
        ("images", "expected images/ or images_001/images/ and so on in it, not found"),
    ],
)
def test_a_download_without_one_of_its_parts_is_refused(own_copy, tmp_path, file, sentence):
    (own_copy / file).rename(own_copy / "elsewhere")
    with refused(f"cxr14, argument source: {sentence}"):
        prepare(own_copy, tmp_path / "out", **BASE)
    assert not (tmp_path / "out").exists()


def test_another_header_is_refused(own_copy, tmp_path):
    write_rows(own_copy, film_rows(), header=HEADER.replace("Finding Labels", "Labels"))
    with refused(
        "Data_Entry_2017.csv row 1: expected a header with ['Image Index', 'Finding Labels', 'Patient ID', 'View"
        " Position'], got one without ['Finding Labels']"
    ):
        prepare(own_copy, tmp_path / "out", **BASE)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("Mass|Pneumothorx", "'Pneumothorx'"),
        ("Mass|No Finding", "'No Finding'"),
        ("00000001_000.png", "text of 16 characters"),
        ("", "text of 0 characters"),
    ],
)
def test_an_unknown_finding_is_refused_by_its_row_and_name(own_copy, tmp_path, text, got):
    rows = film_rows()
    rows[4][1] = text
    write_rows(own_copy, rows)
    with refused(
        "Data_Entry_2017.csv row 6, column Finding Labels: expected 'No Finding' alone or names out of"
        f" {list(CLASSES)}, got {got}"
    ):
        prepare(own_copy, tmp_path / "out", **BASE)


@pytest.mark.parametrize(
    ("row", "cells", "sentence"),
    [
        (3, {0: name(0, 0)}, "expected each image once, got the one of row 2"),
        (3, {0: ""}, "expected an image and a patient, got a blank"),
        (3, {3: " "}, "expected an image and a patient, got a blank"),
        (3, {0: "x.png"}, "expected the image in one of train_val_list.txt and test_list.txt, found it in neither"),
        # The first patient's second film now belongs to a patient of the test list.
        (
            4,
            {3: "0"},
            "expected all images of a patient in one of train_val_list.txt and test_list.txt, found them in both",
        ),
    ],
)
def test_a_row_that_contradicts_the_download_is_refused(own_copy, tmp_path, row, cells, sentence):
    rows = film_rows()
    for column, value in cells.items():
        rows[row - 2][column] = value
    write_rows(own_copy, rows)
    with refused(f"Data_Entry_2017.csv row {row}: {sentence}"):
        prepare(own_copy, tmp_path / "out", **BASE)


def test_a_list_in_another_encoding_is_refused(own_copy, tmp_path):
    file = own_copy / "test_list.txt"
    file.write_text(file.read_text(), encoding="utf-16")
    with refused("test_list.txt: expected UTF-8 text, got UTF-16; save it as CSV UTF-8"):
        prepare(own_copy, tmp_path / "out", **BASE)


def test_an_image_in_both_lists_is_refused(own_copy, tmp_path):
    with open(own_copy / "test_list.txt", "a") as stream:
        stream.write(f"\n{name(2, 0)}\n")
    with refused(
        "Data_Entry_2017.csv row 6: expected the image in one of train_val_list.txt and test_list.txt, found it in both"
    ):
        prepare(own_copy, tmp_path / "out", **BASE)


def test_listed_images_without_file_are_counted_and_only_those_of_the_view(own_copy, tmp_path):
    (own_copy / "images" / name(2, 1)).unlink()
    (own_copy / "images" / name(4, 1)).unlink()
    with refused("Data_Entry_2017.csv: expected a file for each of 20 images, got none for 2, the first in row 7"):
        prepare(own_copy, tmp_path / "out", **BASE)
    prepare(own_copy, tmp_path / "out", **BASE, view="PA")
