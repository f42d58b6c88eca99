"""Masks of new volumes, on the grid of the volume's own file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmend.basics.files import make_folder, sync
from fedmend.data.dicom_series import grid_of, slices_of, voxels_of_series
from fedmend.data.inputs import Inputs
from fedmend.data.readers import NIFTI_SUFFIXES, affine_of
from fedmend.data.slices import planes_of
from fedmend.data.spaced import Grid, resampled, slide, spaced_planes, unframed, upright
from fedmend.data.volumes import load_nifti, oriented, resize_masks
from fedmend.errors import FedMendError
from fedmend.package.inputs import Item
from fedmend.package.opened import OpenedPackage
from fedmend.package.probabilities import probabilities
from fedmend.package.rows import file_name

MASKS = "masks"  # folder
Window = tuple[float, float] | None  # centre, width
SLICES, SLICE_PIXELS = 16, 2**22  # most slices of a batch, and their pixels


def mask_table(package: OpenedPackage) -> list[str]:
    """Names of the columns of a table of volumes: ``voxels`` and millilitres of each class, the file, the reason why
    there is none."""
    sizes = [f"{name}_{unit}" for name in package.classes for unit in ("voxels", "ml")]
    return ["image", "study", *sizes, "mask", "problem"]


def mask_rows(
    package: OpenedPackage,
    network: nn.Module,
    root: Path,
    items: Sequence[Item],
    device: torch.device,
    *,
    out: Path,
) -> Iterator[list[list[object]]]:
    """Writes the masks; the row of one volume after the other.

    Args:
        package: the model.
        network: its network on the device.
        root: folder that names start from.
        items: volumes.
        device: where the network is.
        out: the masks go into its folder ``masks``.
    """
    for item in items:
        # One file for each volume, whatever folders they are in, and none outside of this one.
        name = mask_name(item)
        try:
            sizes = _write_mask(package, network, _volume(package, root, item), device, out / name)
        except FedMendError as e:
            blank = ["", ""] * len(package.classes)
            yield [[item.name, item.study, *blank, "", str(e).partition(": ")[2]]]
            continue
        shown = [text for voxels, millilitres in sizes for text in (voxels, f"{millilitres:.6g}")]
        yield [[item.name, item.study, *shown, name, ""]]


def mask_name(item: Item) -> str:
    """The path of an item's mask below the folder of the results."""
    suffix = "" if item.name.lower().endswith(NIFTI_SUFFIXES) else ".nii.gz"
    return f"{MASKS}/{file_name(item.name, suffix)}"


def _volume(package: OpenedPackage, root: Path, item: Item) -> tuple[np.ndarray, np.ndarray, Window]:
    """(4, 4) affine and (X, Y, Z) voxels of a NIfTI file or a DICOM series, as they are stored, and the window to see
    them through."""
    window: Any = package.preprocessing.window
    if not item.files and item.name.lower().endswith(NIFTI_SUFFIXES):
        image, stored = load_nifti(root / item.name, "volume")
        return affine_of(image), stored, window
    slices = slices_of([root / file for file in item.files or [item.name]], "volume")
    return grid_of(slices, "volume"), *voxels_of_series(slices, "volume", window=window)


def _write_mask(
    package: OpenedPackage,
    network: nn.Module,
    given: tuple[np.ndarray, np.ndarray, Window],
    device: torch.device,
    out: Path,
) -> list[tuple[int, float]]:
    """Voxels and millilitres of each class in the mask that is written."""
    import nibabel

    affine, stored, window = given
    orientation = nibabel.io_orientation(affine)
    volume = oriented(stored, affine)
    if package.preprocessing.spacing:
        mask = _of_patches(package, network, volume, window, Grid.oriented(affine, stored.shape), device)
    else:
        mask = _of_slices(package, network, volume, window, device)
    back = nibabel.orientations.ornt_transform(nibabel.io_orientation(np.eye(4)), orientation)
    make_folder(out.parent)
    nibabel.save(nibabel.Nifti1Image(nibabel.apply_orientation(mask, back), affine), out)
    sync(out)  # the table that is written next says that it is there
    sync(out.parent)
    size = abs(np.linalg.det(affine[:3, :3])) / 1000
    counts = [int((mask == number).sum()) for number in range(1, len(package.classes) + 1)]
    return [(count, float(count * size)) for count in counts]


def _of_slices(
    package: OpenedPackage, network: nn.Module, volume: np.ndarray, window: Window, device: torch.device
) -> np.ndarray:
    """(X, Y, Z) uint8 numbers of classes of a volume in RAS, slice by slice."""
    planes, numbers = planes_of(volume, "volume", window=window, size=package.preprocessing.image_size)
    mask = np.zeros(volume.shape, dtype=np.uint8)
    step = max(1, min(SLICES, SLICE_PIXELS // planes.shape[1] ** 2))
    for start in range(0, len(planes), step):
        pixels = torch.from_numpy(planes[start : start + step]).to(device).float().unsqueeze(1)
        with torch.no_grad():
            found = _numbers(package, network(pixels)[1].float())
        for number, one in zip(numbers[start : start + step], found, strict=True):
            plane = mask[:, :, number]
            plane[:] = np.rot90(resize_masks(one[None], np.rot90(plane).shape)[0], -1)
    return mask


def _of_patches(
    package: OpenedPackage, network: nn.Module, volume: np.ndarray, window: Window, grid: Grid, device: torch.device
) -> np.ndarray:
    """The same by a network in three dimensions."""
    prepared = package.preprocessing
    how: Any = {"window": window, "size": prepared.image_size, "spacing": prepared.spacing}
    size = Inputs.of(vars(prepared)).window  # refuses what would fill the memory
    planes = torch.from_numpy(spaced_planes(volume, grid, "volume", **how)).to(device).float()
    wanted = grid.spaced(prepared.spacing)
    with torch.no_grad():
        found = _numbers(package, slide(lambda patches: network(patches)[1], planes, size, 1))
    return resampled(upright(unframed(found, wanted.shape[1::-1])), wanted, grid, nearest=True)


def _numbers(package: OpenedPackage, logits: torch.Tensor) -> np.ndarray:
    """(n, size, size) uint8 numbers of classes, 0 = none, of (n, 1 + C, size, size) logits: one class where it is more
    probable than not, of several the most probable."""
    if not torch.isfinite(logits).all():
        raise FedMendError(f"package {package.name}: expected finite scores, got NaN or infinity")
    one = len(package.classes) == 1
    found = probabilities(package, logits)[:, 0] > 0.5 if one else logits.argmax(1)
    return found.to(torch.uint8).cpu().numpy()
