"""FSSL: what a site does not know must be answered alike whatever the view.

Yang et al., "Federated Semi-Supervised Learning for COVID Region Segmentation in Chest CT Using Multi-National Data
from China, Italy, Japan", MedIA 2021: labelled sites learn their labels, unlabelled ones consistency. Deng et al.,
MICCAI 2023, translated it to label sets and do not say how; FedIRM's paper calls it consistency under perturbation of
the input. So this is our form of it. Here the unlabelled data are the entries (image, class of U_k).

Teacher g is the received model, frozen for the round, in eval mode, on weak views w(x); student f sees strong views
s(x). B images in a batch, M classes, R rounds, r = round from 0:

- L = L_I + w(r) L_C; L_I is the loss of FedAvg* with hidden labels ignored.
- Multi-label: L_C = sum over U_k of BCE(f_c, g_c) / (B M), with the teacher's probabilities as targets and without
  weights of positive terms; entries that people have labelled are left out. Single-label: mean over the unlabelled
  images of -sum_c g_c ln f_c.
- w(r) = w_max exp(-5 (1 - min(r / r_0, 1))^2), r_0 = .15 R.

Decisions:

- D1 soft targets, no threshold: what is unsure pulls too, unlike in FixMatch.
- D2 the ramp is that of FedIRM's code (liuquande/FedIRM cfe0495: 30 of 200 rounds); its own term is 15 times the
  squared distance of probabilities to those of a moving average, ours is the cross-entropy of the supervised part.
- D3 the first teacher's head is random; w(0) = .0067 keeps that harmless.
- D4 weak views are drawn by a generator of their own, so that without L_C the round is that of FedAvg*.

Nothing goes into the ledger and nothing is reported. The server averages with masked rows. Two forward passes and a
backward one: 4/3 of FedAvg's cost.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.augment import weak
from fedmend.labels import MULTILABEL, NOT_ANNOTATED
from fedmend.learning.losses import masked_bce
from fedmend.method import RoundTask, Site
from fedmend.methods.labelsets import LabelSetFedAvgRound, LabelSetMethod
from fedmend.methods.shared.ramp_up import gaussian_ramp_up
from fedmend.methods.shared.settings import Share, Weight


class FSSLRound(LabelSetFedAvgRound):
    """Keeps the received model as the teacher."""

    method: "FSSL"

    def __init__(self, method: "FSSL", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._teacher = copy.deepcopy(model).eval().requires_grad_(False)
        self._weak = site.generator(task, "weak views")
        self._weight = gaussian_ramp_up(
            task.round_num, begin=0, end=method.ramp_share * task.total_rounds, maximum=method.consistency_weight
        )

    def loss(self, index: Tensor) -> Tensor:
        """L_I + w(r) L_C."""
        train = self.site.data.train
        with torch.no_grad():
            seen = weak(train.pixels(index), self._weak)
            target = self.reading.probabilities(self._teacher(train.to_network(seen))[1].float())
        logits = self.model(self.inputs(index))[1].float()
        labels = self.labels[index.to(self.site.device, non_blocking=True)]
        return self.supervised(logits, index) + self._weight * self._consistency(logits, target, labels)

    def _consistency(self, logits: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        if self.site.data.kind == MULTILABEL:
            return masked_bce(logits, target, ~self.known & (labels == NOT_ANNOTATED), logits.numel())
        unlabelled = (labels == NOT_ANNOTATED).all(1)
        entropy = F.cross_entropy(logits, target, reduction="none")
        return torch.where(unlabelled, entropy, 0).sum() / unlabelled.sum().clamp(min=1)


@dataclass(kw_only=True, eq=False)
class FSSL(LabelSetMethod):
    """Consistency with the received model on unknown classes.

    Args:
        consistency_weight: w_max, >= 0; 0 is FedAvg* with hidden labels ignored.
        ramp_share: share of the rounds over which the weight of L_C rises, 0 to 1.
    """

    ROUND = FSSLRound
    consistency_weight: Weight = 1.0
    ramp_share: Share = 0.15
