"""One label per image: its class, or not annotated.

Predictions become a confusion matrix, from which the metrics are exact, and for the AUC of each class against the rest
score histograms as for several labels, of the log-odds of the softmax probability: they keep the ranking of small
probabilities.
"""

import numpy as np
from torch import nn

from fedmend.data.tables import LabelTable
from fedmend.errors import FedMendError
from fedmend.kinds.labels import LabelKind
from fedmend.kinds.multilabel import (
    BINS,
    RESAMPLES,
    interval,
    multilabel_intervals,
    multilabel_metrics,
    score_histograms,
)
from fedmend.labels import ENOUGH, SINGLELABEL
from fedmend.learning.inference import infer
from fedmend.method import Site

LOG_ODDS = 2.0  # in a unit of the binned scores
RANKED = ("auc", "ece")  # from histograms; the others are from the confusion matrix
MACRO = ("bacc", "f1", "auc", "precision", "accuracy", "ece")


class SingleLabel(LabelKind):
    """One label per image. Every class has a place in its column, so a site knows those that it has samples of."""

    name = SINGLELABEL
    one_label = True
    best_metric = "bacc"
    counts_words = f"(C, C + {2 * BINS})"

    def check_values(self, table: LabelTable, where: str) -> None:
        if (found := int((table.labels == 1).any(0).sum())) < 2:
            raise FedMendError(f"{where}, column label: expected at least 2 classes, got {found}")

    def counted(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return singlelabel_counts(logits, labels)

    def opinions(self, model: nn.Module, site: Site) -> np.ndarray:
        return infer(model, site.data.train, site)[1].softmax(1).numpy()

    def counts_shape(self, num_classes: int) -> tuple[int, ...]:
        return (num_classes + 2 * BINS,)

    def parts(self, counts: np.ndarray) -> list[np.ndarray]:
        confusion, histograms = _split(counts)
        return [confusion, *histograms]

    def metrics(self, counts: np.ndarray, chosen_on: np.ndarray | None = None) -> dict:
        return singlelabel_metrics(counts)  # the answer is the class with the highest score, so nothing is chosen

    def few(self, counts: np.ndarray, fewest: int) -> np.ndarray:
        apart = _apart(counts)
        return np.any((apart > 0) & (apart < fewest), axis=0)

    def choosers(self, counts: np.ndarray) -> np.ndarray:
        return _apart(counts).min(0) >= ENOUGH

    def intervals(self, counts: np.ndarray, chosen_on: np.ndarray | None = None) -> dict[str, list[float]]:
        return singlelabel_intervals(counts)

    def known_classes(self, annotated: np.ndarray, positives: np.ndarray) -> np.ndarray:
        return annotated & (positives > 0)

    def repairable(self, annotated: np.ndarray, positives: np.ndarray) -> np.ndarray:
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
    # Differences of logits spread wider than logits, hence the half; beyond the range the ranking is lost.
    histograms = score_histograms(softmax_log_odds(logits) / LOG_ODDS, labels)
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
    """Balanced accuracy, macro F1, AUC, precision, accuracy and calibration error of merged counts.

    Args:
        counts: (C, C + 2 * BINS) int64, the sum over sites of :func:`singlelabel_counts`.

    Returns:
        ``per_class``: recall, precision, f1, auc and ece (one class against the rest, see
        :func:`fedmend.kinds.multilabel.multilabel_metrics`) → C floats, None for a class without a sample, auc and ece
        also for the only class with samples; ``macro``: bacc (mean recall), f1, auc, precision, ece (means over the
        classes that have one), accuracy, None when there is nothing to measure; ``confusion``: the (C, C) matrix;
        ``positives``: C counts.
    """
    confusion, histograms = _split(counts)
    ranking = multilabel_metrics(histograms, stretch=LOG_ODDS)
    true = confusion.sum(1)
    defined = true > 0
    means = {name: float(v) for name, v in confusion_means(confusion).items()} if defined.any() else {}
    means |= {name: ranking["macro"][name] for name in RANKED}
    measured = _measures(confusion).items()
    per_class = {k: [float(x) if d else None for x, d in zip(v, defined, strict=True)] for k, v in measured}
    return {
        "per_class": per_class | {name: ranking["per_class"][name] for name in RANKED},
        "macro": {name: means.get(name) for name in MACRO},
        "confusion": confusion.tolist(),
        "positives": true.tolist(),
    }


def singlelabel_intervals(counts: np.ndarray) -> dict[str, list[float]]:
    """Bootstrap intervals of the means of :func:`singlelabel_metrics`.

    Resampled are the samples of a split; what that leaves out is said in
    :func:`fedmend.kinds.multilabel.multilabel_intervals`, from which those of AUC and calibration error are.

    Args:
        counts: (C, C + 2 * BINS) int64, as there.

    Returns:
        Name in ``macro`` → ends of the 95 % interval; empty when nothing can be measured.
    """
    confusion, histograms = _split(counts)
    total = confusion.sum()
    if not total:
        return {}
    drawn = np.random.default_rng(0).multinomial(total, confusion.ravel() / total, size=RESAMPLES)
    drawn = drawn.reshape(RESAMPLES, *confusion.shape)
    ranked = multilabel_intervals(histograms, stretch=LOG_ODDS)
    found = {name: interval(values) for name, values in confusion_means(drawn).items()}
    found |= {name: ranked[name] for name in RANKED if ranked}
    return {name: found[name] for name in MACRO if name in found}


def _split(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confusion matrix (C, C) and histograms (C, 2, BINS)."""
    return counts[:, : len(counts)], counts[:, len(counts) :].reshape(len(counts), 2, BINS)


def _apart(counts: np.ndarray) -> np.ndarray:
    """(2, C) samples with each class, and with another one."""
    samples = _split(counts)[0].sum(1)
    return np.stack([samples, samples.sum() - samples])


def _measures(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """(..., C) per class, of confusion matrices (..., C, C)."""
    right, true, predicted = np.diagonal(confusion, axis1=-2, axis2=-1), confusion.sum(-1), confusion.sum(-2)
    return {
        "recall": right / np.maximum(true, 1),
        "precision": right / np.maximum(predicted, 1),
        "f1": 2 * right / np.maximum(true + predicted, 1),
    }


def confusion_means(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Means over the classes that have a sample, at least one.

    Args:
        confusion: (..., C, C) counts; rows are true classes.

    Returns:
        bacc, f1, precision, accuracy → (...).
    """
    defined = confusion.sum(-1) > 0
    found = {k: np.where(defined, v, 0.0).sum(-1) / defined.sum(-1) for k, v in _measures(confusion).items()}
    found["bacc"] = found.pop("recall")
    return found | {"accuracy": np.trace(confusion, axis1=-2, axis2=-1) / confusion.sum((-2, -1))}
