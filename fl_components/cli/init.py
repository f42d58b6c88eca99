"""``init``: the wizard that makes a site folder of a hospital's own data."""

import argparse

from fl_components.cli.common import given


def add(commands) -> None:
    """Adds the command."""
    init = commands.add_parser("init", help="ask about your own data, look at them, and write a site folder")
    init.add_argument("folder", nargs="?", help="folder of the images; what is not given is asked")
    init.add_argument("--labels", help="table of labels (CSV), datalist (JSON), or none: DICOM files without labels")
    init.add_argument("--out", help="the site folder that is made")
    init.add_argument("--classes", help="all classes of the federation, comma-separated")
    init.add_argument(
        "--columns", nargs="+", metavar="NAME=COLUMN", help="columns with other names, e.g. image=File label=Diagnosis"
    )
    init.add_argument("--window", help="file, none, brain, subdural, bone, lung or CENTRE,WIDTH")
    init.add_argument("--test-share", type=float, help="share of the patients in the test split")
    init.add_argument("--val-share", type=float, help="share of the other patients in the validation split")
    init.add_argument("--seed", type=int, default=1037, help="of the split")
    init.add_argument("--yes", action="store_true", help="take what is proposed, ask nothing")
    init.set_defaults(run=_init)


def _init(args: argparse.Namespace) -> None:
    from fedmend.datasets.own_wizard import Answers, Wizard

    names = ("folder", "labels", "out", "classes", "columns", "window", "test_share", "val_share", "seed")
    Wizard(Answers(**given(args, *names)), (lambda _: "") if args.yes else input).run()
