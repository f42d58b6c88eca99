"""``predict``, ``send`` and ``evaluate``: a trained model asked about new images, and measured on labelled ones."""

import argparse
from pathlib import Path

from fl_components.cli.common import count, given, say

SOME_FAILED = 3  # exit code where some images could not be used


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command."""
    predict = commands.add_parser("predict", help="ask the model of a package about images, and write tables or masks")
    predict.add_argument("package", type=Path, help="NAME.fedmend, or the folder of its run")
    predict.add_argument("source", type=Path, help="DICOM studies, pictures or NIfTI volumes: folder, file or CSV")
    predict.add_argument("out", type=Path, help="folder for the results; with that of an interrupted call, it goes on")
    predict.add_argument(
        "--explain", type=count, default=0, metavar="N", help="also where the model looked, of the N surest findings"
    )
    predict.add_argument("--device", default="", help="cpu, cuda or cuda:1 (default: a GPU where there is one)")
    predict.add_argument(
        "--dicom", type=Path, metavar="FOLDER", help="also as DICOM: SEG of each series of masks, SR of each study"
    )
    predict.add_argument(
        "--send", metavar="ARCHIVE", help="send what --dicom has written to dicomweb:URL or AET@host:port"
    )
    predict.set_defaults(run=_predict)
    send = commands.add_parser("send", help="send DICOM results to an archive, again where it did not take them")
    send.add_argument("files", type=Path, nargs="+", help="DICOM files, or folders of them (.dcm)")
    send.add_argument("archive", help="dicomweb:URL or AET@host:port")
    send.set_defaults(run=_send)
    evaluate = commands.add_parser("evaluate", help="measure the model of a package on a split of a site folder")
    evaluate.add_argument("package", type=Path, help="NAME.fedmend, or the folder of its run")
    evaluate.add_argument("folder", type=Path, help="site folder with held-out or external data")
    evaluate.add_argument("--split", default="test", help="a split of its site.json (default: test)")
    evaluate.add_argument("--by", default="", metavar="COLUMNS", help="subgroups, e.g. scanner,age:40,60,sex:F,M")
    evaluate.add_argument(
        "--min-count", type=count, default=5, help="fewest people behind a number of a subgroup (default: 5)"
    )
    evaluate.add_argument("--device", default="", help="cpu, cuda or cuda:1 (default: a GPU where there is one)")
    evaluate.add_argument("--out", type=Path, default=Path("evaluation"), help="folder for page and numbers")
    evaluate.set_defaults(run=_evaluate)


def _predict(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from fedmend.errors import FedMendError
    from fedmend.package import Package

    if args.send:
        from fedmend.package.send import check_target, send

        if args.dicom is None:
            raise FedMendError("predict: expected --dicom FOLDER with --send, whose files are sent, got none")
        check_target(args.send)
    package = Package(args.package)
    say(package)
    if args.explain:
        from fedmend.package.explain import MAPS, check_has_maps, explain

        check_has_maps(package)
    what = "studies" if package.preprocessing.study_slices else "images"
    with tqdm(unit=f" {what}", disable=None) as bar:

        def progress(new: int, total: int) -> None:
            bar.total = total
            bar.update(new)

        how = {"device": args.device, "progress": progress, "dicom": args.dicom}
        found = package.predict(args.source, args.out, **how)
    if args.explain:
        number = explain(package, args.source, args.out, most=args.explain, device=args.device)
        words = "map of a positive finding" if number == 1 else "maps of positive findings"
        say(f"{number} {words} in {args.out / MAPS}; a map is weak evidence")
    if found.left_out:
        words = "scouts, screens, pages of doses, images of another quantity, copies; name them in a CSV to have them"
        say(f"left out: {found.left_out} {words}")
    if found.not_read:
        say(f"not read: {found.not_read}; expected DICOM, PNG, JPEG or NIfTI")
    if found.problems:
        say(f"{found.problems} of {found.images} {what} could not be used; predictions.csv says why")
    say(f"{found.images - found.problems} of {found.images} {what} predicted; results are in {found.folder}")
    if args.dicom is not None:
        written = "1 DICOM file is" if len(found.dicom) == 1 else f"{len(found.dicom)} DICOM files are"
        missing = "1 study or volume has" if found.without == 1 else f"{found.without} studies or volumes have"
        say(f"{written} in {args.dicom}; {missing} none")
    if args.send and found.dicom:
        send(found.dicom, args.send)
        say(f"sent: {len(found.dicom)} file{'s' * (len(found.dicom) != 1)} to {args.send}")
    return SOME_FAILED if found.problems else 0


def _send(args: argparse.Namespace) -> None:
    from fedmend.package.send import send

    send(args.files, args.archive)
    say(f"sent to {args.archive}")


def _evaluate(args: argparse.Namespace) -> int:
    from fedmend.basics.page import number, short_name
    from fedmend.data.card import STUDY, load_card
    from fedmend.evaluation.groups import columns_of
    from fedmend.package import Package
    from fedmend.package.evaluate import PAGE

    package, how = Package(args.package), given(args, "split", "min_count", "device")
    say(package)
    known = load_card(args.folder, args.folder.resolve().name).columns
    found = package.evaluate(args.folder, args.out, by=columns_of(args.by, [*known, STUDY]), **how)
    macro = found.results["metrics"]["macro"]
    shown = ", ".join(f"{short_name(name)} {number(value)}" for name, value in macro.items())
    mark = "PHANTOM " if found.results["phantom"] else ""
    say(f"{mark}{found.results['site']}, {args.split}, {found.results['samples']:,} samples: {shown}")
    say(f"page: {args.out / PAGE}")
    return 0
