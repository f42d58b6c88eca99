"""Site folders: the site card ``site.json`` and the label tables (one CSV per split) beside it.

A table has the column ``image`` (path below the card's ``image_root``), optionally ``patient``, and then either one
column per annotated class with 1, 0 or blank (``task: multilabel``) or the column ``label`` with a class name or blank
(``task: singlelabel``). Blank means *not annotated*. With ``task: segmentation`` a split is a datalist of volumes, see
:mod:`fedmend.data.datalist`. Every method reads this format; dataset converters write it.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedmend.data.csv_files import read_csv
from fedmend.errors import FedMendError
from fedmend.json_files import read_json

CARD_NAME = "site.json"
CARD_FORMAT = 1
NOT_ANNOTATED = -1
LONGEST_NAME = 200  # characters of a file name
WIDEST = 1e9  # no unit of an image has such values
KIND_NAMES = MULTILABEL, SINGLELABEL, SEGMENTATION = "multilabel", "singlelabel", "segmentation"
WINDOWS = {"brain": (40.0, 80.0), "subdural": (75.0, 215.0), "bone": (600.0, 2800.0), "lung": (-600.0, 1500.0)}


@dataclass(frozen=True)
class SiteCard:
    """What a site says about its folder.

    Attributes:
        site: name used in messages.
        folder: the folder that holds ``site.json``.
        kind: kind of labels, ``multilabel``, ``singlelabel`` or ``segmentation``; the card's field ``task``.
        classes: all classes of the federation, in the site's own order.
        splits: split name → file name of the CSV or, for segmentation, of the datalist; ``train`` is required.
        truth: split name → the same with complete labels, for evaluation only; training code has no access to it.
        image_root: folder that image paths start from.
        modality: DICOM modality word, for people.
        window: ``None`` (8-bit images, taken as they are), ``"file"`` (the DICOM file's own window) or
            ``(centre, width)`` in HU.
        color: pictures are read in colour; otherwise colour is turned to grey.
        foreground: value of the lesion in label volumes, >= 1.
        provenance: how the folder was made (source, seed, protocol).
    """

    site: str
    folder: Path
    kind: str
    classes: tuple[str, ...]
    splits: Mapping[str, str]
    image_root: Path
    truth: Mapping[str, str] = field(default_factory=dict)
    modality: str = ""
    window: str | tuple[float, float] | None = None
    color: bool = False
    foreground: int = 1
    provenance: Mapping = field(default_factory=dict)

    @property
    def phantom(self) -> bool:
        """Whether the folder's source says that it is synthetic."""
        return isinstance(self.provenance, Mapping) and str(self.provenance.get("source")).startswith("PHANTOM")


@dataclass(frozen=True)
class LabelTable:
    """One split as read from its CSV.

    Attributes:
        file: the CSV's file name.
        rows: (N,) row in the CSV of each sample, the header being row 1; what messages name instead of the image.
        images: N paths below the image root.
        patients: N patient keys, empty strings where the table has no ``patient`` column.
        labels: (N, C) int8, read-only; 1, 0 or -1 = not annotated here; columns in the order of ``classes``.
        annotated: (C,) bool, whether the class has a column.
        classes: C class names.
    """

    file: str
    rows: np.ndarray
    images: tuple[str, ...]
    patients: tuple[str, ...]
    labels: np.ndarray
    annotated: np.ndarray
    classes: tuple[str, ...]

    def fingerprint(self) -> str:
        """SHA-256 over classes, images and labels: identifies the data set that a ledger belongs to."""
        digest = hashlib.sha256(json.dumps([self.classes, self.images]).encode())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()


def _type(value) -> str:
    """A refused value of the card in words that cannot hold patient data."""
    return "nothing" if value is None else f"another {type(value).__name__}"


def _cell(value: str) -> str:
    """A refused label in words that cannot hold patient data: in a shifted column it is an age, a name or a path."""
    return f"text of {len(value)} character{'' if len(value) == 1 else 's'}"


def _parse_window(value, where: str):
    if value is None or value == "file":
        return value
    if isinstance(value, str) and value in WINDOWS:
        return WINDOWS[value]
    if isinstance(value, list) and len(value) == 2 and all(_is_number(v) for v in value) and value[1] > 0:
        return (float(value[0]), float(value[1]))
    raise FedMendError(
        f"{where}, field window: expected null, 'file', one of {sorted(WINDOWS)} or [centre, width] in HU,"
        f" got {_type(value)}"
    )


def _is_number(value) -> bool:
    return isinstance(value, int | float) and abs(value) <= WIDEST


def stays_below(path: str) -> bool:
    """Whether a path stays below the folder that it starts from."""
    return not Path(path).is_absolute() and ".." not in Path(path).parts


def _is_text_mapping(value) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def load_card(folder: Path | str, site: str) -> SiteCard:
    """Reads and checks ``site.json``.

    Args:
        folder: the site folder.
        site: site name for messages.

    Raises:
        FedMendError: no card, not JSON, or a field that is missing or wrong.
    """
    folder = Path(folder)
    where = f"{site}: {CARD_NAME}"
    raw = _read_card(folder, where)
    if raw.get("task") not in KIND_NAMES:
        raise FedMendError(f"{where}, field task: expected one of {list(KIND_NAMES)}, got {_type(raw.get('task'))}")
    classes = raw.get("classes")
    if not isinstance(classes, list) or not classes or not all(isinstance(c, str) and c for c in classes):
        raise FedMendError(f"{where}, field classes: expected a list of one or more class names, got {_type(classes)}")
    if len(set(classes)) != len(classes):
        raise FedMendError(f"{where}, field classes: expected each name once, got {classes!r}")
    splits, truth = raw.get("splits"), raw.get("truth", {})
    _check_files(splits, truth, where)
    if not isinstance(raw.get("color", False), bool):
        raise FedMendError(f"{where}, field color: expected true or false, got {_type(raw['color'])}")
    foreground = raw.get("foreground", 1)
    if type(foreground) is not int or foreground < 1:
        raise FedMendError(f"{where}, field foreground: expected a whole number from 1, got {_type(foreground)}")
    if not isinstance(raw.get("image_root"), str):
        raise FedMendError(f"{where}, field image_root: expected a folder, got {_type(raw.get('image_root'))}")
    return SiteCard(
        site=site,
        folder=folder,
        kind=raw["task"],
        classes=tuple(classes),
        splits=splits,
        truth=truth,
        image_root=(folder / raw["image_root"]).resolve(),
        modality=raw.get("modality", ""),
        window=_parse_window(raw.get("window"), where),
        color=raw.get("color", False),
        foreground=foreground,
        provenance=raw.get("provenance", {}),
    )


def _read_card(folder: Path, where: str) -> dict:
    try:
        raw = read_json(folder / CARD_NAME)
    except (FileNotFoundError, IsADirectoryError):
        raise FedMendError(f"{where}: expected in the folder that data_root names, not found") from None
    except ValueError:
        raise FedMendError(f"{where}: expected JSON, got a file that does not parse") from None
    if not isinstance(raw, dict) or raw.get("format") != CARD_FORMAT:
        got = _type(raw.get("format") if isinstance(raw, dict) else raw)
        raise FedMendError(f"{where}, field format: expected {CARD_FORMAT}, got {got}")
    return raw


def _check_files(splits: object, truth: object, where: str) -> None:
    if not _is_text_mapping(splits) or "train" not in splits:
        raise FedMendError(
            f"{where}, field splits: expected a mapping of split to file name with at least 'train', got"
            f" {_type(splits)}"
        )
    if not _is_text_mapping(truth):
        raise FedMendError(f"{where}, field truth: expected a mapping of split to file name, got {_type(truth)}")
    for name in (*splits.values(), *truth.values()):  # they stand in messages, which may travel
        if not stays_below(name) or len(name) > LONGEST_NAME or not name.isprintable():
            raise FedMendError(
                f"{where}, fields splits and truth: expected file names below the site folder, got another"
            )


def check_classes(card: SiteCard, job_classes: Sequence[str]) -> None:
    """Refuses a site whose class names are not the job's (their order may differ).

    Raises:
        FedMendError: names the classes that only one side knows.
    """
    missing, extra = sorted(set(job_classes) - set(card.classes)), sorted(set(card.classes) - set(job_classes))
    if missing or extra:
        raise FedMendError(
            f"{card.site}: {CARD_NAME}, field classes: expected the job's {sorted(job_classes)}, got"
            f" {sorted(card.classes)} (missing here: {missing}, unknown to the job: {extra})"
        )


class _ClassColumns:
    """One column per annotated class, with 1, 0 or blank."""

    @staticmethod
    def columns(header: Sequence[str], classes: tuple[str, ...], where: str) -> dict[str, int]:
        """Class → its place in ``classes``. Unknown columns are counted: without a header they are a patient's row."""
        _need_column("image", header, where)
        columns = [c for c in header if c not in ("image", "patient")]
        known = [c for c in columns if c in classes]
        if len(known) < len(columns):
            raise FedMendError(
                f"{where}, header: expected columns out of {list(classes)}, got {known} and {len(columns) - len(known)}"
                " unknown"
            )
        if len(set(known)) < len(known):
            raise FedMendError(f"{where}, header: expected each column once, got {known}")
        return {c: classes.index(c) for c in known}

    @staticmethod
    def labels(record: Mapping[str, str], columns: Mapping[str, int], width: int, where: str) -> tuple[int, ...]:
        """1, 0 or -1 of one row."""
        labels = [NOT_ANNOTATED] * width
        for name, index in columns.items():
            value = (record[name] or "").strip()
            if value in ("0", "1"):
                labels[index] = int(value)
            elif value:
                raise FedMendError(f"{where}, column {name}: expected 1, 0 or blank, got {_cell(value)}")
        return tuple(labels)


class _LabelColumn:
    """The column ``label`` with the name of a class or blank."""

    @staticmethod
    def columns(header: Sequence[str], classes: tuple[str, ...], where: str) -> dict[str, int]:
        """Class → its place among ``classes``."""
        _need_column("image", header, where)
        _need_column("label", header, where)
        return {c: i for i, c in enumerate(classes)}

    @staticmethod
    def labels(record: Mapping[str, str], columns: Mapping[str, int], width: int, where: str) -> tuple[int, ...]:
        """One-hot, or all -1."""
        value = (record["label"] or "").strip()
        if value and value not in columns:
            raise FedMendError(f"{where}, column label: expected one of {sorted(columns)} or blank, got {_cell(value)}")
        if not value:
            return (NOT_ANNOTATED,) * width
        return tuple(int(index == columns[value]) for index in range(width))


_FORMATS = {MULTILABEL: _ClassColumns, SINGLELABEL: _LabelColumn}


def _need_column(column: str, header: Sequence[str], where: str) -> None:
    if column not in header:
        raise FedMendError(f"{where}, header: expected a column {column!r}, got {len(header)} other columns")


def load_table(card: SiteCard, file: str, classes: Sequence[str]) -> LabelTable:
    """Reads one CSV of the site folder.

    Rows that repeat an image with the same labels are dropped; the first one counts.

    Args:
        card: the site's card.
        file: CSV file name below the card's folder.
        classes: the job's classes; they give the order of the label columns.

    Raises:
        FedMendError: missing file, unknown or missing column, a label other than 1/0/blank, or two rows that give
            one image different labels.
    """
    where = f"{card.site}: {file}"
    header, records = read_csv(card.folder / file, where)
    return read_rows(header, records, card.kind, classes, file=file, where=where)


def read_rows(
    header: Sequence[str], records: Iterable, kind: str, classes: Sequence[str], *, file: str, where: str
) -> LabelTable:
    """What :func:`load_table` makes of an open table, see :func:`fedmend.data.csv_files.read_csv`.

    Args:
        header: the columns.
        records: number and content of each row.
        kind: ``multilabel`` or ``singlelabel``.
        classes: the job's classes.
        file: name that the result has.
        where: words that name the table in messages.

    Raises:
        FedMendError: see :func:`load_table`.
    """
    classes, written = tuple(classes), _FORMATS[kind]
    rows, images, patients, labels = [], [], [], []
    seen: dict[str, int] = {}
    columns = written.columns(header, classes, where)
    for row, record in records:
        if None in record or None in record.values():
            raise FedMendError(f"{where} row {row}: expected {len(header)} fields as in the header, got another number")
        image = record["image"].strip()
        if not image:
            raise FedMendError(f"{where} row {row}, column image: expected a path, got a blank")
        if not stays_below(image):
            raise FedMendError(f"{where} row {row}, column image: expected a path below image_root, got another")
        label = written.labels(record, columns, len(classes), f"{where} row {row}")
        if image in seen:
            if labels[seen[image]] != label:
                same = f"row {rows[seen[image]]}, which names the same image"
                raise FedMendError(f"{where} row {row}: expected the labels of {same}, got others")
            continue
        seen[image] = len(images)
        rows.append(row)
        images.append(image)
        patients.append((record.get("patient") or "").strip())
        labels.append(label)
    annotated = np.isin(np.arange(len(classes)), list(columns.values()))
    matrix = np.array(labels, dtype=np.int8).reshape(len(labels), len(classes))
    matrix.setflags(write=False)
    return LabelTable(file, np.array(rows, dtype=np.int64), tuple(images), tuple(patients), matrix, annotated, classes)


def write_table(
    path: Path, images: Sequence[str], labels: np.ndarray, classes: Sequence[str], *, patients: Sequence[str] = ()
) -> None:
    """Writes a split CSV: multi-label with one column per given class, or single-label with the column ``label``.

    Args:
        path: file to write.
        images: N paths below the image root.
        labels: (N, C) integers, 1, 0 or -1 (written as blank), of multi-label data; (N,) class numbers, or -1, of
            single-label data.
        classes: C class names; in multi-label data leave a class out to say that it is not annotated.
        patients: N patient keys or nothing.
    """
    single = np.ndim(labels) == 1
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["image", *(["patient"] if patients else []), *(["label"] if single else classes)])
        for i, image in enumerate(images):
            row = [labels[i]] if single else labels[i]
            cells = ["" if v == NOT_ANNOTATED else classes[v] if single else int(v) for v in row]
            writer.writerow([image, *([patients[i]] if patients else []), *cells])


def write_card(
    folder: Path,
    *,
    task: str,
    classes: Sequence[str],
    splits: Mapping[str, str],
    image_root: str,
    truth: Mapping[str, str] | None = None,
    modality: str = "",
    window: str | Sequence[float] | None = None,
    color: bool = False,
    foreground: int = 1,
    provenance: Mapping | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Writes ``site.json``; fields as in :class:`SiteCard`, ``image_root`` absolute or relative to ``folder``, and
    ``notes``, field → why it is so, for people only."""
    card = {
        "format": CARD_FORMAT,
        "task": task,
        "classes": list(classes),
        "splits": dict(splits),
        "truth": dict(truth or {}),
        "image_root": image_root,
        "modality": modality,
        "window": list(window) if isinstance(window, tuple) else window,
        "color": color,
        "foreground": foreground,
        "provenance": dict(provenance or {}),
        **({"notes": dict(notes)} if notes else {}),
    }
    (Path(folder) / CARD_NAME).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
