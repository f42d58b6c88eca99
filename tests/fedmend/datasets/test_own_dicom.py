"""DICOM files as archives export them."""

import csv
import json
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from factories import make_dicom, pixels, refused, write_png
from pydicom import uid
from pydicom.dataset import Dataset

from fedmend.data.card import load_card
from fedmend.data.readers import read_raw
from fedmend.data.tables import load_table
from fedmend.datasets import own_csv
from fedmend.datasets.own_dicom import prepare
from fedmend.datasets.own_dicom_files import find_images
from fedmend.datasets.own_site import SiteChoices
from fedmend.errors import FedMendError
from fedmend.package.inputs import by_study, find_items

CHOICES = SiteChoices(test_share=0.25, val_share=0)
AXIAL = [1, 0, 0, 0, 1, 0]


def place(folder, name, *, patient=1, study=1, series=1, height=0.0, number=1, stored=None, **fields):
    """A slice with the UIDs of its patient, study and series."""
    about = {
        "PatientID": f"MRN{patient}",
        "StudyInstanceUID": f"1.2.{patient}.{study}",
        "SeriesInstanceUID": f"1.2.{patient}.{study}.{series}",
        "SOPInstanceUID": f"1.2.{patient}.{study}.{series}.{number}",
        "AccessionNumber": f"A{patient}{study}",
        "InstanceNumber": number,
        "ImagePositionPatient": [0, 0, height],
        "ImageOrientationPatient": AXIAL,
        "Modality": "CT",
    }
    make_dicom(folder / name, pixels(number, 16) if stored is None else stored, **{**about, **fields})


@pytest.fixture
def export(tmp_path):
    """Two patients with a series of three slices each, files in no order, at different depths."""
    folder = tmp_path / "export"
    for patient in (2, 1):
        for number, (name, height) in enumerate([("b", 5.0), ("deep/er/a", -2.5), ("IM0001", 0.0)], 1):
            place(folder / f"P{patient}", name, patient=patient, height=height, number=number)
    return folder


def table_of(out):
    with open(out / "images.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def prepared(export, out, labels, **options):
    """Writes the labels, prepares the site folder; image → its labels, 9 in the place of none."""
    file = export.parent / "labels.csv"
    file.write_text(labels)
    prepare(export, out, labels=file, choices=CHOICES, **options)
    card = load_card(out, "site-1")
    tables = [load_table(card, name, card.classes) for name in card.splits.values()]
    return card, {
        image: (patient, *row.tolist())
        for table in tables
        for image, patient, row in zip(table.images, table.patients, table.labels, strict=True)
    }


def test_slices_are_sorted_along_their_normal_whatever_their_names_and_numbers(export):
    images, passed = find_images(export)
    assert [image.image for image in images] == [
        f"P{p}/{name}" for p in (1, 2) for name in ("deep/er/a", "IM0001", "b")
    ]
    assert not passed


def test_the_normal_of_other_slices_is_theirs(tmp_path):
    for number, side in enumerate([3.0, -1.0, 2.0], 1):
        fields = {"ImageOrientationPatient": [0, 1, 0, 0, 0, 1], "ImagePositionPatient": [side, 9 - side, 0]}
        place(tmp_path, f"s{number}", number=number, **fields)
    assert [image.image for image in find_images(tmp_path)[0]] == ["s2", "s3", "s1"]


def test_without_a_place_the_numbers_of_the_images_count(tmp_path):
    for name, number in (("a", 10), ("b", 9), ("c", 2)):
        position = [0, 0, -10] if name == "a" else []
        place(tmp_path, name, number=number, ImagePositionPatient=position)
    assert [image.image for image in find_images(tmp_path)[0]] == ["c", "b", "a"]


def test_frames_of_files_without_place_and_number_stay_together(tmp_path):
    for n, name in enumerate("ab"):
        stored = np.full((3, 16, 16), n)
        place(tmp_path, name, stored=stored, NumberOfFrames=3, InstanceNumber="", ImagePositionPatient=[])
    names = ["a#0", "a#1", "a#2", "b#0", "b#1", "b#2"]
    assert [image.image for image in find_images(tmp_path)[0]] == names
    (study,) = by_study(find_items(tmp_path, modality="CT", volumes=False)[1])
    assert list(study.images) == names


def test_frames_are_images_of_their_own_sorted_along_the_normal(tmp_path):
    frames = []
    for height in (2.0, 0.0, 1.0):
        frame, plane = Dataset(), Dataset()
        plane.ImagePositionPatient = [0, 0, height]
        frame.PlanePositionSequence = [plane]
        frames.append(frame)
    shared, turn = Dataset(), Dataset()
    turn.ImageOrientationPatient = AXIAL
    shared.PlaneOrientationSequence = [turn]
    stored = np.arange(3)[:, None, None] * np.ones((3, 16, 16))
    place(
        tmp_path,
        "film",
        stored=stored,
        NumberOfFrames=3,
        PerFrameFunctionalGroupsSequence=frames,
        SharedFunctionalGroupsSequence=[shared],
    )
    names = [image.image for image in find_images(tmp_path)[0]]
    assert names == ["film#1", "film#2", "film#0"]
    assert read_raw(tmp_path / names[1], (0.0, 1.0)).values[0, 0] == 2


def test_other_files_are_counted_and_passed_over(export, tmp_path):
    (export / "DICOMDIR").write_bytes(b"x")
    (export / "report.txt").write_text("text")
    write_png(export / "scout.png")
    place(export, "report", number=7, Modality="SR")
    place(export, "a#1", number=9)
    (export / "line\nbreak").write_bytes(b"")
    place(tmp_path / "outside", "secret", patient=9)
    (export / "link").symlink_to(tmp_path / "outside" / "secret")
    (export / "loop").symlink_to("loop")
    whole = (export / "P1" / "b").read_bytes()
    (export / "cut").write_bytes(whole[:300])
    images, passed = find_images(export)
    assert len(images) == 6
    assert passed == {
        "DICOMDIR": 1,
        "files of other kinds": 1,
        "pictures and volumes of other formats": 1,
        "DICOM without images, e.g. reports": 2,  # a file that ends before its Rows has none either
        "names with # or signs that cannot be printed": 2,
        "links that lead out of the folder": 1,
        "no files": 1,
    }


@pytest.mark.parametrize(
    "fields",
    [{"NumberOfFrames": 2**31 - 1}, {"NumberOfFrames": 9999}, {"InstanceNumber": 2**31 - 1, "NumberOfFrames": -1}],
)
def test_a_header_that_asks_for_too_much_is_a_damaged_file(tmp_path, fields):
    place(tmp_path, "a", **fields)
    images, passed = find_images(tmp_path)
    assert (images, passed) == ([], {"damaged DICOM files": 1})


def test_a_transfer_syntax_that_cannot_be_decoded_here_is_named_with_the_packages_for_it(export, tmp_path, monkeypatch):
    pytest.importorskip("jpeg_ls")
    for name in ("P1/b", "P2/b"):
        dataset = pydicom.dcmread(export / name)
        dataset.compress(uid.JPEGLSLossless)
        dataset.save_as(export / name)
    assert len(find_images(export)[0]) == 6
    monkeypatch.setattr(pydicom.pixels.get_decoder(uid.JPEGLSLossless), "_available", {})
    with refused(
        "dicom: expected transfer syntaxes that can be decoded here (pip install 'fedmend[dicom]'), got also"
        " JPEG-LS Lossless Image Compression (2 files)"
    ):
        prepare(export, tmp_path / "out", choices=CHOICES)


def test_without_labels_a_table_to_be_labelled_is_written_that_names_no_patient(export, tmp_path):
    prepare(export, tmp_path / "out", classes=("a", "b"), choices=CHOICES)
    rows = table_of(tmp_path / "out")
    assert rows[1] == {
        **{"image": "P1/IM0001", "patient": "p1", "study": "1", "series": "1", "slice": "2", "modality": "CT"},
        **{"a": "", "b": ""},
    }
    assert [(row["patient"], row["slice"]) for row in rows] == [(f"p{p}", f"{s}") for p in (1, 2) for s in (1, 2, 3)]
    assert "MRN" not in (tmp_path / "out" / "images.csv").read_text()


def test_the_table_filled_in_becomes_a_site_folder(export, tmp_path):
    from fedmend.datasets import own_csv

    prepare(export, tmp_path / "out", classes=("a", "b"), choices=CHOICES)
    file = tmp_path / "out" / "images.csv"
    file.write_text(file.read_text().replace(",CT,,", ",CT,1,0"))
    own_csv.prepare(file, tmp_path / "site", images=export, classes=("a", "b", "c"), choices=CHOICES)
    card = load_card(tmp_path / "site", "site-1")
    train = load_table(card, "train.csv", card.classes)
    assert train.labels.tolist() == [[1, 0, -1]] * 3


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("StudyInstanceUID", ("1.2.1.1", "1.2.2.1")),
        ("SeriesInstanceUID", ("1.2.1.1.1", "1.2.2.1.1")),
        ("AccessionNumber", ("A11", "A21")),
        ("PatientID", ("MRN1", "MRN2")),
    ],
)
def test_labels_of_studies_series_or_patients_count_for_all_their_images(export, tmp_path, key, values):
    labels = f"{key},a\n{values[0]},1\n{values[1]},0\n"
    card, found = prepared(export, tmp_path / "out", labels)
    assert found == {f"P{p}/{name}": (f"p{p}", 2 - p) for p in (1, 2) for name in ("b", "deep/er/a", "IM0001")}
    assert card.window == (40, 400)
    assert card.modality == "CT"
    assert "MRN" not in "".join(file.read_text() for file in (tmp_path / "out").iterdir())


def test_labels_of_single_images_come_before_those_of_their_study(export, tmp_path):
    labels = "StudyInstanceUID;SOPInstanceUID;label\n1.2.1.1;1.2.1.1.1.2;sick\n1.2.2.1;1.2.2.1.1.3;well\n9;9;sick\n"
    told = []
    card, found = prepared(export, tmp_path / "out", labels, progress=told.append)
    assert card.kind == "singlelabel"
    assert found == {"P1/deep/er/a": ("p1", 1, 0), "P2/IM0001": ("p2", 0, 1)}
    assert "labels by SOPInstanceUID: 2 images have some, 4 are left out; 1 of 3 labels have no image" in told


def test_an_image_whose_header_contradicts_another_key_of_its_row_is_left_out(export, tmp_path):
    place(export, "P3", patient=3, AccessionNumber="A11")  # numbers of two archives
    place(export, "P4", patient=4, AccessionNumber="A11", PatientID="ANONYMOUS")
    told, labels = [], "PatientID,AccessionNumber,a\nmrn1,A11,1\nMRN2,A21,0\n"
    _, found = prepared(export, tmp_path / "out", labels, progress=told.append)
    assert {image for image, (_, label) in found.items() if label} == {"P1/deep/er/a", "P1/IM0001", "P1/b", "P4"}
    assert "labels by AccessionNumber: 7 images have some, 1 are left out; 0 of 2 labels have no image" in told
    assert "warning: 1 of those left out have the AccessionNumber of a row, but another PatientID" in told
    _, found = prepared(export, tmp_path / "both", labels + "MRN3,A11,1\n")
    assert sum(label for _, label in found.values()) == 5
    words = "expected that of the image whose AccessionNumber is in the row, got another in all rows"
    with refused(f"labels.csv, column PatientID: {words}"):
        prepared(export, tmp_path / "none", "PatientID,AccessionNumber,a\nX1,A21,1\n")


@pytest.mark.parametrize("key", ["AccessionNumber", "StudyInstanceUID", "SeriesInstanceUID"])
def test_an_id_that_images_of_two_patients_have_gives_no_label_away(export, tmp_path, key):
    place(export, "P3", patient=3, **{key: "1.2.9"})
    place(export, "P4", patient=4, **{key: "1.2.9"})
    words = "images of one patient for each label (or rows that name their PatientID, too)"
    with refused(f"labels.csv, column {key}: expected {words}, got 1 that label several patients"):
        prepared(export, tmp_path / "none", f"{key},a\n1.2.9,1\n")
    _, found = prepared(export, tmp_path / "both", f"PatientID,{key},a\nMRN3,1.2.9,1\nMRN4,1.2.9,1\n")
    assert {*found} == {"P3", "P4"}


def test_rows_of_one_id_may_differ_in_columns_that_hold_no_labels(export, tmp_path):
    visits = "PatientID,date,seen,{}\nMRN1,2021-03-01,a,{}\nMRN1,2021-04-02,b,{}\nMRN2,2021-03-01,a,{}\n"
    _, rows = prepared(export, tmp_path / "out", visits.format("bleeding", 1, 1, 0), classes=("bleeding",))
    assert sorted(row[1] for row in rows.values()) == [0, 0, 0, 1, 1, 1]
    prepared(export, tmp_path / "single", visits.format("label", "a", "a", "b"))
    words = "labels.csv row 3: expected the labels of row 2, which has the same PatientID, got others"
    with refused(words):
        prepared(export, tmp_path / "other", visits.format("bleeding", 1, 0, 0), classes=("bleeding",))
    with refused(f"{words}; --classes names those with labels, if other columns differ"):
        prepared(export, tmp_path / "all", visits.format("bleeding", 1, 1, 0))


def test_a_key_of_another_name_is_named(export, tmp_path):
    _, found = prepared(export, tmp_path / "out", "Fall,a\nA11,1\nA21,0\n", columns={"AccessionNumber": "Fall"})
    assert len(found) == 6


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ("id,a\n1,1\n", "labels.csv, header: expected one of the columns ['SOPInstanceUID', 'SeriesInstanceUID',"
         " 'StudyInstanceUID', 'AccessionNumber', 'PatientID'] (or --columns AccessionNumber=ITS_NAME), got none"),
        ("PatientID,a\nMRN1,1\nMRN1,0\n", "labels.csv row 3: expected the labels of row 2, which has the same"
         " PatientID, got others"),
        ("PatientID,a\n,1\n", "labels.csv row 2, column PatientID: expected a value, got a blank"),
        ("PatientID,a\nMRN7,1\n", "labels.csv, column PatientID: expected values that the images have, got none of"
         " them"),
        ("PatientID,a\nMRN1,may\n", "labels.csv row 2, column a: expected 1, 0 or blank, got text of 3 characters;"
         " name the columns of classes with --classes"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_used_are_refused(export, tmp_path, labels, sentence):
    with refused(sentence):
        prepared(export, tmp_path / "out", labels)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_images_or_none_is_refused(tmp_path):
    with refused("dicom, argument source: expected a folder, not found"):
        prepare(tmp_path / "no", tmp_path / "out", choices=CHOICES)
    (tmp_path / "export").mkdir()
    with refused("dicom, argument source: expected DICOM images in it, found none"):
        prepare(tmp_path / "export", tmp_path / "out", choices=CHOICES)


def test_processes_find_the_same(export, monkeypatch):
    from fedmend.basics import parallel

    one = find_images(export, processes=1)
    monkeypatch.setattr(parallel, "SAMPLE", 0)
    monkeypatch.setattr(parallel, "WORTH", 0)
    assert find_images(export, processes=2) == one


def test_the_card_of_chest_films_takes_the_windows_of_the_files(tmp_path):
    for patient in range(8):
        fields = {"Modality": "DX", "WindowCenter": 100, "WindowWidth": 200, "PhotometricInterpretation": "MONOCHROME1"}
        place(tmp_path / "export", f"{patient}", patient=patient, **fields)
    labels = "PatientID,a\n" + "".join(f"MRN{p},{p % 2}\n" for p in range(8))
    card, _ = prepared(tmp_path / "export", tmp_path / "out", labels)
    assert card.window == "file"
    notes = json.loads((tmp_path / "out" / "site.json").read_text())["notes"]
    assert notes["window"] == "each DICOM file that was looked at has a window of its own"


# ---- labels of studies ----------------------------------------------------------------------------------------------
OF_STUDIES = "StudyInstanceUID,edema\n1.2.1.1,1\n1.2.2.1,0\n1.2.3.1,1\n1.2.4.1,0\n"


@pytest.fixture
def studies(tmp_path):
    """Four patients with a study of three slices each, files in no order."""
    for patient in range(1, 5):
        for number, height in enumerate((5.0, -2.5, 0.0), 1):
            place(tmp_path / "export", f"{patient}/{number}", patient=patient, height=height, number=number)
    return tmp_path / "export"


def test_a_label_of_a_study_can_stay_one_with_its_slices_from_the_feet_up(studies, tmp_path):
    (tmp_path / "labels.csv").write_text(OF_STUDIES)
    choices = replace(CHOICES, per_study=True)
    lines = []
    prepare(studies, tmp_path / "site", labels=tmp_path / "labels.csv", choices=choices, progress=lines.append)
    card = load_card(tmp_path / "site", "site-1")
    tables = [load_table(card, name, card.classes) for name in card.splits.values()]
    found = {t.slices[i][0][0]: (t.slices[i], int(t.labels[i, 0])) for t in tables for i in range(len(t.images))}
    assert card.sample == "study"
    assert found == {str(p): (tuple(f"{p}/{n}" for n in (2, 3, 1)), p % 2) for p in range(1, 5)}
    assert [len(t.images) for t in tables] == [3, 1]
    assert (tmp_path / "site" / "train.csv").read_text().startswith("image,patient,study,edema\n")
    assert "1.2." not in (tmp_path / "site" / "train.csv").read_text()  # a UID names a patient to those who have it
    hint = "in each study all images have the same labels; if they are labels of studies, --per-study keeps them so"
    assert hint not in lines
    prepare(studies, tmp_path / "images", labels=tmp_path / "labels.csv", choices=CHOICES, progress=lines.append)
    assert hint in lines


def test_labels_of_images_that_differ_within_a_study_are_none_of_the_study(studies, tmp_path):
    rows = [f"1.2.{p}.1.1.{n},{int(n == 1)}\n" for p in range(1, 5) for n in (1, 2, 3)]
    (tmp_path / "labels.csv").write_text("SOPInstanceUID,edema\n" + "".join(rows))
    with pytest.raises(FedMendError, match="which is of the same study, got others"):
        prepare(studies, tmp_path / "site", labels=tmp_path / "labels.csv", choices=replace(CHOICES, per_study=True))
    assert not (tmp_path / "site").exists()


def test_a_study_uid_that_several_patients_share_is_one_study_for_each_of_them(tmp_path):
    for patient in range(1, 5):
        for number in (1, 2, 3):
            name, same = f"{patient}/{number}", "1.2.3" if patient < 3 else f"1.2.{patient}"
            place(tmp_path / "export", name, patient=patient, height=number, number=number, StudyInstanceUID=same)
    (tmp_path / "labels.csv").write_text("AccessionNumber,edema\nA11,1\nA21,0\nA31,1\nA41,0\n")
    lines, choices = [], replace(CHOICES, per_study=True)
    how = {"labels": tmp_path / "labels.csv", "choices": choices, "progress": lines.append}
    prepare(tmp_path / "export", tmp_path / "site", **how)
    assert "warning: 1 StudyInstanceUIDs are of several patients; each is a study for each of them" in lines
    card = load_card(tmp_path / "site", "site-1")
    tables = [load_table(card, name, card.classes) for name in card.splits.values()]
    found = {t.slices[i]: int(t.labels[i, 0]) for t in tables for i in range(len(t.images))}
    assert found == {tuple(f"{p}/{n}" for n in (1, 2, 3)): p % 2 for p in range(1, 5)}
    prepare(tmp_path / "export", tmp_path / "out", classes=("edema",), choices=choices)
    rows = [(row["patient"], row["study"], row["slice"]) for row in table_of(tmp_path / "out")]
    assert rows == [(f"p{p}", f"{p}", f"{n}") for p in range(1, 5) for n in (1, 2, 3)]


def test_without_patients_studies_stay_whole_and_the_card_says_so(studies, tmp_path):
    rows = [f"{study}/{number},s{study},{study % 2}\n" for study in range(1, 5) for number in (1, 2, 3)]
    (tmp_path / "labels.csv").write_text("image,study,edema\n" + "".join(rows))
    choices = replace(CHOICES, per_study=True)
    own_csv.prepare(tmp_path / "labels.csv", tmp_path / "site", images=studies, choices=choices)
    card = load_card(tmp_path / "site", "site-1")
    tables = [load_table(card, name, card.classes) for name in card.splits.values()]
    assert sorted(len(own) for t in tables for own in t.slices) == [3] * 4
    notes = json.loads((tmp_path / "site" / "site.json").read_text())["notes"]
    assert "by study, as no patients are known" in notes["splits"]
