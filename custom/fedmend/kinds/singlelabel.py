"""One label per image: its class, or not annotated.

Predictions become a confusion matrix, from which the metrics are exact, and for the AUC of each class against the rest
score histograms as for several labels, of the log-odds of the softmax probability: they keep the ranking of small
probabilities.
"""

from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from fedmend.data.manifest import SINGLELABEL, LabelTable
from fedmend.data.site import Split
from fedmend.errors import FedMendError
from fedmend.kinds.labels import LabelKind
from fedmend.kinds.multilabel import BINS, multilabel_metrics, score_histograms
from fedmend.training import infer

if TYPE_CHECKING:
    from fedmend.method import Site


class SingleLabel(LabelKind):
    """One label per image. Every class has a place in its column, so a site knows those that it has samples of."""

    name = SINGLELABEL
    one_label = True
    best_metric = "bacc"
    counts_words = f"(C, C + {2 * BINS})"

    def check_values(self, table: LabelTable, where: str) -> None:
        """There must be something to tell apart."""
        if (found := int((table.labels == 1).any(0).sum())) < 2:
            raise FedMendError(f"{where}, column label: expected at least 2 classes, got {found}")

    def evaluate(self, model: nn.Module, split: Split, site: "Site") -> np.ndarray:
        """See :func:`singlelabel_counts`."""
        return singlelabel_counts(infer(model, split, site)[1].numpy(), split.labels)

    def counts_shape(self, num_classes: int) -> tuple[int, ...]:
        """See :class:`Kind`."""
        return (num_classes + 2 * BINS,)

    def parts(self, counts: np.ndarray) -> list[np.ndarray]:
        """The confusion matrix, and the histograms of each class."""
        return [counts[:, : len(counts)], *counts[:, len(counts) :]]

    def metrics(self, counts: np.ndarray) -> dict:
        """See :func:`singlelabel_metrics`."""
        return singlelabel_metrics(counts)

    def known_classes(self, annotated: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """Those that a sample has."""
        return annotated & (positives > 0)

    def repairable(self, annotated: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """Those that no sample has."""
        return positives == 0


def singlelabel_counts(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What a site sends about a split.

    Args:
        logits: (N, C) finite.
        labels: (N, C) int, one-hot; a row of -1 is not annotated and left out.

    Returns:
        (C, C + 2 * BINS) int64: :func:`confusion_matrix` and, behind it, the score histograms of half the
        :func:`softmax_log_odds` with the samples of the other classes as negatives.
    """
    # Differences of logits spread twice as wide as logits, hence the half; beyond the range the ranking is lost.
    histograms = score_histograms(softmax_log_odds(logits) / 2, labels)
    return np.hstack([confusion_matrix(logits, labels), histograms.reshape(len(histograms), -1)])


def confusion_matrix(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts predictions, the class with the largest logit, per true class.

    Args:
        logits: (N, C) finite.
        labels: (N, C) int, one-hot; a row of -1 is not annotated and left out.

    Returns:
        (C, C) int64; rows are true classes, columns predicted ones.
    """
    counts = np.zeros((logits.shape[1],) * 2, dtype=np.int64)
    known = (labels == 1).any(1)
    np.add.at(counts, (labels[known].argmax(1), logits[known].argmax(1)), 1)
    return counts


def softmax_log_odds(logits: np.ndarray) -> np.ndarray:
    """log(p / (1 - p)) of the softmax probability p of each class, without rounding p near 0 and 1.

    Args:
        logits: (N, C) finite.

    Returns:
        (N, C): a logit minus the log-sum-exp of those of the other classes.
    """
    others = [np.logaddexp.reduce(np.delete(logits, c, axis=1), axis=1) for c in range(logits.shape[1])]
    return logits - np.stack(others, axis=1)


def singlelabel_metrics(counts: np.ndarray) -> dict:
    """Balanced accuracy, macro F1, AUC, precision and accuracy of merged counts.

    Args:
        counts: (C, C + 2 * BINS) int64, the sum over sites of :func:`singlelabel_counts`.

    Returns:
        ``per_class``: recall, precision, f1, auc (one class against the rest) → C floats, None for a class without a
        sample, auc also for the only class with samples; ``macro``: bacc (mean recall), f1, auc, precision (means over
        the classes that have one), accuracy, None when there is nothing to measure; ``confusion``: the (C, C) matrix;
        ``positives``: C counts.
    """
    confusion, histograms = counts[:, : len(counts)], counts[:, len(counts) :].reshape(len(counts), 2, BINS)
    ranking = multilabel_metrics(histograms)
    right, true, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    measures = {
        "recall": right / np.maximum(true, 1),
        "precision": right / np.maximum(predicted, 1),
        "f1": 2 * right / np.maximum(true + predicted, 1),
    }
    defined = true > 0
    mean = {k: float(v[defined].mean()) if defined.any() else None for k, v in measures.items()}
    accuracy = float(right.sum() / true.sum()) if defined.any() else None
    per_class = {k: [float(x) if d else None for x, d in zip(v, defined, strict=True)] for k, v in measures.items()}
    return {
        "per_class": {**per_class, "auc": ranking["per_class"]["auc"]},
        "macro": {
            "bacc": mean["recall"],
            "f1": mean["f1"],
            "auc": ranking["macro"]["auc"],
            "precision": mean["precision"],
            "accuracy": accuracy,
        },
        "confusion": confusion.tolist(),
        "positives": true.tolist(),
    }
