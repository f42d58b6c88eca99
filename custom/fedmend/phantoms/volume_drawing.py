"""What phantoms of volumes share: a grid in millimetres, smooth fields, distances, and NIfTI files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy.ndimage import gaussian_filter


@dataclass(frozen=True)
class Grid:
    """Shape, size of a voxel (mm), affine, and where every voxel is: (3, X, Y, Z) mm right, front, up of the centre."""

    shape: tuple[int, int, int]
    spacing: np.ndarray
    affine: np.ndarray
    place: np.ndarray


def make_grid(size: int, depth: int, field: float, height: float, signs: Sequence[int]) -> Grid:
    """A grid around the origin.

    Args:
        size: voxels along x and y.
        depth: voxels along z.
        field: mm along x and y.
        height: mm along z.
        signs: of the axes of the file: 1 to the right, front, up.
    """
    shape = (size, size, depth)
    spacing = np.array([field / size, field / size, height / depth])
    step = spacing * signs
    corner = -step * (np.array(shape) - 1) / 2
    affine = np.diag([*step, 1.0])
    affine[:3, 3] = corner
    axes = [(c + s * np.arange(n)).astype(np.float32) for c, s, n in zip(corner, step, shape, strict=True)]
    return Grid(shape, spacing, affine, np.stack(np.meshgrid(*axes, indexing="ij")))


def posed(rng: np.random.Generator, place: np.ndarray, degrees: float, shift: float, scale: float) -> np.ndarray:
    """Where the voxels lie in a body that is turned about its long axis, shifted and of another size.

    Args:
        rng: random numbers.
        place: (3, ...) mm.
        degrees: deviation of the turn.
        shift: deviation of each of three shifts, mm.
        scale: deviation of each of three sizes, as a share.

    Returns:
        (3, ...) float32 mm.
    """
    turn, move, sizes = np.deg2rad(rng.normal(0, degrees)), rng.normal(0, shift, 3), 1 + rng.normal(0, scale, 3)
    x, y, z = (p - m for p, m in zip(place, move, strict=True))
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    return np.stack([p / s for p, s in zip((u, v, z), sizes, strict=True)]).astype(np.float32)


def texture(rng: np.random.Generator, grid: Grid, sigma: float) -> np.ndarray:
    """Smooth noise with deviation 1, (X, Y, Z) float32; ``sigma`` in mm."""
    noise = gaussian_filter(rng.standard_normal(grid.shape, dtype=np.float32), sigma / grid.spacing, mode="wrap")
    return noise / noise.std()


def depth_in(at: np.ndarray, centre: Sequence[float], half: Sequence[float]) -> np.ndarray:
    """About how deep (mm) inside an ellipsoid each voxel lies; negative outside.

    Args:
        at: (D, ...) mm.
        centre: D numbers, mm.
        half: D half axes, mm.

    Returns:
        (...) mm.
    """
    square = sum(((p - c) / h) ** 2 for p, c, h in zip(at, centre, half, strict=True))
    return (1 - np.sqrt(square)) * min(half)


def from_segment(at: np.ndarray, start: Sequence[float], end: Sequence[float]) -> np.ndarray:
    """Distance (mm) of every voxel of ``at``, (D, ...) mm, to a line segment between two points of D numbers; (...)."""
    run = [e - s for s, e in zip(start, end, strict=True)]
    rest = [p - s for p, s in zip(at, start, strict=True)]
    along = np.clip(sum(r * d for r, d in zip(rest, run, strict=True)) / sum(d * d for d in run), 0, 1)
    return np.sqrt(sum((r - along * d) ** 2 for r, d in zip(rest, run, strict=True)))


def cover(image: np.ndarray, mask: np.ndarray, value: np.ndarray | float) -> None:
    """Puts a value into an image, in place, as far as a mask 0..1 covers it; any shape."""
    image += mask * (value - image)


def save_volume(path: Path, voxels: np.ndarray, grid: Grid) -> None:
    """Writes voxels (X, Y, Z) as NIfTI; the folder is made where missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(voxels, grid.affine)
    image.header.set_xyzt_units("mm")
    nib.save(image, path)
