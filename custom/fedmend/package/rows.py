"""The table of predictions: a row per image as it is made, and a row per study when all are there."""

import contextlib
import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedmend.basics.files import append_text, make_folder, try_lock, write_text
from fedmend.basics.words import as_given, inert
from fedmend.errors import FedMendError

IMAGES, STUDIES, STATE = "predictions.csv", "studies.csv", "predict.json"
PART = f"{IMAGES}.part"
LONGEST = 255  # bytes of a file name


def text_of(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV for spreadsheets; :func:`read_table` takes off what makes texts harmless there."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(map(inert, row) for row in rows)
    return stream.getvalue()


def read_table(file: Path) -> list[list[str]]:
    """The rows that :func:`text_of` was given, as texts, of a ``file``."""
    with open(file, newline="", encoding="utf-8") as stream:
        return [[*map(as_given, row)] for row in csv.reader(stream)]


def read_rows(file: Path) -> list[dict[str, str]]:
    """The same by column, without the header; a row that ends early has the columns of its cells."""
    head, *rows = read_table(file)
    return [dict(zip(head, row, strict=False)) for row in rows]


def file_name(name: str, end: str) -> str:
    """One file name for an image or volume, whatever folders it is in; where they make a name that is too long for a
    file, a hash of them and the end of it.

    Args:
        name: path below the folder of the images.
        end: what comes behind it.
    """
    whole = name.replace("%", "%25").replace("/", "%2F") + end
    if len(whole.encode()) <= LONGEST:
        return whole
    own = whole.rpartition("%2F")[2].encode()[-LONGEST // 2 :].decode(errors="ignore")
    return f"{hashlib.sha256(whole.encode()).hexdigest()[:16]}-{own}"


class Rows:
    """The table while it grows, in one process at a time; a run that was killed goes on after the last whole batch.

    Args:
        out: folder, made when missing.
        about: what decides the numbers: another one does not go on with these rows.
        header: names of the columns.
        batch: rows of a batch.

    Attributes:
        done: rows that are there already.

    Raises:
        FedMendError: the folder holds predictions of another package or other images, or another process fills it.
    """

    def __init__(self, out: Path, about: Mapping[str, object], header: Sequence[str], batch: int):
        make_folder(out)
        self._out, self._part, state, self._closing = out, out / PART, out / STATE, contextlib.ExitStack()
        text = json.dumps(about, indent=2) + "\n"
        if state.is_file() and state.read_text(encoding="utf-8") != text:
            raise FedMendError(
                f"predict: expected a new folder or one of the same package and images, {out} has other predictions"
            )
        if not state.is_file() and any(out.iterdir()):
            raise FedMendError(f"predict: expected a new or empty folder, {out} has other files")
        write_text(state, text)
        self.finished = (out / IMAGES).is_file()
        if self.finished:
            self.done = len(self.read()) - 1
            return
        handle = os.open(self._part, os.O_CREAT | os.O_RDWR, 0o666)
        self._closing.callback(os.close, handle)
        if not try_lock(handle):
            self._closing.close()
            raise FedMendError(f"predict: expected a folder that no other call fills, one fills {out}")
        ends = _ends_of_rows(self._part.read_bytes())
        if not ends:
            append_text(self._part, 0, text_of([header]))
            ends = [len(text_of([header]).encode())]
        self.done = (len(ends) - 1) // batch * batch
        self._size = ends[self.done]

    def __enter__(self) -> "Rows":
        return self

    def __exit__(self, *error: object) -> None:
        """Lets another call go on with the table."""
        self._closing.close()

    def add(self, rows: Sequence[Sequence[object]]) -> None:
        """Adds the rows of a batch; they are on the disk afterwards."""
        text = text_of(rows)
        append_text(self._part, self._size, text)
        self._size += len(text.encode())

    def finish(self) -> None:
        """Gives the table its name."""
        if not self.finished:
            os.replace(self._part, self._out / IMAGES)

    def read(self) -> list[list[str]]:
        """All rows of the finished table, the header first."""
        return read_table(self._out / IMAGES)


def _ends_of_rows(content: bytes) -> list[int]:
    """Bytes up to the end of each whole row, the header first. A name may have lines; of a row that a process was
    killed in, the quotation mark at the end may be missing."""
    lines = io.StringIO(content[: content.rfind(b"\n") + 1].decode(), newline="").readlines()
    table, ends, before = csv.reader(lines, strict=True), [0], 0
    with contextlib.suppress(csv.Error):
        for _ in table:
            ends.append(ends[-1] + sum(len(line.encode()) for line in lines[before : table.line_num]))
            before = table.line_num
    return ends[1:]


def per_study(rows: Sequence[Sequence[str]], width: int) -> list[tuple[str, int, int, np.ndarray]]:
    """Rows of images, study by study.

    Args:
        rows: image, study, C probabilities (blank where the image could not be read), ...
        width: C.

    Returns:
        Study, images, images that could not be read, and the probabilities (n, C) of the others.
    """
    studies: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        studies.setdefault(row[1], []).append(row[2 : 2 + width])
    found = []
    for study, given in studies.items():
        known = np.array([[float(p) for p in row] for row in given if row[0]]).reshape(-1, width)
        found.append((study, len(given), len(given) - len(known), known))
    return found
