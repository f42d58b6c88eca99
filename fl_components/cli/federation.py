"""``submit`` and ``poc``: jobs on a federation."""

import argparse
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from fedmend.errors import FedMendError
from fl_components.cli.common import given, job_arguments, site_settings


def add(commands) -> None:
    """Adds both commands."""
    submit = commands.add_parser("submit", help="run a job on a provisioned federation and fetch its result")
    job_arguments(submit, nargs="?")
    submit.add_argument("--kit", type=Path, required=True, help="startup kit of the lead researcher")
    submit.add_argument("--sites", type=int, default=0, help="sites named in meta.json (default: as in the job)")
    submit.add_argument("--job-id", default="", help="instead of a job folder: come back to a job")
    submit.add_argument("--out", type=Path, default=Path("runs/results"), help="default runs/results")
    submit.set_defaults(run=_submit)

    poc = commands.add_parser("poc", help="run a job on a real federation of this machine that exists for this job")
    job_arguments(poc)
    poc.add_argument("--workspace", type=Path, required=True, help="new or empty folder for kits, state and result")
    poc.add_argument("--sites", type=int, default=0, help="number of sites (default: as in the job)")
    site_settings(poc)
    poc.set_defaults(run=_poc)


def quiet_flare() -> None:
    """What goes wrong in FLARE is said in a sentence of ours."""
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)


@contextlib.contextmanager
def leaving() -> Iterator[threading.Event]:
    """Ctrl-C sets the event and interrupts; FLARE swallows the exception where it waits for an answer."""
    left = threading.Event()

    def leave(*_) -> None:
        left.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield left
    finally:
        signal.signal(signal.SIGINT, before)


def _submit(args: argparse.Namespace) -> None:
    from fl_components.run.arguments import parse_assignments
    from fl_components.run.submit import configured, fetch, follow, open_session, submit_job, what_came_out

    if bool(args.job) == bool(args.job_id):
        raise FedMendError(f"submit: expected a job folder or --job-id, got {'both' if args.job else 'none'}")
    quiet_flare()
    with contextlib.ExitStack() as stack:
        left = stack.enter_context(leaving())
        if args.job:  # a mistyped setting is refused before the server is asked
            variables = parse_assignments(args.set)
            job = stack.enter_context(configured(args.job, variables, **given(args, "variants", "sites")))
        session = stack.enter_context(open_session(args.kit))
        job_id = args.job_id or submit_job(session, job)
        back = f"fedmend submit --kit {args.kit} --job-id {job_id} --out {args.out}"
        print(f"job {job_id}; Ctrl-C leaves it running, and this comes back to it: {back}", flush=True)
        follow(session, job_id, show=_show, left=left.is_set)
        folder = fetch(session, job_id, args.out)
    print("\n".join(what_came_out(folder)))


def _poc(args: argparse.Namespace) -> None:
    from fl_components.run.arguments import parse_assignments
    from fl_components.run.poc import poc
    from fl_components.run.submit import what_came_out

    quiet_flare()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # by way of every finally, which stops the federation
    folder = poc(
        args.job,
        args.workspace,
        variables=parse_assignments(args.set),
        site_settings=parse_assignments(args.site),
        show=_show,
        **given(args, "variants", "sites"),
    )
    print("\n".join(what_came_out(folder)))


def _show(line: str) -> None:
    print(line, flush=True)
