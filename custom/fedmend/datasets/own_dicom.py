"""A folder of DICOM files, as an archive exports them → a table to be labelled, or the site folder where labels are
given for studies, series, images, accession numbers or patients.

Names and depth of the files do not matter; files of other kinds are counted and passed over. The images stay where they
are and are read as they are. Series are told apart by their UID and their images sorted along the normal of the slices.
"""

import csv
import os
import warnings
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.files import whole_folder
from fedmend.basics.parallel import mapped
from fedmend.data.card import LONGEST_NAME
from fedmend.data.dicom_files import EXTRA
from fedmend.data.readers import NIFTI_SUFFIXES, PICTURE_SUFFIXES
from fedmend.datasets.checks import need
from fedmend.datasets.own_csv import MOST_CLASSES, class_arguments, class_names, column_names, labels_of, open_table
from fedmend.datasets.own_site import SiteChoices, add_choices, choices_of, done, write_own_site
from fedmend.datasets.samples import Say
from fedmend.datasets.site_folders import check_empty
from fedmend.errors import FedMendError

SOURCE = "own DICOM files"
TABLE = "images.csv"
# What labels can be given for, the finest first.
KEYS = ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "AccessionNumber", "PatientID")
FIELDS = (*KEYS, "Modality", "Rows", "Columns", "NumberOfFrames", "InstanceNumber")
PLACE, TURN = "ImagePositionPatient", "ImageOrientationPatient"
GROUPS = ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
NO_IMAGES = {"SEG", "RTDOSE", "RTSTRUCT", "RTPLAN", "PR", "SR", "KO", "REG"}
MOST_FRAMES = 100_000
FRONT = ("image", "patient", "study", "series", "slice", "modality")  # columns of the table before those of classes


@dataclass(frozen=True)
class DicomImage:
    """One image: a file, or a frame of one.

    Attributes:
        image: path below the folder, with ``#frame`` in a multi-frame file.
        keys: :data:`KEYS` → what the header says, an empty string where it says nothing.
        modality: DICOM's word.
        place: what sorts it in its series: distance along the normal in mm, or NaN; instance number; frame.
    """

    image: str
    keys: Mapping[str, str]
    modality: str
    place: tuple[float, int, int]


def find_images(folder: Path, *, processes: int | None = None) -> tuple[list[DicomImage], Counter]:
    """All images below a folder, patient by patient, study by study, series by series, each in order; and what was
    passed over: why → number of files.

    Args:
        folder: where the files lie; links that lead out of it are passed over.
        processes: that read headers; None: one per core.

    Raises:
        FedMendError: no such folder, or images whose transfer syntax cannot be decoded here.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise FedMendError("dicom, argument source: expected a folder, not found")
    passed: Counter[str] = Counter()
    lacking: Counter[str] = Counter()
    names, images = [], []
    for path in _files(folder):
        reason = _unusable(path, folder)
        passed[reason] += bool(reason)
        if not reason:
            names.append(path)
    for path, found in zip(names, mapped(_images, names, processes=processes), strict=True):
        if isinstance(found, str):
            passed[found] += 1
            continue
        syntax, frames = found
        lacking[syntax] += bool(syntax)
        name = path.relative_to(folder).as_posix()
        for keys, modality, place in frames:
            images.append(DicomImage(f"{name}#{place[2]}" if len(frames) > 1 else name, keys, modality, place))
    if lacking := +lacking:
        words = ", ".join(f"{name} ({count} files)" for name, count in lacking.most_common())
        raise FedMendError(f"dicom: expected transfer syntaxes that can be decoded here ({EXTRA}), got also {words}")
    return _sorted(images), +passed


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _unusable(path: Path, folder: Path) -> str:
    """Why a file cannot be named in a table; nothing if it can."""
    name = path.relative_to(folder).as_posix()
    if path.name.upper() == "DICOMDIR":
        return "DICOMDIR"
    if path.name.lower().endswith((*PICTURE_SUFFIXES, *NIFTI_SUFFIXES)):
        return "pictures and volumes of other formats"
    if "#" in path.name or name != name.strip() or not name.isprintable() or len(path.name) > LONGEST_NAME:
        return "names with # or signs that cannot be printed"
    if not path.resolve().is_relative_to(folder):
        return "links that lead out of the folder"
    return "" if path.is_file() else "no files"


def _images(path: Path) -> str | tuple[str, list[tuple[dict[str, str], str, tuple[float, int, int]]]]:
    """Why a file has no images for us; or the transfer syntax that cannot be decoded, if so, and per frame its keys,
    modality and place."""
    import pydicom
    from pydicom.errors import InvalidDicomError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=[*FIELDS, PLACE, TURN, *GROUPS])
            if not (header.get("Rows") and header.get("Columns")) or header.get("Modality") in NO_IMAGES:
                return "DICOM without images, e.g. reports"
            frames = int(header.get("NumberOfFrames") or 1)
            if not 1 <= frames <= MOST_FRAMES:
                return "damaged DICOM files"
            keys = {name: str(header.get(name) or "").strip() for name in KEYS}
            modality, number = str(header.get("Modality") or ""), int(header.get("InstanceNumber") or 0)
            places = [(_height(header, frame), number, frame) for frame in range(frames)]
            return _lacking_decoder(header.file_meta.TransferSyntaxUID), [(keys, modality, p) for p in places]
    except InvalidDicomError:
        return "files of other kinds"
    except Exception:  # pydicom raises many types for a damaged file
        return "damaged DICOM files"


def _lacking_decoder(syntax: Any) -> str:
    """The name of a transfer syntax that cannot be decoded here; nothing if it can."""
    from pydicom.pixels import get_decoder

    if not syntax.is_encapsulated:
        return ""
    try:
        return "" if get_decoder(syntax).is_available else syntax.name
    except NotImplementedError:  # films
        return syntax.name if syntax.is_transfer_syntax else "an unknown one"


def _height(header: Any, frame: int) -> float:
    """Distance of a slice along its normal in mm; NaN where the header does not say it."""
    place = turn = None
    own = header.get(GROUPS[0]) or []
    for group in (*own[frame : frame + 1], *(header.get(GROUPS[1]) or [])[:1]):
        if place is None and (found := group.get("PlanePositionSequence")):
            place = found[0].get(PLACE)
        if turn is None and (found := group.get("PlaneOrientationSequence")):
            turn = found[0].get(TURN)
    place, turn = (header.get(PLACE) if place is None else place), (header.get(TURN) if turn is None else turn)
    if not place or not turn or (len(place), len(turn)) != (3, 6):
        return float("nan")
    axes = np.array(turn, dtype=float)
    return float(np.array(place, dtype=float) @ np.cross(axes[:3], axes[3:]))


def _sorted(images: Sequence[DicomImage]) -> list[DicomImage]:
    """By patient, study and series; a series by the places of its images if all have one, else by their numbers."""
    series: dict[tuple, list[DicomImage]] = {}
    for image in images:
        key = tuple(image.keys[name] for name in ("PatientID", "StudyInstanceUID", "SeriesInstanceUID"))
        series.setdefault(key, []).append(image)
    ordered = []
    for _, group in sorted(series.items()):
        placed = np.isfinite([image.place[0] for image in group]).all()
        ordered += sorted(group, key=lambda image: (image.place[0] if placed else 0.0, *image.place[1:], image.image))
    return ordered


def prepare(
    source: Path,
    out: Path,
    *,
    labels: Path | None = None,
    classes: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    choices: SiteChoices,
    processes: int | None = None,
    progress: Say | None = None,
) -> None:
    """Writes ``out``: with ``labels`` the site folder, without them a table of all images to be labelled.

    That table, ``images.csv``, has running numbers for patients, studies and series, and an empty column for each
    class; filled in, it goes to :func:`fedmend.datasets.own_csv.prepare`.

    Args:
        source: folder of DICOM files.
        out: folder that is not there yet, or empty.
        labels: CSV file with one or more of the columns :data:`KEYS`, of which the finest counts, and labels as in
            :mod:`fedmend.datasets.own_csv`; a row counts for all its images, images without a row are left out.
        classes: all classes of the federation, see :func:`fedmend.datasets.own_csv.prepare`.
        columns: names of columns in ``labels``, see there.
        choices: what the hospital decides, with labels.
        processes: see :func:`find_images`.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: no images, transfer syntaxes that cannot be decoded here, labels that cannot be used or are of
            none of the images, or ``out`` is taken.
    """
    say, source, out = progress or (lambda line: None), Path(source), Path(out)
    check_empty(out)
    images, passed = find_images(source, processes=processes)
    for reason, count in passed.most_common():
        say(f"passed over: {count} {reason}")
    if not images:
        raise FedMendError("dicom, argument source: expected DICOM images in it, found none")
    numbers = {name: _numbers(image.keys[name] for image in images) for name in KEYS}
    sizes = f"{len(numbers['StudyInstanceUID'])} studies and {len(numbers['SeriesInstanceUID'])} series"
    say(f"{len(images)} images of {len(numbers['PatientID'])} patients in {sizes}")
    if labels is None:
        _write_table(out, images, numbers, classes)
        say(f"fill in {out / TABLE}, then:")
        say(f"fedmend prepare csv {out / TABLE} SITE_FOLDER --images {source} --classes ...")
        return
    header, rows = _joined(images, numbers["PatientID"], Path(labels), columns or {}, say)
    labelled = labels_of(header, rows, classes, file=Path(labels).name, say=say, uncertain=choices.uncertain)
    write_own_site(out, labelled, root=source, choices=choices, source=SOURCE, say=say)


def _numbers(values: Iterator[str]) -> dict[str, int]:
    """Value → running number; a blank has none."""
    return {value: n for n, value in enumerate(dict.fromkeys(v for v in values if v), 1)}


def _patient(image: DicomImage, numbers: Mapping[str, int]) -> str:
    number = numbers.get(image.keys["PatientID"])
    return f"p{number}" if number else ""


def _write_table(
    out: Path, images: Sequence[DicomImage], numbers: Mapping[str, Mapping], classes: Sequence[str]
) -> None:
    good = len(classes) <= MOST_CLASSES and not set(classes) & set(FRONT)
    need(good, "argument classes", f"at most {MOST_CLASSES} names other than {list(FRONT)}", "others")
    place: Counter = Counter()
    with whole_folder(out.resolve()) as folder, open(folder / TABLE, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*FRONT, *classes])
        for image in images:
            study, series = (numbers[name].get(image.keys[name], "") for name in ("StudyInstanceUID", KEYS[1]))
            place[study, series] += 1
            row = [image.image, _patient(image, numbers["PatientID"]), study, series, place[study, series]]
            writer.writerow([*row, image.modality, *[""] * len(classes)])


def _joined(
    images: Sequence[DicomImage],
    patients: Mapping[str, int],
    file: Path,
    columns: Mapping[str, str],
    say: Say,
) -> tuple[list[str], list[tuple[int, dict]]]:
    """Header and rows of a table of images, with the labels of a table of studies, series, ..."""
    header, rows = open_table(file, columns)
    key = next((name for name in KEYS if name in header), None)
    if key is None:
        raise FedMendError(f"{file.name}, header: expected one of the columns {list(KEYS)}, got none")
    labels = [name for name in header if name not in (*KEYS, *FRONT)]
    known: dict[str, tuple[int, dict]] = {}
    for number, record in rows:
        shown = {name: record[name] for name in labels}
        first, other = known.setdefault(record[key], (number, shown))
        need(record[key], f"{file.name} row {number}, column {key}", "a value", "a blank")
        words = f"the labels of row {first}, which has the same {key}"
        need(shown == other, f"{file.name} row {number}", words, "others")
    found = [(image, known[image.keys[key]]) for image in images if image.keys[key] in known]
    used = len({image.keys[key] for image, _ in found})
    words = f"{len(found)} images have some, {len(images) - len(found)} are left out"
    say(f"labels by {key}: {words}; {len(known) - used} of {len(known)} labels have no image")
    need(found, f"{file.name}, column {key}", "values that the images have", "none of them")
    cells = [
        (number, {"image": image.image, "patient": _patient(image, patients), **shown})
        for image, (number, shown) in found
    ]
    return ["image", "patient", *labels], cells


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="folder of DICOM files, of any depth")
    parser.add_argument("out", type=Path, help="the folder that is made")
    words = "CSV with labels by SOPInstanceUID, SeriesInstanceUID, StudyInstanceUID, AccessionNumber or PatientID"
    parser.add_argument("--labels", type=Path, help=f"{words}; without it, {TABLE} is made, to be filled in")
    class_arguments(parser)
    add_choices(parser)


def _run(args: Namespace) -> None:
    names, columns = class_names(args.classes), column_names(args.columns)
    given = {"labels": args.labels, "classes": names, "columns": columns, "choices": choices_of(args)}
    prepare(args.source, args.out, **given, progress=print)
    if args.labels:
        print(done(args.out))


COMMANDS = (
    Command(
        "dicom", "your own folder of DICOM files: a table to be labelled, or one site folder", _add_arguments, _run
    ),
)
