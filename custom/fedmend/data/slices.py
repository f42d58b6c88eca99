"""What a method sees of a site's volumes: axial slices in one memory-mapped store, for networks in three dimensions on
one spacing and side by side."""

import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.basics.parallel import threaded
from fedmend.data.card import SiteCard, check_classes
from fedmend.data.datalist import SECTIONS, VolumeItem, load_datalist
from fedmend.data.site import EVALUATION_SPLITS, Opening, SiteData, chosen
from fedmend.data.spaced import Grid, spaced_masks, spaced_planes
from fedmend.data.store import file_stamp, store_folder
from fedmend.data.volumes import axial_plane, check_frame, read_pair, resize_image, resize_masks, scale
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION

LOG = logging.getLogger("fedmend.volumes")
STORE_FORMAT = 3


@dataclass(frozen=True)
class VolumeSplit:
    """One split: axial slices of volumes with their masks.

    Attributes:
        file: the datalist's file name.
        items: V cases.
        images: (N, size, size) float16 in 0..1, read-only.
        masks: (N, size, size) uint8 numbers of classes, from 1; 0 = none; read-only.
        case: (N,) number of the case that a slice is of.
        plane: (N,) axial slice of that case.
        device: where training happens.
        resident: the same images on the device, where they are kept there.
        annotated: C flags, whether the masks show the class; what they do not show may be there all the same.
        spacing: see :class:`fedmend.data.site.Opening`; slices of a case are then all of it, one after the other, and
            ``plane`` counts those of the resampled volume.
        patch: see there.
    """

    file: str
    items: tuple[VolumeItem, ...]
    images: np.ndarray
    masks: np.ndarray
    case: np.ndarray
    plane: np.ndarray
    device: torch.device
    resident: Tensor | None = None
    annotated: tuple[bool, ...] = (True,)
    spacing: tuple[float, ...] = ()
    patch: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.case)

    def pixels(self, index: Tensor) -> Tensor:
        """Slices ``index`` (B,) int64 as the network takes them: (B, 1, size, size) float32 0..1 on the device."""
        return chosen(self.images, self.resident, index, self.device).float().unsqueeze(1)

    @property
    def names(self) -> list[str]:
        """N names like ``image.nii.gz#12``, which stay at the site."""
        return [f"{self.items[c].name}#{p}" for c, p in zip(self.case.tolist(), self.plane.tolist(), strict=True)]

    def fingerprint(self) -> str:
        """SHA-256 over slices and masks: identifies the data set that a ledger belongs to."""
        digest = hashlib.sha256(json.dumps(self.names).encode())
        digest.update(np.ascontiguousarray(self.masks).data)
        return digest.hexdigest()


VolumeData = SiteData[VolumeSplit]


# ---- the store -------------------------------------------------------------------------------------------------------
def axial_slices(
    item: VolumeItem,
    where: str,
    *,
    window: tuple[float, float] | None,
    size: int,
    values: Mapping[int, int],
    spacing: Sequence[float] = (),
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The slices of one case that a method sees.

    Args:
        item: the case.
        where: words that name it in messages.
        window: see :func:`fedmend.data.volumes.scale`.
        size: edge length in pixels.
        values: see :func:`fedmend.data.volumes.read_pair`.
        spacing: see :class:`fedmend.data.site.Opening`; the slices that a list names do not count then.

    Returns:
        images (n, size, size) float16 in 0..1, masks (n, size, size) uint8, and n slice numbers, from 0 at the feet.

    Raises:
        FedMendError: a file that cannot be used, a slice number that there is not, or voxels of one value.
    """
    voxels, mask = read_pair(item, where, values)
    depth = voxels.shape[2]
    if item.slices is not None and item.slices[-1] >= depth:
        raise FedMendError(f"{where}, field slices: expected numbers below {depth}, got a larger one")
    if spacing:
        grid = Grid.of_file(item.image)
        images = spaced_planes(voxels, grid, where, window=window, size=size, spacing=spacing)
        return images, spaced_masks(mask, grid, size, spacing), list(range(len(images)))
    images, numbers = planes_of(voxels, where, window=window, size=size, numbers=item.slices)
    masks = resize_masks(np.stack([axial_plane(mask, n) for n in numbers]), (size, size))
    return images, masks, numbers


def planes_of(
    voxels: np.ndarray,
    where: str,
    *,
    window: tuple[float, float] | None,
    size: int,
    numbers: Sequence[int] | None = None,
) -> tuple[np.ndarray, list[int]]:
    """Axial slices of a volume as the network takes them.

    Args:
        voxels: (X, Y, Z) float32 in RAS.
        where: words that name the volume in messages.
        window: see :func:`fedmend.data.volumes.scale`.
        size: edge length in pixels.
        numbers: of the slices; None: all that hold tissue.

    Returns:
        (n, size, size) float16 in 0..1, and the numbers of the slices.

    Raises:
        FedMendError: no slice holds tissue, or slices of this size are more than the memory is taken for.
    """
    grey = scale(voxels, window)
    holds_tissue = np.ptp(grey, axis=(0, 1)) > 0
    if not holds_tissue.any():
        raise FedMendError(f"{where}, image: expected tissue, got voxels of one value")
    chosen_ones = np.flatnonzero(holds_tissue).tolist() if numbers is None else list(numbers)
    check_frame(len(chosen_ones), size, f"{where}, image")
    images = resize_image(np.stack([axial_plane(grey, n) for n in chosen_ones]), size)
    return images.astype(np.float16), chosen_ones


def _open_store(
    opening: Opening, card: SiteCard, items: Sequence[VolumeItem], where: Callable[[int], str], values: dict[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images (N, size, size) float16 and masks (N, size, size) uint8, read-only memory maps; case, plane (N,) int64.

    The key of the store covers preprocessing, file names, sizes and times, so that a changed mask makes a new one.
    """
    size, window = opening.image_size, volume_window(card)
    told = next(iter(values)) if [*values.values()] == [1] else sorted(values.items())
    spaced = {"spacing": opening.spacing} if opening.spacing else {}
    files = [file_stamp(f) for item in items for f in (item.image, item.label)]
    folder, numbers = store_folder(
        opening.cache_dir,
        [STORE_FORMAT, files, [item.slices for item in items], window, size, told, *spaced.values()],
        lambda folder: _finished(folder, size),
        lambda folder: _build(folder, items, where, window=window, size=size, values=values, **spaced),
        need=len(items) * 100 * size**2 * 3,  # about a hundred slices a volume
        where=where(0).split(",")[0],
        prefix="volumes-",
    )
    case, plane = np.array(numbers, dtype=np.int64).T
    shape = (len(case), size, size)
    images = np.memmap(folder / "images.f16", dtype=np.float16, mode="r", shape=shape)
    masks = np.memmap(folder / "masks.u8", dtype=np.uint8, mode="r", shape=shape)
    return images, masks, case, plane


def _finished(folder: Path, size: int) -> list[tuple[int, int]] | None:
    """Case and plane of the slices of a whole store; None where there is no store or a damaged one."""
    try:
        numbers = json.loads((folder / "slices.json").read_text())
        sizes = [(folder / name).stat().st_size for name in ("images.f16", "masks.u8")]
    except (FileNotFoundError, ValueError):  # ValueError: what does not parse
        return None
    pixels = len(numbers) * size**2
    return numbers if sizes == [2 * pixels, pixels] else None


def _build(folder: Path, items: Sequence[VolumeItem], where: Callable[[int], str], **how: Any) -> None:
    numbers: list[tuple[int, int]] = []
    with open(folder / "images.f16", "wb") as images, open(folder / "masks.u8", "wb") as masks:
        made = threaded(lambda case: axial_slices(items[case], where(case), **how), range(len(items)))
        for case, (image, mask, planes) in enumerate(made):
            images.write(image.tobytes())
            masks.write(mask.tobytes())
            if images.tell() + masks.tell() > shutil.disk_usage(folder).free:  # of volumes deeper than expected
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            numbers += [(case, plane) for plane in planes]
            if (case + 1) % math.ceil(len(items) / 10) == 0:
                LOG.info("volume store: %d of %d volumes read", case + 1, len(items))
    (folder / "slices.json").write_text(json.dumps(numbers))


def plane_of(split: VolumeSplit, sample: int) -> int:
    """The slice of the file that shows a sample; of volumes at one spacing the nearest one."""
    plane = int(split.plane[sample])
    if not split.spacing:
        return plane
    grid = Grid.of_file(split.items[split.case[sample]].image)
    found = np.linalg.inv(grid.affine) @ grid.spaced(split.spacing).affine @ np.array([0, 0, plane, 1])
    return int(np.clip(np.rint(found[2]), 0, grid.shape[2] - 1))


# ---- a site ---------------------------------------------------------------------------------------------------------
def volume_window(card: SiteCard) -> tuple[float, float] | None:
    """The card's window for volumes, see :func:`fedmend.data.volumes.scale`.

    Raises:
        FedMendError: the card says ``file``, which only DICOM files have.
    """
    if isinstance(card.window, str):
        raise FedMendError(
            f"{card.site}: site.json, field window: expected null or [centre, width] for volumes, got text"
        )
    return card.window


def load_volumes(card: SiteCard, classes: Sequence[str], opening: Opening) -> VolumeData:
    """Opens a segmentation site folder, its datalists and slice stores, for a job's C classes.

    Args:
        card: the site's card.
        classes: the job's.
        opening: where and how they are opened; with ``all_labels`` on the complete masks that the card keeps.

    Raises:
        FedMendError: anything about the folder that cannot be used.
    """
    check_classes(card, classes)
    where = f"{card.site}: site.json, field"
    if opening.all_labels and "train" not in card.truth:
        raise FedMendError(f"{where} truth: expected complete masks for all_labels, got none")

    file = card.truth["train"] if opening.all_labels else card.splits["train"]
    train = load_volume_split(card, file, "train", opening, classes)
    if train is None or not train.masks.any():
        got = "no volumes" if train is None else "no lesion or structure in any volume"
        raise FedMendError(f"{card.site}: {file}: expected annotated training volumes, got {got}")
    marked = np.bincount(train.case, train.masks.any((1, 2)), minlength=len(train.items)) > 0
    if blank := int((~marked).sum()):
        LOG.warning("%s: %s: %d of %d training volumes have no annotated lesion", card.site, file, blank, len(marked))
    held = [name for name in EVALUATION_SPLITS if name in card.splits]
    others = {name: load_volume_split(card, card.splits[name], name, opening, classes) for name in held}
    evaluation = {k: v for k, v in others.items() if v is not None}
    return SiteData(tuple(classes), np.array(train.annotated), train, evaluation, SEGMENTATION)


def load_volume_split(
    card: SiteCard, file: str, split: str, opening: Opening, classes: Sequence[str] | None = None
) -> VolumeSplit | None:
    """Opens one section of a datalist and the slices of its volumes; None where it names no volume.

    Args:
        card: the site's card.
        file: name of the datalist.
        split: ``train``, ``val`` or ``test``.
        opening: where and how it is opened.
        classes: in the order of the job; None: in that of the card.

    Raises:
        FedMendError: a datalist or a volume that cannot be used.
    """
    items, classes = load_datalist(card, file, split), classes or card.classes
    if not items:
        return None
    # Complete masks, which a card keeps beside those of the training split, show all classes.
    values = card.label_values(split if file == card.splits.get(split) else "", classes)
    arrays = _open_store(opening, card, items, _places(card, file, split), values)
    annotated = tuple(number in values.values() for number in range(1, len(classes) + 1))
    how: dict[str, Any] = {"spacing": opening.spacing, "patch": opening.patch}
    return VolumeSplit(file, items, *arrays, opening.device, annotated=annotated, **how)


def _places(card: SiteCard, file: str, split: str) -> Callable[[int], str]:
    return lambda number: f"{card.site}: {file}, {SECTIONS[split]} item {number + 1}"


@dataclass(frozen=True)
class LesionsLeft:
    """What the size of a job leaves of the lesions in the masks of a split.

    Attributes:
        lesions: connected in three dimensions, on the slices that are used.
        lesions_left: those with at least one pixel left.
        slices: with lesion.
        slices_left: those with lesion at the job's size.
    """

    lesions: int
    lesions_left: int
    slices: int
    slices_left: int


def lesions_left(card: SiteCard, name: str, split: VolumeSplit) -> LesionsLeft:
    """Counts lesions before and after the masks of a split are made smaller: what vanishes trains as background.

    Args:
        card: the site's card.
        name: of the split.
        split: opened at the job's size.

    Raises:
        FedMendError: a mask that cannot be used.
    """
    from scipy.ndimage import generate_binary_structure, label

    size, where = split.masks.shape[1], _places(card, split.file, name)
    counts = np.zeros(4, dtype=int)
    for number, item in enumerate(split.items):
        # The label has the grid of the image and stands in for it.
        pair, values = replace(item, image=item.label), card.label_values(name, card.classes)
        volume = read_pair(pair, where(number), values, turned=item.image)[1] > 0
        mine = np.flatnonzero(split.case == number)
        used = volume if split.spacing else np.zeros(volume.shape, dtype=bool)
        if not split.spacing:
            used[:, :, split.plane[mine]] = volume[:, :, split.plane[mine]]
        numbered, lesions = label(used, generate_binary_structure(3, 3))
        if split.spacing:
            planes = spaced_masks(numbered.astype(np.float32), Grid.of_file(item.image), size, split.spacing)
        else:
            planes = np.stack([axial_plane(numbered, p) for p in split.plane[mine]])
        left = np.unique(resize_masks(planes, (size, size), np.float32))
        marked, kept = planes.any((1, 2)), split.masks[mine].any((1, 2))
        counts += lesions, (left > 0).sum(), marked.sum(), (marked & kept).sum()
    return LesionsLeft(*counts.tolist())


def load_complete_masks(card: SiteCard, train: VolumeSplit, classes: Sequence[str]) -> np.ndarray | None:
    """Complete masks (N, size, size) uint8 of the slices of a training split, numbers of these classes, or None where
    the site keeps none, or not those of all its cases; they measure repairs and are never given to a method."""
    if "train" not in card.truth:
        return None
    file = card.truth["train"]
    complete = {item.name: (n, item) for n, item in enumerate(load_datalist(card, file, "train"))}
    if not {item.name for item in train.items} <= set(complete):
        return None
    size, where, values = train.masks.shape[1], _places(card, file, "train"), card.label_values("", classes)
    masks = np.zeros(train.masks.shape, dtype=np.uint8)
    for number, item in enumerate(train.items):
        place, other = complete[item.name]
        # The site's own label has the grid of the image and is read in a tenth of the time.
        volume = read_pair(replace(other, image=item.label), where(place), values, turned=item.image)[1]
        mine = np.flatnonzero(train.case == number)
        if train.spacing:
            masks[mine] = spaced_masks(volume, Grid.of_file(item.image), size, train.spacing)
            continue
        planes = np.stack([axial_plane(volume, p) for p in train.plane[mine]])
        masks[mine] = resize_masks(planes, (size, size))
    return masks
