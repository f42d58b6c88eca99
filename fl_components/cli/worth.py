"""``personalise`` and ``worth``: what a hospital does with a model at home, with its own files alone."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.errors import FedMendError
from fl_components.cli.common import positive, say

if TYPE_CHECKING:
    from fedmend.package import Package
    from fedmend.worth.home import Home

EPOCHS = 20  # as fedmend.worth.personal has it, which imports PyTorch


def add(commands: argparse._SubParsersAction) -> None:
    """Adds both commands."""
    personal = commands.add_parser("personalise", help="train a package further at a hospital, into a new package")
    _common(personal)
    personal.add_argument("--out", type=Path, required=True, metavar="NAME.fedmend", help="the new package")
    personal.set_defaults(run=_personalise)
    worth = commands.add_parser(
        "worth", help="a hospital's own model, the federated one and that one trained further, on its test split"
    )
    _common(worth)
    worth.add_argument("--out", type=Path, required=True, help="folder for worth.html, worth.json and the package")
    worth.add_argument("--weights", default="", help="file that the hospital's own model starts from (default: random)")
    worth.set_defaults(run=_worth)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", type=Path, help="NAME.fedmend, or the folder of its run")
    parser.add_argument(
        "data", type=Path, nargs="?", help="site folder (default: that of the run, by --state or --kit)"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--state", type=Path, help="state_dir of the site, whose repaired labels count")
    where.add_argument("--kit", type=Path, help="startup kit of the site, likewise")
    parser.add_argument("--site", help="name of the site, where the state holds several")
    parser.add_argument("--layers", choices=("head", "all"), default="all", help="layers to train (default all)")
    words = f"of further training, at most (default {EPOCHS})"
    parser.add_argument("--epochs", type=positive, default=EPOCHS, help=words)
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:1 (default: a GPU where there is one)")


def _personalise(args: argparse.Namespace) -> None:
    from fedmend.worth.personal import check_out, personalise, write_personal

    def work(package: "Package", home: "Home") -> None:
        check_out(args.out)
        trained = personalise(package, home, layers=args.layers, epochs=args.epochs)
        write_personal(args.out, package, home, trained, layers=args.layers)
        chosen = f"epoch {trained.chosen} of {trained.epochs}"
        if not trained.chosen:
            chosen = "no epoch was better on validation, so the model is as it came"
        say(f"{home.repaired} labels as repaired; {chosen}; {args.out} written")

    _at_home(args, work)


def _worth(args: argparse.Namespace) -> None:
    from fedmend.worth.page import PAGE, sentences, worth

    def work(package: "Package", home: "Home") -> None:
        how = {"layers": args.layers, "epochs": args.epochs, "weights": args.weights}
        found = worth(package, home, args.out, **how)
        mark = "PHANTOM " if found.phantom else ""
        for line in sentences(found.compared.differences, home.kind.best_metric):
            say(f"{mark}{found.site}, test: {line}")
        say(f"{args.out / PAGE} written")

    _at_home(args, work)


def _at_home(args: argparse.Namespace, work: Callable[["Package", "Home"], None]) -> None:
    """Opens package and site, and keeps what need not last in a temporary folder."""
    from fedmend.package import Package
    from fedmend.worth.home import open_home
    from fedmend.worth.personal import settings_of
    from fl_components.cli.review import find_run

    package, state = Package(args.package), None
    if args.state or args.kit:
        run_name = (package.info.get("provenance") or {}).get("run_name")
        state = find_run(argparse.Namespace(**vars(args), place=None, run_name=run_name))
    batch_size = settings_of(package).get("batch_size")
    if not isinstance(batch_size, int):
        raise FedMendError(f"package {package.name}, provenance.settings.batch_size: expected a number, got another")
    with tempfile.TemporaryDirectory(prefix="fedmend-") as folder:
        how = {"work": Path(folder), "batch_size": batch_size, "device": args.device}
        work(package, open_home(package, args.data, state, **how))
