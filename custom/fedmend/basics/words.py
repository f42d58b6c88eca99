"""Words that are shown: those of another party, such as a sentence of a site, made harmless, and names in order."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, TextIO

JOINERS = "\u200c\u200d"  # without width, between letters of Persian and of scripts of India
FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")  # how a text begins that a spreadsheet computes, or shows as it is


def printable(value: object) -> str:
    """Text for a terminal or a log: what would steer it, or forge a line, is spelt out as in Python (``\\x1b``).

    Args:
        value: anything; its text is taken.
    """
    return "".join(letter if _is_shown(letter) else ascii(letter)[1:-1] for letter in str(value))


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs" or letter in JOINERS


def say(*lines: object, file: TextIO | None = None) -> None:
    """Prints lines at once; what another party has put into one neither steers the terminal nor forges another line.

    Args:
        lines: each is one line; text of several lines is split first.
        file: where to; None: the standard output.
    """
    for line in lines:
        print(printable(line), file=file, flush=True)


def markdown(value: object) -> str:
    """Text that is text in Markdown, too: no line, cell, link or tag of its own.

    Args:
        value: anything; its text is taken.
    """
    text = printable(" ".join(str(value).split()))
    return "".join(f"\\{letter}" if letter in "\\|<>[]`*_" else letter for letter in text)


def inert(value: Any) -> Any:
    """A cell of a table for spreadsheets: a text that would be a formula, or begins with an apostrophe, gets one.

    Args:
        value: of the cell; what is no text is returned as it is.
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def as_given(cell: str) -> str:
    """The text that :func:`inert` has written as a ``cell``."""
    return cell[1:] if cell.startswith("'") else cell


def rounds_text(count: object) -> str:
    """``1 round`` or ``3 rounds``; ``count`` is a number, or what stands in its place."""
    return f"{count} round{'s' * (count != 1)}"


def natural(name: str) -> tuple[list, str]:
    """A key to sort names by as people do, 2 before 10: numbers in one count by their value, however long they are."""
    parts: list = re.split("([0-9]+)", name)
    parts[1::2] = [(len(digits.lstrip("0")), digits.lstrip("0")) for digits in parts[1::2]]
    return parts, name


def in_order(names: Iterable[str]) -> list[str]:
    """Names, such as those of sites, as people would sort them."""
    return sorted(names, key=natural)
