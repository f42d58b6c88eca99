"""The paper's table over levels of what is wrong with the data, or over values of a setting: methods × levels."""

import csv
import io
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedmend.basics.files import write_text
from fedmend.basics.words import inert
from fedmend.comparison.paired import difference_cells
from fedmend.comparison.paper_table import PageTable, PaperTable
from fedmend.comparison.table_pages import html_page, latex, markdown
from fedmend.report.tables import mean_and_sd, metric_word, shown

FILES = ("comparison.md", "comparison.csv", "comparison.tex", "comparison.html")


@dataclass(frozen=True)
class LevelTable:
    """The tables of all levels as one; what a level says of costs and rounds stays in its own pages.

    Attributes:
        name: of the job.
        levels: title of a level → its table, at least one; all have the job's own method first.
    """

    name: str
    levels: Mapping[str, PaperTable]

    @cached_property
    def first(self) -> PaperTable:
        """The table of the first level."""
        return next(iter(self.levels.values()))

    @cached_property
    def rows(self) -> dict[str, str]:
        """Row → title, of all levels; one may lack a row that cannot learn from its data."""
        return {name: row.title for table in self.levels.values() for name, row in table.rows.items()}

    @property
    def seeds(self) -> list[int]:
        """Of the first level."""
        return self.first.seeds

    @property
    def phantom(self) -> bool:
        """Whether any image is synthetic."""
        return any(table.phantom for table in self.levels.values())

    @property
    def notes(self) -> list[str]:
        """None: footnotes are about one level and stand on its pages."""
        return []

    @property
    def facts(self) -> list[str]:
        """Sentences above the tables."""
        facts = [f"{len(self.levels)} levels; footnotes, costs and curves of each are in its folder."]
        common = [fact for fact in self.first.facts if all(fact in table.facts for table in self.levels.values())]
        facts += common
        for title, table in self.levels.items():
            facts += [f"{title}: {fact}" for fact in table.facts if fact not in common]
        return facts

    def parts(self) -> list[PageTable]:
        """A table of results for each measure that the paper printed and for the primary one, then differences."""
        wanted = {key for table in self.levels.values() for row in table.rows.values() for key in row.published}
        primary = self.first.primary_key
        keys = [primary] * bool(primary) + sorted(wanted - {primary})
        return [*(self._results(key) for key in keys or [""]), *self._differences()]

    def _results(self, key: str) -> PageTable:
        run = self.first.first.runs[0]
        head, cells = ["method"], [[title] for title in self.rows.values()]
        for level, table in [*self.levels.items(), ("mean", None)]:
            ours = [self._mean(name, key, level) for name in self.rows]
            printed = [self._published(name, key, level) for name in self.rows]
            head += [level] + [f"{level}, published"] * any(printed)
            for name, line, mean, said in zip(self.rows, cells, ours, printed, strict=True):
                line += [_cell(table, name, key) if table else mean] + [said] * any(printed)
        word = f"results-{key.replace('_', '-')}" if key else "results"
        return PageTable(word, f"{metric_word(key, run)}, {run.split} split", head, cells)

    def _mean(self, name: str, key: str, level: str) -> str:
        """Of a row over all levels."""
        if level in self.levels:
            return ""
        means = [_points(table, name, key) for table in self.levels.values()]
        known = [mean for mean in means if mean is not None]
        return f"{statistics.fmean(known):.1f}" if len(known) == len(means) else ""

    def _published(self, name: str, key: str, level: str) -> str:
        """What the paper printed for a row; for ``mean`` that of its levels."""
        among = [self.levels[level]] if level in self.levels else list(self.levels.values())
        found = [table.rows[name].published.get(key) if name in table.rows else None for table in among]
        known = [value for value in found if value is not None]
        return f"{round(statistics.fmean(known), 2):g}" if len(known) == len(found) else ""

    def _differences(self) -> list[PageTable]:
        """Of the primary measure: each row minus the strongest simple baseline of the level."""
        if not any(table.reference[0] for table in self.levels.values()):
            return []
        words = {level: metric_word(table.primary_key, table.first.runs[0]) for level, table in self.levels.items()}
        own_word, rows = next(iter(words.values())), []
        for name, title in self.rows.items():
            cells = []
            for table in self.levels.values():
                own = name in table.rows and name != table.reference[0]
                found = zip(table.columns, table.differences(name) if own else [], strict=False)
                key = table.primary_key
                cells.append(next((difference_cells([d], [c], key)[0] for c, d in found if c.key == key), ""))
            rows.append([title, *cells])
        caption = f"{own_word}: row minus the strongest simple baseline of the level, mean of the paired differences"
        # Runs of a level may be too short for a mean of the last rounds.
        heads = [level if word == own_word else f"{level}, {word}" for level, word in words.items()]
        return [PageTable("differences", f"{caption} [95 % t-interval]", ["method", *heads], rows)]

    def csv(self) -> str:
        """The lines of all levels under one head, each with its level."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        for place, (level, table) in enumerate(self.levels.items()):
            head, *lines = csv.reader(io.StringIO(table.csv()))
            writer.writerows([["level", *head]] if not place else [])
            writer.writerows([inert(level), *line] for line in lines)
        return stream.getvalue()


def _values(table: PaperTable, name: str, key: str) -> list[float | None]:
    column = next((column for column in table.columns if column.key == key), None)
    return table.values(name, column) if column and name in table.rows else [None]


def _cell(table: PaperTable, name: str, key: str) -> str:
    return shown(*mean_and_sd(_values(table, name, key)))


def _points(table: PaperTable, name: str, key: str) -> float | None:
    found = _values(table, name, key)
    values = [value for value in found if value is not None]
    return 100 * statistics.fmean(values) if len(values) == len(found) else None


def write_level_table(table: LevelTable, out: Path) -> str:
    """Writes ``FILES`` into a folder and returns the Markdown."""
    texts = (markdown(table), table.csv(), latex(table), html_page(table, ""))
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
    return texts[0]
