"""``jobs``, ``configure`` and ``simulate``: jobs on this machine."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from fedmend.errors import FedMendError
from fl_components.cli.common import gpus, job_arguments, job_changes, positive, run_folder, say, seeds, site_settings


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the commands."""
    jobs = commands.add_parser("jobs", help="list jobs and their variants")
    jobs.add_argument("folder", type=Path, nargs="?", default=Path("jobs"), help="default jobs")
    jobs.set_defaults(run=_jobs)

    configure = commands.add_parser("configure", help="copy a job with other variables, ready to submit")
    job_arguments(configure)
    configure.add_argument("out", type=Path, help="new folder for the changed copy of the job")
    configure.add_argument(
        "--tracking",
        action="extend",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME[,NAME]",
        help="also hand metrics to mlflow or wandb, or rounds to statsd; the server's policy must list them",
    )
    configure.set_defaults(run=_configure)

    simulate = commands.add_parser("simulate", help="run a job on this machine, in FLARE's simulator or without FLARE")
    job_arguments(simulate)
    simulate.add_argument(
        "--workspace",
        type=Path,
        help="new folder or one of an earlier run, which is emptied (default: runs/ and the job's name)",
    )
    simulate.add_argument("--local", action="store_true", help="without FLARE: the same numbers, faster")
    simulate.add_argument(
        "--threads", type=positive, help="sites that run at the same time (default: 1, with --local as many as cores)"
    )
    simulate.add_argument(
        "--gpu",
        type=gpus,
        metavar="N[,N]",
        help="GPUs over which the sites are spread, e.g. 0,1; '' = the CPU (default: all sites on the first GPU)",
    )
    site_settings(simulate)
    simulate.add_argument("--seeds", type=seeds, default=[], help="several runs, e.g. 0,1,2; prints mean and deviation")
    simulate.add_argument("--quiet", action="store_true", help="keep the output in a file beside the workspace")
    simulate.set_defaults(run=_simulate)


def _jobs(args: argparse.Namespace) -> None:
    from fl_components.job.folder import all_jobs, job_variants

    found = all_jobs(args.folder)
    if not found:
        raise FedMendError(f"jobs: expected a folder with job folders, found none in {args.folder}")
    for job in found:
        say(job)
        for name, variant in job_variants(job).items():
            say(f"  {name:20} {variant.about}".rstrip())


def _configure(args: argparse.Namespace) -> None:
    from fl_components.job.folder import configure_job

    if args.out.exists():
        raise FedMendError(f"configure: expected a new folder, {args.out} exists")
    configure_job(args.job, args.out, job_changes(args), strict=True)
    say(f"job written to {args.out}")


def _simulate(args: argparse.Namespace) -> None:
    from fedmend.records.run_folder import RUN_FOLDER
    from fl_components.job.settings import parse_assignments
    from fl_components.run.simulate import seed_lines, simulate

    run: Callable[..., dict] = simulate
    if args.local:
        from fl_components.run.local import run_local

        run = run_local
    threads = {"threads": args.threads} if args.threads else {}
    gpu = {} if args.gpu is None else {"gpu": {"devices": args.gpu}}
    runs, base = [], args.workspace or Path("runs") / args.job.resolve().name
    for seed in args.seeds or [None]:
        workspace = base if seed is None else base / f"seed-{seed}"
        result = run(
            args.job,
            workspace,
            job_changes(args, **({} if seed is None else {"seed": seed})),
            site_settings=parse_assignments(args.site) | gpu,
            quiet=args.quiet,
            **threads,
        )
        runs.append({"seed": seed, **result})
        if seed is not None:
            say(f"seed {seed}: {json.dumps(result['final'])}")
        elif args.quiet:
            say(f"finished; records and report.html are in {workspace / RUN_FOLDER}")
    if args.seeds:
        (base / "seeds.json").write_text(json.dumps(runs, indent=2) + "\n")
        say(f"final global model, mean ± sd over {len(runs)} seeds:")
        say(*seed_lines(runs))


def run_folders(folder: Path, name: str) -> list[Path]:
    """The run folders behind what a person names: one itself, that of a simulator workspace, or those of its seeds.

    Raises:
        FedMendError: a folder without a run.
    """
    from fedmend.records.run_folder import RUN

    workspaces = sorted(f for f in folder.glob("seed-*") if f.is_dir()) or [folder]  # beside them lie logs
    what = f"table, {name}: expected a run folder or a simulator workspace"
    return [run_folder(workspace, RUN, what) for workspace in workspaces]
