"""Repaired masks as volumes for people: NIfTI files in the geometry of the site's own label files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.data.readers import open_nifti, voxels_of
from fedmend.data.slices import VolumeSplit
from fedmend.data.spaced import Grid, resampled, unframed, upright
from fedmend.data.volumes import ONE_CLASS, class_numbers, oriented, resize_masks


def write_repaired(
    split: VolumeSplit, change: np.ndarray, folder: Path, values: Mapping[int, int] = ONE_CLASS
) -> np.ndarray:
    """Writes the repaired masks of all cases in which something changes, in the geometry of their label files.

    Voxels of the original annotation stay as they are, except where the repair removes them; a case becomes
    ``<number>-<name of its image>``.

    Args:
        split: V cases, N slices.
        change: (N, size, size) int8 as of :meth:`fedmend.repairs.mask_ledger.MaskLedger.change`, or bool: pixels made
            lesion.
        folder: where the NIfTI files go; made when missing.
        values: value in the label files → number of its class, from 1, of all C classes, also those that the site's
            masks do not show.

    Returns:
        (N, C, 2) int64: voxels of each class in each slice of the label file, and after the repair, of slices in which
        something changes; of volumes at one spacing those of the resampled slice.
    """
    import nibabel
    from nibabel.orientations import ornt_transform

    counts = np.zeros((len(split), len(values), 2), dtype=np.int64)
    change, numbers = change.astype(np.int8, copy=False), sorted(values.values())
    written = np.zeros(1 + len(values), dtype=np.int32)  # whole numbers, never scaled, whatever the header's data type
    for value, number in values.items():
        written[number] = value
    folder.mkdir(parents=True, exist_ok=True)
    for number, item in enumerate(split.items):
        mine = np.flatnonzero((split.case == number) & change.any((1, 2)))
        if not len(mine):
            continue
        label: Any = nibabel.load(item.label)
        affine = open_nifti(item.image).affine  # which turned the slices
        volume = oriented(class_numbers(voxels_of(label), values), affine)
        if split.spacing:
            own = split.masks[mine]
            seen = own, repaired(own, change[mine])
            counts[mine] = np.stack([_voxels_of(numbers, planes) for planes in seen], axis=-1)
            volume = _repaired_volume(split, number, volume, change)
        else:
            for row in mine:
                plane = volume[:, :, split.plane[row]]
                counts[row, :, 0] = _voxels_of(numbers, plane[None])[0]
                plane[:] = np.rot90(repaired_plane(np.rot90(plane), change[row]), -1)
                counts[row, :, 1] = _voxels_of(numbers, plane[None])[0]
        back = ornt_transform(nibabel.io_orientation(np.eye(4)), nibabel.io_orientation(affine))
        repaired_volume = nibabel.apply_orientation(written[volume], back).reshape(label.shape)
        file = folder / f"{number + 1:03d}-{Path(item.name).name}"
        header = label.header.copy()
        if (dtype := header.get_data_dtype()).kind in "iu" and written.max() > np.iinfo(dtype).max:
            header.set_data_dtype(np.int32)  # of a structure that the file had no voxel of
        nibabel.save(type(label)(repaired_volume, label.affine, header), file)
    return counts


def _voxels_of(numbers: Sequence[int], planes: np.ndarray) -> np.ndarray:
    """(N, C) int64: voxels of each of C classes in planes (N, H, W)."""
    return np.stack([(planes == number).sum((1, 2)) for number in numbers], axis=1)


def repaired(masks: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Masks with a repair: what is marked stays, unless the repair makes it background.

    Args:
        masks: (..., H, W) numbers of classes, 0 = none.
        change: (..., H, W) int8: what is 0 becomes this class where it is above 0; what is not becomes 0 at -1.

    Returns:
        uint8 of the same shape.
    """
    return np.where(change < 0, 0, np.where(masks > 0, masks, change)).astype(np.uint8)


def _repaired_volume(split: VolumeSplit, number: int, volume: np.ndarray, change: np.ndarray) -> np.ndarray:
    """The mask (X, Y, Z) uint8 of a case with a repair of its resampled slices."""
    grid = Grid.of_file(split.items[number].image)
    spaced = grid.spaced(split.spacing)
    changed = upright(unframed(change[split.case == number], spaced.shape[1::-1]))
    return repaired(volume, resampled(changed, spaced, grid, nearest=True))


def repaired_plane(mask: np.ndarray, change: np.ndarray) -> np.ndarray:
    """One slice of a mask with a repair, at its own resolution.

    Args:
        mask: (H, W) numbers of classes, as :func:`fedmend.data.volumes.axial_plane` gives it.
        change: (size, size) int8, see :func:`repaired`.

    Returns:
        (H, W) uint8.
    """
    return repaired(mask, resize_masks(change[None], mask.shape, np.int8)[0])
