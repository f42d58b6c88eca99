"""A hospital's own table of images and labels → its site folder.

The table has a column ``image``, optionally ``patient``, and a column for each class with 1, 0 or blank, or one column
``label`` with a class name or blank. Options tell which columns have other names; a spreadsheet's semicolons and byte
order mark are understood.
"""

import csv
import io
import re
import unicodedata
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

from fedmend.basics.discovery import Command
from fedmend.basics.words import say
from fedmend.data.csv_files import bounded_fields, read_csv
from fedmend.data.identity import canonical, loose, names_of, one_path
from fedmend.data.tables import LabelTable, read_rows
from fedmend.datasets.checks import need
from fedmend.datasets.own_labels import Cells, Labelled, class_columns, uncertain_argument
from fedmend.datasets.own_site import SiteChoices, add_choices, choices_of, done, per_study_argument, write_own_site
from fedmend.datasets.samples import Say
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL

SOURCE = "own table"
MOST_CLASSES = 200
_JOINT = r"[\W_]+(?:(?:and|und|et|y|e|en|och|og|with|mit|avec|con)\s+)?"  # what parts several labels in one cell
_OTHER = ("image", "patient", "study")


def prepare(
    source: Path,
    out: Path,
    *,
    images: Path | None = None,
    classes: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    choices: SiteChoices,
    progress: Say | None = None,
) -> None:
    """Writes the site folder ``out``.

    Args:
        source: CSV file.
        out: folder that is not there yet, or empty.
        images: folder that the paths in the table start from; None: that of the table.
        classes: all classes of the federation; the table's other columns are left out. Empty: all its columns are
            classes, or all names in the column ``label``.
        columns: ``image``, ``patient``, ``label`` or a class → name of its column in the table.
        choices: what the hospital decides.
        progress: called with one line of text at a time.

    Raises:
        FedMendError: a table that cannot be used, an image that is missing or outside its folder, or ``out`` is taken.
    """
    say, source = progress or (lambda line: None), Path(source)
    header, rows = open_table(source, columns or {})
    labelled = labels_of(header, rows, classes, file=source.name, say=say, uncertain=choices.uncertain)
    root = source.parent if images is None else Path(images)
    write_own_site(out, labelled, root=root, choices=choices, source=SOURCE, say=say)


def open_table(file: Path, columns: Mapping[str, str]) -> tuple[list[str], list[tuple[int, dict]]]:
    """Header and rows of a table, the columns with the names that FedMend has for them. Columns without name and
    without values, as spreadsheets leave behind the last one, are none; nor are rows without values.

    Raises:
        FedMendError: no such file or column, a name that two columns would have, or a row of another length.
    """
    where = file.name
    if not file.is_file():
        raise FedMendError(f"{where}: expected a table, not found")
    header, records = read_csv(file, where)
    rows = [(number, record) for number, record in records if any(map(_holds_something, record.values()))]
    for number, record in rows:
        whole = None not in record and None not in record.values()
        need(whole, f"{where} row {number}", f"{len(header)} fields as in the header", "another number")
    kept = [name for name in header if _name(name) or any(record[name].strip() for _, record in rows)]
    header = [_name(name) or name for name in kept]
    rows = [(number, {name: record[name] for name in kept}) for number, record in rows]
    columns = {name: _name(column) for name, column in columns.items()}
    lacking = sum(name not in header for name in columns.values())
    need(not lacking, f"{where}, header", "the columns that --columns names", f"none for {lacking}")
    new = {old: name for name, old in columns.items()}
    shown = [new.get(name, name) for name in header]
    twice = len(shown) - len(set(shown))
    need(not twice, f"{where}, header", "each column once", f"{twice} twice")
    read = [one_path if name == "image" else canonical for name in shown]
    cells = (
        (number, [form(text) for form, text in zip(read, record.values(), strict=True)]) for number, record in rows
    )
    return shown, [(number, dict(zip(shown, values, strict=True))) for number, values in cells]


def _holds_something(cell: str | list[str] | None) -> bool:
    return any(text.strip() for text in (cell if isinstance(cell, list) else [cell or ""]))


def _name(column: str | None) -> str:
    """The name of a column with composed letters, as keyboards write them: a Mac may keep accents apart."""
    return unicodedata.normalize("NFC", (column or "").strip())


def labels_of(
    header: Sequence[str],
    rows: Iterable[tuple[int, dict]],
    classes: Sequence[str],
    *,
    file: str,
    say: Say,
    uncertain: str | None = None,
) -> Labelled:
    """Kind of labels, table of rows that are open, and what was made of its cells.

    Args:
        header: the columns, one of them ``image``.
        rows: number and content of each row.
        classes: see :func:`prepare`.
        file: name of the table.
        say: called with one line of text at a time.
        uncertain: what a label that the table calls uncertain is taken as, see :mod:`fedmend.datasets.own_labels`.

    Raises:
        FedMendError: no classes, or rows that cannot be used.
    """
    words = "a column 'image' (or --columns image=ITS_NAME)"
    need("image" in header, f"{file}, header", words, f"{len(header)} other columns")
    rows, single, named = list(rows), "label" in header, bool(classes)
    columns, classes = _classes_in(header, rows, classes, file)
    others = [name for name in header if name in _OTHER]
    if left := [name or "one without a name" for name in header if name not in {*others, *columns}]:
        say_left_out(left, say)
    cells = Cells(classes if single else None, uncertain)

    def shown(number: int, record: dict) -> dict:
        labels = {new: cells.read(record[old], f"{file} row {number}, column {old}") for old, new in columns.items()}
        return {**{name: record[name] for name in others}, **labels}

    kind = SINGLELABEL if single else MULTILABEL
    try:
        records = ((number, shown(number, record)) for number, record in rows)
        table = read_rows([*others, *columns.values()], records, kind, classes, file=file, where=file)
    except FedMendError as e:
        hint = (
            "; name the columns of classes with --classes" if "1, 0 or blank, got text" in str(e) and not named else ""
        )
        raise FedMendError(f"{e}{hint}") from None
    if repeated := len(rows) - len(table.images):
        say(f"{repeated} rows name an image a second time and are left out")
    notes = cells.notes() | ({} if single else _never_denied(table)) | _merged_cells(table)
    if not single:
        table, blank = _looked_for(table)
        notes |= blank
    for line in notes.values():
        say(line)
    return Labelled(kind, table, notes)


def say_left_out(columns: Sequence[str], say: Say) -> None:
    """Names columns that are left out, and what follows where one of them seems to hold splits."""
    say(f"columns that are left out: {', '.join(columns)[:200]}")
    if any(loose(name) == "split" for name in columns):
        say("splits are drawn anew, whatever the column split says; of splits of your own, write a table each")


def label_names(cells: Iterable[str], file: str) -> list[str]:
    """The classes that a column ``label`` names, sorted.

    Args:
        cells: of all rows.
        file: name of the table.

    Raises:
        FedMendError: some cells name several of the others, as ``Edema|Mass``, which are no class of their own.
    """
    names = names_of(cell for cell in cells if loose(cell) != "-1")
    if len(names) > MOST_CLASSES:  # is refused, whatever they are
        return names
    one = f"(?:{'|'.join(re.escape(loose(name)) for name in sorted(names, key=len, reverse=True))})"
    several = re.compile(f"{one}(?:{_JOINT}{one})+")
    joined = sum(several.fullmatch(loose(name)) is not None for name in names)
    words = "one class in each cell (several labels need a column of 1 and 0 for each class)"
    need(not joined, f"{file}, column label", words, f"{joined} names that join others, as A|B does")
    return names


def _classes_in(
    header: Sequence[str], rows: Sequence[tuple[int, dict]], classes: Sequence[str], file: str
) -> tuple[dict[str, str], Sequence[str]]:
    """Column → its class, or the column ``label`` alone; and all classes."""
    if "label" in header:
        classes = classes or label_names((record["label"] for _, record in rows), file)
        got = len(classes) or ("blanks alone" if rows else "no row")
        need(1 <= len(classes) <= MOST_CLASSES, f"{file}, column label", f"names of 1 to {MOST_CLASSES} classes", got)
        return {"label": "label"}, classes
    columns = class_columns([name for name in header if name not in _OTHER], classes, file)
    classes = classes or list(columns)
    words = "a name for every column with values (or --classes, which leaves others out)"
    need(all(map(str.strip, columns)), f"{file}, header", words, "one without")
    words = f"a column 'label' or 1 to {MOST_CLASSES} columns of classes (name them with --classes)"
    got = len(classes) if columns else "none"
    need(columns and 1 <= len(classes) <= MOST_CLASSES, f"{file}, header", words, got)
    return columns, classes


def _looked_for(table: LabelTable) -> tuple[LabelTable, dict[str, str]]:
    """The table without the columns of blanks alone, beside others; and a note that says so: nobody looked for these
    classes."""
    found = (table.labels != NOT_ANNOTATED).any(0)
    blank = table.annotated & ~found
    if not found.any() or not blank.any():
        return table, {}
    words = f"columns of classes ({_listed(table, blank)}) have blanks alone: these classes are not annotated here"
    return replace(table, annotated=found), {"not_annotated": words}


def _listed(table: LabelTable, which: np.ndarray) -> str:
    return ", ".join(compress(table.classes, which))[:200]


def _never_denied(table: LabelTable) -> dict[str, str]:
    """A note where classes have 1 and blanks alone: many tables leave "no" blank, which is another thing here."""
    found = (table.labels == 1).any(0) & ~(table.labels == 0).any(0) & (table.labels == NOT_ANNOTATED).any(0)
    if not found.any():
        return {}
    words = "have 1 and blanks alone. A blank says that nobody looked; where it means no, write 0"
    return {"only_positive": f"WARNING: classes ({_listed(table, found)}) {words}"}


def _merged_cells(table: LabelTable) -> dict[str, str]:
    """A note where each image without a label comes after one of the same patient that has one: of merged cells a
    spreadsheet writes the first alone."""
    blank = np.flatnonzero((table.labels == NOT_ANNOTATED).all(1)).tolist()
    people = table.patients
    after = [i > 0 and (not people[i] or people[i] == people[i - 1]) for i in blank]
    if not blank or not any(people) or not all(after):
        return {}
    words = "images have no label, each after one of the same patient that has one; if cells of a spreadsheet were"
    return {"merged_cells": f"WARNING: {len(blank)} {words} merged, fill them down first"}


def column_names(words: Sequence[str]) -> dict[str, str]:
    """``NAME=COLUMN`` → name and column.

    Raises:
        FedMendError: a word of another form.
    """
    pairs = [word.partition("=")[::2] for word in words]
    good = all(name and column for name, column in pairs) and len({name for name, _ in pairs}) == len(pairs)
    need(good, "argument columns", "different words like image=File_Name", "others")
    return dict(pairs)


def class_arguments(parser: ArgumentParser) -> None:
    """Adds how the columns of a table are to be understood."""
    words = "all classes of the federation, comma-separated, a name with a comma in quotation marks"
    words += " (default: all columns but image and patient)"
    parser.add_argument("--classes", default="", help=words)
    words = "columns with other names, e.g. image=File patient=PatientID label=Diagnosis"
    parser.add_argument("--columns", action="extend", nargs="+", default=[], metavar="NAME=COLUMN", help=words)
    uncertain_argument(parser)


def class_names(text: str) -> tuple[str, ...]:
    """What ``--classes`` says: names between commas, one that has a comma itself in quotation marks; a line break, as
    headers of spreadsheets have, is a blank.

    Raises:
        FedMendError: two names are the same in every table, as 2 and 2.0.
    """
    with bounded_fields("argument classes"):
        fields = next(csv.reader([" ".join(text.splitlines())], skipinitialspace=True), [])
    names = tuple(_name(name) for name in fields if name.strip())
    one = len(names) - len({*map(canonical, names)})
    need(not one, "argument classes", "names that differ (2 and 2.0 are one)", f"{one} that another one equals")
    return names


def class_words(names: Sequence[str]) -> str:
    """What :func:`class_names` reads as these names."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="CSV file")
    parser.add_argument("out", type=Path, help="the site folder that is made")
    parser.add_argument("--images", type=Path, help="folder of the images (default: that of the CSV file)")
    class_arguments(parser)
    add_choices(parser)
    per_study_argument(parser)


def _run(args: Namespace) -> int:
    names, columns = class_names(args.classes), column_names(args.columns)
    given = {"images": args.images, "classes": names, "columns": columns, "choices": choices_of(args)}
    prepare(args.source, args.out, **given, progress=say)
    return done(args.out, say)


COMMANDS = (Command("csv", "your own table of images and labels: one site folder", _add_arguments, _run),)
