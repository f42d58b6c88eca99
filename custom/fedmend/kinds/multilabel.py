"""Several labels per image: each class is there, is not there, or is not annotated.

Each site counts scores, the server adds up, nobody sends scores: one histogram of logits per class, positives and
negatives apart. AUC and average precision do not change under the sigmoid, so logits are binned rather than
probabilities: a model that gives a rare class only small probabilities keeps its ranking. Metrics of merged counts
equal the pooled ones up to ties within a bin.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from torch import nn

from fedmend.data.tables import LabelTable
from fedmend.errors import FedMendError
from fedmend.kinds.labels import LabelKind
from fedmend.labels import ENOUGH, MULTILABEL, NOT_ANNOTATED
from fedmend.learning.inference import infer
from fedmend.method import Site

BINS = 1000
LOGIT_RANGE = 10.0  # logits beyond +-10 (probabilities beyond 0.99995) share the outer bins
ALL_BINS = np.arange(BINS)
CENTRES = ((np.arange(BINS) + 0.5) / BINS * 2 - 1) * LOGIT_RANGE  # of the bins
CALIBRATION_BINS = 15
RESAMPLES = 500
HOTTEST = 20.0  # temperature; the coldest is its inverse
HALF = 0.5  # threshold of a class with fewer


class MultiLabel(LabelKind):
    """Several labels per image."""

    name = MULTILABEL
    best_metric = "auc"
    lacking = f"fewer than {ENOUGH} positives or negatives"
    counts_words = f"(C, 2, {BINS})"

    def check_values(self, table: LabelTable, where: str) -> None:
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

    def counted(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return score_histograms(logits, labels)

    def opinions(self, model: nn.Module, site: Site) -> np.ndarray:
        return infer(model, site.data.train, site)[1].sigmoid().numpy()

    def counts_shape(self, num_classes: int) -> tuple[int, ...]:
        return (2, BINS)

    def parts(self, counts: np.ndarray) -> list[np.ndarray]:
        return list(counts)

    def metrics(self, counts: np.ndarray, chosen_on: np.ndarray | None = None) -> dict:
        return multilabel_metrics(counts, chosen_on)

    def few(self, counts: np.ndarray, fewest: int) -> np.ndarray:
        samples = counts.sum(-1)
        return np.any((samples > 0) & (samples < fewest), axis=1)

    def choosers(self, counts: np.ndarray) -> np.ndarray:
        return enough(counts)

    def intervals(self, counts: np.ndarray, chosen_on: np.ndarray | None = None) -> dict[str, list[float]]:
        return multilabel_intervals(counts, chosen_on)

    def thresholds(self, counts: np.ndarray) -> dict[str, list]:
        return multilabel_thresholds(counts)

    def calibrated(self, thresholds: Mapping[str, list], counts: np.ndarray, fewest: int) -> dict[str, list]:
        found, reasons = temperatures(counts), too_few(counts, fewest)
        pairs = zip(thresholds["threshold"], thresholds["not_sure"], found, reasons, strict=True)
        chosen = [(HALF, [HALF] * 2) if reason else (cut, band) for cut, band, _, reason in pairs]
        moved = [
            (_cooled(cut, t), [_cooled(end, t) for end in band]) for (cut, band), t in zip(chosen, found, strict=True)
        ]
        return {
            "threshold": [cut for cut, _ in moved],
            "not_sure": [band for _, band in moved],
            "temperature": found,
            "not_fitted": reasons,
        }


def score_histograms(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Counts logits per class and label.

    Args:
        logits: (N, C) finite.
        labels: (N, C) int; 1, 0 or -1 = not annotated, which is left out.

    Returns:
        (C, 2, BINS) int64; [:, 0] negatives, [:, 1] positives. The upper half of the bins holds logits > 0, that is
        probabilities > 0.5.
    """
    bins = bins_of(logits)
    counts = np.zeros((logits.shape[1], 2, BINS), dtype=np.int64)
    sample, label_class = np.nonzero(labels != NOT_ANNOTATED)
    np.add.at(counts, (label_class, labels[sample, label_class].astype(np.int64), bins[sample, label_class]), 1)
    return counts


def bins_of(logits: np.ndarray) -> np.ndarray:
    """The bins of the histograms (..., C) int64 of finite logits (..., C)."""
    scaled = (np.clip(logits, -LOGIT_RANGE, LOGIT_RANGE) + LOGIT_RANGE) / (2 * LOGIT_RANGE) * BINS
    bins = np.clip(np.ceil(scaled).astype(np.int64) - 1, 0, BINS - 1)
    return np.where(logits > 0, np.maximum(bins, BINS // 2), np.minimum(bins, BINS // 2 - 1))


def _auc(negatives: np.ndarray, positives: np.ndarray) -> np.ndarray:
    below = np.cumsum(negatives, -1) - negatives
    return (positives * (below + negatives / 2)).sum(-1) / (positives.sum(-1) * negatives.sum(-1))


def _spread(values: np.ndarray, bins: np.ndarray) -> np.ndarray:
    """(..., BINS) of (..., F) values of F bins, 0 in the others: a sum of fractions depends on where they stand."""
    if len(bins) == BINS:
        return values
    spread = np.zeros((*values.shape[:-1], BINS))
    spread[..., bins] = values
    return spread


def _average_precision(negatives: np.ndarray, positives: np.ndarray, bins: np.ndarray) -> np.ndarray:
    true, false = np.cumsum(positives[..., ::-1], -1), np.cumsum(negatives[..., ::-1], -1)
    precision = true / np.maximum(true + false, 1)
    parts = _spread(positives[..., ::-1] * precision, BINS - 1 - bins[::-1])
    return parts.sum(-1) / positives.sum(-1)


def _balanced_accuracy(negatives: np.ndarray, positives: np.ndarray, cut: int) -> np.ndarray:
    found, passed = positives[..., cut:].sum(-1), negatives[..., :cut].sum(-1)
    return (found / positives.sum(-1) + passed / negatives.sum(-1)) / 2


def _calibration_error(
    negatives: np.ndarray, positives: np.ndarray, stretch: float, bins: np.ndarray = ALL_BINS
) -> np.ndarray:
    probability = 1 / (1 + np.exp(-stretch * CENTRES))
    starts = np.unique(np.searchsorted(probability, np.arange(CALIBRATION_BINS) / CALIBRATION_BINS))
    starts = starts[starts < BINS]  # some of the 15 have no bin of logits, where these are stretched much or little
    both = negatives + positives
    gaps = np.add.reduceat(_spread(positives - both * probability[bins], bins), starts, axis=-1)
    return np.abs(gaps).sum(-1) / both.sum(-1)


def class_measures(
    counts: Iterable[np.ndarray], cut: int | None, stretch: float, bins: np.ndarray = ALL_BINS
) -> dict[str, np.ndarray]:
    """All metrics of one class.

    Args:
        counts: two histograms (..., F), of negatives and of positives.
        cut: first bin of the upper part for ``bacc_val``; None: without it.
        stretch: log-odds in a unit of the binned scores.
        bins: (F,) the bins of the histograms, in order; all others are empty.

    Returns:
        auc, ap, bacc, ece and, with a cut, bacc_val → (...), see :func:`multilabel_metrics`.
    """
    negatives, positives = counts
    found = {
        "auc": _auc(negatives, positives),
        "ap": _average_precision(negatives, positives, bins),
        "bacc": _balanced_accuracy(negatives, positives, int(np.searchsorted(bins, BINS // 2))),
        "ece": _calibration_error(negatives, positives, stretch, bins),
    }
    if cut is not None:
        found["bacc_val"] = _balanced_accuracy(negatives, positives, int(np.searchsorted(bins, cut)))
    return found


def best_cuts(counts: np.ndarray, bins: np.ndarray = ALL_BINS) -> list[int]:
    """Where scores begin to count as the class, so that balanced accuracy is highest.

    Args:
        counts: (C, 2, F) int64, the sum over sites of the histograms of the validation split.
        bins: (F,) the bins of the histograms, in order; all others are empty.

    Returns:
        First bin of the upper part, C numbers; of several that are best the middle one, and probability 0.5 for a class
        that has one label value only.
    """
    negatives, positives = (np.pad(counts[:, i], ((0, 0), (1, 0))) for i in (0, 1))
    passed = np.cumsum(negatives, -1) * positives.sum(-1, keepdims=True)
    missed = np.cumsum(positives, -1) * negatives.sum(-1, keepdims=True)
    first = np.concatenate([[0], bins + 1])  # between two of the bins, one threshold is as good as the other
    width = np.diff(first, append=BINS + 1)
    best = passed - missed == (passed - missed).max(-1, keepdims=True)
    before = np.cumsum(best * width, -1)
    middle = before[:, -1:] // 2
    place = (before <= middle).sum(-1)
    row = np.arange(len(counts))
    cuts = first[place] + width[place] - (before[row, place] - middle[:, 0])
    return np.where(counts.any(-1).all(-1), cuts, BINS // 2).tolist()


def enough(counts: np.ndarray) -> np.ndarray:
    """(C,) bool: the classes with at least ten positives and ten negatives in (C, 2, BINS) int64 histograms."""
    return counts.sum(-1).min(-1) >= ENOUGH


def _cuts(counts: np.ndarray, chosen_on: np.ndarray | None) -> list[int | None]:
    """C thresholds for ``bacc_val``, None for a class that has too few samples in the validation split."""
    if chosen_on is None:
        return [None] * len(counts)
    return [cut if flag else None for cut, flag in zip(best_cuts(chosen_on), enough(chosen_on), strict=True)]


def multilabel_metrics(counts: np.ndarray, chosen_on: np.ndarray | None = None, *, stretch: float = 1.0) -> dict:
    """AUC, average precision, balanced accuracy and calibration error of merged histograms.

    The calibration error of a class is the mean distance of probability and frequency over 15 equally wide bins of
    probability, each weighted by its samples (Eq. (3), Nixon et al., CVPR workshops 2019). Few samples make it large.

    Args:
        counts: (C, 2, BINS) int64, the sum over sites.
        chosen_on: those of the validation split, on which thresholds are chosen; None: there is none.
        stretch: log-odds in a unit of the binned scores.

    Returns:
        ``per_class``: auc, ap, bacc (at probability 0.5), ece and, where there is a validation split, bacc_val (at the
        threshold of :func:`best_cuts`) → C floats, None for a class with one label value only, bacc_val also for a
        class with fewer than ten positives or negatives to choose the threshold by; ``macro``: the same, ap as map →
        mean over the other classes, None when there are none; ``positives``, ``negatives``: C counts.
    """
    cuts = _cuts(counts, chosen_on)
    rows = [class_measures(counts[c], cuts[c], stretch) if counts[c].any(-1).all() else {} for c in range(len(counts))]
    names = ["auc", "ap", "bacc", "ece", *(["bacc_val"] if chosen_on is not None else [])]
    per_class = {name: [float(row[name]) if name in row else None for row in rows] for name in names}
    known = {("map" if k == "ap" else k): [v for v in values if v is not None] for k, values in per_class.items()}
    macro = {name: float(np.mean(values)) if values else None for name, values in known.items()}
    negatives, positives = counts.sum(-1).T.tolist()
    return {"per_class": per_class, "macro": macro, "positives": positives, "negatives": negatives}


def multilabel_intervals(
    counts: np.ndarray, chosen_on: np.ndarray | None = None, *, stretch: float = 1.0
) -> dict[str, list[float]]:
    """Bootstrap intervals of the means of :func:`multilabel_metrics`.

    Resampled are the samples of a split, which counts are enough for. What counts do not tell is left out: samples of
    one patient go together, which makes the true intervals wider, and so do the classes of one sample, which are
    resampled apart; that may make the true ones wider or narrower. Thresholds stay as they are. A resample leaves out a
    class of which it has one label value only.

    Args:
        counts: (C, 2, BINS) int64, as there.
        chosen_on: as there.
        stretch: as there.

    Returns:
        Name in ``macro`` → ends of the 95 % interval; empty when no class can be measured.
    """
    rng, measured = np.random.default_rng(0), np.flatnonzero(counts.any(-1).all(-1)).tolist()
    cuts = _cuts(counts, chosen_on)
    with np.errstate(invalid="ignore"):  # 0 / 0 for such a class
        drawn = [(_resampled(counts[c], rng), cuts[c]) for c in measured]
        rows = [class_measures(histograms, cut, stretch, bins) for (histograms, bins), cut in drawn]
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = np.stack([row[name] for row in rows if name in row])
        known = np.isfinite(values)
        some = known.any(0)
        mean = np.where(known, values, 0.0).sum(0)[some] / known.sum(0)[some]
        found["map" if name == "ap" else name] = interval(mean)
    return found


def _resampled(histograms: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(2, RESAMPLES, F) of (2, BINS): as many samples as before, drawn with replacement; and the F bins with any."""
    bins, total = np.flatnonzero(histograms.any(0)), histograms.sum()
    label, place = np.nonzero(histograms[:, bins])
    drawn = np.zeros((2, RESAMPLES, len(bins)), dtype=np.int64)
    shares = histograms[:, bins][label, place] / total
    drawn[label, :, place] = rng.multinomial(total, shares, size=RESAMPLES).T
    return drawn, bins


def interval(values: np.ndarray) -> list[float]:
    """Ends between which the middle 95 % of (n,) resampled values are."""
    return np.quantile(values, [0.025, 0.975]).tolist()


def multilabel_thresholds(counts: np.ndarray) -> dict[str, list]:
    """The thresholds of :func:`best_cuts` as probabilities, and how far they depend on the samples.

    Args:
        counts: (C, 2, BINS) int64, the sum over sites of the histograms of the validation split.

    Returns:
        ``threshold``: C probabilities, above which a score counts as the class; ``not_sure``: C pairs, the ends of the
        middle 95 % of thresholds of resampled splits; both None for a class with fewer than ten positives or negatives.
        ``positives``, ``negatives``: the C counts that chose.
    """
    rng, cuts = np.random.default_rng(0), _cuts(counts, counts)
    bands: list[list[float] | None] = []
    for cut, histograms in zip(cuts, counts, strict=True):
        if cut is None:
            bands.append(None)
            continue
        drawn, bins = _resampled(histograms, rng)
        both = drawn.swapaxes(0, 1)[drawn.any(-1).all(0)]
        ends = np.quantile(best_cuts(both, bins), [0.025, 0.975], method="nearest")
        bands.append([_probability(int(end)) for end in ends])
    negatives, positives = counts.sum(-1).T.tolist()
    chosen = [None if cut is None else _probability(cut) for cut in cuts]
    return {"threshold": chosen, "not_sure": bands, "positives": positives, "negatives": negatives}


def temperatures(counts: np.ndarray) -> list[float]:
    """Numbers by which logits are divided, so that their probabilities are closer to frequencies; the ranking stays.

    The temperature of a class has the highest likelihood (Guo et al., ICML 2017) on the centres of the bins, where n
    labels count as certain to (n + 1) / (n + 2) (Platt, 1999). It is 1
    where the calibration error would not be lower, and for a class with fewer than ten positives or negatives: the
    likelihood of a few samples says more about chance than about the model.

    Args:
        counts: (C, 2, BINS) int64, the sum over sites of the histograms of the validation split.

    Returns:
        C numbers from 0.05 to 20.
    """
    return [_temperature(*own) if flag else 1.0 for own, flag in zip(counts, enough(counts), strict=True)]


def too_few(counts: np.ndarray, fewest: int) -> list[str]:
    """Why nothing is fitted on a class.

    Args:
        counts: (C, 2, BINS) int64, the sum over sites of the histograms of the validation split.
        fewest: samples that a number may describe; a smaller count is told as a range.

    Returns:
        C texts, such as "7 positives, 10 needed"; empty where there are ten positives and ten negatives.
    """
    found = []
    for negatives, positives in counts.sum(-1).tolist():
        number, word = min((positives, "positive"), (negatives, "negative"), key=lambda pair: pair[0])
        told = f"1 to {fewest - 1}" if 0 < number < fewest else str(number)
        found.append(f"{told} {word}s, {ENOUGH} needed" if number < ENOUGH else "")
    return found


def _temperature(negatives: np.ndarray, positives: np.ndarray) -> float:
    from scipy.optimize import minimize_scalar

    # Where a few samples are told apart, probabilities of 0 and 1 would be the most likely ones.
    certain = 1 - 1 / (np.array([negatives.sum(), positives.sum()]) + 2)
    yes = positives * certain[1] + negatives * (1 - certain[0])
    no = negatives * certain[0] + positives * (1 - certain[1])

    def surprise(log: float) -> float:
        logits = CENTRES * np.exp(-log)
        return float((no * np.logaddexp(0, logits) + yes * np.logaddexp(0, -logits)).sum())

    found = float(np.exp(minimize_scalar(surprise, bounds=np.log(HOTTEST) * np.array([-1, 1]), method="bounded").x))
    cooled, plain = (_calibration_error(negatives, positives, stretch) for stretch in (1 / found, 1.0))
    return found if cooled < plain else 1.0


def _cooled(probability: float, temperature: float) -> float:
    """The probability that the same logit has at a temperature."""
    if probability in (0, 1):
        return probability
    return float(1 / (1 + ((1 - probability) / probability) ** (1 / temperature)))


def _probability(cut: int) -> float:
    """Of the lower edge of a bin; the outer bins have no outer edge."""
    if cut in (0, BINS):
        return float(cut > 0)
    return float(1 / (1 + np.exp((1 - 2 * cut / BINS) * LOGIT_RANGE)))
