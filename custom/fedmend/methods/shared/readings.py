"""How the methods for mismatched label sets read labels and predictions, for each kind of labels.

N samples at a site, B in a batch, M classes; I_k are the classes that site k identifies, U_k the others. Equations of
Deng et al., MICCAI 2023.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL
from fedmend.learning.losses import masked_bce


class Reading(ABC):
    """Known classes, probabilities, pseudo-labels and losses.

    Attributes:
        weighted: the loss weights positive terms.
    """

    weighted: ClassVar[bool]

    @abstractmethod
    def known_classes(self, labels: np.ndarray) -> np.ndarray:
        """(M,) bool, I_k, of (N, M) labels 1, 0 or -1."""

    @abstractmethod
    def uncertainty(self, logits: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Entropy of each sample, Eq. (3), scaled to [0, 1].

        Args:
            logits: (N, M).
            known: (M,) bool, I_k.

        Returns:
            (N,) float64; 0 where no class is unknown.
        """

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, M) of (B, M) logits."""

    @abstractmethod
    def pseudo_labels(
        self, predicted: Tensor, labels: Tensor, unknown: Tensor, tau_positive: float, tau_negative: float
    ) -> tuple[Tensor, Tensor]:
        """Labels, and pseudo-labels on unknown classes, Eqs. (4)-(5).

        Args:
            predicted: (B, M) probabilities.
            labels: (B, M) float; 1, 0 or -1.
            unknown: (M,) or (B, M) bool: U_k, of the samples that may get pseudo-labels.
            tau_positive: probability from which an unknown class is positive; of the largest class in single-label
                data.
            tau_negative: probability up to which it is negative (multi-label).

        Returns:
            Targets (B, M) of 0/1 and the entries (B, M) that count: labelled ones, and confident ones of unknown
            classes. In single-label data a row counts whole or not at all.
        """

    @abstractmethod
    def loss(
        self, logits: Tensor, target: Tensor, valid: Tensor, labels: Tensor, pos_weight: Tensor | None, over_batch: bool
    ) -> Tensor:
        """Supervised loss and loss of the pseudo-labels.

        Args:
            logits: (B, M) float32.
            target: (B, M) of 0/1.
            valid: (B, M) bool, the entries that count; whole rows in single-label data.
            labels: (B, M); 1, 0 or -1.
            pos_weight: (M,) weights of positive terms.
            over_batch: divide labelled and unlabelled images of single-label data by the number of both; otherwise each
                by their own.

        Returns:
            Scalar; 0 where nothing counts.
        """

    @abstractmethod
    def mixed_loss(self, logits: Tensor, target: Tensor, valid: Tensor, pos_weight: Tensor | None) -> Tensor:
        """Loss of mixed pairs, Eq. (6), from (B, M) logits; arguments as in :meth:`loss`."""


class MultiLabelReading(Reading):
    """Any number of classes per image."""

    weighted = True

    def known_classes(self, labels: np.ndarray) -> np.ndarray:
        """The annotated columns."""
        return (labels != NOT_ANNOTATED).any(0)

    def uncertainty(self, logits: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Mean binary entropy / ln 2 over U_k (D1)."""
        z = logits.astype(np.float64)
        if known.all():
            return np.zeros(len(z))
        log_p, log_q = -np.logaddexp(0, -z[:, ~known]), -np.logaddexp(0, z[:, ~known])  # of p and 1 - p
        entropy = -(np.exp(log_p) * log_p + np.exp(log_q) * log_q).mean(1) / math.log(2)
        return entropy.clip(0, 1)  # rounding may exceed 1

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def pseudo_labels(
        self, predicted: Tensor, labels: Tensor, unknown: Tensor, tau_positive: float, tau_negative: float
    ) -> tuple[Tensor, Tensor]:
        """Each unknown class for itself."""
        given = labels != NOT_ANNOTATED
        positive, negative = predicted >= tau_positive, predicted <= tau_negative
        valid = given | (unknown & (positive | negative))
        return torch.where(given, labels.clamp(min=0), positive.float()), valid

    def loss(
        self, logits: Tensor, target: Tensor, valid: Tensor, labels: Tensor, pos_weight: Tensor | None, over_batch: bool
    ) -> Tensor:
        """Weighted binary cross-entropy over the valid entries by B*M (D3)."""
        return masked_bce(logits, target, valid, logits.numel(), pos_weight)

    def mixed_loss(self, logits: Tensor, target: Tensor, valid: Tensor, pos_weight: Tensor | None) -> Tensor:
        return masked_bce(logits, target, valid, logits.numel(), pos_weight)


class SingleLabelReading(Reading):
    """One class per image, or no label at all."""

    weighted = False

    def known_classes(self, labels: np.ndarray) -> np.ndarray:
        """The classes that occur."""
        return (labels == 1).any(0)

    def uncertainty(self, logits: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Entropy over all classes / ln M."""
        z = logits.astype(np.float64)
        log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
        return (-(np.exp(log_p) * log_p).sum(1) / math.log(z.shape[1])).clip(0, 1)

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def pseudo_labels(
        self, predicted: Tensor, labels: Tensor, unknown: Tensor, tau_positive: float, tau_negative: float
    ) -> tuple[Tensor, Tensor]:
        """The largest class, where it is one of U_k (D5)."""
        labelled = (labels != NOT_ANNOTATED).any(1, keepdim=True)
        best = F.one_hot(predicted.argmax(1), predicted.shape[1]).bool()
        sure = (best & unknown & (predicted >= tau_positive)).any(1, keepdim=True)
        target = torch.where(labelled, labels.clamp(min=0), best.float())
        return target, (labelled | sure).expand_as(target)

    def loss(
        self, logits: Tensor, target: Tensor, valid: Tensor, labels: Tensor, pos_weight: Tensor | None, over_batch: bool
    ) -> Tensor:
        """Mean cross-entropy of labelled samples, plus the sum of valid unlabelled ones by the number of unlabelled; or
        both sums by the number of all."""
        entropy = F.cross_entropy(logits, target, reduction="none")
        if over_batch:
            return torch.where(valid[:, 0], entropy, 0).mean()
        labelled = (labels != NOT_ANNOTATED).any(1)
        sure = valid[:, 0] & ~labelled
        supervised = torch.where(labelled, entropy, 0).sum() / labelled.sum().clamp(min=1)
        return supervised + torch.where(sure, entropy, 0).sum() / (~labelled).sum().clamp(min=1)

    def mixed_loss(self, logits: Tensor, target: Tensor, valid: Tensor, pos_weight: Tensor | None) -> Tensor:
        """Mean cross-entropy of the pairs that count (D4)."""
        entropy = F.cross_entropy(logits, target, reduction="none")
        kept = valid[:, 0]
        return torch.where(kept, entropy, 0).sum() / kept.sum().clamp(min=1)


READINGS: Mapping[str, Reading] = {MULTILABEL: MultiLabelReading(), SINGLELABEL: SingleLabelReading()}
