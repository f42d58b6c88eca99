"""What ledgers of labels and of masks share: every repair of a site, who made it and when; originals stay as they are.

SQLite, one file per run and site, append-only: an entry is never changed or deleted, it is taken out of force by a
later row in ``retractions``. What people decide stands above all entries, see :mod:`fedmend.repairs.verdicts`. A round
is one transaction, and recording a (rule, round) again takes its earlier entries and those of later rounds out of
force first, so that a repeated or resumed round leaves the ledger as if it had run once.

Every transaction that changes what is in force leaves a *mark*: 16 random bytes, which tell nothing about the repairs.
The server keeps the latest and gives it back with the next question; a ledger without it is an older copy, or new.
"""

import contextlib
import csv
import logging
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedmend.basics.files import OWNER, make_folder
from fedmend.basics.words import inert
from fedmend.errors import FedMendError
from fedmend.labels import NOT_ANNOTATED
from fedmend.repairs import verdicts as people
from fedmend.repairs.ledger_rows import Unavailable, check_rows, check_types, check_verdicts, no_ledger
from fedmend.repairs.verdicts import Verdict

LOG = logging.getLogger("fedmend.executor")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS samples (sample INTEGER PRIMARY KEY, image TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS classes (class INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    entry INTEGER PRIMARY KEY AUTOINCREMENT, sample INTEGER NOT NULL, class INTEGER NOT NULL, old INTEGER NOT NULL,
    new INTEGER NOT NULL, rule TEXT NOT NULL, round INTEGER NOT NULL, confidence REAL NOT NULL);
CREATE TABLE IF NOT EXISTS retractions (
    rule TEXT NOT NULL, from_round INTEGER NOT NULL, last_entry INTEGER NOT NULL,
    made TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
"""
_MARKS = "CREATE TABLE IF NOT EXISTS marks (number INTEGER PRIMARY KEY, mark TEXT NOT NULL);"
_IN_FORCE = """NOT EXISTS (SELECT 1 FROM retractions r WHERE (r.rule = e.rule OR r.rule = '*')
                           AND r.from_round <= e.round AND e.entry <= r.last_entry)"""
ANY_RULE, FIRST = "*", -1  # the round under which a collection before round 0 records
PATIENCE = 30.0  # seconds until another process, e.g. one that exports or backs up, lets the file go
SYNCHRONOUS = "EXTRA"  # FULL, SQLite's default, may lose the last transaction when the power fails


class Entry(NamedTuple):
    """One row of the ledger.

    Attributes:
        sample: sample number.
        label_class: class number.
        old: label before, -1 where there was none; of masks voxels of the class in the slice.
        new: label after; likewise.
        rule: who repaired it.
        round_num: communication round.
        confidence: the rule's own measure.
    """

    sample: int
    label_class: int
    old: int
    new: int
    rule: str
    round_num: int
    confidence: float


@contextlib.contextmanager
def _transaction(path: Path, where: str) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE)) as db, db:
            db.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
            yield db
    except sqlite3.DatabaseError as e:
        code = (getattr(e, "sqlite_errorcode", None) or 0) & 0xFF  # without what SQLite adds, e.g. which index
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):  # the last: other tables
            raise no_ledger(where) from None
        if code and isinstance(e, sqlite3.OperationalError):  # locked, read-only, full disk; the words hold no path
            raise Unavailable(f"{where}: expected a file that can be opened and written, got: {e}") from None
        raise


class Ledger(ABC):
    """The rows of one site and run, their marks, and what people say about them.

    Args:
        path: SQLite file; made when missing.
        fingerprint: hash of the training data, :meth:`LabelTable.fingerprint` or :meth:`VolumeSplit.fingerprint`.
        images: N image paths or names of slices, for people who read the ledger.
        classes: C class names.
        site: site name for messages.
        one_label: each sample has one class: verdicts are about samples.

    Raises:
        FedMendError: the file is a ledger of another data set, or no ledger, or it cannot be opened and written; the
            last is said by every other method too.
    """

    _largest = 1  # label, or number of voxels

    def __init__(
        self,
        path: Path,
        *,
        fingerprint: str,
        images: Sequence[str],
        classes: Sequence[str],
        site: str,
        one_label: bool = False,
    ):
        self._path, self._shape, self._fingerprint = Path(path), (len(images), len(classes)), fingerprint
        self._one_label, self._where = one_label, f"{site}: label ledger"
        self._known: tuple[str, Any] | None = None
        try:
            make_folder(self._path.parent)
            self._path.touch(mode=OWNER)
        except OSError as e:
            what = "expected a file that can be opened and written"
            raise FedMendError(f"{self._where}: {what}, got: {e.strerror}") from None
        with self._transaction() as db:
            old = db.execute("SELECT 1 FROM sqlite_master").fetchone()  # a new one is written at once, not by table
            db.executescript(("" if old else "BEGIN IMMEDIATE;") + _SCHEMA + _MARKS + people.SCHEMA)
            known = dict(db.execute("SELECT key, value FROM about"))
            if known.get("fingerprint", fingerprint) != fingerprint:
                raise FedMendError(  # without the hashes: who guesses labels could check the guess against them
                    f"{self._where}: expected the ledger of this data set, got that of another; choose another run_name"
                    " or put the earlier labels back"
                )
            if "fingerprint" not in known:
                if known or db.execute("SELECT 1 FROM samples").fetchone():  # not new: these are written together
                    raise no_ledger(self._where)
                db.execute("INSERT INTO about VALUES ('fingerprint', ?)", (fingerprint,))
                db.executemany("INSERT INTO samples VALUES (?, ?)", enumerate(images))
                db.executemany("INSERT INTO classes VALUES (?, ?)", enumerate(classes))
            check_rows(db, self._shape, self._largest, self._where)

    def _transaction(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return _transaction(self._path, self._where)

    def _append(self, rule: str, round_num: int, columns: Sequence[np.ndarray]) -> None:
        """Appends the repairs of one round in one transaction.

        Args:
            rule: the method's rule.
            round_num: communication round.
            columns: (M,) each: sample, class, old, new, confidence; see :class:`Entry`.
        """
        rows = [(*row, rule, round_num) for row in zip(*(column.tolist() for column in columns), strict=True)]
        with self._transaction() as db:
            if not _undo(db, rule, round_num) and rows:
                _leave_mark(db)
            into = "INSERT INTO entries (sample, class, old, new, confidence, rule, round) VALUES (?, ?, ?, ?, ?, ?, ?)"
            db.executemany(into, rows)

    def undo(self, *, rule: str = ANY_RULE, from_round: int = 0) -> int:
        """Takes repairs out of force; they stay in the history.

        Args:
            rule: one rule or ``*`` for all.
            from_round: first round to take back.

        Returns:
            Number of entries taken out of force.
        """
        with self._transaction() as db:
            return _undo(db, rule, from_round)

    def forget_marks(self) -> None:
        """For another run: no earlier mark counts, as the earlier run cannot go on."""
        with self._transaction() as db:
            if db.execute("DELETE FROM marks").rowcount:  # whoever knows the ledger without one reads it again
                _leave_mark(db)

    def mark(self) -> str:
        """The latest mark; empty where nothing was recorded."""
        with self._transaction() as db:
            return _latest_mark(db)

    def leave_mark(self) -> None:
        """Leaves a mark although no repair changed: of what this run has done besides, which an older copy lacks."""
        with self._transaction() as db:
            _leave_mark(db)

    def check_mark(self, mark: str) -> None:
        """Refuses to go on with a ledger that has fallen behind.

        Args:
            mark: one that this run was told before; empty: none.

        Raises:
            FedMendError: the ledger has never left it.
        """
        with self._transaction() as db:
            if mark and not db.execute("SELECT 1 FROM marks WHERE mark = ?", (mark,)).fetchone():
                raise FedMendError(
                    f"{self._where}: expected all repairs that this run has recorded, got a ledger without the latest"
                    " (an older copy, or a new file); put the right one back, or let the lead go on with this one by"
                    ' allow_changes=["ledgers"]'
                )

    def in_force(self) -> list[Entry]:
        """The entries in force, in the order in which they were made; also those that people have rejected."""
        with self._transaction() as db:
            return _in_force(db)

    def _outcome(self) -> Any:
        """What :meth:`_combine` made of the ledger as it is now; to be copied, not changed."""
        with self._transaction() as db:
            db.execute("BEGIN")  # all that is read is of one moment, whatever another process writes
            mark = _latest_mark(db)  # another one as soon as a repair or a verdict came
            if self._known is not None and self._known[0] == mark:
                return self._known[1]
            entries, verdicts = _in_force(db), people.all_verdicts(db)
        self._known = mark, self._combine(entries, verdicts)
        return self._known[1]

    @abstractmethod
    def _combine(self, entries: list[Entry], verdicts: list[Verdict]) -> Any:
        """What the entries in force change, after what people say about them.

        Args:
            entries: in the order in which they were made.
            verdicts: in the order in which they count.
        """

    # ---- what people say --------------------------------------------------------------------------------------------
    def judge(self, verdict: Verdict, *, seen: str = "") -> Verdict:
        """Writes a person's verdict; it counts from the next question of the server on.

        Args:
            verdict: without name and time.
            seen: name of the verdict that the person saw about this label; empty: none.

        Raises:
            FedMendError: see :func:`fedmend.repairs.verdicts.add`.
        """
        with self._transaction() as db:
            db.execute("BEGIN IMMEDIATE")
            written = people.add(db, verdict, seen=seen, one_label=self._one_label)
            _leave_mark(db)
        return written

    def verdicts(self) -> list[Verdict]:
        """All verdicts, in the order in which they count."""
        with self._transaction() as db:
            return people.all_verdicts(db)

    def take_over(self, path: Path) -> int:
        """Appends the verdicts in another ledger on the same data; the number of those that this one lacked.

        Args:
            path: an SQLite file.

        Raises:
            FedMendError: no ledger.
            Unavailable: it is locked, or cannot be opened.
        """
        where = f"{self._where} of another run"
        with _transaction(path, where) as db:
            same = db.execute("SELECT value FROM about WHERE key = 'fingerprint'").fetchone() == (self._fingerprint,)
            others = people.all_verdicts(db)
        if others and not same:
            words = "%s: %d verdicts of run %s do not count here: data or labels have changed"
            LOG.info(words, self._where, len(others), path.parents[1].name)
        if not (others and same):
            return 0
        check_verdicts(others, self._shape, self._largest, where)
        with self._transaction() as db:
            db.execute("BEGIN IMMEDIATE")
            count = people.take_over(db, others)
            if count:
                _leave_mark(db)
        return count

    def history(self) -> list[dict]:
        """All entries in the order in which they were made, with ``in_force`` 1 or 0; what ``to_csv`` writes."""
        return read_history(self._path)


def _existing(path: Path) -> contextlib.AbstractContextManager[sqlite3.Connection]:
    if not Path(path).is_file():  # which SQLite would make
        raise FedMendError(f"label ledger {path}: expected a ledger file, not found")
    return _transaction(path, f"label ledger {path}")


def read_history(path: Path) -> list[dict]:
    """Reads a ledger file without its data set, for people.

    Args:
        path: the SQLite file.

    Raises:
        FedMendError: no such ledger, or it cannot be opened.
    """
    with _existing(path) as db:
        db.row_factory = sqlite3.Row
        rows = db.execute(
            f"""SELECT s.image, c.name AS class, e.old, e.new, e.rule, e.round, e.confidence, {_IN_FORCE} AS in_force
                FROM entries e LEFT JOIN samples s USING (sample) LEFT JOIN classes c USING (class) ORDER BY e.entry"""
        ).fetchall()
    types = {"image": str, "class": str, "old": int, "new": int, "rule": str, "round": int, "confidence": float}
    check_types(rows, types, f"label ledger {path}")
    return [dict(row) for row in rows]


def read_verdicts(path: Path) -> list[dict]:
    """Reads what people said in a ledger file, without its data set: image, class and the fields of ``Verdict`` but
    numbers and pixels, in the order in which verdicts count.

    Args:
        path: the SQLite file.

    Raises:
        FedMendError: as :func:`read_history`.
    """
    with _existing(path) as db:
        images, classes = dict(db.execute("SELECT * FROM samples")), dict(db.execute("SELECT * FROM classes"))
        rows = people.all_verdicts(db)
    texts = ("word", "rule", "reviewer", "note", "made")
    told = {**dict.fromkeys(texts, str), **dict.fromkeys(("old", "value", "round_num"), int)}
    said = [
        {
            "image": images.get(v.sample),
            "class": classes.get(v.label_class),
            **{name: getattr(v, name) for name in told},
            **({"note": ""} if v.word == people.WITHDRAW else {}),
        }
        for v in rows
    ]
    check_types(said, {"image": str, "class": str, **told}, f"label ledger {path}")
    return said


def undo_file(path: Path, *, rule: str = ANY_RULE, from_round: int = 0) -> int:
    """:meth:`Ledger.undo` on a ledger file, without its data set."""
    with _existing(path) as db:
        return _undo(db, rule, from_round)


def _undo(db: sqlite3.Connection, rule: str, from_round: int) -> int:
    chosen = f"FROM entries e WHERE (e.rule = :rule OR :rule = '{ANY_RULE}') AND e.round >= :round AND {_IN_FORCE}"
    where = {"rule": rule, "round": from_round}
    (count,) = db.execute(f"SELECT COUNT(*) {chosen}", where).fetchone()
    if count:
        into = "INSERT INTO retractions (rule, from_round, last_entry)"
        db.execute(f"{into} SELECT :rule, :round, MAX(entry) FROM entries", where)
        _leave_mark(db)
    return count


def _latest_mark(db: sqlite3.Connection) -> str:
    found = db.execute("SELECT mark FROM marks ORDER BY number DESC LIMIT 1").fetchone()
    return found[0] if found else ""


def _in_force(db: sqlite3.Connection) -> list[Entry]:
    wanted = "e.sample, e.class, e.old, e.new, e.rule, e.round, e.confidence"
    return [Entry(*row) for row in db.execute(f"SELECT {wanted} FROM entries e WHERE {_IN_FORCE} ORDER BY e.entry")]


def _leave_mark(db: sqlite3.Connection) -> None:
    db.execute(_MARKS)
    db.execute("INSERT INTO marks (mark) VALUES (?)", (secrets.token_hex(16),))


def to_csv(path: Path, out: Path) -> int:
    """Writes the history of a ledger file as CSV, and behind it what people said.

    Columns are image, class, old, new, rule, round, confidence, in_force, and of verdicts word, reviewer, note and
    made. Rounds count from 1, as in all that people read; ``old`` is blank where nobody had annotated. A text that a
    spreadsheet would take for a formula has an apostrophe in front, and so has one that begins with an apostrophe:
    who takes one apostrophe away has the text as it was.

    Returns:
        Number of entries written.

    Raises:
        FedMendError: ``out`` is the ledger, or see :func:`read_history`.
    """
    if path.resolve() == out.resolve():
        raise FedMendError("label ledger: expected another file for the export, got the ledger")
    rows = [*read_history(path), *({**v, "new": v["value"], "round": v["round_num"]} for v in read_verdicts(path))]
    columns = ["image", "class", "old", "new", "rule", "round", "confidence", "in_force"]
    columns += ["word", "reviewer", "note", "made"]
    with open(out, "w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            old = "" if row["old"] == NOT_ANNOTATED else row["old"]
            shown = {name: inert(value) for name, value in row.items()}
            writer.writerow({**shown, "old": old, "round": row["round"] + 1 if row["rule"] else ""})
    return len(rows)
