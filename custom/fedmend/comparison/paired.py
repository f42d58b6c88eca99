"""A method against other rows on the same seeds: paired differences with their intervals, and curves over rounds."""

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.special import stdtr, stdtrit

from fedmend.basics.files import write_text
from fedmend.basics.words import inert
from fedmend.comparison.curves import curves_figure
from fedmend.errors import FedMendError
from fedmend.records.run_folder import RunFiles
from fedmend.report.kinds import shown_as
from fedmend.report.tables import Column, macro_columns, markdown_table, mean_and_sd, shown, uneven_sentence

FILES = ("comparison.md", "comparison.csv", "comparison.svg")
LEVEL = 0.95
ALIKE = 1e-9  # points; deviations below it are of the computer's numbers


class Difference(NamedTuple):
    """Mean of paired differences and its 95 % interval in points of 100, and the p-value of a two-sided t-test; all but
    the mean are ``None`` for a single pair, and where all pairs differ by the same, which says nothing of others."""

    mean: float
    low: float | None
    high: float | None
    p: float | None = None

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
    """Mean difference of two rows, with its 95 % interval and p-value by Student's t.

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
    sd = statistics.stdev(points)
    if sd < ALIKE:
        return Difference(mean, None, None) if abs(mean) > ALIKE else Difference(0.0, 0.0, 0.0, 1.0)
    error = sd / math.sqrt(n)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    return Difference(mean, mean - half, mean + half, 2 * float(stdtr(n - 1, -abs(mean) / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values that hold for all tests together (Holm, Scandinavian Journal of Statistics 1979), in the same order."""
    corrected, least = [0.0] * len(p_values), 0.0
    for place, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, (len(p_values) - place) * p_values[i])
        corrected[i] = min(least, 1.0)
    return corrected


def differences(
    runs: Sequence[RunFiles],
    others: Sequence[RunFiles],
    columns: Sequence[Column],
    federations: Sequence[int],
    primary: str,
) -> list[Difference | None]:
    """What one row has more than another in each measure, ``None`` where it was not measured.

    Args:
        runs: of the row, one per seed.
        others: of the other row, with the same seeds in the same order.
        columns: the measures.
        federations: the number of the federation of each seed.
        primary: key of the primary measure, whose p-value stays as it is; those of the others are corrected.
    """
    rows = [[per_federation(_even(c, group), federations) for c in columns] for group in (runs, others)]
    found = [paired_difference(a, b) for a, b in zip(*rows, strict=True)]
    family = [
        i for i, (c, d) in enumerate(zip(columns, found, strict=True)) if c.key != primary and d and d.p is not None
    ]
    together = dict(zip(family, holm([d.p for i in family if (d := found[i]) and d.p is not None]), strict=True))
    return [d._replace(p=together[i]) if d and i in together else d for i, d in enumerate(found)]


def _even(column: Column, runs: Sequence[RunFiles]) -> list[float | None]:
    """Values of runs, ``None`` for a mean that leaves out classes which that of another row may have."""
    uneven = [len(run.info["classes"]) > 1 and shown_as(run).uneven(run, column.key) for run in runs]
    return [None if flag else value for flag, value in zip(uneven, column.values(runs), strict=True)]


def difference_cells(found: Sequence[Difference | None], columns: Sequence[Column], primary: str) -> list[str]:
    """Differences for a table: mean and interval, and the p-value of measures other than the primary one."""
    cells = []
    for difference, column in zip(found, columns, strict=True):
        p = "" if not difference or difference.p is None or column.key == primary else f", p {difference.p:.2g}"
        cells.append(f"{difference}{p}" if difference else "n/a")
    return cells


def primary_key(wanted: str, columns: Sequence[Column], run: RunFiles) -> str:
    """Key of the primary measure of a comparison.

    Args:
        wanted: that of the job; "": it names none, and that counts which chooses the best model.
        columns: what was measured; where runs are too short for a mean of the last rounds, the final value counts.
        run: one of the runs.

    Returns:
        "" where it was not measured.
    """
    from fedmend.kinds import kind_of

    plain = wanted.removesuffix("_last").removesuffix("_best") or kind_of(shown_as(run).name).best_metric
    known = [column.key for column in columns]
    return next((key for key in (wanted, plain) if key in known), "")


def primary_sentence(primary: str, columns: Sequence[Column]) -> str:
    """What intervals and p-values of a table hold for, in words."""
    corrected = "two-sided t-tests, Holm's correction over the other measures of the row"
    word = next((column.word for column in columns if column.key == primary), "")
    return f"Primary measure: {word or 'none was measured'}. p of the other measures: {corrected}."


def write_comparison(
    runs: Mapping[str, Sequence[RunFiles]],
    out: Path,
    *,
    federations: Sequence[int],
    metric: str = "",
    primary: str = "",
) -> str:
    """Writes ``FILES``.

    Args:
        runs: row → finished runs of one job, all rows with the same seeds in the same order; first the method's row.
        out: folder of the files.
        federations: the number of the federation of each seed.
        metric: key of the figure's metric, as in ``metrics.jsonl``; "": the main one of the kind of labels.
        primary: key of the primary measure, see :func:`primary_key`.

    Returns:
        The Markdown.

    Raises:
        FedMendError: runs without an evaluation, or that lack the metric.
    """
    every = [run for group in runs.values() for run in group]
    if not all(run.evaluations for run in every):
        raise FedMendError("compare: expected runs with a test or val split, got one without")
    columns = macro_columns(every)
    found = Paired(runs, columns, federations, primary_key(primary, columns, every[0]))
    texts = (comparison_text(found), _csv(found), curves_figure(runs, metric))
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
    return texts[0]


class Paired(NamedTuple):
    """What the two tables of a comparison are made from: row → runs, measures, the number of the federation of each
    seed, the key of the primary measure."""

    runs: Mapping[str, Sequence[RunFiles]]
    columns: Sequence[Column]
    federations: Sequence[int]
    primary: str

    def values(self, row: str, column: Column) -> list[float | None]:
        """One per federation, see :func:`per_federation`."""
        return per_federation(column.values(self.runs[row]), self.federations)

    def differences(self, row: str) -> list[Difference | None]:
        """What the first row has more than another one, see :func:`differences`."""
        first = next(iter(self.runs.values()))
        return differences(first, self.runs[row], self.columns, self.federations, self.primary)


def comparison_text(found: Paired) -> str:
    """Two tables in Markdown: every row, and what the first one has more than each other one."""
    method, *others = found.runs
    first, columns = found.runs[method], found.columns
    head = [column.word for column in columns]
    text = "**PHANTOM**, synthetic images that say nothing about patients\n\n" if first[0].info["phantom"] else ""
    seeds = ", ".join(str(run.info["seed"]) for run in first)
    text += f"Final model, {first[0].split} split: points of 100, mean ± sd; seeds {seeds}\n\n"
    text += f"{unit_sentence(found.federations)}\n\n"
    rows = [[row, *(shown(*mean_and_sd(found.values(row, c))) for c in columns)] for row in found.runs]
    text += markdown_table(["row", *head], rows)
    every = [run for group in found.runs.values() for run in group]
    for said in filter(None, (shown_as(first[0]).thresholds(every), uneven_sentence(every, columns))):
        text += f"\n{said}.\n"
    if others:
        text += f"\n{method} minus the other row, mean of the paired differences [95 % t-interval]\n\n"
        text += f"{primary_sentence(found.primary, columns)}\n\n"
        minus = [[row, *difference_cells(found.differences(row), columns, found.primary)] for row in others]
        text += markdown_table([f"{method} minus", *head], minus)
    return text


def _csv(found: Paired) -> str:
    """One line per row and metric; empty where there is no number."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    head = "row,metric,mean,sd,difference,low,high,seeds,phantom,federations,p,primary"
    writer.writerow(head.split(","))
    for place, (row, group) in enumerate(found.runs.items()):
        paired = found.differences(row) if place else [None] * len(found.columns)
        for column, difference in zip(found.columns, paired, strict=True):
            *ends, p = difference_numbers(difference)
            numbers = [*mean_and_sd(found.values(row, column), digits=3), *ends]
            phantom = "yes" if group[0].info["phantom"] else "no"
            last = [len(set(found.federations)), p, "yes" if column.key == found.primary else "no"]
            writer.writerow([inert(row), column.word, *numbers, len(group), phantom, *last])
    return stream.getvalue()


def difference_numbers(found: Difference | None) -> list[str]:
    """Mean, ends of the interval and p-value for a CSV file; "" for what there is not."""
    *ends, p = found or (None, None, None, None)
    return [*("" if x is None else f"{x:.3f}" for x in ends), "" if p is None else f"{p:.3g}"]
