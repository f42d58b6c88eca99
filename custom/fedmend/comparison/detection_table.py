"""How often rules find exactly the noisy sites of a federation: FedNoRo's Table 3, over federations and levels."""

import csv
import io
import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedmend.basics.files import write_text
from fedmend.basics.words import inert
from fedmend.comparison.paired import per_federation, unit_sentence
from fedmend.comparison.paper_table import PageTable
from fedmend.comparison.table_pages import html_page, latex, markdown
from fedmend.records.run_folder import RunFiles
from fedmend.report.tables import mean_and_sd, shown

FILES = ("comparison.md", "comparison.csv", "comparison.tex", "comparison.html")
RULES, OWN_RULE = "detection_rules", "noisy_client_detection"  # decisions of runs
MEASURES = {
    "exact": "exactly the noisy sites",
    "recall": "recall",
    "precision": "precision",
    "vote_share": "mean share of the votes",
}


@dataclass(frozen=True)
class Found:
    """What a rule has made of the sites in one run.

    Attributes:
        sites: those that it takes for noisy.
        vote_share: share of the mixtures that found this set.
        noisy: those that are.
        phantom: whether the images are synthetic.
        federation: its number; runs on the same data have one together.
    """

    sites: Collection[str]
    vote_share: float
    noisy: Collection[str]
    phantom: bool = False
    federation: int = 0

    def scores(self) -> dict[str, float]:
        """By :data:`MEASURES`; NaN where nothing was found, or nothing was to be found."""
        right = len({*self.sites} & {*self.noisy})
        return {
            "exact": float({*self.sites} == {*self.noisy}),
            "recall": right / len(self.noisy) if self.noisy else math.nan,
            "precision": right / len(self.sites) if self.sites else math.nan,
            "vote_share": self.vote_share,
        }


def found_by(run: RunFiles, title: str) -> dict[str, tuple[list[str], float]]:
    """Rule → the sites that it takes for noisy, and the share of the votes, by the decisions of a run.

    Args:
        run: a run that has looked for noisy sites, by many rules or by its own.
        title: of its own rule.
    """
    found: dict[str, tuple[list[str], float]] = {}
    for decision in run.decisions:
        value = decision["value"]
        rules = {RULES: value, OWN_RULE: {title: value}}.get(decision["what"], {})
        found |= {rule: (told["noisy"], told["vote_share"]) for rule, told in rules.items()}
    return found


@dataclass(frozen=True, kw_only=True)
class DetectionTable:
    """The rules, one line each.

    Attributes:
        name: of the job.
        levels: title of a level, "" for the job's own → rule → seed → what was found; seeds
            that one of them lacks count for none.
        source: where the published numbers are from; "": there are none.
        published: rule → title of a level → measure → points of 100.
        left_out: rule → why it is not there.
    """

    name: str
    levels: Mapping[str, Mapping[str, Mapping[int, Found]]]
    source: str = ""
    published: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> Mapping[str, object]:
        """The rules of the first level."""
        return next(iter(self.levels.values()))

    @property
    def seeds(self) -> list[int]:
        """Those of which all rules of all levels have a run."""
        every = [set(runs) for rules in self.levels.values() for runs in rules.values()]
        return sorted(set.intersection(*every))

    @property
    def federations(self) -> list[int]:
        """The number of the federation of each seed, of the first level."""
        runs = next(iter(next(iter(self.levels.values())).values()))
        return [runs[seed].federation for seed in self.seeds]

    @property
    def phantom(self) -> bool:
        """Whether any image is synthetic."""
        return any(f.phantom for rules in self.levels.values() for runs in rules.values() for f in runs.values())

    @property
    def notes(self) -> list[str]:
        """Why rules are left out."""
        return [f"{rule} is left out: {why}" for rule, why in self.left_out.items()]

    @property
    def facts(self) -> list[str]:
        """Sentences above the tables."""
        facts = [
            unit_sentence(self.federations),
            "Points of 100, mean ± sd; in brackets, how many runs find exactly the noisy sites; precision is of those"
            " federations (of one federation, those seeds) where a rule takes some site for noisy in every run.",
            f"{len(self.seeds)} runs; in each, all rules about losses, LID and confidence judge one warm-up.",
        ]
        printed = any(level in numbers for numbers in self.published.values() for level in self.levels)
        return facts + ([f"Published: {self.source}."] if self.source and printed else [])

    def parts(self) -> list[PageTable]:
        """A table for each level."""
        return [self._part(number, level) for number, level in enumerate(self.levels)]

    def _part(self, number: int, level: str) -> PageTable:
        head, rows = ["rule"], [[rule] for rule in self.levels[level]]
        for key, word in MEASURES.items():
            printed = [self.published.get(row[0], {}).get(level, {}).get(key) for row in rows]
            some = any(value is not None for value in printed)
            head += [word, f"{word}, published"] if some else [word]
            for row, value in zip(rows, printed, strict=True):
                row += [self._cell(level, row[0], key), *([f"{value:g}" if value is not None else ""] if some else [])]
        return PageTable(f"detection-{number}", level or "Which sites are noisy", head, rows)

    def values(self, level: str, rule: str, key: str) -> list[float]:
        """A measure in each federation that has it, or of each seed where there is one federation; fractions of 1."""
        runs = [self.levels[level][rule][seed] for seed in self.seeds]
        scores = [None if math.isnan(value := run.scores()[key]) else value for run in runs]
        found = per_federation(scores, [run.federation for run in runs])
        return [value for value in found if value is not None]

    def _cell(self, level: str, rule: str, key: str) -> str:
        values = self.values(level, rule, key)
        if key == "exact":
            runs = [self.levels[level][rule][seed].scores()[key] for seed in self.seeds]
            return f"{100 * statistics.fmean(values):.0f} ({sum(runs):.0f} of {len(runs)})"
        return shown(*mean_and_sd(values)) if values else "n/a"

    def csv(self) -> str:
        """A line for each level, rule and seed."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["level", "rule", "seed", *MEASURES, "found", "noisy", "phantom", "federation"])
        for level, rules in self.levels.items():
            for rule, runs in rules.items():
                for seed, found in ((seed, runs[seed]) for seed in self.seeds):
                    scores = ["" if math.isnan(v) else f"{v:.4f}" for v in found.scores().values()]
                    sites = [" ".join(sorted(names)) for names in (found.sites, found.noisy)]
                    writer.writerow(
                        [inert(level), inert(rule), seed, *scores, *sites, int(found.phantom), found.federation]
                    )
        return stream.getvalue()


def write_detection_table(table: DetectionTable, out: Path) -> str:
    """Writes ``FILES`` into a folder and returns the Markdown."""
    texts = (markdown(table), table.csv(), latex(table), html_page(table, ""))
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
    return texts[0]
