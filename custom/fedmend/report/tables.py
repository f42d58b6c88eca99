"""Comparison tables: the final models of several methods over several seeds, as Markdown and CSV."""

import csv
import io
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fedmend.basics.words import inert
from fedmend.errors import FedMendError
from fedmend.records.run_folder import RunFiles, last_rounds
from fedmend.report.kinds import shown_as

TABLES = ("per_class.md", "per_class.csv", "macro.md", "macro.csv")
MACRO = {
    "dice": "Dice",
    "volume_dice": "Volume Dice",
    "auc": "AUC",
    "map": "mAP",
    "accuracy": "Accuracy",
    "f1": "F1",
    "precision": "Precision",
    "recall": "Recall",
    "bacc": "BACC",
    "bacc_val": "BACC, threshold of validation",
    "ece": "Calibration error ↓",
}


ENDINGS = {"_last": "mean of the last ten rounds", "_best": "best"}


class Column(NamedTuple):
    """A number of a run in a table.

    Attributes:
        word: for people.
        value: how it is read; ``None``: not measured.
        key: of the metric; ``_last`` and ``_best`` at its end name the mean of the last rounds and the highest value.
    """

    word: str
    value: Callable[[RunFiles], float | None]
    key: str

    def values(self, runs: Sequence[RunFiles]) -> list[float | None]:
        """One for each run."""
        return [self.value(run) for run in runs]


class Row(NamedTuple):
    """A method in a table.

    Attributes:
        name: of the method.
        cells: for each column what :func:`mean_and_sd` gives over the seeds.
        seeds: number of runs.
        phantom: whether one of them used synthetic images.
    """

    name: str
    cells: Sequence[tuple[str, str]]
    seeds: int
    phantom: bool


def comparison(runs: Mapping[str, Sequence[RunFiles]]) -> dict[str, str]:
    """Tables of the final model on the split that the reports are about, one row per method.

    ``per_class`` has the AUC of each class and their average (as Table 1, Deng et al., MICCAI 2023), ``macro`` the
    metrics over all classes (as Table 2). Where lesions are marked pixel by pixel, ``per_class`` has the Dice of each
    class, and ``macro`` also the mean Dice of the last ten evaluated rounds (as Table 1, Xiang et al., MICCAI 2024),
    of the runs that have ten after the warm-up. Points of 100 with one decimal: mean over the seeds, and their standard
    deviation where there are several. n/a (blank in CSV): not measured in every seed.

    Args:
        runs: method → finished runs, one per seed; at least one of each.

    Returns:
        file name out of ``TABLES`` → text.

    Raises:
        FedMendError: an unfinished run, one without an evaluation, one with other classes or another split than the
            first, or a row of runs that differ in more than the seed, or have the same seed.
    """
    (first, *_), *_ = runs.values()
    for name, group in runs.items():
        _check_row(group, name)
    for name, group in runs.items():
        for run in group:
            _check(run, first, f"table, {name}" + (f", seed {run.info['seed']}" if "seed" in run.info else ""))
    classes, split = first.info["classes"], first.split
    main = shown_as(first).main_metric
    per_class = class_columns(first)
    if len(classes) > 1:
        per_class.append(Column("Average", partial(_final_macro, key=main), main))
    macro = macro_columns([run for group in runs.values() for run in group])
    every = [run for group in runs.values() for run in group]
    said = [text for text in (shown_as(first).thresholds(every), uneven_sentence(every, macro)) if text]
    texts = []
    for title, columns in ((f"{metric_word(main, first)} of each class", per_class), ("Macro metrics", macro)):
        rows = [
            Row(
                name,
                cells=[mean_and_sd(column.values(group)) for column in columns],
                seeds=len(group),
                phantom=any(run.info["phantom"] for run in group),
            )
            for name, group in runs.items()
        ]
        heads = [column.word for column in columns]
        text = _markdown(f"{title}, final model, {split} split", heads, rows)
        if columns is macro:
            text += "".join(f"\n{sentence}.\n" for sentence in said)
        texts += [text, _csv(heads, rows)]
    return dict(zip(TABLES, texts, strict=True))


def uneven_sentence(runs: Sequence[RunFiles], columns: Sequence[Column]) -> str:
    """A sentence without its full stop about means that are not over the same classes in all runs; "": there are none.

    Args:
        runs: of one kind of labels, at least one.
        columns: metrics over all classes.
    """
    kind = shown_as(runs[0])
    words = [c.word for c in columns if len(runs[0].info["classes"]) > 1 and any(kind.uneven(r, c.key) for r in runs)]
    if not words:
        return ""
    return f"{', '.join(words)}: mean over the classes that a model marks at all, which may be others in another row"


def class_columns(run: RunFiles) -> list[Column]:
    """The main metric of each class of the final model, of runs of this one's kind of labels."""
    main = shown_as(run).main_metric
    return [Column(name, partial(_of_class, main, i), name) for i, name in enumerate(run.info["classes"])]


def macro_columns(runs: Sequence[RunFiles]) -> list[Column]:
    """The metrics over all classes that the final model of any of these runs has; then, as papers report some of them,
    the mean of the last rounds (see :func:`fedmend.records.run_folder.last_rounds`) and the highest value of all. Runs
    of too few rounds, such as those of a method without training, have no such mean, and leave that of others alone.

    Args:
        runs: of one kind of labels, at least one.
    """
    # A threshold that no class could choose is told as n/a rather than left out.
    told = (item for run in runs for item in run.evaluations[-1]["macro"].items())
    measured = {k for k, v in told if v is not None or k == "bacc_val"}
    kind = shown_as(runs[0])
    words = {k: word for k, word in {**MACRO, **kind.table_words}.items() if k in measured}
    columns = [Column(word, partial(_final_macro, key=k), k) for k, word in words.items()]
    for key in (metric.macro for metric in kind.last_and_best if metric.macro in measured):
        long = [run for run in runs if last_rounds([run], key)]
        if last := last_rounds(long, key) if long else []:
            word = f"{words[key]}, mean of rounds {last[0]} to {last[-1]}"
            columns.append(Column(word, partial(_mean, key=key, rounds=last), f"{key}_last"))
        columns.append(Column(f"{words[key]}, best", partial(_highest, key=key), f"{key}_best"))
    return columns


def metric_word(key: str, run: RunFiles) -> str:
    """A key of a :class:`Column` in words, as tables of runs of this kind have it."""
    words = {**MACRO, **shown_as(run).table_words}
    ending = next((ending for ending in ENDINGS if key.endswith(ending)), "")
    plain = words.get(key.removesuffix(ending), key)
    return f"{plain}, {ENDINGS[ending]}" if ending else plain


def _final_macro(run: RunFiles, key: str) -> float | None:
    return run.evaluations[-1]["macro"].get(key)


def _of_class(key: str, index: int, run: RunFiles) -> float | None:
    found = run.evaluations[-1]["per_class"].get(key)
    return found[index] if found else None


def _mean(run: RunFiles, key: str, rounds: Sequence[int]) -> float | None:
    found = [value for round_num, value in run.measured(key) if round_num in rounds]
    return statistics.fmean(found) if len(found) == len(rounds) else None


def _highest(run: RunFiles, key: str) -> float | None:
    return max((value for _, value in run.measured(key)), default=None)


def _check(run: RunFiles, first: RunFiles, where: str) -> None:
    if not run.results:
        raise FedMendError(f"{where}: expected finished runs, got one that goes on or was stopped")
    if not run.evaluations:
        raise FedMendError(f"{where}: expected runs with a test or val split, got one without")
    if run.info["classes"] != first.info["classes"]:
        raise FedMendError(f"{where}: expected the classes of the first run, in their order, got others")
    if run.split != first.split:
        raise FedMendError(f"{where}: expected results on the {first.split} split as in the first run, got {run.split}")


def _check_row(group: Sequence[RunFiles], name: str) -> None:
    """A row is one method with one setting, run with different seeds."""
    seeds = [run.info.get("seed") for run in group]
    if len(set(seeds)) < len(seeds):
        raise FedMendError(f"table, {name}: expected runs with different seeds, got the seeds {seeds}")
    first, *others = [run.info.get("settings", {}) for run in group]
    keys = {k for other in others for k in {*first, *other} if first.get(k) != other.get(k)}
    if different := sorted(keys - {"seed", "run_name"}):
        raise FedMendError(f"table, {name}: expected runs that differ in the seed alone, got different {different}")


def mean_and_sd(values: Sequence[float | None], *, digits: int = 1) -> tuple[str, str]:
    """Mean and standard deviation over seeds, in points of 100.

    Args:
        values: fractions of 1, one per seed.
        digits: decimals.

    Returns:
        both in words: "" for both where a seed has no value, "" for the deviation of a single seed.
    """
    points = [100 * value for value in values if value is not None]
    if len(points) < len(values):
        return "", ""
    sd = f"{statistics.stdev(points):.{digits}f}" if len(points) > 1 else ""
    return f"{statistics.mean(points):.{digits}f}", sd


def _markdown(title: str, columns: Sequence[str], rows: Sequence[Row]) -> str:
    text = f"{title}: points of 100, mean ± sd over seeds\n\n"
    if phantoms := ", ".join(row.name for row in rows if row.phantom):
        text += f"**PHANTOM**, synthetic images that say nothing about patients: {_cell(phantoms)}\n\n"
    lines = [[row.name, *(shown(*cell) for cell in row.cells), str(row.seeds)] for row in rows]
    return text + markdown_table(["method", *columns, "seeds"], lines)


def shown(mean: str, sd: str) -> str:
    """A cell for people, of what :func:`mean_and_sd` gives."""
    return f"{mean} ± {sd}" if sd else mean or "n/a"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text under a head, whose first column is a name and whose others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"([\\|<*])", r"\\\1", " ".join(text.split()))


def _csv(columns: Sequence[str], rows: Sequence[Row]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    heads = [inert(word) for name in columns for word in (name, f"{name} sd")]
    writer.writerow(["method", *heads, "seeds", "phantom"])
    for row in rows:
        cells = [text for cell in row.cells for text in cell]
        writer.writerow([inert(row.name), *cells, row.seeds, "yes" if row.phantom else "no"])
    return stream.getvalue()
