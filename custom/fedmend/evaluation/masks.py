"""How good masks are, volume by volume, at the size that the network sees; Dice and distances are MONAI's."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmend.data.readers import affine_of
from fedmend.data.slices import VolumeSplit
from fedmend.kinds.segmentation import slice_pixels
from fedmend.learning.inference import infer_classes
from fedmend.method import Site

OVERLAP = 0.1  # smallest intersection over union with which a lesion counts as found


@dataclass(frozen=True)
class Masks:
    """What a model says of V volumes with N slices and masks of C classes.

    Attributes:
        pixels: (N, C, 3) int64, see :meth:`fedmend.kinds.Kind.scored`.
        dice: (V, C) float, NaN of a volume whose mask lacks the class; nothing is measured of what masks do not show.
        hd95: (V, C) float, 95th percentile of the distances of the surfaces in mm; NaN where mask or prediction is
            empty.
        lesions: (V, C, 3) int64: lesions found, false ones, missed ones. Lesions touch in three dimensions; one is
            found where its intersection over union with a predicted one is at least 0.1, each of which stands for one.
    """

    pixels: np.ndarray
    dice: np.ndarray
    hd95: np.ndarray
    lesions: np.ndarray


def measure_masks(model: nn.Module, split: VolumeSplit, site: Site) -> Masks:
    """Asks a model for the masks of all slices and compares them volume by volume.

    Args:
        model: returns (features, logits).
        split: volumes.
        site: gives device and batch size.

    Raises:
        FedMendError: a score is NaN or infinite.
    """
    found, classes = np.zeros(split.masks.shape, dtype=np.uint8), range(1, len(split.annotated) + 1)
    pixels = np.zeros((len(split), len(classes), 3), dtype=np.int64)
    for index, numbers in infer_classes(model, split, site):
        found[index] = numbers
        for c in classes:
            pixels[index, c - 1] = slice_pixels(numbers == c, split.masks[index] == c)
    rows = [[_volume(split, number, found, c) for c in classes] for number in range(len(split.items))]
    dice, hd95, lesions = zip(*(zip(*row, strict=True) for row in rows), strict=True)
    return Masks(pixels, np.array(dice), np.array(hd95), np.array(lesions, dtype=np.int64))


def _volume(split: VolumeSplit, number: int, found: np.ndarray, c: int) -> tuple[float, float, list[int]]:
    """Dice, HD95 and lesions of the class ``c``, from 1, of a volume."""
    from monai.metrics import compute_dice, compute_hausdorff_distance

    if not split.annotated[c - 1]:
        return float("nan"), float("nan"), [0, 0, 0]
    mine = np.flatnonzero(split.case == number)
    planes = split.plane[mine]
    grid = (int(np.ptp(planes)) + 1, *split.masks.shape[1:])  # slices that are not used have no lesion
    true, said = np.zeros((2, *grid), dtype=bool)
    true[planes - planes.min()], said[planes - planes.min()] = split.masks[mine] == c, found[mine] == c
    one, other = (torch.from_numpy(volume)[None, None] for volume in (said, true))
    dice = float(compute_dice(one, other)[0, 0])  # NaN without lesion in the mask
    hd95 = float("nan")
    if true.any() and said.any():
        where: dict[str, Any] = {"percentile": 95, "spacing": _spacing(split, number), "include_background": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # MONAI of itself
            hd95 = float(compute_hausdorff_distance(one, other, **where)[0, 0])
    return dice, hd95, _lesions(_numbered(said), _numbered(true))


def _numbered(mask: np.ndarray) -> np.ndarray:
    from scipy.ndimage import generate_binary_structure, label

    return label(mask, generate_binary_structure(3, 3))[0]


def _lesions(said: np.ndarray, true: np.ndarray) -> list[int]:
    """Lesions found, false ones, missed ones, of numbered lesions (D, H, W). The same counts as by MONAI's
    ``compute_panoptic_quality``, which keeps a volume for each lesion: about 30 GB of a head with 400."""
    from scipy.optimize import linear_sum_assignment

    shape = int(true.max()) + 1, int(said.max()) + 1
    pairs = np.ravel_multi_index((true.ravel(), said.ravel()), shape)
    voxels = np.bincount(pairs, minlength=shape[0] * shape[1]).reshape(shape)
    union = voxels.sum(1, keepdims=True) + voxels.sum(0) - voxels
    overlap = (voxels / union.clip(1))[1:, 1:]
    found = int((overlap[linear_sum_assignment(overlap, maximize=True)] >= OVERLAP).sum())
    return [found, overlap.shape[1] - found, overlap.shape[0] - found]


def _spacing(split: VolumeSplit, number: int) -> list[float]:
    """Millimetres between the slices that are used, and between their rows and columns at the network's size."""
    import nibabel

    if split.spacing:
        return [split.spacing[2], split.spacing[1], split.spacing[0]]
    header = nibabel.load(split.items[number].image)  # that of the mask may lack the unit
    shape = np.array(header.shape[:3])  # type: ignore[attr-defined]  # a SpatialImage, which its types do not say
    affine = affine_of(header)
    order = nibabel.io_orientation(affine)[:, 0].astype(int)  # axis of the file → axis of the patient
    length = np.linalg.norm(affine[:3, :3], axis=0) * shape / np.where(order == 2, shape, split.masks.shape[1])
    across, down, up = (float(length[order == axis][0]) for axis in range(3))
    return [up, down, across]
