import json

import numpy as np
import pytest
from factories import CLASSES, LABELS, make_site_folder, refused

from fedmend.data.card import check_classes, load_card, write_card
from fedmend.data.tables import load_table, write_table
from fedmend.errors import FedMendError

CARD = {
    "format": 1,
    "task": "multilabel",
    "classes": ["a", "b"],
    "splits": {"train": "train.csv"},
    "image_root": "images",
}


def card_with(folder, **fields):
    (folder / "site.json").write_text(json.dumps({k: v for k, v in (CARD | fields).items() if v is not ...}))
    return load_card(folder, "site-1")


def table_of(folder, text, *, task="multilabel", classes=("a", "b"), encoding="utf-8"):
    card = card_with(folder, task=task, classes=list(classes))
    (folder / "train.csv").write_text(text, encoding=encoding)
    return load_table(card, "train.csv", classes)


def test_a_written_card_is_read_back(tmp_path):
    write_card(
        tmp_path,
        task="multilabel",
        classes=CLASSES,
        splits={"train": "train.csv", "test": "t.csv"},
        image_root="../pictures",
        truth={"train": "truth.csv"},
        modality="CT",
        window=(40, 80),
        provenance={"seed": 3},
    )
    card = load_card(tmp_path, "site-1")
    assert (card.site, card.kind, card.classes, card.modality) == ("site-1", "multilabel", CLASSES, "CT")
    assert (card.splits, card.truth) == ({"train": "train.csv", "test": "t.csv"}, {"train": "truth.csv"})
    assert card.image_root == (tmp_path / "../pictures").resolve()
    assert (card.window, card.provenance) == ((40.0, 80.0), {"seed": 3})
    assert card.color is False


def test_a_card_says_whether_pictures_are_in_colour(tmp_path):
    assert card_with(tmp_path).color is False  # a card from before there was colour
    options = {"classes": CLASSES, "splits": {"train": "train.csv"}, "image_root": "."}
    write_card(tmp_path, task="singlelabel", color=True, **options)
    card = load_card(tmp_path, "site-1")
    assert (card.color, card.kind) == (True, "singlelabel")
    assert json.loads((tmp_path / "site.json").read_text())["color"] is True


@pytest.mark.parametrize(
    ("written", "read"),
    [(None, None), ("file", "file"), ("subdural", (75.0, 215.0)), ([40, 80], (40.0, 80.0))],
)
def test_a_window_is_nothing_the_files_own_a_name_or_two_numbers(tmp_path, written, read):
    assert card_with(tmp_path, window=written).window == read


WINDOWS = "expected null, 'file', one of ['bone', 'brain', 'lung', 'subdural'] or [centre, width] in HU"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"format": 2}, "field format: expected 1, got another int"),
        ({"format": ...}, "field format: expected 1, got nothing"),
        (
            {"task": "boxes"},
            "field task: expected one of ['multilabel', 'singlelabel', 'segmentation'], got another str",
        ),
        ({"classes": []}, "field classes: expected a list of one or more class names, got another list"),
        ({"classes": ["a", ""]}, "field classes: expected a list of one or more class names, got another list"),
        ({"classes": "ab"}, "field classes: expected a list of one or more class names, got another str"),
        ({"classes": ["a", "a"]}, "field classes: expected each name once, got another list"),
        (
            {"splits": {"test": "t.csv"}},
            "field splits: expected a mapping of split to file name with at least 'train', got another dict",
        ),
        (
            {"splits": {"train": 5}},
            "field splits: expected a mapping of split to file name with at least 'train', got another dict",
        ),
        ({"truth": ["t.csv"]}, "field truth: expected a mapping of split to file name, got another list"),
        ({"image_root": ...}, "field image_root: expected a folder, got nothing"),
        ({"color": 1}, "field color: expected true or false, got another int"),
        ({"color": "yes"}, "field color: expected true or false, got another str"),
        ({"color": None}, "field color: expected true or false, got nothing"),
        ({"window": "liver"}, f"field window: {WINDOWS}, got another str"),
        ({"window": [40, 0]}, f"field window: {WINDOWS}, got another list"),
        ({"window": [True, 40]}, f"field window: {WINDOWS}, got another list"),
        ({"truth": {"train": "../t.csv"}}, "field truth: expected file names below the site folder, got another dict"),
        ({"window": [40]}, f"field window: {WINDOWS}, got another list"),
        ({"truth": {"Train": "t.csv"}}, "field truth: expected train, val or test, got ['Train']"),
        (
            {"task": "segmentation", "annotated": {"training": ["a"], "tset": ["b"]}},
            "field annotated: expected train, val or test, got ['training', 'tset']",
        ),
        (
            {"task": "segmentation", "splits": {"train": "d.json", "validation": "d.json"}},
            "field splits: expected train, val or test, got ['validation']",
        ),
    ],
)
def test_a_wrong_field_of_the_card_is_refused(tmp_path, fields, sentence):
    with refused(f"site-1: site.json, {sentence}"):
        card_with(tmp_path, **fields)


def test_a_field_that_no_card_has_is_refused_and_notes_are_for_people(tmp_path):
    assert card_with(tmp_path, notes={"window": "by a look"}).classes == ("a", "b")
    with pytest.raises(FedMendError, match=r"^site-1: site.json: expected the fields .*, got also \['colour'\]$"):
        card_with(tmp_path, colour=True)


def test_a_folder_without_card_is_refused(tmp_path):
    with refused("site-1: site.json: expected in the folder that data_root names, not found"):
        load_card(tmp_path, "site-1")


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{}", b"[" * 5000, b'{"format": NaN}', b'{"task": "\\u0000"}'])
def test_a_card_that_is_not_json_is_refused(tmp_path, content):
    (tmp_path / "site.json").write_bytes(content)
    with refused("site-1: site.json: expected JSON, got a file that does not parse"):
        load_card(tmp_path, "site-1")


def test_a_card_that_is_a_list_is_refused(tmp_path):
    (tmp_path / "site.json").write_text("[]")
    with refused("site-1: site.json: expected a JSON object, got another list"):
        load_card(tmp_path, "site-1")


def test_the_order_of_the_classes_may_differ_from_the_jobs(tmp_path):
    check_classes(card_with(tmp_path), ["b", "a"])


def test_a_blank_is_not_annotated(tmp_path):
    table = table_of(tmp_path, "image,a,b\nx.png,1,\ny.png, 0 ,1\nz.png,,0\n")
    assert table.labels.tolist() == [[1, -1], [0, 1], [-1, 0]]
    assert table.labels.dtype == np.int8
    assert table.annotated.tolist() == [True, True]


def test_a_class_without_column_is_not_annotated(tmp_path):
    table = table_of(tmp_path, "image,b\nx.png,1\ny.png,0\n")
    assert table.labels.tolist() == [[-1, 1], [-1, 0]]
    assert table.annotated.tolist() == [False, True]


def test_the_job_gives_the_order_of_the_label_columns(tmp_path):
    card = card_with(tmp_path)
    (tmp_path / "train.csv").write_text("image,a,b\nx.png,1,0\n")
    assert load_table(card, "train.csv", ("b", "a")).labels.tolist() == [[0, 1]]


def test_a_single_label_is_one_hot_or_all_blank(tmp_path):
    table = table_of(tmp_path, "image,label\nx.png,b\ny.png,\nz.png,a\n", task="singlelabel")
    assert table.labels.tolist() == [[0, 1], [-1, -1], [1, 0]]
    assert table.annotated.all()


def test_rows_images_and_patients_are_kept(tmp_path):
    table = table_of(tmp_path, "image,patient,a\nx.png,p1,1\n\ny.png, p2,0\n")
    assert table.rows.tolist() == [2, 4]
    assert (table.images, table.patients) == (("x.png", "y.png"), ("p1", "p2"))
    assert table_of(tmp_path, "image,a\nx.png,1\n").patients == ("",)


def test_a_row_that_repeats_an_image_with_the_same_labels_is_dropped(tmp_path):
    table = table_of(tmp_path, "image,a\nx.png,1\nx.png,1\ny.png,0\n")
    assert table.images == ("x.png", "y.png")
    assert table.rows.tolist() == [2, 4]


def test_a_repeated_image_has_the_patient_that_one_of_its_rows_names(tmp_path):
    table = table_of(tmp_path, "image,patient,a\nx.png,nan,1\nx.png,p7,1\nx.png, P7 ,1\nx.png,,1\n")
    assert (table.images, table.patients) == (("x.png",), ("p7",))


def test_labels_cannot_be_written(tmp_path):
    table = table_of(tmp_path, "image,a\nx.png,1\n")
    with pytest.raises(ValueError, match="read-only"):
        table.labels[0, 0] = 0


def test_a_byte_order_mark_before_the_header_does_not_matter(tmp_path):
    assert table_of(tmp_path, "image,a\nx.png,1\n", encoding="utf-8-sig").images == ("x.png",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ", header: expected a column 'image', got 0 other columns"),
        ("picture,a\nx.png,1\n", ", header: expected a column 'image', got 2 other columns"),
        (
            "image;a\nx.png;1\n",
            ", header: expected a column 'image', got no commas between fields; save it with commas",
        ),
        ("image,a,c\nx.png,1,0\n", ", header: expected columns out of ['a', 'b'], got ['a'] and 1 unknown"),
        ("image,a,a\nx.png,1,0\n", ", header: expected each column once, got ['a', 'a']"),
        ("image,patient,a,patient\nx.png,7,1,8\n", ", header: expected each column once, got ['patient'] twice"),
        ("image,image,a\nx.png,y.png,1\n", ", header: expected each column once, got ['image'] twice"),
        ("image,a\nx.png,1\ny.png\n", " row 3: expected 2 fields as in the header, got another number"),
        ("image,a\nx.png,1,0\n", " row 2: expected 2 fields as in the header, got another number"),
        ("image,a\n ,1\n", " row 2, column image: expected a path, got a blank"),
        ("image,a\n1\0.png,1\n", " row 2, column image: expected a path below image_root, got another"),
        ("image,a\nx.png,1.0\n", " row 2, column a: expected 1, 0 or blank, got text of 3 characters"),
        ("image,a\nx.png,-1\n", " row 2, column a: expected 1, 0 or blank, got text of 2 characters"),
        ("image,a\nx.png,none\n", " row 2, column a: expected 1, 0 or blank, got text of 4 characters"),
        (
            "image,a\nx.png,1\ny.png,1\nx.png,\n",
            " row 4: expected the labels of row 2, which names the same image, got others",
        ),
        (
            "image,patient,a\nx.png,p1,1\n./x.png,p2,1\n",
            " row 3, column patient: expected that of row 2, which names the same image, got another",
        ),
    ],
)
def test_a_faulty_table_is_refused(tmp_path, text, sentence):
    with refused(f"site-1: train.csv{sentence}"):
        table_of(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("image,a\nx.png,1\n", ", header: expected a column 'label', got 2 other columns"),
        ("image,label,label\nx.png,a,b\n", ", header: expected each column once, got ['label'] twice"),
        (
            "image,label\nx.png,c\n",
            " row 2, column label: expected one of ['a', 'b'] or blank, got text of 1 character",
        ),
        (
            "image,label\nx.png,Mueller^Anna\n",
            " row 2, column label: expected one of ['a', 'b'] or blank, got text of 12 characters",
        ),
    ],
)
def test_a_faulty_single_label_table_is_refused(tmp_path, text, sentence):
    with refused(f"site-1: train.csv{sentence}"):
        table_of(tmp_path, text, task="singlelabel")


@pytest.mark.parametrize("header", ["", "image,patient,a,b\n", "image,a,patient,b\n", "image,Mueller^Anna,b,a\n"])
@pytest.mark.parametrize("task", ["multilabel", "singlelabel"])
def test_a_refused_table_names_neither_image_nor_patient(tmp_path, header, task):
    text = f"{header}MUELLER_ANNA/slice9.dcm,Mueller^Anna,1,MUELLER_ANNA/slice9.dcm\n"
    with pytest.raises(FedMendError) as caught:
        table_of(tmp_path, text, task=task)
    assert "mueller" not in str(caught.value).lower()
    assert "slice9" not in str(caught.value)


@pytest.mark.parametrize("value", ["67y", "Eva", "Ä"])
@pytest.mark.parametrize("task", ["multilabel", "singlelabel"])
def test_a_refused_label_is_counted_and_not_quoted_however_short(tmp_path, value, task):
    column = "a" if task == "multilabel" else "label"
    with pytest.raises(FedMendError, match=rf"row 2, column {column}: expected .* got text of [13] ") as caught:
        table_of(tmp_path, f"image,{column}\nx.png,{value}\n", task=task)
    assert value not in str(caught.value)


@pytest.mark.parametrize("field", ["format", "task", "classes", "splits", "truth", "image_root", "window", "color"])
def test_a_refused_card_quotes_no_value(tmp_path, field):
    value = ["Mueller^Anna"] if field == "image_root" else "Mueller^Anna"
    with pytest.raises(FedMendError, match=f"field {field}: ") as caught:
        card_with(tmp_path, **{field: value})
    assert "Mueller" not in str(caught.value)


@pytest.mark.parametrize("file", ["train.csv", "."])
def test_a_missing_table_is_refused(tmp_path, file):
    with refused(f"site-1: {file}: expected beside site.json, not found"):
        load_table(card_with(tmp_path), file, ("a", "b"))


def test_a_table_that_is_not_utf8_is_refused(tmp_path):
    got = "another encoding, e.g. that of Windows; save it as CSV UTF-8"
    with refused(f"site-1: train.csv: expected UTF-8 text, got {got}"):
        table_of(tmp_path, "image,patient,a\nx.png,Müller,1\n", encoding="cp1252")


def test_a_written_table_is_read_back(tmp_path):
    images = [f"sub, folder/{i}.png" for i in range(len(LABELS))]
    write_table(tmp_path / "train.csv", images, LABELS, CLASSES, patients=list("uvwxyz"))
    table = load_table(card_with(tmp_path, classes=list(CLASSES)), "train.csv", CLASSES)
    assert np.array_equal(table.labels, LABELS)
    assert (table.images, table.patients) == (tuple(images), tuple("uvwxyz"))


@pytest.mark.parametrize("patients", [(), ("p1", "p2", "p3")], ids=["without patients", "with patients"])
def test_a_written_single_label_table_is_read_back(tmp_path, patients):
    images = ["x.png", "y.png", "z.png"]
    write_table(tmp_path / "train.csv", images, np.array([2, -1, 0]), CLASSES, patients=patients)
    header = "image,patient,label" if patients else "image,label"
    assert (tmp_path / "train.csv").read_text().splitlines()[0] == header
    table = load_table(card_with(tmp_path, task="singlelabel", classes=list(CLASSES)), "train.csv", CLASSES)
    assert table.labels.tolist() == [[0, 0, 1], [-1, -1, -1], [1, 0, 0]]
    assert (table.images, table.patients) == (tuple(images), patients or ("",) * 3)
    assert table.annotated.all()


def test_a_single_label_is_written_as_the_name_of_its_class_or_a_blank(tmp_path):
    write_table(tmp_path / "train.csv", ["x.png", "y.png"], np.array([1, -1], dtype=np.int8), ("a", "b"))
    assert (tmp_path / "train.csv").read_text().splitlines() == ["image,label", "x.png,b", "y.png,"]


def test_a_single_label_keeps_its_class_in_the_jobs_order(tmp_path):
    card = card_with(tmp_path, task="singlelabel")
    write_table(tmp_path / "train.csv", ["x.png", "y.png"], np.array([0, 1]), ("a", "b"))
    assert load_table(card, "train.csv", ("b", "a")).labels.tolist() == [[0, 1], [1, 0]]


def test_the_fingerprint_covers_classes_images_and_labels_and_nothing_else(tmp_path):
    base = table_of(tmp_path, "image,a,b\nx.png,1,0\n").fingerprint()
    assert table_of(tmp_path, "image,patient,a,b\n\nx.png,p1,1,0\n").fingerprint() == base
    others = [
        table_of(tmp_path, "image,a,b\nx.png,1,\n"),
        table_of(tmp_path, "image,a,b\ny.png,1,0\n"),
        table_of(tmp_path, "image,a,c\nx.png,1,0\n", classes=("a", "c")),
    ]
    assert len({base, *(table.fingerprint() for table in others)}) == 4


def test_the_factory_makes_a_single_label_folder_that_can_be_read(tmp_path):
    card = load_card(make_site_folder(tmp_path / "site", [1, 0, -1]), "site-1")
    labels = load_table(card, "train.csv", CLASSES).labels
    assert (card.kind, labels.tolist()) == ("singlelabel", [[0, 1, 0], [1, 0, 0], [-1, -1, -1]])


def test_the_factory_makes_a_folder_that_can_be_read(tmp_path):
    card = load_card(make_site_folder(tmp_path / "site"), "site-1")
    assert np.array_equal(load_table(card, "train.csv", CLASSES).labels, LABELS)


@pytest.mark.parametrize("name", ["/data/MUELLER/train.csv", "../other/train.csv"])
def test_a_table_outside_the_site_folder_is_refused_without_naming_it(tmp_path, name):
    folder = make_site_folder(tmp_path / "s")
    card = json.loads((folder / "site.json").read_text())
    (folder / "site.json").write_text(json.dumps({**card, "splits": {"train": name}}))
    with refused("site-1: site.json, field splits: expected file names below the site folder, got another dict"):
        load_card(folder, "site-1")


def test_a_card_of_volumes_says_which_value_is_the_lesion(tmp_path):
    assert card_with(tmp_path, task="segmentation").foreground == 1
    options = {"classes": ["lesion"], "splits": {"train": "datalist.json"}, "image_root": "."}
    write_card(tmp_path, task="segmentation", foreground=3, window="lung", **options)
    card = load_card(tmp_path, "site-1")
    assert (card.kind, card.foreground, card.window) == ("segmentation", 3, (-600.0, 1500.0))
    write_card(tmp_path, task="segmentation", **options)
    assert load_card(tmp_path, "site-1").foreground == 1


@pytest.mark.parametrize(("value", "kind"), [(0, "int"), (-1, "int"), (True, "bool"), (1.0, "float"), ("1", "str")])
def test_a_lesion_value_that_no_label_file_can_have_is_refused(tmp_path, value, kind):
    with refused(f"site-1: site.json, field foreground: expected a whole number >= 1, got another {kind}"):
        card_with(tmp_path, task="segmentation", foreground=value)


def test_an_image_is_one_and_a_patient_is_one_however_they_are_written(tmp_path):
    table = table_of(tmp_path, "image,patient,a\nx/1.png,7,1\n./x//1.png,7,1\nx/2.png,7.0,0\n")
    assert (table.images, table.patients) == (("x/1.png", "x/2.png"), ("7", "7"))
    with refused("site-1: train.csv row 3: expected the labels of row 2, which names the same image, got others"):
        table_of(tmp_path, "image,a\nx/1.png,1\nx\\1.png,0\n")


def test_columns_that_the_card_names_are_read_beside_the_labels(tmp_path):
    card = card_with(tmp_path, columns=["sex", "b"])
    (tmp_path / "train.csv").write_text("image,sex,a,b,study\n1.png, F ,1,0,s1\n2.png,,0,1,s2\n1.png,M,1,0,s3\n")
    table = load_table(card, "train.csv", ("a", "b"))
    assert table.about == {"study": ("s1", "s2"), "sex": ("F", "")}  # b is a class; the first of two equal rows counts
    assert table.labels.tolist() == [[1, 0], [0, 1]]
    with refused("site-1: train.csv, header: expected columns out of ['a', 'b'], got ['a'] and 1 unknown"):
        table_of(tmp_path, "image,sex,a\n1.png,F,1\n")
    with refused("site-1: site.json, field columns: expected a list of names of columns, got another str"):
        card_with(tmp_path, columns="sex")


# ---- studies --------------------------------------------------------------------------------------------------------
def studies_of(folder, text):
    card = card_with(folder, sample="study")
    (folder / "train.csv").write_text(text)
    return load_table(card, "train.csv", ("a", "b"))


def test_rows_of_one_study_are_one_sample_wherever_they_stand(tmp_path):
    table = studies_of(tmp_path, "image,patient,study,a\n1.png,P,S,1\n2.png,Q,T,0\n3.png,P,S,1\n")
    assert (table.images, table.slices) == (("S", "T"), (("1.png", "3.png"), ("2.png",)))
    assert (table.patients, table.rows.tolist()) == (("P", "Q"), [2, 3])
    assert table.labels.tolist() == [[1, -1], [0, -1]]
    assert (table.paths(0), table.middle(0), table.middle(1)) == (("1.png", "3.png"), "3.png", "2.png")


def test_other_slices_make_other_data(tmp_path):
    one, other = (studies_of(tmp_path, f"image,study,a\n1.png,S,1\n{n}.png,S,1\n") for n in (2, 3))
    assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("image,a\n1.png,1\n", "train.csv, header: expected a column 'study' for samples that are studies, got none"),
        ("image,study,a\n1.png, ,1\n", "train.csv row 2, column study: expected a study, got a blank"),
        (
            "image,study,a\n1.png,S,1\n2.png,S,0\n",
            "train.csv row 3: expected the labels of row 2, which is of the same study, got others",
        ),
        (
            "image,patient,study,a\n1.png,P,S,1\n2.png,Q,S,1\n",
            "train.csv row 3, column patient: expected that of row 2, which is of the same study, got another",
        ),
    ],
)
def test_studies_that_cannot_be_are_refused(tmp_path, text, sentence):
    with refused(f"site-1: {sentence}"):
        studies_of(tmp_path, text)


def test_a_sample_is_an_image_or_a_study(tmp_path):
    assert card_with(tmp_path).sample == "image"
    with refused("site-1: site.json, field sample: expected one of ['image', 'study'], got another str"):
        card_with(tmp_path, sample="series")
