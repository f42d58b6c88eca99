"""What people decide about labels: rows of the ledger that no rule, no repeated round and no ``undo`` takes back.

A verdict is about one label (in masks: the pixels of one class in one slice that a person saw changed). It is never
changed or deleted; of several about the same label, or pixel, the latest counts, and taking it back is a further row.
Every row has a random name, by which the ledgers of several runs on the same data take them over from each other.
"""

import re
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from fedmend.errors import FedMendError

ACCEPT, REJECT, UNSURE, RELABEL, WITHDRAW = "accept", "reject", "unsure", "relabel", "withdraw"
WORDS = (ACCEPT, REJECT, UNSURE, RELABEL, WITHDRAW)
LONGEST_NOTE = 500
TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (
    number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, sample INTEGER NOT NULL,
    label_class INTEGER NOT NULL, word TEXT NOT NULL, old INTEGER NOT NULL, value INTEGER NOT NULL, rule TEXT NOT NULL,
    round_num INTEGER NOT NULL, reviewer TEXT NOT NULL, note TEXT NOT NULL, made TEXT NOT NULL, pixels BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS verdicts_of_a_label ON verdicts (sample, label_class);
"""


class JudgedMeanwhile(FedMendError):
    """Somebody else has judged a label, or a rule has repaired it anew, after it was shown."""


@dataclass(frozen=True)
class Verdict:
    """A person's word about one label, or about the marks of one class in one slice.

    Attributes:
        sample: sample number.
        label_class: class number; of data with one label per sample that of the label that the word is about.
        word: ``accept`` fixes the label ``value``; ``reject`` forbids it, and the original counts; ``relabel`` fixes
            the label ``value``, which is another one; ``unsure`` leaves open what is right, and ``withdraw`` takes a
            verdict about the same label back, the last one of the ledger at that time.
        old: the original label, -1 where there was none; of masks voxels of the class.
        value: label 0 or 1; of masks voxels of the class.
        rule: of the repair that was judged; empty: an original label was.
        round_num: of the repair; -1: an original label was judged.
        reviewer: initials.
        note: free words; of ``withdraw`` the name of the verdict that it takes back.
        made: time, UTC; empty: now.
        name: of the row; empty: a new one.
        pixels: of masks what the repair had changed, packed; see :mod:`fedmend.repairs.mask_ledger`.
    """

    sample: int
    label_class: int
    word: str
    old: int
    value: int
    rule: str = ""
    round_num: int = -1
    reviewer: str = ""
    note: str = ""
    made: str = ""
    name: str = ""
    pixels: bytes = b""


_COLUMNS = tuple(f.name for f in fields(Verdict))
_INSERT = f"INSERT INTO verdicts ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


def check_verdict(verdict: Verdict) -> None:
    """Refuses what no person can have meant.

    Raises:
        FedMendError: an unknown word, initials or a note of another form, or the rejection of an original label.
    """
    if verdict.word not in WORDS:
        raise FedMendError(f"verdict: expected one of {', '.join(WORDS)}, got another word")
    check_reviewer(verdict.reviewer)
    if len(verdict.note) > LONGEST_NOTE or not verdict.note.replace("\n", "").isprintable():
        raise FedMendError(f"verdict, note: expected at most {LONGEST_NOTE} printable characters, got others")
    if verdict.word == REJECT and not verdict.rule:
        raise FedMendError("verdict: expected another label for an original one that is wrong, got its rejection")


def check_reviewer(initials: str) -> str:
    """The same initials.

    Raises:
        FedMendError: not 1 to 12 letters, digits, dots or hyphens.
    """
    if not re.fullmatch(r"[^\W_][\w.-]{0,11}", initials):
        raise FedMendError("verdict, initials: expected 1 to 12 letters, digits, '.' or '-', got others")
    return initials


def all_verdicts(db: sqlite3.Connection) -> list[Verdict]:
    """All rows in the order in which they count, by time and name, the same in every ledger that has them; none in a
    ledger of an earlier version."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'verdicts'").fetchone():
        return []
    return _selected(db, "TRUE", ())


def _selected(db: sqlite3.Connection, condition: str, values: Sequence[int]) -> list[Verdict]:
    """Rows that meet a condition, in the order in which they count."""
    rows = db.execute(f"SELECT {', '.join(_COLUMNS)} FROM verdicts WHERE {condition} ORDER BY made, name", values)
    return [Verdict(*row) for row in rows]


def counting(verdicts: Iterable[Verdict], *, one_label: bool) -> list[Verdict]:
    """The verdicts that nobody has taken back, in their order, and none that takes another back.

    Args:
        verdicts: in the order in which they count.
        one_label: see :func:`key_of`.
    """
    found: dict[tuple[int, int], dict[str, Verdict]] = {}
    every = list(verdicts)
    for v in every:
        about = found.setdefault(key_of(v, one_label=one_label), {})
        if v.word != WITHDRAW:
            about[v.name] = v
        elif v.note:  # another run may have had another last one
            about.pop(v.note, None)
        elif about:  # a row of an earlier version
            about.popitem()
    kept = {name for about in found.values() for name in about}
    return [v for v in every if v.name in kept]


def latest(verdicts: Iterable[Verdict], *, one_label: bool) -> dict[tuple[int, int], Verdict]:
    """Key of a label → its last verdict that nobody has taken back.

    Args:
        verdicts: in the order in which they count.
        one_label: see :func:`key_of`.
    """
    return {key_of(v, one_label=one_label): v for v in counting(verdicts, one_label=one_label)}


def refusals(verdicts: Iterable[Verdict], *, one_label: bool) -> list[Verdict]:
    """The rejections that hold: those of a label after which nobody said anything else about it."""
    found: dict[tuple[int, int], list[Verdict]] = {}
    for v in counting(verdicts, one_label=one_label):
        before = found.get(key_of(v, one_label=one_label), [])
        found[key_of(v, one_label=one_label)] = [*before, v] if v.word == REJECT else []
    return [v for several in found.values() for v in several]


def key_of(verdict: Any, *, one_label: bool) -> tuple[int, int]:
    """What a verdict or a repair is about: sample and class, or, where each sample has one class, the sample and 0."""
    return verdict.sample, 0 if one_label else verdict.label_class


def add(db: sqlite3.Connection, verdict: Verdict, *, seen: str, one_label: bool) -> Verdict:
    """Appends a verdict.

    Args:
        db: in a transaction that may write.
        verdict: without name and time.
        seen: name of the verdict that the person saw about this label; empty: none.
        one_label: see :func:`key_of`.

    Returns:
        The verdict as it was written.

    Raises:
        FedMendError: see :func:`check_verdict`; JudgedMeanwhile: another one came between.
    """
    check_verdict(verdict)
    chosen = "sample = ?" if one_label else "sample = ? AND label_class = ?"
    said = _selected(db, chosen, (verdict.sample,) if one_label else (verdict.sample, verdict.label_class))
    before = next(reversed(counting(said, one_label=one_label)), None)
    if (before.name if before else "") != seen:
        who = before.reviewer if before else "nobody"
        raise JudgedMeanwhile(f"verdict: expected a label as it was shown, {who} was the last to judge it; look again")
    (last,) = db.execute("SELECT MAX(made) FROM verdicts").fetchone()
    now = datetime.now(UTC)
    if last:  # a clock that was put back must not let an earlier one win, nor may the names of two of one moment decide
        now = max(now, datetime.strptime(last, TIME).replace(tzinfo=UTC) + timedelta(microseconds=1))
    note = seen if verdict.word == WITHDRAW else verdict.note
    written = replace(verdict, note=note, name=secrets.token_hex(8), made=now.strftime(TIME))
    _insert(db, [written])
    return written


def take_over(db: sqlite3.Connection, others: Sequence[Verdict]) -> int:
    """Appends the verdicts of another ledger that this one lacks; their number."""
    known = {v.name for v in all_verdicts(db)}
    new = [v for v in others if v.name not in known]
    _insert(db, new)
    return len(new)


def _insert(db: sqlite3.Connection, verdicts: Sequence[Verdict]) -> None:
    db.executemany(_INSERT, [tuple(getattr(v, name) for name in _COLUMNS) for v in verdicts])


def verdict_counts(
    verdicts: Sequence[Verdict], num_classes: int, *, one_label: bool, min_count: int
) -> dict[str, np.ndarray]:
    """How many repairs people have judged right and wrong, for the server if the site shares that.

    Args:
        verdicts: in the order in which they count.
        num_classes: C.
        one_label: see :func:`key_of`.
        min_count: a class with fewer verdicts counts as without any.

    Returns:
        accepted: (C,) int64, accepted repairs; rejected: (C,) int64, rejected ones and those that got another label.
    """
    words = {ACCEPT: "accepted", REJECT: "rejected", RELABEL: "rejected"}
    counts = {name: np.zeros(num_classes, dtype=np.int64) for name in ("accepted", "rejected")}
    for v in latest(verdicts, one_label=one_label).values():
        if v.word in words and v.rule:
            counts[words[v.word]][v.label_class] += 1
    enough = counts["accepted"] + counts["rejected"] >= min_count
    return {name: np.where(enough, values, 0) for name, values in counts.items()}


# ---- what they mean for labels --------------------------------------------------------------------------------------
def judged(labels: np.ndarray, verdicts: Sequence[Verdict], *, one_label: bool) -> np.ndarray:
    """Labels (N, C) int8 with those that people have fixed or given put in; a new array.

    Args:
        labels: of the data set.
        verdicts: in the order in which they count.
        one_label: see :func:`key_of`.
    """
    result = labels.copy()
    for v in latest(verdicts, one_label=one_label).values():
        if v.word in (ACCEPT, RELABEL):
            if one_label:
                result[v.sample] = 0
            result[v.sample, v.label_class] = v.value
    return result


def banned(verdicts: Sequence[Verdict], shape: tuple[int, int], *, one_label: bool) -> np.ndarray:
    """(N, C, 2) bool: whether people have rejected the label 0, and 1, of each sample and class.

    Args:
        verdicts: in the order in which they count.
        shape: (N, C).
        one_label: see :func:`key_of`.
    """
    found = np.zeros((*shape, 2), dtype=bool)
    for v in refusals(verdicts, one_label=one_label):
        found[v.sample, v.label_class, v.value] = True
    return found


def refused(labels: np.ndarray, banned: np.ndarray, *, one_label: bool) -> np.ndarray:
    """(N, C) bool: the labels that people have rejected; with one label per sample its whole row.

    Args:
        labels: (N, C) int8.
        banned: (N, C, 2) of :func:`banned`.
        one_label: see :func:`key_of`.
    """
    found = (labels == 0) & banned[..., 0] | (labels == 1) & banned[..., 1]
    return np.broadcast_to(found.any(1, keepdims=True), found.shape) if one_label else found
