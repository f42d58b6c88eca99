"""A DICOM series as a volume: the slices of its files, or of one multi-frame file, in the order of their places."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmend.data.dicom_files import frame_values, frames_of, no_warnings, open_dicom
from fedmend.data.dicom_groups import group_of, groups_of
from fedmend.data.dicom_values import header_number
from fedmend.data.identity import loose
from fedmend.data.raw import WIDEST, UnreadableImage, check_pixels, grey_range
from fedmend.errors import FedMendError

if TYPE_CHECKING:
    from pydicom import Dataset

GRID_TOLERANCE = 0.01  # mm; converters round
PLACE, TURN = "ImagePositionPatient", "ImageOrientationPatient"


@dataclass(frozen=True)
class Slice:
    """One slice.

    Attributes:
        dataset: the file that it is in.
        frame: its number in the file, from 0.
        place: (3,) mm, of its first pixel in LPS.
        turn: (6,) directions of its rows and columns.
        spacing: (2,) mm from row to row, and from column to column.
        thickness: mm; of a series of one slice the third edge of its voxels.
    """

    dataset: "Dataset"
    frame: int
    place: np.ndarray
    turn: np.ndarray
    spacing: np.ndarray
    thickness: float


@no_warnings()
def slices_of(files: Sequence[Path], where: str) -> list[Slice]:
    """The slices of a series, along the normal of their rows and columns.

    Args:
        files: of one series: single slices, or one file with frames.
        where: words that begin a sentence.

    Raises:
        FedMendError: a file that cannot be used, slices without a place in the patient, that are not parallel, of
            several sizes or patients, at one place or at uneven distances.
    """
    found: list[Slice] = []
    for file in files:
        try:
            dataset = open_dicom(file)
            found += [_slice(dataset, frame) for frame in range(frames_of(dataset, file))]
        except UnreadableImage as e:
            raise FedMendError(f"{where}: {e}") from None
        except FileNotFoundError:
            raise FedMendError(f"{where}: expected a file, not found") from None
        except OSError as e:
            words = f"expected a file that can be opened, got an error ({type(e).__name__})"
            raise FedMendError(f"{where}: {words}") from None
        except Exception as e:  # pydicom raises many types for a damaged file
            raise FedMendError(f"{where}: expected DICOM files, got a damaged one ({type(e).__name__})") from None
    first = found[0]
    size = ("Rows", "Columns", "SeriesInstanceUID")
    if any(s.dataset.get(name) != first.dataset.get(name) for s in found for name in size):
        raise FedMendError(f"{where}: expected slices of one size and series, got several")
    check_one_patient([s.dataset for s in found], where)
    if not all(np.allclose([*s.turn, *s.spacing], [*first.turn, *first.spacing], atol=1e-4) for s in found):
        raise FedMendError(f"{where}: expected parallel slices with pixels of one size, got others")
    found.sort(key=lambda s: float(s.place @ np.cross(first.turn[:3], first.turn[3:])))
    grid_of(found, where)
    return found


def check_one_patient(images: Sequence["Dataset"], where: str) -> None:
    """Refuses a series of several patients, as where somebody has given all series one UID; a blank is nobody.

    Args:
        images: headers.
        where: words that begin a sentence.

    Raises:
        FedMendError: several PatientIDs.
    """
    if len({loose(str(image.get("PatientID") or "")) for image in images} - {""}) > 1:
        raise FedMendError(f"{where}: expected slices of one patient, got those of several")


def _slice(dataset: "Dataset", frame: int) -> Slice:
    check_pixels(int(dataset.Rows) * int(dataset.Columns))
    measures = group_of(dataset, frame, "PixelMeasuresSequence")
    place = group_of(dataset, frame, "PlanePositionSequence").get(PLACE)
    turn = group_of(dataset, frame, "PlaneOrientationSequence").get(TURN)
    spacing = measures.get("PixelSpacing")
    if place is None or turn is None or spacing is None:
        raise UnreadableImage("expected slices with a place in the patient and a pixel spacing, got one without")
    thickness = measures.get("SliceThickness") or measures.get("SpacingBetweenSlices") or 1.0
    mm = [np.array(values, dtype=float) for values in (place, turn, spacing)]
    found = Slice(dataset, frame, mm[0], mm[1], mm[2], float(thickness))
    axes = found.turn.reshape(2, 3)
    right = np.isfinite([*found.place, found.thickness]).all() and np.allclose(axes @ axes.T, np.eye(2), atol=1e-3)
    if not right or found.place.shape != (3,) or found.spacing.shape != (2,) or not (found.spacing > 0).all():
        raise UnreadableImage("expected slices with a place in the patient, got another")
    return found


def grid_of(slices: Sequence[Slice], where: str) -> np.ndarray:
    """(4, 4) affine from (column, row, slice) to mm in RAS, the axes of NIfTI.

    Args:
        slices: in order.
        where: words that begin a sentence.

    Raises:
        FedMendError: several slices at one place, or uneven distances.
    """
    first, last, count = slices[0], slices[-1], len(slices)
    normal = np.cross(first.turn[:3], first.turn[3:])
    step = (last.place - first.place) / (count - 1) if count > 1 else normal * first.thickness
    places = np.array([s.place for s in slices])
    if (np.diff(places @ normal) < GRID_TOLERANCE).any():
        raise FedMendError(f"{where}: expected one slice at each place, got several at one")
    if not np.allclose(places, first.place + np.arange(count)[:, None] * step, atol=GRID_TOLERANCE, rtol=0):
        raise FedMendError(f"{where}: expected slices at even distances, got others")
    grid = np.eye(4)
    grid[:3, 0], grid[:3, 1] = first.turn[:3] * first.spacing[1], first.turn[3:] * first.spacing[0]
    grid[:3, 2], grid[:3, 3] = step, first.place
    return np.diag([-1.0, -1, 1, 1]) @ grid


@no_warnings()
def voxels_of_series(
    slices: Sequence[Slice], where: str, *, window: tuple[float, float] | None
) -> tuple[np.ndarray, tuple[float, float] | None]:
    """The values of a series, in HU for CT: those of a NIfTI volume made from it, but that padding is black.

    Args:
        slices: in order.
        where: words that begin a sentence.
        window: through which the package sees volumes, see :func:`fedmend.data.volumes.scale`.

    Returns:
        (columns, rows, slices) float32, and the window to see them through: where there is padding, it is no part of
        the percentiles.

    Raises:
        FedMendError: pixels that cannot be used.
    """
    planes, padding = [], []
    for s in slices:
        try:
            found = frame_values(s.dataset, s.frame, in_hu=window is not None)
        except UnreadableImage as e:
            raise FedMendError(f"{where}: {e}") from None
        except Exception as e:  # pydicom raises many types for damaged pixels
            raise FedMendError(f"{where}: expected DICOM pixels, got damaged ones ({type(e).__name__})") from None
        if found.values.ndim != 2 or not (np.abs(found.values) <= WIDEST).all():
            raise FedMendError(f"{where}: expected a number in every pixel, got colours, NaN or infinity")
        planes.append(found.values.T.astype(np.float32))
        padding.append(np.zeros(planes[-1].shape, dtype=bool) if found.padding is None else found.padding.T)
    voxels, unmeasured = np.stack(planes, axis=-1), np.stack(padding, axis=-1)
    if unmeasured.any():
        low, width = grey_range(voxels[~unmeasured], window)
        voxels[unmeasured] = low - width
        window = (float(low + width / 2), float(width))
    return voxels, window


def number_of(value: object, otherwise: float) -> float:
    """The number that a header holds in a field; ``otherwise`` where it is none."""
    try:
        number = header_number(value, "")
    except UnreadableImage:
        return otherwise
    return number if np.isfinite(number) else otherwise


def height_of(header: "Dataset", frame: int) -> float:
    """Distance of a slice along its normal in mm; NaN where the header does not say it."""
    place = turn = None
    for group in groups_of(header, frame):
        if place is None and (found := group.get("PlanePositionSequence")):
            place = found[0].get(PLACE)
        if turn is None and (found := group.get("PlaneOrientationSequence")):
            turn = found[0].get(TURN)
    place, turn = (header.get(PLACE) if place is None else place), (header.get(TURN) if turn is None else turn)
    if not place or not turn or (len(place), len(turn)) != (3, 6):
        return float("nan")
    (x, y, z), (rx, ry, rz, dx, dy, dz) = ([number_of(v, float("nan")) for v in values] for values in (place, turn))
    # Along the cross product of row and column; np.cross took 8 % of the time that a header takes.
    return x * (ry * dz - rz * dy) + y * (rz * dx - rx * dz) + z * (rx * dy - ry * dx)
