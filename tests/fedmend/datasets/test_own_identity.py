"""One patient, one image: however a hospital's table writes them."""

import csv
import json
import os
import unicodedata

import pytest
from factories import refused, write_png
from nifti_factories import voxels, write_nifti

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets import own_datalist
from fedmend.datasets.own_csv import prepare
from fedmend.datasets.own_patients import guess_pattern, kept_with, patients_of
from fedmend.datasets.own_site import SiteChoices
from fedmend.errors import FedMendError

CHOICES = SiteChoices(test_share=0.3, val_share=0.2)


@pytest.fixture
def site(tmp_path):
    """Writes pictures and a table of image, patient and label; gives split → its table, the notes and what was said."""

    def make(rows, *, files=None, choices=CHOICES):
        for number, name in enumerate([row[0] for row in rows] if files is None else files):
            (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            write_png(tmp_path / "data" / name, number, 40)
        with open(tmp_path / "labels.csv", "w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("image", "patient", "edema"), *rows])
        said = []
        prepare(
            tmp_path / "labels.csv", tmp_path / "out", images=tmp_path / "data", choices=choices, progress=said.append
        )
        card = load_card(tmp_path / "out", "site-1")
        notes = json.loads((tmp_path / "out" / "site.json").read_text())["notes"]
        return {n: load_table(card, file, card.classes) for n, file in card.splits.items()}, notes, said

    return make


def patients_in(tables):
    """The splits of each patient key, and the patient of each image."""
    patient = {image: key for t in tables.values() for image, key in zip(t.images, t.patients, strict=True)}
    splits = {}
    for name, table in tables.items():
        for key in table.patients:
            splits.setdefault(key, set()).add(name)
    return splits, patient


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [
        ("{}", "{}.0", 0),
        ("{}", "{:04d}", 10),
        ("p{:02d}", "P{:02d}", 10),
        ("\u00e9{}", "e\u0301{}", 0),
        ("{}", " {},0", 10),
        ("P-{}", "\u200eP-{}", 0),
        ("P-{}", "P\u2013{}", 10),
        ("P-{}", "\u0420-{}", 10),  # a Cyrillic letter
    ],
)
def test_a_patient_in_two_writings_is_one(site, first, second, warned):
    rows = [(f"{i}.png", (first if i < 10 else second).format(i % 10 + 1), i % 2) for i in range(20)]
    tables, notes, said = site(rows)
    splits, patient = patients_in(tables)
    assert [len(own) for own in splits.values()] == [1] * 10
    assert all(patient[f"{i}.png"] == patient[f"{i + 10}.png"] for i in range(10))
    line = f"{warned} ids differ from another one in case, leading zeros, the writing of a number or signs that look"
    assert any(text.startswith(line) for text in said) == bool(warned)
    assert notes.get("patients", "").startswith(line if warned else "")


def test_words_for_a_missing_value_name_no_patient(site):
    rows = [(f"{i}.png", "nan" if i < 3 else i // 2, 1) for i in range(10)]
    tables, notes, said = site(rows)
    _, patient = patients_in(tables)
    assert [patient[f"{i}.png"] == "" for i in range(10)] == [True] * 3 + [False] * 7
    _, about = patients_of(["p1", "", "p2"], ["a", "b", "c"], None, said.append)
    assert about["patients"].endswith("; if cells of a spreadsheet were merged, fill them down first")
    line = "WARNING: no patient is known of 3 of 10 images, so that one patient may be in several splits; name"
    assert notes["patients"] == f"{line} them in a column or field patient (csv: --columns patient=COLUMN)"
    assert notes["patients"] in said


def test_words_for_nobody_name_no_patient_but_a_single_sign_does():
    ids = ["unknown", "Anonymous", "unbekannt", "0", "X", "p1", "xxx"]
    keys, notes = patients_of(ids, list("abcdefg"), None, lambda line: None)
    assert keys == ["", "", "", "0", "X", "p1", ""]
    assert notes["patients"].startswith("WARNING: no patient is known of 4 of 7 images")


def test_images_of_no_known_patient_stay_with_their_study_or_file():
    images = ["a.nii#0", "a.nii#1", "b.png", "c.nii#7", "c.nii#8"]
    assert kept_with([""] * 5, images, ()) == ["alone 0", "alone 0", "alone 2", "alone 3", "alone 3"]
    found = kept_with(["", "p1", "", "p2", "p3"], images, ())
    assert found == ["patient p1", "patient p1", "alone 2", "patient p2", "patient p3"]
    studies = ["s1", "s1", "s1", "3.0", ""]
    assert kept_with([""] * 5, images, studies) == [*["alone s1"] * 3, "alone 3", "alone row 3"]


@pytest.mark.parametrize("named", [0, 1])
def test_slices_of_a_volume_are_in_one_split_where_few_or_no_patients_are_known(tmp_path, named):
    rows = [(f"{v}.nii#{k}", k % 2, f"p{v}" if k < named else "") for v in range(10) for k in range(4)]
    for v in range(10):
        write_nifti(tmp_path / f"{v}.nii", voxels(v))
    with open(tmp_path / "labels.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("image", "edema", "patient"), *rows])
    items = [{"image": image, "label": label, "patient": patient} for image, label, patient in rows]
    (tmp_path / "list.json").write_text(json.dumps({"training": items}))
    prepare(tmp_path / "labels.csv", tmp_path / "a", choices=CHOICES)
    own_datalist.prepare(tmp_path / "list.json", tmp_path / "b", choices=CHOICES)
    for folder in (tmp_path / "a", tmp_path / "b"):
        card = load_card(folder, "site-1")
        tables = [load_table(card, file, card.classes) for file in card.splits.values()]
        volumes = [{image.partition("#")[0] for image in table.images} for table in tables]
        assert sum(map(len, volumes)) == len(set.union(*volumes)) == 10


def test_paths_that_name_patients_are_a_hint_and_an_option_takes_them(site, tmp_path):
    rows = [(f"train/patient{i // 2:05d}/study1/{i % 2}.png", "", i % 2) for i in range(12)]
    _, notes, _ = site(rows)
    hint = r"the paths seem to name them: --patient-from-path '(?i)patient[-_ ]?\d+'"
    assert notes["patients"].endswith(hint)
    assert "drawn with seed 1037 by image, as no patients are known" in notes["splits"]
    os.rename(tmp_path / "out", tmp_path / "first")
    tables, notes, _ = site(rows, choices=SiteChoices(test_share=0.3, patient_from_path=r"(patient\d+)/study"))
    splits, patient = patients_in(tables)
    assert [len(own) for own in splits.values()] == [1] * 6
    assert all(patient[rows[i][0]] == patient[rows[i + 1][0]] for i in range(0, 12, 2))
    assert "patients" not in notes


def test_patients_of_paths_are_not_mixed_with_those_of_a_column_that_lacks_some():
    images, told = [f"patient{i // 2:02d}/{i}.png" for i in range(2, 6)], []
    keys, notes = patients_of(["1", "", "2", ""], images, r"patient\d+", told.append)
    assert keys == ["patient01", "patient01", "patient02", "patient02"]
    assert told == ["patients are taken from all paths, as 2 images have none in the table or list"]
    assert notes == {"patients": told[0]}
    keys, notes = patients_of(["1", "1", "2", "2"], images, r"patient\d+", told.append)
    assert keys == ["1", "1", "2", "2"]
    assert told[1:] == ["the table or list names all patients, so that --patient-from-path is not used"]
    assert notes == {"patients": told[1]}
    words = "a part of the path of every image whose patient the table or list names"
    with refused(f"argument patient_from_path: expected {words}, got none in 1; or name all patients in the column"):
        patients_of(["1", "", "2", ""], [*images[:2], "7.png", "8.png"], r"patient\d+", print)


def test_a_pattern_that_is_none_or_finds_nothing_is_refused():
    with refused("argument patient_from_path: expected a regular expression, got another text"):
        patients_of([""], ["a.png"], "(", print)
    with refused("argument patient_from_path: expected a part of the images' paths, got none that it finds"):
        patients_of([""], ["a.png"], "patient", print)


@pytest.mark.parametrize(
    ("images", "pattern"),
    [
        (["patient1/a.png", "Patient2/b.png"], r"(?i)patient[-_ ]?\d+"),
        (["sub-01_T1.nii", "sub-02_T1.nii"], r"(?i)(?<![a-z])sub[-_ ]?\d+"),
        (["patient1/a.png", "b.png"], None),
        (["patient1/a.png", "patient1/b.png"], None),
        (["a/1.png", "a/2.png"], None),
        ([], None),
    ],
)
def test_patients_in_paths_are_guessed(images, pattern):
    assert guess_pattern(images) == pattern


@pytest.mark.parametrize("other", ["./a/1.png", "a//1.png", "a/x/../1.png", "a\\1.png"])
def test_an_image_in_two_spellings_is_one(site, other):
    files = ["a/1.png", "a/2.png"]
    tables, _, said = site(
        [("a/1.png", 1, 1), (other, 1, 1), ("a/2.png", 2, 0)], files=files, choices=SiteChoices(val_share=0)
    )
    assert "1 rows name an image a second time and are left out" in said
    assert sorted(image for table in tables.values() for image in table.images) == files


@pytest.mark.parametrize("other", ["./a/1.png", "a\\1.png"])
def test_an_image_with_two_labels_is_refused_however_it_is_spelled(site, other):
    with refused("labels.csv row 3: expected the labels of row 2, which names the same image, got others"):
        site([("a/1.png", 1, 1), (other, 1, 0)], files=["a/1.png"])


def test_a_link_that_leads_to_itself_is_no_image(site, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").symlink_to("a.png")
    with refused("labels.csv row 2, column image: expected a file below the folder of the images, not found"):
        site([("a.png", 1, 1)], files=[])


def test_a_name_without_its_ending_is_refused_with_the_ending_that_is_there(site):
    sentence = "labels.csv row 2, column image: expected a file below the folder of the images, not found; it is there"
    with refused(f"{sentence} with the ending .JPG"):
        site([("a/IMG_1", 1, 1)], files=["a/IMG_1.JPG", "a/IMG_1.b.png"])


@pytest.mark.parametrize("other", ["0.nii#01", "0.nii#1 ", "1.nii#0"])
def test_a_slice_under_another_number_is_the_same_image(tmp_path, other):
    write_nifti(tmp_path / "0.nii", voxels(0))
    write_nifti(tmp_path / "1.nii", voxels(1, (8, 8, 1)))
    (tmp_path / "labels.csv").write_text(f"image,edema\n0.nii#1,1\n1.nii,1\n{other},0\n")
    first = 3 if other.startswith("1") else 2
    with refused(f"labels.csv row 4: expected the labels of row {first}, which names the same image, got others"):
        prepare(tmp_path / "labels.csv", tmp_path / "out", choices=CHOICES)


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_second_name_of_a_file_is_the_same_image(site, tmp_path, link):
    (tmp_path / "data").mkdir()
    write_png(tmp_path / "data" / "1.png", 1, 40)
    link(tmp_path / "data" / "1.png", tmp_path / "data" / "b.png")
    tables, _, said = site(
        [("1.png", 1, 1), ("2.png", 2, 0), ("b.png", 1, 1)], files=["1.png", "2.png"], choices=SiteChoices(val_share=0)
    )
    assert sum(len(table.images) for table in tables.values()) == 2
    assert "1 rows name an image a second time and are left out" in said
    os.rename(tmp_path / "out", tmp_path / "first")
    with refused("labels.csv row 4: expected the labels of row 2, which names the same image, got others"):
        site([("1.png", 1, 1), ("2.png", 2, 0), ("b.png", 3, 0)], files=[])
    with refused("labels.csv row 4, column patient: expected that of row 2, which names the same image, got another"):
        site([("1.png", 1, 1), ("2.png", 2, 0), ("b.png", 3, 1)], files=[])


def test_letters_that_a_mac_wrote_apart_are_found(site):
    whole = "\u00fcber/\u00e9.png"
    apart = unicodedata.normalize("NFD", whole)
    tables, _, _ = site(
        [(whole, 1, 1), (apart, 1, 1), ("2.png", 2, 0)], files=[apart, "2.png"], choices=SiteChoices(val_share=0)
    )
    assert sorted(image for table in tables.values() for image in table.images) == sorted([apart, "2.png"])


def test_a_path_that_leads_out_stays_refused(site):
    with pytest.raises(FedMendError, match="expected a path below image_root, got another"):
        site([("a/../../1.png", 1, 1)], files=["1.png"])
