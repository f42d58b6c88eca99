"""What methods for masks share: training on slices with the annotation in force."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedmend.data.intensity import augment_intensity
from fedmend.data.manifest import SEGMENTATION
from fedmend.method import LocalMethod, Round, RoundTask, Site


class SliceRound(Round):
    """One round on slices whose grey values change at random; the target is the ledger's when the round starts."""

    def __init__(self, method: "SliceMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._target = torch.from_numpy(site.ledger.apply(site.data.train.masks))
        self._generator = site.generator(task, "augmentation")

    def loss(self, index: Tensor) -> Tensor:
        """:meth:`mask_loss` of augmented slices."""
        images = self.site.data.train.pixels(index)
        if self.method.augment:
            images = augment_intensity(images, self._generator)
        marks = self._target[index].to(self.site.device, non_blocking=True).float()
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
