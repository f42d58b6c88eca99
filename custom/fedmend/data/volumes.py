"""Image and label volumes (NIfTI): reading, checks, orientation, grey values and sizes of slices.

Volumes are brought to RAS, so that a slice is axial whatever the scanner wrote. Spacing is kept: a slice is only
resized in its plane. They are read with nibabel itself: the checks and the way back need header fields that MONAI's
readers do not hand on.

MONAI gives the same numbers where it has the part, and takes longer. Measured on a FLAIR volume of 182 x 218 x 182, one
CPU thread: LoadImage and Orientation 244 ms (here 185), ScaleIntensityRange 84 (34), Resize of masks 34 (17). Its
scaling by percentiles takes all voxels, the background too, and moves grey values by up to .08; its Resize of images
smooths before it samples where this module averages (190 ms, 30 here). ``fedmend prepare`` would also wait 6 s for the
import of MONAI.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fedmend.data.datalist import VolumeItem
from fedmend.data.raw import MOST_VOXELS, UnreadableImage, grey_range
from fedmend.data.readers import affine_of, open_nifti, unit_of, voxels_of
from fedmend.errors import FedMendError

AFFINE_TOLERANCE = 1e-3  # mm
# A mask saved from floating numbers into whole ones is scaled, and comes back with rounding errors.
MASK_TOLERANCE = 1e-3
ONE_CLASS: Mapping[int, int] = {1: 1}  # value in a label file → number of the class


def load_nifti(path: Path, where: str) -> tuple[Any, np.ndarray]:
    """A NIfTI file and its voxels (X, Y, Z) float32, in the orientation of the file; ``where`` begins a sentence.

    Raises:
        FedMendError: it cannot be read, or has another number of dimensions of more than 1, colours, complex numbers,
            NaN or infinity, or a degenerate affine matrix.
    """
    import nibabel

    try:
        image = open_nifti(path)
        voxels = voxels_of(image)
    except FileNotFoundError:
        raise FedMendError(f"{where}: expected a NIfTI file, not found") from None
    except UnreadableImage as e:
        raise FedMendError(f"{where}: {e}") from None
    except Exception as e:  # nibabel raises many types for a damaged file
        raise FedMendError(
            f"{where}: expected a NIfTI file, got a corrupt or truncated one ({type(e).__name__})"
        ) from None
    if voxels.ndim != 3 or not voxels.size:
        got = "an empty one" if not voxels.size else f"{voxels.ndim} dimensions"
        raise FedMendError(f"{where}: expected a 3-D volume, got {got}")
    if not np.isfinite(voxels).all():
        raise FedMendError(f"{where}: expected finite voxels, got NaN or infinity")
    if not np.isfinite(image.affine).all() or np.isnan(nibabel.io_orientation(image.affine)).any():
        raise FedMendError(f"{where}: expected an affine matrix with three axes, got a degenerate one")
    return image, voxels


def check_frame(slices: int, size: int, where: str) -> None:
    """Refuses a volume that a job makes larger than any may be, before the memory for it is taken.

    Args:
        slices: that the network takes.
        size: their edge length in pixels, which the job chooses.
        where: words that begin a sentence.

    Raises:
        FedMendError: more pixels than :data:`fedmend.data.raw.MOST_VOXELS`.
    """
    if (count := slices * size**2) > MOST_VOXELS:
        got = f"{slices} slices of {size} x {size} (image_size)"
        raise FedMendError(f"{where}: expected at most {MOST_VOXELS} pixels in a volume, got {count}, {got}")


def oriented(voxels: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """A volume (X, Y, Z) in the order of its file, brought to RAS by its ``affine``, (4, 4)."""
    import nibabel

    return nibabel.apply_orientation(voxels, nibabel.io_orientation(affine))


def axial_plane(volume: np.ndarray, number: int) -> np.ndarray:
    """(H, W) axial slice of a volume in RAS, rows from anterior to posterior."""
    return np.rot90(volume[:, :, number])


def axial_planes(volume: np.ndarray) -> np.ndarray:
    """(Z, H, W) all axial slices of a volume (X, Y, Z) in RAS, see :func:`axial_plane`."""
    return np.rot90(volume.transpose(2, 0, 1), axes=(1, 2))


def read_pair(
    item: VolumeItem, where: str, values: Mapping[int, int] = ONE_CLASS, *, turned: Path | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Image and mask of one case in RAS.

    Of a volume that lies at 45 degrees the last digits of a matrix decide which axis becomes which, so that one matrix
    turns all that belongs together.

    Args:
        item: the case.
        where: words that name it in messages.
        values: value in the label file → number of its class, from 1; 0 is everything else.
        turned: file on the same grid whose matrix turns both; None: the image.

    Returns:
        (X, Y, Z) float32 voxels as stored, and (X, Y, Z) uint8 numbers of classes, 0 = none of them.

    Raises:
        FedMendError: a file is missing, damaged, empty, not 3-D or not finite, shapes or affines differ, or the label
            has other values.
    """
    image, voxels = load_nifti(item.image, f"{where}, image")
    label, found = load_nifti(item.label, f"{where}, label")
    if found.shape != voxels.shape:
        raise FedMendError(f"{where}: expected a label of the image's shape {voxels.shape}, got {found.shape}")
    # A program that drops the unit of a header leaves the numbers as they are.
    if not (_same(affine_of(image), affine_of(label)) or _same(image.affine, label.affine, unit_of(image))):
        raise FedMendError(f"{where}: expected a label with the image's affine matrix, got {_which(image, label)}")
    mask = class_numbers(found, values)
    if not (has_value(0, found) | (mask > 0)).all():
        *first, last = map(str, (0, *values))
        raise FedMendError(f"{where}, label: expected the values {', '.join(first)} and {last}, got others")
    affine = image.affine if turned is None else open_nifti(turned).affine
    return oriented(voxels, affine), oriented(mask, affine)


def _same(one: np.ndarray | None, other: np.ndarray | None, unit: float = 1.0) -> bool:
    """Whether two matrices in a unit of so many mm are the same."""
    return one is not None and other is not None and np.allclose(one, other, atol=AFFINE_TOLERANCE / unit, rtol=0)


def _which(image: Any, label: Any) -> str:
    """Which matrix a label has instead of the image's: a header has two, of which some programs write one alone."""
    if not all(hasattr(file, "get_sform") for file in (image, label)):  # other formats that nibabel reads have one
        return "another one"
    used, unused = ("sform", "qform") if image.header["sform_code"] else ("qform", "sform")
    unit = unit_of(image)
    advice = "write the same one as sform and qform into both files"
    if _same(getattr(image, f"get_{unused}")(coded=True)[0], label.affine, unit):
        return f"that of the image's {unused}, while its {used} counts; {advice}"
    others = label.get_sform(coded=True)[0], label.get_qform(coded=True)[0]
    if any(_same(image.affine, matrix, unit) for matrix in others):
        return f"that of the label's sform, while its qform would fit; {advice}"
    return "another one"


def has_value(value: int, voxels: np.ndarray) -> np.ndarray:
    """Which voxels of a label file, any shape, have a value; bool of the same shape."""
    return np.abs(voxels - np.float32(value)) < MASK_TOLERANCE


def class_numbers(voxels: np.ndarray, values: Mapping[int, int]) -> np.ndarray:
    """Numbers of classes in the voxels of a label file, any shape; uint8 of the same shape.

    Args:
        voxels: as stored.
        values: value in the file → number of its class, from 1; 0 is everything else.
    """
    found = np.zeros(voxels.shape, dtype=np.uint8)
    for value, number in values.items():
        found[has_value(value, voxels)] = number
    return found


def scale(voxels: np.ndarray, window: tuple[float, float] | None) -> np.ndarray:
    """Grey values of a volume → 0..1.

    Args:
        voxels: any shape; HU for CT.
        window: (centre, width) in HU; None: MR, whose unit differs from volume to volume: the 0.5 and 99.5 percentiles
            of the non-zero voxels become 0 and 1.

    Returns:
        float32 of the same shape.
    """
    low, width = grey_range(voxels, window)
    return np.clip((voxels - np.float32(low)) / np.float32(width), 0, 1).astype(np.float32)


def resize_image(planes: np.ndarray, size: int) -> np.ndarray:
    """(N, H, W) float32 → (N, size, size), bilinear with antialiasing."""
    if planes.shape[1:] == (size, size):
        return planes
    wanted = F.interpolate(torch.from_numpy(planes)[:, None], (size, size), mode="bilinear", antialias=True)
    return wanted[:, 0].numpy()


def resize_masks(planes: np.ndarray, shape: tuple[int, int], kind: type = np.uint8) -> np.ndarray:
    """Nearest neighbours of masks, or of numbered lesions.

    Args:
        planes: (N, H, W) bool or whole numbers below 2^24.
        shape: height and width that are wanted.
        kind: of the numbers given back; uint8 holds a mask.

    Returns:
        (N, *shape) of this kind.
    """
    planes = planes.astype(kind)
    if planes.shape[1:] == tuple(shape):
        return planes
    wanted = F.interpolate(torch.from_numpy(planes).float()[:, None], tuple(shape), mode="nearest-exact")
    return wanted[:, 0].numpy().astype(kind)
