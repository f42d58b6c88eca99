"""A hospital's own table as a site folder."""

import json
import shlex

import numpy as np
import pytest
from factories import make_dicom, pixels, refused, write_png
from PIL import Image

from fedmend.data.card import load_card
from fedmend.data.readers import read_image
from fedmend.data.tables import load_table
from fedmend.datasets import own_dicom
from fedmend.datasets.own_csv import class_names, column_names, prepare
from fedmend.datasets.own_site import SiteChoices, done, parse_window
from fedmend.errors import FedMendError

CHOICES = SiteChoices(test_share=0.25, val_share=0.25)


@pytest.fixture
def table(tmp_path):
    """Writes 16 pictures of 8 patients and a table of their labels; gives its path."""

    def write(header="image,patient,a,b", row="{i}.png,Patient {p},{a},{b}", *, encoding="utf-8", rows=16):
        for i in range(rows):
            write_png(tmp_path / "data" / f"{i}.png", i, 40)
        cells = ({"i": i, "p": i // 2, "a": i % 2, "b": "" if i % 3 else 1, "c": "xyz"[i % 3]} for i in range(rows))
        lines = [header, *(row.format(**cell) for cell in cells)]
        (tmp_path / "data" / "labels.csv").write_text("\r\n".join(lines) + "\r\n", encoding=encoding)
        return tmp_path / "data" / "labels.csv"

    return write


def prepared(source, out, **options):
    prepare(source, out, choices=options.pop("choices", CHOICES), **options)
    card = load_card(out, "site-1")
    return card, {name: load_table(card, file, card.classes) for name, file in card.splits.items()}


def rows_of(tables):
    return {
        image: tuple(labels.tolist())
        for table in tables.values()
        for image, labels in zip(table.images, table.labels, strict=True)
    }


EXPECTED = {f"{i}.png": (i % 2, -1 if i % 3 else 1) for i in range(16)}


def test_every_row_keeps_its_labels_and_every_patient_is_in_one_split(table, tmp_path):
    card, tables = prepared(table(), tmp_path / "out")
    assert (card.kind, card.classes, card.window, card.color) == ("multilabel", ("a", "b"), None, False)
    assert rows_of(tables) == EXPECTED
    assert {name: len(t.images) for name, t in tables.items()} == {"train": 8, "test": 4, "val": 4}
    seen = [set(t.patients) for t in tables.values()]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 8
    assert read_image(card.image_root / "3.png", card.window).shape == (40, 40)


def test_patients_become_numbers_and_no_file_of_the_site_folder_names_one(table, tmp_path):
    _, tables = prepared(table(), tmp_path / "out")
    assert {p for t in tables.values() for p in t.patients} == {f"p{n}" for n in range(1, 9)}
    for file in (tmp_path / "out").iterdir():
        assert "Patient" not in file.read_text()


@pytest.mark.parametrize(
    ("header", "row", "encoding"),
    [
        ("image;patient;a;b", "{i}.png;Patient {p};{a};{b}", "utf-8-sig"),
        ("image\tpatient\ta\tb", "{i}.png\tPatient {p}\t{a}\t{b}", "utf-8"),
        ('" image ","patient",a,b', '"{i}.png ","Patient, {p}",{a}.0,{b}', "utf-8-sig"),
    ],
)
def test_tables_of_spreadsheets_are_understood(table, tmp_path, header, row, encoding):
    _, tables = prepared(table(header, row, encoding=encoding), tmp_path / "out")
    assert rows_of(tables) == EXPECTED
    assert len({p for t in tables.values() for p in t.patients}) == 8


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"PK\3\4\x14\0\xff", "an Excel workbook or ZIP file; save the sheet as CSV UTF-8"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "an old Excel workbook; save the sheet as CSV UTF-8"),
        (b"\x1f\x8b\x08\0", "a gzip file; unpack it"),
        ("\ufeffimage".encode("utf-16-le"), "UTF-16; save it as CSV UTF-8"),
        ("image,label".encode("utf-16-le"), "another encoding, e.g. UTF-16; save it as CSV UTF-8"),
        ("\u00e9".encode("latin-1"), "another encoding, e.g. that of Windows; save it as CSV UTF-8"),
    ],
)
def test_files_that_are_no_utf_8_text_are_called_what_they_are(tmp_path, start, what):
    (tmp_path / "labels.csv").write_bytes(start)
    with refused(f"labels.csv: expected UTF-8 text, got {what}"):
        prepare(tmp_path / "labels.csv", tmp_path / "out", choices=CHOICES)


def test_what_parts_fields_is_counted_outside_of_quotation_marks(table, tmp_path):
    source = table('image;patient;"a, left, basal, deep";b', "{i}.png;Patient {p};{a};{b}")
    card, tables = prepared(source, tmp_path / "out")
    assert card.classes == ("a, left, basal, deep", "b")
    assert rows_of(tables) == EXPECTED
    _, tables = prepared(table("image|patient|a|b", "{i}.png|Patient, {p}|{a}|{b}"), tmp_path / "pipes")
    assert rows_of(tables) == EXPECTED


def test_rows_without_values_as_spreadsheets_write_them_are_none(table, tmp_path):
    source = table("image;patient;a;b", "{i}.png;Patient {p};{a};{b}")
    source.write_text(source.read_text().replace("\n3.png", "\n; ;;\n3.png") + ";;;\n;;;;;\n")
    _, tables = prepared(source, tmp_path / "out")
    assert rows_of(tables) == EXPECTED


def test_letters_with_accents_apart_name_the_same_columns_and_classes(table, tmp_path):
    source = table("Bild,patient,o\u0308dem,b".replace("Bild", "Bi\u0308ld"))
    for name, classes in (("all", ()), ("named", class_names("o\u0308dem,b"))):
        card, tables = prepared(source, tmp_path / name, classes=classes, columns={"image": "B\u00efld"})
        assert card.classes == ("\u00f6dem", "b")
        assert rows_of(tables) == EXPECTED


def test_the_line_by_which_excel_knows_what_parts_fields_is_no_header(table, tmp_path):
    _, tables = prepared(table("sep=;\r\nimage;patient;a;b", "{i}.png;Patient {p};{a};{b}"), tmp_path / "out")
    assert rows_of(tables) == EXPECTED
    with refused("labels.csv row 3, column a: expected 1, 0 or blank, got text of 1 character"):
        prepared(table("sep=;\nimage;patient;a;b", "{i}.png;Patient {p};x;{b}"), tmp_path / "o", classes=["a"])


def test_too_few_patients_for_a_split_are_told_how_to_have_none(table, tmp_path):
    words = "expected at least 2 patients, or what else stays together, to draw it from (or --{0}-share 0), got 1"
    with refused("test split: " + words.format("test")):
        prepared(table(row="{i}.png,one,{a},{b}"), tmp_path / "out")
    with refused("val split: " + words.format("val")):
        prepared(table(row="{i}.png,{a},{a},{b}"), tmp_path / "out")
    choices = SiteChoices(test_share=0, val_share=0)
    assert {*prepared(table(row="{i}.png,one,{a},{b}"), tmp_path / "out", choices=choices)[1]} == {"train"}


def test_columns_of_other_names_are_named_and_other_columns_left_out(table, tmp_path):
    source = table("Datei,PatID,Alter,A!,b", "{i}.png,Patient {p},63,{a},{b}")
    columns = {"image": "Datei", "patient": "PatID", "a": "A!"}
    told = []
    card, tables = prepared(source, tmp_path / "out", columns=columns, classes=("c", "a", "b"), progress=told.append)
    assert card.classes == ("c", "a", "b")
    assert tables["train"].annotated.tolist() == [False, True, True]
    assert rows_of(tables) == {image: (-1, *labels) for image, labels in EXPECTED.items()}
    assert "columns that are left out: Alter" in told


def test_a_column_of_splits_is_said_not_to_be_followed(table, tmp_path):
    source, told = table("image,patient,Split,a,b", "{i}.png,{p},test,{a},{b}"), []
    prepared(source, tmp_path / "out", classes=("a", "b"), progress=told.append)
    assert told[:2] == [
        "columns that are left out: Split",
        "splits are drawn anew, whatever the column split says; of splits of your own, write a table each",
    ]


@pytest.mark.parametrize(("given", "classes"), [((), ("x", "y", "z")), (("z", "w", "y", "x"),) * 2])
def test_a_column_of_class_names_makes_single_label_data(table, tmp_path, given, classes):
    card, tables = prepared(table("image,label", "{i}.png,{c}"), tmp_path / "out", classes=given)
    assert (card.kind, card.classes) == ("singlelabel", classes)
    for image, labels in rows_of(tables).items():
        assert classes[labels.index(1)] == "xyz"[int(image[:-4]) % 3]
    assert all(set(t.patients) == {""} for t in tables.values())


def test_a_blank_label_stays_blank(table, tmp_path):
    _, tables = prepared(table("image,label", "{i}.png,{b}"), tmp_path / "out", classes=("1", "2"))
    assert rows_of(tables) == {f"{i}.png": (-1, -1) if i % 3 else (1, 0) for i in range(16)}


def test_the_same_seed_gives_the_same_split(table, tmp_path):
    source = table()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prepare(source, tmp_path / name, choices=SiteChoices(seed=seed))
    read = [(tmp_path / name / "test.csv").read_text() for name in "abc"]
    assert read[0] == read[1] != read[2]


def test_without_shares_all_rows_are_for_training(table, tmp_path):
    card, _ = prepared(table(), tmp_path / "out", choices=SiteChoices(test_share=0, val_share=0))
    assert card.splits == {"train": "train.csv"}


def test_the_card_says_why_each_choice_was_made(table, tmp_path):
    prepare(table(), tmp_path / "out", choices=CHOICES)
    notes = json.loads((tmp_path / "out" / "site.json").read_text())["notes"]
    assert notes["window"] == "pictures in 8 bits are taken as they are"
    assert notes["color"] == "no picture that was looked at has colour"
    assert notes["splits"] == "drawn with seed 1037 by patient: train 8, test 4, val 4 images"
    assert notes["image_size"].startswith("32 for image_size of a job")


def test_pictures_in_colour_are_read_in_colour(table, tmp_path):
    source = table()
    for i in range(16):
        write_png(tmp_path / "data" / f"{i}.png", i, color=True)
    assert prepared(source, tmp_path / "out")[0].color


def test_ct_of_the_head_gets_the_window_for_the_brain_and_another_one_if_asked(table, tmp_path):
    source = table("image,a", "{i}.dcm,{a}")
    for i in range(16):
        make_dicom(tmp_path / "data" / f"{i}.dcm", pixels(i), Modality="CT", BodyPartExamined="HEAD")
    assert prepared(source, tmp_path / "a")[0].window == (40, 80)
    asked = SiteChoices(window=(600.0, 2800.0))
    assert prepared(source, tmp_path / "b", choices=asked)[0].window == (600, 2800)
    notes = json.loads((tmp_path / "b" / "site.json").read_text())["notes"]
    assert notes["window"].startswith('as asked; looking at the images would give "brain": CT of the body part HEAD')


def test_images_may_lie_elsewhere(table, tmp_path):
    source = table()
    source.rename(tmp_path / "labels.csv")
    card, _ = prepared(tmp_path / "labels.csv", tmp_path / "out", images=tmp_path / "data")
    assert card.image_root == tmp_path / "data"
    assert json.loads((tmp_path / "out" / "site.json").read_text())["image_root"] == "../data"


@pytest.mark.parametrize(
    ("header", "row", "sentence"),
    [
        ("file,a", "{i}.png,{a}", "labels.csv, header: expected a column 'image' (or --columns image=ITS_NAME), got 2"
         " other columns"),
        ("image,a,a", "{i}.png,{a},1", "labels.csv, header: expected each column once, got 1 twice"),
        (",image,a", "{i},{i}.png,{a}", "labels.csv, header: expected a name for every column with values (or"
         " --classes, which leaves others out), got one without"),
        (",image,a, ", "{i},{i}.png,{a},", "labels.csv, header: expected a name for every column with values (or"
         " --classes, which leaves others out), got one without"),
        ("image,patient", "{i}.png,{p}", "labels.csv, header: expected a column 'label' or 1 to 200 columns of classes"
         " (name them with --classes), got none"),
        ("image,a,Name", "{i}.png,{a},Jane", "labels.csv row 2, column Name: expected 1, 0 or blank, got text of 4"
         " characters; name the columns of classes with --classes"),
        ("image,a", "../{i}.png,{a}", "labels.csv row 2, column image: expected a path below image_root, got another"),
        ("image,a", "/etc/{i},{a}", "labels.csv row 2, column image: expected a path below image_root, got another"),
        ("image,a", "x{i}.png,{a}", "labels.csv row 2, column image: expected a file below the folder of the images,"
         " not found"),
        ("image,a", "\0{i}.png,{a}", "labels.csv row 2, column image: expected a path below image_root, got another"),
        ("image,a", "#{i},{a}", "labels.csv row 2, column image: expected a file below the folder of the images, not"
         " found"),
        ("image,a", "{i}.png,{a},1", "labels.csv row 2: expected 2 fields as in the header, got another number"),
        ("image,a", "1.png,{a}", "labels.csv row 3: expected the labels of row 2, which names the same image, got"
         " others"),
        ("image,label", "{i}.png,", "labels.csv, column label: expected names of 1 to 200 classes, got blanks alone"),
        ("image,label", "{i}.png,NA", "labels.csv, column label: expected names of 1 to 200 classes, got blanks alone"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_refused(table, tmp_path, header, row, sentence):
    with refused(sentence):
        prepare(table(header, row), tmp_path / "out", choices=CHOICES)
    assert not (tmp_path / "out").exists()


def test_a_table_that_is_only_a_header_is_not_said_to_have_blanks(tmp_path):
    (tmp_path / "labels.csv").write_text("image,label\n")
    with refused("labels.csv, column label: expected names of 1 to 200 classes, got no row"):
        prepare(tmp_path / "labels.csv", tmp_path / "out", choices=CHOICES)


@pytest.mark.parametrize(
    ("header", "row", "classes"),
    [
        ("image;patient;a;", "{i}.png;{p};{a};", ()),
        ("image;patient;a; ;", "{i}.png;{p};{a};;", ()),
        (",image,patient,a", "{i},{i}.png,{p},{a}", ("a",)),  # the index of a data frame
        (",,image,patient,a", "{i},{p},{i}.png,{p},{a}", ("a",)),  # twice
    ],
)
def test_columns_without_a_name_are_no_classes(table, tmp_path, header, row, classes):
    card, tables = prepared(table(header, row), tmp_path / "out", classes=classes)
    assert card.classes == ("a",)
    assert sum(len(t.images) for t in tables.values()) == 16


@pytest.mark.parametrize(
    ("header", "row", "line"),
    [
        ("image,patient,sex,a", "{i}.png,{p},{a},{a}", "multilabel, 2 classes: sex, a"),
        ("image,label", "{i}.png,0.{a}5", "singlelabel, 2 classes: 0.05, 0.15"),  # probabilities are no classes
    ],
)
def test_what_is_taken_for_classes_is_said(table, tmp_path, header, row, line):
    said = []
    prepared(table(header, row), tmp_path / "out", progress=said.append)
    assert line in said


def test_a_class_of_blanks_alone_is_not_annotated_here(table, tmp_path):
    said = []
    card, tables = prepared(table("image,patient,a,c", "{i}.png,{p},{a},NA"), tmp_path / "out", progress=said.append)
    assert card.classes == ("a", "c")
    assert {name: t.annotated.tolist() for name, t in tables.items()} == {name: [True, False] for name in tables}
    assert "columns of classes (c) have blanks alone: these classes are not annotated here" in said


REFUSED = "WARNING: jobs refuse the training split, as "
ONE_SIDED = "classes ({}) have no 1 or no 0 in it; leave out the column of a class that nobody looks for here"


@pytest.mark.parametrize(
    ("header", "row", "why"),
    [
        ("image,patient,a,c", "{i}.png,{p},{a},0", ONE_SIDED.format("c")),
        ("image,patient,a,c", "{i}.png,{p},1,", ONE_SIDED.format("a")),
        ("image,patient,a", "{i}.png,{p},", ONE_SIDED.format("a")),
        ("image,patient,label", "{i}.png,{p},melanoma", "it has fewer than two classes"),
        ("image,patient,a", "{i}.png,{p},{a}", ""),
        ("image,patient,label", "{i}.png,{p},{c}", ""),
    ],
)
def test_labels_that_jobs_refuse_get_a_warning(table, tmp_path, header, row, why):
    said = []
    prepared(table(header, row), tmp_path / "out", progress=said.append)
    warnings = [REFUSED + why] if why else []
    assert [line for line in said if line.startswith(REFUSED)] == warnings
    notes = json.loads((tmp_path / "out" / "site.json").read_text())["notes"]
    assert [line for name, line in notes.items() if name == "training"] == warnings


def test_another_encoding_is_refused(table, tmp_path):
    with refused("labels.csv: expected UTF-8 text, got another encoding, e.g. that of Windows; save it as CSV UTF-8"):
        prepare(table("image,a,b\u00fc", "{i}.png,{a},1", encoding="cp1252"), tmp_path / "out", choices=CHOICES)


def test_a_missing_table_or_column_is_refused(table, tmp_path):
    with refused("no.csv: expected a table, not found"):
        prepare(tmp_path / "no.csv", tmp_path / "out", choices=CHOICES)
    with refused("labels.csv, header: expected the columns that --columns names, got none for 1"):
        prepare(table(), tmp_path / "out", choices=CHOICES, columns={"image": "File"})


def test_a_link_out_of_the_folder_of_the_images_is_refused(table, tmp_path):
    source = table()
    write_png(tmp_path / "secret.png")
    (tmp_path / "data" / "4.png").unlink()
    (tmp_path / "data" / "4.png").symlink_to(tmp_path / "secret.png")
    sentence = "labels.csv row 6, column image: expected a file below the folder of the images, got another"
    with refused(sentence):
        prepare(source, tmp_path / "out", choices=CHOICES)


def test_images_that_nobody_can_read_are_refused(table, tmp_path):
    source = table()
    for i in range(16):
        Image.fromarray(np.full((4, 4), 1000, dtype=np.uint16)).save(tmp_path / "data" / f"{i}.png")
    reason = "expected a picture of 8 bits in grey or RGB, got 16 bits"
    with refused(f"images: expected some that can be read, got none of 16: {reason}"):
        prepare(source, tmp_path / "out", choices=CHOICES)


def test_commands_that_are_printed_can_be_typed_where_folders_have_blanks(table, tmp_path):
    out, said = tmp_path / "our site", []
    prepared(table(), out)
    done(out, said.append)
    assert said[-1].endswith(f"check it: fedmend sitecheck '{out}'")
    make_dicom(tmp_path / "my archive" / "1.dcm", np.arange(64).reshape(8, 8))
    own_dicom.prepare(tmp_path / "my archive", tmp_path / "to label", choices=CHOICES, progress=said.append)
    assert shlex.split(said[-1])[3:7] == [
        str(tmp_path / "to label" / "images.csv"),
        "SITE_FOLDER",
        "--images",
        str(tmp_path / "my archive"),
    ]


def test_a_folder_with_content_is_not_written_into(table, tmp_path):
    source = table()
    with refused("argument out: expected a folder that is empty or not there, got another"):
        prepare(source, tmp_path / "data", choices=CHOICES)


def test_shares_out_of_their_range_are_refused():
    with pytest.raises(FedMendError, match="test_share, val_share and seed: expected 0 or numbers below 1"):
        SiteChoices(test_share=1)


@pytest.mark.parametrize(
    ("text", "window"),
    [("file", "file"), ("brain", "brain"), ("none", None), ("40,80", (40, 80)), ("-6,1.5", (-6, 1.5))],
)
def test_a_window_is_read_from_words(text, window):
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["", "skin", "40", "40,0", "40,nan", "1,2,3"])
def test_other_words_are_no_window(text):
    with pytest.raises(FedMendError, match="argument window: expected file, none, one of"):
        parse_window(text)


@pytest.mark.parametrize("text", ["2,2.0", "edema, edema", "a,b,a "])
def test_classes_that_no_table_can_tell_apart_are_refused(text):
    with refused("argument classes: expected names that differ (2 and 2.0 are one), got 1 that another one equals"):
        class_names(text)
    assert class_names("Melanoma,melanoma, 2 ,") == ("Melanoma", "melanoma", "2")


def test_names_of_columns_are_read_from_words():
    assert column_names(["image=File Name", "a=x=y"]) == {"image": "File Name", "a": "x=y"}
    for words in (["image"], ["=x"], ["a="], ["a=b", "a=c"]):
        with pytest.raises(FedMendError, match="argument columns: expected different words"):
            column_names(words)
