"""FedNoRo's second stage on multi-label data: each site learns its own classes from labels, the others from the model.

Our form of Wu et al., "FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise
Heterogeneity", IJCAI 2023, for the row "FedNoRo" of Sun et al., MICCAI 2024 (FedMLP), and of the code of the latter
(commit 2ad28b8). B samples in a batch, R rounds; a site annotates A classes and misses M.

Every site counts as noisy in the classes that it misses: they take the scores of the received model instead of a label,
and more so from round to round. Federated averaging; no warm-up, no detection, no average by distance.

- D1 the code has logit adjustment switched off, in a class that another ablation disables; FedNoRo has it in all of its
  losses, so it is on here (``la``), in the supervised term alone (code).
- D2 lambda rises from round .02 R to the last one, which for the code's 500 rounds are 10 and 499.
- D3 B is the size of the batch at hand, where the code divides by the nominal size also in a short last one.
- D4 at a site that annotates all classes the code divides by 0; here the first term is left out.
- D5 the teacher is one pass of the received model in eval mode over the views of the round, as in FedMLP.

Passes per training sample and round: E forward-backward, one inference.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learning.inference import infer
from fedmend.learning.losses import prior_shift
from fedmend.method import RoundTask, Site
from fedmend.methods.baselines import FedAvgPLRound, MultiLabelMethod
from fedmend.methods.shared.ramp_up import gaussian_ramp_up
from fedmend.methods.shared.settings import Positive, Share

RAMP_BEGIN = 0.02  # share of all rounds


class MultiLabelFedNoRoRound(FedAvgPLRound):
    """Frozen scores of the received model, and lambda of the round."""

    method: "MultiLabelFedNoRo"

    def __init__(self, method: "MultiLabelFedNoRo", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._weight = teacher_weight(task.round_num, task.total_rounds, maximum=method.ramp_maximum)
        # Of the few labels that people gave a missing class in a review, as of FedMLP's tags: smoothed.
        smoothed = prior_shift(self.labels, smoothing=1.0)
        shift = np.where(site.data.annotated, prior_shift(self.labels), smoothed)
        self._shift = torch.from_numpy(shift).to(site.device) if method.la else 0.0
        self._teacher: Tensor | None = None  # (N, M)
        if len(self.missing) and self._weight > 0:
            logits = infer(model, site.data.train, site, site.views(task, 1)[0])[1].to(site.device)
            self._teacher = (logits[:, self.missing] / method.temperature).sigmoid()

    def loss(self, index: Tensor) -> Tensor:
        """lambda * mean over B*M of (s - sigmoid(teacher / temperature))^2 + (1 - lambda) * mean over B*A of the binary
        cross-entropy of adjusted logits, without weights of positives."""
        logits = self.logits(index)
        loss = (1 - self._weight) * self.supervised(logits + self._shift, index)
        if self._teacher is None:
            return loss
        soft = self._teacher[index.to(self.site.device, non_blocking=True)]
        return loss + self._weight * (logits[:, self.missing].sigmoid() - soft).square().mean()


@dataclass(kw_only=True, eq=False)
class MultiLabelFedNoRo(MultiLabelMethod):
    """Partial loss with logit adjustment, and distillation from the received model on missing classes.

    Args:
        la: add log(pi_1 / pi_0) of the site's labels to the logits of annotated classes.
        ramp_maximum: lambda of the last round, in [0, 1].
        temperature: of the received model, > 0; below 1 its scores are sharpened.
    """

    ROUND = MultiLabelFedNoRoRound
    weighted = False
    la: bool = True
    ramp_maximum: Share = 0.8
    temperature: Positive = 0.8


def teacher_weight(round_num: int, total_rounds: int, *, maximum: float) -> float:
    """lambda of a round (D2)."""
    return gaussian_ramp_up(round_num, begin=round(RAMP_BEGIN * total_rounds), end=total_rounds - 1, maximum=maximum)
