"""ELR: predictions of earlier epochs keep a network from learning wrong pixels by heart.

Liu et al., "Early-Learning Regularization Prevents Memorization of Noisy Labels", NeurIPS 2020: before a network learns
noisy labels by heart it is right about many of them. A row of the table of Xiang et al., MICCAI 2024 (FedIA), who do
not say how they made it, so this is our form of it: pixel by pixel, at each site for itself.

A running mean t of the network's own predictions is kept for each pixel of the N training slices, 0 at first. In each
step, with p = softmax of the logits, kept within 1e-4 of 0 and 1:

- t <- beta t + (1 - beta) p, before the loss, without gradient.
- L = base loss + lambda mean over pixels of ln(1 - <t, p>), with <t, p> the product over background and lesion. The
  term is negative and pulls p towards t.

Decisions:

- D1 the base loss is the authors', the mean cross-entropy of the pixels; ``base_loss`` dice is FedIA's, which its
  authors may have used for all rows.
- D2 beta .7 and lambda 3 are those of the code (shengliu66/ELR 934af53) for CIFAR-10 with symmetric noise; for
  asymmetric noise it has .9 and 1. Where network and t agree on background, the term pulls a marked pixel down with
  lambda / 2 while its cross-entropy pulls it up with 1: from lambda 2 on, a lesion that was not learned at first never
  is. In 12 rounds on a small phantom with complete masks neither pair found a lesion.
- D3 with two classes t of the lesion is enough: after n updates that of the background is 1 - beta^n - t. Every slice
  is updated once in an epoch.
- D4 t is kept as 16-bit floats; with 8 bits small updates would be lost.
- D5 images change in their grey values alone, so that a pixel stays where it is; t mixes what the local models of all
  rounds predicted.
- D6 a round that is repeated starts from what the round before it left, and so does one after a missed round.

Nothing is reported. The state is one array of the size of the training slices, which never leaves; cost as FedAvg.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.fields import Report
from fedmend.method import RoundTask, Site
from fedmend.methods.shared.settings import PartialShare, Weight
from fedmend.methods.shared.slices import CE, BaseLoss, SliceMethod, SliceRound, base_loss

STATE, UPDATES = "elr", "elr-updates"
SMALLEST = 1e-4


class ELRRound(SliceRound):
    """Goes on with the running means of the round before."""

    method: "ELR"

    def __init__(self, method: "ELR", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        split, before = site.data.train, task.round_num
        kept = site.state.last_array(STATE, before=before, fingerprint=split.fingerprint())
        updates = site.state.last_turn(UPDATES, before=before)
        if kept is None or updates is None:
            kept, updates = np.zeros(split.masks.shape, dtype=np.float16), (0, 0)
        self._updates, self._mean = updates[1], torch.from_numpy(np.array(kept)).to(site.device)

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """See :class:`fedmend.method.Round`; an epoch updates each slice once."""
        self._updates += 1
        return super().batches(epoch)

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Base loss + lambda mean ln(1 - <t, p>)."""
        method, rows = self.method, index.to(self.site.device, non_blocking=True)
        p = logits.softmax(1)[:, 1].clamp(SMALLEST, 1 - SMALLEST)
        mean = method.beta * self._mean[rows].float() + (1 - method.beta) * p.detach()
        self._mean[rows] = mean.half()
        background = (1 - method.beta**self._updates - mean).clamp(min=0)
        term = torch.log1p(-(mean * p + background * (1 - p))).mean()
        return base_loss(method.base_loss, logits, marks) + method.weight * term

    def report(self) -> Report:
        """Keeps the running means for the next round; nothing leaves but the weights."""
        state, round_num = self.site.state, self.task.round_num
        fingerprint = self.site.data.train.fingerprint()
        state.save_array(STATE, round_num, self._mean.cpu().numpy(), fingerprint=fingerprint)
        state.save_turn(UPDATES, round_num, self._updates)
        return {}


@dataclass(kw_only=True, eq=False)
class ELR(SliceMethod):
    """Early-learning regularisation of masks.

    Args:
        beta: how much of the running mean stays in an update, 0 to below 1.
        weight: lambda, >= 0; 0: the base loss alone.
        base_loss: ``ce``, the mean cross-entropy of the pixels, or ``dice``.
    """

    ROUND = ELRRound
    beta: PartialShare = 0.7
    weight: Weight = 3.0
    base_loss: BaseLoss = CE
