"""The questions of ``fedmend init``, their proposals, and what comes of the answers."""

import json
import shlex

import numpy as np
import pytest
from cli_calls import call
from factories import make_dicom, pixels, refused, write_png
from PIL import Image

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets.own_csv import class_names
from fedmend.datasets.own_wizard import Answers, Wizard, guess_classes, guess_columns, nearly_classes


@pytest.fixture
def films(tmp_path):
    """Twelve pictures of six patients with a spreadsheet's table."""
    lines = ["File;Patient ID;Age;effusion;mass"]
    for i in range(12):
        write_png(tmp_path / "films" / f"{i}.png", i, 64)
        lines.append(f"{i}.png;Jane {i // 2};6{i};{i % 2};{'' if i % 3 else 1}")
    (tmp_path / "films" / "labels.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    return tmp_path / "films"


@pytest.fixture
def talk():
    """Plays a conversation; gives the folder, the questions and what was said."""

    def play(answers, **given):
        questions, said, answers = [], [], iter(answers)

        def ask(question):
            questions.append(question)
            return next(answers)

        return Wizard(Answers(**given), ask, said.append).run(), questions, said

    return play


def test_empty_answers_take_what_is_proposed(films, talk, monkeypatch):
    monkeypatch.chdir(films)
    out, questions, said = talk([""] * 8)
    card = load_card(out, "site-1")
    assert out == films.with_name("films-site")
    assert (card.kind, card.classes, card.window) == ("multilabel", ("effusion", "mass"), None)
    assert card.image_root == films
    assert [question.split(" [")[0] for question in questions] == [
        "Folder of the images",
        "Table of labels (CSV) or datalist (JSON)",
        "Columns with other names",
        "All classes of the federation, comma-separated",
        "Window",
        "Share of the test split",
        "Share of the validation split",
        "Site folder to write",
    ]
    assert questions[2].endswith("[image=File patient=Patient ID]: ")
    assert "Window: none is proposed: pictures in 8 bits are taken as they are" in said
    assert "rows x columns: 64 x 64 to 64 x 64" in said
    sizes = {name: len(load_table(card, file, card.classes).images) for name, file in card.splits.items()}
    assert sizes == {"train": 8, "test": 2, "val": 2}


def test_other_answers_are_taken_and_noted(films, talk, tmp_path):
    out, _, said = talk(
        ["40,80", "0.5", "0", str(tmp_path / "x")], folder=str(films), labels=str(films / "labels.csv"),
        columns=("image=File",), classes="mass,nodule",
    )  # fmt: skip
    card = load_card(out, "site-1")
    assert (card.classes, card.window, set(card.splits)) == (("mass", "nodule"), (40, 80), {"train", "test"})
    notes = json.loads((out / "site.json").read_text())["notes"]
    assert notes["window"].startswith("as asked; looking at the images would give null: pictures in 8 bits")
    assert any(line.startswith("splits = ") and line.endswith(notes["splits"]) for line in said)


def test_the_command_that_it_names_makes_the_same_folder(films, talk, tmp_path):
    given = {"folder": str(films), "labels": str(films / "labels.csv"), "columns": ("image=File",), "classes": "mass"}
    out, _, said = talk([], **given, window="40,80", test_share=0.5, val_share=0.0, out=str(tmp_path / "a"))
    (command,) = [line.removeprefix("the same again: ") for line in said if line.startswith("the same again: ")]
    words = shlex.split(command)[1:]
    words[words.index(str(tmp_path / "a"))] = str(tmp_path / "b")
    assert call(*words) == 0
    for file in ("site.json", "train.csv", "test.csv"):
        assert (out / file).read_text() == (tmp_path / "b" / file).read_text()


def test_a_column_of_few_words_is_taken_for_the_label(tmp_path):
    records = [{"File": "x", "Name": f"n{i}", "Diagnosis": "ab"[i % 2]} for i in range(12)]
    assert guess_columns(["File", "Name", "Diagnosis"], records, tmp_path) == {"label": "Diagnosis"}


def test_columns_that_describe_patient_or_image_name_neither_patients_nor_classes(tmp_path):
    write_png(tmp_path / "a.png", 1, 64)
    row = {"image": "a.png", "Patient's Sex": "F", "view": "PA", "PatientAge": "40", "PatientID": "7", "Befund": "a"}
    records = [{**row, "Befund": "ab"[i % 2], "view": ["PA", "AP"][i % 2]} for i in range(12)]
    assert guess_columns([*row], records, tmp_path) == {"patient": "PatientID", "label": "Befund"}
    named = [{name: cell for name, cell in record.items() if name != "PatientID"} for record in records]
    assert guess_columns([*named[0]], named, tmp_path) == {"label": "Befund"}
    flags = [
        (2, {"image": "a.png", "sex": "1", "fold": "0", "edema": "1"}),
        (3, {"sex": "0", "fold": "1", "edema": "0"}),
    ]
    assert guess_classes(["image", "sex", "fold", "edema"], flags, "t.csv") == ["edema"]


def test_columns_of_true_and_false_are_classes_and_none_of_them_the_label(tmp_path, talk):
    lines = ["image;patient;edema;mass"]
    for i in range(12):
        write_png(tmp_path / "films" / f"{i}.png", i, 64)
        lines.append(f"{i}.png;p{i};{'WAHR' if i % 2 else 'FALSCH'};{bool(i % 3)}")
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    out, _, _ = talk([""] * 4, folder=str(tmp_path / "films"), labels=str(tmp_path / "t.csv"), out=str(tmp_path / "x"))
    card = load_card(out, "site-1")
    assert (card.kind, card.classes) == ("multilabel", ("edema", "mass"))


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("fichier,sexe,date examen,numéro patient,diagnostic", "image,,,patient,label"),
        ("archivo,sexo,fecha,paciente,diagnóstico", "image,,,patient,label"),
        ("Bild,Geschlecht,Untersuchungsdatum,Pat.-Nr.,Befund", "image,,,patient,label"),
        ("file,sesso,età,paziente,diagnosi", "image,,,patient,label"),
    ],
)
def test_columns_in_other_languages_are_known(tmp_path, header, found):
    write_png(tmp_path / "a.png", 1, 64)
    names = header.split(",")
    records = [
        dict(zip(names, ["a.png", "fm"[i % 2], "ab"[i % 2], f"p{i}", "xy"[i % 2]], strict=True)) for i in range(12)
    ]
    assert guess_columns(names, records, tmp_path) == {
        new: old for new, old in zip(found.split(","), names, strict=True) if new
    }


def test_a_column_that_would_be_a_class_but_for_some_cells_is_named(tmp_path, talk):
    rows = [(i, {"a": "pos." if i % 2 else "neg.", "b": "10?9"[i % 4], "c": "text", "sex": "1"}) for i in range(8)]
    assert guess_classes(["a", "b", "c", "sex"], rows, "t.csv") == ["a"]
    assert nearly_classes(["a", "b", "c", "sex"], rows) == {"b": 2}
    lines = ["image;edema;mass", *(f"{i}.png;{i % 2};{9 if i == 5 else i % 2}" for i in range(8))]
    for i in range(8):
        write_png(tmp_path / "films" / f"{i}.png", i, 64)
    (tmp_path / "t.csv").write_text("\n".join(lines))
    given = {"folder": str(tmp_path / "films"), "labels": str(tmp_path / "t.csv"), "out": str(tmp_path / "x")}
    _, _, said = talk([""] * 4, **given)
    assert "no classes, as some cells are neither 1, 0 or blank nor words for them: mass (1 of 8)" in said


@pytest.mark.parametrize("cells", ["NY", "21", "jn"])
def test_columns_with_the_same_unknown_words_are_not_taken_for_one_column_of_classes(tmp_path, cells):
    header = ["image", "EDH", "SDH", "scanner type"]
    rows = [(i, dict(zip(header, ["a.png", cells[i % 2], cells[i // 2 % 2], "x"], strict=True))) for i in range(12)]
    assert guess_columns(header, [record for _, record in rows], tmp_path) == {}
    assert nearly_classes(header, rows) == dict.fromkeys(["EDH", "SDH"], 6 if "1" in cells else 12)
    told = [(i, {**record, "Diagnosis": "ab"[i % 2]}) for i, record in rows]
    assert guess_columns([*header, "Diagnosis"], [record for _, record in told], tmp_path) == {"label": "Diagnosis"}


def test_columns_that_are_left_out_are_named(films, talk, tmp_path):
    given = {"folder": str(films), "labels": str(films / "labels.csv"), "out": str(tmp_path / "x")}
    _, _, said = talk([""] * 5, **given)
    assert "columns that are left out: Age" in said


def test_a_column_of_1_and_0_without_a_name_is_left_out_and_this_is_said(films, talk, tmp_path):
    lines = (films / "labels.csv").read_text(encoding="utf-8-sig").splitlines()
    lines = [";" + lines[0], *(f"{i % 2};{line}" for i, line in enumerate(lines[1:]))]
    (films / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    given = {"folder": str(films), "labels": str(films / "labels.csv"), "out": str(tmp_path / "x")}
    out, questions, said = talk([""] * 5, **given)
    assert load_card(out, "site-1").classes == ("effusion", "mass")
    assert questions[1].endswith("[effusion,mass]: ")
    assert "columns that are left out: one without a name, Age" in said


def test_dicom_files_without_labels_become_a_table_to_be_filled_in(tmp_path, talk):
    make_dicom(tmp_path / "ct" / "a", pixels(1), Modality="CT", PatientID="MRN1")
    out, _, said = talk(["edema,mass", ""], folder=str(tmp_path / "ct"), labels="none")
    assert (out / "images.csv").read_text().startswith("image,patient,study,series,slice,modality,edema,mass\n")
    assert "1 images of 1 patients in 0 studies and 0 series" in said


NO_TABLE = (
    "init, table of labels: expected a table beside pictures, or a datalist as `fedmend prepare volumes` writes it"
    " (--labels FILE), got none"
)


def test_pictures_without_labels_are_refused(films, talk):
    (films / "labels.csv").unlink()
    with refused(NO_TABLE):
        talk([""], folder=str(films))


def test_volumes_without_a_datalist_are_refused_and_not_taken_for_dicom(tmp_path, talk):
    (tmp_path / "ms" / "sub-01").mkdir(parents=True)
    for name in ("flair.nii.gz", "flair.json", "mask.NII"):
        (tmp_path / "ms" / "sub-01" / name).write_bytes(b"")
    with refused(NO_TABLE):
        talk([""], folder=str(tmp_path / "ms"))


def test_labels_by_study_are_joined_to_dicom_files(tmp_path, talk):
    lines = ["AccessionNumber,finding"]
    for i in range(8):
        make_dicom(
            tmp_path / "ct" / f"IM{i}", pixels(i), Modality="CT", BodyPartExamined="HEAD", AccessionNumber=f"A{i}"
        )
        lines.append(f"A{i},{i % 2}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    out, questions, _ = talk([""] * 5, folder=str(tmp_path / "ct"), labels=str(tmp_path / "labels.csv"))
    card = load_card(out, "site-1")
    assert (card.window, card.classes) == ((40, 80), ("finding",))
    assert questions[0].endswith("[finding]: ")


def test_a_datalist_becomes_a_site_of_its_kind(tmp_path, talk):
    items = []
    for i in range(8):
        write_png(tmp_path / "data" / f"{i}.png", i)
        items.append({"image": f"{i}.png", "label": i % 2})
    (tmp_path / "data" / "list.json").write_text(json.dumps({"training": items}))
    out, _, _ = talk([""] * 6, folder=str(tmp_path / "data"))
    assert load_card(out, "site-1").classes == ("class_0", "class_1")


def test_the_command_asks_nothing_with_yes(films, capsys, monkeypatch):
    monkeypatch.setattr("builtins.input", None)
    assert call("init", films, "--yes") == 0
    assert "fedmend sitecheck" in capsys.readouterr().out
    assert load_card(films.with_name("films-site"), "site-1").kind == "multilabel"


def test_an_input_that_ends_is_one_sentence(films, capsys, monkeypatch):
    def end(_):
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    assert call("init", films) == 1
    sentence = "fedmend: init: expected an answer, got the end of the input; --yes takes what is proposed\n"
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"folder": "no"}, "init, folder of the images: expected a folder, not found"),
        ({"labels": "no.csv"}, "init, table of labels: expected a file, not found"),
        ({"test_share": "much"}, "init, test_share: expected a number, got another answer"),
    ],
)
def test_wrong_answers_are_refused(films, talk, given, sentence):
    with refused(sentence):
        talk([""] * 9, **{"folder": str(films), **given})


def chexpert(folder, cells=("1.0", "0.0", "-1.0", "")):
    """Two views of each of twelve patients, who are named in the path only; some labels are uncertain."""
    lines = ["Path,Sex,Edema,Cardiomegaly"]
    for i in range(24):
        path = f"train/patient{i // 2:05d}/view{i % 2}.png"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_png(folder / path, i, 40)
        lines.append(f"{path},Female,{cells[i // 2 % 4]},{cells[i // 2 % 2]}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


def test_uncertain_labels_and_patients_in_paths_are_asked_for(tmp_path, talk):
    folder = chexpert(tmp_path / "x")
    out, questions, said = talk(
        ["", "", "positive", "", "", "0.25", "0.25", ""], folder=str(folder), labels=str(folder / "labels.csv")
    )
    assert questions[2].startswith("Uncertain labels are taken as")
    assert questions[3].startswith("Patients by the part of the path that fits [(?i)patient")
    assert any(line.startswith("Share of the test split: 0.2 is proposed: of the patients") for line in said)
    card = load_card(out, "site-1")
    tables = [load_table(card, file, card.classes) for file in card.splits.values()]
    seen = [{image.split("/")[1] for image in table.images} for table in tables]
    assert sum(map(len, seen)) == len(set.union(*seen)) == 12
    labels = {image: row[0] for t in tables for image, row in zip(t.images, t.labels.tolist(), strict=True)}
    assert [labels[f"train/patient{p:05d}/view0.png"] for p in range(4)] == [1, 0, 1, -1]
    (line,) = [line for line in said if line.startswith("the same again: ")]
    assert "--uncertain positive --patient-from-path '(?i)patient" in line


def test_nobody_is_asked_for_a_share_of_patients_where_none_are_known(tmp_path, talk):
    for i in range(12):
        write_png(tmp_path / "x" / f"{i}.png", i, 40)
    (tmp_path / "x" / "labels.csv").write_text("\n".join(["image,edema", *(f"{i}.png,{i % 2}" for i in range(12))]))
    _, _, said = talk([""] * 10, folder=str(tmp_path / "x"))
    assert any("0.2 is proposed: of the images, as no patients are known" in line for line in said)
    assert any(line.startswith("patients: WARNING: no patient is known of 12 of 12 images") for line in said)


def test_classes_out_of_a_data_frame_are_proposed_once_each(tmp_path, talk):
    cells = ["1.0", "2.0", "nan", "Naevus", "naevus", "1"]
    for i in range(12):
        write_png(tmp_path / "x" / f"{i}.png", i, 40)
    rows = [f"{i}.png,{i},{cells[i % 6]}" for i in range(12)]
    (tmp_path / "x" / "labels.csv").write_text("\n".join(["image,patient,label", *rows]))
    out, questions, _ = talk([""] * 10, folder=str(tmp_path / "x"))
    assert "All classes of the federation, comma-separated [1,2,Naevus]: " in questions
    assert load_card(out, "site-1").classes == ("1", "2", "Naevus")


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["Edema, left", '5" mass'], ['"Edema, left"', '"5"" mass"']),
        (["Pleural Effusion", "Mass"], ['"Pleural\nEffusion"', "Mass"]),  # a line break is a blank
    ],
)
def test_a_class_whose_name_has_a_comma_or_a_line_break_stays_one_class(tmp_path, talk, single, names, written):
    header, cells = ("image,label", written) if single else (",".join(["image", *written]), ["1,0", "0,1"])
    for i in range(8):
        write_png(tmp_path / "x" / f"{i}.png", i, 40)
    (tmp_path / "x" / "labels.csv").write_text("\n".join([header, *(f"{i}.png,{cells[i % 2]}" for i in range(8))]))
    out, _, said = talk([""] * 10, folder=str(tmp_path / "x"))
    card = load_card(out, "site-1")
    table = load_table(card, "train.csv", names)
    assert set(card.classes) == {*names}
    own = table.labels[np.arange(len(table.images)), [int(image[0]) % 2 for image in table.images]]
    assert own.all()
    assert table.labels.sum() == len(own)
    words = next(shlex.split(line) for line in said if line.startswith("the same again: "))
    assert class_names(words[words.index("--classes") + 1]) == card.classes


def test_a_table_that_names_no_file_of_the_folder_is_told_that_endings_belong_to_paths(films, talk):
    (films / "labels.csv").write_text("File,mass\n" + "\n".join(f"{i},{i % 2}" for i in range(12)))
    with refused(
        "labels.csv, header: expected a column with paths of images below their folder, endings included, or one of"
        " ['SOPInstanceUID', 'SeriesInstanceUID', 'StudyInstanceUID', 'AccessionNumber', 'PatientID']"
        " (--columns image=ITS_NAME), got others"
    ):
        talk([""] * 10, folder=str(films))


def test_prepare_and_init_end_with_the_same_look_at_the_training_images(films, tmp_path, capsys):
    for number in range(3):
        Image.fromarray(np.full((64, 64), 255, dtype=np.uint8)).save(films / f"{number}.png")
    shares = "--test-share=0", "--val-share=0"
    call("init", str(films), "--out", str(tmp_path / "a"), "--yes", *shares)
    told = capsys.readouterr().out
    columns = ["--columns", "image=File", "patient=Patient ID", "--classes", "effusion,mass"]
    call("prepare", "csv", str(films / "labels.csv"), str(tmp_path / "b"), *columns, *shares)
    assert told.splitlines()[-5:-2] == capsys.readouterr().out.splitlines()[-5:-2]
    *_, line, one, white, where, last = told.splitlines()
    assert line.startswith("grey values in use ")
    assert one == "warning: 3 of 12 images have one grey value"
    assert white == "warning: 3 of 12 images are white in more than 50% of their pixels"
    assert where.endswith(str(tmp_path / "a" / "contact_sheet.png"))
    assert last.endswith(f"fedmend sitecheck {tmp_path / 'a'}")
    assert Image.open(tmp_path / "a" / "contact_sheet.png").size == (6 * 164 + 4, 2 * 164 + 4)
