"""``package``: whether a model package is what its server made."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmend.basics.words import rounds_text
from fl_components.cli.common import say


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command."""
    package = commands.add_parser("package", help="check who made a model package, and that nothing in it has changed")
    actions = package.add_subparsers(required=True, metavar="ACTION")
    verify = actions.add_parser(
        "verify", help="checksums, signature and the packages that it began with; needs no network"
    )
    verify.add_argument("package", type=Path, help="NAME.fedmend, or the folder of its run")
    trusted = verify.add_mutually_exclusive_group()
    trusted.add_argument("--root", type=Path, metavar="FILE", help="the federation's root certificate, rootCA.pem")
    trusted.add_argument("--kit", type=Path, help="any startup kit of the federation, which has it")
    verify.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    from fedmend.package.opened import find_package
    from fedmend.records.package_files import package_digest, read_package
    from fedmend.records.signature import SIGNATURE, verify_package

    folder = find_package(args.package)
    found = verify_package(folder, _trusted(args))
    for number, line in enumerate(_lineage(read_package(folder) | {"digest": package_digest(folder)})):
        say(f"{'began with ' if number else ''}{line}")
    if found:
        of = f" ({found.organization})" if found.organization else ""
        say(f"signed by {_word(found.name + of)} at {found.time:%Y-%m-%d %H:%M:%S} UTC, by the signer's own clock")
        ended = "has ended since; it was valid at that time" if found.expired else "is valid"
        say(f"its certificate {ended} (until {found.expires:%Y-%m-%d})")
    elif not (folder / SIGNATURE).is_file():
        say("unsigned: made without a startup kit, by a simulator or on one machine; its files fit its checksums")
    else:
        say("signature not checked: say --root rootCA.pem or --kit KIT; its files fit its checksums")
    return 0


def _trusted(args: argparse.Namespace) -> Any:
    from fedmend.errors import FedMendError
    from fedmend.records.signature import Trust
    from fl_components.signing import trust_of

    if args.root:
        return Trust(args.root)
    if args.kit and (trust := trust_of(args.kit)) is None:
        raise FedMendError("--kit: expected a startup kit, with startup/rootCA.pem, got another folder")
    return trust if args.kit else None


def _lineage(about: Mapping[str, Any]) -> list[str]:
    """A line for a package, and one for each that it began with, the latest first."""
    lines = []
    now: Any = about
    while isinstance(now, Mapping):
        name, model, digest = (_word(now.get(word, "")) for word in ("name", "model", "digest"))
        done = now.get("round")  # none at a hospital
        rounds = f" after {_word(rounds_text(done))}" if done is not None else ""
        lines.append(f"{name}: {model} model{rounds}, digest {digest}")
        now = now.get("parent")
    return lines


def _word(value: object) -> str:
    """A value of a file that somebody else wrote, cut to a length that leaves the line readable."""
    return f"{value!s:.100}"
