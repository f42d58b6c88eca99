"""JSON that somebody else wrote: one way to read it, so that every file is answered by the same sentence."""

import json
import math
from collections.abc import Iterator
from pathlib import Path


def read_json(file: Path) -> object:
    """Reads a JSON file whose numbers are finite and whose texts can stand in paths and logs.

    Args:
        file: UTF-8 text.

    Returns:
        What it says.

    Raises:
        ValueError: it does not parse, is nested too deeply, or holds a number or text that Python's parser lets pass
            and that breaks what comes after: NaN, infinity, a NUL, half a surrogate pair.
        OSError: it cannot be opened.
    """
    return parse_json(file.read_text(encoding="utf-8"))


def parse_json(text: str) -> object:
    """What :func:`read_json` does with the text of a file.

    Raises:
        ValueError: see there.
    """
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        for word in _texts(value):
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


def _texts(value: object) -> Iterator[str]:
    """Every text and key inside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
