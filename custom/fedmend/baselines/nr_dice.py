"""NR-Dice: federated averaging with the noise-robust Dice loss.

Wang et al., "A Noise-Robust Framework for Automatic Segmentation of COVID-19 Pneumonia Lesions from CT Images", IEEE
TMI 2020 (COPLE-Net). A row of the table of Xiang et al., MICCAI 2024 (FedIA).

- D1 by default the loss is that of the paper, as far as we know it, for each slice and for the lesion, as FedIA's Dice
  loss is: squares in the denominator. The code of the authors' laboratory (HiLab-git/PyMIC) pools the batch, averages
  the losses of background and lesion and has plain sums there: ``pooling``, ``rows`` and ``denominator``.
- D2 gamma is 1.5 (of 1 to 2).
- D3 that is no detail: on a slice without any mark squares push a pixel that the network takes for lesion up, plain
  sums push it down. See :func:`fedmend.learning.losses.noise_robust_dice_loss`.

The server averages by samples. Nothing is reported; cost as FedAvg.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from torch import Tensor

from fedmend.learning.losses import noise_robust_dice_loss
from fedmend.methods.shared.settings import Range, one_of
from fedmend.methods.shared.slices import SliceMethod, SliceRound


class NRDiceRound(SliceRound):
    """The noise-robust Dice loss."""

    method: "NRDice"

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Loss of the lesion, or the mean of those of background and lesion."""
        method, lesion = self.method, logits.softmax(1)[:, 1]
        pooled, squares = method.pooling == "batch", method.denominator == "squares"
        loss = partial(noise_robust_dice_loss, gamma=method.gamma, pooled=pooled, squares=squares)
        if method.rows == "lesion":
            return loss(lesion, marks)
        return (loss(lesion, marks) + loss(1 - lesion, 1 - marks)) / 2


@dataclass(kw_only=True, eq=False)
class NRDice(SliceMethod):
    """Federated averaging with the noise-robust Dice loss.

    Args:
        gamma: exponent of the error, 1 to 2.
        pooling: ``slice``: a quotient for each slice; ``batch``: one for all slices of a batch.
        denominator: ``squares`` or ``sums``.
        rows: ``lesion``, or ``both`` for the mean of background and lesion.
    """

    VOLUMES = True
    ROUND = NRDiceRound
    gamma: Annotated[float, Range(lambda value: 1 <= value <= 2, "1 to 2")] = 1.5
    pooling: Annotated[str, one_of("slice", "batch")] = "slice"
    denominator: Annotated[str, one_of("squares", "sums")] = "squares"
    rows: Annotated[str, one_of("lesion", "both")] = "lesion"
