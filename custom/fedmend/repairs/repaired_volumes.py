"""Repaired masks as volumes for people: NIfTI files in the geometry of the site's own label files."""

from pathlib import Path
from typing import Any

import numpy as np

from fedmend.data.slices import VolumeSplit
from fedmend.data.spaced import Grid, resampled, unframed, upright
from fedmend.data.volumes import has_value, resize_masks


def write_repaired(split: VolumeSplit, change: np.ndarray, folder: Path, foreground: int = 1) -> np.ndarray:
    """Writes the repaired masks of all cases in which something changes, in the geometry of their label files.

    Voxels of the original annotation stay as they are, except where the repair removes them; a case becomes
    ``<number>-<name of its image>``.

    Args:
        split: V cases, N slices.
        change: (N, size, size) int8, pixels that a repair makes lesion (1) or background (-1); bool: those made lesion.
        folder: where the NIfTI files go; made when missing.
        foreground: value of the lesion.

    Returns:
        (N, 2) int64: lesion voxels of each slice in the label file, and after the repair; of volumes at one spacing
        those of the resampled slice.
    """
    import nibabel

    counts = np.zeros((len(split), 2), dtype=np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    for number, item in enumerate(split.items):
        mine = np.flatnonzero((split.case == number) & change.any((1, 2)))
        if not len(mine):
            continue
        label: Any = nibabel.load(item.label)
        orientation = nibabel.io_orientation(label.affine)
        values = np.asarray(label.dataobj, dtype=np.float32)
        volume = nibabel.apply_orientation(has_value(foreground, values), orientation)
        if split.spacing:
            volume = _repaired_volume(split, number, volume, change, counts)
        else:
            for row in mine:
                plane = volume[:, :, split.plane[row]]
                counts[row, 0] = plane.sum()
                plane[:] = np.rot90(repaired_plane(np.rot90(plane), change[row]), -1)
                counts[row, 1] = plane.sum()
        back = nibabel.orientations.ornt_transform(nibabel.io_orientation(np.eye(4)), orientation)
        # Whole numbers, which are never scaled, whatever the header's data type.
        repaired = nibabel.apply_orientation(volume, back) * np.int32(foreground)
        file = folder / f"{number + 1:03d}-{Path(item.name).name}"
        nibabel.save(type(label)(repaired, label.affine, label.header), file)
    return counts


def _repaired_volume(
    split: VolumeSplit, number: int, volume: np.ndarray, change: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """The mask (X, Y, Z) bool of a case with a repair of its resampled slices, whose voxels are counted."""
    rows, grid = np.flatnonzero(split.case == number), Grid.of_file(split.items[number].label)
    spaced = grid.spaced(split.spacing)
    changed = [upright(unframed(part, spaced.shape[1::-1])) for part in (change[rows] > 0, change[rows] < 0)]
    added, removed = (resampled(part.astype(np.uint8), spaced, grid, nearest=True) > 0 for part in changed)
    own = split.masks[rows]
    counts[rows, 0] = (own > 0).sum((1, 2))
    counts[rows, 1] = ((own > 0) & (change[rows] >= 0) | (change[rows] > 0)).sum((1, 2))
    counts[rows[~change[rows].any((1, 2))]] = 0  # as slices that nothing changes otherwise
    return (volume | added) & ~removed


def repaired_plane(mask: np.ndarray, change: np.ndarray) -> np.ndarray:
    """One slice of a mask with a repair, at its own resolution.

    Args:
        mask: (H, W) bool, as :func:`fedmend.data.volumes.axial_plane` gives it.
        change: (size, size) int8, pixels that become lesion (1) or background (-1), others 0.

    Returns:
        (H, W) bool.
    """
    added, removed = (resize_masks(part[None], mask.shape)[0] > 0 for part in (change > 0, change < 0))
    return (mask | added) & ~removed
