"""Which DICOM images a label of a study is about, and who they are of."""

import csv
import json
import shutil

import numpy as np
import pydicom
import pytest
from factories import make_dicom, refused
from pydicom import Dataset, uid

from fedmend.data.card import load_card
from fedmend.data.tables import load_table
from fedmend.datasets.own_dicom import prepare
from fedmend.datasets.own_dicom_choice import chosen
from fedmend.datasets.own_dicom_files import find_images
from fedmend.datasets.own_site import SiteChoices

CHOICES = SiteChoices(test_share=0.5, val_share=0)
CAPTURE = uid.SecondaryCaptureImageStorage
AXIAL = ["ORIGINAL", "PRIMARY", "AXIAL"]
REFORMAT = ["DERIVED", "SECONDARY", "MPR"]


def place(folder, name, *, study=1, series=1, number=1, grey=None, **fields):
    """An image of 2 x 2 pixels, of other pixels for each number."""
    about = {
        "PatientID": f"MRN{study}",
        "StudyInstanceUID": f"1.2.{study}",
        "SeriesInstanceUID": f"1.2.{study}.{series}",
        "SOPInstanceUID": f"1.2.{study}.{series}.{number}",
        "InstanceNumber": number,
        "Modality": "CT",
        "ImageType": AXIAL,
    }
    stored = np.arange(4).reshape(2, 2) * 20 + (number if grey is None else grey)
    stored = np.stack([stored] * fields.get("NumberOfFrames", 1)).squeeze()
    make_dicom(folder / name, stored, **{k: v for k, v in {**about, **fields}.items() if v is not None})


def site(source, labels, **options):
    """What was said, and split → image → patient."""
    file, said = source.parent / "labels.csv", []
    file.write_text(labels, encoding="utf-8")
    out = source.parent / "site"
    shutil.rmtree(out, ignore_errors=True)
    prepare(source, out, labels=file, choices=CHOICES, progress=said.append, processes=1, **options)
    card = load_card(out, "site-1")
    tables = {name: load_table(card, file, card.classes) for name, file in card.splits.items()}
    return said, {name: dict(zip(t.images, t.patients, strict=True)) for name, t in tables.items()}


def images(parts):
    return sorted(image for part in parts.values() for image in part)


BY_STUDY = "StudyInstanceUID,a\n1.2.1,1\n1.2.2,0\n"


@pytest.fixture
def two(tmp_path):
    """Two CT studies with two slices each; adds an image to the first by its header."""
    for study in (1, 2):
        for number in (1, 2):
            place(tmp_path / "dicom", f"{study}-{number}", study=study, number=number)
    return lambda name, **fields: place(tmp_path / "dicom", name, series=2, number=9, **fields) or tmp_path / "dicom"


# ---- kinds -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, "localizer"),
        ({"ImageType": ["DERIVED", "PRIMARY", "LOCALIZER", "CT_SOM5 TOP"]}, "localizer"),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "M", "ND"], "Modality": "MR", "SeriesDescription": "AAHead_Scout"},
         "localizer"),
        ({"ImageType": None, "SeriesDescription": "Topogram 0.6"}, "localizer"),
        *[({"Modality": "MR", "SeriesDescription": words}, "localizer")
          for words in ("Survey_MST", "3Plane Loc", "AAHScout")],
        *[({"SeriesDescription": words}, "image") for words in ("Skeletal survey", "Local recon")],
        ({"SeriesDescription": "Scano"}, "localizer"),
        ({"SOPClassUID": CAPTURE, "ImageType": ["DERIVED", "SECONDARY"]}, "secondary"),
        ({"SOPClassUID": uid.MultiFrameTrueColorSecondaryCaptureImageStorage, "Modality": "OT"}, "secondary"),
        ({"ImageType": ["DERIVED", "SECONDARY", "OTHER", "CT_DOSE_INFO"]}, "secondary"),
        ({"ImageType": ["DERIVED", "SECONDARY", "SCREEN SAVE"]}, "secondary"),
        ({"ImageType": ["DERIVED", "SECONDARY", "OTHER", "CT_SOM5 PROT"]}, "secondary"),
        ({"ImageType": None, "SeriesDescription": "Dose Report"}, "secondary"),
        ({"ImageType": REFORMAT, "BurnedInAnnotation": "YES"}, "secondary"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, "secondary"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "secondary"),
        ({"PresentationIntentType": "FOR PROCESSING", "Modality": "MG"}, "quantity"),
        ({"PresentationIntentType": "FOR PRESENTATION", "Modality": "MG"}, "image"),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "P", "ND"], "Modality": "MR"}, "quantity"),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "PHASE MAP", "P", "FFE"], "Modality": "MR"}, "quantity"),
        ({"ComplexImageComponent": "PHASE", "Modality": "MR"}, "quantity"),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "M", "ND"], "Modality": "MR"}, "image"),
        ({"RescaleType": "MGML"}, "quantity"),
        ({"SOPClassUID": uid.ParametricMapStorage}, "quantity"),
        *[({"RescaleType": unit}, "image") for unit in ("HU", "HU_MOD", "US", "")],
        ({"RescaleType": "MGML", "Modality": "PT"}, "image"),
        ({"ImageType": REFORMAT}, "image"),
        ({"ImageType": ["DERIVED", "PRIMARY"], "Modality": "DX"}, "image"),
        ({"ImageType": None}, "image"),
        ({"ImageType": "ORIGINAL", "SeriesDescription": "Low dose chest"}, "image"),
        ({"SeriesDescription": "Scout KUB", "Modality": "CR"}, "image"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "Modality": "US", "BurnedInAnnotation": "YES"},
         "image"),
    ],
)  # fmt: skip
def test_image_type_class_and_description_say_what_a_file_shows(tmp_path, fields, kind):
    place(tmp_path, "a", **fields)
    assert [image.kind for image in find_images(tmp_path)[0]] == [kind]


def test_frames_of_an_enhanced_file_are_told_apart_by_their_own_or_the_shared_frame_type(tmp_path):
    def frame_type(name, *words):
        group, kind = Dataset(), Dataset()
        kind.FrameType = ["ORIGINAL", "PRIMARY", *words]
        setattr(group, name, [kind])
        return group

    frames = [frame_type("MRImageFrameTypeSequence", word, "NONE") for word in ("LOCALIZER", "VOLUME")]
    fields = {"NumberOfFrames": 2, "ImageType": ["ORIGINAL", "PRIMARY", "MIXED", "NONE"], "Modality": "MR"}
    place(tmp_path, "own", **fields, series=2, PerFrameFunctionalGroupsSequence=frames)
    shared = [frame_type("CTImageFrameTypeSequence", "LOCALIZER")]
    place(tmp_path, "shared", **fields, series=3, SharedFunctionalGroupsSequence=shared)
    kinds = {image.image: image.kind for image in find_images(tmp_path)[0]}
    assert kinds == {"own#0": "localizer", "own#1": "image", "shared#0": "localizer", "shared#1": "localizer"}
    lines = []
    assert [image.image for image in chosen(find_images(tmp_path)[0], lines.append)] == ["own#1"]
    assert lines == ["left out: 3 localizers (--keep localizer takes them in)"]


def test_frames_of_an_enhanced_file_are_told_apart_by_their_own_quantity(tmp_path):
    frames = []
    for component, unit in (("MAGNITUDE", "HU"), ("PHASE", "MGML")):
        group, kind, values = Dataset(), Dataset(), Dataset()
        kind.FrameType, kind.ComplexImageComponent = ["ORIGINAL", "PRIMARY"], component
        values.RescaleType = unit
        group.MRImageFrameTypeSequence, group.PixelValueTransformationSequence = [kind], [values]
        frames.append(group)
    for modality in ("CT", "MR"):
        place(tmp_path, modality, Modality=modality, NumberOfFrames=2, PerFrameFunctionalGroupsSequence=frames)
    kinds = {image.image: image.kind for image in find_images(tmp_path)[0]}
    assert kinds == {"CT#0": "image", "CT#1": "quantity", "MR#0": "image", "MR#1": "quantity"}


@pytest.mark.parametrize(
    "fields",
    [
        {"SOPClassUID": uid.SegmentationStorage, "Modality": "CT"},
        {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.66.7", "Modality": "CT"},  # labels in the values of pixels
        {"Modality": "PR"},
        {"Modality": " pr"},
    ],
)
def test_segmentations_and_presentation_states_are_no_images(tmp_path, fields):
    place(tmp_path, "a", **fields)
    assert find_images(tmp_path) == ([], {"DICOM without images, e.g. reports": 1})


@pytest.mark.parametrize(
    ("fields", "kind", "line"),
    [
        ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, "localizer",
         "left out: 1 localizers (--keep localizer takes them in)"),
        ({"SOPClassUID": CAPTURE}, "secondary", "left out: 1 secondary captures (--keep secondary takes them in)"),
        ({"RescaleType": "MGML"}, "quantity", "left out: 1 images for processing, of MR phase, or of CT in another"
         " unit than HU (--keep quantity takes them in)"),
    ],
)  # fmt: skip
def test_a_label_of_a_study_is_not_about_its_scouts_and_captures_unless_asked(two, fields, kind, line):
    source = two("other", **fields)
    said, parts = site(source, BY_STUDY)
    assert line in said
    assert images(parts) == ["1-1", "1-2", "2-1", "2-2"]
    said, parts = site(source, BY_STUDY, keep=[kind])
    assert images(parts) == ["1-1", "1-2", "2-1", "2-2", "other"]
    assert any(line.startswith("kept: 1 ") for line in said)


def test_a_label_of_an_image_keeps_it_whatever_it_shows(two):
    source = two("scout", ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    said, parts = site(source, "SOPInstanceUID,a\n1.2.1.2.9,1\n1.2.2.1.1,0\n")
    assert images(parts) == ["2-1", "scout"]
    assert "kept: 1 localizers" in said


def test_reformats_are_kept_and_counted(two):
    said, parts = site(two("mpr", ImageType=REFORMAT), BY_STUDY)
    assert "mpr" in images(parts)
    assert "kept: 1 images that are made of others, e.g. reformats (DERIVED in ImageType)" in said


def test_a_folder_of_captures_alone_stays_usable(tmp_path):
    for study in (1, 2):
        place(tmp_path / "dicom", f"{study}", study=study, SOPClassUID=CAPTURE, Modality="US")
    said, parts = site(tmp_path / "dicom", BY_STUDY)
    assert images(parts) == ["1", "2"]
    assert "no other images than secondary captures 2: the secondary captures are kept" in said


def test_the_table_to_be_labelled_has_the_same_images(two, tmp_path):
    prepare(two("scout", SOPClassUID=CAPTURE), tmp_path / "out", choices=CHOICES, processes=1)
    with open(tmp_path / "out" / "images.csv", newline="", encoding="utf-8") as stream:
        assert [row["image"] for row in csv.DictReader(stream)] == ["1-1", "1-2", "2-1", "2-2"]


# ---- modalities ------------------------------------------------------------------------------------------------------
def test_a_site_folder_takes_the_modality_of_most_images_and_counts_the_others(two):
    source = two("mr", Modality="MR")
    said, parts = site(source, BY_STUDY)
    assert images(parts) == ["1-1", "1-2", "2-1", "2-2"]
    assert (
        "left out: 1 images of other modalities than CT: MR 1 (--modality CT MR takes all, through one window)" in said
    )
    said, parts = site(source, BY_STUDY, modalities=["ct", "MR"])
    assert "mr" in images(parts)
    assert "warning: several modalities through one window: CT 4, MR 1" in said
    with refused("dicom, argument modality: expected some of ['CT', 'MR'], got ['PT']"):
        site(source, BY_STUDY, modalities=["PT"])


def test_films_of_both_kinds_are_one_modality_and_an_unknown_one_is_kept(tmp_path):
    for study, modality in ((1, "CR"), (2, "DX"), (3, None)):
        place(tmp_path / "dicom", f"{study}", study=study, Modality=modality, SOPClassUID="1.2.840.10008.5.1.4.1.1.1.1")
    _, parts = site(tmp_path / "dicom", "PatientID,a\nMRN1,1\nMRN2,0\nMRN3,0\n")
    assert images(parts) == ["1", "2", "3"]


def test_body_parts_sides_and_views_are_counted_and_a_mixture_in_ct_is_a_warning(two):
    said, _ = site(two("chest", BodyPartExamined="CHEST", Laterality="L", ViewPosition="PA"), BY_STUDY)
    assert "body parts: ? 4, CHEST 1" in said
    assert {"sides: ? 4, L 1", "views: ? 4, PA 1"} <= set(said)
    two("head", BodyPartExamined="HEAD", SOPInstanceUID="1.9")
    said, _ = site(two("chest", BodyPartExamined="CHEST"), BY_STUDY)
    assert "body parts: ? 4, CHEST 1, HEAD 1; warning: one window for all of them" in said


# ---- copies ----------------------------------------------------------------------------------------------------------
def test_a_copy_of_an_image_counts_once_and_other_pixels_of_one_uid_are_kept(two):
    source = two("odd", grey=7)
    for name in ("again", "deep/er"):
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / "1-1", source / name)
    packed = pydicom.dcmread(source / "1-1")
    packed.compress(uid.RLELossless, generate_instance_uid=False)
    packed.save_as(source / "packed")
    place(source, "other", series=2, number=9, grey=8)
    said, parts = site(source, BY_STUDY)
    assert images(parts) == ["1-1", "1-2", "2-1", "2-2", "odd", "other"]
    assert "left out: 3 copies of an image that is there already (the same SOPInstanceUID and pixels)" in said
    assert "warning: 1 images have the SOPInstanceUID of another one, but other pixels; they are kept" in said


# ---- patients --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("patient", ["", None, "ANON", "0000", "De-identified", "H17"])
def test_without_patients_a_study_stays_in_one_split_and_that_is_said(tmp_path, patient):
    for study in range(1, 5):
        for number in (1, 2, 3):
            place(tmp_path / "dicom", f"{study}-{number}", study=study, number=number, PatientID=patient)
    labels = "SeriesInstanceUID,a\n" + "".join(f"1.2.{study}.1,{study % 2}\n" for study in range(1, 5))
    said, parts = site(tmp_path / "dicom", labels)
    studies = {name: {image[0] for image in part} for name, part in parts.items()}
    assert [len(studies[name]) for name in ("train", "test")] == [2, 2]
    assert not studies["train"] & studies["test"]
    assert "   4 studies count as patients; one patient's studies may be in two splits" in said
    assert said[-1] == "drawn with seed 1037 by study, as no patients are known: train 6, test 6 images; 4 studies"
    note = json.loads((tmp_path / "site" / "site.json").read_text())["notes"]["splits"]
    assert note == "drawn with seed 1037 by study, as no patients are known: train 6, test 6 images"
    assert [line for line in said if line.startswith("warning:")] == [
        "warning: one PatientID stands on 4 of 4 studies and seems to be nobody's"
        if patient
        else "warning: 12 of 12 images have no PatientID"
    ]


def test_a_blank_patient_is_that_of_its_study_and_without_a_study_the_series_counts(tmp_path):
    place(tmp_path / "dicom", "1")
    place(tmp_path / "dicom", "2", number=2, PatientID="")
    for number in (1, 2):
        no_study = {"PatientID": "", "StudyInstanceUID": "", "SOPInstanceUID": f"9.{number}"}
        place(tmp_path / "dicom", f"s{number}", study=3, number=number, AccessionNumber="A3", **no_study)
    place(tmp_path / "dicom", "n", SOPInstanceUID="7", PatientID="", StudyInstanceUID="", SeriesInstanceUID="")
    said, parts = site(tmp_path / "dicom", "SOPInstanceUID,a\n1.2.1.1.1,1\n1.2.1.1.2,0\n9.1,0\n9.2,1\n7,1\n")
    of = parts["train"] | parts["test"]
    assert of["1"] == of["2"] != of["s1"] == of["s2"]
    assert of["n"] == ""
    assert "warning: 1 images name neither patient nor study nor series: each is on its own" in said
    assert "   1 series count as patients; one patient's series may be in two splits" in said
    assert "by patient, or series or image where none is known: " in said[-1]
    assert said[-1].endswith("; 2 patients and series")


def test_one_patient_on_most_studies_is_told_but_kept_together(tmp_path):
    for study in range(1, 6):
        place(tmp_path / "dicom", f"{study}", study=study, PatientID="MRN9" if study < 4 else f"MRN{study}")
    labels = "StudyInstanceUID,a\n" + "".join(f"1.2.{study},{study % 2}\n" for study in range(1, 6))
    said, parts = site(tmp_path / "dicom", labels)
    of = parts["train"] | parts["test"]
    assert of["1"] == of["2"] == of["3"]
    assert "warning: one PatientID stands on 3 of 5 studies; they all go to one split" in said


# ---- labels by keys --------------------------------------------------------------------------------------------------
def test_ids_that_a_spreadsheet_changed_are_found_where_they_mean_one_patient_each(tmp_path):
    for study, patient in enumerate(("00101", "00102", "Müller \0"), 1):
        place(tmp_path / "dicom", f"{study}", study=study, PatientID=patient, SpecificCharacterSet="ISO_IR 192")
    said, parts = site(tmp_path / "dicom", "PatientID,a\n101,1\n102.0,0\nMu\u0308ller,0\n")
    assert images(parts) == ["1", "2", "3"]
    assert "2 of them are written otherwise in the table, but for leading zeros, case or blanks the same" in said
    place(tmp_path / "dicom", "other", study=4, PatientID="101")
    with refused(
        "labels.csv, column PatientID: expected ids that can mean one thing each (or a finer column, e.g."
        " StudyInstanceUID), got 1 that others equal but for leading zeros, case or the writing of a number"
    ):
        site(tmp_path / "dicom", "PatientID,a\n101,1\n102,0\n")


# ---- old archives ----------------------------------------------------------------------------------------------------
def test_files_of_old_archives_are_found_with_their_places(tmp_path):
    for number, height in ((1, 5.5), (2, -2.5), (3, 1.5)):
        position = {"ImagePositionPatient": [0, 0, height], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
        place(tmp_path, f"{number}", number=number, **position)
        data = (tmp_path / f"{number}").read_bytes()
        comma = f"{height}".replace(".", ",").encode()
        (tmp_path / f"{number}").write_bytes(data.replace(f"{height}".encode(), comma))
    dataset = pydicom.dcmread(tmp_path / "2")
    bare = pydicom.Dataset()
    bare.update({element.tag: element for element in dataset})
    bare.save_as(tmp_path / "2", implicit_vr=True, little_endian=True, enforce_file_format=False)
    found, passed = find_images(tmp_path)
    assert [image.image for image in found] == ["2", "3", "1"]
    assert [image.place[0] for image in found] == [-2.5, 1.5, 5.5]
    assert not passed


def test_private_transfer_syntaxes_and_films_are_counted_and_never_called_damaged(tmp_path):
    for name, syntax in (("private", "1.2.840.113619.5.9"), ("film", uid.MPEG2MPML), ("ge", "1.2.840.113619.5.2")):
        place(tmp_path, name)
        dataset = pydicom.dcmread(tmp_path / name)
        del dataset.PixelData
        dataset.file_meta.TransferSyntaxUID = syntax
        dataset.save_as(tmp_path / name, implicit_vr=name != "film", little_endian=True)
    found, passed = find_images(tmp_path)
    assert [image.image for image in found] == ["ge"]
    assert passed == {"DICOM films, or files in a private transfer syntax": 2}
