"""Label tables: the CSV of a split, read into one matrix of labels."""

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedmend.data.card import IMAGE, STUDY, SiteCard, stays_below
from fedmend.data.csv_files import DELIMITERS, read_csv
from fedmend.data.identity import canonical, one_path, one_patient
from fedmend.errors import FedMendError
from fedmend.labels import NOT_ANNOTATED, SINGLELABEL


@dataclass(frozen=True)
class LabelTable:
    """One split as read from its CSV.

    Attributes:
        file: the CSV's file name.
        rows: (N,) row in the CSV of each sample, the header being row 1; what messages name instead of the image. Of a
            study the first of its rows.
        images: N paths below the image root; of studies their names.
        patients: N patient keys, empty strings where the table has no ``patient`` column.
        labels: (N, C) int8, read-only; 1, 0 or -1 = not annotated here; columns in the order of ``classes``.
        annotated: (C,) bool, whether the class has a column.
        classes: C class names.
        about: column that describes samples, such as sex or study → N texts; the card names them.
        slices: of studies the paths of the images of each of the N, in the order of the table; else empty.
    """

    file: str
    rows: np.ndarray
    images: tuple[str, ...]
    patients: tuple[str, ...]
    labels: np.ndarray
    annotated: np.ndarray
    classes: tuple[str, ...]
    about: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slices: tuple[tuple[str, ...], ...] = ()

    def paths(self, sample: int) -> tuple[str, ...]:
        """The images of a sample, below the image root: one, or the slices of a study."""
        return self.slices[sample] if self.slices else (self.images[sample],)

    def middle(self, sample: int) -> str:
        """The image that stands for a sample: of a study the slice in the middle."""
        paths = self.paths(sample)
        return paths[len(paths) // 2]

    def chosen(self, keep: np.ndarray) -> "LabelTable":
        """The samples ``keep``, (n,) numbers."""
        labels = self.labels[keep]
        labels.setflags(write=False)

        def some(values: Sequence) -> tuple:
            return tuple(values[i] for i in keep.tolist())

        return replace(
            self,
            rows=self.rows[keep],
            images=some(self.images),
            patients=some(self.patients),
            labels=labels,
            about={column: some(values) for column, values in self.about.items()},
            slices=some(self.slices) if self.slices else (),
        )

    def fingerprint(self) -> str:
        """SHA-256 over classes, images and labels: identifies the data set that a ledger belongs to."""
        about = [self.classes, self.images, *([self.slices] if self.slices else [])]
        digest = hashlib.sha256(json.dumps(about).encode())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


def _cell(value: str) -> str:
    """A refused label in words that cannot hold patient data: in a shifted column it is an age, a name or a path."""
    return f"text of {len(value)} character{'' if len(value) == 1 else 's'}"


def _columns(
    header: Sequence[str], classes: tuple[str, ...], further: Sequence[str], *, single: bool, where: str
) -> dict[str, int]:
    """Class → its place in ``classes``. Unknown columns are counted: without a header they are a patient's row."""
    for column in ("image", "label") if single else ("image",):
        if column not in header:
            otherwise = len(header) == 1 and set(header[0]) & set(DELIMITERS)
            got = "no commas between fields; save it with commas" if otherwise else f"{len(header)} other columns"
            raise FedMendError(f"{where}, header: expected a column {column!r}, got {got}")
    read = ("image", "patient", "label", *further)
    if twice := [column for column in read if header.count(column) > 1]:  # a reader would take the last of them
        raise FedMendError(f"{where}, header: expected each column once, got {twice} twice")
    if single:
        return {c: i for i, c in enumerate(classes)}
    columns = [c for c in header if c not in ("image", "patient", *further)]
    known = [c for c in columns if c in classes]
    if unknown := len(columns) - len(known):
        raise FedMendError(
            f"{where}, header: expected columns out of {list(classes)}, got {known} and {unknown} unknown"
        )
    if len(set(known)) < len(known):
        raise FedMendError(f"{where}, header: expected each column once, got {known}")
    return {c: classes.index(c) for c in known}


def _image(record: Mapping[str, str], where: str) -> str:
    """The path in a row."""
    image = record["image"].strip()
    if not image:
        raise FedMendError(f"{where}, column image: expected a path, got a blank")
    if not stays_below(image):
        raise FedMendError(f"{where}, column image: expected a path below image_root, got another")
    return image


def _one_hot(record: Mapping[str, str], columns: Mapping[str, int], width: int, where: str) -> tuple[int, ...]:
    """The labels of a row with a class or blank in the column ``label``; all -1 for blank."""
    value = (record["label"] or "").strip()
    if value and value not in columns:
        raise FedMendError(f"{where}, column label: expected one of {sorted(columns)} or blank, got {_cell(value)}")
    return tuple(int(index == columns[value]) if value else NOT_ANNOTATED for index in range(width))


def _flags(record: Mapping[str, str], columns: Mapping[str, int], width: int, where: str) -> tuple[int, ...]:
    """The labels of a row with 1, 0 or blank in a column per annotated class."""
    labels = [NOT_ANNOTATED] * width
    for name, index in columns.items():
        value = (record[name] or "").strip()
        if value in ("0", "1"):
            labels[index] = int(value)
        elif value:
            raise FedMendError(f"{where}, column {name}: expected 1, 0 or blank, got {_cell(value)}")
    return tuple(labels)


def load_table(card: SiteCard, file: str, classes: Sequence[str]) -> LabelTable:
    """Reads one CSV of the site folder.

    Rows that repeat an image with the same labels and patient are dropped; the first one counts. An image is the same
    however its path is spelled, a patient also where its number is written as 7.0. Where samples are studies, the rows
    of each are put together.

    Args:
        card: the site's card.
        file: CSV file name below the card's folder.
        classes: the job's classes; they give the order of the label columns.

    Raises:
        FedMendError: missing file, unknown or missing column, a label other than 1/0/blank, two rows that give one
            image or study different labels or patients.
    """
    where = f"{card.site}: {file}"
    header, records = read_csv(card.folder / file, where, delimiters=",")
    table = read_rows(header, records, card.kind, classes, file=file, where=where, columns=card.columns)
    return table if card.sample == IMAGE else by_study(table, where)


def by_study(table: LabelTable, where: str) -> LabelTable:
    """A table whose samples are studies, of one that has a row for each slice.

    Args:
        table: N slices, with the column ``study``.
        where: words that name the table in messages.

    Raises:
        FedMendError: no such column, a slice without a study, or two slices of a study with different labels or
            patients.
    """
    if STUDY not in table.about:
        raise FedMendError(f"{where}, header: expected a column 'study' for samples that are studies, got none")
    slices: dict[str, list[int]] = {}
    for i, name in enumerate(map(canonical, table.about[STUDY])):
        if not name:
            raise FedMendError(f"{where} row {table.rows[i]}, column study: expected a study, got a blank")
        first = slices.setdefault(name, [i])[0]
        same = f"of row {table.rows[first]}, which is of the same study"
        if (table.labels[i] != table.labels[first]).any():
            raise FedMendError(f"{where} row {table.rows[i]}: expected the labels {same}, got others")
        if table.patients[i] != table.patients[first]:
            raise FedMendError(f"{where} row {table.rows[i]}, column patient: expected that {same}, got another")
        if first < i:
            slices[name].append(i)
    firsts = np.array([own[0] for own in slices.values()], dtype=np.int64)
    paths = tuple(tuple(table.images[i] for i in own) for own in slices.values())
    return replace(table.chosen(firsts), images=tuple(slices), slices=paths)


def read_rows(
    header: Sequence[str],
    records: Iterable,
    kind: str,
    classes: Sequence[str],
    *,
    file: str,
    where: str,
    columns: Sequence[str] = (),
) -> LabelTable:
    """What :func:`load_table` makes of an open table, see :func:`fedmend.data.csv_files.read_csv`.

    Args:
        header: the columns.
        records: number and content of each row.
        kind: ``multilabel`` or ``singlelabel``.
        classes: the job's classes.
        file: name that the result has.
        where: words that name the table in messages.
        columns: further columns that it may have.

    Raises:
        FedMendError: see :func:`load_table`.
    """
    classes, single = tuple(classes), kind == SINGLELABEL
    further = [c for c in dict.fromkeys((STUDY, *columns)) if c not in ("image", "patient", "label", *classes)]
    about: dict[str, list[str]] = {c: [] for c in further if c in header}
    rows: list[int] = []
    images: list[str] = []
    patients: list[str] = []
    labels: list[tuple[int, ...]] = []
    seen: dict[str, int] = {}
    places, read = _columns(header, classes, further, single=single, where=where), _one_hot if single else _flags
    for row, record in records:
        if None in record or None in record.values():
            raise FedMendError(f"{where} row {row}: expected {len(header)} fields as in the header, got another number")
        image = _image(record, f"{where} row {row}")
        label = read(record, places, len(classes), f"{where} row {row}")
        patient = canonical(record.get("patient") or "")
        first = seen.setdefault(one_path(image), len(images))
        if first < len(images):
            same = f"row {rows[first]}, which names the same image"
            if labels[first] != label:
                raise FedMendError(f"{where} row {row}: expected the labels of {same}, got others")
            patients[first] = one_patient(patients[first], patient, f"{where} row {row}", same)
            continue
        rows.append(row)
        images.append(image)
        patients.append(patient)
        labels.append(label)
        for column, values in about.items():
            values.append(record[column].strip())
    annotated = np.isin(np.arange(len(classes)), list(places.values()))
    matrix = np.array(labels, dtype=np.int8).reshape(len(labels), len(classes))
    matrix.setflags(write=False)
    numbers, known = np.array(rows, dtype=np.int64), {column: tuple(values) for column, values in about.items()}
    return LabelTable(file, numbers, tuple(images), tuple(patients), matrix, annotated, classes, known)


def write_table(
    path: Path,
    images: Sequence[str],
    labels: np.ndarray,
    classes: Sequence[str],
    *,
    patients: Sequence[str] = (),
    studies: Sequence[str] = (),
) -> None:
    """Writes a split CSV: multi-label with one column per given class, or single-label with the column ``label``.

    Args:
        path: file to write.
        images: N paths below the image root.
        labels: (N, C) integers, 1, 0 or -1 (written as blank), of multi-label data; (N,) class numbers, or -1, of
            single-label data.
        classes: C class names; in multi-label data leave a class out to say that it is not annotated.
        patients: N patient keys or nothing.
        studies: N names of studies or nothing.
    """
    about = {name: keys for name, keys in (("patient", patients), (STUDY, studies)) if keys}
    single = np.ndim(labels) == 1
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", *about, *(["label"] if single else classes)])
        for i, image in enumerate(images):
            row = [labels[i]] if single else labels[i]
            cells = ["" if v == NOT_ANNOTATED else classes[v] if single else int(v) for v in row]
            writer.writerow([image, *(keys[i] for keys in about.values()), *cells])
