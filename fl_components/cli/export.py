"""``export``: a trained model for other programs."""

import argparse
from pathlib import Path

from fl_components.cli.common import say


def add(commands: argparse._SubParsersAction) -> None:
    """Adds the command."""
    export = commands.add_parser("export", help="write the model of a package as a MONAI bundle, ONNX or torch.export")
    export.add_argument("package", type=Path, help="NAME.fedmend, or the folder of its run")
    export.add_argument("--monai", type=Path, metavar="FOLDER", help="new folder for a MONAI bundle")
    export.add_argument("--onnx", type=Path, metavar="FILE", help="new file .onnx")
    export.add_argument("--torch", type=Path, metavar="FILE", help="new file .pt2 of torch.export")
    export.set_defaults(run=_export)


def _export(args: argparse.Namespace) -> None:
    from fedmend.package import Package

    for written in Package(args.package).export(monai=args.monai, onnx=args.onnx, torch=args.torch):
        say(f"written: {written}")
