"""When two ways to write an id, a class or a path mean the same thing.

Spreadsheets and data frames change what they hold: 00101 becomes 101, and 7 becomes 7.0 beside a blank. Where only the
writing differs, the thing is one. Where that cannot be known, it is refused: a guess would give somebody's label away.
"""

import contextlib
import glob
import os
import posixpath
import re
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path, PurePosixPath

from fedmend.data.readers import PICTURE_SUFFIXES
from fedmend.errors import FedMendError

# What programs write for a missing value, in small letters: pandas and numpy, R, SQL, SAS, Weka, spreadsheets.
MISSING = {
    *("", "nan", "-nan", "na", "n/a", "<na>", "nat", "null", "none", "nil", "missing", "empty", "-", "--", ".", "?"),
    *("#n/a", "#na", "#n/a n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#null!", "#value!", "#ref!", "#div/0!"),
}
# What pads ids, begins files or comes along when text is copied, and cannot be seen: marks of direction, soft hyphens.
_DIRECTIONS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_UNSEEN = dict.fromkeys((0, 0xAD, 0x200B, 0x2060, 0xFEFF, *_DIRECTIONS))
# Signs that look like one of a keyboard, in small letters: joiners, dashes, letters of Cyrillic and Greek.
_DASHES = (*range(0x2010, 0x2016), 0x2212)
_ALIKE: dict[int, str | int | None] = {0x200C: None, 0x200D: None, **dict.fromkeys(_DASHES, "-")}
_ALIKE |= str.maketrans(
    "\u0430\u0432\u0435\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0456\u0458\u0455", "abekmhopctyxijs"
)
_ALIKE |= str.maketrans(
    "\u03b1\u03b2\u03b5\u03b6\u03b7\u03b9\u03ba\u03bc\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7", "abezhikmnoptyx"
)
_WHOLE = re.compile(r"([+-]?\d+)\.0+", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+(?:[.,]\d*)?(?:e[+-]?\d{1,2})?", re.ASCII)
_LONGEST = 64  # digits


def canonical(text: str) -> str:
    """The one form of an id or a class name: no blanks around, composed letters (NFC), and 7 for 7.0."""
    text = unicodedata.normalize("NFC", text.translate(_UNSEEN).strip())
    return whole.group(1) if (whole := _WHOLE.fullmatch(text)) else text


def loose(text: str) -> str:
    """What is left of an id or a class name where neither case, blanks, the width of letters, signs that look alike
    (the Cyrillic A, a long dash) nor the writing of a whole number count: ``00101``, ``101,0`` and ``1.01E+02`` are
    101."""
    text = " ".join(unicodedata.normalize("NFKC", canonical(text)).casefold().translate(_ALIKE).split())
    if len(text) <= _LONGEST and _NUMBER.fullmatch(text):
        number = Decimal(text.replace(",", "."))
        if number == number.to_integral_value():
            return str(int(number))
    return text


def is_missing(text: str) -> bool:
    """Whether a cell is blank, or holds a word that programs write for a missing value."""
    return canonical(text).casefold() in MISSING


def one_patient(first: str, second: str, where: str, same: str) -> str:
    """The patient of an image that two rows name.

    Args:
        first: id in the first one; blank or a word for a missing value: unknown.
        second: id in the second one.
        where: words that name the second row in messages.
        same: words that name the first one.

    Returns:
        The first id if it is known, else the second.

    Raises:
        FedMendError: both are known, and they differ in more than their writing.
    """
    if is_missing(first) or is_missing(second):
        return second if is_missing(first) else first
    if loose(first) != loose(second):
        raise FedMendError(f"{where}, column patient: expected that of {same}, got another")
    return first


def merged(ids: Sequence[str]) -> tuple[list[str], int]:
    """The patients of a list, those that may be one as one: that can tear no patient apart when splits are drawn.

    Args:
        ids: N ids; blank for unknown.

    Returns:
        N keys, blank for unknown; how many of the ids, each counted once in its canonical form, were merged into
        another one.
    """
    forms = [canonical(text) for text in ids]
    first: dict[str, str] = {}
    keys = {form: first.setdefault(loose(form), form) for form in dict.fromkeys(forms)}
    return [keys[form] for form in forms], sum(form != key for form, key in keys.items())


def matched(ids: Sequence[str], listed: Sequence[str], where: str) -> tuple[dict[str, str], int]:
    """Which id of a table means which thing.

    Equal canonical forms are one. An id of the table that none equals is taken for one whose writing alone is another
    (leading zeros, a number as a float, case), where no other id could be meant by it.

    Args:
        ids: of the things, as they are written there; blank ones are nobody.
        listed: ids as the table writes them.
        where: words that name table and column.

    Returns:
        Id of a thing → id as the table writes it; how many ids of things were found by another writing.

    Raises:
        FedMendError: an id of the table could mean several things, or several could mean one.
    """
    things = _groups(form for text in ids if (form := canonical(text)))
    rows = _groups(form for text in listed if (form := canonical(text)))
    taken: dict[str, str] = {}
    unclear = others = 0
    for key, forms in things.items():
        asked = rows.get(key, [])
        rest, over = [f for f in forms if f not in asked], [f for f in asked if f not in forms]
        taken |= {form: form for form in forms if form in asked}
        # 101 of the table equals one thing, but may as well be another one's 00101 that has lost its zeros.
        if asked and rest and (len(rest), len(over), len(forms)) != (1, 1, 1):
            unclear += len(asked)
        elif asked and rest:
            taken[rest[0]] = over[0]
            others += 1
    if unclear:
        words = "ids that can mean one thing each (or a finer column, e.g. StudyInstanceUID)"
        got = f"{unclear} that others equal but for leading zeros, case or the writing of a number"
        raise FedMendError(f"{where}: expected {words}, got {got}")
    written = {canonical(text): text for text in listed}
    return {text: written[taken[form]] for text in ids if (form := canonical(text)) in taken}, others


def _groups(forms: Iterable[str]) -> dict[str, list[str]]:
    """Loose form → the different canonical forms that have it."""
    groups: dict[str, list[str]] = {}
    for form in dict.fromkeys(forms):
        groups.setdefault(loose(form), []).append(form)
    return groups


def one_path(text: str) -> str:
    """One spelling of a path below a folder: ``a/b.png`` for ``./a//b.png``, ``a/x/../b.png`` and ``a\\b.png``. The
    number of a slice or frame, behind a ``#``, stays, 3 for 03."""
    path, frame = split_frame(text.strip().replace("\\", "/"))
    return (posixpath.normpath(path) if path else "") + _one_number(frame)


def _one_number(frame: str) -> str:
    return f"#{int(frame[1:])}" if frame[1:].isdecimal() and len(frame) <= _LONGEST else frame


def split_frame(image: str) -> tuple[str, str]:
    """The path of a file, and ``#`` with the number of its slice or frame, or nothing."""
    folder, slash, last = image.rpartition("/")
    name, mark, frame = last.partition("#")
    return folder + slash + name, mark + frame


def as_on_disk(root: Path, image: str) -> str:
    """The path below ``root`` with the letters of the files: names that a Mac wrote keep their accents apart. One from
    the root of the machine stays as it is."""
    path, frame = split_frame(image)
    if path.isascii() or path.startswith("/") or (root / path).exists():
        return image
    place = root
    for part in PurePosixPath(path).parts:
        if not (place / part).exists() and place.is_dir():
            letters = unicodedata.normalize("NFC", part)
            part = next((name for name in os.listdir(place) if unicodedata.normalize("NFC", name) == letters), part)
        place /= part
    return place.relative_to(root).as_posix() + frame


def with_an_ending(file: Path) -> str:
    """Words that say with which ending of images a file is there that a table names without one; "" where none is."""
    with contextlib.suppress(ValueError, OSError):
        endings = {f.suffix for f in file.parent.glob(f"{glob.escape(file.name)}.*") if f.stem == file.name}
        if found := sorted(e for e in endings if e.lower() in (*PICTURE_SUFFIXES, ".dcm")):
            return f"; it is there with the ending {found[0]}"
    return ""


def file_key(root: Path, image: str) -> tuple[int, int, str] | None:
    """The same for all names of one image, links included; None where no file is.

    Args:
        root: folder of the images.
        image: path below it, with ``#`` and a number behind a file with several.
    """
    path, frame = split_frame(image)
    try:
        found = (root / path).stat()
    except (OSError, ValueError):  # ValueError: no name that a file can have
        return None
    # Of a file with one image its name means the first; of one with several it means none.
    return (found.st_dev, found.st_ino, _one_number(frame) or "#0") if stat.S_ISREG(found.st_mode) else None


def names_of(cells: Iterable[str]) -> list[str]:
    """The classes that a column names, sorted. Where names differ in case, blanks or the writing of a number alone, the
    one that is written most often stands for all, of equals the first in the alphabet. Missing values name none.

    Args:
        cells: of all rows.
    """
    count = Counter(canonical(cell) for cell in cells if not is_missing(cell))
    best: dict[str, str] = {}
    for name in sorted(count, key=lambda n: (-count[n], n)):
        best.setdefault(loose(name), name)
    return sorted(best.values())


def known_as(text: str, names: Sequence[str]) -> str | None:
    """The one of these names that a text means: an equal one, else the only one whose writing alone is another."""
    text = canonical(text)
    if text in names:
        return text
    same = [name for name in names if loose(name) == loose(text)]
    return same[0] if len(same) == 1 else None
