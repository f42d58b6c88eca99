"""What a model decides at its thresholds, and how well its probabilities say how sure it is."""

from collections.abc import Callable

import numpy as np

from fedmend.kinds.multilabel import CALIBRATION_BINS
from fedmend.labels import NOT_ANNOTATED

CONFIDENCE = 0.95


def wilson(successes: int, trials: int) -> list[float] | None:
    """Ends of the 95 % interval of a share after Wilson; None without a trial."""
    from scipy.stats import binomtest

    if not trials:
        return None
    ends = binomtest(successes, trials).proportion_ci(CONFIDENCE, method="wilson")
    return [float(ends.low), float(ends.high)]


def decided(yes: np.ndarray, labels: np.ndarray) -> list[dict]:
    """Counts and shares of decisions, class by class.

    Args:
        yes: (N, C) bool, what the model decides.
        labels: (N, C) int; 1, 0 or -1 = not annotated, which is left out.

    Returns:
        C mappings with ``found``, ``missed``, ``false_alarms`` and ``passed`` (counts), ``sensitivity`` and
        ``specificity`` with their ``_interval`` after Wilson, ``bacc`` (their mean) and ``f1``; None without a sample.
    """
    rows = []
    for c in range(labels.shape[1]):
        positive, negative, answer = labels[:, c] == 1, labels[:, c] == 0, yes[:, c]
        found, missed = int((answer & positive).sum()), int((~answer & positive).sum())
        false_alarms, passed = int((answer & negative).sum()), int((~answer & negative).sum())
        sensitivity = found / (found + missed) if found + missed else None
        specificity = passed / (passed + false_alarms) if passed + false_alarms else None
        both = sensitivity is not None and specificity is not None
        rows.append(
            {
                "found": found,
                "missed": missed,
                "false_alarms": false_alarms,
                "passed": passed,
                "sensitivity": sensitivity,
                "sensitivity_interval": wilson(found, found + missed),
                "specificity": specificity,
                "specificity_interval": wilson(passed, passed + false_alarms),
                "bacc": (sensitivity + specificity) / 2 if both else None,  # type: ignore[operator]  # neither is None
                "f1": 2 * found / (2 * found + missed + false_alarms) if found + missed else None,
            }
        )
    return rows


def calibration(probabilities: np.ndarray, labels: np.ndarray) -> list[dict]:
    """How well probabilities are frequencies, class by class.

    Args:
        probabilities: (N, C) in 0..1.
        labels: (N, C) int; 1, 0 or -1 = not annotated, which is left out.

    Returns:
        C mappings: ``ece``, the mean distance of probability and frequency over 15 equally wide bins, weighted by their
        samples; ``brier``, the mean squared distance of probability and label; ``bins``: mean probability, frequency
        and samples of each bin that has some. None and no bins without a sample.
    """
    return [_calibration(probabilities[:, c], labels[:, c]) for c in range(labels.shape[1])]


def _calibration(probability: np.ndarray, label: np.ndarray) -> dict:
    known = label != NOT_ANNOTATED
    p, y = probability[known].astype(float), label[known].astype(float)
    if not len(p):
        return {"ece": None, "brier": None, "bins": []}
    place = np.minimum((p * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    number, sums, ones = (np.bincount(place, w, minlength=CALIBRATION_BINS) for w in (np.ones_like(p), p, y))
    filled = np.flatnonzero(number)
    bins = [[float(sums[b] / number[b]), float(ones[b] / number[b]), int(number[b])] for b in filled]
    gap = float(np.abs(sums - ones).sum() / len(p))
    return {"ece": gap, "brier": float(np.mean((p - y) ** 2)), "bins": bins}


def auc_of(scores: np.ndarray, labels: np.ndarray) -> float | None:
    """Area under the ROC curve of (n,) scores and labels 1, 0 or -1; None with one label value only."""
    from sklearn.metrics import roc_auc_score

    known = labels != NOT_ANNOTATED
    if len({*labels[known].tolist()}) < 2:
        return None
    return float(roc_auc_score(labels[known], scores[known]))


def pooled(probabilities: np.ndarray, labels: np.ndarray, studies: np.ndarray, *, one_label: bool) -> dict[str, tuple]:
    """Images pooled to studies.

    Args:
        probabilities: (N, C).
        labels: (N, C) int; 1, 0 or -1 = not annotated.
        studies: (N,) int, number of the study of each image; -1 where it is unknown, which is left out.
        one_label: each image has one class.

    Returns:
        ``max`` (not for one label) and ``mean`` → probabilities and labels (S, C) of the studies. A study has a class
        that one of its images has; it lacks one that all of its annotated images lack. Of one label, images of
        different classes leave a study without one.
    """
    numbers = np.unique(studies[studies != NOT_ANNOTATED]).tolist()
    parts = [studies == number for number in numbers]
    whole = np.array([labels[part].max(0) for part in parts]).reshape(-1, labels.shape[1])
    if one_label:
        whole[(whole == 1).sum(1) > 1] = NOT_ANNOTATED
    ways: dict[str, Callable[..., np.ndarray]] = {"mean": np.mean} if one_label else {"max": np.max, "mean": np.mean}
    return {
        name: (np.array([way(probabilities[part], axis=0) for part in parts]).reshape(whole.shape), whole)
        for name, way in ways.items()
    }
