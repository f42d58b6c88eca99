"""``ledger`` and ``move-state``: what was changed in the labels of a site, and where it keeps that."""

import argparse
from pathlib import Path

from fedmend.errors import FedMendError
from fl_components.cli.common import count, say, subcommands


def add(commands: argparse._SubParsersAction) -> None:
    """Adds both commands."""
    ledger = subcommands(commands, "ledger", "what was changed in the labels of a site", "ACTION")
    show = ledger.add_parser("show", help="print repaired labels")
    show.add_argument("ledger", type=Path, help="ledger.sqlite in the site's state_dir")
    show.add_argument("--last", type=count, default=50, help="newest entries to print (default 50)")
    show.add_argument("--all", action="store_true", help="also those that were taken back")
    show.set_defaults(run=_show)
    export = ledger.add_parser("export", help="write the whole history as CSV")
    export.add_argument("ledger", type=Path)
    export.add_argument("out", type=Path, help="CSV file to write")
    export.set_defaults(run=_export)
    undo = ledger.add_parser("undo", help="take repaired labels back")
    undo.add_argument("ledger", type=Path)
    undo.add_argument("--rule", default="*", help="one rule (default: all)")
    undo.add_argument("--from-round", type=count, default=1, help="first round to take back (default 1 = everything)")
    undo.set_defaults(run=_undo)

    move = commands.add_parser("move-state", help="move ledgers and state of a site or server elsewhere")
    move.add_argument("kit", type=Path, help="startup kit of the site or server, which is stopped")
    move.add_argument("--to", type=Path, help="new folder (default: beside the kit, if the state is in it)")
    move.set_defaults(run=_move)


def _show(args: argparse.Namespace) -> None:
    from fedmend.repairs.ledger import read_history, read_verdicts

    rows = [r for r in read_history(args.ledger) if args.all or r["in_force"]]
    for r in rows[max(len(rows) - args.last, 0) :]:
        state = "" if r["in_force"] else "  (taken back)"
        old = "blank" if r["old"] < 0 else r["old"]
        change = f"round {r['round'] + 1:4d}  {r['image']}  {r['class']}: {old} -> {r['new']}"
        say(f"{change}  confidence {r['confidence']:.4f}  {r['rule']}{state}")
    shown = f"newest {args.last} of " if len(rows) > args.last else ""
    say(f"{shown}{len(rows)} repairs; originals are unchanged")
    said = read_verdicts(args.ledger)
    for v in said[max(len(said) - args.last, 0) :]:
        note = f"  {v['note']!r}" if v["note"] else ""
        say(f"{v['made'][:16]}Z  {v['image']}  {v['class']}: {v['word']} {v['value']}  {v['reviewer']}{note}")
    if said:
        say(f"{len(said)} verdicts of people; the last one about a label counts")


def _export(args: argparse.Namespace) -> None:
    from fedmend.repairs.ledger import to_csv

    say(f"{to_csv(args.ledger, args.out)} entries written to {args.out}")


def _undo(args: argparse.Namespace) -> None:
    from fedmend.repairs.ledger import ANY_RULE, read_history, undo_file

    rules = {row["rule"] for row in read_history(args.ledger)}
    if args.rule not in {ANY_RULE, *rules}:
        raise FedMendError(f"ledger undo, rule: expected one of the ledger's, {sorted(rules)}, got {args.rule!r}")
    count = undo_file(args.ledger, rule=args.rule, from_round=args.from_round - 1)
    say(f"{count} repairs taken back; they stay in the history")


def _move(args: argparse.Namespace) -> None:
    from fl_components.kit_state import move_state

    folder, moved = move_state(args.kit, args.to)
    say(f"{', '.join(moved) or 'nothing'} moved; state_dir is {folder}")
