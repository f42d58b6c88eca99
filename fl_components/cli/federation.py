"""``submit`` and ``poc``: jobs on a federation."""

import argparse
import logging
from pathlib import Path

from fedmend.errors import FedMendError
from fl_components.cli.common import job_arguments, job_changes, say, site_settings


def add(commands: argparse._SubParsersAction) -> None:
    """Adds both commands."""
    submit = commands.add_parser("submit", help="run a job on a provisioned federation and fetch its result")
    job_arguments(submit, nargs="?")
    submit.add_argument("--kit", type=Path, required=True, help="startup kit of the lead researcher")
    submit.add_argument("--job-id", default="", help="instead of a job folder: come back to a job")
    submit.add_argument("--out", type=Path, default=Path("runs/results"), help="default runs/results")
    submit.add_argument("--keep-going", action="store_true", help="submit again after a fault, until the run is done")
    submit.set_defaults(run=_submit)

    poc = commands.add_parser("poc", help="run a job on a real federation on this machine, started for this job")
    job_arguments(poc)
    poc.add_argument("--workspace", type=Path, required=True, help="new or empty folder for kits, state and result")
    site_settings(poc)
    poc.set_defaults(run=_poc)


def quiet_flare() -> None:
    """What goes wrong in FLARE is said in a sentence of ours."""
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)


def _submit(args: argparse.Namespace) -> None:
    from fl_components.run.keep_going import keep_going
    from fl_components.run.submit import submit, what_came_out

    if args.keep_going and not args.job:
        raise FedMendError("submit: expected a job folder to submit again with --keep-going, got none")
    if bool(args.job) == bool(args.job_id) and not args.keep_going:
        raise FedMendError(f"submit: expected a job folder or --job-id, got {'both' if args.job else 'none'}")
    quiet_flare()
    run = keep_going if args.keep_going else submit
    folder = run(args.job, args.kit, args.out, job_changes(args), job_id=args.job_id, show=say)
    say(*what_came_out(folder))


def _poc(args: argparse.Namespace) -> None:
    from fl_components.job.settings import parse_assignments
    from fl_components.run.poc import poc
    from fl_components.run.submit import what_came_out

    quiet_flare()
    folder = poc(args.job, args.workspace, job_changes(args), site_settings=parse_assignments(args.site), show=say)
    say(*what_came_out(folder))
