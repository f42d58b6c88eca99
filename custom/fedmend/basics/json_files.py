"""JSON that somebody else wrote: one way to read it, so that every file is answered by the same sentence."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmend.errors import FedMendError


class NameTwice(ValueError):
    """An object has a name twice, of which Python's parser, as most, would pass over the first without a word."""


def read_json(file: Path) -> Any:
    """Reads a JSON file with each name once, whose numbers are finite and whose texts can stand in paths and logs.

    Args:
        file: UTF-8 text, with or without the mark that Windows editors put before it.

    Returns:
        What it says.

    Raises:
        ValueError: it does not parse, is nested too deeply, or holds a number or text that Python's parser lets pass
            and that breaks what comes after: NaN, infinity, a whole number that no float can hold, a NUL, half a
            surrogate pair. :class:`NameTwice` of an object with a name twice.
        OSError: it cannot be opened.
    """
    return parse_json(file.read_text(encoding="utf-8-sig"))


def read_document(file: Path, where: str, expected: str) -> object:
    """What :func:`read_json` gives, or a sentence for people.

    Args:
        file: the file.
        where: words for it in a message.
        expected: what is expected to be there.

    Raises:
        FedMendError: no such file, one that does not parse, or one with a name twice in an object.
    """
    try:
        return read_json(file)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise FedMendError(f"{where}: expected {expected}, not found") from None
    except NameTwice:  # which is not told: in a datalist it may be that of a patient
        raise FedMendError(f"{where}: expected each name once in an object, got one twice") from None
    except ValueError:
        raise FedMendError(f"{where}: expected JSON, got a file that does not parse") from None


def parse_json(text: str) -> Any:
    """What :func:`read_json` does with the text of a file.

    Args:
        text: JSON.

    Raises:
        ValueError: see there.
    """
    try:
        value = json.loads(
            text, parse_constant=_finite, parse_float=_finite, parse_int=_whole, object_pairs_hook=_names_once
        )
        for word in texts(value):
            if "\0" in word:
                raise ValueError("NUL")
            word.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _finite(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise ValueError("not finite")
    return number


def _whole(word: str) -> int:
    _finite(word)
    return int(word)


def _names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise NameTwice
        found[name] = value
    return found


def texts(value: object) -> Iterator[str]:
    """Every text inside a value that JSON can hold, the names in its mappings too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
