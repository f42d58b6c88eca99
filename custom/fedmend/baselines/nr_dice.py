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

from typing import ClassVar

from torch import Tensor

from fedmend.errors import check_variables
from fedmend.learning.losses import noise_robust_dice_loss
from fedmend.method import Round
from fedmend.methods.shared.slices import SliceMethod, SliceRound


class NRDiceRound(SliceRound):
    """The noise-robust Dice loss."""

    method: "NRDice"

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Loss of the lesion, or the mean of those of background and lesion."""
        method = self.method
        options = {
            "gamma": method.gamma,
            "pooled": method.pooling == "batch",
            "squares": method.denominator == "squares",
        }
        lesion = logits.softmax(1)[:, 1]
        loss = noise_robust_dice_loss(lesion, marks, **options)
        if method.rows == "lesion":
            return loss
        return (loss + noise_robust_dice_loss(1 - lesion, 1 - marks, **options)) / 2


class NRDice(SliceMethod):
    """Federated averaging with the noise-robust Dice loss.

    Args:
        gamma: exponent of the error, 1 to 2.
        pooling: ``slice``: a quotient for each slice; ``batch``: one for all slices of a batch.
        denominator: ``squares`` or ``sums``.
        rows: ``lesion``, or ``both`` for the mean of background and lesion.
        augment: change the grey values of training slices at random.
    """

    ROUND: ClassVar[type[Round]] = NRDiceRound

    def __init__(
        self,
        *,
        gamma: float = 1.5,
        pooling: str = "slice",
        denominator: str = "squares",
        rows: str = "lesion",
        augment: bool = True,
    ):
        super().__init__(augment=augment)
        check_variables(1 <= gamma <= 2, "1 to 2", gamma=gamma)
        check_variables(pooling in ("slice", "batch"), "'slice' or 'batch'", pooling=pooling)
        check_variables(denominator in ("squares", "sums"), "'squares' or 'sums'", denominator=denominator)
        check_variables(rows in ("lesion", "both"), "'lesion' or 'both'", rows=rows)
        self.gamma, self.pooling, self.denominator, self.rows = gamma, pooling, denominator, rows
