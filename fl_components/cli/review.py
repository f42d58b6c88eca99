"""``review`` and ``dicom-seg``: people of a site judge what was repaired, and take it into their own formats."""

import argparse
from pathlib import Path

from fedmend.errors import FedMendError
from fl_components.cli.common import count, positive, say


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the commands."""
    review = commands.add_parser("review", help="look at repaired labels in a browser on this machine, and judge them")
    where = review.add_mutually_exclusive_group(required=True)
    where.add_argument("place", type=Path, nargs="?", help="workspace of a simulation, or a run in it")
    where.add_argument("--state", type=Path, help="state_dir of a site")
    where.add_argument("--kit", type=Path, help="startup kit of a site")
    review.add_argument("--run", dest="run_name", help="name of the run (default: the newest)")
    review.add_argument("--site", help="name of the site, where the folder holds several")
    review.add_argument("--model", type=Path, help="package of the run, whose maps are shown (default: a kept one)")
    review.add_argument("--port", type=count, default=0, help="port of the page (default: any free one)")
    review.add_argument(
        "--export", type=Path, metavar="OUT", help="write corrected copies of the labels and a page to sign instead"
    )
    review.add_argument("--unseen", action="store_true", help="with --export: also repairs that nobody has judged")
    review.set_defaults(run=_review)
    seg = commands.add_parser("dicom-seg", help="write a mask as DICOM segmentation of the series it was drawn on")
    seg.add_argument("mask", type=Path, help="NIfTI label volume, e.g. of fedmend review --export")
    seg.add_argument("series", type=Path, help="folder of the DICOM series")
    seg.add_argument("out", type=Path, help="file to write")
    seg.add_argument("--label", default="lesion", help="name of the segment (default lesion)")
    seg.add_argument("--foreground", type=positive, default=1, help="value of the lesion in the mask (default 1)")
    seg.set_defaults(run=_dicom_seg)


def _review(args: argparse.Namespace) -> None:
    from fedmend.review.desk import Desk
    from fedmend.review.server import serve

    desk = Desk(find_run(args), args.model)
    if args.export is None:
        if args.unseen:
            raise FedMendError("--unseen: expected --export beside it")
        serve(desk, port=args.port)
        return
    from fedmend.review.sign_off import export

    for line in export(desk, args.export, unseen=args.unseen):
        say(line)


def _dicom_seg(args: argparse.Namespace) -> None:
    from fedmend.review.dicom_seg import mask_on_series, write_dicom_seg

    if args.out.resolve() == args.mask.resolve():
        raise FedMendError("dicom-seg, argument out: expected another file than the mask, got the mask")
    mask = mask_on_series(args.mask, args.series, args.foreground)
    write_dicom_seg(args.series, mask, args.label, args.out)
    say(f"{args.out} written")


def find_run(args: argparse.Namespace) -> Path:
    """The run that the arguments name.

    Raises:
        FedMendError: there is none, or there are several sites or folders to choose from.
    """
    from fedmend.review.desk import reviewable
    from fl_components.kit_state import state_of

    folder = state_of(args.kit) if args.kit else args.state or args.place
    found = reviewable(folder)
    for option, wanted, named in (
        ("--run", args.run_name, lambda run: run.parent.name),
        ("--site", args.site, lambda run: run.name),
    ):
        if wanted:
            names = sorted({named(run) for run in found})
            found = [run for run in found if named(run) == wanted]
            if not found:
                raise FedMendError(f"{option}: expected one of {', '.join(names)}, got {wanted}")
    newest = [run for run in found if run.parent.name == found[0].parent.name]
    if len(newest) > 1:
        names = sorted({run.name for run in newest})
        if len(names) > 1:
            raise FedMendError(f"--site: expected one of {', '.join(names)}")
        words = f"one run {newest[0].parent.name} of {names[0]}, got {len(newest)}; name the folder of one of them"
        raise FedMendError(f"review: expected a folder with {words}")
    return newest[0]
