"""The paper's table: rows beside the strongest simple baseline and the published numbers, and what each cost."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from fedmend.basics.page import duration
from fedmend.basics.words import inert
from fedmend.comparison.curves import curves_figure
from fedmend.comparison.fairness import Fairness, TableRow, judge, mean_passes, mean_steps, training
from fedmend.comparison.paired import (
    Difference,
    difference_cells,
    difference_numbers,
    differences,
    per_federation,
    primary_key,
    primary_sentence,
    unit_sentence,
)
from fedmend.report.kinds import shown_as
from fedmend.report.tables import Column, class_columns, macro_columns, mean_and_sd, metric_word, shown, uneven_sentence

MEGABYTE = 1e6


class PageTable(NamedTuple):
    """One table of the page: its word, its caption, its head, and rows of text whose first word names the row."""

    word: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class PaperTable:
    """What a comparison has to say.

    Attributes:
        name: of the job.
        rows: name → row; first the method's own. All have the same seeds in the same order.
        source: where the published numbers are from; "": there are none.
        left_out: title of a row → why it is not there.
        incomplete: seeds for which there was no time.
        metric: key of the figure's metric; "": the main one of the kind of labels.
        primary: key of the primary measure that the job names, see :func:`fedmend.comparison.paired.primary_key`.
        federations: the number of the federation of each seed.
        of_classes: the paper's numbers class by class, row → class → points of 100; None: single classes are not asked
            for.
    """

    name: str
    rows: Mapping[str, TableRow]
    source: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    incomplete: Sequence[int] = ()
    metric: str = ""
    primary: str = ""
    federations: Sequence[int] = ()
    of_classes: Mapping[str, Mapping[str, float]] | None = None

    @cached_property
    def verdicts(self) -> Mapping[str, Fairness]:
        """Row → whether it may be compared."""
        return judge(self.rows)

    @cached_property
    def columns(self) -> list[Column]:
        """The metrics."""
        return macro_columns([run for row in self.rows.values() for run in row.runs])

    @property
    def first(self) -> TableRow:
        """The method's row."""
        return next(iter(self.rows.values()))

    @property
    def phantom(self) -> bool:
        """Whether any image is synthetic."""
        return any(run.info["phantom"] for row in self.rows.values() for run in row.runs)

    @property
    def seeds(self) -> list[int]:
        """Of every row."""
        return [run.info["seed"] for run in self.first.runs]

    @cached_property
    def reference(self) -> tuple[str, str]:
        """The strongest simple baseline, and how it was chosen; "" and why where there is none.

        The split is the one that is reported, and the measure the primary one: the choice can only favour the baseline.
        Sites' validation splits have the labels that sites have, often of few patients, and order methods at random.
        """
        column = next((column for column in self.columns if column.key == self.primary_key), None)
        among = [name for name, row in self.rows.items() if row.simple and self.verdicts[name].comparable]
        if not among:
            return "", "no simple baseline with these data, weights and epochs is among the rows"
        if column is None:
            return "", "the primary measure was not measured"
        values = {name: self.values(name, column) for name in among}
        means = {n: statistics.fmean(v for v in own if v is not None) for n, own in values.items() if None not in own}
        if unknown := [self.rows[name].title for name in among if name not in means]:
            return "", f"{column.word} of {', '.join(unknown)} could not be measured in every seed"
        best = max(means, key=means.__getitem__)
        return best, f"that with the best {column.word} on the {self.first.runs[0].split} split, the hardest to beat"

    @cached_property
    def notes(self) -> list[str]:
        """Footnotes, by number from 1."""
        return list(dict.fromkeys(v.footnote for v in self.verdicts.values() if v.footnote))

    def title(self, name: str) -> str:
        """Of a row, with the number of its footnote."""
        note = self.verdicts[name].footnote
        return self.rows[name].title + (f" [{self.notes.index(note) + 1}]" if note else "")

    @cached_property
    def primary_key(self) -> str:
        """Of the primary measure; "": it was not measured."""
        return primary_key(self.primary, self.columns, self.first.runs[0])

    def differences(self, name: str) -> list[Difference | None]:
        """What a row has more than the strongest simple baseline in each measure; ``None`` where they cannot be
        compared."""
        best = self.reference[0]
        if not best or name == best or not self.verdicts[name].comparable:
            return [None] * len(self.columns)
        runs, others = self.rows[name].runs, self.rows[best].runs
        return differences(runs, others, self.columns, self.federations, self.primary_key)

    def values(self, name: str, column: Column) -> list[float | None]:
        """Of a row: one per federation, or per seed where there is one federation."""
        return per_federation(column.values(self.rows[name].runs), self.federations)

    @cached_property
    def facts(self) -> list[str]:
        """Sentences above the tables."""
        first, seeds = self.first.runs[0], ", ".join(map(str, self.seeds))
        facts = [f"Points of 100, mean ± sd; seeds {seeds}; {len(first.info['sites'])} sites."]
        facts.append(unit_sentence(self.federations))
        if self.incomplete:
            facts.append(f"Seeds that are not complete and left out: {', '.join(map(str, self.incomplete))}.")
        best, how = self.reference
        facts.append(
            f"Strongest simple baseline: {self.rows[best].title}, {how}." if best else f"No differences: {how}."
        )
        if best:
            facts.append(primary_sentence(self.primary_key, self.columns))
        if self.source:
            facts.append(
                f"Columns marked 'published' are the numbers that the paper printed ({self.source}): on its own data,"
                " splits, network and schedule, each a single figure; not measured here."
            )
        every = [run for row in self.rows.values() for run in row.runs]
        said = (shown_as(first).thresholds(every), uneven_sentence(every, self.columns))
        facts += [f"{sentence}." for sentence in said if sentence]
        facts += [f"Left out: {title}: {why}." for title, why in self.left_out.items()]
        return facts

    def parts(self) -> list[PageTable]:
        """Results, those of single classes where they are asked for, differences and costs."""
        return [part for part in (self._results(), self._classes(), self._differences(), self._costs()) if part.rows]

    def _results(self) -> PageTable:
        head, cells = ["method"], [[self.title(name)] for name in self.rows]
        wanted = {key for row in self.rows.values() for key in row.published}
        for column in self.columns:
            head.append(column.word)
            for line, name in zip(cells, self.rows, strict=True):
                line.append(shown(*mean_and_sd(self.values(name, column))))
            if column.key in wanted:
                wanted.remove(column.key)
                self._add_published(column.key, column.word, head, cells)
        for key in sorted(wanted):
            self._add_published(key, metric_word(key, self.first.runs[0]), head, cells)
        return PageTable("results", f"Final model, {self.first.runs[0].split} split", head, cells)

    def _classes(self) -> PageTable:
        """The main measure of each class, beside the paper's."""
        run, head = self.first.runs[0], ["method"]
        if self.of_classes is None:
            return PageTable("classes", "", head, [])
        key, cells = shown_as(run).main_metric, [[self.title(name)] for name in self.rows]
        for column in class_columns(run):
            printed = [self.of_classes.get(name, {}).get(column.word) for name in self.rows]
            known = any(value is not None for value in printed)
            head += [column.word] + [f"{column.word}, published"] * known
            for line, name, value in zip(cells, self.rows, printed, strict=True):
                line.append(shown(*mean_and_sd(self.values(name, column))))
                line += ["" if value is None else f"{value:g}"] * known
        return PageTable("classes", f"{metric_word(key, run)} of each class", head, cells)

    def _add_published(self, key: str, word: str, head: list[str], cells: list[list[str]]) -> None:
        head.append(f"{word}, published")
        for line, row in zip(cells, self.rows.values(), strict=True):
            line.append(f"{row.published[key]:g}" if key in row.published else "")

    def _differences(self) -> PageTable:
        best = self.reference[0]
        caption = f"Row minus {self.rows[best].title}: mean of the paired differences [95 % t-interval]" if best else ""
        rows = [
            [self.title(name), *difference_cells(self.differences(name), self.columns, self.primary_key)]
            for name in self.rows
            if best and name != best
        ]
        return PageTable("differences", caption, ["method", *(column.word for column in self.columns)], rows)

    def _costs(self) -> PageTable:
        head = [
            "method",
            "training at a site",
            "optimiser steps at a site",
            "passes per sample and round",
            "time of a run",
        ]
        head += ["MB sent and received by a site", "peak memory of the process of a run, MB"]
        rows = []
        for name, row in self.rows.items():
            cells = ["n/a"] * 6
            if cost := costs_of(row):
                cells = [cost.training, f"{cost.steps:,.0f}", _passes(cost.passes), duration(cost.seconds)]
                cells += [f"{cost.megabytes:,.1f}", f"{cost.memory:,.0f}"]
            rows.append([self.title(name), *cells])
        return PageTable("costs", "What a run took, mean over its seeds; of the memory the largest", head, rows)

    def figure(self) -> str:
        """Curves of all rows; see :func:`fedmend.comparison.curves.curves_figure`."""
        return curves_figure({row.title: row.runs for row in self.rows.values()}, self.metric)

    def csv(self) -> str:
        """One line per row and metric, then per class where these are asked for; empty where there is no number."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        head = "row,title,metric,mean,sd,difference,low,high,published,simple,comparable,seeds,phantom"
        count = len(set(self.federations))
        head += ",training,steps,seconds,megabytes,memory_megabytes,federations,p,primary,passes"
        writer.writerow(head.split(","))
        for name, row in self.rows.items():
            cost = costs_of(row)
            cells = [cost.training, *(f"{value:.1f}" for value in cost[1:5])] if cost else [""] * 5
            passes = _passes(cost.passes) if cost else ""
            missing = sorted(set(row.published) - {column.key for column in self.columns})
            found = dict(zip((column.key for column in self.columns), self.differences(name), strict=True))
            classes = self._class_lines(name)
            printed = {**row.published, **{column.key: said for column, said in classes.items()}}
            lines = [*self.columns, *(Column(metric_word(k, row.runs[0]), lambda run: None, k) for k in missing)]
            for column in [*lines, *classes]:
                *ends, p = difference_numbers(found.get(column.key))
                numbers = [*mean_and_sd(self.values(name, column), digits=3), *ends, printed.get(column.key, "")]
                flags = [_flag(row.simple), _flag(self.verdicts[name].comparable)]
                last = [len(row.runs), _flag(self.phantom)]
                ours = [count, p, _flag(column.key == self.primary_key), passes]
                writer.writerow([inert(name), inert(row.title), column.word, *numbers, *flags, *last, *cells, *ours])
        return stream.getvalue()

    def _class_lines(self, name: str) -> dict[Column, float | str]:
        """The columns of single classes, named with their metric, and what the paper printed for a row; "": nothing."""
        if self.of_classes is None:
            return {}
        run, printed = self.first.runs[0], self.of_classes.get(name, {})
        word = metric_word(shown_as(run).main_metric, run)
        named = {column: f"{word}, {column.word}" for column in class_columns(run)}
        return {column._replace(word=said, key=said): printed.get(column.key, "") for column, said in named.items()}


class Costs(NamedTuple):
    """Means over the runs of a row: training, optimiser steps, seconds, megabytes of a site, megabytes of memory, and
    forward-backward passes of a training sample in a round, NaN where they were not recorded."""

    training: str
    steps: float
    seconds: float
    megabytes: float
    memory: float
    passes: float


def costs_of(row: TableRow) -> Costs | None:
    """What the runs of a row cost; ``None`` where one was not measured."""
    if not all(row.costs):
        return None

    def mean(value: Callable[[Mapping], float]) -> float:
        return statistics.fmean(value(cost) for cost in row.costs)

    def travelled(cost: Mapping) -> float:
        sites = cost["sites"].values()
        return sum(site["sent"] + site["received"] for site in sites) / max(len(sites), 1) / MEGABYTE

    memory = max(cost["peak_memory"] for cost in row.costs) / MEGABYTE
    return Costs(
        training(*row.costs),
        mean(mean_steps),
        mean(lambda c: c["seconds"]),
        mean(travelled),
        memory,
        mean_passes(row),
    )


def _passes(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.1f}"


def _flag(value: bool) -> str:
    return "yes" if value else "no"
