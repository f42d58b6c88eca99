"""CSV files that somebody else wrote, read row by row."""

import contextlib
import csv
import io
from collections.abc import Iterator
from pathlib import Path

from fedmend.errors import FedMendError


def read_csv(path: Path, where: str) -> tuple[list[str], Iterator[tuple[int, dict]]]:
    """Opens a table.

    Args:
        path: UTF-8 text with a header.
        where: words that name it in messages.

    Returns:
        The header; number and content of each row, the header being row 1. A field that is missing is None, those that
        are too many stand under None.

    Raises:
        FedMendError: no such file, another encoding, or a field that never ends; the last one also while rows are read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError):
        raise FedMendError(f"{where}: expected beside site.json, not found") from None
    except UnicodeDecodeError:
        raise FedMendError(f"{where}: expected UTF-8 text, got another encoding") from None
    reader = csv.DictReader(io.StringIO(text))
    with _bounded_fields(where):
        header = list(reader.fieldnames or [])
    return header, _rows(reader, where)


def _rows(reader: csv.DictReader, where: str) -> Iterator[tuple[int, dict]]:
    with _bounded_fields(where):
        for record in reader:
            yield reader.line_num, record


@contextlib.contextmanager
def _bounded_fields(where: str) -> Iterator[None]:
    try:
        yield
    except csv.Error:  # a quotation mark without its partner makes one field of all that follows
        raise FedMendError(
            f"{where}: expected fields of at most {csv.field_size_limit()} characters, got a longer one; a quotation"
            " mark without its partner?"
        ) from None
