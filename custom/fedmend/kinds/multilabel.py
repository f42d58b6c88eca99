"""Several labels per image: each class is there, is not there, or is not annotated.

Each site counts scores, the server adds up, nobody sends scores: one histogram of logits per class, positives and
negatives apart. AUC and average precision do not change under the sigmoid, so logits are binned rather than
probabilities: a model that gives a rare class only small probabilities keeps its ranking. Metrics of merged counts
equal the pooled ones up to ties within a bin.
"""

from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from fedmend.data.manifest import MULTILABEL, NOT_ANNOTATED, LabelTable
from fedmend.data.site import Split
from fedmend.errors import FedMendError
from fedmend.kinds.labels import LabelKind
from fedmend.training import infer

if TYPE_CHECKING:
    from fedmend.method import Site

BINS = 1000
LOGIT_RANGE = 10.0  # logits beyond +-10 (probabilities beyond 0.99995) share the outer bins


class MultiLabel(LabelKind):
    """Several labels per image."""

    name = MULTILABEL
    best_metric = "auc"
    counts_words = f"(C, 2, {BINS})"

    def check_values(self, table: LabelTable, where: str) -> None:
        """Every annotated class needs a prior between 0 and 1."""
        if not table.annotated.any():
            raise FedMendError(f"{where}, header: expected at least one class column, got none")
        for index in np.flatnonzero(table.annotated):
            column = table.labels[:, index]
            known = column[column != NOT_ANNOTATED]
            if not (0 < known.sum() < len(known)):
                got = "only blanks" if not len(known) else f"only {known[0]}"
                raise FedMendError(
                    f"{where}, column {table.classes[index]}: expected both 0 and 1 (a class prior between 0 and 1),"
                    f" got {got}; leave the column out if the class is not annotated here"
                )

    def evaluate(self, model: nn.Module, split: Split, site: "Site") -> np.ndarray:
        """See :func:`score_histograms`."""
        return score_histograms(infer(model, split, site)[1].numpy(), split.labels)

    def counts_shape(self, num_classes: int) -> tuple[int, ...]:
        """See :class:`Kind`."""
        return (2, BINS)

    def parts(self, counts: np.ndarray) -> list[np.ndarray]:
        """The histograms of each class."""
        return list(counts)

    def metrics(self, counts: np.ndarray) -> dict:
        """See :func:`multilabel_metrics`."""
        return multilabel_metrics(counts)


def score_histograms(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts logits per class and label.

    Args:
        logits: (N, C) finite.
        labels: (N, C) int; 1, 0 or -1 = not annotated, which is left out.

    Returns:
        (C, 2, BINS) int64; [:, 0] negatives, [:, 1] positives. The upper half of the bins holds logits > 0, that is
        probabilities > 0.5.
    """
    scaled = (np.clip(logits, -LOGIT_RANGE, LOGIT_RANGE) + LOGIT_RANGE) / (2 * LOGIT_RANGE) * BINS
    bins = np.clip(np.ceil(scaled).astype(np.int64) - 1, 0, BINS - 1)
    bins = np.where(logits > 0, np.maximum(bins, BINS // 2), np.minimum(bins, BINS // 2 - 1))
    counts = np.zeros((logits.shape[1], 2, BINS), dtype=np.int64)
    sample, label_class = np.nonzero(labels != NOT_ANNOTATED)
    np.add.at(counts, (label_class, labels[sample, label_class].astype(np.int64), bins[sample, label_class]), 1)
    return counts


def _auc(negatives: np.ndarray, positives: np.ndarray) -> float:
    below = np.concatenate([[0], np.cumsum(negatives)[:-1]])
    return float((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum()))


def _average_precision(negatives: np.ndarray, positives: np.ndarray) -> float:
    true, false = np.cumsum(positives[::-1]), np.cumsum(negatives[::-1])
    precision = true / np.maximum(true + false, 1)
    return float((positives[::-1] * precision).sum() / positives.sum())


def _balanced_accuracy(negatives: np.ndarray, positives: np.ndarray) -> float:
    half = BINS // 2
    return float((positives[half:].sum() / positives.sum() + negatives[:half].sum() / negatives.sum()) / 2)


_METRICS = {"auc": _auc, "ap": _average_precision, "bacc": _balanced_accuracy}


def multilabel_metrics(counts: np.ndarray) -> dict:
    """AUC, average precision and balanced accuracy at probability 0.5 of merged histograms.

    Args:
        counts: (C, 2, BINS) int64, the sum over sites.

    Returns:
        ``per_class``: auc, ap, bacc → C floats, None for a class with one label value only; ``macro``: auc, map, bacc →
        mean over the other classes, None when there are none; ``positives``, ``negatives``: C counts.
    """
    defined = (counts.sum(-1) > 0).all(1)
    per_class = {
        name: [metric(*counts[c]) if defined[c] else None for c in range(len(counts))]
        for name, metric in _METRICS.items()
    }
    macro = {
        ("map" if name == "ap" else name): float(np.mean([v for v in values if v is not None]))
        if defined.any()
        else None
        for name, values in per_class.items()
    }
    negatives, positives = counts.sum(-1).T.tolist()
    return {"per_class": per_class, "macro": macro, "positives": positives, "negatives": negatives}
