"""Cells of tables that went through a data frame, a spreadsheet or several hands."""

import json

import pytest
from factories import refused, write_png

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets.own_csv import labels_of, open_table, prepare
from fedmend.datasets.own_labels import Cells
from fedmend.datasets.own_site import SiteChoices
from fedmend.errors import FedMendError


def labelled(header, rows, classes=(), **options):
    """What is made of rows of cells, and what is said."""
    said = []
    records = [(number, dict(zip(header, row, strict=True))) for number, row in enumerate(rows, 2)]
    return labels_of(header, records, classes, file="t.csv", say=said.append, **options), said


def single(cells, classes=(), **options):
    return labelled(["image", "label"], [(f"{i}.png", cell) for i, cell in enumerate(cells)], classes, **options)


def multi(cells, classes=(), **options):
    return labelled(["image", "edema"], [(f"{i}.png", cell) for i, cell in enumerate(cells)], classes, **options)


def test_class_numbers_of_a_data_frame_are_numbers_and_nan_is_blank():
    (kind, table, notes), said = single(["0.0", "1.0", "2.0", "nan", "2", "<NA>", "NULL"])
    assert (kind, table.classes) == ("singlelabel", ("0", "1", "2"))
    assert table.labels.max(1).tolist() == [1, 1, 1, -1, 1, -1, -1]
    assert table.labels[[0, 1, 2, 4]].argmax(1).tolist() == [0, 1, 2, 2]
    assert said == [notes["missing_values"]]
    assert notes["missing_values"].startswith("3 cells with a word for a missing value")


def test_a_class_in_several_writings_is_one():
    (_, table, notes), _ = single(["melanoma", "naevus", "Melanoma", "NaN", "naevus ", "N/A", "MELANOMA", "melanoma"])
    assert table.classes == ("melanoma", "naevus")
    assert table.labels[:, 0].tolist() == [1, 0, 1, -1, 0, -1, 1, 1]
    assert notes["class_names"].startswith("2 cells write a class in another way")


@pytest.mark.parametrize(
    "cell",
    [
        *("edema|mass", "Mass ; edema", "edema, mass", "edema/mass"),
        *("edema mass", "edema\nmass", "edema_mass", "edema und mass", "mass - edema", "edema, with mass"),
    ],
)
def test_a_cell_that_names_several_classes_is_none_of_its_own(cell):
    words = "expected one class in each cell (several labels need a column of 1 and 0 for each class), got"
    with refused(f"t.csv, column label: {words} 1 names that join others, as A|B does"):
        single(["edema", "mass", cell])
    assert single(["edema", "mass, benign"])[0].table.classes == ("edema", "mass, benign")
    assert len(single(["edema", "mass", cell], ("edema", "mass", cell))[0].table.classes) == 3
    assert len(single(["edema", "mass", "edemamass", "edema of mass", "left edema"])[0].table.classes) == 5


def test_classes_that_are_named_decide():
    (_, table, _), _ = single(["a", "A", "none", "nan"], ("A", "a", "none"))
    assert table.labels.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [-1, -1, -1]]
    (_, table, _), _ = single(["EDEMA", "edema "], ("Edema", "mass"))
    assert table.labels.tolist() == [[1, 0], [1, 0]]
    with refused("t.csv row 2, column label: expected one of ['Edema'] or blank, got text of 4 characters"):
        single(["mass"], ("Edema",))


def test_true_and_false_are_one_and_zero_in_the_languages_of_spreadsheets():
    (_, table, notes), said = multi(["True", "FALSE", "WAHR", "Falsch", "ja", "nein", "1", ""])
    assert table.labels[:, 0].tolist() == [1, 0, 1, 0, 1, 0, 1, -1]
    assert said == [notes["words"]] == ["6 cells with a word (e.g. true, nein) are taken as 1 or 0"]
    (_, table, _), _ = multi(["pos.", "NEG", "positif", "Négatif", "si", "não", "unklar"], uncertain="blank")
    assert table.labels[:, 0].tolist() == [1, 0, 1, 0, 1, 0, -1]
    (_, table, _), _ = multi(["Tak", "nie", "ДА", "нет", "EVET", "Hayır", "あり", "なし", "阳性", "阴性", "ναι", "όχι"])
    assert table.labels[:, 0].tolist() == [1, 0] * 6
    (_, table, notes), _ = single(["ja", "nein"])
    assert (table.classes, notes) == (("ja", "nein"), {})


@pytest.mark.parametrize("cell", ["1", "1.0", "1.00", "1,0", " 1 ", "01"])
def test_a_one_is_a_one_however_it_is_written(cell):
    (_, table, notes), _ = multi([cell, "0,0", "nan", ""])
    assert table.labels[:, 0].tolist() == [1, 0, -1, -1]
    assert list(notes) == ["missing_values"]


def test_a_class_of_ones_and_blanks_alone_gets_a_warning():
    (_, _, notes), said = multi(["1", "", "1"])
    assert said == [notes["only_positive"]]
    assert notes["only_positive"].startswith("WARNING: classes (edema) have 1 and blanks alone. A blank says that")
    for cells in (["1", "0", ""], ["1", "1"], ["0", ""], ["", ""]):
        assert "only_positive" not in multi(cells)[0].notes


@pytest.mark.parametrize("cell", ["-1", "-1.0", "u", "U", "-1,0"])
@pytest.mark.parametrize(("way", "label"), [("blank", -1), ("positive", 1), ("negative", 0)])
def test_an_uncertain_label_is_taken_as_asked_and_counted(cell, way, label):
    (_, table, notes), _ = multi(["1", cell, "0", cell], uncertain=way)
    assert table.labels[:, 0].tolist() == [1, label, 0, label]
    assert notes == {"uncertain_labels": f"2 uncertain labels are taken as {way}"}


def test_an_uncertain_label_is_refused_where_nobody_said_what_it_is():
    words = "got an uncertain label; say --uncertain"
    for classes in ((), ("edema",)):
        with refused(f"t.csv row 3, column edema: expected 1, 0 or blank, {words} blank, positive or negative"):
            multi(["1", "-1.0"], classes)
    with refused(f"t.csv row 3, column label: expected a class or blank, {words} blank"):
        single(["a", "-1"])


def test_a_class_name_cannot_be_positive():
    (_, table, _), _ = single(["a", "-1.0", "u"], uncertain="blank")
    assert (table.classes, table.labels[1].tolist()) == (("a", "u"), [-1, -1])
    with refused("argument uncertain: expected blank, for a column of class names, got positive"):
        single(["a", "-1"], uncertain="positive")
    with pytest.raises(FedMendError, match="argument uncertain: expected one of"):
        Cells(None, "maybe")


def test_a_hint_names_the_classes_only_where_they_were_not_named():
    text = "t.csv row 2, column edema: expected 1, 0 or blank, got text of 4 characters"
    with refused(f"{text}; name the columns of classes with --classes"):
        multi(["Jane"])
    with refused(text):
        multi(["Jane"], ("edema",))


def test_a_column_is_known_by_its_class_in_another_writing():
    (_, table, _), said = labelled(["image", "Edema", "Age"], [("a.png", "1", "60")], ("edema", "mass"))
    assert (table.labels.tolist(), table.annotated.tolist()) == ([[1, -1]], [True, False])
    assert said == ["columns that are left out: Age"]


@pytest.mark.parametrize("classes", [(), ("edema",), ("EDEMA",)])
def test_two_columns_of_one_class_are_refused(classes):
    words = "expected one column for each class, got 1 whose name differs from another one in case or blanks only"
    with refused(f"t.csv, header: {words}"):
        labelled(["image", "edema", "Edema "], [("a.png", "1", "0")], classes)


def test_columns_that_are_named_may_differ_in_case():
    (_, table, _), _ = labelled(["image", "a", "A"], [("a.png", "1", "0")], ("a", "A"))
    assert table.labels.tolist() == [[1, 0]]


def test_what_was_made_of_cells_stands_in_the_card(tmp_path):
    for i in range(6):
        write_png(tmp_path / f"{i}.png", i, 40)
    rows = [f"{i}.png,{i // 2},{cell}" for i, cell in enumerate(["1.0", "-1", "0", "nan", "1", "u"])]
    (tmp_path / "t.csv").write_text("\n".join(["image,patient,edema", *rows]))
    prepare(tmp_path / "t.csv", tmp_path / "out", choices=SiteChoices(test_share=0, val_share=0, uncertain="negative"))
    notes = json.loads((tmp_path / "out" / "site.json").read_text())["notes"]
    assert notes["uncertain_labels"] == "2 uncertain labels are taken as negative"
    assert notes["missing_values"].startswith("1 cells with a word for a missing value")
    card = load_card(tmp_path / "out", "site-1")
    assert load_table(card, "train.csv", card.classes).labels[:, 0].tolist() == [1, 0, 0, -1, 1, 0]


def test_a_table_keeps_the_names_of_images(tmp_path):
    (tmp_path / "t.csv").write_text("image,patient\n1.0,1.0\n.\\7.0\\2.dcm#03, p1 \n")
    assert [record for _, record in open_table(tmp_path / "t.csv", {})[1]] == [
        {"image": "1.0", "patient": "1"},
        {"image": "7.0/2.dcm#3", "patient": "p1"},
    ]


def test_labels_that_merged_cells_have_left_blank_get_a_warning():
    def noted(cells, patients):
        rows = [(f"{i}.png", patient, cell) for i, (cell, patient) in enumerate(zip(cells, patients, strict=True))]
        return labelled(["image", "patient", "label"], rows)[0].notes.get("merged_cells", "")

    words = "WARNING: 3 images have no label, each after one of the same patient that has one; if cells of a"
    assert noted(["a", "", "", "b", ""], "11122").startswith(words)
    assert noted(["a", "", "", "b", ""], ["1", "", "", "2", ""]).startswith(words)
    assert noted(["a", "", "", "b", ""], "11222") == ""
    assert noted(["", "a", "", "b", ""], "11122") == ""
    assert noted(["a", "b"], "12") == ""
