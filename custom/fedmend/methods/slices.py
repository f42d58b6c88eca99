"""What methods for masks share: training on slices with the annotation in force."""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.intensity import augment_intensity
from fedmend.data.manifest import SEGMENTATION
from fedmend.errors import check_variables
from fedmend.losses import soft_dice_loss
from fedmend.method import LocalMethod, Round, RoundTask, Site

CE, DICE = BASE_LOSSES = ("ce", "dice")


class SliceViewsRound(Round):
    """One round on slices whose grey values change at random; the target is the ledger's when the round starts."""

    def __init__(self, method: "SliceMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._target = torch.from_numpy(site.ledger.apply(site.data.train.masks))
        self._generator = site.generator(task, "augmentation")

    def images(self, index: Tensor) -> Tensor:
        """(B, 1, H, W) slices, augmented anew at each call."""
        images = self.site.data.train.pixels(index)
        return augment_intensity(images, self._generator) if self.method.augment else images

    def marks(self, index: Tensor) -> Tensor:
        """(B, H, W) float32, 1 = lesion in the annotation in force."""
        return self._target[index].to(self.site.device, non_blocking=True).float()


class SliceRound(SliceViewsRound):
    """A round whose loss is a function of logits and marks."""

    def loss(self, index: Tensor) -> Tensor:
        """:meth:`mask_loss` of augmented slices."""
        return self.mask_loss(self.model(self.images(index))[1].float(), self.marks(index), index)

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


def check_base_loss(base_loss: str) -> None:
    """Refuses a name that is none of :data:`BASE_LOSSES`.

    Raises:
        FedMendError: names the job variable.
    """
    check_variables(base_loss in BASE_LOSSES, "'ce' or 'dice'", base_loss=base_loss)


def pixel_loss(base_loss: str, logits: Tensor, marks: Tensor) -> Tensor:
    """What a method that adds a term of its own starts from: mean cross-entropy of the pixels, or the Dice loss.

    Args:
        base_loss: ``ce`` or ``dice``.
        logits: (B, 2, H, W) float32 of background and lesion.
        marks: (B, H, W) of 0 and 1.
    """
    if base_loss == DICE:
        return soft_dice_loss(logits.softmax(1)[:, 1], marks)
    return F.cross_entropy(logits, marks.long())
