"""FedCorr: noisy sites are found by the dimension of their predictions, and their labels are corrected step by step.

Xu, Chen, Quek, Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022. The stages, both
halves of them, and D1 to D7 are in :mod:`fedmend.baselines.fedcorr_stages`; here is what a single label is to them: LID
is that of softmax outputs, the loss of a sample its cross-entropy, and theta the probability of the new class, 0.5.

With ``la`` logit adjustment is added to all training losses ("employed in the local training phase", FedNoRo).

- D8 T1, T2, T3 are those of the appendix of FedNoRo: 2, 50, 50 on ICH and 5, 150, 150 on ISIC 2019.
- D9 losses are plain cross-entropy; the code takes it of softmax outputs, as if they were logits.
- D10 LID, losses and new labels are of logits without adjustment.
- D11 the prior of ``la`` is that of the labels in force, in every round: of a prior fixed at the start, a sample
  relabelled to a class that the site did not have would have an infinite loss.
"""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.baselines.fedcorr_stages import RULE, CorrectingMethod, MixupRound
from fedmend.learning.inference import infer
from fedmend.method import RoundTask, Site
from fedmend.methods.shared.dimensions import local_intrinsic_dimension
from fedmend.methods.shared.singlelabel import SingleLabelMethod, SingleLabelRound, class_changes, settled


class FedCorrRound(MixupRound, SingleLabelRound):
    """One round on the labels in force."""

    method: "FedCorr"

    def labels(self) -> np.ndarray:
        return self.site.ledger.apply(self.site.data.train.labels)

    def target_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of (B, C) logits, with ``la`` adjusted, and (B,) classes."""
        return F.cross_entropy(self.adjusted(logits), target)

    def lid_and_losses(self) -> tuple[float, np.ndarray]:
        logits = infer(self.model, self.site.data.train, self.site)[1]
        losses = F.cross_entropy(logits, self.target.cpu(), reduction="none").numpy()
        return local_intrinsic_dimension(logits.softmax(1).numpy()).mean(), losses


@dataclass(kw_only=True, eq=False)
class FedCorr(CorrectingMethod, SingleLabelMethod):
    """Client half of FedCorr.

    Args:
        la: logit adjustment by the prior of the labels in force, in all training losses.
    """

    ROUND = FedCorrRound
    la: bool = False

    def relabel(self, chosen: np.ndarray, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Gives those of the samples of which the model is sure the class that it sees, unless people have fixed the
        label or rejected that class."""
        labels = site.ledger.apply(site.data.train.labels)
        probability, found = (x.numpy() for x in infer(model, site.data.train, site)[1].softmax(1).max(1))
        changed = chosen & (probability > self.confidence) & ~settled(site, found)
        target = np.where(changed, found, labels.argmax(1))
        site.ledger.record(RULE, task.ledger_round, labels, class_changes(labels, target, probability))
