"""Whether the rows of a comparison may be compared: the same data, initial weights and training for each."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedmend.records.run_folder import RunFiles

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A row of the paper's table.

    Attributes:
        title: as in the paper.
        runs: finished runs, one per seed.
        costs: what each of them cost, see :meth:`fl_components.compare.runs.Case.cost`; empty where it is unknown.
        data: what each of them was made on, in any words.
        simple: one of the simple baselines.
        published: metric → number that the paper printed, in points of 100.
        note: why the row trains otherwise than the others, by design.
    """

    title: str
    runs: Sequence[RunFiles]
    costs: Sequence[Mapping]
    data: Sequence[str] = ()
    simple: bool = False
    published: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Fairness:
    """Whether a row may be held against the others, and what a footnote must say about it."""

    comparable: bool
    footnote: str = ""


def judge(rows: Mapping[str, TableRow]) -> dict[str, Fairness]:
    """Row → verdict, by what its runs share with those of the first row with the same seeds.

    Data, initial weights and training (epochs of each site, or optimiser steps where the job counts in steps) must be
    the same; a row whose note says why its training is another one by design is compared nevertheless. Fewer optimiser
    steps in as many epochs, as of a method that leaves samples out, are only said, and so are more passes: a method
    that trains on two views of each sample trains twice in one epoch.
    """
    first = next(iter(rows.values()))
    return {name: _verdict(row, first) for name, row in rows.items()}


def _verdict(row: TableRow, first: TableRow) -> Fairness:
    if not all([*row.costs, *first.costs]):
        return Fairness(False, "not comparable: what its runs, or those of the first row, began with was not recorded")
    pairs = list(zip(row.runs, row.costs, first.runs, first.costs, strict=True))
    if any(_sizes(run) != _sizes(other) for run, _, other, _ in pairs):
        return Fairness(False, "not comparable: other sites or samples than in the first row")
    if row.data != first.data:
        return Fairness(False, "not comparable: other data, or another size of images, than in the first row")
    different = []
    if any(cost["initial_model"] != other["initial_model"] for _, cost, _, other in pairs):
        different.append("other initial weights")
    # All seeds are asked: one of them alone may be another.
    efforts = [(cost, other) for _, cost, _, other in pairs if trained(cost) != trained(other)]
    if efforts:
        here, there = (training(cost) for cost in efforts[0])
        words = f"{here} at a site instead of {there}" if here != there else f"not the same sites trained {here}"
        different.append(words + (f", in {len(efforts)} of {len(pairs)} seeds" if len(efforts) < len(pairs) else ""))
    if different:
        said = f"by design: {row.note};" if row.note else "not comparable:"
        return Fairness(bool(row.note), f"{said} {' and '.join(different)}")
    notes = [f"by design: {row.note}"] if row.note else []
    steps, others = (f"{statistics.fmean(map(mean_steps, costs)):,.1f}" for costs in (row.costs, first.costs))
    if steps != others:
        unit, (steps, others) = trained(row.costs[0])[0], (said.removesuffix(".0") for said in (steps, others))
        notes.append(f"as many {unit} as the first row, but {steps} optimiser steps per site, not {others}")
    seen, usual = f"{mean_passes(row):.1f}", f"{mean_passes(first):.1f}"
    if seen != usual and "nan" not in (seen, usual):
        notes.append(f"{seen} passes per training sample and round, where the first row has {usual}")
    return Fairness(True, "; ".join(notes))


def _sizes(run: RunFiles) -> Mapping:
    return {name: [site.get(split) for split in SPLITS] for name, site in run.info["sites"].items()}


def trained(cost: Mapping) -> tuple[str, Mapping[str, int]]:
    """What each site trained: epochs or steps, and site → how many, by the settings."""
    effort = cost["effort"]
    return effort["unit"], {site: found["rounds"] * effort["per_round"] for site, found in cost["sites"].items()}


def training(*costs: Mapping) -> str:
    """:func:`trained` of one run, or of several, in words."""
    unit, counted = trained(costs[0])[0], [number for cost in costs for number in trained(cost)[1].values()]
    low, high = min(counted, default=0), max(counted, default=0)
    return f"{low:,} {unit}" if low == high else f"{low:,} to {high:,} {unit}"


def mean_steps(cost: Mapping) -> float:
    """Optimiser steps of a site, on average."""
    counted = [found["steps"] for found in cost["sites"].values()]
    return sum(counted) / max(len(counted), 1)


def mean_passes(row: TableRow) -> float:
    """Forward-backward passes of a training sample in a round, mean over sites and runs: each view of a sample and each
    network that is trained on it counts. NaN where it was not recorded."""
    found = []
    for run, cost in zip(row.runs, row.costs, strict=True):
        for site, counted in cost.get("sites", {}).items():
            samples = run.info["sites"][site].get("train", 0) * counted["rounds"]
            found += [counted.get("images", math.nan) / samples] if samples else []
    return statistics.fmean(found) if found else math.nan
