"""What differs between data with labels and data with masks: how it is opened, repaired, evaluated and counted.

A site's card says which of the two it has; everything else treats them alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import nn

from fedmend.data.manifest import NOT_ANNOTATED, SEGMENTATION, SiteCard
from fedmend.data.site import SiteData, Split, load_site, load_truth
from fedmend.data.volumes import VolumeData, VolumeSplit, load_complete_masks, load_volumes
from fedmend.evaluation import evaluation_counts, mask_repair_counts, repair_counts, segmentation_counts
from fedmend.gallery import gallery_page
from fedmend.ledger import LabelLedger
from fedmend.mask_ledger import MaskLedger
from fedmend.methods.base import Site
from fedmend.training import infer, infer_masks


class Annotation(ABC):
    """Labels or masks of one site.

    Args:
        card: the site's card.
    """

    unit: ClassVar[str]  # what a repair changes
    check_size: ClassVar[int]  # edge length in pixels at which a folder is checked

    def __init__(self, card: SiteCard):
        self.card = card

    def lesions(self) -> Mapping[str, np.ndarray]:
        """What the card says about the completeness of masks that were made incomplete; empty for everything else."""
        return {}

    def gallery(self, site: Site, truth: np.ndarray | None, *, phantom: bool) -> str:
        """A page with pictures of repairs, for the site's own eyes; empty where there is nothing to look at."""
        return ""

    @abstractmethod
    def load(self, classes: tuple[str, ...], *, max_unreadable: int, **how) -> SiteData | VolumeData:
        """Opens the data; ``how`` as in :func:`load_site` and :func:`load_volumes`."""

    @abstractmethod
    def open_ledger(self, path: Path, data: SiteData | VolumeData) -> LabelLedger | MaskLedger:
        """The ledger of the training split."""

    @abstractmethod
    def load_truth(self, data: SiteData | VolumeData) -> np.ndarray | None:
        """Complete training labels or masks for measuring repairs, or None; never given to a method."""

    @abstractmethod
    def describe(self, data: SiteData | VolumeData) -> list[str]:
        """Lines about the annotation for the person who prepared the folder."""

    @abstractmethod
    def positives(self, data: SiteData | VolumeData) -> np.ndarray:
        """(C,) int64 training samples with each class."""

    @abstractmethod
    def evaluate(self, model: nn.Module, split: Split | VolumeSplit, site: Site) -> np.ndarray:
        """Mergeable counts of a model on a split."""

    @abstractmethod
    def repairs(self, site: Site, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
        """Counts of what the ledger has repaired; empty when nothing is."""


class LabelAnnotation(Annotation):
    """One label per image and class."""

    unit = "labels"
    check_size = 32

    def load(self, classes: tuple[str, ...], *, max_unreadable: int, **how) -> SiteData:
        """See :class:`Annotation`."""
        return load_site(self.card.folder, self.card.site, classes, max_unreadable=max_unreadable, **how)

    def open_ledger(self, path: Path, data: SiteData) -> LabelLedger:
        """See :class:`Annotation`."""
        table = data.train.table
        return LabelLedger(
            path, fingerprint=table.fingerprint(), images=table.images, classes=data.classes, site=self.card.site
        )

    def load_truth(self, data: SiteData) -> np.ndarray | None:
        """See :class:`Annotation`."""
        return load_truth(self.card.folder, self.card.site, data.classes, data.train.table.images)

    def describe(self, data: SiteData) -> list[str]:
        """Labels of each split and class."""
        lines = []
        for split, held in {"train": data.train, **data.evaluation}.items():
            for i, name in enumerate(data.classes):
                positive, negative, blank = ((held.labels[:, i] == v).sum() for v in (1, 0, NOT_ANNOTATED))
                text = f"{positive} positive, {negative} negative, {blank} blank"
                lines.append(f"{split}, {name}: {text if held.table.annotated[i] else 'not annotated here'}")
        return lines

    def positives(self, data: SiteData) -> np.ndarray:
        """See :class:`Annotation`."""
        return (data.train.labels == 1).sum(0).astype(np.int64)

    def evaluate(self, model: nn.Module, split: Split, site: Site) -> np.ndarray:
        """See :class:`Annotation`."""
        return evaluation_counts(infer(model, split, site)[1].numpy(), split.labels, site.data.task)

    def repairs(self, site: Site, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
        """See :class:`Annotation`."""
        repairs = site.ledger.repairs()
        return repair_counts(repairs, site.data.train.labels, truth) if (repairs >= 0).any() else {}


class MaskAnnotation(Annotation):
    """One mask per volume. A volume that cannot be read always stops the site: volumes are few."""

    unit = "pixels"
    check_size = 256  # small lesions would vanish on smaller slices

    def lesions(self) -> Mapping[str, np.ndarray]:
        """``lesions`` (2,) int64: lesions in the site's own masks and in the complete ones, where a converter removed some."""
        made = self.card.provenance.get("site") if isinstance(self.card.provenance, Mapping) else None
        known = [made.get(name) if isinstance(made, Mapping) else None for name in ("kept_lesions", "lesions")]
        return {"lesions": np.array(known, dtype=np.int64)} if all(type(v) is int for v in known) else {}

    def load(self, classes: tuple[str, ...], *, max_unreadable: int, **how) -> VolumeData:
        """See :class:`Annotation`."""
        return load_volumes(self.card.folder, self.card.site, classes, **how)

    def open_ledger(self, path: Path, data: VolumeData) -> MaskLedger:
        """See :class:`Annotation`."""
        return MaskLedger(
            path, split=data.train, classes=data.classes, site=self.card.site, foreground=self.card.foreground
        )

    def load_truth(self, data: VolumeData) -> np.ndarray | None:
        """See :class:`Annotation`."""
        return load_complete_masks(self.card.folder, self.card.site, data.train)

    def describe(self, data: VolumeData) -> list[str]:
        """Volumes and slices of each split, and how grey values are scaled."""
        lines = []
        for name, split in {"train": data.train, **data.evaluation}.items():
            marked = split.masks.any((1, 2))
            cases = len(np.unique(split.case[marked]))
            lines.append(
                f"{name}: {len(split.items)} volumes, {cases} with lesion; {len(split)} slices, {marked.sum()} with lesion"
            )
        window = "none, grey values are scaled volume by volume"
        if self.card.window is not None:
            window = "centre {:g} HU, width {:g} HU".format(*self.card.window)
        return [*lines, f"window: {window}"]

    def positives(self, data: VolumeData) -> np.ndarray:
        """Training slices with an annotated lesion."""
        return data.train.masks.any((1, 2)).sum(keepdims=True).astype(np.int64)

    def evaluate(self, model: nn.Module, split: VolumeSplit, site: Site) -> np.ndarray:
        """Lesion is what has a probability above 0.5."""
        hits, predicted = np.zeros((2, len(split)), dtype=np.int64)
        for index, probability in infer_masks(model, split, site):
            found = probability > 0.5
            hits[index] = (found & (split.masks[index] > 0)).sum((1, 2))
            predicted[index] = found.sum((1, 2))
        return segmentation_counts(hits, predicted, split.masks.sum((1, 2), dtype=np.int64), split.case)

    def repairs(self, site: Site, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
        """See :class:`Annotation`."""
        added = site.ledger.added()
        return mask_repair_counts(added, site.data.train.masks, truth) if added.any() else {}

    def gallery(self, site: Site, truth: np.ndarray | None, *, phantom: bool) -> str:
        """See :func:`fedmend.gallery.gallery_page`."""
        train = site.data.train
        return gallery_page(train, site.ledger.apply(train.masks), truth, phantom=phantom)


def annotation_of(card: SiteCard) -> Annotation:
    """What a site has, by the task of its card."""
    return MaskAnnotation(card) if card.task == SEGMENTATION else LabelAnnotation(card)
