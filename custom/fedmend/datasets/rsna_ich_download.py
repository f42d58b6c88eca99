"""Reads the official download of RSNA 2019 intracranial hemorrhage: ``stage_2_train.csv`` (rows
``ID_63eb1e259_epidural,0``), the slices ``stage_2_train/ID_63eb1e259.dcm`` and what their headers say.

Reference: Flanders et al., Radiology: Artificial Intelligence 2(3):e190211, 2020.
"""

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np

from fedmend.basics.parallel import mapped
from fedmend.data.csv_files import bounded_fields, read_csv, utf8_only
from fedmend.data.dicom_files import open_dicom
from fedmend.datasets.checks import need, need_part
from fedmend.datasets.samples import Say
from fedmend.errors import FedMendError

WHERE = "rsna-ich"
CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
TABLE, FOLDER = "stage_2_train.csv", "stage_2_train"
CORRUPT = frozenset({"ID_6431af929"})  # its pixel data is cut short in the official download

# Two bits per label, "said to be 0" and "said to be 1": one integer per slice holds all its rows, and a contradiction
# shows as both bits set. "any" is the union of the five, checked against them and not used further.
_FLAGS = {f"{kind}{v}": 1 << (2 * c + v) for c, kind in enumerate((*CLASSES, "any")) for v in (0, 1)}
_LOW_BITS = sum(1 << (2 * c) for c in range(len(CLASSES)))
_ANY = 2 * len(CLASSES)


@dataclass(frozen=True)
class Slices:
    """N slices: ``ids`` (N,) str, ``rows`` (N,) first row in the table, ``labels`` (N, 5) int8."""

    ids: np.ndarray
    rows: np.ndarray
    labels: np.ndarray

    def take(self, index: np.ndarray) -> "Slices":
        """The slices with these indices, in this order."""
        return Slices(self.ids[index], self.rows[index], self.labels[index])


def read_slices(source: Path) -> tuple[Slices, dict[str, int]]:
    """The slices that have both labels and a file, sorted by id, and the counts of what was left out.

    Args:
        source: folder of the download.

    Raises:
        FedMendError: a table or folder that lacks, or a table that is incomplete or contradicts itself.
    """
    need_part((source / TABLE).is_file() and (source / FOLDER).is_dir(), WHERE, f"{TABLE} and {FOLDER}/")
    files = {entry.name[:-4] for entry in os.scandir(source / FOLDER) if entry.name.endswith(".dcm")}
    # Row by row: the table has 4.5 million.
    table = source / TABLE
    with (
        bounded_fields(TABLE),
        utf8_only(table, TABLE),
        open(table, newline="", encoding="utf-8-sig") as stream,
    ):
        seen, rows, counts = _parse(stream)
    flags = np.fromiter(seen.values(), dtype=np.int64, count=len(seen))
    incomplete = ((flags | flags >> 1) & _LOW_BITS) != _LOW_BITS
    if incomplete.any():
        words = f"rows for all of {list(CLASSES)} of this slice, some are missing"
        raise FedMendError(f"{TABLE} row {rows[int(np.argmax(incomplete))]}: expected {words}")
    has = (flags & _LOW_BITS << 1) != 0
    other = flags >> _ANY & np.where(has, 1, 2) != 0
    if other.any():
        words = "any of this slice to be 1 where one of its classes is, else 0"
        raise FedMendError(f"{TABLE} row {rows[int(np.argmax(other))]}: expected {words}, got the other")
    labels = (flags[:, None] >> (2 * np.arange(len(CLASSES)) + 1) & 1).astype(np.int8)
    ids = np.array(list(seen), dtype=str)
    slices = Slices(ids, np.array(rows, dtype=np.int64), labels)
    with_file = np.fromiter((i in files and i not in CORRUPT for i in seen), dtype=bool, count=len(seen))
    if not with_file.any():
        raise FedMendError(f"{TABLE}: expected slices that lie as .dcm files in {FOLDER}/, found none")
    counts |= {
        "corrupt_slices": len(CORRUPT & seen.keys()),
        "slices_without_file": len(seen.keys() - files - CORRUPT),
        "files_without_labels": len(files - seen.keys() - CORRUPT),
    }
    index = np.flatnonzero(with_file)
    return slices.take(index[np.argsort(ids[index])]), counts


def take_lists(slices: Slices, train_list: Path, test_list: Path) -> tuple[Slices, np.ndarray]:
    """The slices of a published split, in the order of its tables, which are CSV files with a column ``id`` that holds
    ``ID_63eb1e259`` or ``ID_63eb1e259.dcm``; other columns are ignored.

    Args:
        slices: what is there.
        train_list: table of the training slices.
        test_list: table of the test slices.

    Returns:
        The slices of both tables, training ones first, and (N,) bool, True in the test split.

    Raises:
        FedMendError: a table without ids, an id that is listed twice, or one whose slice is not among ``slices``.
    """
    known = {name: i for i, name in enumerate(slices.ids.tolist())}
    index: dict[int, bool] = {}
    for file, test in ((Path(train_list), False), (Path(test_list), True)):
        if not file.is_file():
            raise FedMendError(f"{WHERE}, {file.name}: expected a table of slices, not found")
        before = len(index)
        header, records = read_csv(file, f"{WHERE}, {file.name}")
        need("id" in header, f"{WHERE}, {file.name} row 1", "a header with id", "another one")
        for row, record in records:
            i = known.get((record["id"] or "").strip().removesuffix(".dcm"), -1)
            got = "one that is listed already" if i in index else "one that is not there"
            where = f"{WHERE}, {file.name} row {row}, column id"
            need(i >= 0 and i not in index, where, "a slice of the download that can be used", got)
            index[i] = test
        need(len(index) > before, f"{WHERE}, {file.name}", "at least one slice", "none")
    return slices.take(np.array(list(index))), np.array(list(index.values()))


def _parse(stream: TextIO) -> tuple[dict[str, int], list[int], dict[str, int]]:
    """Slice id → flags of its rows; first row of each slice, in the same order; counts of rows."""
    reader = csv.reader(stream)
    if next(reader, None) != ["ID", "Label"]:
        raise FedMendError(f"{TABLE} row 1: expected the header ID,Label, got another one")
    seen: dict[str, int] = {}
    rows, duplicates = [], 0
    for fields in reader:
        slice_id, _, kind = fields[0].rpartition("_") if len(fields) == 2 else ("", "", "")
        flag = _FLAGS.get(kind + fields[1]) if slice_id else None
        if flag is None:
            raise FedMendError(f"{TABLE} row {reader.line_num}: expected ID_<slice>_<class>,<0 or 1>, got another form")
        word = seen.get(slice_id)
        if word is None:
            rows.append(reader.line_num)
            word = 0
        elif word & flag:
            duplicates += 1
        seen[slice_id] = word = word | flag
        if word & (flag << 1 if fields[1] == "0" else flag >> 1):
            where = f"{TABLE} row {reader.line_num}"
            raise FedMendError(f"{where}: expected the label that an earlier row gives, got the other")
    return seen, rows, {"label_rows": reader.line_num - 1, "duplicate_rows": duplicates}


def _header(path: str, fields: Sequence[str]) -> list[str] | None:
    """These fields of one file, of one with several values the last, ``None`` when it cannot be read."""
    from pydicom.errors import InvalidDicomError
    from pydicom.multival import MultiValue

    try:
        header = open_dicom(Path(path), stop_before_pixels=True, specific_tags=["SOPClassUID", *fields])
    except (InvalidDicomError, OSError, EOFError, ValueError):
        return None
    values = [header.get(field) or "" for field in fields]
    return [str(value[-1] if isinstance(value, MultiValue) else value).strip() for value in values]


def read_headers(
    source: Path, slices: Slices, needed: Mapping[str, bool], *, processes: int | None, say: Say
) -> dict[str, np.ndarray]:
    """DICOM field → (N,) values; a field that is needed is never blank.

    Args:
        source: folder of the download.
        slices: N slices.
        needed: field → whether it must not be blank.
        processes: processes that read; ``None``: one per core.
        say: takes a line now and then.

    Raises:
        FedMendError: a file that cannot be read, or a blank in a field that is needed.
    """
    paths = [os.path.join(source, FOLDER, f"{i}.dcm") for i in slices.ids]
    values: list[list[str]] = []
    for header in mapped(partial(_header, fields=tuple(needed)), paths, processes=processes):
        where = f"{TABLE} row {slices.rows[len(values)]}"
        if header is None:
            raise FedMendError(f"{where}: expected a readable DICOM file for this slice, got another one")
        for (field, wanted), value in zip(needed.items(), header, strict=True):
            if wanted and not value:
                raise FedMendError(f"{where}: expected the DICOM field {field}, got none; the arguments need it")
        values.append(header)
        if len(values) % 10_000 == 0 or len(values) == len(paths):
            say(f"{len(values)} of {len(paths)} DICOM headers read")
    return dict(zip(needed, np.array(values, dtype=str).T, strict=True))
