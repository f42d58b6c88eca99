"""The console command ``fedmend``: everything that a person types."""

import argparse
import logging
import sys
from collections.abc import Sequence

from fedmend.errors import FedMendError
from fl_components.cli import advise, checks, compare, datasets, federation, jobs, ledger, review, watch


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line of ``fedmend``.

    Args:
        words: what is going to be parsed; datasets are imported only where it asks for them. None: the whole command
            line.

    Raises:
        FedMendError: two datasets have a command of one name.
    """
    parser = argparse.ArgumentParser(prog="fedmend", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    datasets.add(commands, words)
    for group in (jobs, compare, federation, watch, ledger, review, checks, advise):
        group.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; bad input is one sentence on stderr and exit code 1."""
    words = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        args = build_parser(words).parse_args(words)
        args.run(args)
    except FedMendError as e:
        print(f"fedmend: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
