"""What methods for masks share: training on slices with the annotation in force, and the flag of their repair."""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.intensity import augment_intensity
from fedmend.data.manifest import SEGMENTATION
from fedmend.errors import check_variables
from fedmend.fields import Field
from fedmend.losses import soft_dice_loss
from fedmend.method import LocalMethod, Round, RoundTask, Site

WAITS, TRIGGERED, DONE, EXEMPT = range(4)  # what a site says about its correction
CORRECTION_FLAG = Field(
    (1,), "int64", WAITS, EXEMPT, "each round: 0 waits, 1 triggered, 2 corrected, 3 spared", "one flag for the site"
)
CE, DICE = "ce", "dice"


def base_loss(name: str, logits: Tensor, marks: Tensor) -> Tensor:
    """The loss of plain training.

    Args:
        name: ``ce``: mean cross-entropy of the pixels; ``dice``: :func:`fedmend.losses.soft_dice_loss`.
        logits: (B, 2, H, W) float32 of background and lesion.
        marks: (B, H, W) of 0 and 1.
    """
    return soft_dice_loss(logits.softmax(1)[:, 1], marks) if name == DICE else F.cross_entropy(logits, marks.long())


def check_base_loss(name: str) -> None:
    """Refuses another name than those of :func:`base_loss`."""
    check_variables(name in (CE, DICE), f"one of {[CE, DICE]}", base_loss=name)


class SliceBatchRound(Round):
    """One round on slices whose grey values change at random; the target is the ledger's when the round starts."""

    def __init__(self, method: "SliceMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._target = torch.from_numpy(site.ledger.apply(site.data.train.masks))
        self._generator = site.generator(task, "augmentation")

    def batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Augmented slices (B, 1, H, W) and their marks in force (B, H, W), float32 on the device."""
        images = self.site.data.train.pixels(index)
        if self.method.augment:
            images = augment_intensity(images, self._generator)
        return images, self._target[index].to(self.site.device, non_blocking=True).float()


class SliceRound(SliceBatchRound):
    """A round whose loss is a function of logits and marks."""

    def loss(self, index: Tensor) -> Tensor:
        """:meth:`mask_loss` of augmented slices."""
        images, marks = self.batch(index)
        return self.mask_loss(self.model(images)[1].float(), marks, index)

    @abstractmethod
    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Scalar loss.

        Args:
            logits: (B, 2, H, W) float32 of background and lesion.
            marks: (B, H, W) float32, 1 = lesion in the annotation in force.
            index: (B,) slice numbers.
        """


class SliceMethod(LocalMethod):
    """A method for masks.

    Args:
        augment: change the grey values of training slices at random.
    """

    KINDS: ClassVar[tuple[str, ...]] = (SEGMENTATION,)

    def __init__(self, *, augment: bool = True):
        self.augment = augment
