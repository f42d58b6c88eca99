"""Federated averaging, and the rows that methods for multi-label and for single-label data are compared with.

Following the published FedMLP code, the binary cross-entropy of the baselines weights positives by N / n_positive (the
paper's Eq. 1 is unweighted); without it rare classes are not learned at all. One augmented view per sample and round,
unless a method or its setting ``views`` says otherwise.

Single-label FedAvg is plain cross-entropy; with logit adjustment (``la``) it is FedLA, the warm-up of FedNoRo in all
rounds.
"""

import copy
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.learning.losses import masked_bce, positive_weight
from fedmend.method import Federation, LocalMethod, Round, RoundTask, Site, Workflow
from fedmend.methods.shared.distances import squared_distance
from fedmend.methods.shared.settings import Range, Settings, Weight
from fedmend.methods.shared.singlelabel import SingleLabelMethod, SingleLabelRound

MOST_VIEWS = 4  # their passes are in memory together, which a site's estimate of a step does not know


class FedAvgWorkflow(Workflow):
    """Every round trains and averages by samples."""

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            fed.train("train")


# ---- multi-label ----------------------------------------------------------------------------------------------------
class FedAvgRound(Round):
    """Weighted binary cross-entropy over the entries that count."""

    method: "MultiLabelMethod"
    VIEWS = 1  # augmented views of a sample in a round

    def __init__(self, method: "MultiLabelMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self.labels = site.labels()  # (N, C)
        labels, self._entries = np.maximum(self.labels, 0), self.counted()
        counts = np.where(self._entries, labels, -1) if method.weighted else np.zeros_like(labels[:0])
        weight = positive_weight(counts)
        self._target = torch.from_numpy(labels.astype(np.float32)).to(site.device)
        self._counted = torch.from_numpy(self._entries).to(site.device)
        self._pos_weight = torch.from_numpy(weight).to(site.device)

    def counted(self) -> np.ndarray:
        """(N, C) bool: the entries of the loss; here all."""
        return np.ones(self.labels.shape, dtype=bool)

    def columns(self) -> int:
        """Classes that the loss is averaged over."""
        return len(self.site.data.classes)

    def loss(self, index: Tensor) -> Tensor:
        """Supervised loss of the first view."""
        return self.supervised(self.logits(index), index)

    def logits(self, index: Tensor, view: int = 0) -> Tensor:
        """(B, C) float32 of :meth:`images`."""
        return self.model(self.images(index, view))[1].float()

    def images(self, index: Tensor, view: int = 0) -> Tensor:
        """Network input of one of the round's views of the samples ``index`` (B,)."""
        return self.site.data.train.view(index, self.site.views(self.task, self.VIEWS)[view])

    def supervised(self, logits: Tensor, index: Tensor) -> Tensor:
        """Mean weighted binary cross-entropy of (B, C) logits over the counted columns of the samples (B,)."""
        rows = index.to(self.site.device, non_blocking=True)
        divisor = len(index) * self.columns()
        return masked_bce(logits, self._target[rows], self._counted[rows], divisor, self._pos_weight)


class MultiLabelMethod(Settings, LocalMethod):
    """A method for multi-label data.

    Attributes:
        weighted: positives weigh N / n_positive, which lets the loss of a sample depend on all others.
    """

    weighted = True

    @property
    def balanced(self) -> bool:
        """Weighted positives balance the classes."""
        return self.weighted


@dataclass(kw_only=True, eq=False)
class FedAvg(MultiLabelMethod):
    """Eq. (1), Sun et al., MICCAI 2024: every label that is not annotated counts as negative.

    Args:
        weighted: as of :class:`MultiLabelMethod`.
    """

    ROUND = FedAvgRound
    weighted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.patients_apart = not self.weighted


class FedAvgPLRound(FedAvgRound):
    """Only annotated classes count; ``missing`` are the numbers (M,) of the others, on the device."""

    def __init__(self, method: "MultiLabelMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self.missing = torch.from_numpy(np.flatnonzero(~site.data.annotated)).to(site.device)

    def counted(self) -> np.ndarray:
        """(N, C) bool: the entries that somebody has annotated."""
        return self.labels >= 0

    def columns(self) -> int:
        """Annotated classes."""
        return int(self.site.data.annotated.sum())


class ViewsRound(FedAvgPLRound):
    """Several views of each sample."""

    method: "FedAvgPL"

    def loss(self, index: Tensor) -> Tensor:
        """Mean of the supervised losses of the views."""
        views = range(self.method.views)
        return torch.stack([self.supervised(self.logits(index, view), index) for view in views]).mean()

    def images(self, index: Tensor, view: int = 0) -> Tensor:
        """Network input of one of the round's views of the samples ``index`` (B,)."""
        return self.site.data.train.view(index, self.site.views(self.task, self.method.views)[view])


@dataclass(kw_only=True, eq=False)
class FedAvgPL(FedAvg):
    """FedAvg with a partial loss: only annotated classes count.

    Args:
        views: augmented views of a sample, each with a pass of its own, 1 to 4; 2 as in the warm-up of FedMLP.
    """

    ROUND = ViewsRound
    views: Annotated[int, Range(lambda value: 1 <= value <= MOST_VIEWS, f"1 to {MOST_VIEWS}")] = 1


# ---- single-label ---------------------------------------------------------------------------------------------------
class SingleLabelFedAvgRound(SingleLabelRound):
    """Mean cross-entropy."""

    def loss(self, index: Tensor) -> Tensor:
        images, target = self.batch(index)
        return F.cross_entropy(self.adjusted(self.model(images)[1]), target)


@dataclass(kw_only=True, eq=False)
class SingleLabelFedAvg(SingleLabelMethod):
    """FedAvg and, with ``la``, FedLA on single-label data.

    Args:
        la: logit adjustment.
    """

    ROUND = SingleLabelFedAvgRound
    la: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.patients_apart = not self.la


# ---- models that stay at a site --------------------------------------------------------------------------------------
def own_model(name: str, model: nn.Module, task: RoundTask, site: Site, first: int = 0) -> nn.Module:
    """A copy of the received model with the weights that :func:`keep_model` kept before the round.

    A hospital that missed rounds goes on with its own model; one that an earlier run of this name left, from other
    initial weights, does not count, nor does one that was kept before the round ``first``.
    """
    own, before = copy.deepcopy(model), site.state.last_turn(name, before=task.round_num)
    if before is not None and before[0] >= first and before[1]["seed"] == task.seed:
        own.load_state_dict(before[1]["weights"])
    return own


def keep_model(name: str, model: nn.Module, task: RoundTask, site: Site) -> None:
    """Keeps a model at the site for its next round."""
    site.state.save_turn(name, task.round_num, {"seed": task.seed, "weights": model.state_dict()})


# ---- FedProx --------------------------------------------------------------------------------------------------------
class ProximalRound(Round):
    """Adds the proximal term mu/2 * ||w - w_global||^2, Eq. (2), Li et al., MLSys 2020, to the next class's loss."""

    method: Any

    def __init__(self, method: LocalMethod, model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._received = [p.detach().clone() for p in model.parameters()]

    def loss(self, index: Tensor) -> Tensor:
        distance = squared_distance(self.model, self._received)
        return super().loss(index) + self.method.mu / 2 * distance  # type: ignore[safe-super]


class FedProxRound(ProximalRound, FedAvgRound):
    """Proximal term on partly annotated multi-label data."""


@dataclass(kw_only=True, eq=False)
class FedProx(MultiLabelMethod):
    """FedProx on partly annotated multi-label data.

    Args:
        mu: weight of the proximal term, >= 0.
    """

    ROUND = FedProxRound
    mu: Weight = 0.01


class SingleLabelFedProxRound(ProximalRound, SingleLabelFedAvgRound):
    """Proximal term on single-label data."""


@dataclass(kw_only=True, eq=False)
class SingleLabelFedProx(SingleLabelFedAvg):
    """FedProx on single-label data.

    Args:
        mu: weight of the proximal term, >= 0.
    """

    ROUND = SingleLabelFedProxRound
    mu: Weight = 0.01
