"""A folder of DICOM files, as an archive exports them → a table to be labelled, or the site folder where labels are
given for studies, series, images, accession numbers or patients.

The images stay where they are and are read as they are. :mod:`fedmend.datasets.own_dicom_files` finds them,
:mod:`fedmend.datasets.own_dicom_choice` says which of them a label of a study is about.
"""

import csv
import shlex
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmend.basics.discovery import Command
from fedmend.basics.files import whole_folder
from fedmend.basics.words import say
from fedmend.data.identity import canonical, loose, matched
from fedmend.datasets.checks import need
from fedmend.datasets.own_csv import MOST_CLASSES, class_arguments, class_names, column_names, labels_of, open_table
from fedmend.datasets.own_dicom_choice import KEPT, chosen, is_nobody, once, patients_of, studies_of, tell
from fedmend.datasets.own_dicom_files import KEYS, DicomImage, find_images
from fedmend.datasets.own_labels import class_columns
from fedmend.datasets.own_site import SiteChoices, add_choices, choices_of, done, per_study_argument, write_own_site
from fedmend.datasets.samples import Say
from fedmend.datasets.site_folders import check_empty
from fedmend.errors import FedMendError

SOURCE = "own DICOM files"
TABLE = "images.csv"
FRONT = ("image", "patient", "study", "series", "slice", "modality")  # columns of the table before those of classes


def prepare(
    source: Path,
    out: Path,
    *,
    labels: Path | None = None,
    classes: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    choices: SiteChoices,
    keep: Sequence[str] = (),
    modalities: Sequence[str] = (),
    processes: int | None = None,
    progress: Say | None = None,
) -> None:
    """Writes ``out``: with ``labels`` the site folder, without them a table of images to be labelled.

    That table, ``images.csv``, has running numbers for patients, studies and series, and an empty column for each
    class; filled in, it goes to :func:`fedmend.datasets.own_csv.prepare`.

    Args:
        source: folder of DICOM files.
        out: folder that is not there yet, or empty.
        labels: CSV file with one or more of the columns :data:`KEYS`, of which the finest finds images, and labels as
            in :mod:`fedmend.datasets.own_csv`; a row counts for all its images. Images without a row are left out, and
            so are those whose header has something else than the row in another of these columns.
        classes: all classes of the federation, see :func:`fedmend.datasets.own_csv.prepare`.
        columns: names of columns in ``labels``, see there.
        choices: what the hospital decides, with labels.
        keep: see :func:`fedmend.datasets.own_dicom_choice.chosen`; labels of single images keep all that they name.
        modalities: see there.
        processes: see :func:`fedmend.datasets.own_dicom_files.find_images`.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: no images, transfer syntaxes that cannot be decoded here, labels that cannot be used or are of
            none of the images, or ``out`` is taken.
    """
    say, source, out = progress or (lambda line: None), Path(source), Path(out)
    check_empty(out)
    if labels is None:
        images = chosen(_found(source, processes, say), say, keep=keep, modalities=modalities)
        tell(images, say)
        units = patients_of(images, say)
        _write_table(out, images, units, studies_of(images, units, say), classes)
        say(f"fill in {out / TABLE}, then:")
        words = ["fedmend", "prepare", "csv", str(out / TABLE), "SITE_FOLDER", "--images", str(source)]
        say(f"{shlex.join(words)} --classes ...")
        return
    how: Any = {"classes": classes, "keep": keep, "modalities": modalities, "processes": processes}
    header, rows, units = labelled_images(source, Path(labels), columns or {}, **how, say=say)
    labelled = labels_of(header, rows, classes, file=Path(labels).name, say=say, uncertain=choices.uncertain)
    write_own_site(out, labelled, root=source, choices=choices, source=SOURCE, units=units, say=say)


def labelled_images(
    source: Path,
    labels: Path,
    columns: Mapping[str, str],
    *,
    classes: Sequence[str] = (),
    keep: Sequence[str] = (),
    modalities: Sequence[str] = (),
    processes: int | None = None,
    say: Say,
) -> tuple[list[str], list[tuple[int, dict]], list[str]]:
    """Header and rows of a table of the images that have labels, for :func:`fedmend.datasets.own_csv.labels_of`; and
    what stands in the rows' column ``patient``: :data:`fedmend.datasets.own_site.UNITS`.

    Args:
        source: see :func:`prepare`.
        labels: see :func:`prepare`.
        columns: see :func:`prepare`.
        classes: see :func:`prepare`.
        keep: see :func:`prepare`.
        modalities: see :func:`prepare`.
        processes: see :func:`prepare`.
        say: called with one line of text at a time.

    Raises:
        FedMendError: no images, transfer syntaxes that cannot be decoded here, or labels of none of the images.
    """
    header, rows = open_table(labels, columns)
    key = next((name for name in KEYS if name in header), None)
    if key is None:
        words = f"one of the columns {list(KEYS)} (or --columns {KEYS[3]}=ITS_NAME)"
        raise FedMendError(f"{labels.name}, header: expected {words}, got none")
    images = _found(source, processes, say)
    if key != KEYS[0]:
        images = chosen(images, say, keep=keep, modalities=modalities)
    pairs = _joined(images, rows, key, _of_labels(header, classes, labels.name), labels.name, say)
    images = [image for image, _ in pairs]
    tell(images, say)
    units = patients_of(images, say)
    numbers = _numbers(units)
    cells = [
        (number, {"image": image.image, "patient": numbers.get(unit, ""), "study": study, **shown})
        for (image, (number, shown)), unit, study in zip(pairs, units, studies_of(images, units, say), strict=True)
    ]
    header = ["image", "patient", "study", *(name for name in header if name not in (*KEYS, *FRONT))]
    return header, cells, [unit.partition(" ")[0] or "image" for unit in units]


def _found(source: Path, processes: int | None, say: Say) -> list[DicomImage]:
    images, passed = find_images(source, processes=processes)
    for reason, count in passed.most_common():
        say(f"passed over: {count} {reason}")
    if not images:
        raise FedMendError("dicom, argument source: expected DICOM images in it, found none")
    series, studies, patients = (len({image.keys[name] for image in images} - {""}) for name in (*KEYS[1:3], KEYS[4]))
    say(f"{len(images)} images of {patients} patients in {studies} studies and {series} series")
    return once(images, source, say)


def _numbers(values: Iterable[str], letter: str = "p") -> dict[str, str]:
    """Value → letter and running number; a blank has none."""
    return {value: f"{letter}{n}" for n, value in enumerate(dict.fromkeys(v for v in values if v), 1)}


def _write_table(
    out: Path, images: Sequence[DicomImage], units: Sequence[str], exams: Sequence[str], classes: Sequence[str]
) -> None:
    good = len(classes) <= MOST_CLASSES and not set(classes) & set(FRONT)
    need(good, "argument classes", f"at most {MOST_CLASSES} names other than {list(FRONT)}", "others")
    patients, studies, groups = _numbers(units), _numbers(exams, ""), _numbers((i.keys[KEYS[1]] for i in images), "")
    place: Counter = Counter()
    with whole_folder(out.resolve()) as folder, open(folder / TABLE, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow([*FRONT, *classes])
        for image, unit, exam in zip(images, units, exams, strict=True):
            study, series = studies.get(exam, ""), groups.get(image.keys[KEYS[1]], "")
            place[study, series] += 1
            row = [image.image, patients.get(unit, ""), study, series, place[study, series]]
            writer.writerow([*row, image.modality, *[""] * len(classes)])


def _of_labels(header: Sequence[str], classes: Sequence[str], file: str) -> set[str]:
    """The columns that may hold labels: rows of one id, as of a patient's visits, may differ in all others."""
    free = [name for name in header if name not in (*KEYS, *FRONT)]
    return {"label"} & {*free} or {*(class_columns(free, classes, file) if classes else free)}


def _joined(
    images: Sequence[DicomImage], rows: Sequence[tuple[int, dict]], key: str, given: set[str], file: str, say: Say
) -> list[tuple[DicomImage, tuple[int, dict]]]:
    """The images that have labels, each with its row; ``key`` finds them, and no other key may contradict. Rows of one
    id have the same labels in the columns ``given``."""
    coarser = [name for name in KEYS[KEYS.index(key) + 1 :] if name in rows[0][1]] if rows else []
    known: dict[str, tuple[int, dict]] = {}
    others_of: dict[str, list[dict]] = {}
    for number, record in rows:
        name = canonical(record[key])
        shown = {column: cell for column, cell in record.items() if column not in (*KEYS, *FRONT)}
        first, other = known.setdefault(name, (number, shown))
        need(name, f"{file} row {number}, column {key}", "a value", "a blank")
        words = f"the labels of row {first}, which has the same {key}"
        same = all(shown[column] == other[column] for column in given)
        hint = "; --classes names those with labels, if other columns differ" * (len(given) > 1 and given == {*shown})
        need(same, f"{file} row {number}", words, f"others{hint}")
        others_of.setdefault(name, []).append({c: loose(record[c]) for c in coarser if not is_nobody(record[c])})
    meant, rewritten = matched([image.keys[key] for image in images], list(known), f"{file}, column {key}")
    named = [image for image in images if image.keys[key] in meant]
    found = [
        (image, known[meant[image.keys[key]]])
        for image in named
        if any(_agrees(image, others) for others in others_of[meant[image.keys[key]]])
    ]
    used = len({number for _, (number, _) in found})
    words = f"{len(found)} images have some, {len(images) - len(found)} are left out"
    say(f"labels by {key}: {words}; {len(known) - used} of {len(known)} labels have no image")
    if rewritten:
        say(f"{rewritten} of them are written otherwise in the table, but for leading zeros, case or blanks the same")
    need(named, f"{file}, column {key}", "values that the images have", "none of them")
    columns = " or ".join(coarser)
    if differ := len(named) - len(found):
        say(f"warning: {differ} of those left out have the {key} of a row, but another {columns}")
    need(found, f"{file}, column {columns}", f"that of the image whose {key} is in the row", "another in all rows")
    unnamed = [image for image, _ in found if not any(KEYS[4] in row for row in others_of[meant[image.keys[key]]])]
    _check_one_patient_each(unnamed, key, f"{file}, column {key}")
    return found


def _check_one_patient_each(images: Iterable[DicomImage], key: str, where: str) -> None:
    """Refuses labels of several patients whom no row names: archives that were put together repeat accession numbers,
    and which of the patients is meant cannot be known."""
    people: dict[str, set[str]] = {}
    for image in images:
        patient = image.keys[KEYS[4]]
        people.setdefault(loose(image.keys[key]), set()).update(() if is_nobody(patient) else {loose(patient)})
    several = sum(len(own) > 1 for own in people.values())
    words = "images of one patient for each label (or rows that name their PatientID, too)"
    need(not several, where, words, f"{several} that label several patients")


def _agrees(image: DicomImage, others: Mapping[str, str]) -> bool:
    """Whether the header of an image contradicts none of the other keys of a row, in their loose form."""
    return all(is_nobody(image.keys[name]) or loose(image.keys[name]) == text for name, text in others.items())


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="folder of DICOM files, of any depth")
    parser.add_argument("out", type=Path, help="the folder that is made")
    words = "CSV with labels by SOPInstanceUID, SeriesInstanceUID, StudyInstanceUID, AccessionNumber or PatientID"
    parser.add_argument("--labels", type=Path, help=f"{words}; without it, {TABLE} is made, to be filled in")
    words = "kinds of images that labels of studies, series and patients count for, too"
    parser.add_argument("--keep", action="extend", nargs="+", default=[], choices=list(KEPT), help=words)
    words = "modalities that they count for (default: the one of most images)"
    parser.add_argument("--modality", action="extend", nargs="+", default=[], help=words)
    class_arguments(parser)
    add_choices(parser)
    per_study_argument(parser)


def _run(args: Namespace) -> int:
    names, columns = class_names(args.classes), column_names(args.columns)
    given = {"labels": args.labels, "classes": names, "columns": columns, "choices": choices_of(args)}
    given |= {"keep": args.keep, "modalities": args.modality}
    prepare(args.source, args.out, **given, progress=say)
    return done(args.out, say) if args.labels else 0


COMMANDS = (
    Command(
        "dicom", "your own folder of DICOM files: a table to be labelled, or one site folder", _add_arguments, _run
    ),
)
