"""What a method sees of a site's images and labels: splits with decoded images, and views of them on the device."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedmend.data.augment import IMAGENET_MEAN, IMAGENET_STD, to_network, warp
from fedmend.data.card import IMAGE, SPLITS_OF_JOBS, STUDY, SiteCard, check_classes
from fedmend.data.store import open_store
from fedmend.data.tables import LabelTable, load_table
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL

LOG = logging.getLogger("fedmend.data")
EVALUATION_SPLITS = SPLITS_OF_JOBS[1:]
AnySplit = TypeVar("AnySplit")


@dataclass(frozen=True)
class Opening:
    """How the data of a site are opened.

    Attributes:
        cache_dir: where decoded images are kept.
        image_size: edge length in pixels that every image is resized to.
        device: where training happens.
        max_unreadable: unreadable images per split that are left out; one more is an error. Of volumes none is.
        all_labels: train on the complete labels that the card keeps for evaluation (upper bound of a comparison).
        study_slices: slices of each study that the network sees; 0: samples are images.
        spacing: mm between voxels along X, Y, Z that volumes are resampled to; empty: the network sees single slices.
        patch: slices, rows and columns of what a network sees of such a volume at once.
    """

    cache_dir: Path
    image_size: int
    device: torch.device
    max_unreadable: int = 0
    all_labels: bool = False
    study_slices: int = 0
    spacing: tuple[float, ...] = ()
    patch: tuple[int, ...] = ()


def chosen(images: np.ndarray, resident: Tensor | None, index: Tensor, device: torch.device) -> Tensor:
    """The images ``index`` (B,) int64 of a split on its device, (B, ...) of the store's type; a GPU copies while the
    CPU goes on."""
    if resident is not None:
        return resident[index.to(device, non_blocking=True)]
    pixels = torch.from_numpy(images[index.numpy()])
    return (pixels.pin_memory() if device.type == "cuda" else pixels).to(device, non_blocking=True)


@dataclass(frozen=True)
class Split:
    """One split: images in the store, labels in memory.

    Attributes:
        images: (N, H, W) uint8, in colour (N, H, W, 3), of studies of K slices (N, K, H, W); read-only.
        table: labels and manifest rows of the same N samples.
        device: where views are made.
        mean: of the pixels, by which views are scaled: one number, or one for each colour.
        deviation: likewise.
        resident: the same images on the device, where they are kept there.
    """

    images: np.ndarray
    table: LabelTable
    device: torch.device
    mean: Sequence[float] = IMAGENET_MEAN
    deviation: Sequence[float] = IMAGENET_STD
    resident: Tensor | None = None

    def __len__(self) -> int:
        return len(self.table.images)

    @property
    def file(self) -> str:
        """The manifest's file name."""
        return self.table.file

    @property
    def labels(self) -> np.ndarray:
        """(N, C) int8, read-only; -1 = not annotated here."""
        return self.table.labels

    def fingerprint(self) -> str:
        """See :meth:`LabelTable.fingerprint`."""
        return self.table.fingerprint()

    def view(self, index: Tensor, matrices: Tensor | None = None) -> Tensor:
        """Network input of some samples.

        Args:
            index: (B,) int64 sample numbers.
            matrices: (N, 2, 3) affine maps of all samples (one view of :func:`draw_views`), or None for plain images.

        Returns:
            (B, 3, H, W) float32 on the device; of studies (B, K * 3, H, W), one slice after the other.
        """
        images = self.pixels(index)
        if matrices is not None:
            images = warp(images, matrices[index].to(self.device, non_blocking=True))
        return self.to_network(images)

    def chosen(self, keep: np.ndarray) -> "Split":
        """The samples ``keep``, (n,) numbers; not of images that are kept on the device."""
        return replace(self, table=self.table.chosen(keep), images=self.images[keep])

    def to_network(self, images: Tensor) -> Tensor:
        """Network input (B, 3, H, W) of (B, 1 or 3, H, W) images in 0..1; of studies (B, K * 3, H, W) of (B, K, H, W),
        whose K channels are slices."""
        if not self.table.slices:
            return to_network(images, self.mean, self.deviation)
        slices = to_network(images.flatten(0, 1).unsqueeze(1), self.mean, self.deviation)
        return slices.reshape(len(images), -1, *images.shape[2:])

    def pixels(self, index: Tensor) -> Tensor:
        """The samples ``index`` (B,) int64 as they are: (B, 1, H, W) or, in colour, (B, 3, H, W) float32 in 0..1 on the
        device; of studies (B, K, H, W)."""
        images = chosen(self.images, self.resident, index, self.device)
        if not self.table.slices:
            images = images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)
        return images.float().div_(255)


@dataclass(frozen=True)
class SiteData(Generic[AnySplit]):
    """Everything that training and evaluation at one site may read.

    Attributes:
        classes: C class names in the job's order.
        annotated: (C,) bool, class annotated in the training split (the paper's active classes).
        train: training split, with the site's own annotation.
        evaluation: ``val`` and/or ``test`` split, where the site has them.
        kind: kind of labels; of ``segmentation`` the splits are :class:`fedmend.data.slices.VolumeSplit`.
    """

    classes: tuple[str, ...]
    annotated: np.ndarray
    train: AnySplit
    evaluation: Mapping[str, AnySplit]
    kind: str = MULTILABEL

    @property
    def known(self) -> np.ndarray:
        """(C,) bool: the annotated classes; with one label per image, those of which the site's labels name an image. A
        verdict of a review is about one image: it does not make the site know the class in the others."""
        train: Any = self.train
        return (train.labels == 1).any(0) if self.kind == SINGLELABEL else self.annotated

    def scaled(self, mean: Sequence[float], deviation: Sequence[float]) -> "SiteData":
        """The same with other numbers by which pixels are scaled, see :class:`Split`."""
        held: dict[str, Any] = {"train": self.train, **self.evaluation}
        scaled = {name: replace(split, mean=mean, deviation=deviation) for name, split in held.items()}
        return replace(self, train=scaled.pop("train"), evaluation=scaled)


def spread_slices(count: int, wanted: int) -> np.ndarray:
    """(wanted,) numbers of slices, evenly spread over ``count`` from first to last; where there are fewer, some come
    several times."""
    return np.rint(np.linspace(0, count - 1, wanted)).astype(np.int64)


def check_samples(card: SiteCard, study_slices: int) -> None:
    """Refuses a site whose samples are not those of the job: images, or studies of slices.

    Args:
        card: the site's card.
        study_slices: of the job, see :class:`Opening`.

    Raises:
        FedMendError: it is one, or its studies are in colour.
    """
    wanted = STUDY if study_slices else IMAGE
    if card.sample != wanted:
        job = "a job with study_slices" if study_slices else "a job without study_slices"
        raise FedMendError(f"{card.site}: site.json, field sample: expected {wanted!r} for {job}, got {card.sample!r}")
    if study_slices and card.color:
        raise FedMendError(f"{card.site}: site.json, field color: expected false for studies, whose slices are grey")


def load_split(
    card: SiteCard,
    file: str,
    classes: Sequence[str],
    opening: Opening,
    check: Callable[[LabelTable], None] = lambda table: None,
) -> Split:
    """Opens one table of a site folder and the images that it names.

    Args:
        card: the site's card.
        file: name of the CSV.
        classes: the job's.
        opening: where and how it is opened.
        check: refuses a table that cannot be used; also asked when images are left out.

    Raises:
        FedMendError: a table or an image that cannot be used.
    """
    check_samples(card, opening.study_slices)
    table = load_table(card, file, classes)
    check(table)
    count = max(1, opening.study_slices)  # images of a sample
    paths = table.images
    if opening.study_slices:
        paths = tuple(own[k] for own in table.slices for k in spread_slices(len(own), count).tolist())

    def where(i: int) -> str:
        study = " study that begins in" if opening.study_slices else ""
        return f"{card.site}: {file}{study} row {table.rows[i // count]}" if len(table.rows) else f"{card.site}: {file}"

    store = open_store(
        opening.cache_dir,
        card.image_root,
        paths,
        window=card.window,
        size=opening.image_size,
        where=where,
        color=card.color,
        max_unreadable=opening.max_unreadable,
    )
    images, readable = store.images, store.readable
    if opening.study_slices:
        images, readable = images.reshape(-1, count, *images.shape[1:]), readable.reshape(-1, count).min(1)
    split = Split(images, table, opening.device)
    if not readable.all():
        split = split.chosen(np.flatnonzero(readable))
        check(split.table)  # what is left out may have been the only positive
    return split


def load_site(
    card: SiteCard,
    classes: Sequence[str],
    opening: Opening,
    check_training: Callable[[LabelTable], None] = lambda table: None,
) -> SiteData:
    """Opens a site folder, its tables and image stores, for a job's C classes.

    Args:
        card: the site's card.
        classes: the job's.
        opening: where and how they are opened.
        check_training: refuses a training table that teaches nothing; see the kinds of labels.

    Raises:
        FedMendError: anything about the folder that cannot be used.
    """
    check_classes(card, classes)
    if opening.all_labels and "train" not in card.truth:
        raise FedMendError(
            f"{card.site}: site.json, field truth: expected a complete label table for all_labels, got none"
        )

    file = card.truth["train"] if opening.all_labels else card.splits["train"]
    train = load_split(card, file, classes, opening, check_training)
    held = [name for name in EVALUATION_SPLITS if name in card.splits]
    evaluation = {name: load_split(card, card.splits[name], classes, opening) for name in held}
    evaluation = {k: v for k, v in evaluation.items() if len(v)}
    return SiteData(tuple(classes), train.table.annotated, train, evaluation, card.kind)


def load_truth(card: SiteCard, classes: Sequence[str], images: Sequence[str]) -> np.ndarray | None:
    """Complete labels (N, C) int8 of N training ``images`` in their order, -1 where the truth is unknown, or None where
    the site has no truth table; they measure pseudo-labels and are never given to a method."""
    if "train" not in card.truth:
        return None
    table = load_table(card, card.truth["train"], classes)
    row = {image: i for i, image in enumerate(table.images)}
    truth = np.full((len(images), len(classes)), NOT_ANNOTATED, dtype=np.int8)
    for i, image in enumerate(images):
        if image in row:
            truth[i] = table.labels[row[image]]
    return truth
