"""Candidate sets: an image without a label is of one of the classes that its site does not identify.

Single-label data. No paper's method, but three known parts put together: the marginal loss (Shi et al., Medical Image
Analysis 2021), the disambiguation of candidate labels by the model itself (PRODEN: Lv et al., ICML 2020) and its use as
distillation within the classes that a site does not know (ConDistFL: Wang et al., 2023). I_k are the classes that site
k identifies, U_k the others; p is the softmax of the network. Per batch:

- CE = mean over labelled images of -ln p_y.
- A = mean over the others of -ln sum_{c in U_k} p_c: the class is one of U_k.
- B = mean over the others of -sum_{c in U_k} q_c ln p(c | U_k): which one, says q, the softmax over U_k of the received
  model, once per round, on plain images in eval mode.
- L = CE + A + w(r) B. w rises as a Gaussian ramp-up over the first ``ramp_share`` of the rounds, since q is a guess at
  first. The server averages each row of the classifier over the sites that identify its class.

True only where every image of a class of I_k has its label: elsewhere A is wrong for the hidden ones. At a site that
identifies all classes an image without a label has no loss. Nothing is reported, and the ledger stays empty, as q is no
label. One inference of each sample per round more than FedAvg.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from fedmend.labels import NOT_ANNOTATED, SINGLELABEL
from fedmend.learning.inference import infer
from fedmend.method import RoundTask, Site
from fedmend.methods.labelsets import LabelSetFedAvgRound, LabelSetMethod
from fedmend.methods.shared.candidates import candidate_shares
from fedmend.methods.shared.ramp_up import gaussian_ramp_up
from fedmend.methods.shared.settings import Share, Weight


class CandidateSetsRound(LabelSetFedAvgRound):
    """Asks the received model once which of the unknown classes each sample is."""

    method: "CandidateSets"

    def __init__(self, method: "CandidateSets", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        end = method.ramp_share * task.total_rounds
        self._weight = gaussian_ramp_up(task.round_num, begin=0, end=end, maximum=method.weight)
        self._guess = infer(model, site.data.train, site)[1].to(site.device)[:, ~self.known].softmax(1)

    def supervised(self, logits: Tensor, index: Tensor) -> Tensor:
        """CE + A + w B of (B, M) logits of the samples (B,)."""
        rows, loss = index.to(self.site.device, non_blocking=True), super().supervised(logits, index)
        unlabelled = (self.labels[rows] == NOT_ANNOTATED).all(1)
        if self.known.all() or not unlabelled.any():
            return loss
        outside, within = candidate_losses(logits[unlabelled], self._guess[rows][unlabelled], ~self.known)
        return loss + outside + self._weight * within


def candidate_losses(logits: Tensor, guess: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """A and B, means over samples.

    Args:
        logits: (B, M) float32.
        guess: (B, U) probabilities of the candidates, q.
        candidates: (M,) bool, U of them True, at least one.
    """
    inside = logits[:, candidates]
    outside = (logits.logsumexp(1) - inside.logsumexp(1)).mean()
    return outside, -(guess * inside.log_softmax(1)).sum(1).mean()


@dataclass(kw_only=True, eq=False)
class CandidateSets(LabelSetMethod):
    """Training with candidate sets, for single-label data in which every image of an identified class has its label.

    Args:
        weight: largest w, of the received model's opinion about the class within the candidates, >= 0.
        ramp_share: share of the rounds over which w rises, in [0, 1]; 0: its largest value from the first round on.
    """

    KINDS = (SINGLELABEL,)
    ROUND = CandidateSetsRound
    weight: Weight = 1.0
    ramp_share: Share = 0.15

    def solved_from(self, logits: Tensor, site: Site) -> np.ndarray:
        """Labels, and the received model's shares of the candidates."""
        return candidate_shares(site.labels(), logits, site.data.known)
