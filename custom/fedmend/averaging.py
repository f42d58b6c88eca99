"""How the models of a round become one.

An average is a pure function: site → :class:`Contribution` in, site → weight out. :class:`Fold` does the
sum, in the order of site names and in float32, so that the last digit does not depend on who answers first. With
:func:`by_samples` the weight of a model is known when it comes, so that the server keeps one sum; any other average
needs all models of the round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedmend.fields import Report

MAJORITY = 3  # sites, of which one alone has no majority
LARGEST_SHARE = 0.5  # of one site in a row of solved classifiers, or in what most samples have
CLASSIFIER = "classifier."  # first letters of the tensors whose first axis is the rows of labels


@dataclass(frozen=True)
class Contribution:
    """What an average may look at of one site's result.

    Attributes:
        samples: N_k.
        report: its fields.
        model: name → array; empty where the average needs none, see :mod:`fedmend.averaging`.
    """

    samples: int
    report: Report
    model: Mapping[str, np.ndarray] = field(default_factory=dict)


Contributions = Mapping[str, Contribution]  # site → what it brings, in sorted order
Average = Callable[[Contributions], Mapping[str, float]]  # → weight of each model, >= 0, not all 0
RowAverage = Callable[[Contributions], Mapping[str, np.ndarray]]  # → (R,) share of each site in every classifier row


def by_samples(contributions: Contributions) -> dict[str, float]:
    """FedAvg: N_k."""
    return {site: float(c.samples) for site, c in contributions.items()}


def capped(samples: Mapping[str, int], most: float) -> dict[str, int]:
    """N_k as they may count in an average, so that no site has it to itself, whatever its census says.

    Args:
        samples: site → N_k.
        most: largest share of one site in the sum, from 0.5 to 1. Below three sites nothing is capped: two are each
            other's only measure, and of two the larger one has more than half.

    Returns:
        site → N_k; of a site with a larger share, as many as give it that share.
    """
    counted = dict(samples)
    for site, own in samples.items() if most < 1 else ():
        others = sum(samples.values()) - own
        if len(samples) >= MAJORITY and own > (largest := most / (1 - most) * others):
            counted[site] = int(largest)
    return counted


def mean_over_sites(
    values: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], unknown: np.ndarray | float = 0.0
) -> np.ndarray:
    """Weighted mean of what sites report, row by row.

    Args:
        values: site → (R,) or (R, F).
        weights: site → (R,) >= 0; 0: the site does not know the row.
        unknown: rows that no site knows, of a shape that broadcasts to that of ``values``.

    Returns:
        (R,) or (R, F) float32. Sites are summed in sorted order.
    """
    total: np.ndarray | float = 0.0
    whole: np.ndarray | float = 0.0
    for site in sorted(values):
        value = values[site].astype(np.float64)
        weight = weights[site].reshape(-1, *[1] * (value.ndim - 1)).astype(np.float64)
        total, whole = total + weight * value, whole + weight
    return np.where(whole > 0, total / np.maximum(whole, 1e-12), unknown).astype(np.float32)


def average_heads(reports: Mapping[str, Report], most: float = LARGEST_SHARE) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the sites' heads, class by class, by their counts.

    Args:
        reports: site → ``head_weights`` (C, F), ``head_biases`` and ``head_counts`` (C,).
        most: largest share of one site in a row where three or more have it.

    Returns:
        (C, F) and (C,) float32; a class that no site has is 0. Sites are summed in sorted order.
    """
    sites = sorted(reports)
    rows = np.stack([np.column_stack([reports[s]["head_weights"], reports[s]["head_biases"]]) for s in sites])
    counts = np.stack([reports[s]["head_counts"] for s in sites])
    for c in range(counts.shape[1]):
        told = {site: int(n) for site, n in zip(sites, counts[:, c], strict=True) if n > 0}
        counts[:, c] = [capped(told, most).get(site, 0) for site in sites]
    share = counts / np.maximum(counts.sum(0), 1)
    mean = np.einsum("sc,scf->cf", share, rows.astype(np.float64)).astype(np.float32)
    return mean[:, :-1], mean[:, -1]


class Fold:
    """sum_k a_k w_k / sum_k a_k over all floating tensors, BatchNorm statistics included.

    Args:
        average: weights a_k; None: :func:`by_samples`.
        rows: shares in each row of the classifier, whose tensors are then averaged by them instead.
    """

    def __init__(self, average: Average | None = None, rows: RowAverage | None = None):
        self._average, self._rows = average or by_samples, rows
        self._contributions: dict[str, Contribution] = {}
        self._classifiers: dict[str, dict[str, np.ndarray]] = {}
        self._total: dict[str, np.ndarray] = {}
        self._weight = 0.0

    def take(self, site: str, samples: int, report: Mapping, model: Mapping[str, np.ndarray]) -> None:
        """Adds a site's result, in sorted order of sites; keeps its model only where the average needs it."""
        if self._rows:
            self._classifiers[site] = {k: v for k, v in model.items() if k.startswith(CLASSIFIER)}
            model = {k: v for k, v in model.items() if not k.startswith(CLASSIFIER)}
        if self._average is by_samples:
            self._add(model, float(samples))
            model = {}
        self._contributions[site] = Contribution(samples, report, model)

    def _add(self, model: Mapping[str, np.ndarray], weight: float) -> None:
        for name, value in model.items():
            part = value * weight
            self._total[name] = self._total[name] + part if name in self._total else part
        self._weight += weight

    def result(self) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """The average, and the share of each site in it; only once, as the sum is used up."""
        weights = dict(self._average(self._contributions))
        if self._average is not by_samples:
            for site, contribution in self._contributions.items():
                if weights[site] > 0:  # a share may vanish in floating point
                    self._add(contribution.model, float(weights[site]))
        model = {name: value * (1.0 / self._weight) for name, value in self._total.items()}
        if self._rows:
            model |= self._row_by_row(self._rows(self._contributions))
        whole = float(np.sum(list(weights.values())))
        return model, {site: float(weight) / whole for site, weight in weights.items()}

    def _row_by_row(self, shares: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        first = next(iter(self._classifiers.values()))
        model = {}
        for name, value in first.items():
            flat = (-1, *[1] * (value.ndim - 1))
            parts = [share.reshape(flat) * self._classifiers[site][name] for site, share in shares.items()]
            model[name] = np.sum(parts, axis=0).astype(value.dtype)
        return model
