"""A hospital's own volumes and masks → the datalist that pairs them by name, for ``fedmend prepare datalist``.

The bundles of MONAI have a script each that does so for the names of their data set. Here two patterns say what the
names are like, as ``imagesTr/*_0000`` and ``labelsTr/*``: a mask is that of the volume for which ``*`` stands for the
same text. Nothing is guessed.
"""

import json
import re
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from fedmend.basics.discovery import Command
from fedmend.basics.files import write_text
from fedmend.basics.words import say
from fedmend.data.identity import canonical
from fedmend.data.readers import NIFTI_SUFFIXES
from fedmend.datasets.checks import need
from fedmend.datasets.samples import Say

_ENDING = re.compile("|".join(rf"{re.escape(ending)}$" for ending in reversed(NIFTI_SUFFIXES)), re.IGNORECASE)


def write_datalist(folder: Path, out: Path, *, images: str, masks: str, progress: Say) -> None:
    """Writes a datalist of all volumes that have a mask.

    Args:
        folder: with the volumes and the masks, NIfTI files at any depth.
        out: file that is not there yet.
        images: pattern of their paths below the folder; ``*`` stands for any text without a slash, and ``.nii`` or
            ``.nii.gz`` behind it may be left out.
        masks: that of the masks.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: no volume has a mask, two files have the same text for ``*``, or ``out`` is there.
    """
    need(folder.is_dir(), "argument folder", "a folder", "none")
    need(not out.exists(), "argument out", "a file that is not there", "one that is")
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if _ENDING.search(file.name))
    volumes, marks = _matching(files, images, "images"), _matching(files, masks, "masks")
    where = "arguments images and masks"
    items = [{"image": volumes[k], "label": marks[k]} for k in volumes if k in marks]
    counts = f"no pair among {len(volumes)} volumes and {len(marks)} masks with such names"
    need(items, where, "patterns in which * stands for the same text in a volume and its mask", counts)
    same = sum(item["image"] == item["label"] for item in items)
    need(not same, where, "patterns of different files", f"{same} that fit both")
    write_text(out, json.dumps({"training": items}, indent=1) + "\n")
    progress(f"{len(items)} volumes with masks")
    left = {"volumes without a mask": len(volumes), "masks without a volume": len(marks)}
    for name, count in left.items():
        if count > len(items):
            progress(f"WARNING: {count - len(items)} {name} are left out")
    progress("next: " + shlex.join(["fedmend", "prepare", "datalist", str(out), "SITE", "--images", str(folder)]))


def _matching(files: list[str], pattern: str, name: str) -> dict[tuple[str, ...], str]:
    """What ``*`` stands for, the same text once → the file; hidden files fit no pattern."""
    parts = _ENDING.sub("", pattern.removeprefix("./").replace(".nii*", ".nii")).split("*")
    fits = re.compile(r"((?!\.)[^/]*)".join(map(re.escape, parts)))
    found: dict[tuple[str, ...], str] = {}
    for file in files:
        if match := fits.fullmatch(_ENDING.sub("", file)):
            key = tuple(dict.fromkeys(map(canonical, match.groups())))
            need(key not in found, f"argument {name}", "a pattern in which * differs from file to file", "two alike")
            found[key] = file
    return found


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="folder of the volumes and masks (NIfTI)")
    parser.add_argument("out", type=Path, help="the datalist (JSON) that is written")
    words = "their paths below the folder, with * for what a volume and its mask have in common:"
    parser.add_argument("--images", required=True, help=f"{words} 'imagesTr/*_0000', or '*/flair'")
    parser.add_argument("--masks", required=True, help="the same for masks: 'labelsTr/*', or '*/lesions'")


def _run(args: Namespace) -> None:
    write_datalist(args.folder, args.out, images=args.images, masks=args.masks, progress=say)


COMMANDS = (Command("volumes", "your own volumes and masks: a datalist that pairs them by name", _add_arguments, _run),)
