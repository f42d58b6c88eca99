import sys

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
from factories import make_dicom, refused

from fedmend.review.dicom_seg import mask_on_series, write_dicom_seg

SHAPE = (3, 4, 5)  # slices, rows, columns
MASK = np.zeros(SHAPE, dtype=bool)
MASK[1, 1:3, 2], MASK[2, 0, 4] = True, True
# Rows lie 2 mm apart, columns 1 mm, slices 3 mm; the first pixel of the lowest slice is at (10, 20, -30) in LPS.
FIRST = (10, 20, -30)
# Voxels (column, row, slice) in RAS: columns run to the left, rows to the back.
AFFINE = np.array([[-1.0, 0, 0, -10], [0, -2, 0, -20], [0, 0, 3, -30], [0, 0, 0, 1]])


def write_slice(path, number, **fields):
    about = {
        "Modality": "CT",
        "PatientID": "P1",
        "PatientName": "Doe^Jane",
        "StudyInstanceUID": "1.2.4",
        "SeriesInstanceUID": "1.2.5",
        "FrameOfReferenceUID": "1.2.6",
        "SOPInstanceUID": f"1.2.7.{number}",
        "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
        "ImagePositionPatient": [*FIRST[:2], FIRST[2] + 3 * number],
        "PixelSpacing": [2, 1],
        "SliceThickness": 3,
    }
    make_dicom(path, np.zeros(SHAPE[1:]), **about | fields)


@pytest.fixture
def series(tmp_path):
    """The highest slice has the first name."""
    for number in range(3):
        write_slice(tmp_path / "series" / f"{3 - number}.dcm", number)
    (tmp_path / "series" / "notes.txt").write_text("no DICOM file")
    return tmp_path / "series"


# ---- segmentations --------------------------------------------------------------------------------------------------
def test_a_segmentation_is_read_back_with_pixels_place_and_source(tmp_path, series):
    before = {file.name: file.read_bytes() for file in series.iterdir()}
    write_dicom_seg(series, MASK, "hemorrhage", tmp_path / "out" / "seg.dcm")
    read = highdicom.seg.segread(tmp_path / "out" / "seg.dcm")
    source = [f"1.2.7.{number}" for number in range(3)]
    pixels = read.get_pixels_by_source_instance(source, assert_missing_frames_are_empty=True)
    assert np.array_equal(pixels[..., 0] > 0, MASK)
    plain = pydicom.dcmread(tmp_path / "out" / "seg.dcm")
    assert plain.pixel_array.sum() == 3
    assert (plain.SOPClassUID.name, plain.Modality, plain.NumberOfFrames) == ("Segmentation Storage", "SEG", 2)
    assert (plain.PatientID, str(plain.PatientName), plain.PatientSex) == ("P1", "Doe^Jane", "")
    assert (plain.StudyInstanceUID, plain.FrameOfReferenceUID) == ("1.2.4", "1.2.6")
    assert plain.SeriesInstanceUID != "1.2.5"
    assert plain.ReferencedSeriesSequence[0].SeriesInstanceUID == "1.2.5"
    places = [list(f.PlanePositionSequence[0].ImagePositionPatient) for f in plain.PerFrameFunctionalGroupsSequence]
    assert sorted(places) == [[10, 20, -27], [10, 20, -24]]
    shared = plain.SharedFunctionalGroupsSequence[0]
    assert shared.PixelMeasuresSequence[0].PixelSpacing == [2, 1]
    assert shared.PlaneOrientationSequence[0].ImageOrientationPatient == [1, 0, 0, 0, 1, 0]
    assert {file.name: file.read_bytes() for file in series.iterdir()} == before


def test_the_segment_is_a_lesion_with_the_name_of_its_class(tmp_path, series):
    write_dicom_seg(sorted(series.glob("*.dcm")), MASK, "l" * 80, tmp_path / "seg.dcm")
    (segment,) = pydicom.dcmread(tmp_path / "seg.dcm").SegmentSequence
    kind = segment.SegmentedPropertyTypeCodeSequence[0]
    assert (kind.CodeValue, kind.CodingSchemeDesignator, kind.CodeMeaning) == ("52988006", "SCT", "Lesion")
    assert segment.SegmentLabel == "l" * 64
    assert segment.SegmentAlgorithmType == "SEMIAUTOMATIC"


def segmentation_refused(tmp_path, series, sentence, mask=MASK, out="seg.dcm"):
    with refused(f"DICOM SEG: {sentence}"):
        write_dicom_seg(series, mask, "lesion", tmp_path / out)
    assert not (tmp_path / "seg.dcm").exists()


def test_a_mask_that_does_not_fit_the_series_is_refused(tmp_path, series):
    segmentation_refused(
        tmp_path, series, "expected a mask of the series' shape (3, 4, 5), got (2, 4, 5)", mask=MASK[1:]
    )
    segmentation_refused(
        tmp_path, series, "expected a mask with a lesion, got an empty one", mask=np.zeros(SHAPE, dtype=bool)
    )


def test_nothing_is_written_into_the_folder_of_the_series(tmp_path, series):
    sentence = "expected a file outside the folder of the series, got one in it"
    segmentation_refused(tmp_path, series, sentence, out="series/seg.dcm")
    segmentation_refused(tmp_path, series, sentence, out="series/1.dcm")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ImagePositionPatient": None}, "expected single slices with a place in the patient, got one without {0}"),
        ({"FrameOfReferenceUID": None}, "expected single slices with a place in the patient, got one without {0}"),
        ({"ImagePositionPatient": [1, 2]}, "expected single slices with a place in the patient, got another"),
        ({"SliceThickness": [3, 3]}, "expected single slices with a place in the patient, got another"),
        ({"PixelSpacing": [0, 1]}, "expected single slices with a place in the patient, got another"),
        ({"ImageOrientationPatient": [1, 0, 0] * 2}, "expected single slices with a place in the patient, got another"),
        ({"NumberOfFrames": 2}, "expected single slices with a place in the patient, got another"),
        ({"ImageOrientationPatient": [0, 1, 0, 1, 0, 0]}, "expected parallel slices, got others"),
        ({"ImagePositionPatient": [10, 20, -30]}, "expected one slice at each place, got several at one"),
        ({"SeriesInstanceUID": "1.2.99"}, "expected the files of one series, got those of several"),
    ],
)
def test_slices_that_make_no_series_in_the_patient_are_refused(tmp_path, series, fields, sentence):
    write_slice(series / "2.dcm", 1, **{name: value for name, value in fields.items() if value is not None})
    for name in (name for name, value in fields.items() if value is None):
        damaged = pydicom.dcmread(series / "2.dcm")
        delattr(damaged, name)
        damaged.save_as(series / "2.dcm")
    segmentation_refused(tmp_path, series, sentence.format(*fields))


def test_a_folder_without_dicom_files_is_refused(tmp_path):
    (tmp_path / "series").mkdir()
    segmentation_refused(tmp_path, tmp_path / "series", "expected the DICOM files of a series, got none")


@pytest.mark.parametrize(
    ("intact", "damaged"), [(b"\\-27", b"\\-2x"), (b"\\-27.0", b"\\nan  "), (b"(\0\x10\0US", b"(\0\x10\0Up")]
)
def test_a_damaged_header_is_one_sentence(tmp_path, series, intact, damaged):
    content = (series / "2.dcm").read_bytes()
    assert intact in content
    (series / "2.dcm").write_bytes(content.replace(intact, damaged))
    with pytest.raises(Exception, match=r"^DICOM SEG: expected "):
        write_dicom_seg(series, MASK, "lesion", tmp_path / "seg.dcm")


def test_without_highdicom_the_sentence_names_what_to_install(tmp_path, series, monkeypatch):
    monkeypatch.setitem(sys.modules, "highdicom", None)
    segmentation_refused(tmp_path, series, "expected the package highdicom (pip install 'fedmend[review]'), not found")


# ---- from NIfTI -----------------------------------------------------------------------------------------------------
def write_label(path, affine=AFFINE, mask=MASK, value=1):
    """The mask as a converter of DICOM files would have it: voxels (column, row, slice)."""
    nibabel.save(nibabel.Nifti1Image((mask.transpose(2, 1, 0) * value).astype(np.uint8), affine), path)
    return path


def test_a_label_volume_comes_back_to_the_slices_that_it_was_drawn_on(tmp_path, series):
    label = write_label(tmp_path / "label.nii", value=3)
    assert np.array_equal(mask_on_series(label, series, 3), MASK)
    with refused("DICOM SEG, label: expected the value 1 (or --foreground), got 3 instead"):
        mask_on_series(label, series, 1)


def test_the_order_of_the_axes_in_the_volume_does_not_matter(tmp_path, series):
    image = nibabel.load(write_label(tmp_path / "label.nii"))
    ras = nibabel.as_closest_canonical(image)
    assert not np.array_equal(ras.affine, image.affine)
    nibabel.save(ras, tmp_path / "ras.nii")
    assert np.array_equal(mask_on_series(tmp_path / "ras.nii", series), MASK)


def test_a_label_volume_in_micrometres_lies_on_its_series(tmp_path, series):
    image = nibabel.load(write_label(tmp_path / "label.nii", np.diag([1000, 1000, 1000, 1]) @ AFFINE))
    image.header.set_xyzt_units("micron")
    nibabel.save(image, tmp_path / "micron.nii")
    assert np.array_equal(mask_on_series(tmp_path / "micron.nii", series), MASK)


@pytest.mark.parametrize(
    ("affine", "mask"),
    [
        (AFFINE + np.diag([0, 0, 0.1, 0]), MASK),
        (AFFINE + 0.5 * np.outer([1, 0, 0, 0], [0, 0, 0, 1]), MASK),
        (AFFINE, MASK[:2]),
    ],
    ids=["other distances", "moved", "a slice less"],
)
def test_a_label_volume_of_another_grid_is_refused(tmp_path, series, affine, mask):
    label = write_label(tmp_path / "label.nii", affine, mask)
    with refused("DICOM SEG, label: expected the voxels of the DICOM series, got another grid"):
        mask_on_series(label, series)


def test_slices_at_uneven_distances_have_no_grid(tmp_path, series):
    write_slice(series / "2.dcm", 1, ImagePositionPatient=[10, 20, -26])
    with refused("DICOM SEG: expected slices at even distances, got others"):
        mask_on_series(write_label(tmp_path / "label.nii"), series)


def test_other_values_of_a_label_volume_are_named(tmp_path, series, caplog):
    mask = MASK.astype(np.uint8)
    mask[0, 0, 0] = 2
    assert np.array_equal(mask_on_series(write_label(tmp_path / "label.nii", mask=mask), series), mask == 1)
    assert caplog.messages == ["DICOM SEG, label: besides the value 1 there is 2, which is left out"]


@pytest.mark.parametrize("label", ["", " ", "a\\b", "a\nb"])
def test_a_name_that_no_segment_may_have_is_refused(tmp_path, series, label):
    with refused("DICOM SEG, label: expected printable signs other than a backslash, got others"):
        write_dicom_seg(series, MASK, label, tmp_path / "seg.dcm")


def test_a_series_of_two_patients_is_refused(tmp_path, series):
    write_slice(series / "2.dcm", 1, PatientID="P2")
    with refused("DICOM SEG: expected slices of one patient, got those of several"):
        mask_on_series(write_label(tmp_path / "label.nii"), series)


def test_a_label_volume_that_vanished_is_one_sentence(tmp_path, series):
    with refused("DICOM SEG, label: expected a NIfTI file, not found"):
        mask_on_series(tmp_path / "gone.nii", series)


def test_one_slice_is_a_series_too(tmp_path, series):
    (series / "1.dcm").unlink()
    (series / "2.dcm").unlink()
    write_slice(series / "3.dcm", 0, SliceThickness=4)
    label = write_label(tmp_path / "label.nii", AFFINE @ np.diag([1, 1, 4 / 3, 1]), MASK[1:2])
    assert np.array_equal(mask_on_series(label, series), MASK[1:2])
