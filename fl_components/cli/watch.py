"""``watch``: a run on the terminal while it goes on."""

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.errors import FedMendError, not_installed
from fl_components.cli.federation import quiet_flare

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fl_components.run.watch import FolderRun, Glance, KitRun

POLL, POLL_SERVER = 0.5, 3.0  # seconds between two looks
WORDS = 100  # columns where there is no terminal


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command."""
    watch = commands.add_parser("watch", help="rounds, sites, metrics and repairs of a run while it goes on")
    where = watch.add_mutually_exclusive_group()
    where.add_argument(
        "place",
        type=Path,
        nargs="?",
        default=Path("simulator_workspace"),
        help="workspace of a simulation or of fedmend poc, a comparison, or a run in it (default simulator_workspace)",
    )
    where.add_argument("--kit", type=Path, help="instead: startup kit of a person, to watch a job of a federation")
    watch.add_argument("--job-id", default="", help="with --kit: the job (default: the newest)")
    watch.add_argument("--once", action="store_true", help="print how the run stands, and end")
    watch.add_argument("--svg", type=Path, metavar="FILE", help="with --once: also write it as a picture")
    watch.set_defaults(run=_watch)


def _watch(args: argparse.Namespace) -> None:
    from fl_components.run.watch import FolderRun, KitRun

    if (args.job_id and not args.kit) or (args.svg and not args.once):
        raise FedMendError("watch: expected --kit beside --job-id, and --once beside --svg")
    try:
        from rich.console import Console
    except ImportError:
        raise FedMendError(f"watch: {not_installed('rich', 'watch')}") from None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character gets a question mark
    console = Console(record=bool(args.svg), highlight=False)
    if not console.is_terminal:
        console.width = WORDS
    with contextlib.ExitStack() as stack:
        if args.kit:
            from fl_components.run.submit import leaving, open_session

            quiet_flare()
            left = stack.enter_context(leaving())
            run: KitRun | FolderRun = KitRun(stack.enter_context(open_session(args.kit)), args.job_id)
            gone, pause = left.is_set, POLL_SERVER
        else:
            run, gone, pause = FolderRun(args.place), lambda: False, POLL
        look = run.look()
        if not args.once:
            look = _follow(run, look, console, gone, pause)
        else:
            console.print(_frame(look, console))
    if args.svg:
        from fedmend.report.live import save_svg

        save_svg(console, args.svg, "fedmend watch")
    if look.reason:
        raise FedMendError(f"the run stopped: {look.reason}")
    if look.over and look.picture:
        from fedmend.report.live import last_line

        console.print(last_line(look.picture), markup=False)


def _frame(look: "Glance", console: "Console") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    from fedmend.report.live import draw

    parts: list[RenderableType] = [Text(look.note)] if look.note else []
    if look.picture:
        parts.append(draw(look.picture, silent=look.silent, console=console))
    return Group(*parts)


def _follow(
    run: "KitRun | FolderRun", look: "Glance", console: "Console", gone: Callable[[], bool], pause: float
) -> "Glance":
    """Shows every look until the last one, which it returns."""
    from rich.live import Live

    with Live(_frame(look, console), console=console, auto_refresh=False) as live:
        while not look.over:
            time.sleep(pause)
            if gone():
                raise KeyboardInterrupt
            look = run.look()
            live.update(_frame(look, console), refresh=True)
    if not console.is_terminal:
        console.print()
    return look
