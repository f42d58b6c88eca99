"""Ignore in place of correct: masks in which lesions may be missing, without a repair. Not in any of the four papers.

FedIA marks, once and for good, what the global model is sure of (section 2.4, Xiang et al., MICCAI 2024). Here nothing
is marked: from the end of the warm-up on, an unmarked pixel that the received model takes for lesion leaves the loss of
the round, unless people have said that it is none. It teaches neither lesion nor background. A pixel that is left out
by mistake costs little, and the next round asks again.

The loss is Dice, Eq. (2) of FedIA's paper, plus cross-entropy, both over the pixels that count. Dice alone gives a
slice without a mark no gradient and drives probabilities to 0 and 1; cross-entropy learns from such slices, too, and
keeps p near a probability, so that a threshold below 1/2 means something.

Passes per training slice and round: 1 forward-backward, and 1 inference after the warm-up.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.learning.inference import infer_masks
from fedmend.learning.losses import soft_dice_loss
from fedmend.method import RoundTask, Site
from fedmend.methods.shared.settings import Share, Weight
from fedmend.methods.shared.slices import SliceMethod, SliceRound


class IgnoreUnmarkedRound(SliceRound):
    """Asks the received model, once, which unmarked pixels have no part in the round."""

    method: "IgnoreUnmarked"

    def __init__(self, method: "IgnoreUnmarked", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        masks = site.ledger.apply(site.data.train.masks)  # with what people have accepted
        known = masks | site.ledger.refused()
        counts = np.ones(masks.shape, dtype=bool)
        if task.round_num >= method.warmup_share * task.total_rounds:
            for index, probability in infer_masks(model, site.data.train, site):
                counts[index] = known[index] | (probability <= method.threshold)
        self._counts = torch.from_numpy(counts)

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Dice loss + w mean cross-entropy, over the pixels that count."""
        counts = self._counts[index].to(self.site.device, non_blocking=True).float()
        dice = soft_dice_loss(logits.softmax(1)[:, 1] * counts, marks)
        entropy = F.cross_entropy(logits, marks.long(), reduction="none")
        return dice + self.method.entropy_weight * (entropy * counts).sum() / counts.sum().clamp(min=1)


@dataclass(kw_only=True, eq=False)
class IgnoreUnmarked(SliceMethod):
    """Federated averaging of models that do not learn unmarked pixels as background where they may be lesion.

    Args:
        warmup_share: share of the rounds, the first ones, in which every pixel counts, 0 to 1.
        threshold: an unmarked pixel with a larger probability of lesion leaves the loss, 0 to 1; 1: none does.
        entropy_weight: w, weight of cross-entropy beside the Dice loss, >= 0.
    """

    ROUND = IgnoreUnmarkedRound
    warmup_share: Share = 0.4
    threshold: Share = 0.3
    entropy_weight: Weight = 1.0
