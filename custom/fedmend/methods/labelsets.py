"""What FedLSM and the baselines that it is compared with share, and the plainest of these baselines.

The label sets of the sites do not match, in multi-label or single-label data. N samples at a site, M classes; I_k are the classes
that site k identifies, U_k the others. All methods take the same number of optimiser steps on strong views of the same kind with the same weights
of positive terms, so that a comparison is about the method alone.

Rows of Tables 1 and 2, Deng et al., MICCAI 2023, and ``aggregation`` of the server (:func:`fedmend.methods.fedlsm.class_weights`):

============================ ======================================= =============
row                          method                                  aggregation
============================ ======================================= =============
FedAvg with 100 % labels     LabelSetFedAvg on complete labels       ``samples``
FedAvg                       LabelSetFedAvg                          ``samples``
FedAvg*                      LabelSetFedAvg                          ``masked``
FedProx*                     LabelSetFedProx                         ``masked``
MOON*                        fedmend.methods.moon.Moon               ``masked``
FedRS                        FedRS                                   ``samples``
FedAvg*+FixMatch             fedmend.methods.fixmatch.FixMatch       ``masked``
FedLSM                       fedmend.methods.fedlsm.FedLSM           ``awpa``
============================ ======================================= =============

FedPU, FPSL and FSSL* are not here. The published code has no baseline that can be run; decisions:

- In multi-label data a hidden label counts as negative, in all baselines but FixMatch; FedAvg* is FedAvg but for the server.
- In single-label data an image without a label has no supervised loss, which is 0 for a batch without any label; MOON's contrastive
  and FedProx's proximal term remain.
- FedRS scales the logits of sigmoid outputs as it does those of a softmax.
"""

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.augment import strong, to_network
from fedmend.data.manifest import MULTILABEL, NOT_ANNOTATED, SINGLELABEL
from fedmend.errors import FedMendError
from fedmend.ledger import Repairs
from fedmend.losses import masked_bce
from fedmend.methods.base import LocalMethod, Report, RoundTask, Site
from fedmend.methods.baselines import Proximal


class LabelSetMethod(LocalMethod):
    """Local training at a site that does not identify all classes.

    Args:
        local_iterations: optimiser steps per round, >= 1.
        vertical_flip: part of the strong augmentation.
    """

    TASKS: ClassVar[tuple[str, ...]] = (MULTILABEL, SINGLELABEL)

    def __init__(self, *, local_iterations: int, vertical_flip: bool = False):
        if local_iterations < 1:
            raise FedMendError(f"job variable local_iterations: expected at least 1, got {local_iterations}")
        self.local_iterations, self.vertical_flip = local_iterations, vertical_flip

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Known classes, labels and weights of positive terms, on the device, and the generator of the augmentation."""
        labels, memory = site.data.train.labels, site.memory
        known = known_classes(labels, site.data.task)
        if not known.any():
            raise FedMendError(
                f"{site.name}: {site.data.train.table.file}: expected labels of at least one class, got none"
            )
        memory["known"] = torch.from_numpy(known).to(site.device)
        memory["labels"] = torch.from_numpy(labels.astype(np.float32)).to(site.device)
        memory["pos_weight"] = self._positive_weight(task, site)
        memory["generator"] = site.generator(task, "augment")

    @staticmethod
    def _positive_weight(task: RoundTask, site: Site) -> Tensor | None:
        if site.data.task == SINGLELABEL:
            return None
        weight = task.knowledge.get("pos_weight")
        shape = (len(site.data.classes),)
        if weight is None or np.shape(weight) != shape or not (np.isfinite(weight) & (weight > 0)).all():
            raise FedMendError(
                f"{site.name}: round {task.round_num}, pos_weight from the server: expected one number > 0 per class, got"
                " another"
            )
        return torch.from_numpy(np.asarray(weight, dtype=np.float32)).to(site.device)

    def parts(self, site: Site) -> list[tuple[np.ndarray, int]]:
        """Pools of sample numbers, and how many of each are in a batch: here B of all samples."""
        return [(np.arange(len(site.data.train)), site.batch_size)]

    def batches(self, task: RoundTask, site: Site, epoch: int) -> Iterable[Tensor]:
        """``local_iterations`` batches, the parts of each in their order."""
        generator = site.generator(task, f"shuffle {epoch}")
        streams = [(_Stream(pool, generator), count) for pool, count in self.parts(site)]
        for _ in range(self.local_iterations):
            yield torch.cat([stream.take(count) for stream, count in streams])


class _Stream:
    """Samples of a pool without end, in a new order whenever too few are left; no sample twice in a batch."""

    def __init__(self, pool: np.ndarray, generator: torch.Generator):
        self._pool, self._generator = torch.from_numpy(pool), generator
        self._left = self._pool[:0]

    def take(self, count: int) -> Tensor:
        if len(self._left) < count:
            self._left = self._pool[torch.randperm(len(self._pool), generator=self._generator)]
        taken, self._left = self._left[:count], self._left[count:]
        return taken


def known_classes(labels: np.ndarray, task: str) -> np.ndarray:
    """I_k: the annotated columns of multi-label data, the classes that occur in single-label data.

    Args:
        labels: (N, M) int; 1, 0 or -1.
        task: ``multilabel`` or ``singlelabel``.

    Returns:
        (M,) bool.
    """
    return (labels == 1).any(0) if task == SINGLELABEL else (labels != NOT_ANNOTATED).any(0)


def label_loss(logits: Tensor, target: Tensor, valid: Tensor, labels: Tensor, site: Site) -> Tensor:
    """Multi-label: weighted binary cross-entropy over the valid entries by B*M. Single-label: mean cross-entropy of labelled
    samples, plus that of valid unlabelled ones by the number of all unlabelled ones.

    Args:
        logits: (B, M) float32.
        target: (B, M) of 0/1.
        valid: (B, M) bool, the entries that count; whole rows in single-label data.
        labels: (B, M); 1, 0 or -1.
        site: kind of labels and weights of positive terms.

    Returns:
        Scalar; 0 where nothing counts.
    """
    if site.data.task != SINGLELABEL:
        return masked_bce(logits, target, valid, logits.numel(), site.memory["pos_weight"])
    labelled = (labels != NOT_ANNOTATED).any(1)
    entropy = F.cross_entropy(logits, target, reduction="none")
    sure = valid[:, 0] & ~labelled
    supervised = torch.where(labelled, entropy, 0).sum() / labelled.sum().clamp(min=1)
    return supervised + torch.where(sure, entropy, 0).sum() / (~labelled).sum().clamp(min=1)


# ---- pseudo-labels on unknown classes -------------------------------------------------------------------------------
class PseudoLabelMethod(LabelSetMethod):
    """Also learns from confident predictions of unknown classes, and writes the last ones of a round into the ledger as ``RULE``.

    Args:
        tau_positive: probability from which an unknown class is pseudo-labelled positive; of the largest class in single-label
            data.
        tau_negative: probability up to which it is negative (multi-label).
        others: arguments of :class:`LabelSetMethod`.
    """

    RULE: ClassVar[str]

    def __init__(self, *, tau_positive: float = 0.85, tau_negative: float = 0.01, **others):
        check_thresholds(tau_positive, tau_negative)
        super().__init__(**others)
        self.tau_positive, self.tau_negative = tau_positive, tau_negative

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Also makes room for the pseudo-labels of the round."""
        super().prepare(model, task, site)
        shape = site.data.train.labels.shape
        site.memory["pseudo"] = torch.full(shape, NOT_ANNOTATED, dtype=torch.int8, device=site.device)
        site.memory["confidence"] = torch.zeros(shape, device=site.device)

    def main_loss(self, logits: Tensor, predicted: Tensor, rows: Tensor, site: Site) -> Tensor:
        """L_I + L_U, Eqs. (4)-(5), Deng et al., MICCAI 2023; keeps the last pseudo-label of each sample.

        Args:
            logits: (B, M) float32 of the strong views.
            predicted: (B, M) probabilities of the weak views, without gradient.
            rows: (B,) sample numbers on the device.
            site: data.
        """
        labels = site.memory["labels"][rows]
        target, valid = pseudo_labels(predicted, labels, self.tau_positive, self.tau_negative, site)
        new = valid & (labels == NOT_ANNOTATED)
        pseudo = torch.where(new, target, torch.full_like(target, NOT_ANNOTATED)).to(torch.int8)
        site.memory["pseudo"][rows] = pseudo
        site.memory["confidence"][rows] = (predicted - 0.5).abs()
        return label_loss(logits, target, valid, labels, site)

    def report(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Writes the round's new pseudo-labels into the ledger; nothing leaves but the weights."""
        pseudo = site.memory["pseudo"].cpu().numpy()
        sample, label_class = np.nonzero((pseudo != NOT_ANNOTATED) & (pseudo != site.ledger.repairs()))
        new = pseudo[sample, label_class]
        confidence = site.memory["confidence"].cpu().numpy()[sample, label_class]
        repairs = Repairs(sample, label_class, new, confidence)
        site.ledger.record(self.RULE, task.round_num, site.data.train.labels, repairs)
        return {}


def check_thresholds(tau_positive: float, tau_negative: float, prefix: str = "") -> None:
    """Refuses thresholds of pseudo-labels outside [0.5, 1] and [0, 0.5); ``prefix`` is that of the job variables.

    Raises:
        FedMendError: names the job variable.
    """
    if not 0.5 <= tau_positive <= 1:
        raise FedMendError(f"job variable {prefix}tau_positive: expected 0.5 to 1, got {tau_positive}")
    if not 0 <= tau_negative < 0.5:
        raise FedMendError(f"job variable {prefix}tau_negative: expected 0 to below 0.5, got {tau_negative}")


def probabilities(logits: Tensor, site: Site) -> Tensor:
    """(B, M) softmax of single-label data, sigmoid of multi-label data."""
    return logits.softmax(1) if site.data.task == SINGLELABEL else logits.sigmoid()


def pseudo_labels(
    predicted: Tensor, labels: Tensor, tau_positive: float, tau_negative: float, site: Site
) -> tuple[Tensor, Tensor]:
    """Labels, and pseudo-labels on unknown classes, Eqs. (4)-(5), Deng et al., MICCAI 2023.

    Args:
        predicted: (B, M) probabilities.
        labels: (B, M) float; 1, 0 or -1.
        tau_positive: probability from which an unknown class is positive; of the largest class in single-label data.
        tau_negative: probability up to which it is negative (multi-label).
        site: kind of labels and known classes.

    Returns:
        Targets (B, M) of 0/1 and the entries (B, M) that count: labelled ones, and confident ones of unknown classes. In
        single-label data a row counts whole or not at all.
    """
    unknown = ~site.memory["known"]
    given = labels != NOT_ANNOTATED
    if site.data.task == SINGLELABEL:
        labelled = given.any(1, keepdim=True)
        best = F.one_hot(predicted.argmax(1), predicted.shape[1]).bool()
        sure = (best & unknown & (predicted >= tau_positive)).any(1, keepdim=True)
        target = torch.where(labelled, labels.clamp(min=0), best.float())
        return target, (labelled | sure).expand_as(target)
    positive, negative = predicted >= tau_positive, predicted <= tau_negative
    valid = given | (unknown & (positive | negative))
    return torch.where(given, labels.clamp(min=0), positive.float()), valid


# ---- baselines ------------------------------------------------------------------------------------------------------
class LabelSetFedAvg(LabelSetMethod):
    """FedAvg, and, with masked rows at the server, FedAvg*."""

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Supervised loss of the strong views."""
        return self.supervised(model(self.strong_views(index, site))[1].float(), index, site)

    def strong_views(self, index: Tensor, site: Site) -> Tensor:
        """Network input (B, 3, H, W): strong views, other ones at each call."""
        pixels = site.data.train.pixels(index)
        return to_network(strong(pixels, site.memory["generator"], vertical_flip=self.vertical_flip))

    def supervised(self, logits: Tensor, index: Tensor, site: Site) -> Tensor:
        """Multi-label: weighted binary cross-entropy, mean over all entries, hidden ones negative. Single-label: mean
        cross-entropy of the labelled samples."""
        labels = site.memory["labels"][index.to(site.device, non_blocking=True)]
        counted = (labels != NOT_ANNOTATED) | (site.data.task == MULTILABEL)
        return label_loss(logits, labels.clamp(min=0), counted, labels, site)


class LabelSetFedProx(Proximal, LabelSetFedAvg):
    """FedProx: :class:`LabelSetFedAvg` with the proximal term."""


class FedRS(LabelSetFedAvg):
    """Li and Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data", KDD 2021.

    In the loss, logits of classes that the site does not know are multiplied by alpha, so that their classifier rows move less.

    Args:
        alpha: 0 to 1; 1 is FedAvg.
        others: arguments of :class:`LabelSetFedAvg`.
    """

    def __init__(self, *, alpha: float = 0.5, **others):
        super().__init__(**others)
        if not 0 <= alpha <= 1:
            raise FedMendError(f"job variable restriction: expected 0 to 1, got {alpha}")
        self.alpha = alpha

    def supervised(self, logits: Tensor, index: Tensor, site: Site) -> Tensor:
        """The loss of FedAvg with restricted logits."""
        return super().supervised(torch.where(site.memory["known"], logits, self.alpha * logits), index, site)
