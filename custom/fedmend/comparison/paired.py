"""A method against other rows on the same seeds: paired differences with their intervals, and curves over rounds."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.special import stdtrit

from fedmend.basics.files import write_text
from fedmend.comparison.curves import curves_figure
from fedmend.errors import FedMendError
from fedmend.records.run_folder import RunFiles
from fedmend.report.tables import Column, macro_columns, markdown_table, mean_and_sd, shown

FILES = ("comparison.md", "comparison.csv", "comparison.svg")
LEVEL = 0.95


class Difference(NamedTuple):
    """Mean of paired differences and its interval in points of 100; ends are ``None`` for a single pair."""

    mean: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        ends = "" if self.low is None else f" [{self.low:.1f}, {self.high:.1f}]"
        return f"{self.mean:+.1f}{ends}"


def per_federation(values: Sequence[float | None], federations: Sequence[int]) -> list[float | None]:
    """Values of runs as those of federations, which are what an interval counts: runs on the same data are not
    independent of each other.

    Args:
        values: one per seed.
        federations: the number of the federation of each seed.

    Returns:
        The mean of each federation, in the order of their first seeds, ``None`` where a run has no value; with one
        federation alone the values of the seeds, which tell how much a training repeats itself.
    """
    numbers = list(dict.fromkeys(federations))
    if len(numbers) < 2:
        return list(values)
    groups = [[v for v, f in zip(values, federations, strict=True) if f == number] for number in numbers]
    known = [[v for v in group if v is not None] for group in groups]
    return [statistics.fmean(k) if len(k) == len(group) else None for k, group in zip(known, groups, strict=True)]


def unit_sentence(federations: Sequence[int]) -> str:
    """What mean, deviation and intervals are over, in words.

    Args:
        federations: the number of the federation of each seed.
    """
    count = len(set(federations))
    if count < 2:
        return "One federation: deviations and intervals are over seeds of the training, not over other data."
    runs = "" if count == len(federations) else f", results of the {len(federations)} seeds averaged on each first"
    return f"{count} federations: deviations and intervals are over federations{runs}."


def paired_difference(values: Sequence[float | None], others: Sequence[float | None]) -> Difference | None:
    """Mean difference of two rows, with its 95 % interval by Student's t.

    Args:
        values: fractions of 1, one per federation, see :func:`per_federation`.
        others: those of another row, in the same order.

    Returns:
        ``None`` where a value is missing.
    """
    pairs = list(zip(values, others, strict=True))
    points = [100 * (a - b) for a, b in pairs if a is not None and b is not None]
    if len(points) < len(pairs):
        return None
    mean, n = statistics.fmean(points), len(points)
    if n == 1:
        return Difference(mean, None, None)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * statistics.stdev(points) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half)


def write_comparison(
    runs: Mapping[str, Sequence[RunFiles]], out: Path, *, federations: Sequence[int], metric: str = ""
) -> str:
    """Writes ``FILES``.

    Args:
        runs: row → finished runs of one job, all rows with the same seeds in the same order; first the method's row.
        out: folder of the files.
        federations: the number of the federation of each seed.
        metric: key of the figure's metric, as in ``metrics.jsonl``; "": the main one of the kind of labels.

    Returns:
        The Markdown.

    Raises:
        FedMendError: runs without an evaluation, or that lack the metric.
    """
    every = [run for group in runs.values() for run in group]
    if not all(run.evaluations for run in every):
        raise FedMendError("compare: expected runs with a test or val split, got one without")
    columns = macro_columns(every)
    texts = (comparison_text(runs, columns, federations), _csv(runs, columns, federations), curves_figure(runs, metric))
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
    return texts[0]


def comparison_text(
    runs: Mapping[str, Sequence[RunFiles]], columns: Sequence[Column], federations: Sequence[int]
) -> str:
    """Two tables in Markdown: every row, and what the first one has more than each other one.

    Args:
        runs: see :func:`write_comparison`.
        columns: see :func:`fedmend.report.tables.macro_columns`.
        federations: see :func:`write_comparison`.
    """
    (method, first), *others = runs.items()
    head = [column.word for column in columns]
    text = "**PHANTOM**, synthetic images that say nothing about patients\n\n" if first[0].info["phantom"] else ""
    seeds = ", ".join(str(run.info["seed"]) for run in first)
    text += f"Final model, {first[0].split} split: points of 100, mean ± sd; seeds {seeds}\n\n"
    text += f"{unit_sentence(federations)}\n\n"
    rows = [
        [row, *(shown(*mean_and_sd(per_federation(c.values(group), federations))) for c in columns)]
        for row, group in runs.items()
    ]
    text += markdown_table(["row", *head], rows)
    if others:
        text += f"\n{method} minus the other row, mean of the paired differences [95 % t-interval]\n\n"
        differences = [
            [row, *(str(_difference(first, group, c, federations) or "n/a") for c in columns)] for row, group in others
        ]
        text += markdown_table([f"{method} minus", *head], differences)
    return text


def _difference(
    first: Sequence[RunFiles], other: Sequence[RunFiles], column: Column, federations: Sequence[int]
) -> Difference | None:
    values, others = (per_federation(column.values(group), federations) for group in (first, other))
    return paired_difference(values, others)


def _csv(runs: Mapping[str, Sequence[RunFiles]], columns: Sequence[Column], federations: Sequence[int]) -> str:
    """One line per row and metric; empty where there is no number."""
    first = next(iter(runs.values()))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["row", "metric", "mean", "sd", "difference", "low", "high", "seeds", "phantom", "federations"])
    for row, group in runs.items():
        for column in columns:
            found = None if group is first else _difference(first, group, column, federations)
            ends = ["" if x is None else f"{x:.3f}" for x in found or (None, None, None)]
            numbers = [*mean_and_sd(per_federation(column.values(group), federations), digits=3), *ends]
            phantom = "yes" if group[0].info["phantom"] else "no"
            writer.writerow([row, column.word, *numbers, len(group), phantom, len(set(federations))])
    return stream.getvalue()
