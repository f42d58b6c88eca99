"""Arguments that several commands share."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.basics.words import say as say
from fedmend.errors import FedMendError

if TYPE_CHECKING:
    from fl_components.job.folder import Changes


def given(args: argparse.Namespace, *names: str) -> dict:
    """Name → value of these arguments."""
    return {name: getattr(args, name) for name in names}


def subcommands(commands: argparse._SubParsersAction, name: str, summary: str, what: str) -> argparse._SubParsersAction:
    """Adds a command that has commands of its own; ``what`` is the word for them in its usage."""
    return commands.add_parser(name, help=summary).add_subparsers(required=True, metavar=what)


def job_arguments(
    parser: argparse.ArgumentParser, *, what: str = "job folder, e.g. jobs/fedmlp_ich", nargs: str | None = None
) -> None:
    """Adds a job folder, whose help is ``what``, and how the job is changed."""
    parser.add_argument("job", type=Path, help=what, nargs=nargs)
    parser.add_argument(
        "--variant",
        dest="variants",
        action="extend",
        type=lambda text: text.split(","),
        default=[],
        metavar="NAME[,NAME]",
        help="variants of the job, e.g. paper or paper,fedavg; fedmend jobs lists them",
    )
    words = "override settings of the job"
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="NAME=VALUE", help=words)
    parser.add_argument("--sites", type=positive, default=0, help="number of sites (default: as the job says)")


def job_changes(args: argparse.Namespace, **more: object) -> "Changes":
    """What these arguments change in a job; ``more`` are further settings.

    Raises:
        FedMendError: a word of ``--set`` without ``=``.
    """
    from fl_components.job.folder import Changes
    from fl_components.job.settings import parse_assignments

    return Changes(parse_assignments(args.set) | more, args.variants, args.sites, getattr(args, "tracking", ()))


def run_folder(place: Path, file: str, what: str) -> Path:
    """The folder with this file that a run has left: itself, or in a workspace with one run or a downloaded result.

    Raises:
        FedMendError: there is none; ``what`` are the first words of the sentence.
    """
    from fedmend.records.run_folder import RUN_FOLDER

    for folder in (place, place / RUN_FOLDER, place / "fedmend", place / "workspace" / "fedmend"):
        if (folder / file).is_file():
            return folder
    raise FedMendError(f"{what}, found no {file} in {place}")


def site_settings(parser: argparse.ArgumentParser) -> None:
    """Adds the fields of fedmend.json that a run on this machine overrides."""
    parser.add_argument(
        "--site",
        action="extend",
        nargs="+",
        default=[],
        metavar="FIELD=VALUE",
        help="override fields of fedmend.json, e.g. data_root=/data/{SITE_NAME}",
    )


def gpus(text: str) -> list[int]:
    """Numbers of GPUs like ``0,1``, none of ``''``, for :mod:`argparse`."""
    try:
        return [int(word) for word in text.split(",")] if text else []
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers of GPUs like 0,1, got {text!r}") from None


def seeds(text: str) -> list[int]:
    """Whole numbers like ``0,1,2`` or ``0-2``, for :mod:`argparse`."""
    try:
        spans = [[int(end) for end in word.split("-")] for word in text.split(",")]
        found = [[*range(ends[0], ends[-1] + 1)] if len(ends) <= 2 else [] for ends in spans]
    except ValueError:
        found = []
    every = [seed for span in found for seed in span]
    if not found or not all(found) or len({*every}) < len(every):
        raise argparse.ArgumentTypeError(f"expected different whole numbers like 0,1,2 or 0-2, got {text!r}")
    return every


def count(text: str) -> int:
    """A whole number from 0 on, for :mod:`argparse`; a negative one would count from the end."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 on, got {text!r}")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1 on, for :mod:`argparse`."""
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)
