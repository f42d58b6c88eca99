"""Volumes for networks in three dimensions, by MONAI: one spacing for all, patches around what is marked, windows that
slide over a whole volume.

A volume stays a stack of axial slices in the store, so that ledger, review and counts know slices whatever the network
sees. MONAI is imported where it is used: it takes seconds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.readers import affine_of, open_nifti
from fedmend.data.volumes import axial_planes, check_frame, scale
from fedmend.errors import FedMendError

LONGEST = 3000.0  # mm; nobody is
OVERLAP = 0.25  # of neighbouring windows, as MONAI has it


@dataclass(frozen=True)
class Grid:
    """Where the voxels of a volume lie.

    Attributes:
        affine: (4, 4), voxel → mm in RAS.
        shape: X, Y, Z.
    """

    affine: np.ndarray
    shape: tuple[int, ...]

    @classmethod
    def of_file(cls, path: Path) -> "Grid":
        """That of a NIfTI file after its voxels were brought to RAS."""
        image = open_nifti(path)
        return cls.oriented(affine_of(image), image.shape[:3])

    @classmethod
    def oriented(cls, affine: np.ndarray, shape: Sequence[int]) -> "Grid":
        """That of voxels that are brought to RAS, from affine (4, 4) and shape in their file; no voxel is read."""
        from nibabel import orientations

        turn = orientations.io_orientation(affine)
        turned = [n for _, n in sorted(zip(turn[:, 0], shape, strict=True))]
        return cls(affine @ orientations.inv_ornt_aff(turn, shape), tuple(turned))

    def spaced(self, spacing: Sequence[float]) -> "Grid":
        """The grid over the same body with another distance of the voxels, mm along X, Y, Z."""
        from monai.data.utils import compute_shape_offset, zoom_affine

        affine = zoom_affine(self.affine, spacing, diagonal=False)
        shape, corner = compute_shape_offset(self.shape, self.affine, affine)
        affine[:3, 3] = corner[:3]
        return Grid(affine, tuple(int(n) for n in shape))


def resampled(voxels: np.ndarray, grid: Grid, wanted: Grid, *, nearest: bool) -> np.ndarray:
    """A volume on another grid.

    Args:
        voxels: (X, Y, Z).
        grid: of the voxels.
        wanted: the other one.
        nearest: of numbers of classes; else linear, of grey values.

    Returns:
        (X', Y', Z') of the same type.
    """
    from monai.data.meta_tensor import MetaTensor
    from monai.transforms.spatial.array import SpatialResample

    volume = MetaTensor(torch.from_numpy(voxels.astype(np.float32))[None], affine=torch.from_numpy(grid.affine))
    how: dict[str, Any] = {"mode": "nearest" if nearest else "bilinear", "dtype": torch.float32}
    found = SpatialResample()(volume, torch.from_numpy(wanted.affine), wanted.shape, **how)[0]
    return np.asarray(found).astype(voxels.dtype)


def framed(planes: np.ndarray, size: int, where: str) -> np.ndarray:
    """Slices in the middle of squares, with 0 around them.

    Args:
        planes: (N, H, W).
        size: edge length of the squares in pixels.
        where: words that begin a sentence.

    Returns:
        (N, size, size).

    Raises:
        FedMendError: they are larger.
    """
    _check_size(planes.shape[1:], size, where)
    return np.pad(planes, [(0, 0), *_margins(planes.shape[1:], size)])


def _check_size(shape: Sequence[int], size: int, where: str) -> None:
    if max(shape) > size:
        got = f"{shape[0]} x {shape[1]}"
        raise FedMendError(f"{where}: expected slices of at most {size} pixels (image_size) at this spacing, got {got}")


def unframed(planes: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The way back from :func:`framed`: (N, size, size) → (N, *shape)."""
    (top, _), (left, _) = _margins(shape, planes.shape[1])
    return planes[:, top : top + shape[0], left : left + shape[1]]


def _margins(shape: Sequence[int], size: int) -> list[tuple[int, int]]:
    return [((size - n) // 2, size - n - (size - n) // 2) for n in shape]


def upright(planes: np.ndarray) -> np.ndarray:
    """Axial slices (Z, H, W), rows from the front to the back → the volume (X, Y, Z) in RAS that they are of."""
    return np.rot90(planes, -1, axes=(1, 2)).transpose(1, 2, 0)


def spaced_planes(
    voxels: np.ndarray,
    grid: Grid,
    where: str,
    *,
    window: tuple[float, float] | None,
    size: int,
    spacing: Sequence[float],
) -> np.ndarray:
    """All slices of a volume at one spacing, as :func:`fedmend.data.slices.planes_of` otherwise.

    Args:
        voxels: (X, Y, Z) float32 in RAS.
        grid: of the voxels.
        where: words that name the volume in messages.
        window: see :func:`fedmend.data.volumes.scale`.
        size: edge length in pixels; what is smaller gets a frame of 0.
        spacing: mm along X, Y, Z.

    Returns:
        (n, size, size) float16 in 0..1.

    Raises:
        FedMendError: voxels of one value, more than ``size`` pixels or a single one, or a volume longer than any body.
    """
    wanted = grid.spaced(spacing)
    if wanted.shape[2] * spacing[2] > LONGEST:  # before the memory for it is taken
        raise FedMendError(f"{where}, image: expected a volume of at most {LONGEST:g} mm, got a longer one")
    _check_size(wanted.shape[1::-1], size, f"{where}, image")
    check_frame(wanted.shape[2], size, f"{where}, image")
    if min(wanted.shape[:2]) < 2:
        got = "a single one; is the unit in the header right?"
        raise FedMendError(f"{where}, image: expected at least 2 pixels in each direction at this spacing, got {got}")
    grey = scale(voxels, window)
    if not np.ptp(grey) > 0:
        raise FedMendError(f"{where}, image: expected tissue, got voxels of one value")
    volume = resampled(grey, grid, wanted, nearest=False)
    return framed(axial_planes(volume), size, f"{where}, image").astype(np.float16)


def spaced_masks(mask: np.ndarray, grid: Grid, size: int, spacing: Sequence[float]) -> np.ndarray:
    """(n, size, size) uint8 masks beside :func:`spaced_planes`, of a mask (X, Y, Z) uint8 in RAS."""
    return framed(axial_planes(resampled(mask, grid, grid.spaced(spacing), nearest=True)), size, "label")


class Patches:
    """Patches of volumes for one epoch: as many of each as its tissue fills, half of them around something marked,
    where every structure has the same chance, so that a small one is not left to luck.

    Args:
        case: (N,) number of the case that a slice is of, slices of a case one after the other.
        marks: (N, H, W) numbers of structures, 0 where nothing is marked.
        grey: (N, H, W) in 0..1; 0: no tissue.
        size: slices, rows and columns of a patch.
        generator: of their places.
    """

    def __init__(
        self, case: np.ndarray, marks: np.ndarray, grey: np.ndarray, size: Sequence[int], generator: torch.Generator
    ):
        from monai.transforms.utils import generate_label_classes_crop_centers, map_classes_to_indices

        self.size, self._places = tuple(size), []
        rng = np.random.RandomState(int(torch.randint(2**31, (1,), generator=generator)))
        for number in np.unique(case):
            rows = np.flatnonzero(case == number)
            volume = marks[rows]
            tissue = (grey[rows] > 0) | (volume > 0)
            inside = map_classes_to_indices(volume[None], int(volume.max()) + 1, tissue[None])
            shown = [int(len(voxels) > 0) for voxels in inside[1:]]
            ratios: list[float | int] = [max(1, sum(shown)), *shown]
            count = max(1, math.ceil(np.count_nonzero(grey[rows]) / math.prod(size)))
            how = (self.size, count, volume.shape, inside, ratios, rng, True)
            for centre in generate_label_classes_crop_centers(*how):
                first = [
                    max(0, min(int(c) - s // 2, n - s)) for c, s, n in zip(centre, self.size, volume.shape, strict=True)
                ]
                self._places.append((rows[0] + first[0], rows[-1] + 1, *first[1:]))

    def __len__(self) -> int:
        return len(self._places)

    def cut(self, of: Callable[[Tensor], Tensor], index: Tensor) -> Tensor:
        """Some of the patches.

        Args:
            of: (D,) slice numbers → (D, H, W) of these slices.
            index: (B,) numbers of patches.

        Returns:
            (B, *size), with 0 where a volume has fewer slices.
        """
        depth, rows, columns = self.size
        found = []
        for first, end, top, left in (self._places[i] for i in index.tolist()):
            part = of(torch.arange(first, min(first + depth, end)))[:, top : top + rows, left : left + columns]
            found.append(torch.nn.functional.pad(part, (0, 0, 0, 0, 0, depth - len(part))))
        return torch.stack(found)


def slide(network: Callable[[Tensor], Tensor], volume: Tensor, size: Sequence[int], batch: int) -> Tensor:
    """What a network says of a whole volume, window by window; where windows overlap, their middles count for more.

    Args:
        network: (B, 1, *size) → (B, K, *size).
        volume: (Z, H, W) on the device.
        size: of the windows.
        batch: windows at once.

    Returns:
        (Z, K, H, W) float32.
    """
    from monai.inferers.utils import sliding_window_inference

    how: dict[str, Any] = {"roi_size": size, "sw_batch_size": batch, "overlap": OVERLAP, "mode": "gaussian"}
    found: Any = sliding_window_inference(volume[None, None], predictor=lambda x: network(x).float(), **how)
    return found[0].transpose(0, 1)
