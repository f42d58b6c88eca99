"""``card``: what a model package knows of itself, for people and for reporting guidelines."""

import argparse
from pathlib import Path

from fl_components.cli.common import say


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command."""
    card = commands.add_parser("card", help="write the card of a model, and which reporting items the run answers")
    card.add_argument("package", type=Path, help="NAME.fedmend, or the folder of its run")
    card.add_argument("--out", type=Path, metavar="DIR", help="folder for the card (default: beside the package)")
    card.add_argument(
        "--evaluation", type=Path, metavar="EVALUATION", help="what fedmend evaluate wrote: folder or file"
    )
    card.set_defaults(run=_card)


def _card(args: argparse.Namespace) -> int:
    from fedmend.package import Package
    from fedmend.package.model_card import write_card

    package = Package(args.package)
    for file in write_card(package, args.out or package.folder.parent, args.evaluation):
        say(file)
    return 0
