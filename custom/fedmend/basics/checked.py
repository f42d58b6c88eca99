"""JSON that somebody else wrote, made a frozen dataclass whose fields say themselves what they take."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from fedmend.errors import LONGEST_VALUE, FedMendError

T = TypeVar("T")
LARGEST = 2**53  # above it, whole numbers and floats are no longer the same
REFUSES = (ValueError, TypeError, LookupError, AttributeError, OverflowError)


class Check(NamedTuple):
    """What a field takes.

    Attributes:
        read: value of the JSON → value of the field; raises one of ``REFUSES`` where it is refused.
        expected: words for what is taken.
    """

    read: Callable[[Any], Any]
    expected: str


def that(holds: Callable[[Any], object], expected: str) -> Check:
    """Takes a value as it is if something holds for it.

    Args:
        holds: whether the value is taken; may raise one of ``REFUSES`` instead.
        expected: as in :class:`Check`.
    """

    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError
        return value

    return Check(read, expected)


def whole(least: int = 0) -> Check:
    """Takes whole numbers of at least ``least`` and below 2^53, also those of NumPy, and makes them Python's."""

    def read(value: Any) -> int:
        made = operator.index(value)
        if isinstance(value, bool) or not least <= made < LARGEST:
            raise ValueError
        return made

    return Check(read, f"a whole number >= {least}")


def number(expected: str = "", holds: Callable[[float], bool] = lambda value: True) -> Check:
    """Takes finite numbers up to 2^53, whole or not, and makes them floats.

    Args:
        expected: words behind *a number*.
        holds: whether it is in range.
    """

    def read(value: Any) -> float:
        if type(value) not in (int, float) or not abs(value) <= LARGEST or not holds(value):
            raise ValueError
        return float(value)

    return Check(read, f"a number {expected}".rstrip())


def one_of(words: Sequence[str]) -> Check:
    """Takes one of some texts."""
    return that(lambda value: isinstance(value, str) and value in words, f"one of {list(words)}")


TEXT = that(lambda value: isinstance(value, str), "text")
FLAG = that(lambda value: isinstance(value, bool), "true or false")
OBJECT = that(lambda value: isinstance(value, dict), "a JSON object")
COUNT = whole()
AMOUNT = number(">= 0", lambda value: value >= 0)
OF_TYPE: dict[Any, Check] = {
    int: that(lambda value: type(value) is int and abs(value) < LARGEST, "a whole number"),
    float: number("that is finite"),
    str: TEXT,
    bool: FLAG,
    Sequence[str]: that(
        lambda value: isinstance(value, list | tuple) and all(isinstance(word, str) for word in value),
        "a list of texts",
    ),
}


def _path(value: Any) -> Path:
    """The path, which the system looks up: it refuses a NUL, a name that is too long and what would be in a file. An
    empty text is refused, too: it would be the current folder."""
    path = Path(value)
    if value == "":
        raise ValueError(value)
    try:
        path.stat()
    except FileNotFoundError:
        return path  # a new one
    except OSError as e:
        raise ValueError(e) from None
    return path


def _folder(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise ValueError(path)
    return path


def _names(given: Any) -> list[str]:
    names = list(given)
    if isinstance(given, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(given)
    return names


NAMES = Check(_names, "a list of names")  # whatever can be gone through
PATH = Check(_path, "a path that can be looked up")  # whether there is something or not
PLACE = Check(_folder, "a folder, or the name of a new one")  # of a path


def taking(*checks: Check | type, key: str = "", **default: Any) -> Any:
    """A field of a dataclass that :func:`checked` reads; one without a default has to be there.

    Args:
        checks: each takes what the one before made; none: anything is taken; or one dataclass, for an object that is
            read as this, and for null, which means that the field is not there.
        key: its name in the JSON, if another.
        default: ``default`` or ``default_factory``, as in :func:`dataclasses.field`.
    """
    return field(metadata={"checks": checks, "key": key}, **default)


def another(value: object) -> str:
    """A refused value in words that cannot hold patient data."""
    return "nothing" if value is None else f"another {type(value).__name__}"


def shown(value: object) -> str:
    """A refused value as a person has given it, where it is their own."""
    try:
        return f"{value!r:.{LONGEST_VALUE}}"
    except ValueError:  # Python writes no number of more than 4,300 digits
        return another(value)


def accepted(value: object, checks: Sequence[Check], place: str, got: Callable[[object], str] = another) -> Any:
    """What the checks make of a value.

    Args:
        value: what the JSON gave; None: nothing.
        checks: each takes what the one before made.
        place: first words of a message.
        got: words for a refused value.

    Raises:
        FedMendError: says what was expected and what was found.
    """
    made = value
    for check in checks:
        try:
            made = check.read(made)
        except REFUSES:
            raise FedMendError(f"{place}: expected {check.expected}, got {got(value)}") from None
    return made


def checked(
    cls: type[T],
    raw: Any,
    where: str,
    *,
    inside: str = "",
    others: bool = False,
    got: Callable[[object], str] = another,
    **given: Any,
) -> T:
    """Makes a dataclass of an object of a JSON file.

    Args:
        cls: the dataclass; its fields that come from the file are :func:`taking` something.
        raw: what the JSON gave.
        where: words for the file in a message.
        inside: the field of the file that holds the object; empty: it is the whole file.
        others: fields that the dataclass does not know are passed over.
        got: words for a refused value.
        given: fields that do not come from the file.

    Raises:
        FedMendError: no object, or the first field that is unknown, missing or refused.
    """
    place, dot = (f"{where}, field {inside}", ".") if inside else (where, "")
    accepted(raw, [OBJECT], place, got)
    known = {f.metadata["key"] or f.name: f for f in fields(cast(Any, cls)) if "checks" in f.metadata}
    if not others and (unknown := sorted(f"{name:.40}" for name in set(raw) - set(known))):
        raise FedMendError(f"{place}: expected the fields {list(known)}, got also {unknown}")
    for name, f in known.items():
        checks, path, value = f.metadata["checks"], f"{inside}{dot}{name}", raw.get(name)
        inner: Any = next(filter(is_dataclass, checks), None)
        has_default = f.default is not MISSING or f.default_factory is not MISSING
        if has_default and (name not in raw or (inner and value is None)):
            continue
        if inner:
            given[f.name] = checked(inner, value, where, inside=path, others=others, got=got)
        else:
            given[f.name] = accepted(value, checks, f"{where}, field {path}", got)
    return cls(**given)


def check_types(settings: Any) -> None:
    """Refuses job variables of another type than the fields of their dataclass: JSON written by hand may hold any, and
    a text in the place of a list of names is one of letters.

    Args:
        settings: its fields are of the types in ``OF_TYPE``.

    Raises:
        FedMendError: the first one of another type.
    """
    for f in fields(settings):
        value = getattr(settings, f.name)
        accepted(value, [OF_TYPE[f.type]], f"job variable {f.name}", shown)
