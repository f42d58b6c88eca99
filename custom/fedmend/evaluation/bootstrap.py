"""Intervals of metrics when patients are drawn again, with all of their images.

Images of one patient are alike, so that intervals that draw images one by one are too narrow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedmend.kinds.multilabel import BINS, RESAMPLES, bins_of, class_measures, interval
from fedmend.kinds.segmentation import DICE_UNIT, SEGMENTATION_COUNTS
from fedmend.kinds.singlelabel import LOG_ODDS, confusion_means, softmax_log_odds
from fedmend.labels import NOT_ANNOTATED

AT_ONCE = 50  # resamples in memory
Interval = list[float] | None


@dataclass(frozen=True)
class Intervals:
    """95 % intervals.

    Attributes:
        macro: name in ``macro`` of the metrics → ends; only what could be measured.
        per_class: name → ends for each of C classes, None where nothing could be measured.
    """

    macro: Mapping[str, list[float]]
    per_class: Mapping[str, Sequence[Interval]]


def multilabel_bootstrap(logits: np.ndarray, labels: np.ndarray, persons: np.ndarray) -> Intervals:
    """Intervals of AUC, average precision, balanced accuracy at 0.5 and calibration error.

    Args:
        logits: (N, C) finite.
        labels: (N, C) int; -1 is left out.
        persons: (N,) int, the patient of each sample.
    """
    rows = _ranked(logits, labels, persons, 1.0)
    return _intervals({("map" if name == "ap" else name): values for name, values in rows.items()}, rows)


def singlelabel_bootstrap(logits: np.ndarray, labels: np.ndarray, persons: np.ndarray) -> Intervals:
    """Intervals of balanced accuracy, F1, precision, accuracy, AUC and calibration error.

    Args:
        logits: (N, C) finite.
        labels: (N, C) int, one-hot; a row of -1 is left out.
        persons: (N,) int, the patient of each sample.
    """
    known = (labels == 1).any(1)
    classes = logits.shape[1]
    cell = labels[known].argmax(1) * classes + logits[known].argmax(1)
    drawn = _drawn_counts(persons[known], cell, classes**2, persons).reshape(-1, classes, classes)
    rows = _ranked(softmax_log_odds(logits) / LOG_ODDS, labels, persons, LOG_ODDS)
    ranked = {name: rows[name] for name in ("auc", "ece")}
    found = _intervals(ranked, ranked)
    filled = drawn[drawn.any((1, 2))]
    means = {name: interval(values) for name, values in confusion_means(filled).items()} if len(filled) else {}
    return Intervals(means | dict(found.macro), found.per_class)


def segmentation_bootstrap(counts: Sequence[np.ndarray], persons: np.ndarray) -> Intervals:
    """Intervals of the mean Dice of slices and of volumes; none of a class that one patient alone has, whose Dice would
    be that of this patient again and again.

    Args:
        counts: V arrays (C, 7), those of :func:`fedmend.kinds.segmentation.segmentation_counts` of each volume alone.
        persons: (V,) int, the patient of each volume.
    """
    column = dict(zip(SEGMENTATION_COUNTS, np.moveaxis(np.stack(counts), 2, 0).astype(float), strict=True))
    owned = np.arange(int(persons.max()) + 1)[:, None] == persons
    times = np.concatenate([*_draws(len(owned))])
    means, rows = {}, {}
    for name, above, below in (("dice", "slice_dice", "slices"), ("volume_dice", "volume_dice", "volumes")):
        sums, number = (times @ (owned @ column[part]) for part in (above, below))
        dice = np.divide(sums / DICE_UNIT, number, out=np.full(sums.shape, np.nan), where=number > 0).T
        having = owned @ column[below] > 0
        if having.any(1).sum() > 1:
            means[name], rows[name] = dice, np.where(having.sum(0)[:, None] > 1, dice, np.nan)
    return _intervals(means, {name: values for name, values in rows.items() if np.isfinite(values).any()})


def _draws(people: int) -> Iterator[np.ndarray]:
    """How often each of P people is drawn, P of them with replacement: (AT_ONCE, P) int64 again and again. One alone is
    never drawn: always the same person would make intervals without width."""
    rng = np.random.default_rng(0)
    for _ in range(RESAMPLES // AT_ONCE):
        yield rng.multinomial(people if people > 1 else 0, np.full(people, 1 / people), size=AT_ONCE)


def _drawn_counts(persons: np.ndarray, cell: np.ndarray, cells: int, everybody: np.ndarray) -> np.ndarray:
    """(RESAMPLES, cells) int64 counts of n samples in their ``cell``, when all of the people ``everybody`` are drawn;
    the same people in every call."""
    from scipy.sparse import csr_matrix

    people = int(everybody.max()) + 1
    owned = csr_matrix((np.ones(len(cell), dtype=np.int64), (cell, persons)), shape=(cells, people))
    return np.concatenate([(owned @ times.T).T for times in _draws(people)])


def _ranked(scores: np.ndarray, labels: np.ndarray, persons: np.ndarray, stretch: float) -> dict[str, np.ndarray]:
    """auc, ap, bacc, ece → (C, RESAMPLES), NaN where a resample has one label value only."""
    bins, rows = bins_of(scores), []
    for c in range(scores.shape[1]):
        known = labels[:, c] != NOT_ANNOTATED
        cell = labels[known, c].astype(np.int64) * BINS + bins[known, c]
        drawn = _drawn_counts(persons[known], cell, 2 * BINS, persons).reshape(-1, 2, BINS).swapaxes(0, 1)
        with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 without one of the label values
            found = class_measures(drawn, None, stretch)
        both = drawn.any(-1).all(0)
        rows.append({name: np.where(both, values, np.nan) for name, values in found.items()})
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _intervals(of_means: Mapping[str, np.ndarray], of_classes: Mapping[str, np.ndarray]) -> Intervals:
    """Of (C, RESAMPLES) values; a mean leaves out classes that a resample cannot measure."""
    macro = {}
    for name, values in of_means.items():
        known = np.isfinite(values)
        some = known.any(0)
        if some.any():
            macro[name] = interval(np.where(known, values, 0.0).sum(0)[some] / known.sum(0)[some])
    return Intervals(macro, {name: [_of_class(row) for row in values] for name, values in of_classes.items()})


def _of_class(values: np.ndarray) -> Interval:
    known = values[np.isfinite(values)]
    return interval(known) if len(known) else None


BOOTSTRAPS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray], Intervals]] = {
    "multilabel": multilabel_bootstrap,
    "singlelabel": singlelabel_bootstrap,
}
