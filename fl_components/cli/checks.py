"""``report``, ``table``, ``sitecheck`` and ``policy``: what a run left behind, what a site needs before it joins, and
the site policy that follows from the code."""

import argparse
import sys
from functools import partial
from pathlib import Path

from fedmend.errors import FedMendError
from fl_components.cli.common import count, given, say
from fl_components.cli.jobs import run_folders


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the commands."""
    report = commands.add_parser("report", help="write report.html of a run folder again")
    report.add_argument("folder", type=Path, help="run folder, with run.json")
    report.set_defaults(run=_report)

    table = commands.add_parser("table", help="compare the final models of several runs, as Markdown and CSV")
    table.add_argument(
        "runs",
        nargs="+",
        metavar="NAME=FOLDER",
        help="a row and its run folder, simulator workspace or workspace of several seeds; NAME again adds runs to its"
        " row",
    )
    table.add_argument("--out", type=Path, required=True, help="folder for per_class and macro, .md and .csv")
    table.set_defaults(run=_table)

    check = commands.add_parser("sitecheck", help="what hospital IT runs before joining: one line per check")
    check.add_argument("folder", type=Path, nargs="?", help="site folder (default: what the kit's fedmend.json names)")
    check.add_argument("--kit", type=Path, help="startup kit of the site: checks settings, policy and connection too")
    wanted = check.add_mutually_exclusive_group()
    wanted.add_argument("--job", type=Path, help="job folder: checks classes, method and class policy against it")
    wanted.add_argument("--classes", default="", help="classes of the job, comma-separated (default: of site.json)")
    check.add_argument("--max-unreadable", type=count, help="default: what the kit's fedmend.json says, or 0")
    check.add_argument("--sheet", type=Path, help="PNG file to write: 24 training images as the network will see them")
    check.add_argument(
        "--policy", metavar="HASH", help="what fedmend policy --hash gave the lead: checks the kit's policy"
    )
    check.set_defaults(run=_sitecheck)

    policy = commands.add_parser("policy", help="bring the policy files of a checkout up to date with its methods")
    policy.add_argument("--checkout", type=Path, default=Path(), help="default: the current folder")
    policy.add_argument("--check", action="store_true", help="only say which files are out of date; exit code 1 if any")
    policy.add_argument(
        "--hash",
        type=Path,
        metavar="PROJECT",
        help="only print the hash of the policy that this project.yml gives hospitals",
    )
    policy.set_defaults(run=_policy)


def _report(args: argparse.Namespace) -> None:
    from fedmend.report.report import summary_text, write_report

    write_report(args.folder)
    say(*summary_text(args.folder).split("\n"))


def _table(args: argparse.Namespace) -> None:
    from fedmend.records.run_folder import load_run
    from fedmend.report.tables import comparison

    runs: dict[str, list] = {}
    for word in args.runs:
        name, equals, folder = word.partition("=")
        if not (name and equals and folder):
            raise FedMendError(f"table: expected NAME=FOLDER, got {word!r}")
        runs.setdefault(name, []).extend(map(load_run, run_folders(Path(folder), name)))
    texts = comparison(runs)
    args.out.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (args.out / file).write_text(text, encoding="utf-8")
    shown = "\n".join(text for file, text in texts.items() if file.endswith(".md"))
    say(*shown.split("\n"), f"written to {args.out}")


def _sitecheck(args: argparse.Namespace) -> None:
    from fl_components.sitecheck import sitecheck

    classes = args.classes.split(",") if args.classes else ()
    told = {"classes": classes, **given(args, "kit", "job", "max_unreadable", "sheet", "policy")}
    sitecheck(args.folder, **told, show=partial(print, flush=True), color=sys.stdout.isatty())


def _policy(args: argparse.Namespace) -> None:
    from fl_components.policy import RESOURCES, stale, write_policy
    from fl_components.policy.agreed import agreed_hash

    if args.hash:
        say(agreed_hash(args.hash))
        return
    if not (args.checkout / RESOURCES).is_file():
        raise FedMendError(f"policy: expected a FedMend checkout with {RESOURCES}, not found")
    if args.check:
        if files := stale(args.checkout):
            names = ", ".join(map(str, files))
            raise FedMendError(f"policy: expected files that follow from the code, got old ones: {names}")
        say("the policy files follow from the code")
        return
    for file in (changed := write_policy(args.checkout)):
        say(f"written: {file}; read the difference: it is what sites agree to")
    if not changed:
        say("the policy files follow from the code already")
