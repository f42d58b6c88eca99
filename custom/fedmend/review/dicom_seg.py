"""Masks as DICOM segmentations (SEG) of the series that they lie on, by highdicom."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedmend
from fedmend.basics.files import make_folder, write_atomically
from fedmend.data.dicom_files import open_dicom
from fedmend.data.dicom_series import GRID_TOLERANCE, Slice, check_one_patient, grid_of
from fedmend.data.dicom_writing import with_all_fields
from fedmend.data.readers import affine_of
from fedmend.data.volumes import has_value, load_nifti
from fedmend.errors import FedMendError, not_installed

if TYPE_CHECKING:
    from pydicom import Dataset

LOG = logging.getLogger("fedmend.review")
WHERE = "DICOM SEG"
SHAPE = ("Rows", "Columns", "PixelSpacing", "SliceThickness")
ONE_FOR_ALL = ("StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID", "Modality", *SHAPE)  # of a series
NEEDED = ("SOPClassUID", "SOPInstanceUID", *ONE_FOR_ALL, "ImagePositionPatient", "ImageOrientationPatient")
LONGEST_LABEL = 64  # characters of a segment's name
SERIES_NUMBER = 900  # behind those of the scanner


def write_dicom_seg(series: Path | Sequence[Path], mask: np.ndarray, label: str, out: Path) -> None:
    """Writes a mask as a DICOM segmentation with one segment, a lesion; patient, study and place are the series'.

    Frames without a lesion are left out, as highdicom does it by default.

    Args:
        series: DICOM files of one series, or a folder of them; other files in it are passed over.
        mask: (slices, H, W) bool, slices in the order of their place along the normal of the rows and columns, for an
            axial series from the feet up; see :func:`mask_on_series`.
        label: name of the segment.
        out: file to write; its folder is made when missing.

    Raises:
        FedMendError: highdicom is missing, a name that no segment may have, the files are no series that has a place in
            the patient, the mask has another shape or no pixel, or ``out`` lies in the folder of the series.
        OSError: a file cannot be opened or written.
    """
    try:
        import highdicom
    except ImportError:
        raise FedMendError(f"{WHERE}: {not_installed('highdicom', 'review')}") from None

    if not label.strip() or "\\" in label or not label.isprintable():  # a backslash would part it in two
        raise FedMendError(f"{WHERE}, label: expected printable signs other than a backslash, got others")
    files = _files(series)
    if out.resolve().parent in {file.resolve().parent for file in files}:
        raise FedMendError(f"{WHERE}: expected a file outside the folder of the series, got one in it")
    images = _ordered(files)
    if mask.shape != (expected := (len(images), images[0].Rows, images[0].Columns)):
        raise FedMendError(f"{WHERE}: expected a mask of the series' shape {expected}, got {mask.shape}")
    if not mask.any():
        raise FedMendError(f"{WHERE}: expected a mask with a lesion, got an empty one")
    with_all_fields(images[0], label)
    segmentation = highdicom.seg.Segmentation(
        source_images=images,
        pixel_array=mask,
        segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
        segment_descriptions=[_segment(label)],
        series_instance_uid=highdicom.UID(),
        series_number=SERIES_NUMBER,
        sop_instance_uid=highdicom.UID(),
        instance_number=1,
        manufacturer="FedMend",
        manufacturer_model_name="fedmend review",
        software_versions=fedmend.__version__,
        device_serial_number="0",
    )
    make_folder(out.parent)
    with write_atomically(out) as temporary:
        segmentation.save_as(temporary)


def _segment(label: str) -> Any:
    """What the one segment is: a lesion, found by people and a model together."""
    import highdicom
    from pydicom.sr.codedict import codes

    return highdicom.seg.SegmentDescription(
        segment_number=1,
        segment_label=label[:LONGEST_LABEL],
        segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
        segmented_property_type=codes.SCT.Lesion,
        algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.SEMIAUTOMATIC,
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name="FedMend", family=codes.DCM.ArtificialIntelligence, version=fedmend.__version__
        ),
    )


def mask_on_series(label: Path, series: Path | Sequence[Path], foreground: int = 1) -> np.ndarray:
    """Brings a label volume to the slices of the DICOM series that it was drawn on.

    Args:
        label: NIfTI file; its voxels are those of the series, in any order of the axes.
        series: as of :func:`write_dicom_seg`.
        foreground: value of the lesion.

    Returns:
        (slices, H, W) bool, for :func:`write_dicom_seg`.

    Raises:
        FedMendError: a file cannot be used, or the volume has other voxels than the series, or other values.
    """
    import nibabel

    images = _ordered(_files(series))
    nifti, values = load_nifti(label, f"{WHERE}, label")
    lesion = has_value(foreground, values)
    if (others := np.unique(values[(values != 0) & ~lesion])).size:
        shown = ", ".join(f"{value:g}" for value in others[:5])
        if not lesion.any():
            words = f"expected the value {foreground} (or --foreground), got {shown} instead"
            raise FedMendError(f"{WHERE}, label: {words}")
        LOG.warning("%s, label: besides the value %s there is %s, which is left out", WHERE, foreground, shown)
    grid = _grid(images)
    own = affine_of(nifti)
    order = nibabel.io_orientation(np.linalg.inv(grid) @ own)
    turned = nibabel.apply_orientation(lesion, order)
    affine = own @ nibabel.orientations.inv_ornt_aff(order, values.shape)
    same = turned.shape == (len(images), images[0].Rows, images[0].Columns)
    if not same or not np.allclose(affine, grid, atol=GRID_TOLERANCE, rtol=0):
        raise FedMendError(f"{WHERE}, label: expected the voxels of the DICOM series, got another grid")
    return turned


def _files(series: Path | Sequence[Path]) -> list[Path]:
    return sorted(file for file in series.iterdir() if file.is_file()) if isinstance(series, Path) else list(series)


def _ordered(files: Sequence[Path]) -> list:
    """The headers of a series, in the order of their places along the normal."""
    from pydicom.errors import InvalidDicomError

    images = []
    for file in files:
        try:
            image = open_dicom(file, stop_before_pixels=True)
            lacking = [name for name in NEEDED if image.get(name) is None]
            placed = not lacking and _is_placed(image)
        except InvalidDicomError:
            continue
        except OSError:
            raise
        except Exception as e:  # pydicom raises many types for a damaged file
            raise FedMendError(f"{WHERE}: expected DICOM files, got a damaged one ({type(e).__name__})") from None
        if not placed or int(image.get("NumberOfFrames") or 1) > 1:
            got = f"one without {lacking[0]}" if lacking else "another"
            raise FedMendError(f"{WHERE}: expected single slices with a place in the patient, got {got}")
        images.append(image)
    if not images:
        raise FedMendError(f"{WHERE}: expected the DICOM files of a series, got none")
    if any(image.get(name) != images[0].get(name) for image in images for name in ONE_FOR_ALL):
        raise FedMendError(f"{WHERE}: expected the files of one series, got those of several")
    check_one_patient(images, WHERE)
    turns = np.array([image.ImageOrientationPatient for image in images], dtype=float)
    places = np.array([image.ImagePositionPatient for image in images], dtype=float)
    if not np.allclose(turns, turns[0], atol=1e-4):
        raise FedMendError(f"{WHERE}: expected parallel slices, got others")
    heights = places @ np.cross(turns[0, :3], turns[0, 3:])
    order = np.argsort(heights)
    if (np.diff(heights[order]) < GRID_TOLERANCE).any():
        raise FedMendError(f"{WHERE}: expected one slice at each place, got several at one")
    return [images[number] for number in order]


def _is_placed(image: "Dataset") -> bool:
    """Whether a slice has numbers for its place, two axes at right angles and pixels with a size."""
    place = np.array(image.ImagePositionPatient, dtype=float)
    turn = np.array(image.ImageOrientationPatient, dtype=float)
    sizes = np.append(image.PixelSpacing, image.SliceThickness).astype(float)
    if (place.shape, turn.shape, sizes.shape) != ((3,), (6,), (3,)) or not np.isfinite([*place, *sizes]).all():
        return False
    axes = turn.reshape(2, 3)
    return bool((sizes > 0).all() and np.allclose(axes @ axes.T, np.eye(2), atol=1e-3))


def _grid(images: Sequence) -> np.ndarray:
    """(4, 4) affine from (slice, row, column) to mm in RAS, the axes of NIfTI."""

    def placed(image: "Dataset") -> Slice:
        given = (image.ImagePositionPatient, image.ImageOrientationPatient, image.PixelSpacing)
        place, turn, spacing = (np.array(values, dtype=float) for values in given)
        return Slice(image, 0, place, turn, spacing, float(image.SliceThickness))

    return grid_of([placed(image) for image in images], WHERE)[:, [2, 1, 0, 3]]
