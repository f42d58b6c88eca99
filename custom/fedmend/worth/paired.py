"""Models side by side on the same samples: metrics, and bootstrap intervals of metrics and of differences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from torch import nn

from fedmend.data.site import Split
from fedmend.errors import FedMendError
from fedmend.kinds import Kind
from fedmend.labels import SEGMENTATION
from fedmend.method import Site

RESAMPLES = 1000
ENDS = [0.025, 0.975]


@dataclass(frozen=True)
class Difference:
    """One model against another.

    Attributes:
        first: name of the model.
        second: name of the other.
        metrics: name → difference first − second, and the ends of its 95 % interval; None where nothing is measured.
    """

    first: str
    second: str
    metrics: Mapping[str, tuple[float, float, float] | None]


@dataclass(frozen=True)
class Compared:
    """Models on one split.

    Attributes:
        samples: images, or slices.
        units: what was resampled: patients, or samples where these are unknown.
        by_patient: patients are known.
        metrics: model → metric → value and the ends of its 95 % interval; None where nothing is measured.
        differences: of each two models.
    """

    samples: int
    units: int
    by_patient: bool
    metrics: Mapping[str, Mapping[str, tuple[float, float, float] | None]]
    differences: Sequence[Difference]


def compare(kind: Kind, models: Mapping[str, nn.Module], split: Any, site: Site, *, seed: int = 0) -> Compared:
    """Measures models on a split. Resampled are its patients, the same for all models, so that what two models share,
    the difficulty of a patient, is not in the interval of their difference.

    Args:
        kind: of the labels.
        models: name → network on the device of the site.
        split: of the kind.
        site: for inference.
        seed: of the resamples.

    Raises:
        FedMendError: a model gives scores that are none, or the split has fewer than two patients.
    """
    check_units(site.name, split)
    units, by_patient = units_of(split)
    groups = [np.flatnonzero(units == unit) for unit in np.unique(units)]
    answers = {name: kind.scored(model, split, site) for name, model in models.items()}
    rng = np.random.default_rng(seed)
    draws = [np.arange(len(split)), *(_drawn(groups, rng) for _ in range(RESAMPLES))]
    found = {name: [_metrics(kind, answer, split, rows) for rows in draws] for name, answer in answers.items()}
    names = list(next(iter(found.values()))[0])
    table = {
        model: {n: np.array([m[n] for m in values], dtype=float) for n in names} for model, values in found.items()
    }
    metrics = {model: {n: _summary(values[n]) for n in names} for model, values in table.items()}
    differences = [
        Difference(a, b, {n: _summary(table[a][n] - table[b][n]) for n in names}) for b, a in combinations(table, 2)
    ]
    return Compared(len(split), len(groups), by_patient, metrics, differences)


def check_units(site: str, split: Any) -> None:
    """Refuses a split on which no models can be compared.

    Args:
        site: name of the site.
        split: of the kind.

    Raises:
        FedMendError: it has fewer than two patients.
    """
    if (found := len(np.unique(units_of(split)[0]))) < 2:
        raise FedMendError(f"{site}: {split.file}: expected at least 2 patients to compare models on, got {found}")


def units_of(split: Any) -> tuple[np.ndarray, bool]:
    """(N,) number of the patient that each sample of a split is of, and whether any is known. A sample of an unknown
    patient is one of its own; so is a volume."""
    if isinstance(split, Split):
        given = list(split.table.patients)
        keys = [patient or f"\0{number}" for number, patient in enumerate(given)]
    else:
        given = [split.items[case].patient for case in split.case.tolist()]
        keys = [patient or f"\0{case}" for case, patient in zip(split.case.tolist(), given, strict=True)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys]), any(given)


def _drawn(groups: Sequence[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Samples of as many patients as there are, drawn with replacement."""
    return np.concatenate([groups[number] for number in rng.integers(0, len(groups), len(groups))])


def _metrics(kind: Kind, answers: np.ndarray, split: Any, rows: np.ndarray) -> Mapping[str, float | None]:
    """Macro metrics of some samples (n,), of which some may be there several times."""
    if kind.name == SEGMENTATION:
        # A volume that is drawn twice is two volumes: its copies begin where its first slice comes again.
        case = split.case[rows]
        starts = np.flatnonzero(np.r_[True, (case[1:] != case[:-1]) | (rows[1:] <= rows[:-1])])
        copies = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(rows)]))
        found = kind.metrics(kind.count(answers[rows], replace(split, case=copies)))
        marked = zip(found["per_class"]["precision"], found["per_class"]["recall"], strict=True)
        if any(precision is None and recall is not None for precision, recall in marked):
            return found["macro"] | {"precision": None}  # models that mark other structures have other means
        return found["macro"]
    return kind.metrics(kind.count(answers, split, rows))["macro"]


def _summary(values: np.ndarray) -> tuple[float, float, float] | None:
    """The value on the split itself, which comes first, and the ends of the middle 95 % of the others."""
    known = values[1:][np.isfinite(values[1:])]
    if not np.isfinite(values[0]) or not len(known):
        return None
    low, high = np.quantile(known, ENDS).tolist()
    return float(values[0]), low, high
