"""Whether the rows of a ledger can be ours: SQLite takes any value in any column, and a file may have been edited."""

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fedmend.errors import WAY_ON, FedMendError
from fedmend.repairs.verdicts import TIME, WORDS, Verdict, all_verdicts

LAST_YEAR = 9000  # a verdict after one of the year 9999 could have no time


class Unavailable(FedMendError):
    """A ledger that is locked or cannot be read or written now; what it holds is not known."""


def no_ledger(where: str) -> FedMendError:
    """What is said of a file that is no ledger; ``where`` begins the sentence."""
    return FedMendError(f"{where}: expected an SQLite ledger, got another or a damaged file; {WAY_ON}")


def check_types(rows: Sequence[Any], types: Mapping[str, type], where: str) -> None:
    """Refuses a file with other values than ours.

    Args:
        rows: with these columns.
        types: of them.
        where: words that begin a sentence.

    Raises:
        FedMendError: there is one.
    """
    if any(type(row[name]) is not kind for row in rows for name, kind in types.items()):
        raise no_ledger(where)


def check_rows(db: sqlite3.Connection, shape: tuple[int, int], largest: int, where: str) -> None:
    """Refuses repairs and verdicts about samples and classes that there are not, or of labels that are none.

    Args:
        db: a ledger.
        shape: samples and classes.
        largest: label, or number of voxels.
        where: words that begin a sentence.

    Raises:
        FedMendError: there is one.
    """
    integers = ("sample", "class", "old", "new", "round")
    types = " AND ".join([*(f"typeof({name}) = 'integer'" for name in integers), "typeof(confidence) = 'real'"])
    ranges = "sample BETWEEN 0 AND ? AND class BETWEEN 0 AND ? AND old BETWEEN -1 AND ? AND new BETWEEN -1 AND ?"
    limits = (shape[0] - 1, shape[1] - 1, largest, largest)
    if db.execute(f"SELECT 1 FROM entries WHERE NOT ({types} AND {ranges}) LIMIT 1", limits).fetchone():
        raise no_ledger(where)
    check_verdicts(all_verdicts(db), shape, largest, where)


def check_verdicts(verdicts: Sequence[Verdict], shape: tuple[int, int], largest: int, where: str) -> None:
    """Refuses verdicts about what there is not, with an unknown word, or at a time that is none.

    Args:
        verdicts: of a ledger.
        shape: samples and classes.
        largest: label, or number of voxels.
        where: words that begin a sentence.

    Raises:
        FedMendError: there is one.
    """
    if not all(_is_ours(verdict, shape, largest) for verdict in verdicts):
        raise no_ledger(where)


def _is_ours(verdict: Verdict, shape: tuple[int, int], largest: int) -> bool:
    v = verdict
    numbers = (v.sample, v.label_class, v.old, v.value, v.round_num)
    texts = (v.word, v.rule, v.reviewer, v.note, v.made, v.name)
    if not all(type(n) is int for n in numbers) or not all(type(t) is str for t in texts) or v.word not in WORDS:
        return False
    inside = 0 <= v.sample < shape[0] and 0 <= v.label_class < shape[1]
    try:
        timely = datetime.strptime(v.made, TIME).year < LAST_YEAR
    except ValueError:
        return False
    return inside and timely and -1 <= v.old <= largest and -1 <= v.value <= largest and type(v.pixels) is bytes
