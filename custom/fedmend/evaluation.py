"""Evaluation by mergeable counts: each site counts, the server adds up, nobody sends scores.

Multi-label scores become one histogram of logits per class, positives and negatives apart. AUC and average precision do not
change under the sigmoid, so logits are binned rather than probabilities: a model that gives a rare class only small
probabilities keeps its ranking. Metrics of merged counts equal the pooled ones up to ties within a bin.

Single-label predictions become a confusion matrix, from which its metrics are exact, and for the AUC of each class against the
rest the same histograms, of the log-odds of the softmax probability: they too keep the ranking of small probabilities.

Segmentation becomes sums of Dice over slices and volumes, in millionths so that they are whole numbers, and voxel counts.
"""

from collections.abc import Mapping

import numpy as np

from fedmend.data.manifest import NOT_ANNOTATED, SINGLELABEL

BINS = 1000
DICE_UNIT = 1_000_000  # whole numbers per Dice of 1
# Columns of segmentation counts: slices with lesion, their Dice, volumes with lesion, their Dice, voxels.
SEGMENTATION_COUNTS = ("slices", "slice_dice", "volumes", "volume_dice", "hits", "false_alarms", "misses")
LOGIT_RANGE = 10.0  # logits beyond +-10 (probabilities beyond 0.99995) share the outer bins


def evaluation_counts(logits: np.ndarray, labels: np.ndarray, task: str) -> np.ndarray:
    """What a site sends about a split.

    Args:
        logits: (N, C) finite.
        labels: (N, C) int; 1, 0 or -1 = not annotated, one-hot or a row of -1 for single-label data.
        task: ``multilabel`` or ``singlelabel``.

    Returns:
        int64; (C, 2, BINS) of :func:`score_histograms`, or (C, C + 2 * BINS) for ``singlelabel``: :func:`confusion_matrix` and,
        behind it, the score histograms of half the :func:`softmax_log_odds` with the samples of the other classes as negatives.
    """
    if task != SINGLELABEL:
        return score_histograms(logits, labels)
    # Differences of logits spread twice as wide as logits, hence the half; beyond the range the ranking is lost.
    histograms = score_histograms(softmax_log_odds(logits) / 2, labels)
    return np.hstack([confusion_matrix(logits, labels), histograms.reshape(len(histograms), -1)])


def merged_metrics(counts: np.ndarray) -> dict:
    """Metrics of the sum of what sites sent: :func:`multilabel_metrics`, :func:`singlelabel_metrics` or
    :func:`segmentation_metrics`."""
    if counts.shape[1:] == (len(SEGMENTATION_COUNTS),):
        return segmentation_metrics(counts)
    return singlelabel_metrics(counts) if counts.ndim == 2 else multilabel_metrics(counts)


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
        ``per_class``: auc, ap, bacc → C floats, None for a class with one label value only; ``macro``: auc, map, bacc → mean
        over the other classes, None when there are none; ``positives``, ``negatives``: C counts.
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
        counts: (C, C + 2 * BINS) int64, the sum over sites of :func:`evaluation_counts`.

    Returns:
        ``per_class``: recall, precision, f1, auc (one class against the rest) → C floats, None for a class without a sample, auc
        also for the only class with samples; ``macro``: bacc (mean recall), f1, auc, precision (means over the classes that
        have one), accuracy, None when there is nothing to measure; ``confusion``: the (C, C) matrix; ``positives``: C counts.
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


def segmentation_counts(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray, case: np.ndarray) -> np.ndarray:
    """What a site sends about a split of volumes.

    Args:
        hits: (N,) int, pixels of each slice that are lesion in the prediction and in the mask.
        predicted: (N,) int, pixels that are lesion in the prediction.
        true: (N,) int, pixels that are lesion in the mask.
        case: (N,) int, the volume of each slice.

    Returns:
        (1, 7) int64, columns as in ``SEGMENTATION_COUNTS``. Dice 2|P∩G| / (|P| + |G|) of slices and volumes whose mask has a
        lesion; false alarms of the others count in the voxels, and in the Dice of their volume.
    """
    volumes = [np.bincount(case, weights=value).astype(np.int64) for value in (hits, predicted, true)]
    row = []
    for overlap, found, wanted in ((hits, predicted, true), volumes):
        with_lesion = wanted > 0
        dice = 2 * overlap[with_lesion] / (found + wanted)[with_lesion]
        row += [int(with_lesion.sum()), int(np.rint(dice * DICE_UNIT).sum())]
    row += [int(hits.sum()), int((predicted - hits).sum()), int((true - hits).sum())]
    return np.array([row], dtype=np.int64)


def segmentation_metrics(counts: np.ndarray) -> dict:
    """Dice, precision and recall of merged counts.

    Args:
        counts: (C, 7) int64, the sum over sites of :func:`segmentation_counts`.

    Returns:
        ``per_class``: dice (mean over the slices with lesion), volume_dice (mean over the volumes with lesion), precision and
        recall of lesion voxels → C floats, None where nothing is measured; ``macro``: their means; ``positives``: C slices with
        lesion.
    """
    column = dict(zip(SEGMENTATION_COUNTS, counts.T.astype(float), strict=True))
    parts = {
        "dice": (column["slice_dice"] / DICE_UNIT, column["slices"]),
        "volume_dice": (column["volume_dice"] / DICE_UNIT, column["volumes"]),
        "precision": (column["hits"], column["hits"] + column["false_alarms"]),
        "recall": (column["hits"], column["hits"] + column["misses"]),
    }
    per_class = {
        name: [float(a / b) if b else None for a, b in zip(above, below, strict=True)]
        for name, (above, below) in parts.items()
    }
    known = {name: [v for v in values if v is not None] for name, values in per_class.items()}
    return {
        "per_class": per_class,
        "macro": {name: float(np.mean(values)) if values else None for name, values in known.items()},
        "positives": counts[:, 0].tolist(),
    }


def mask_repair_counts(added: np.ndarray, masks: np.ndarray, complete: np.ndarray | None) -> Mapping[str, np.ndarray]:
    """:func:`repair_counts` of masks.

    Args:
        added: (N, H, W) bool, pixels that repairs made lesion.
        masks: (N, H, W), the site's own annotation.
        complete: (N, H, W) bool, complete masks, or None where they are unknown.

    Returns:
        positive (1,) int64, the others 0; with complete masks also correct_positive and missing, the lesion pixels that the
        site's own annotation lacks.
    """
    counts = {"positive": added.sum(), "negative": 0, "untagged": 0}
    if complete is not None:
        counts |= {
            "correct_positive": (added & complete).sum(),
            "correct_negative": 0,
            "missing": (complete & (masks == 0)).sum(),
        }
    return {k: np.array([v], dtype=np.int64) for k, v in counts.items()}


def repair_counts(repairs: np.ndarray, labels: np.ndarray, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
    """How many labels of each missing class are repaired, and how many of them are right.

    Args:
        repairs: (N, C) int8 from the ledger, -1 = not repaired.
        labels: (N, C) int8 original labels, -1 = not annotated.
        truth: (N, C) int8 complete labels, or None where the truth is unknown.

    Returns:
        positive, negative, untagged: (C,) int64; with a truth also correct_positive, correct_negative.
    """
    positive, negative = repairs == 1, repairs == 0
    counts = {
        "positive": positive.sum(0),
        "negative": negative.sum(0),
        "untagged": ((labels == NOT_ANNOTATED) & (repairs == NOT_ANNOTATED)).sum(0),
    }
    if truth is not None:
        counts["correct_positive"] = (positive & (truth == 1)).sum(0)
        counts["correct_negative"] = (negative & (truth == 0)).sum(0)
    return {k: v.astype(np.int64) for k, v in counts.items()}
