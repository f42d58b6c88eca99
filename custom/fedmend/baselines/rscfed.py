"""RSCFed: a teacher at each site keeps missing classes steady; the server averages over random groups of sites.

Our form of Liang et al., "RSCFed: Random Sampling Consensus Federated Semi-Supervised Learning", CVPR 2022, for the row
"RSCFed" of Sun et al., MICCAI 2024 (FedMLP), and of the code of the latter (commit 2ad28b8). A site annotates A classes
and misses M; n_k samples, w_k its model. The published code of RSCFed itself has single labels and sites without any.

Server: G groups of K' sites are drawn in every round. In a group with mean model m a site counts
n_k exp(-beta d_k / n_k), where d_k is the sum over tensors of ||w_k - m||, and the weights of a group sum to 1. The new
model is the mean of the groups' averages. This is one weighted average of all models, by the mean weight of each site.

- D1 K' is three quarters of the sites, rounded up; the code has 6, which five sites do not have.
- D2 the teacher's decay is min(1 - 1/(n + 1), .999) after n steps, as in the published code of RSCFed. FedMLP's code
  has .999 from the first step, so that in a short run the teacher is the random network of the beginning.
- D3 weight 1 from the first round on, no ramp, no sharpening, no threshold (FedMLP's code; RSCFed's has .02 and
  sharpens).
- D4 beta is .01 (FedMLP's code). d / n is about .002 there, so that groups weigh by n_k alone and what a site counts is
  the luck of the draw; RSCFed has 1e4 for most data sets.
- D5 BatchNorm statistics are in teacher and distance; the counters of batches, which the code adds, are not.
- D6 at a site that annotates all classes there is no teacher; the code divides by 0.

Passes per training sample and round: E forward-backward, E inferences of the teacher. The teacher is kept at the site.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import Contributions
from fedmend.fields import Report
from fedmend.method import Federation, RoundTask, Site, Workflow
from fedmend.methods.baselines import FedAvgPLRound, MultiLabelMethod
from fedmend.methods.shared.distances import pairwise_distances
from fedmend.methods.shared.mean_teacher import AVERAGED, LastingTeacher
from fedmend.methods.shared.settings import Count, PartialShare, Settings, SomeShare, Weight

STATE = "rscfed"


# ---- the site -------------------------------------------------------------------------------------------------------
class RSCFedRound(FedAvgPLRound):
    """The student sees one view, the teacher the other."""

    method: "RSCFed"
    VIEWS = 2

    def __init__(self, method: "RSCFed", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._teacher: LastingTeacher | None = None
        if len(self.missing):
            self._teacher = LastingTeacher(STATE, model, task, site, decay=method.ema_decay, statistics=AVERAGED)

    def loss(self, index: Tensor) -> Tensor:
        """Supervised loss plus the mean over B*M of the squared difference of the scores of student and teacher."""
        logits = self.logits(index)
        loss = self.supervised(logits, index)
        if self._teacher is None:
            return loss
        with torch.no_grad():
            target = self._teacher.network(self.images(index, 1))[1].float()[:, self.missing].sigmoid()
        return loss + self.method.consistency_weight * (logits[:, self.missing].sigmoid() - target).square().mean()

    def after_step(self) -> None:
        if self._teacher is not None:
            self._teacher.follow(self.model)

    def report(self) -> Report:
        """Keeps the teacher; nothing leaves but the weights."""
        if self._teacher is not None:
            self._teacher.save(self.task, self.site)
        return {}


@dataclass(kw_only=True, eq=False)
class RSCFed(MultiLabelMethod):
    """Client half of RSCFed.

    Args:
        ema_decay: largest decay of the teacher, in [0, 1).
        consistency_weight: weight of the difference to the teacher, >= 0.
    """

    ROUND = RSCFedRound
    ema_decay: PartialShare = 0.999
    consistency_weight: Weight = 1.0


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class RSCFedWorkflow(Settings, Workflow):
    """Federated averaging over random groups of sites.

    Args:
        groups: G >= 1.
        group_share: share of the sites in a group, above 0 to 1.
        beta: how much a distant model loses, >= 0.
    """

    groups: Count = 10
    group_share: SomeShare = 0.75
    beta: Weight = 0.01

    def run(self, fed: Federation) -> None:
        size = math.ceil(self.group_share * len(fed.sites))
        for _ in fed.rounds():
            drawn = partial(self.shares, size, fed.generator("groups"))
            answers = fed.train("train", average=drawn)
            fed.record("group_shares", {site: round(answer.share, 4) for site, answer in answers.items()})

    def shares(self, size: int, generator: np.random.Generator, contributions: Contributions) -> dict[str, float]:
        """Mean weight of each site over random groups of ``size`` of those that answered; they sum to 1."""
        samples = np.array([c.samples for c in contributions.values()], dtype=np.float64)
        distances = pairwise_distances([c.model for c in contributions.values()])
        size, total = min(size, len(samples)), np.zeros(len(samples))
        for _ in range(self.groups):
            group = np.sort(generator.choice(len(samples), size, replace=False))
            total[group] += group_weights(distances[:, group[:, None], group], samples[group], self.beta)
        return dict(zip(contributions, (total / self.groups).tolist(), strict=True))


def group_weights(distances: np.ndarray, samples: np.ndarray, beta: float) -> np.ndarray:
    """Weight of each model of a group: n exp(-beta d / n), normalised.

    The distance of a model to the mean of its group follows from those between the models: ||w_k - m||^2 is the mean of
    ||w_k - w_j||^2 over j, minus half of its mean over k.

    Args:
        distances: (T, K', K') squared distances of each tensor.
        samples: (K',) n.
        beta: as above.

    Returns:
        (K',) float64.
    """
    means = distances.mean(2)
    squared = means - means.mean(1, keepdims=True) / 2
    d = np.sqrt(np.maximum(squared, 0)).sum(0)
    exponent = -beta * d / samples
    weights = samples * np.exp(exponent - exponent.max())
    return weights / weights.sum()
