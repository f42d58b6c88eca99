"""One model on one split of one site folder: every number that the samples at hand can give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from fedmend.basics.state import StateStore
from fedmend.data.site import Split
from fedmend.data.slices import VolumeSplit
from fedmend.evaluation.bootstrap import BOOTSTRAPS, Intervals, segmentation_bootstrap
from fedmend.evaluation.decisions import auc_of, calibration, decided, pooled
from fedmend.evaluation.groups import REST, Column, held_back
from fedmend.evaluation.held_out import HeldOut, column_of, patients_of, persons_of, studies_of, unit_of
from fedmend.evaluation.masks import Masks, measure_masks
from fedmend.kinds import kind_of
from fedmend.labels import MULTILABEL, SEGMENTATION
from fedmend.method import Site

HELD_BACK = "held back"


@dataclass(frozen=True)
class Judged:
    """A model as it is evaluated.

    Attributes:
        network: on its device, returns (features, logits).
        kind: kind of labels.
        classes: C names.
        thresholds: C probabilities, above which a score counts as the class; of several labels alone.
        temperatures: C numbers > 0, by which logits are divided before they become probabilities; of several labels
            alone.
        batch_size: samples of an inference pass.
    """

    network: nn.Module
    kind: str
    classes: tuple[str, ...]
    thresholds: tuple[float, ...]
    temperatures: tuple[float, ...]
    batch_size: int

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """(N, C) float64 probabilities of (N, C) logits, as ``predict`` gives them."""
        scores = torch.from_numpy(logits).double()
        if self.kind == MULTILABEL:
            return (scores / torch.tensor(self.temperatures).double()).sigmoid().numpy()
        return scores.softmax(1).numpy()

    def decisions(self, probabilities: np.ndarray) -> np.ndarray:
        """(N, C) bool: which classes (N, C) probabilities mean."""
        if self.kind == MULTILABEL:
            return probabilities > np.array(self.thresholds)
        return np.arange(probabilities.shape[1]) == probabilities.argmax(1)[:, None]


@dataclass(frozen=True)
class Measured:
    """What an evaluation has found.

    Attributes:
        counts: (C, ...) int64 of the whole split, as a site of a federation sends them.
        results: name → value of JSON; see :func:`evaluate`.
    """

    counts: np.ndarray
    results: dict[str, Any]


def evaluate(
    judged: Judged, held: HeldOut, columns: Sequence[Column], min_count: int, device: torch.device
) -> Measured:
    """Asks the model about every sample and measures what it says.

    Args:
        judged: the model.
        held: the samples.
        columns: by which subgroups are made.
        min_count: people behind any number of a subgroup, at least.
        device: where the network is.

    Returns:
        Counts and results: ``samples``, ``patients``, ``metrics`` as a run measures them with ``intervals`` over
        samples, ``bootstrap`` over patients, ``decisions``, ``calibration``, ``studies`` or, of masks, ``volumes``, and
        ``groups``. ``decisions``, ``calibration`` and ``volumes`` are lists of C.

    Raises:
        FedMendError: a score that is none, or no column of that name.
    """
    kind, split = kind_of(judged.kind), held.split
    grouped = [column.groups(column_of(split, column.name, held.card.site)) for column in columns]
    places = [(place, len(names)) for names, place in grouped]
    kept = held_back(split, places, min_count, one_label=kind.one_label, told=True)
    site = _site(held, judged.batch_size, device)
    masks = measure_masks(judged.network, split, site) if isinstance(split, VolumeSplit) else None
    scored = kind.scored(judged.network, split, site) if masks is None else masks.pixels
    known = held.patients_known
    counts, every = kind.count(scored, split), np.ones(len(persons_of(split)), dtype=bool)
    results: dict[str, Any] = {
        "samples": len(split),
        "patients": len({*patients_of(split)} - {""}) if known else None,
        "metrics": kind.site_metrics(counts) | {"intervals": kind.intervals(counts)},
        "bootstrap": {"of": "patients" if known else "volumes" if masks else "images"},
        **_part(judged, split, scored, masks, every),
    }
    results["metrics"].pop("held_back")
    results["bootstrap"] |= results.pop("intervals")
    far = [] if masks is None else _few_distances(masks, persons_of(split), places, min_count)
    results["groups"] = {
        column.name: _groups(judged, held, scored, masks, names, place, hidden, far)
        for column, (names, place), hidden in zip(columns, grouped, kept, strict=True)
    }
    return Measured(counts, results)


def _site(held: HeldOut, batch_size: int, device: torch.device) -> Site:
    """What an inference pass wants to know; there is no ledger, and no state is kept."""
    nothing = cast(StateStore, None)
    return Site(held.card.site, device, None, None, nothing, batch_size, autocast=False)


def _part(
    judged: Judged, split: Split | VolumeSplit, scored: np.ndarray, masks: Masks | None, among: np.ndarray
) -> dict[str, Any]:
    """The numbers of the images or volumes ``among`` (M,) bool."""
    if isinstance(split, VolumeSplit) and masks is not None:
        return _of_volumes(split, masks, among)
    labels, persons = cast(Split, split).labels[among], _renumbered(persons_of(split)[among])
    probabilities, single = judged.probabilities(scored[among]), judged.kind != MULTILABEL
    found: dict[str, Any] = {
        "intervals": _as_json(BOOTSTRAPS[judged.kind](scored[among], labels, persons)),
        "decisions": decided(judged.decisions(probabilities), labels),
        "calibration": calibration(probabilities, labels),
    }
    studies = studies_of(cast(Split, split))
    if studies is not None and (studies[among] >= 0).any():
        pools = pooled(probabilities, labels, studies[among], one_label=single)
        found["studies"] = {way: _of_studies(judged, *whole) for way, whole in pools.items()}
    return found


def _of_studies(judged: Judged, probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    classes = range(len(judged.classes))
    auc = [auc_of(probabilities[:, c], labels[:, c]) for c in classes]
    return {"studies": len(labels), "auc": auc, "decisions": decided(judged.decisions(probabilities), labels)}


def _of_volumes(split: VolumeSplit, masks: Masks, among: np.ndarray) -> dict[str, Any]:
    kind, numbers = kind_of(SEGMENTATION), np.flatnonzero(among)
    counts = [kind.count(masks.pixels, split, split.case == number) for number in numbers]
    volumes = [_of_class(masks.lesions[among, c], masks.hd95[among, c]) for c in range(masks.hd95.shape[1])]
    persons = _renumbered(persons_of(split)[among])
    return {"intervals": _as_json(segmentation_bootstrap(counts, persons)), "volumes": volumes}


def _of_class(lesions: np.ndarray, distances: np.ndarray) -> dict[str, Any]:
    found, false, missed = lesions.sum(0).tolist()
    hd95 = distances[np.isfinite(distances)]
    return {
        "volumes": len(distances),
        "hd95": float(hd95.mean()) if len(hd95) else None,
        "hd95_volumes": len(hd95),
        "lesions_found": found,
        "lesions_missed": missed,
        "lesions_false": false,
        "lesion_f1": 2 * found / (2 * found + false + missed) if found + false + missed else None,
    }


def _few_distances(
    masks: Masks, persons: np.ndarray, columns: Sequence[tuple[np.ndarray, int]], fewest: int
) -> list[int]:
    """The classes of which some group has HD95 of 1 to ``fewest`` - 1 people: only volumes in which mask and prediction
    have the class have one. The other groups' would give it away."""
    found = []
    for c, known in enumerate(np.isfinite(masks.hd95).T):
        people = [len(np.unique(persons[known & (place == g)])) for place, groups in columns for g in range(groups + 1)]
        if any(0 < n < fewest for n in people):
            found.append(c)
    return found


def _groups(
    judged: Judged,
    held: HeldOut,
    scored: np.ndarray,
    masks: Masks | None,
    names: Sequence[str],
    place: np.ndarray,
    hidden: np.ndarray,
    far: Sequence[int],
) -> dict[str, Any]:
    """Group → its numbers, or why there are none; ``far``: classes without HD95."""
    split, kind = held.split, kind_of(judged.kind)
    found: dict[str, Any] = {}
    for number, name in enumerate((*names, REST)):
        among, shown = place == number, ~hidden[number]
        if not among.any():
            continue
        if not shown.any():
            found[name] = HELD_BACK
            continue
        counts = kind.count(scored, split, among[unit_of(split)])
        counts = np.where(shown.reshape(-1, *[1] * (counts.ndim - 1)), counts, 0)
        metrics = kind.metrics(counts)
        part = _part(judged, split, scored, masks, among)
        for row in part.get("calibration", ()):
            del row["bins"]  # one of them may be one person
        for c in far:
            part["volumes"][c] |= {"hd95": None, "hd95_volumes": None}
        found[name] = {
            "macro": metrics["macro"],
            "per_class": {k: _shown(v, shown) for k, v in metrics["per_class"].items()},
            **{k: _shown(metrics[k], shown) for k in ("positives", "negatives") if k in metrics},
            **{k: _shown(v, shown) for k, v in part.items() if k not in ("studies", "intervals")},
            "intervals": {"per_class": {k: _shown(v, shown) for k, v in part["intervals"]["per_class"].items()}},
            "held_back": [c for c, flag in zip(judged.classes, shown, strict=True) if not flag],
        }
    return found


def _shown(values: Any, shown: np.ndarray) -> Any:
    """Of a list of C the ones that may be shown, None for the others."""
    if not isinstance(values, list):
        return values
    return [value if flag else None for value, flag in zip(values, shown, strict=True)]


def _renumbered(persons: np.ndarray) -> np.ndarray:
    return np.unique(persons, return_inverse=True)[1]


def _as_json(intervals: Intervals) -> dict[str, Any]:
    return {"macro": dict(intervals.macro), "per_class": {k: list(v) for k, v in intervals.per_class.items()}}
