"""Predictions of tiny packages, whose networks have their initial weights."""

import csv
import json
import re
from dataclasses import replace

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from factories import make_dicom, refused, write_png
from package_factories import balance
from pydicom import Dataset
from result_factories import PREPARED

from fedmend import Package
from fedmend.data.readers import read_image, resize
from fedmend.datasets import own_dicom
from fedmend.datasets.own_site import SiteChoices
from fedmend.errors import FedMendError
from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.package import masks as mask_files
from fedmend.package import predict as module
from fedmend.package.explain import explain
from fedmend.package.inputs import find_items
from fedmend.records.package_files import write_package

CLASSES = ["edema", "nodule"]
CHOSEN = {"threshold": [0.3, 0.6], "not_sure": [[0.2, 0.4], [0.5, 0.7]]}


def package(
    folder,
    kind="multilabel",
    network="resnet_narrow",
    classes=CLASSES,
    seed=3,
    change=lambda network: None,
    chosen=CHOSEN,
    **prepared,
):
    about = {
        "name": "run-1",
        "phantom": True,
        "kind": kind,
        "classes": classes,
        "network": {"name": network, "arguments": {"num_classes": len(classes)}},
        "preprocessing": replace(PREPARED, **prepared).of_package(kind),
        "thresholds": chosen if kind == "multilabel" else {},
    }
    model = initial_network(network, classes, seed)
    change(model)
    weights = {k: v.numpy() for k, v in get_weights(model).items()}
    write_package(folder / "run-1.fedmend", about, weights)
    return Package(folder / "run-1.fedmend")


def table(file):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def slices(folder, count=5, **fields):
    """DICOM slices of two studies, in HU."""
    for n in range(count):
        stored = np.random.default_rng(n).integers(0, 80, (40, 40))
        make_dicom(folder / f"{n}.dcm", stored, StudyInstanceUID=f"1.{n % 2}", Modality="CT", **fields)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"processes": "2"}, "processes: expected a whole number >= 1, got '2'"),
        ({"processes": 1.5}, "processes: expected a whole number >= 1, got 1.5"),
        ({"processes": 0}, "processes: expected a whole number >= 1, got 0"),
        ({"progress": None}, "progress: expected a function of two numbers, got None"),
        ({"source": None}, "source: expected a path that can be looked up, got None"),
        ({"out": "a\0b"}, "out: expected a path that can be looked up, got 'a\\x00b'"),
        ({"dicom": 3}, "dicom: expected a path that can be looked up, got 3"),
        ({"device": 1.5}, "--device: expected cpu, cuda or cuda:NUMBER of a GPU of this machine, got 1.5"),
    ],
)
def test_what_python_gives_in_another_type_is_refused_in_a_sentence(tmp_path, given, sentence):
    slices(tmp_path, 1)
    with pytest.raises(FedMendError, match=re.escape(sentence)):
        package(tmp_path).predict(**({"source": tmp_path / "0.dcm", "out": tmp_path / "out"} | given))


def test_a_table_that_is_not_there_is_refused_as_a_folder_is(tmp_path):
    file = tmp_path / "asked.csv"
    with refused(f"predict: expected a folder, an image or a CSV, {file} is not there"):
        find_items(file, modality="CT", volumes=False)


def test_a_file_where_the_results_should_be_is_refused(tmp_path):
    slices(tmp_path, 1)
    file = str(tmp_path / "0.dcm")
    with refused(f"out: expected a folder, or the name of a new one, got {file!r:.120}"):
        package(tmp_path).predict(file, file)


def test_scores_are_those_of_the_pixels_that_a_site_would_have_stored(tmp_path):
    slices(tmp_path / "in")
    made = package(tmp_path)
    found = made.predict(tmp_path / "in", tmp_path / "out")
    assert (found.images, found.problems) == (5, 0)
    images = [resize(read_image(tmp_path / "in" / f"{n}.dcm", (40.0, 80.0)), 32) for n in range(5)]
    pixels = torch.from_numpy(np.stack(images)).float().div(255).sub(0.5).div(0.25)[:, None].expand(-1, 3, -1, -1)
    with torch.no_grad():
        wanted = made.network()(pixels)[1].sigmoid().numpy()
    rows = table(tmp_path / "out" / "predictions.csv")
    scores = np.array([[float(row[f"{c}_probability"]) for c in CLASSES] for row in rows])
    assert scores == pytest.approx(wanted, abs=1e-6)
    assert [(row["image"], row["study"]) for row in rows] == [(f"{n}.dcm", f"1.{n % 2}") for n in range(5)]
    studies = table(tmp_path / "out" / "studies.csv")
    assert [(s["study"], s["images"], s["problems"]) for s in studies] == [("1.0", "3", "0"), ("1.1", "2", "0")]
    assert [float(s["nodule_probability"]) for s in studies] == pytest.approx(
        [wanted[::2, 1].max(), wanted[1::2, 1].max()]
    )


def test_a_model_of_studies_sees_some_slices_of_each_in_the_order_of_their_numbers(tmp_path):
    for n, number in enumerate((3, 1, 2, 4)):
        stored = np.random.default_rng(number).integers(0, 80, (40, 40))
        make_dicom(tmp_path / "in" / f"{n}.dcm", stored, StudyInstanceUID="1.5", InstanceNumber=number)
    slices(tmp_path / "in" / "others", 2)
    made = package(tmp_path, network="study/resnet_narrow", study_slices=2)
    made.predict(tmp_path / "in", tmp_path / "out")
    rows = table(tmp_path / "out" / "predictions.csv")
    assert [row["study"] for row in rows] == ["1.5", "1.0", "1.1"]
    seen = [resize(read_image(tmp_path / "in" / f"{n}.dcm", (40.0, 80.0)), 32) for n in (1, 3)]  # numbers 1 and 4
    pixels = torch.from_numpy(np.stack(seen)).float().div(255).sub(0.5).div(0.25)[:, None].expand(-1, 3, -1, -1)
    with torch.no_grad():
        wanted = made.network()(pixels.flatten(0, 1)[None])[1].sigmoid().numpy()[0]
    assert [float(rows[0][f"{c}_probability"]) for c in CLASSES] == pytest.approx(wanted, abs=1e-6)
    studies = table(tmp_path / "out" / "studies.csv")
    assert [(s["study"], s["images"], s["edema_probability"]) for s in studies] == [
        (row["study"], "1", row["edema_probability"]) for row in rows
    ]


def test_a_model_of_studies_sees_the_slices_that_it_saw_at_a_site(tmp_path):
    archive, turn = tmp_path / "archive", [1, 0, 0, 0, 1, 0]
    for patient in range(2):
        for series, count in (("2", 7), ("1", 4)):
            for n in range(count):
                uid = f"1.{patient}.{series}"
                about = {"PatientID": str(patient), "StudyInstanceUID": f"1.{patient}", "SeriesInstanceUID": uid}
                about |= {"SOPInstanceUID": f"{uid}.{n}", "InstanceNumber": count - n, "Modality": "CT"}
                place = {"ImagePositionPatient": [0, 0, 3 * n], "ImageOrientationPatient": turn}
                stored = np.random.default_rng([patient, int(series), n]).integers(-900, 80, (40, 40))
                make_dicom(archive / f"{patient}{series}{n}", stored, **about, **place)
    (tmp_path / "labels.csv").write_text("PatientID,edema,nodule\n0,1,0\n1,0,1\n")
    choices = SiteChoices(test_share=0, val_share=0, per_study=True)
    own_dicom.prepare(archive, tmp_path / "site", labels=tmp_path / "labels.csv", choices=choices, processes=1)
    (archive / "train.csv").write_text((tmp_path / "site" / "train.csv").read_text())
    made = package(tmp_path, network="study/resnet_narrow", study_slices=3)
    found = []
    for source, out in ((archive, "a"), (archive / "train.csv", "b")):
        made.predict(source, tmp_path / out)
        found.append([[row[f"{c}_probability"] for c in CLASSES] for row in table(tmp_path / out / "predictions.csv")])
    assert found[0] == found[1]


def test_a_slice_whose_number_is_none_is_an_image_like_others(tmp_path):
    slices(tmp_path / "in", 2)
    file = tmp_path / "in" / "1.dcm"
    content = pydicom.dcmread(file)
    content.add(pydicom.DataElement("InstanceNumber", "IS", "1"))
    content.save_as(file)
    file.write_bytes(file.read_bytes().replace(b"IS\x02\x001 ", b"IS\x02\x00x "))
    assert pydicom.dcmread(file).InstanceNumber == "x"
    _, items, _ = find_items(tmp_path / "in", modality="CT", volumes=False)
    assert [(item.study, item.number) for item in items] == [("1.0", 0), ("1.1", 0)]


def test_a_volume_whose_header_says_more_slices_than_the_file_holds_is_one_item(tmp_path):
    header = nibabel.Nifti2Header()
    header.set_data_shape((2, 2, 10**12))
    (tmp_path / "a.nii").write_bytes(header.binaryblock + bytes(100))
    _, items, _ = find_items(tmp_path / "a.nii", modality="MR", volumes=False)
    assert [item.name for item in items] == ["a.nii"]


@pytest.mark.parametrize("axes", ["RAS", "LPI", "PSR", "ASL"])
def test_all_axial_slices_of_a_volume_are_asked_about_however_it_is_stored(tmp_path, axes):
    turn = nibabel.orientations.ornt_transform(
        nibabel.io_orientation(np.eye(4)), nibabel.orientations.axcodes2ornt(axes)
    )
    upright = nibabel.Nifti1Image(np.random.default_rng(0).random((3, 4, 6)), np.eye(4))
    nibabel.save(upright.as_reoriented(turn), tmp_path / "v.nii")
    _, items, _ = find_items(tmp_path, modality="", volumes=False)
    assert [item.name for item in items] == [f"v.nii#{n}" for n in range(6)]
    assert len({read_image(tmp_path / item.name, None).tobytes() for item in items}) == 6


@pytest.mark.parametrize("volumes", [False, True])
@pytest.mark.parametrize("name", ["a.dcm", "IM1"])
def test_a_file_whose_header_says_more_frames_than_it_holds_is_one_item(tmp_path, volumes, name):
    make_dicom(tmp_path / name, np.zeros((40, 40)), Modality="CT", NumberOfFrames=100_000)
    (tmp_path / "notes").write_text("no DICOM")
    _, items, _ = find_items(tmp_path, modality="CT", volumes=volumes)
    assert [item.name for item in items] == [name]


def test_a_study_whose_uid_cannot_be_printed_is_called_by_its_file(tmp_path):
    make_dicom(tmp_path / "in" / "a.dcm", np.zeros((8, 8)), Modality="CT", StudyInstanceUID="\x1b[2J1.2")
    _, items, _ = find_items(tmp_path / "in", modality="CT", volumes=False)
    assert [item.study for item in items] == ["a.dcm"]


def test_a_study_with_a_slice_that_cannot_be_read_is_a_row_with_the_reason(tmp_path):
    slices(tmp_path / "in", 4)
    (tmp_path / "list.csv").write_text("image,study\nin/0.dcm,s\nin/2.dcm,s\nin/1.dcm,t\nin/9.dcm,t\n")
    found = package(tmp_path, network="study/resnet_narrow", study_slices=2).predict(
        tmp_path / "list.csv", tmp_path / "out"
    )
    assert (found.images, found.problems) == (2, 1)
    assert [row["problem"] for row in table(tmp_path / "out" / "predictions.csv")] == ["", "expected a file, not found"]


def test_a_model_of_studies_has_no_maps_and_no_other_form(tmp_path):
    slices(tmp_path / "in", 2)
    made = package(tmp_path, network="study/resnet_narrow", study_slices=2)
    made.predict(tmp_path / "in", tmp_path / "out")
    with refused("--explain: expected a model of images, got one of whole studies"):
        explain(made, tmp_path / "in", tmp_path / "out", most=1)
    with refused("export: expected a model of images, got one of whole studies"):
        made.export(onnx=tmp_path / "model.onnx")


def test_the_stored_threshold_decides_and_the_band_around_it_is_not_sure(tmp_path):
    made = package(tmp_path)
    assert module._decided(made, np.array([0.35, 0.65])) == ["1", "1", "1", "1"]
    assert module._decided(made, np.array([0.25, 0.1])) == ["0", "0", "1", "0"]
    assert module._decided(made, np.array([0.3, 0.9])) == ["0", "1", "1", "0"]  # at the threshold: not above it


def test_whether_a_class_without_a_chosen_threshold_is_sure_is_not_known(tmp_path):
    slices(tmp_path / "in", 1)
    chosen = {"threshold": [0.3, 0.5], "not_sure": [[0.2, 0.4], [0.5, 0.5]], "temperature": [2.0, 1.0]}
    made = package(tmp_path, chosen={**chosen, "not_fitted": ["", "7 positives, 10 needed"]})
    assert module._decided(made, np.array([0.35, 0.65])) == ["1", "1", "1", "n/a"]
    made.predict(tmp_path / "in", tmp_path / "out")
    assert table(tmp_path / "out" / "studies.csv")[0]["nodule_not_sure"] == "n/a"
    about = json.loads((tmp_path / "out" / "predict.json").read_text())
    assert about["not_fitted"] == {"nodule": "n/a: 7 positives, 10 needed"}


def test_of_single_labels_the_highest_probability_decides(tmp_path):
    made = package(tmp_path, kind="singlelabel", classes=["a", "b", "c"])
    assert module._decided(made, np.array([0.2, 0.7, 0.1])) == ["b", "0"]
    assert module._decided(made, np.array([0.4, 0.3, 0.3])) == ["a", "1"]
    write_png(tmp_path / "in" / "1.png")
    made.predict(tmp_path / "in", tmp_path / "out")
    row = table(tmp_path / "out" / "predictions.csv")[0]
    scores = [float(row[f"{c}_probability"]) for c in "abc"]
    assert sum(scores) == pytest.approx(1)
    assert row["decision"] == "abc"[int(np.argmax(scores))]


def test_a_file_that_cannot_be_read_is_a_row_with_the_reason(tmp_path):
    slices(tmp_path / "in", 2)
    (tmp_path / "in" / "3.dcm").write_bytes(b"no DICOM")
    (tmp_path / "in" / "4.png").write_bytes(b"no picture")
    (tmp_path / "in" / "notes.txt").write_text("passed over")
    found = package(tmp_path).predict(tmp_path / "in", tmp_path / "out")
    assert (found.images, found.problems) == (4, 2)
    rows = table(tmp_path / "out" / "predictions.csv")
    assert [row["problem"] for row in rows[:2]] == ["", ""]
    assert rows[2]["problem"] == "expected a DICOM file, got something else"
    assert rows[3]["problem"].startswith("expected a PNG or JPEG picture, got a corrupt or truncated file")
    assert rows[3]["edema_probability"] == rows[3]["edema_decision"] == ""
    assert [s["problems"] for s in table(tmp_path / "out" / "studies.csv")] == ["0", "0", "1", "1"]


def test_a_table_names_images_and_studies(tmp_path):
    slices(tmp_path / "in", 2)
    (tmp_path / "list.csv").write_text("image,study\nin/1.dcm,second\nin/0.dcm,\nin/9.dcm,\n")
    package(tmp_path).predict(tmp_path / "list.csv", tmp_path / "out")
    rows = table(tmp_path / "out" / "predictions.csv")
    assert [row["study"] for row in rows] == ["second", "1.0", "in/9.dcm"]
    assert rows[2]["problem"] == "expected a file, not found"


def test_a_table_names_images_and_studies_in_other_spellings(tmp_path):
    slices(tmp_path / "in", 4)
    (tmp_path / "list.csv").write_text("Image,Study\nin\\0.dcm,7\n./in/1.dcm,7.0\nin/2.dcm,NA\nin/3.dcm,nan\n")
    _, items, _ = find_items(tmp_path / "list.csv", modality="CT", volumes=False)
    assert [(i.name, i.study) for i in items] == [
        ("in/0.dcm", "7"),
        ("in/1.dcm", "7"),
        ("in/2.dcm", "1.0"),
        ("in/3.dcm", "1.1"),
    ]
    (tmp_path / "list.csv").write_text("image,Image\nin/0.dcm,in/1.dcm\n")
    with refused("list.csv, header: expected one column 'image', got 2"):
        find_items(tmp_path / "list.csv", modality="CT", volumes=False)


def test_a_study_uid_of_two_patients_is_a_study_for_each(tmp_path):
    for n in range(4):
        one = {"StudyInstanceUID": "1.0", "SOPInstanceUID": f"1.9.{n}", "PatientID": f"P{n % 2}"}
        make_dicom(tmp_path / "in" / f"{n}.dcm", np.full((40, 40), n), Modality="CT", **one)
    wanted = {f"1.0 patient {n}" for n in (1, 2)}
    _, items, _ = find_items(tmp_path / "in", modality="CT", volumes=False)
    assert [i.study for i in items] == ["1.0 patient 1", "1.0 patient 2"] * 2
    (tmp_path / "list.csv").write_text("image,study\nin/0.dcm,\nin/1.dcm,\nin/2.dcm,a\nin/3.dcm,a\n")
    _, items, _ = find_items(tmp_path / "list.csv", modality="CT", volumes=False)
    assert {i.study for i in items} == wanted | {"a"}


@pytest.mark.parametrize(
    ("patients", "studies"),
    [(["A", ""], ["1.0", "1.0"]), (["A", "", "B"], ["1.0 patient 1", "1.0 patient unknown", "1.0 patient 2"])],
)
def test_an_image_without_a_patient_makes_no_second_one_of_its_study(tmp_path, patients, studies):
    for n, patient in enumerate(patients):
        one = {"StudyInstanceUID": "1.0", "SOPInstanceUID": f"1.9.{n}", "PatientID": patient}
        make_dicom(tmp_path / "in" / f"{n}.dcm", np.full((40, 40), n), Modality="CT", **one)
    _, items, _ = find_items(tmp_path / "in", modality="CT", volumes=False)
    assert [i.study for i in items] == studies


def test_what_a_mac_leaves_beside_files_is_no_image(tmp_path):
    slices(tmp_path / "in", 1)
    write_png(tmp_path / "in" / "a" / "0.png")
    for name in ("._0.dcm", "a/._0.png"):
        (tmp_path / "in" / name).write_bytes(b"\0\5\x16\7\0\2\0\0")
    _, items, _ = find_items(tmp_path / "in", modality="CT", volumes=False)
    assert [i.name for i in items] == ["0.dcm", "a/0.png"]


def test_a_table_of_a_spreadsheet_names_images_too(tmp_path):
    slices(tmp_path / "in", 2)
    (tmp_path / "list.csv").write_text("image;study\nin/1.dcm ; second\nin/0.dcm;\n", encoding="utf-8-sig")
    package(tmp_path).predict(tmp_path / "list.csv", tmp_path / "out")
    rows = table(tmp_path / "out" / "predictions.csv")
    assert [(row["image"], row["study"], row["problem"]) for row in rows] == [
        ("in/1.dcm", "second", ""),
        ("in/0.dcm", "1.0", ""),
    ]


def test_results_below_the_folder_of_the_images_are_none_of_them(tmp_path, monkeypatch):
    made = package(tmp_path, "segmentation", "unet_narrow", ["lesion"], window=None, modality="MR")
    (tmp_path / "in").mkdir()
    for number in range(2):
        values = np.random.default_rng(number).random((20, 24, 2)).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "in" / f"{number}.nii.gz")
    written, write = [], mask_files._write_mask

    def killed(*given):
        if written:
            raise KeyboardInterrupt
        written.append(given)
        return write(*given)

    monkeypatch.setattr(mask_files, "_write_mask", killed)
    with pytest.raises(KeyboardInterrupt):
        made.predict(tmp_path / "in", tmp_path / "in" / "out")
    monkeypatch.setattr(mask_files, "_write_mask", write)
    for out in ("out", "out", "other"):
        assert made.predict(tmp_path / "in", tmp_path / "in" / out).images == 2


@pytest.mark.parametrize("device", ["gpu", "cuda:77"])
def test_a_device_that_is_not_there_is_one_sentence(tmp_path, device):
    slices(tmp_path / "in", 1)
    got = f"'{device}', with {torch.cuda.device_count()} GPUs here"
    with refused(f"--device: expected cpu, cuda or cuda:NUMBER of a GPU of this machine, got {got}"):
        package(tmp_path).predict(tmp_path / "in", tmp_path / "out", device=device)


def test_slices_of_a_volume_and_frames_are_images(tmp_path):
    (tmp_path / "in").mkdir()
    nibabel.save(
        nibabel.Nifti1Image(np.random.default_rng(0).random((8, 9, 3)) * 80, np.eye(4)), tmp_path / "in" / "v.nii.gz"
    )
    make_dicom(tmp_path / "in" / "w.dcm", np.zeros((2, 8, 8)), NumberOfFrames=2, StudyInstanceUID="1.5")
    package(tmp_path).predict(tmp_path / "in", tmp_path / "out")
    rows = table(tmp_path / "out" / "predictions.csv")
    assert [row["image"] for row in rows] == ["v.nii.gz#0", "v.nii.gz#1", "v.nii.gz#2", "w.dcm#0", "w.dcm#1"]
    assert [row["problem"] for row in rows] == [""] * 5
    assert [s["study"] for s in table(tmp_path / "out" / "studies.csv")] == ["v.nii.gz", "1.5"]


def test_a_call_that_was_killed_goes_on_and_leaves_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 2)
    slices(tmp_path / "in")
    made = package(tmp_path)
    made.predict(tmp_path / "in", tmp_path / "whole")
    calls = []

    def stop(new, total):
        calls.append((new, total))
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.predict(tmp_path / "in", tmp_path / "out", progress=stop)
    assert calls == [(0, 5), (2, 5), (2, 5)]
    part = tmp_path / "out" / "predictions.csv.part"
    part.write_text(part.read_text() + "half a ro")
    made.predict(tmp_path / "in", tmp_path / "out", progress=lambda new, total: calls.append((new, total)))
    assert calls[3:] == [(4, 5), (1, 5)]
    for name in ("predictions.csv", "studies.csv", "predict.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert made.predict(tmp_path / "in", tmp_path / "out").images == 5  # nothing is left to do
    changed = "predict: expected a new folder or one of the same package and images, {} has other predictions"
    with refused(changed.format(tmp_path / "out")):
        package(tmp_path, seed=4).predict(tmp_path / "in", tmp_path / "out")
    with refused(f"predict: expected a new or empty folder, {tmp_path / 'in'} has other files"):
        made.predict(tmp_path / "in", tmp_path / "in")


def test_no_name_of_another_party_is_a_formula_in_the_tables_and_all_are_found_again(tmp_path):
    make_dicom(tmp_path / "in" / "a.dcm", np.arange(1600).reshape(40, 40), Modality="CT", StudyInstanceUID="=A1")
    make_dicom(tmp_path / "in" / "-2+3.dcm", np.ones((40, 40)), Modality="CT", StudyInstanceUID="=A1")
    model = package(tmp_path, "singlelabel", classes=["=1+1", "@b"])
    model.predict(tmp_path / "in", tmp_path / "out")
    images, studies = table(tmp_path / "out" / "predictions.csv"), table(tmp_path / "out" / "studies.csv")
    assert [(row["image"], row["study"]) for row in images] == [("'-2+3.dcm", "'=A1"), ("a.dcm", "'=A1")]
    assert {row["decision"] for row in images} <= {"'=1+1", "'@b"}
    assert [(row["study"], row["images"]) for row in studies] == [("'=A1", "2")]
    assert {*images[0]} >= {"'=1+1_probability", "'@b_probability"}
    assert explain(model, tmp_path / "in", tmp_path / "out", most=2) == 2
    assert model.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom").without == 1  # no UID


def test_what_matches_nothing_is_an_error(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("no image")
    with refused(f"predict: expected DICOM files, pictures or NIfTI volumes in {tmp_path / 'in'}, found none"):
        package(tmp_path).predict(tmp_path / "in", tmp_path / "out")
    with refused(f"predict: expected a folder, an image or a CSV, {tmp_path / 'no'} is not there"):
        package(tmp_path).predict(tmp_path / "no", tmp_path / "out")


@pytest.mark.parametrize("source", ["in", "list.csv"])
def test_a_series_of_another_modality_is_refused(tmp_path, source):
    slices(tmp_path / "in", 2)
    make_dicom(tmp_path / "in" / "9.dcm", np.zeros((8, 8)), Modality="MR")
    (tmp_path / "list.csv").write_text("image\nin/0.dcm\nin/9.dcm\n")
    name = "in/9.dcm" if source == "list.csv" else "9.dcm"
    with refused(f"predict: expected images of modality CT, as the model was trained on, got MR in {name}"):
        package(tmp_path).predict(tmp_path / source, tmp_path / "out")
    assert package(tmp_path, modality="").predict(tmp_path / source, tmp_path / "out").images in (2, 3)


def test_masks_lie_on_the_grid_of_their_volumes_whatever_their_orientation(tmp_path):
    made = package(tmp_path, "segmentation", "unet_narrow", ["lesion"], change=balance, window=None, modality="MR")
    values = np.random.default_rng(0).random((20, 24, 3)).astype(np.float32)
    upright = nibabel.Nifti1Image(values, np.diag([2.0, 2.0, 5.0, 1.0]))
    turned = upright.as_reoriented([[1, -1], [0, 1], [2, -1]])
    (tmp_path / "in").mkdir()
    for name, image in (("a.nii.gz", upright), ("b.nii", turned)):
        nibabel.save(image, tmp_path / "in" / name)
    (tmp_path / "in" / "c.nii.gz").write_bytes(b"broken")
    found = made.predict(tmp_path / "in", tmp_path / "out")
    assert (found.images, found.problems) == (3, 1)
    rows = table(tmp_path / "out" / "predictions.csv")
    masks = [nibabel.load(tmp_path / "out" / row["mask"]) for row in rows[:2]]
    for mask, image in zip(masks, (upright, turned), strict=True):
        assert mask.shape == image.shape
        assert np.allclose(mask.affine, image.affine)
    one, other = (np.asarray(nibabel.as_closest_canonical(mask).dataobj) for mask in masks)
    assert (one == other).all()
    assert 0 < one.sum() < one.size
    assert [row["lesion_voxels"] for row in rows[:2]] == [str(one.sum())] * 2
    assert float(rows[0]["lesion_ml"]) == pytest.approx(one.sum() * 0.02, rel=1e-5)
    assert rows[2]["problem"].startswith("expected a NIfTI file, got a corrupt or truncated one")


def test_a_volume_of_a_table_that_is_not_there_is_a_row_with_the_reason(tmp_path):
    made = package(tmp_path, "segmentation", "unet_narrow", ["lesion"], window=None, modality="MR")
    voxels = np.arange(960, dtype=np.float32).reshape(20, 24, 2)
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / "a.nii.gz")
    (tmp_path / "list.csv").write_text("image\nseries.dcm\na.nii.gz\na.nii.gz#1\n")
    found = made.predict(tmp_path / "list.csv", tmp_path / "out")
    problems = [row["problem"] for row in table(tmp_path / "out" / "predictions.csv")]
    assert problems == ["expected a file, not found", "", "expected a file, not found"]
    assert found.problems == 2


def test_volumes_of_alike_names_have_a_mask_each(tmp_path):
    made = package(tmp_path, "segmentation", "unet_narrow", ["lesion"], window=None, modality="MR")
    names = ["a/b.nii", "a_b.nii", "a/b.nii.gz", "a%2Fb.nii"]
    (tmp_path / "in" / "a").mkdir(parents=True)
    for depth, name in enumerate(names, 2):
        values = np.random.default_rng(depth).random((20, 24, depth)).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "in" / name)
    made.predict(tmp_path / "in", tmp_path / "out")
    masks = {row["image"]: row["mask"] for row in table(tmp_path / "out" / "predictions.csv")}
    assert [nibabel.load(tmp_path / "out" / masks[name]).shape[2] for name in names] == [2, 3, 4, 5]
    assert len(list((tmp_path / "out" / "masks").iterdir())) == 4


def test_a_frame_of_an_enhanced_file_that_is_a_scout_is_left_out(tmp_path):
    kinds = [Dataset(), Dataset()]
    for kind, word in zip(kinds, ("LOCALIZER", "VOLUME"), strict=True):
        frame_type = Dataset()
        frame_type.FrameType = ["ORIGINAL", "PRIMARY", word, "NONE"]
        kind.CTImageFrameTypeSequence = [frame_type]
    fields = {"NumberOfFrames": 2, "StudyInstanceUID": "1.0", "Modality": "CT"}
    make_dicom(tmp_path / "in" / "a.dcm", np.zeros((2, 40, 40)), PerFrameFunctionalGroupsSequence=kinds, **fields)
    _, items, left_out = find_items(tmp_path / "in", modality="CT", volumes=False)
    assert ([item.name for item in items], left_out) == (["a.dcm#1"], 1)


@pytest.mark.parametrize("volumes", [False, True])
def test_copies_of_an_image_count_once(tmp_path, volumes):
    for n, name in enumerate(["a", "b", "copy/a", "other/b"]):
        stored, fields = np.full((40, 40), n % 2, np.int16), {"StudyInstanceUID": "1.0", "SeriesInstanceUID": "1.0.1"}
        stored[0, 0] += 9 * (name == "other/b")
        make_dicom(tmp_path / "in" / f"{name}.dcm", stored, Modality="CT", SOPInstanceUID=f"1.0.1.{n % 2}", **fields)
    _, items, left_out = find_items(tmp_path / "in", modality="CT", volumes=volumes)
    assert ([name for item in items for name in item.images], left_out) == (["a.dcm", "b.dcm", "other/b.dcm"], 1)
    (tmp_path / "list.csv").write_text("image\nin/a.dcm\nin/copy/a.dcm\n")
    assert len(find_items(tmp_path / "list.csv", modality="CT", volumes=volumes)[1]) == 2


@pytest.mark.parametrize("volumes", [False, True])
def test_slices_of_one_uid_and_the_same_pixels_at_other_places_are_no_copies(tmp_path, volumes):
    about = {"Modality": "CT", "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    about |= {"StudyInstanceUID": "1.0", "SeriesInstanceUID": "1.0.1"}
    for n in range(3):  # air, of which de-identification has made the UIDs one
        make_dicom(tmp_path / f"{n}.dcm", np.full((4, 4), -1000), ImagePositionPatient=[0, 0, n], **about)
    _, items, left_out = find_items(tmp_path, modality="CT", volumes=volumes)
    assert ([name for item in items for name in item.images], left_out) == (["0.dcm", "1.dcm", "2.dcm"], 0)


def test_scouts_and_pages_of_doses_of_a_study_are_left_out_unless_there_is_nothing_else(tmp_path):
    slices(tmp_path / "in", count=4)
    for name, types in (
        ("scout", ["ORIGINAL", "PRIMARY", "LOCALIZER"]),
        ("dose", ["DERIVED", "SECONDARY", "DOSE INFO"]),
    ):
        stored = np.zeros((40, 40), np.int16)
        make_dicom(tmp_path / "in" / f"{name}.dcm", stored, StudyInstanceUID="1.0", Modality="CT", ImageType=types)
    made = package(tmp_path)
    found = made.predict(tmp_path / "in", tmp_path / "out")
    assert (found.images, found.left_out) == (4, 2)
    assert [row["image"] for row in table(tmp_path / "out" / "predictions.csv")] == [f"{n}.dcm" for n in range(4)]
    for n in range(4):
        (tmp_path / "in" / f"{n}.dcm").unlink()
    found = made.predict(tmp_path / "in", tmp_path / "alone")
    assert (found.images, found.left_out) == (2, 0)


def test_images_of_formats_that_are_not_read_are_counted_with_their_endings(tmp_path):
    slices(tmp_path / "in")
    (tmp_path / "in" / "deep").mkdir()
    for name in ("a.nrrd", "deep/b.MHA", "deep/c.mha", "notes.txt"):
        (tmp_path / "in" / name).write_bytes(b"NRRD0004")
    found = package(tmp_path).predict(tmp_path / "in", tmp_path / "in" / "out")
    assert (found.problems, found.not_read) == (0, "3 files in .mha, .nrrd")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.nrrd").write_bytes(b"NRRD0004")
    with refused(
        f"predict: expected NIfTI volumes or DICOM series in {tmp_path / 'none'}, found none but 1 file in .nrrd"
    ):
        find_items(tmp_path / "none", modality="", volumes=True)


def test_calibrated_probabilities_are_those_of_the_divided_logits_and_decide_alike(tmp_path):
    slices(tmp_path / "in")
    plain = package(tmp_path / "plain")
    plain.predict(tmp_path / "in", tmp_path / "out")
    chosen = {"threshold": [0.3, 0.6], "not_sure": [[0.2, 0.4], [0.5, 0.7]]}
    cooled = {name: np.array(values) for name, values in chosen.items()}
    cooled = {name: (1 / (1 + (1 / values - 1) ** 0.5)).tolist() for name, values in cooled.items()}
    about = {k: v for k, v in plain.info.items() if k != "format"} | {
        "thresholds": {**cooled, "temperature": [2.0, 2.0]}
    }
    weights = {k: v.numpy() for k, v in get_weights(plain.network()).items()}
    write_package(tmp_path / "cool" / "run-1.fedmend", about, weights)
    calibrated = Package(tmp_path / "cool")
    calibrated.predict(tmp_path / "in", tmp_path / "cooled")
    for before, after in zip(*(table(tmp_path / out / "predictions.csv") for out in ("out", "cooled")), strict=True):
        for c in CLASSES:
            p = float(before[f"{c}_probability"])
            assert float(after[f"{c}_probability"]) == pytest.approx(1 / (1 + (1 / p - 1) ** 0.5), abs=1e-5)
            assert after[f"{c}_decision"] == before[f"{c}_decision"]
            assert after[f"{c}_not_sure"] == before[f"{c}_not_sure"]
    assert '"probabilities": "calibrated' in (tmp_path / "cooled" / "predict.json").read_text()
    assert "probabilities" not in (tmp_path / "out" / "predict.json").read_text()
    assert repr(calibrated).endswith("thresholds chosen on validation, calibrated probabilities")
