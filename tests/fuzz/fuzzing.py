"""Hypothesis-made damage to good input, and what every answer to it must be like."""

import contextlib
import copy
import json
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fedmend.errors import FedMendError
from fedmend.messages import LONGEST_ERROR

FEW, MANY = 50, 2_000
LONGEST = 5.0  # seconds that one answer may take
MOST_MEMORY = 2**30  # bytes that a test may take on top of what there was
PRIVATE = "MUSTER^MAX"  # a patient's name that stands in the input; no answer repeats it

# Values that have broken parsers before: of another kind, too long, too large, too deep, without end, not printable.
NASTY = [
    *(None, True, False, 0, -1, 2**31, 2**63, -(10**30), 0.5, float("nan"), float("inf"), -float("inf"), 1e308),
    *("", " ", "\0", "\n", "\x1b[2J", "..", "../x", "/etc/passwd", "~nobody-of-this-name/x", "{SITE_NAME}", "{$HOME}"),
    *("\ud800", "\u202e", "x" * 300, "x" * 5000, "NaN", "1e999", "9" * 5000, "\N{SUPERSCRIPT TWO}", PRIVATE),
    *([], [[]], {}, [None], [0, 0], {"": 0}, {"a": {}}, [1.5, float("nan")]),
]
PIECES = [
    *(b"", b"\0", b"\xff", b"\xef\xbb\xbf", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\r", b";", b"\t"),
    *(b"9" * 5000, b"[" * 5000, b'{"a":' * 3000, b"1e999", b"NaN", b"-0", b"\\ud800", b"null", b" "),
]

number_of_cases = pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def _places(value: object, place: tuple = ()) -> Iterator[tuple]:
    """The way to every value inside a structure, itself first."""
    yield place
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*place, index))


class Choices:
    """Decisions that one whole number makes, as each draw of Hypothesis costs half a millisecond."""

    def __init__(self, number: int):
        self._left = number

    def below(self, end: int) -> int:
        """The next decision, from 0 to ``end`` - 1."""
        self._left, choice = divmod(self._left, end)
        return choice

    def of(self, values: Sequence) -> object:
        """One of these."""
        return values[self.below(len(values))]


CHOICES = st.integers(0, 2**160).map(Choices)


def damaged(good: object, nasty: Sequence = NASTY) -> st.SearchStrategy:
    """Copies of a structure of mappings and lists in which up to three values are replaced, taken away or added."""

    def damage(choose: Choices) -> object:
        whole = [copy.deepcopy(good)]
        for _ in range(1 + choose.below(3)):
            _damage(whole, choose, nasty)
        return whole[0]

    return CHOICES.map(damage)


def _damage(whole: list, choose: Choices, nasty: Sequence) -> None:
    *way, last = choose.of(list(_places(whole))[1:])
    home = whole
    for step in way:
        home = home[step]
    value = copy.deepcopy(choose.of([*nasty, choose.below(2**20) - 2**19, chr(choose.below(0xD800)) * 3]))
    match choose.below(6):
        case 0 if way:
            del home[last]
        case 1 if isinstance(home, dict):
            home[choose.of(["", "x", "\n", "\ud800", "\x1b[2J"])] = value
        case _:
            home[last] = value


def damaged_bytes(good: bytes, pieces: Sequence[bytes] = PIECES) -> st.SearchStrategy[bytes]:
    """Copies of a file in which up to three short runs of bytes are replaced, or that end too early."""

    def damage(choose: Choices) -> bytes:
        text = good
        for _ in range(1 + choose.below(3)):
            start, piece = choose.below(len(text) + 1), choose.of([*pieces, bytes([choose.below(256)])])
            rest = b"" if choose.below(20) == 0 else text[start + choose.of([0, 0, 1, 2, 4, 8]) :]
            text = text[:start] + piece + rest
        return text

    return CHOICES.map(damage)


def json_files(good: object, nasty: Sequence = NASTY) -> st.SearchStrategy[bytes]:
    """Damaged JSON: half of the cases parse and hold other values, half have other characters."""
    return damaged(good, nasty).map(lambda value: json.dumps(value).encode()) | damaged_bytes(json.dumps(good).encode())


def is_sentence(words: str) -> bool:
    """Whether a person, a log and a console can bear it: printable, of bounded length, without a patient's name."""
    return 0 < len(words) <= LONGEST_ERROR and words.isprintable() and PRIVATE not in words


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Ends what computes for longer than :data:`LONGEST` with an error, as a hang has no other end."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"expected an answer within {LONGEST} s of computing")

    before = signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _memory(word: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at most since the last reset."""
    return 1024 * int(re.search(rf"{word}:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))


def try_all(strategy: st.SearchStrategy, act: Callable[[object], object], cases: int, *refusals: type) -> None:
    """Every case is accepted or answered by one sentence, in time and in memory.

    Args:
        strategy: makes the cases.
        act: what parses one; its own assertions are about what it accepted.
        cases: how many.
        refusals: errors that are answers besides :class:`FedMendError`, with a sentence too.
    """

    @settings(
        max_examples=cases, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def one(case: object) -> None:
        note(f"the case is {case!r:.2000}")
        try:
            with in_time():
                act(case)
        except (FedMendError, *refusals) as e:
            words = str(e)
        else:
            return
        assert is_sentence(words), repr(words)[:LONGEST_ERROR]

    Path("/proc/self/clear_refs").write_text("5")  # the largest size so far is forgotten
    before = _memory("VmRSS")
    one()
    assert _memory("VmHWM") - before < MOST_MEMORY
