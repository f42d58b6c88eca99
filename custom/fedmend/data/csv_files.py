"""CSV files that somebody else wrote, read row by row."""

import contextlib
import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from fedmend.errors import FedMendError

DELIMITERS = ",;\t|"  # of spreadsheets and databases
_NAMED = re.compile(r"sep=([,;\t|])\n", re.IGNORECASE)  # a first line by which Excel knows what parts fields
_QUOTED = re.compile('"[^"]*"')
# How a file begins that is none of UTF-8 text → what it is, for people.
_OTHERS = {
    b"PK\3\4": "an Excel workbook or ZIP file; save the sheet as CSV UTF-8",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV UTF-8",
    b"\x1f\x8b": "a gzip file; unpack it",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "UTF-16; save it as CSV UTF-8"),
}
_FIELD = re.compile(r'(?:"[^"]*(?:""[^"]*)*")?[^,\r\n]*')


def read_csv(path: Path, where: str, *, delimiters: str = DELIMITERS) -> tuple[list[str], Iterator[tuple[int, dict]]]:
    """Opens a table.

    Args:
        path: UTF-8 text with a header.
        where: words that name it in messages.
        delimiters: characters of which the one that the header has most of parts the fields, or where there are several
            the one that a line ``sep=;`` before the header names.

    Returns:
        The header, columns without a name as blanks, each another number of them; number and content of each row, the
        header being row 1. A field that is missing is None, those that are too many stand under None.

    Raises:
        FedMendError: no such file, another encoding, or a field that never ends; the last one also while rows are read.
    """
    text, before = read_text(path, where), 0
    if named := _NAMED.match(text) if len(delimiters) > 1 else None:
        text, before = text[named.end() :], 1
    delimiter = named[1] if named else max(delimiters, key=_QUOTED.sub("", text).partition("\n")[0].count)
    reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
    with bounded_fields(where):
        # Columns without a name get blanks, each another number of them, so that a row keeps the values of all.
        header = [name if name.strip() else " " * i for i, name in enumerate(reader.fieldnames or [])]
    reader.fieldnames = header
    return header, _rows(reader, where, before)


def read_text(path: Path, where: str, newline: str | None = None) -> str:
    """What a text file holds.

    Args:
        path: UTF-8 text.
        where: words that name it in messages.
        newline: as :func:`open` takes it.

    Raises:
        FedMendError: no such file, or another encoding.
    """
    try:
        with utf8_only(path, where), open(path, encoding="utf-8-sig", newline=newline) as stream:
            text = stream.read()
    except (FileNotFoundError, IsADirectoryError):
        raise FedMendError(f"{where}: expected beside site.json, not found") from None
    if "\0" in text[:2]:  # of two bytes a letter, without a mark that says so
        raise FedMendError(f"{where}: expected UTF-8 text, got another encoding, e.g. UTF-16; save it as CSV UTF-8")
    return text


@contextlib.contextmanager
def utf8_only(path: Path, where: str) -> Iterator[None]:
    """Refuses another encoding while a text file is read.

    Args:
        path: the file.
        where: words that name it in messages.

    Raises:
        FedMendError: it is no UTF-8 text.
    """
    try:
        yield
    except UnicodeDecodeError:
        raise FedMendError(f"{where}: expected UTF-8 text, got {_what(path)}") from None


def _what(path: Path) -> str:
    """What a file is that is no UTF-8 text."""
    with open(path, "rb") as stream:
        start = stream.read(4)
    other = "another encoding, e.g. that of Windows; save it as CSV UTF-8"
    return next((what for sign, what in _OTHERS.items() if start.startswith(sign)), other)


def read_as_written(path: Path, where: str) -> Iterator[tuple[list[str], list[str], str]]:
    """Opens a table that is to be written again.

    Args:
        path: UTF-8 text.
        where: words that name it in messages.

    Yields:
        Of each row, the header first: its fields; the same as they are written, with quotation marks; the end of the
        line. The written fields, joined by commas, with their ends are the file.

    Raises:
        FedMendError: as :func:`read_csv`, and a quotation mark without its partner.
    """
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in io.StringIO(read_text(path, where, newline=""), newline=""):
            taken.append(line)
            yield line

    with bounded_fields(where):
        for fields in csv.reader(lines()):
            text, place = "".join(taken), 0
            written: list[str] = []
            taken.clear()
            while not written or text[place : place + 1] == ",":
                found = _FIELD.match(text, place + bool(written))
                assert found  # nothing fits the pattern, too
                written.append(found.group())
                place = found.end()
            if len(written) != max(len(fields), 1) or text[place:].strip("\r\n"):
                raise FedMendError(f"{where}: expected quotation marks in pairs, got one without its partner")
            yield fields, written, text[place:]


def _rows(reader: csv.DictReader, where: str, before: int) -> Iterator[tuple[int, dict]]:
    with bounded_fields(where):
        for record in reader:
            yield reader.line_num + before, record


@contextlib.contextmanager
def bounded_fields(where: str) -> Iterator[None]:
    """Refuses a field that never ends while a table is read.

    Args:
        where: words that name the table in messages.

    Raises:
        FedMendError: there is one.
    """
    try:
        yield
    except csv.Error:  # a quotation mark without its partner makes one field of all that follows
        raise FedMendError(
            f"{where}: expected fields of at most {csv.field_size_limit()} characters, got a longer one; a quotation"
            " mark without its partner?"
        ) from None
