"""The console command ``fedmend``: everything that a person types."""

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from fedmend.basics.files import said
from fedmend.errors import FedMendError
from fl_components.cli import (
    advise,
    card,
    checks,
    compare,
    datasets,
    export,
    federation,
    jobs,
    ledger,
    package,
    review,
    site,
    verify,
    watch,
    worth,
)
from fl_components.cli.common import say


class _Parser(argparse.ArgumentParser):
    """Names the nearest words where one is misspelt."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        known = [value] if action.choices is None else [*action.choices]
        if value not in known and (near := get_close_matches(str(value), [*map(str, known)])):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; nearest: {', '.join(near)}")
        super()._check_value(action, value)


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line of ``fedmend``.

    Args:
        words: what is going to be parsed; datasets are imported only where it asks for them. None: the whole command
            line.

    Raises:
        FedMendError: two datasets have a command of one name.
    """
    parser = _Parser(prog="fedmend", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    datasets.add(commands, words)
    of_runs = (jobs, compare, federation, watch, ledger, site, review, checks, advise)
    for group in (*of_runs, package, verify, card, worth, export):
        group.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; bad input, and what the system refuses, is one sentence on stderr and exit code 1. A command
    may return another code."""
    words = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("highdicom").setLevel(logging.WARNING)  # it names every module that it copies from a header
    try:
        with _stopped_in_order():
            args = build_parser(words).parse_args(words)
            code = args.run(args)
    except FedMendError as e:
        say(f"fedmend: {e}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # nobody reads on, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as e:
        expected = "expected files, folders and ports that can be used"
        say(f"fedmend: {words[0]}: {expected}, got {_place(e, words)}: {said(e)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code or 0


def _place(error: OSError, words: Sequence[str]) -> str:
    """What the system refused, or where that is not known the words of the command that could name it."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        return str(error.args[0][0][1])
    return str(error.filename2 or error.filename or " ".join(words[1:]))


@contextlib.contextmanager
def _stopped_in_order() -> Iterator[None]:
    """Ctrl-C, and the end of the terminal or the machine, go by way of every ``finally``, which stops what was started
    and is not interrupted itself: no second one is heard."""

    def stop(number: int, _: object) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = {number: signal.getsignal(number) for number in numbers}
    heard = {number: before for number, before in heard.items() if before != signal.SIG_IGN}  # as nohup asks
    if threading.current_thread() is not threading.main_thread():  # no other one may ask for signals
        heard = {}
    try:
        for number in heard:
            signal.signal(number, stop)
        yield
    finally:
        for number, before in heard.items():
            if signal.getsignal(number) is stop:  # otherwise nothing is heard until the process has ended
                signal.signal(number, before)
