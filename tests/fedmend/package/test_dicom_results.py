"""Predictions as DICOM objects, read back by highdicom and pydicom."""

import csv
import shutil
import subprocess

import nibabel
import numpy as np
import pydicom
import pytest
from factories import make_dicom, write_png
from package_factories import balance, make_package
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from pydicom.uid import EnhancedCTImageStorage

highdicom = pytest.importorskip("highdicom", reason="needs fedmend[review]")

SHAPE = (4, 20, 24)  # slices, rows, columns
AXIAL, FLIPPED = [1, 0, 0, 0, 1, 0], [-1, 0, 0, 0, 1, 0]
OBLIQUE = [0.8, 0.6, 0, 0, 0, -1]
MASKS = {"kind": "segmentation", "network": "unet_narrow", "classes": ["lesion"], "window": None, "modality": "CT"}
VALUES = np.random.default_rng(0).integers(1, 900, SHAPE)


def place(turn, number):
    return (np.array([10.0, 20, -30]) + 3 * number * np.cross(turn[:3], turn[3:])).tolist()


def series(folder, turn, **fields):
    for number in range(SHAPE[0]):
        about = {
            "Modality": "CT",
            "PatientID": "P1",
            "StudyInstanceUID": "1.2.4",
            "SeriesInstanceUID": "1.2.5",
            "FrameOfReferenceUID": "1.2.6",
            "SOPInstanceUID": f"1.2.7.{number}",
            "ImageOrientationPatient": turn,
            "ImagePositionPatient": place(turn, number),
            "PixelSpacing": [2, 1],
            "SliceThickness": 3,
            **fields,
        }
        make_dicom(folder / f"{9 - number}.dcm", VALUES[number], **about)


def item(**fields):
    one = Dataset()
    for name, value in fields.items():
        setattr(one, name, value)
    return Sequence([one])


def enhanced(file, turn, *, shares=True):
    """One file, whose frames stand in the order of their places backwards, and have all alike or each its own."""
    shared = Dataset()
    shared.PixelMeasuresSequence = item(PixelSpacing=[2, 1], SliceThickness=3)
    shared.PlaneOrientationSequence = item(ImageOrientationPatient=turn)
    shared.PixelValueTransformationSequence = item(RescaleSlope=1, RescaleIntercept=0, RescaleType="HU")
    frames = []
    for number in reversed(range(SHAPE[0])):
        frame = Dataset()
        frame.PlanePositionSequence = item(ImagePositionPatient=place(turn, number))
        frame.FrameContentSequence = item(DimensionIndexValues=[SHAPE[0] - number])
        frames.append(frame)
        if not shares:
            frame.update(shared)
    make_dicom(
        file,
        VALUES[::-1],
        Modality="CT",
        SOPClassUID=EnhancedCTImageStorage,
        StudyInstanceUID="1.2.4",
        SeriesInstanceUID="1.2.5",
        FrameOfReferenceUID="1.2.6",
        SOPInstanceUID="1.2.7.0",
        NumberOfFrames=SHAPE[0],
        SharedFunctionalGroupsSequence=Sequence([shared] * shares),
        PerFrameFunctionalGroupsSequence=Sequence(frames),
    )


def table(file):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


def volume(file, turn):
    """The series as a NIfTI file that a converter would have made."""
    axes = np.array(turn, dtype=float).reshape(2, 3)
    grid = np.eye(4)
    grid[:3, :3] = np.stack([axes[0] * 1, axes[1] * 2, np.cross(*axes) * 3], axis=1)
    grid[:3, 3] = [10, 20, -30]
    grid = np.diag([-1, -1, 1, 1]) @ grid
    nibabel.save(nibabel.Nifti1Image(VALUES.transpose(2, 1, 0).astype(np.float32), grid), file)


@pytest.mark.parametrize("turn", [AXIAL, FLIPPED, OBLIQUE], ids=["axial", "flipped", "oblique"])
def test_the_mask_of_a_series_is_that_of_its_volume_and_lies_on_its_slices(tmp_path, turn):
    made = make_package(tmp_path, **MASKS, change=balance)
    series(tmp_path / "in", turn)
    volume(tmp_path / "v.nii.gz", turn)
    found = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    made.predict(tmp_path / "v.nii.gz", tmp_path / "out2")
    (row,) = table(tmp_path / "out" / "predictions.csv")
    assert (row["image"], row["study"], row["problem"]) == ("1.2.5", "1.2.4", "")
    mine, theirs = nibabel.load(tmp_path / "out" / row["mask"]), nibabel.load(tmp_path / "out2" / "masks" / "v.nii.gz")
    assert np.allclose(mine.affine, theirs.affine)
    wanted = np.asarray(theirs.dataobj)
    assert np.array_equal(np.asarray(mine.dataobj), wanted)
    assert 0 < wanted.sum() < wanted.size
    (file,) = found.dicom
    read = highdicom.seg.segread(file)
    pixels = read.get_pixels_by_source_instance([f"1.2.7.{n}" for n in range(4)], assert_missing_frames_are_empty=True)
    assert np.array_equal(pixels[..., 0].transpose(2, 1, 0), wanted)
    plain = pydicom.dcmread(file)
    assert (plain.StudyInstanceUID, plain.PatientID, plain.PatientName, plain.PatientSex) == ("1.2.4", "P1", "", "")
    assert plain.ReferencedSeriesSequence[0].SeriesInstanceUID == "1.2.5"
    segment = plain.SegmentSequence[0]
    assert (segment.SegmentLabel, segment.SegmentAlgorithmType) == ("lesion", "AUTOMATIC")
    algorithm = segment.SegmentationAlgorithmIdentificationSequence[0]
    assert (algorithm.AlgorithmName, algorithm.AlgorithmVersion) == ("run-1", made.digest[:16])
    assert plain.SeriesDescription == "run-1, not for clinical use"


@pytest.mark.parametrize("shares", [True, False])
def test_a_multi_frame_series_has_its_mask_frame_by_frame(tmp_path, shares):
    made = make_package(tmp_path, **MASKS, change=balance)
    enhanced(tmp_path / "in" / "e.dcm", AXIAL, shares=shares)
    volume(tmp_path / "v.nii.gz", AXIAL)
    found = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    made.predict(tmp_path / "v.nii.gz", tmp_path / "out2")
    assert table(tmp_path / "out" / "predictions.csv")[0]["problem"] == ""
    wanted = np.asarray(nibabel.load(tmp_path / "out2" / "masks" / "v.nii.gz").dataobj)
    read = highdicom.seg.segread(found.dicom[0])
    pixels = read.get_pixels_by_source_frame("1.2.7.0", [1, 2, 3, 4], assert_missing_frames_are_empty=True)
    assert np.array_equal(pixels[::-1, ..., 0].transpose(2, 1, 0), wanted)


def test_a_multi_frame_file_that_a_table_names_has_its_segmentation(tmp_path):
    made = make_package(tmp_path, **MASKS, change=balance)
    enhanced(tmp_path / "e.dcm", AXIAL)
    (tmp_path / "list.csv").write_text("image\ne.dcm\n")
    found = made.predict(tmp_path / "list.csv", tmp_path / "out", dicom=tmp_path / "dicom")
    assert (len(found.dicom), found.without) == (1, 0)


def test_an_empty_mask_is_a_segmentation_too(tmp_path):
    def nothing(network):
        network.classifier.bias.data[:] = network.classifier.bias.new_tensor([100.0, -100.0])

    series(tmp_path / "in", AXIAL)
    made = make_package(tmp_path, **MASKS, change=nothing)
    found = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    assert pydicom.dcmread(found.dicom[0]).pixel_array.sum() == 0


def test_series_that_make_no_volume_are_rows_with_the_reason(tmp_path):
    made = make_package(tmp_path, **MASKS)
    series(tmp_path / "in" / "a", AXIAL)
    series(tmp_path / "in" / "b", AXIAL, SeriesInstanceUID="1.2.8", ImagePositionPatient=[0, 0, 0])
    series(tmp_path / "in" / "c", AXIAL, SeriesInstanceUID="1.2.9")
    (tmp_path / "in" / "c" / "8.dcm").unlink()
    series(tmp_path / "in" / "d", AXIAL, SeriesInstanceUID="1.3.1")
    other = pydicom.dcmread(tmp_path / "in" / "d" / "8.dcm")
    other.PatientID = "P2"
    other.save_as(tmp_path / "in" / "d" / "8.dcm")
    found = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    assert [row["problem"] for row in table(tmp_path / "out" / "predictions.csv")] == [
        "",
        "expected one slice at each place, got several at one",
        "expected slices at even distances, got others",
        "expected slices of one patient, got those of several",
    ]
    assert (len(found.dicom), found.without) == (1, 3)


def items_of(report, path=()):
    """Concept name, value and kind of every item, depth first."""
    for child in report.get("ContentSequence", []):
        name = child.ConceptNameCodeSequence[0].CodeMeaning if "ConceptNameCodeSequence" in child else ""
        yield name, child
        yield from items_of(child)


def findings(report):
    """Class → code of presence, probability, and instance and frames that they are of."""
    found = {}
    for name, group in items_of(report):
        if name == "Measurement Group":
            inside = dict(items_of(group))
            images = [i for i in group.ContentSequence if i.ValueType == "IMAGE"]
            named = [
                (
                    i.ReferencedSOPSequence[0].ReferencedSOPInstanceUID,
                    i.ReferencedSOPSequence[0].get("ReferencedFrameNumber"),
                )
                for i in images
            ]
            value = float(inside["Probability of the finding"].MeasuredValueSequence[0].NumericValue)
            presence = inside["Presence"].ConceptCodeSequence[0]
            found[inside["Finding"].ConceptCodeSequence[0].CodeMeaning] = (presence.CodeMeaning, value, named)
    return found


def test_a_report_names_study_findings_and_images(tmp_path):
    made = make_package(tmp_path, more={"thresholds": {"threshold": [0.0, 0.99], "not_sure": [[0.0, 0.0], [0.9, 1.0]]}})
    series(tmp_path / "in", AXIAL)
    make_dicom(
        tmp_path / "in" / "film.dcm",
        VALUES[:2],
        Modality="CT",
        NumberOfFrames=2,
        StudyInstanceUID="1.2.44",
        SeriesInstanceUID="1.2.55",
        SOPInstanceUID="1.2.77",
    )
    write_png(tmp_path / "in" / "1.png")
    found = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    assert (len(found.dicom), found.without) == (2, 1)
    studies = {row["study"]: row for row in table(tmp_path / "out" / "studies.csv")}
    images = table(tmp_path / "out" / "predictions.csv")
    reports = {r.StudyInstanceUID: r for r in map(highdicom.sr.srread, found.dicom)}
    assert set(reports) == {"1.2.4", "1.2.44"}
    for study, report in reports.items():
        said = findings(report)
        assert set(said) == {"edema", "nodule"}
        for name, (presence, value, named) in said.items():
            wanted = float(studies[study][f"{name}_probability"])
            assert value == pytest.approx(wanted, rel=1e-6)
            assert presence == ("Present" if name == "edema" else "Absent")
            best = max((r for r in images if r["study"] == study), key=lambda r: float(r[f"{name}_probability"]))[
                "image"
            ]
            file, _, frame = best.partition("#")
            uid = pydicom.dcmread(tmp_path / "in" / file).SOPInstanceUID
            assert named == [(uid, int(frame) + 1 if frame else None)]
    report = reports["1.2.4"]
    assert (report.Modality, report.VerificationFlag, report.CompletionFlag) == ("SR", "UNVERIFIED", "COMPLETE")
    assert (report.PatientID, report.PatientName, report.PatientBirthDate) == ("P1", "", "")
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    comments = [child.TextValue for name, child in items_of(report) if name == "Comment"]
    assert comments == ["Made by a model and read by nobody: not for clinical use. Trained on synthetic images."]
    evidence = report.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence[0]
    assert evidence.SeriesInstanceUID == "1.2.5"
    assert {r.ReferencedSOPInstanceUID for r in evidence.ReferencedSOPSequence} == {f"1.2.7.{n}" for n in range(4)}


def test_of_single_labels_the_report_names_all_images_and_one_finding_is_present(tmp_path):
    made = make_package(tmp_path, "singlelabel", classes=["a", "b"])
    series(tmp_path / "in", AXIAL)
    found = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    said = findings(highdicom.sr.srread(found.dicom[0]))
    assert sorted(presence for presence, _, _ in said.values()) == ["Absent", "Present"]
    assert all(len(named) == 4 for _, _, named in said.values())


def test_the_report_of_a_model_of_studies_names_all_slices(tmp_path):
    made = make_package(tmp_path, network="study/resnet_narrow", study_slices=2)
    for number in (1, 2, 3):
        stored = np.random.default_rng(number).integers(0, 80, (40, 40))
        uids = {"StudyInstanceUID": "1.5", "SeriesInstanceUID": "1.5.1", "SOPInstanceUID": f"1.5.1.{number}"}
        make_dicom(tmp_path / "in" / f"{number}.dcm", stored, InstanceNumber=number, **uids)
    found = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "sr")
    said = findings(highdicom.sr.srread(found.dicom[0]))
    assert {*said} == {"edema", "nodule"}
    assert all({uid for uid, _ in named} == {f"1.5.1.{n}" for n in (1, 2, 3)} for _, _, named in said.values())


def test_a_second_call_writes_the_same_objects(tmp_path):
    made = make_package(tmp_path)
    series(tmp_path / "in", AXIAL)
    first = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    shutil.rmtree(tmp_path / "dicom")
    again = made.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    assert first.dicom == again.dicom


ODD = {"PatientSex": "W", "PatientBirthDate": "19700000", "StudyTime": "10:11", "PatientName": "山田^太郎"}


@pytest.mark.filterwarnings("ignore")  # of pydicom, about the headers
@pytest.mark.parametrize("made", [{"modality": "CT", "window": (40, 80)}, MASKS | {"change": balance}])
def test_odd_headers_and_words_in_other_letters_reach_the_objects(tmp_path, made):
    series(tmp_path / "in", AXIAL, SpecificCharacterSet=["", "ISO 2022 IR 87"], **ODD)
    package = make_package(tmp_path, **{**made, "classes": ["Ödem"]})
    (file,) = package.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom").dicom
    written = pydicom.dcmread(file)
    told = (written.PatientID, written.PatientName, written.PatientSex, written.PatientBirthDate, written.StudyTime)
    assert told == ("P1", "山田^太郎", "", "", "")
    assert "Ödem" in {str(e.value) for e in written.iterall() if e.VR in ("LO", "UT")}


def test_a_study_of_two_patients_has_no_report(tmp_path):
    series(tmp_path / "in" / "a", AXIAL)
    series(tmp_path / "in" / "b", AXIAL, SeriesInstanceUID="1.2.8", PatientID="P2")
    series(tmp_path / "in" / "c", AXIAL, SeriesInstanceUID="1.3.8", StudyInstanceUID="1.3.4", PatientID="P3")
    found = make_package(tmp_path).predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    assert ([pydicom.dcmread(file).PatientID for file in found.dicom], found.without) == (["P3"], 2)


@pytest.fixture
def lacking(tmp_path):
    """A folder with a series that no segmentation can belong to."""
    series(tmp_path / "in" / "a", AXIAL, SeriesInstanceUID="1.2.8")
    for file in (tmp_path / "in" / "a").iterdir():
        dataset = pydicom.dcmread(file)
        del dataset.FrameOfReferenceUID
        dataset.save_as(file)
    return tmp_path / "in"


def test_a_series_that_can_have_no_object_is_counted(lacking, tmp_path, caplog):
    found = make_package(tmp_path, **MASKS).predict(lacking, tmp_path / "out", dicom=tmp_path / "dicom")
    assert (found.dicom, found.without, found.problems) == ((), 1, 0)
    assert "1 of 1 have no object: DICOM results: expected images that an object can belong to" in caplog.text


def test_a_series_that_can_have_no_object_stops_no_other(lacking, tmp_path, caplog):
    package = make_package(tmp_path, **MASKS)
    series(tmp_path / "in" / "b", AXIAL)
    found = package.predict(tmp_path / "in", tmp_path / "out", dicom=tmp_path / "dicom")
    assert (len(found.dicom), found.without) == (1, 1)
    assert "1 of 2 have no object: DICOM results: expected images that an object can belong to" in caplog.text


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dicom3tools are not installed")
def test_a_validator_finds_no_error(tmp_path):
    about = {"PatientName": "A^B", "PatientBirthDate": "19700101", "PatientSex": "F", "StudyDate": "20200101"}
    about |= {"StudyTime": "101010", "AccessionNumber": "1", "StudyID": "1", "SeriesNumber": 1, "InstanceNumber": 1}
    series(tmp_path / "in", OBLIQUE, **about, ImageType=["ORIGINAL", "PRIMARY", "AXIAL"])
    masks, labels = make_package(tmp_path / "m", **MASKS, change=balance), make_package(tmp_path / "l")
    for made in (masks, labels):
        (file,) = made.predict(tmp_path / "in", tmp_path / made.kind, dicom=tmp_path / "dicom").dicom
        said = subprocess.run(["dciodvfy", file], capture_output=True, text=True).stderr.splitlines()
        assert [line for line in said if line.startswith("Error")] == []
        assert said[0] in ("Segmentation", "ComprehensiveSR")
