"""``advise``: from a label audit to the job to run."""

import argparse
from pathlib import Path

from fedmend.errors import FedMendError
from fedmend.site.config import SiteConfig
from fl_components.cli.common import count, run_folder, say


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command."""
    advise = commands.add_parser("advise", help="what a label audit says about which job to run, with reasons")
    where = advise.add_mutually_exclusive_group(required=True)
    where.add_argument("place", type=Path, nargs="?", help="workspace or run folder of jobs/label_audit")
    where.add_argument("--data", type=Path, help="folder of site folders on this machine, which are counted here")
    advise.add_argument(
        "--min-count",
        type=count,
        help=f"with --data: hold back counts of fewer samples, as a site does (default {SiteConfig.min_count})",
    )
    advise.add_argument(
        "--losses", type=Path, metavar="RUN", help="run or workspace of FedNoRo on these sites, which compared losses"
    )
    advise.set_defaults(run=_advise)


def _advise(args: argparse.Namespace) -> None:
    from fedmend.advice import Facts, advice_text, read_losses
    from fedmend.advice.label_audit import AUDIT_FILE, count_folders, read_audit
    from fedmend.records.run_folder import RUN

    minimum = SiteConfig.min_count if args.min_count is None else args.min_count
    if args.min_count is not None and args.data is None:
        raise FedMendError("advise: expected --min-count with --data; a site holds back by its own fedmend.json")
    if args.data is not None:
        sites, classes = count_folders(args.data, min_count=minimum)
    else:
        sites, classes = read_audit(run_folder(args.place, AUDIT_FILE, "advise: expected a label audit") / AUDIT_FILE)
    facts = Facts(sites, classes)
    if args.losses is not None:
        losses = run_folder(args.losses, RUN, "advise: expected a run with losses")
        facts = Facts(sites, classes, read_losses(losses, facts))
    say(*advice_text(facts, args.data).split("\n"))
