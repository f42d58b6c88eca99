"""FedNoRo for masks: sites that mark carelessly are found by the losses of their pixels and learned from with care.

Wu, Yu, Jiang, Cheng, Yan, IJCAI 2023, is about single labels; the table of Xiang et al., MICCAI 2024 (FedIA), has a row
of it for masks and does not say how, so this is our form of it. A pixel takes the place of a sample; the classes are
background and lesion. The server half is that of FedNoRo (:mod:`fedmend.methods.fednoro`): detection once after T
rounds, then averages by distance. pi are the shares of the two classes among a site's pixels, z logits, y marks.

1. Rounds 0 .. T-1: L = mean over pixels of CE(z + ln pi, y).
2. Once, on plain images and without ln pi, each site tells the mean cross-entropy of its pixels of each class.
3. Then clean sites go on as before, and noisy ones have L = lambda KL(softmax(z_g / .8) || softmax(z + ln pi))
   + (1 - lambda) CE(z + ln pi, y), mean over pixels, z_g the logits of the received model on the same view.

Decisions:

- D1 the base loss is that of FedNoRo. ``base_loss`` dice is FedIA's: the Dice loss of softmax(z) in place of the
  cross-entropy, and then no ln pi in the divergence either, as the Dice loss has no use for the shares of the classes.
- D2 one pixel is added to each class, so that a site without any mark has a finite shift.
- D3 the prediction has no ln pi, as in FedNoRo: a pixel counts as lesion from where it is likelier to be marked than a
  pixel on average. This finds more of what is not marked than any other row's loss, and more false alarms.
- D4 the loss of a pixel is at most -ln 1e-7. ``class_count`` are slices with such pixels, of which a ReportGuard wants
  ``min_count``.
- D5 partly marked lesions are at every site: the mixture finds the sites that are relatively worse.

Cost as FedAvg; of a noisy site after the detection 4/3 of it; one inference in all for the detection.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.fields import Report
from fedmend.learning.inference import infer_masks
from fedmend.method import RoundTask, Site
from fedmend.methods.shared.noisy_sites import FIELDS, KNOWLEDGE, TaughtRound
from fedmend.methods.shared.settings import Positive
from fedmend.methods.shared.slices import CE, BaseLoss, SliceBatchRound, SliceMethod, base_loss

SMALLEST = 1e-7  # probability of a pixel's class


class FedNoRoMasksRound(TaughtRound, SliceBatchRound):
    """One round at a site."""

    method: "FedNoRoMasks"

    def __init__(self, method: "FedNoRoMasks", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        shift = log_prior(self._target.numpy()) if method.base_loss == CE else np.zeros(2, dtype=np.float32)
        self._shift = torch.from_numpy(shift).view(1, 2, 1, 1).to(site.device)

    def adjusted(self, logits: Tensor) -> Tensor:
        """(B, 2, H, W) float32 logits plus ln pi."""
        return logits.float() + self._shift

    def own_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Base loss of (B, 2, H, W) logits and (B, H, W) marks."""
        return base_loss(self.method.base_loss, logits, target)


@dataclass(kw_only=True, eq=False)
class FedNoRoMasks(SliceMethod):
    """Client half of FedNoRo for masks; its workflow is FedNoRo's.

    Args:
        temperature: of the teacher, > 0.
        base_loss: ``ce``, the logit-adjusted cross-entropy of the pixels, or ``dice``.
    """

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    ROUND = FedNoRoMasksRound
    temperature: Positive = 0.8
    base_loss: BaseLoss = CE

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Mean cross-entropy of the pixels of each class under the received model, and slices with such pixels."""
        marks = site.ledger.apply(site.data.train.masks)
        total, pixels, slices = np.zeros(2), np.zeros(2), np.zeros(2, dtype=np.int64)
        for index, lesion in infer_masks(model, site.data.train, site):
            for row, (chosen, p) in enumerate(((~marks[index], 1 - lesion), (marks[index], lesion))):
                total[row] -= np.log(p[chosen].clip(SMALLEST, 1).astype(np.float64)).sum()
                pixels[row] += chosen.sum()
                slices[row] += chosen.any((1, 2)).sum()
        return {"class_loss": (total / np.maximum(pixels, 1)).astype(np.float32), "class_count": slices}


def log_prior(marks: np.ndarray) -> np.ndarray:
    """ln pi of background and lesion, (2,) float32, of (N, H, W) bool marks; a pixel of each is added (D2)."""
    lesion = int(marks.sum())
    counts = np.array([marks.size - lesion + 1, lesion + 1], dtype=np.float64)
    return np.log(counts / counts.sum()).astype(np.float32)
