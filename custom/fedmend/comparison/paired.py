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


def paired_difference(values: Sequence[float | None], others: Sequence[float | None]) -> Difference | None:
    """Mean difference of two rows over the seeds, with its 95 % interval by Student's t.

    Args:
        values: fractions of 1, one per seed.
        others: those of another row, in the same order of seeds.

    Returns:
        ``None`` where a seed has no value.
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


def write_comparison(runs: Mapping[str, Sequence[RunFiles]], out: Path, *, metric: str = "") -> str:
    """Writes ``FILES``.

    Args:
        runs: row → finished runs of one job, all rows with the same seeds in the same order; first the method's row.
        out: folder of the files.
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
    texts = (comparison_text(runs, columns), _csv(runs, columns), curves_figure(runs, metric))
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
    return texts[0]


def comparison_text(runs: Mapping[str, Sequence[RunFiles]], columns: Sequence[Column]) -> str:
    """Two tables in Markdown: every row, and what the first one has more than each other one.

    Args:
        runs: see :func:`write_comparison`.
        columns: see :func:`fedmend.report.tables.macro_columns`.
    """
    (method, first), *others = runs.items()
    head = [column.word for column in columns]
    text = "**PHANTOM**, synthetic images that say nothing about patients\n\n" if first[0].info["phantom"] else ""
    seeds = ", ".join(str(run.info["seed"]) for run in first)
    text += f"Final model, {first[0].split} split: points of 100, mean ± sd; seeds {seeds}\n\n"
    rows = [[row, *(shown(*mean_and_sd(c.values(group))) for c in columns)] for row, group in runs.items()]
    text += markdown_table(["row", *head], rows)
    if others:
        text += f"\n{method} minus the other row, mean of the paired differences [95 % t-interval]\n\n"
        differences = [[row, *(str(_difference(first, group, c) or "n/a") for c in columns)] for row, group in others]
        text += markdown_table([f"{method} minus", *head], differences)
    return text


def _difference(first: Sequence[RunFiles], other: Sequence[RunFiles], column: Column) -> Difference | None:
    return paired_difference(column.values(first), column.values(other))


def _csv(runs: Mapping[str, Sequence[RunFiles]], columns: Sequence[Column]) -> str:
    """One line per row and metric; empty where there is no number."""
    first = next(iter(runs.values()))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["row", "metric", "mean", "sd", "difference", "low", "high", "seeds", "phantom"])
    for row, group in runs.items():
        for column in columns:
            found = None if group is first else _difference(first, group, column)
            ends = ["" if x is None else f"{x:.3f}" for x in found or (None, None, None)]
            numbers = [*mean_and_sd(column.values(group), digits=3), *ends]
            phantom = "yes" if group[0].info["phantom"] else "no"
            writer.writerow([row, column.word, *numbers, len(group), phantom])
    return stream.getvalue()
