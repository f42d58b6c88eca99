"""How converters refuse what they cannot use, in one sentence."""

from collections.abc import Callable, Mapping
from typing import Any

from fedmend.errors import FedMendError

Limits = Mapping[str, tuple[Callable[[Any], bool], str]]  # field → whether a value is good, and which ones are


def need(good: object, where: str, expected: str, got: object) -> None:
    """Refuses what is not good, which is a truth value.

    Raises:
        FedMendError: ``<where>: expected <expected>, got <got>``.
    """
    if not good:
        raise FedMendError(f"{where}: expected {expected}, got {got}")


def need_part(there: object, where: str, name: str, why: str = "") -> None:
    """Refuses a download that lacks a part.

    Raises:
        FedMendError: names the part.
    """
    if not there:
        raise FedMendError(f"{where}, argument source: expected {name} in it{why}, not found")


def check_fields(where: str, protocol: object, limits: Limits) -> None:
    """Checks fields of a protocol, in the order of the limits; messages start with ``where``.

    Raises:
        FedMendError: names the first field that is not as expected.
    """
    for name, (good, expected) in limits.items():
        value = getattr(protocol, name)
        need(good(value), f"{where}, argument {name}", expected, repr(value))


SHARES: Limits = {
    "test_share": (lambda v: 0 < v < 1, "a number between 0 and 1"),
    "val_share": (lambda v: 0 <= v < 1, "0 or a number below 1"),
    "train_per_site": (lambda v: v is None or v >= 1, "None or at least 1"),
}


def one_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    """A limit of :func:`check_fields`: one of these words."""
    return lambda v: v in words, f"{', '.join(map(repr, words[:-1]))} or {words[-1]!r}"
