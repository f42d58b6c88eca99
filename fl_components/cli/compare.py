"""``compare``: a job against its variants, or a paper's whole table."""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmend.errors import FedMendError
from fl_components.cli.common import given, job_arguments, positive, say, seeds, site_settings

PAPER = "paper"  # the main table and its levels, see fl_components.compare.job_tables

if TYPE_CHECKING:
    from fl_components.compare.job_tables import Level
    from fl_components.compare.runs import Comparison


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command."""
    compare = commands.add_parser("compare", help="a job against its variants over several seeds: tables and a figure")
    job_arguments(compare, what="job folder, or a problem: missing-classes, noisy-sites, label-sets, partial-masks")
    compare.add_argument(
        "--rows",
        action="extend",
        type=lambda text: text.split(","),
        default=[],
        metavar="ROW[,ROW]",
        help="what the job is compared with: variants, or variants and settings joined by +, e.g."
        " fedavg,fedavg+learning_rate=0.001 (default for a problem: the rows of the paper's table)",
    )
    compare.add_argument(
        "--table",
        nargs="?",
        const=PAPER,
        default="",
        metavar="NAME",
        help="the paper's table, as for a problem: its rows, published numbers, costs; or another one of the job's"
        " tables.json, e.g. ablation, stage2 or detection",
    )
    compare.add_argument("--levels", default="", metavar="NAME", help="the table over levels of tables.json: paper")
    compare.add_argument("--sweep", default="", metavar="NAME=V,V", help="the table over values of a setting")
    compare.add_argument("--per-class", action="store_true", help="the table has the main metric of each class, too")
    compare.add_argument(
        "--data", metavar="DIR", help="site folders site-1, site-2, ... of fedmend prepare (default: the job's phantom)"
    )
    repetitions = compare.add_mutually_exclusive_group()
    repetitions.add_argument("--seeds", type=seeds, default=[0, 1, 2], help="e.g. 0-4 or 0,1,2, the default")
    repetitions.add_argument("--federations", type=positive, default=0, metavar="N", help="--seeds 0-(N-1) --vary data")
    compare.add_argument(
        "--vary",
        type=_vary,
        default=0,
        metavar="data[=N]",
        help="each seed (each N seeds) on a federation of its own: patients, partition and label errors are drawn anew,"
        " or read from --data with {SEED} in it; intervals are then over federations",
    )
    site_settings(compare)
    compare.add_argument(
        "--processes",
        type=positive,
        default=0,
        help="runs at the same time (default 1; for the paper's table as many as cores and memory allow)",
    )
    compare.add_argument("--cluster", default="", metavar="ADDRESS", help="runs on workers of this Dask scheduler")
    compare.add_argument(
        "--budget", type=_time, default=float("inf"), metavar="TIME", help="time for this call, e.g. 2h, 90m or 300s"
    )
    compare.add_argument("--metric", default="", help="of the figure, e.g. f1 (default: that of the kind of labels)")
    compare.add_argument(
        "--out",
        type=Path,
        help="runs and tables; complete runs in it are not repeated (default: a folder in runs/, another one for other"
        " settings or data)",
    )
    compare.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> None:
    from fedmend.comparison.level_table import LevelTable, write_level_table
    from fl_components.compare.budget import shares
    from fl_components.compare.job_tables import DETECTION, read_tables
    from fl_components.compare.paper_rows import find_job, own_entry
    from fl_components.compare.varied_data import varied_settings

    job, named = find_job(args.job)
    if args.federations:
        args.vary = args.vary or 1
        args.seeds = list(range(args.federations * args.vary))
    if args.vary:
        args.set = [*varied_settings(job, args.data or "", args.site, args.variants), *args.set]
    if args.levels and args.sweep:
        raise FedMendError("--levels: expected no --sweep beside it, both are columns of the table")
    if args.data and args.sites:
        raise FedMendError("--sites: expected no number beside --data, whose folders are the sites")
    levels = _levels(args, job)
    table = args.table or (PAPER if named or levels or args.per_class else "")
    out = args.out or Path("runs") / _name(args, named)
    if args.cluster:
        job, out = job.resolve(), out.resolve()  # workers have other current folders
    if table:
        own_entry(job)  # refuses a job that is in no table
        read_tables(job).table(table)
    each = len(read_tables(job).detection.rows) if table == DETECTION else 1
    args.shares = shares(args.budget, each * max(len(levels), 1))
    args.failed = {}
    if table == DETECTION:
        text = _detection(args, job, out, levels)
    elif not levels:
        _, text = _one(args, job, out, table, None)
    else:
        found = {}
        for level in levels:
            say(f"{level.title}:")
            found[level.title], _ = _one(args, job, out / level.folder, table, level)
        text = write_level_table(LevelTable(job.resolve().name, found), out)
    say(*text.split("\n"), f"written to {out}")
    if args.failed:
        reasons = "; ".join(f"{row}, {why}" for row, why in args.failed.items())
        raise FedMendError(f"--rows: expected runs that end, the tables lack rows that failed: {reasons}")


def _levels(args: argparse.Namespace, job: Path) -> list["Level"]:
    """The levels that the table is over; none: it is over the job's own data and settings."""
    from fl_components.compare.job_tables import read_tables, swept

    levels = read_tables(job).chosen(args.levels) if args.levels else swept(args.sweep) if args.sweep else []
    made = {setting for level in levels for setting in level.settings}
    word = "--levels" if args.levels else "--sweep"
    folders = "--data" if args.data else next((f"--site {text}" for text in args.site if _is_folder(text)), "")
    if folders and any(f"{setting}.".startswith("phantom.") for setting in made):
        raise FedMendError(f"{word}: expected no levels of the phantom beside {folders}, whose folders are the sites")
    for name in ("seed", *(text.partition("=")[0] for text in args.set)):
        if any(f"{setting}.".startswith(f"{name}.") for setting in made):
            raise FedMendError(
                f"{word}: expected settings that --set, --vary and --seeds leave alone, got {name!r} from these"
            )
    return levels


def _is_folder(text: str) -> bool:
    """Whether a ``FIELD=VALUE`` of ``--site`` names folders with data, rather than the phantom."""
    field, _, value = text.partition("=")
    return field == "data_root" and value != "phantom"


def _one(args: argparse.Namespace, job: Path, out: Path, table: str, level: "Level | None") -> tuple:
    """One comparison: the paper's table or None, and the Markdown of what was written."""
    from fedmend.comparison.paired import write_comparison
    from fedmend.comparison.table_pages import write_paper_table
    from fedmend.records.run_folder import load_run
    from fl_components.compare.job_tables import level_words, read_tables
    from fl_components.compare.paper_rows import Shown, paper_table, primary_measure, table_rows
    from fl_components.compare.runs import Comparison, federations
    from fl_components.job.folder import read_job

    about = read_tables(job).table(table or PAPER)
    own = read_job(job).run.get("method")
    rows = args.rows or [row for row in about.rows if row != own] or (table_rows(job) if table else [])
    comparison = Comparison(
        **given(args, "seeds", "variants", "sites"),
        job=job,
        rows=rows,
        words=[*level_words(level, about), *args.set] if table else args.set,
        site_words=args.site,
        per_federation=args.vary or 1,
    )
    folders, comparison, without = _runs(args, comparison, out, table=bool(table))
    runs = {row: [load_run(folder) for folder in found] for row, found in folders.items()}
    if table:
        wanted = Shown(table, level.title if level else "", args.per_class, args.metric)
        found = paper_table(comparison, runs, without, out, wanted)
        return found, write_paper_table(found, out)
    of_seed = federations(comparison)
    numbers = [of_seed[run.info["seed"]] for run in next(iter(runs.values()))]
    return None, write_comparison(runs, out, metric=args.metric, federations=numbers, primary=primary_measure(job))


def _runs(args: argparse.Namespace, comparison: "Comparison", out: Path, *, table: bool) -> tuple:
    """Makes the runs: row → run folders, the comparison on its data, and why rows are left out."""
    from fl_components.compare.paper_rows import on_data
    from fl_components.compare.runs import compare
    from fl_components.run.bars import Bar

    comparison = on_data(comparison, args.data) if args.data else comparison
    comparison, without, how = _plan(args, comparison, table=table)
    failed: dict[str, str] = {}
    try:
        how |= {"show": say, "progress": Bar() if sys.stderr.isatty() else None, "failed": failed}
        folders = compare(comparison, out, cluster=args.cluster, **how)
        args.failed |= failed
        return folders, comparison, without | failed
    except KeyboardInterrupt:
        say("stopped; complete runs are kept, and the same command goes on", file=sys.stderr)
        raise


def _detection(args: argparse.Namespace, job: Path, out: Path, levels: Sequence["Level"]) -> str:
    """The table of rules that find noisy sites, see :mod:`fl_components.compare.detection`; its Markdown."""
    from fedmend.comparison.detection_table import write_detection_table
    from fl_components.compare.detection import detection_table
    from fl_components.compare.runs import Comparison

    if args.rows:
        raise FedMendError(f"--rows: expected none with --table {args.table}, whose rows are rules")
    comparison = Comparison(
        **given(args, "seeds", "variants", "sites"),
        job=job,
        rows=[],
        words=args.set,
        site_words=args.site,
        per_federation=args.vary or 1,
    )

    def make(one: "Comparison", folder: Path) -> tuple:
        folders, one, _ = _runs(args, one, folder, table=True)
        return next(iter(folders.values())), one

    return write_detection_table(detection_table(comparison, levels, out, make), out)


def _name(args: argparse.Namespace, named: bool) -> str:
    """The problem's name, or the job's with a word after it, as a simulation has the job's name for itself and empties
    its folder; and where more is given than rows and seeds, a digest of it: rows and seeds add to the runs of a folder,
    other settings would be refused there."""
    told = [args.variants, args.set, args.site, args.data, args.sites]
    told += [more for more in (args.vary, args.levels, args.sweep, args.table.replace(PAPER, "")) if more]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:6]
    plain = "" if named else "-comparison"
    return args.job.resolve().name + (f"-{digest}" if any(told) else plain)


def _plan(args: argparse.Namespace, comparison: "Comparison", *, table: bool) -> tuple:
    """What can be known before the first run: rows that can learn from the data, why others are left out, and the
    number of processes and the budget."""
    from fl_components.compare.budget import Budget
    from fl_components.compare.runs import SEED, cases
    from fl_components.compare.trial import estimates, fitting_processes, try_rows

    limited = args.budget < float("inf")
    how: dict[str, Any] = {"processes": args.processes or 1, "budget": None}
    if args.cluster and not (table or args.data or limited):
        return comparison, {}, how  # only the workers need have the data
    differ = any(SEED in word for word in [*comparison.words, *comparison.rows, *comparison.site_words])
    seeds = comparison.seeds if differ else comparison.seeds[:1]
    tried = cases(replace(comparison, seeds=seeds), Path())
    trials, without = try_rows(tried, optional=table and not args.rows, metric=args.metric, say=say)
    for row, why in without.items():
        say(f"{row}: left out: {why}")
    if table and not args.processes:
        how["processes"] = fitting_processes(trials)
    how["budget"] = Budget(next(args.shares), estimates(trials)) if limited else None
    return replace(comparison, rows=[row for row in comparison.rows if row not in without]), without, how


def _vary(text: str) -> int:
    """``data`` or ``data=N`` → N."""
    what, equals, number = text.partition("=")
    if what != "data" or (equals and not (number.isdecimal() and int(number))):
        raise argparse.ArgumentTypeError(f"expected data or data=N, N seeds on each federation, got {text!r}")
    return int(number or 1)


def _time(text: str) -> float:
    from fl_components.compare.budget import parse_duration

    try:
        return parse_duration(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None
