"""The rows that a method is compared with, on partly annotated multi-label data and on single-label data.

Following the published FedMLP code, the binary cross-entropy of the baselines weights positives by N / n_positive (the
paper's Eq. 1 is unweighted); without it rare classes are not learned at all. One augmented view per sample and round.

Single-label FedAvg is plain cross-entropy; with logit adjustment (``la``) it is FedLA, the warm-up of FedNoRo in all rounds.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.losses import masked_bce, positive_weight
from fedmend.methods.base import LocalMethod, RoundTask, SingleLabelMethod, Site


class FedAvg(LocalMethod):
    """Eq. (1), Sun et al., MICCAI 2024: every label that is not annotated counts as negative."""

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Fixes targets, counted entries and positive weights of the round."""
        labels = np.maximum(site.data.train.labels, 0)
        counted = self.counted(site)
        site.memory["target"] = torch.from_numpy(labels.astype(np.float32)).to(site.device)
        site.memory["counted"] = torch.from_numpy(counted).to(site.device)
        site.memory["pos_weight"] = torch.from_numpy(positive_weight(np.where(counted, labels, -1))).to(site.device)

    def counted(self, site: Site) -> np.ndarray:
        """(N, C) bool: the entries of the loss; here all."""
        return np.ones(site.data.train.labels.shape, dtype=bool)

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Mean weighted binary cross-entropy over the counted columns."""
        _, logits = model(site.data.train.view(index, site.views(task, 1)[0]))
        rows = index.to(site.device, non_blocking=True)
        counted = site.memory["counted"][rows]
        columns = len(index) * self.columns(site)
        return masked_bce(logits.float(), site.memory["target"][rows], counted, columns, site.memory["pos_weight"])

    def columns(self, site: Site) -> int:
        """Classes that the loss is averaged over."""
        return len(site.data.classes)


class FedAvgPL(FedAvg):
    """FedAvg with a partial loss: only annotated classes count."""

    def counted(self, site: Site) -> np.ndarray:
        """(N, C) bool: the annotated entries."""
        return site.data.train.labels >= 0

    def columns(self, site: Site) -> int:
        """Annotated classes."""
        return int(site.data.annotated.sum())


class SingleLabelFedAvg(SingleLabelMethod):
    """FedAvg and, with ``la``, FedLA on single-label data.

    Args:
        la: logit adjustment.
    """

    def __init__(self, *, la: bool = False):
        super().__init__(la=la)

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Mean cross-entropy."""
        images, target = self.batch(index, site)
        return F.cross_entropy(self.adjusted(model(images)[1], site), target)


class Proximal(LocalMethod):
    """Adds the proximal term mu/2 * ||w - w_global||^2 to the loss of the next class, Eq. (2), Li et al., MLSys 2020.

    Args:
        mu: weight of the proximal term, >= 0.
        others: arguments of the next class.
    """

    def __init__(self, *, mu: float = 0.01, **others):
        super().__init__(**others)
        if mu < 0:
            raise FedMendError(f"job variable mu: expected >= 0, got {mu}")
        self.mu = mu

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Also keeps the received parameters."""
        super().prepare(model, task, site)
        site.memory["received"] = [p.detach().clone() for p in model.parameters()]

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Loss of the next class plus the proximal term."""
        distance = sum((p - q).square().sum() for p, q in zip(model.parameters(), site.memory["received"], strict=True))
        return super().loss(model, index, task, site) + self.mu / 2 * distance


class FedProx(Proximal, FedAvg):
    """FedProx on partly annotated multi-label data."""


class SingleLabelFedProx(Proximal, SingleLabelFedAvg):
    """FedProx on single-label data; with ``la`` it has logit adjustment."""
