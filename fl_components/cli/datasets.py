"""``prepare``, ``phantom`` and ``init``: site folders of downloads, of synthetic data and of a hospital's own."""

import argparse
from collections.abc import Sequence

from fl_components.cli.common import given, subcommands

GROUPS = {  # command → one line about it, and the package whose modules have its commands
    "prepare": ("turn an official download or your own data into site folders", "fedmend.datasets"),
    "phantom": ("write synthetic data", "fedmend.phantoms.specs"),
}


def add(commands: argparse._SubParsersAction, words: Sequence[str] | None) -> None:
    """Adds the commands.

    Args:
        commands: where they are added.
        words: the command line. Datasets are imported only where it begins with ``prepare`` or ``phantom``: that takes
            seconds, for which no other command should wait. None: import all.

    Raises:
        FedMendError: two datasets have a command of one name.
    """
    init = commands.add_parser("init", help="ask about your own data, look at them, and write a site folder")
    init.add_argument("folder", nargs="?", help="folder of the images; what is not given is asked")
    init.add_argument("--labels", help="table of labels (CSV), datalist (JSON), or none: DICOM files without labels")
    init.add_argument("--out", help="the site folder that is made")
    init.add_argument("--classes", help="all classes of the federation, comma-separated")
    line = "columns with other names, e.g. image=File label=Diagnosis"
    init.add_argument("--columns", action="extend", nargs="+", metavar="NAME=COLUMN", help=line)
    init.add_argument("--window", help="file, none, brain, subdural, bone, lung or CENTRE,WIDTH")
    init.add_argument("--uncertain", choices=["blank", "positive", "negative"], help="what labels of -1 are taken as")
    line = "where no column names patients: regular expression for the part of an image's path that does"
    init.add_argument("--patient-from-path", metavar="REGEX", help=line)
    line = "share of the patients, of the images where none are known, in the {} split"
    init.add_argument("--test-share", type=float, help=line.format("test"))
    init.add_argument("--val-share", type=float, help=line.format("validation"))
    init.add_argument("--seed", type=int, default=1037, help="of the split")
    init.add_argument("--yes", action="store_true", help="take what is proposed, ask nothing")
    init.set_defaults(run=_init)
    for name, (summary, package) in GROUPS.items():
        group = subcommands(commands, name, summary, "DATASET")
        if words is not None and name not in words[:1]:
            continue
        from fedmend.basics.discovery import commands_of

        for command in commands_of(package):
            parser = group.add_parser(command.name, help=command.help)
            command.add_arguments(parser)
            parser.set_defaults(run=command.run)


def _init(args: argparse.Namespace) -> int:
    from fedmend.datasets.own_wizard import Answers, Wizard

    names = ("folder", "labels", "out", "classes", "columns", "window", "uncertain", "patient_from_path")
    said = given(args, *names, "test_share", "val_share", "seed")
    wizard = Wizard(Answers(**said), (lambda _: "") if args.yes else input)
    wizard.run()
    return wizard.exit_code
