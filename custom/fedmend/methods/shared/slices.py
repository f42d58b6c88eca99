"""What methods for masks share: training on slices with the annotation in force, and the flag of their repair."""

import logging
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.intensity import augment_intensity
from fedmend.data.spaced import Patches
from fedmend.fields import Field
from fedmend.labels import SEGMENTATION
from fedmend.learning.inference import infer_masks
from fedmend.learning.losses import soft_dice_loss
from fedmend.method import LocalMethod, Round, RoundTask, Site
from fedmend.methods.shared.lesions import whole_components
from fedmend.methods.shared.settings import Settings, one_of

LOG = logging.getLogger("fedmend.slices")
WAITS, TRIGGERED, DONE, EXEMPT = range(4)  # what a site says about its correction
CORRECTION_FLAG = Field(
    (1,), "int64", WAITS, EXEMPT, "each round: 0 waits, 1 triggered, 2 corrected, 3 spared", "one flag for the site"
)
CE, DICE = "ce", "dice"
BaseLoss = Annotated[str, one_of(CE, DICE)]


def base_loss(name: str, logits: Tensor, marks: Tensor) -> Tensor:
    """The loss of plain training.

    Args:
        name: ``ce``: mean cross-entropy of the pixels; ``dice``: :func:`fedmend.learning.losses.soft_dice_loss`.
        logits: (B, 2, H, W) float32 of background and lesion.
        marks: (B, H, W) of 0 and 1.
    """
    return soft_dice_loss(logits.softmax(1)[:, 1], marks) if name == DICE else F.cross_entropy(logits, marks.long())


class Relabelling:
    """What a rule makes of the marks of a site, lesion and background.

    What an earlier repair changed of a slice is named again, so that this one alone says what the slice's marks are.

    Attributes:
        own: (N, H, W) bool, the site's own marks.
        before: (N, H, W) bool, the marks in force.
    """

    def __init__(self, site: Site):
        self._site, masks = site, site.data.train.masks
        self.own, self.before = masks > 0, site.ledger.apply(masks)
        self._change, self._confidence = np.zeros(masks.shape, dtype=np.int8), np.zeros(len(masks))

    def put(self, index: np.ndarray, after: np.ndarray, lesion: np.ndarray) -> None:
        """Marks of some slices from now on.

        Args:
            index: (B,) slice numbers.
            after: (B, H, W) bool, their marks.
            lesion: (B, H, W) probabilities, of which the confidence in what is named is the mean.
        """
        named = (after != self.before[index]) | (after != self.own[index])
        self._change[index] = np.where(named, np.where(after, 1, -1), 0)
        sure = np.where(after, lesion, 1 - lesion) * named
        self._confidence[index] = sure.sum((1, 2)) / np.maximum(named.sum((1, 2)), 1)

    def record(self, rule: str, task: RoundTask) -> None:
        """Puts it into the ledger."""
        site, change = self._site, self._change
        site.ledger.record(rule, task.ledger_round, change, self._confidence)
        LOG.info("%s: repairs of %d slices by %s", site.name, change.any((1, 2)).sum(), rule)


def unmarked_lesions(model: nn.Module, site: Site, threshold: float, *, extent: float) -> tuple[np.ndarray, np.ndarray]:
    """What a model is sure of and the site has not marked, nor people refused, in the slices of its training split.

    Args:
        model: the received one.
        site: its marks, repairs do not count; and what people of it have refused.
        threshold: of :func:`fedmend.methods.shared.lesions.whole_components`.
        extent: of the same.

    Returns:
        (N, H, W) bool, and (N,) mean probability of these pixels of a slice, 0 where there is none.
    """
    masks = site.data.train.masks
    closed = (masks > 0) | site.ledger.refused()
    added, confidence = np.zeros(masks.shape, dtype=bool), np.zeros(len(masks))
    for index, probability in infer_masks(model, site.data.train, site):
        new = whole_components(probability, threshold, extent=extent) & ~closed[index]
        added[index] = new
        confidence[index] = (probability * new).sum((1, 2)) / np.maximum(new.sum((1, 2)), 1)
    return added, confidence


class SliceBatchRound(Round):
    """One round on slices whose grey values change at random; the target is the ledger's when the round starts.

    Networks in three dimensions get patches of volumes instead, in each epoch others.
    """

    method: "SliceMethod"

    def __init__(self, method: "SliceMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._target = torch.from_numpy(site.ledger.apply(site.data.train.masks))  # bool, or numbers of structures
        self._generator = site.generator(task, "augmentation")
        self._patches: Patches | None = None

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """Slice numbers (B,) of one epoch's batches, or numbers of its patches."""
        train = self.site.data.train
        if not train.patch:
            return super().batches(epoch)
        generator = self.site.generator(self.task, f"patches {epoch}")
        self._patches = Patches(train.case, self._target.numpy(), train.images, train.patch, generator)
        return self.site.batches(torch.randperm(len(self._patches), generator=generator))

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented slices (B, 1, H, W) and their marks in force (B, H, W), float32 on the device; of patches of D
        slices (B, 1, D, H, W) and (B, D, H, W)."""
        train, device = self.site.data.train, self.site.device
        if self._patches is None:
            images, marks = train.pixels(index), self._target[index]
        else:
            images = self._patches.cut(lambda rows: train.pixels(rows)[:, 0], index)
            marks = self._patches.cut(lambda rows: self._target[rows], index)
        if self.method.augment:
            images = augment_intensity(images, self._generator)
        images = images if self._patches is None else images.unsqueeze(1)
        return images, marks.to(device, non_blocking=True).float()


class SliceRound(SliceBatchRound):
    """A round whose loss is a function of logits and marks."""

    def loss(self, index: Tensor) -> Tensor:
        images, marks = self.batch(index)
        return self.mask_loss(self.model(images)[1].float(), marks, index)

    @abstractmethod
    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Scalar loss.

        Args:
            logits: (B, 2, H, W) float32 of background and lesion; of patches (B, 2, D, H, W).
            marks: (B, H, W) float32, 1 = lesion in the annotation in force; of patches (B, D, H, W).
            index: (B,) numbers of slices or patches.
        """


@dataclass(kw_only=True, eq=False)
class SliceMethod(Settings, LocalMethod):
    """A method for masks.

    Args:
        augment: change the grey values of training slices at random.
    """

    KINDS = (SEGMENTATION,)
    base_loss = CE
    augment: bool = True
