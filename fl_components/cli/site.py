"""``register``, ``approve``, ``backup``, ``restore``: what leaves a site, and what it keeps."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fedmend.basics.words import printable
from fedmend.errors import FedMendError
from fl_components.cli.common import positive, say


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the commands."""
    register = commands.add_parser("register", help="what has left a site, answer by answer, and whether that is whole")
    register.add_argument("kit", type=Path, help="startup kit of the site")
    register.add_argument("--last", type=positive, default=50, help="newest answers to print (default 50)")
    register.add_argument("--noted", default="", metavar="HASH", help="a last hash that was printed earlier")
    register.set_defaults(run=_register)

    approve = commands.add_parser("approve", help="let a job begin that waits for somebody of the site")
    approve.add_argument("kit", type=Path, help="startup kit of the site")
    approve.add_argument("job", nargs="?", help="id of the job (default: print those that wait)")
    approve.set_defaults(run=_approve)

    backup = commands.add_parser("backup", help="copy ledgers, verdicts, accounts and state, even while a job runs")
    backup.add_argument("kit", type=Path, help="startup kit of the site or server")
    backup.add_argument("out", type=Path, help="new folder for the copy")
    backup.set_defaults(run=_backup)

    restore = commands.add_parser("restore", help="put a backup back")
    restore.add_argument("backup", type=Path, help="folder that fedmend backup made")
    restore.add_argument("kit", type=Path, help="startup kit of the site or server, which is stopped")
    restore.set_defaults(run=_restore)


def _approve(args: argparse.Namespace) -> None:
    from fl_components.approval import approve, one_site_apart, requests
    from fl_components.kit_state import kit_name, state_of

    name, state_dir = kit_name(args.kit), state_of(args.kit)
    if args.job:
        approve(state_dir, name, args.job)
        say(f"{args.job} approved; it begins within a minute, a label audit when it is submitted again")
        return
    known = requests(state_dir, name)
    waiting = {job: request for job, request in known.items() if not request["approved"]}
    for job, request in waiting.items():
        say(f"{job}, asked {request['asked']}")
        for key, value in {**request["about"], **request["shown"]}.items():
            say(f"    {key}: {ascii(value) if isinstance(value, str) else json.dumps(value)}")
        for other, apart in one_site_apart(known, job).items():
            say(f"    ! the sites of {other} but for {apart!a}: both models together tell what that site sent")
    say(f"{len(waiting)} jobs wait")


def _backup(args: argparse.Namespace) -> None:
    from fl_components.backup import backup

    say(f"{backup(args.kit, args.out)} files copied to {args.out}; keep it as you keep state_dir")


def _restore(args: argparse.Namespace) -> None:
    from fl_components.backup import restore

    for line in restore(args.backup, args.kit):
        say(line)
    say("at the next task each ledger is compared with the latest mark that the server knows; an older one is said")


def _register(args: argparse.Namespace) -> None:
    from fedmend.site.register import last_hash, problems, read_register, register_file
    from fl_components.kit_state import kit_name, state_of

    name, file = kit_name(args.kit), register_file(state_of(args.kit), kit_name(args.kit))
    if not file.is_file():
        raise FedMendError(f"{name}: register: expected answers that have left this site, found none")
    lines = read_register(file)
    head = ("line", "time", "job", "run", "task", "round", "bytes", "epsilon", "what")
    _print_table(head, [_row(line) for line in lines[-args.last :]])
    if found := problems(file, args.noted):
        raise FedMendError(f"{name}: register: expected every line as it was written, but {'; '.join(found)}")
    say(f"{len(lines)} answers, none changed or missing; last hash {last_hash(file)}")


def _row(line: dict) -> list[str]:
    sizes, epsilon = line.get("fields", {}), line.get("epsilon")
    told = line.get("error") or ", ".join(sizes)
    round_num = line.get("round", 0) + (line.get("task") == "train")  # counted from 1, as in the site's log
    texts = [line["number"], line.get("time"), f"{line.get('job')!s:.8}", line.get("run"), line.get("task"), round_num]
    cells = [*texts, f"{sum(sizes.values()):,}", "" if epsilon is None else f"{epsilon:.3g}", told]
    return [*map(printable, cells)]


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """On a terminal by rich where it is installed, otherwise in plain columns."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        terminal = False
    else:
        terminal = sys.stdout.isatty()
    if terminal:
        table = Table(*head)
        for row in rows:
            table.add_row(*map(Text, row))
        Console(highlight=False).print(table)
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        say("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
