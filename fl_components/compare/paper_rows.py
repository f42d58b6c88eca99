"""The rows of a paper's table, found by what the variants of a job say of themselves; and site folders as its data."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedmend.comparison.fairness import TableRow
from fedmend.comparison.paper_table import PaperTable
from fedmend.data.card import CARD_NAME, load_card
from fedmend.errors import FedMendError
from fedmend.records.run_folder import RunFiles
from fl_components.compare.job_tables import PAPER as MAIN
from fl_components.compare.job_tables import read_tables
from fl_components.compare.runs import DATA_ROOT, SEED, Comparison, cases, federations
from fl_components.job.folder import all_jobs, job_variants, read_job
from fl_components.job.reading import read
from fl_components.job.settings import parts
from fl_components.job.table_entries import TableEntry
from fl_components.job.variants import PAPER, SHARED


def find_job(word: Path) -> tuple[Path, bool]:
    """The job that a person names.

    Args:
        word: a job folder, or a problem such as ``missing-classes``, which stands for its main job.

    Returns:
        Job folder, and whether a problem was named.

    Raises:
        FedMendError: neither the one nor the other.
    """
    if word.is_dir() or len(word.parts) != 1:
        return word, False
    known = {}
    for job in all_jobs(SHARED.parent):
        preset = job_variants(job).get(PAPER)
        if preset and preset.table and preset.table.main:
            known[read_job(job).problem.replace("_", "-")] = job
    if str(word) not in known:
        problems = f" or one of {', '.join(sorted(known))}" if known else ""
        raise FedMendError(f"compare: expected a job folder{problems}, got {word}")
    return known[str(word)], True


def own_entry(job: Path) -> TableEntry:
    """The row of the job's own method.

    Raises:
        FedMendError: the job's preset ``paper`` names none.
    """
    preset = job_variants(job).get(PAPER)
    if preset is None or preset.table is None:
        raise FedMendError(f"--table: expected a row of the job in its variants/{PAPER}.json, found none")
    return preset.table


def primary_measure(job: Path) -> str:
    """Key of the measure that a claim about a job stands on; "": its preset ``paper`` names none."""
    preset = job_variants(job).get(PAPER)
    return preset.table.primary if preset and preset.table else ""


def _entries(job: Path) -> dict[str, TableEntry]:
    return {name: v.table for name, v in job_variants(job).items() if v.table and name != PAPER}


def table_rows(job: Path) -> list[str]:
    """The variants of a job that are rows of the paper's table, in its order."""
    known = _entries(job)
    return sorted(known, key=lambda name: (known[name].order, known[name].title))


def row_entry(job: Path, row: str) -> TableEntry:
    """What the table says of a row that a person may have written: variants and settings joined by ``+``."""
    known = _entries(job)
    if row in known:
        return known[row]
    words = [known[word].title if word in known else word for word in row.split("+")]
    return TableEntry(title=" + ".join(words))


def published(entry: TableEntry, job: Path) -> Mapping[str, float]:
    """Metric → number that the paper printed for a row, for the data set of this job."""
    return entry.published.get(read_job(job).name, {})


@dataclass(frozen=True)
class Shown:
    """Which of the paper's tables is shown.

    Attributes:
        table: its name in the job's ``tables.json``.
        level: title of the level; "": the job's own.
        per_class: whether single classes are shown.
        metric: key of the figure's metric, or "".
    """

    table: str = MAIN
    level: str = ""
    per_class: bool = False
    metric: str = ""


def paper_table(
    comparison: Comparison,
    runs: Mapping[str, Sequence[RunFiles]],
    without: Mapping[str, str],
    out: Path,
    wanted: Shown = Shown(),
) -> PaperTable:
    """The paper's table of complete runs.

    Args:
        comparison: what was compared.
        runs: row → runs, one per whole seed; first the job's own row.
        without: row → why it is left out.
        out: folder of the comparison.
        wanted: which table.
    """
    job, (own, *_) = comparison.job, runs
    of_case, main = {(case.row, case.seed): case for case in cases(comparison, out)}, own_entry(job)
    known = read_tables(job)
    table, plain = known.table(wanted.table), wanted.table == MAIN and not wanted.level
    rows = {}
    for name, found in runs.items():
        entry = main if name == own else row_entry(job, name)
        rows[name] = TableRow(
            title=table.rows.get(name, entry.title),
            runs=found,
            costs=[of_case[name, run.info["seed"]].cost() for run in found],
            data=[of_case[name, run.info["seed"]].data() for run in found],
            simple=entry.simple,
            published=published(entry, job) if plain else table.numbers(name, wanted.level),
            note=table.notes.get(name, entry.note),
        )
    whole, of_seed = {run.info["seed"] for run in runs[own]}, federations(comparison)
    printed = any(row.published for row in rows.values())
    return PaperTable(
        read_job(job).name,
        rows,
        source=(main.protocol if plain else table.protocol) if printed else "",
        left_out={row_entry(job, name).title: why for name, why in without.items()},
        incomplete=[seed for seed in comparison.seeds if seed not in whole],
        metric=wanted.metric,
        primary=main.primary,
        federations=[of_seed[run.info["seed"]] for run in runs[own]],
        of_classes=known.per_class.published if wanted.per_class else None,
    )


def on_data(comparison: Comparison, data: str) -> Comparison:
    """The same comparison on site folders.

    Args:
        comparison: of which job.
        data: folder of ``site-1``, ``site-2``, ... as ``fedmend prepare`` writes them; ``{SEED}`` becomes the number of
            the federation.

    Raises:
        FedMendError: no such folders, or sites or seeds whose classes are not the same.
    """
    found: dict[tuple[int, Sequence[str]], int] = {}
    for seed in comparison.seeds:
        found.setdefault(_read_folder(Path(data.replace(SEED, str(comparison.number(seed)))).expanduser()), seed)
    if len(found) > 1:
        raise FedMendError("--data: expected as many sites and the same classes for every seed, got others")
    ((sites, classes),) = found
    if sites < 2:
        raise FedMendError(f"--data: expected at least 2 sites, which a comparison needs, got {sites}")
    job_classes = next(p.args["classes"] for p in parts(*read(comparison.job).configs) if "classes" in p.args)
    words = [] if set(classes) == set(job_classes) else [f"classes={json.dumps(list(classes))}"]
    name = "".join(c if c.isalnum() or c in "_.-" else "-" for c in Path(data.replace(SEED, "seed")).name) or "data"
    root = str(Path(data).expanduser().absolute() / "{SITE_NAME}")
    return replace(
        comparison,
        words=[*words, *comparison.words],
        site_words=[*comparison.site_words, f"{DATA_ROOT}={root}"],
        sites=sites,
        run_name=f"{comparison.job.resolve().name}_{name}"[:60].rstrip("-."),
    )


def _read_folder(folder: Path) -> tuple[int, Sequence[str]]:
    """Number of site folders in a folder, and the classes of their cards."""
    names = {card.parent.name for card in folder.glob(f"*/{CARD_NAME}")}
    wanted = {f"site-{number + 1}" for number in range(len(names))}
    if not names or names != wanted:
        got = ", ".join(sorted(names)[:9]) or "none"
        raise FedMendError(f"--data: expected folders site-1, site-2, ... with {CARD_NAME} in {folder}, got {got}")
    cards = [load_card(folder / name, name) for name in sorted(names, key=lambda name: int(name[5:]))]
    for card in cards:
        if set(card.classes) != set(cards[0].classes):
            raise FedMendError(f"{card.site}: {CARD_NAME}, field classes: expected those of site-1, got others")
    return len(cards), cards[0].classes
