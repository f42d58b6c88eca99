"""FedCorr for masks: sites with poor marks are found by the dimension of their predictions, and corrected step by step.

Xu, Chen, Quek, Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022, is about the
classification of images at 100 sites, some of them clean; FedIA's comparison gives no details. This is our form for
masks: a sample is a slice, and it is relabelled pixel by pixel. The stages, both halves of them, and D1 to D7 are in
:mod:`fedmend.baselines.fedcorr_stages`.

- D8 T1, T2, T3 are 5, 500, 450 in the original: the variant's ``iterations`` are 5, and ``finetune_share`` is .526 of
  the job's rounds, which gives 158 and 142 of 300.
- D9 the LID is that of lesion probabilities averaged to 16 x 16 squares; the two numbers of one pixel have no dimension
  to speak of. Slices with no pixel above 0.05 are left out: blank maps are all alike and would pull the mean down.
- D10 theta is 0.8: of two classes one always has 0.5, the published value.
- D11 the loss of a slice is the mean cross-entropy of its pixels under the local model, with the marks in force.
- D12 pixels become lesion or background; the ledger keeps signed changes.
- D13 which base loss FedIA's authors took is unknown: cross-entropy as in the original, or ``dice``. With cross-entropy
  a network on marks of which few are there may find nothing at all, as the 0 in FedIA's table.

A network trained on incomplete marks predicts little, so the LID of an incomplete site need not be the higher one; on a
phantom it was not. The record ``noisy_sites`` shows it.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.baselines.fedcorr_stages import RULE, CorrectingMethod, MixupRound
from fedmend.learning.inference import infer_masks
from fedmend.method import RoundTask, Site
from fedmend.methods.shared.dimensions import local_intrinsic_dimension
from fedmend.methods.shared.settings import Share
from fedmend.methods.shared.slices import CE, BaseLoss, Relabelling, SliceBatchRound, SliceMethod, base_loss

SQUARES = 16  # along an edge
BLANK = 0.05
LOWEST = 1e-7  # probability


class FedCorrMasksRound(MixupRound, SliceBatchRound):
    """One round on the marks in force."""

    method: "FedCorrMasks"

    def target_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Base loss of (B, 2, H, W) logits and (B, H, W) marks."""
        return base_loss(self.method.base_loss, logits, target)

    def lid_and_losses(self) -> tuple[float, np.ndarray]:
        """See :class:`MixupRound`; LID 0 where all slices are blank."""
        site, target = self.site, self._target.numpy()
        losses, vectors = np.zeros(len(target), dtype=np.float32), []
        for index, lesion in infer_masks(self.model, site.data.train, site):
            losses[index] = slice_losses(lesion, target[index])
            vectors.append(squares(lesion[lesion.max((1, 2)) >= BLANK]))
        dimensions = local_intrinsic_dimension(np.concatenate(vectors))
        return dimensions.mean() if len(dimensions) else 0.0, losses


def slice_losses(lesion: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """(B,) mean cross-entropy of the pixels of each slice.

    Args:
        lesion: (B, H, W) probabilities.
        marks: (B, H, W) bool.
    """
    return -np.log(np.where(marks, lesion, 1 - lesion).clip(LOWEST, 1)).mean((1, 2))


def squares(lesion: np.ndarray) -> np.ndarray:
    """(B, 256): probabilities (B, H, W) averaged to 16 x 16 squares."""
    pooled = F.adaptive_avg_pool2d(torch.from_numpy(lesion).unsqueeze(1), SQUARES)
    return pooled.numpy().reshape(len(lesion), SQUARES**2)


@dataclass(kw_only=True, eq=False)
class FedCorrMasks(CorrectingMethod, SliceMethod):
    """Client half of FedCorr for masks.

    Args:
        confidence: theta, the global model must be surer than this of a pixel's new label, 0 to 1; up to 0.5 it is sure
            of every pixel.
        base_loss: ``ce`` or ``dice``.
    """

    ROUND = FedCorrMasksRound
    confidence: Share = 0.8
    base_loss: BaseLoss = CE

    def relabel(self, chosen: np.ndarray, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Gives the pixels of the chosen slices the label that the model is sure of."""
        marks = Relabelling(site)
        for index, lesion in infer_masks(model, site.data.train, site):
            sure = np.maximum(lesion, 1 - lesion) > self.confidence
            here = chosen[index]
            after = np.where(sure, lesion > 0.5, marks.before[index])
            marks.put(index[here], after[here], lesion[here])
        marks.record(RULE, task)
