import contextlib
import csv
import functools
import re
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from factories import refused

from fedmend.errors import WAY_ON, FedMendError
from fedmend.repairs import verdicts
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.ledger import read_history, read_verdicts, to_csv, undo_file
from fedmend.repairs.verdicts import REJECT, RELABEL, Verdict

RULE, OTHER = "fedmlp.missing_label_detection", "fedlsm.relabel"
LABELS = np.array([[1, -1], [0, -1], [-1, 0], [-1, 1]], dtype=np.int8)
FINGERPRINT = "ab" * 32


def ledger(folder, fingerprint=FINGERPRINT, site="site-1"):
    return LabelLedger(
        folder / "ledger.sqlite", fingerprint=fingerprint, images=list("wxyz"), classes=["a", "b"], site=site
    )


def repairs(*rows):
    """Rows of (sample, class, new)."""
    sample, label_class, new = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Repairs(sample, label_class, new, np.linspace(0.5, 1, len(rows)))


def in_force(book):
    return [(e["image"], e["class"], e["new"], e["round"]) for e in book.history() if e["in_force"]]


def stored(folder):
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        return db.execute("SELECT * FROM entries ORDER BY entry").fetchall()


def test_a_new_ledger_changes_nothing(tmp_path):
    book = ledger(tmp_path)
    assert np.array_equal(book.apply(LABELS), LABELS)
    assert (book.repairs() == -1).all()
    assert book.history() == []


def test_repairs_are_put_into_the_target_and_originals_never_change(tmp_path):
    book, original = ledger(tmp_path), LABELS.copy()
    original.setflags(write=False)
    book.record(RULE, 0, original, repairs((0, 1, 1), (1, 1, 0)))
    target = book.apply(original)
    assert target.tolist() == [[1, 1], [0, 0], [-1, 0], [-1, 1]]
    assert target.dtype == np.int8
    assert np.array_equal(original, LABELS)
    target[:] = 0
    assert book.apply(original).tolist() == [[1, 1], [0, 0], [-1, 0], [-1, 1]]


def test_the_history_tells_who_changed_what_and_when(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 2, LABELS, repairs((0, 1, 1), (2, 1, 1)))
    assert book.history() == [
        {
            "image": image,
            "class": "b",
            "old": old,
            "new": 1,
            "rule": RULE,
            "round": 2,
            "confidence": confidence,
            "in_force": 1,
        }
        for image, old, confidence in (("w", -1, 0.5), ("y", 0, 1.0))
    ]


def test_a_later_repair_of_the_same_label_wins(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.record(OTHER, 1, LABELS, repairs((0, 1, 0)))
    assert book.repairs()[0].tolist() == [-1, 0]


def test_repairs_outlive_the_object(tmp_path):
    ledger(tmp_path).record(RULE, 0, LABELS, repairs((0, 1, 1)))
    assert ledger(tmp_path).repairs()[0].tolist() == [-1, 1]


def test_a_repeated_round_leaves_the_ledger_as_if_it_had_run_once(tmp_path):
    book = ledger(tmp_path)
    for _ in range(3):
        book.record(RULE, 0, LABELS, repairs((0, 1, 1), (1, 1, 0)))
    assert in_force(book) == [("w", "b", 1, 0), ("x", "b", 0, 0)]
    assert len(book.history()) == 6


def test_a_repeated_round_replaces_its_own_and_later_entries_of_its_rule_only(tmp_path):
    book = ledger(tmp_path)
    for round_num in range(3):
        book.record(RULE, round_num, LABELS, repairs((round_num, 1, 1)))
    book.record(OTHER, 2, LABELS, repairs((3, 0, 1)))
    book.record(RULE, 1, LABELS, repairs((1, 1, 0)))
    assert in_force(book) == [("w", "b", 1, 0), ("z", "a", 1, 2), ("x", "b", 0, 1)]


def test_a_repeated_round_that_repairs_nothing_takes_its_entries_back(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.record(RULE, 0, LABELS, repairs())
    assert (book.repairs() == -1).all()


def test_entries_are_only_ever_appended(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.record(RULE, 1, LABELS, repairs((1, 1, 0)))
    before = stored(tmp_path)
    book.record(RULE, 0, LABELS, repairs((2, 0, 1)))
    book.undo()
    assert stored(tmp_path)[:2] == before
    assert len(stored(tmp_path)) == 3


@pytest.mark.parametrize(
    ("chosen", "count", "left"),
    [
        ({}, 3, []),
        ({"rule": OTHER}, 1, ["w", "x"]),
        ({"from_round": 1}, 2, ["w"]),
        ({"rule": RULE, "from_round": 1}, 1, ["w", "y"]),
        ({"from_round": 9}, 0, ["w", "x", "y"]),
    ],
)
def test_undo_takes_back_a_rule_or_the_rounds_from_one_on(tmp_path, chosen, count, left):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.record(RULE, 1, LABELS, repairs((1, 1, 0)))
    book.record(OTHER, 2, LABELS, repairs((2, 0, 1)))
    assert book.undo(**chosen) == count
    assert [image for image, *_ in in_force(book)] == left
    assert len(book.history()) == 3
    assert book.undo(**chosen) == 0


def test_repairs_after_an_undo_are_in_force(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.undo()
    book.record(RULE, 0, LABELS, repairs((0, 1, 0)))
    assert in_force(book) == [("w", "b", 0, 0)]


@pytest.mark.parametrize("note", ["=HYPERLINK(1)", "+1", "-1", "@x", "'quoted", "plain = 1", "a\n=b"])
def test_no_text_of_the_table_is_a_formula_and_one_apostrophe_less_gives_it_back(tmp_path, note):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.judge(Verdict(0, 1, REJECT, -1, 1, RULE, 0, "AB", note))
    to_csv(tmp_path / "ledger.sqlite", tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="") as stream:
        written = list(csv.DictReader(stream))[1]["note"]
    assert written[0] not in "=+-@"
    assert written.removeprefix("'") == note


def test_a_ledger_file_can_be_read_undone_and_exported_without_its_data(tmp_path):
    book, path = ledger(tmp_path), tmp_path / "ledger.sqlite"
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.record(RULE, 1, LABELS, repairs((1, 1, 0)))
    assert undo_file(path, from_round=1) == 1
    assert read_history(path) == book.history()
    assert to_csv(path, tmp_path / "out.csv") == 2
    with open(tmp_path / "out.csv", newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [
        [
            *[
                "image",
                "class",
                "old",
                "new",
                "rule",
                "round",
                "confidence",
                "in_force",
                "word",
                "reviewer",
                "note",
                "made",
            ]
        ],
        ["w", "b", "", "1", RULE, "1", "0.5", "1", *[""] * 4],
        ["x", "b", "", "0", RULE, "2", "0.5", "0", *[""] * 4],
    ]


def test_a_ledger_of_another_data_set_is_refused_without_a_hash_of_the_labels_and_stays_as_it_is(tmp_path):
    ledger(tmp_path).record(RULE, 0, LABELS, repairs((0, 1, 1)))
    with refused(
        "site-1: label ledger: expected the ledger of this data set, got that of another; choose another run_name or"
        " put the earlier labels back"
    ):
        ledger(tmp_path, "cd" * 32)
    assert len(ledger(tmp_path).history()) == 1


def test_a_data_base_with_other_tables_is_refused(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        db.execute("CREATE TABLE about (author)")
    with refused(f"site-1: label ledger: expected an SQLite ledger, got another or a damaged file; {WAY_ON}"):
        ledger(tmp_path)


def test_a_file_that_is_no_ledger_is_refused(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("not a data base, but long enough to be looked at" * 20)
    with refused(f"site-1: label ledger: expected an SQLite ledger, got another or a damaged file; {WAY_ON}"):
        ledger(tmp_path)


@pytest.mark.parametrize(
    "use",
    [
        lambda folder, book: ledger(folder),
        lambda folder, book: book.record(RULE, 0, LABELS, repairs((0, 1, 1))),
        lambda folder, book: book.undo(),
        lambda folder, book: book.repairs(),
    ],
    ids=["opening", "record", "undo", "repairs"],
)
def test_a_locked_ledger_is_said_to_be_locked_and_not_another_file(tmp_path, monkeypatch, use):
    book = ledger(tmp_path)
    monkeypatch.setattr("fedmend.repairs.ledger.PATIENCE", 0)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with refused("site-1: label ledger: expected a file that can be opened and written, got: database is locked"):
            use(tmp_path, book)
        path = tmp_path / "ledger.sqlite"
        with refused(f"label ledger {path}: expected a file that can be opened and written, got: database is locked"):
            read_history(path)


def test_a_ledger_that_cannot_be_made_is_refused_without_its_path(tmp_path):
    (tmp_path / "ledger.sqlite").mkdir()
    with refused(
        "site-1: label ledger: expected a file that can be opened and written, got: unable to open database file"
    ):
        ledger(tmp_path)
    (tmp_path / "file").write_text("")
    with refused("site-1: label ledger: expected a file that can be opened and written, got: Not a directory"):
        ledger(tmp_path / "file" / "run")


def test_a_repair_without_confidence_is_a_bug_and_not_blamed_on_the_file(tmp_path):
    with pytest.raises(sqlite3.IntegrityError):
        ledger(tmp_path).record(
            RULE, 0, LABELS, Repairs(np.array([0]), np.array([1]), np.array([1]), np.array([np.nan]))
        )


@pytest.mark.parametrize(
    ("use", "times"),
    [(undo_file, 1), (read_verdicts, 1), (lambda path: to_csv(path, path.with_name("out.csv")), 2)],
    ids=["undo", "verdicts", "export"],
)
def test_a_ledger_file_is_not_read_as_a_whole_to_learn_that_it_is_there(tmp_path, opened, use, times):
    ledger(tmp_path).record(RULE, 0, LABELS, repairs((0, 1, 1)))
    opened.clear()
    use(tmp_path / "ledger.sqlite")
    assert len(opened) == times


@pytest.mark.parametrize("read", [read_history, read_verdicts, undo_file])
def test_reading_what_is_not_a_ledger_is_refused(tmp_path, read):
    path = tmp_path / "ledger.sqlite"
    with refused(f"label ledger {path}: expected a ledger file, not found"):
        read(path)
    path.write_bytes(b"")
    with refused(f"label ledger {path}: expected an SQLite ledger, got another or a damaged file; {WAY_ON}"):
        read(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET round = 'x'",
        "UPDATE entries SET confidence = '<b>'",
        "UPDATE samples SET image = x'ff'",
        "DELETE FROM samples WHERE sample = 0",
        "DELETE FROM classes",
        "UPDATE verdicts SET sample = 77",
        "UPDATE verdicts SET made = 5, round_num = 'x'",
    ],
)
def test_a_ledger_of_somebody_else_with_other_values_is_refused_and_no_table_begins(tmp_path, change):
    book, path = ledger(tmp_path), tmp_path / "ledger.sqlite"
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.judge(Verdict(0, 1, REJECT, -1, 1, RULE, 0, "AB"))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    with refused(f"label ledger {path}: expected an SQLite ledger, got another or a damaged file; {WAY_ON}"):
        to_csv(path, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("change", ["DELETE FROM about", "UPDATE about SET key = 'x'", "DROP TABLE about"])
def test_a_ledger_that_does_not_say_whose_it_is_is_not_taken_for_a_new_one(tmp_path, change):
    ledger(tmp_path).record(RULE, 0, LABELS, repairs((0, 1, 1)))
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db, db:
        db.execute(change)
    with refused(f"site-1: label ledger: expected an SQLite ledger, got another or a damaged file; {WAY_ON}"):
        ledger(tmp_path)
    assert len(stored(tmp_path)) == 1


KILLED = """
import functools, os, sqlite3, sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_label_ledger import LABELS, RULE, ledger, repairs

class Killed(sqlite3.Connection):
    def executemany(self, *args):  # the earlier entries are retracted and the new ones written, not committed
        super().executemany(*args)
        os._exit(9)

book = ledger(Path({folder!r}))
sqlite3.connect = functools.partial(sqlite3.connect, factory=Killed)
book.record(RULE, 0, LABELS, repairs((1, 1, 0), (2, 0, 1)))
"""


def test_a_process_killed_while_it_records_leaves_the_old_state(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    before = book.history()
    script = KILLED.format(path=sys.path, folder=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    assert ledger(tmp_path).history() == before
    assert in_force(book) == [("w", "b", 1, 0)]


def test_entries_in_force_are_listed_as_they_were_made(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((3, 0, 1), (1, 1, 0)))
    book.record(OTHER, 1, LABELS, repairs((3, 0, 0)))
    assert book.in_force() == [
        (3, 0, -1, 1, RULE, 0, 0.5),
        (1, 1, -1, 0, RULE, 0, 1.0),
        (3, 0, -1, 0, OTHER, 1, 0.5),
    ]
    book.undo(rule=RULE)
    assert book.in_force() == [(3, 0, -1, 0, OTHER, 1, 0.5)]


# ---- how often the file is read -------------------------------------------------------------------------------------
def test_a_target_opens_the_file_once_and_reads_it_only_when_it_has_changed(tmp_path, opened, parsed):
    book = ledger(tmp_path)
    for round_num in range(2):
        book.record(RULE, round_num, LABELS, repairs((round_num, 1, 1)))
        opened.clear(), parsed.clear()
        book.apply(LABELS)
        assert (len(opened), len(parsed)) == (1, 1)
        book.apply(LABELS), book.repairs()
        assert (len(opened), len(parsed)) == (3, 1)


def test_what_another_process_writes_counts_in_the_next_target(tmp_path):
    book, review = ledger(tmp_path), ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1), (1, 1, 0)))
    assert book.apply(LABELS)[:2].tolist() == [[1, 1], [0, 0]]
    review.judge(Verdict(0, 1, REJECT, -1, 1, RULE, 0, "AB"))
    assert book.apply(LABELS)[:2].tolist() == [[1, -1], [0, 0]]
    undo_file(tmp_path / "ledger.sqlite")
    assert book.apply(LABELS)[:2].tolist() == [[1, -1], [0, -1]]


def test_a_verdict_before_another_run_began_counts_for_who_read_the_ledger_when_it_was_empty(tmp_path):
    book, review = ledger(tmp_path), ledger(tmp_path)
    assert book.apply(LABELS)[0].tolist() == LABELS[0].tolist()
    review.judge(Verdict(0, 0, RELABEL, 1, 0, "", -1, reviewer="AB"))
    review.forget_marks()
    assert book.apply(LABELS)[0, 0] == 0


def test_repairs_and_verdicts_are_read_as_of_one_moment(tmp_path, monkeypatch):
    book, other, read = ledger(tmp_path), ledger(tmp_path), verdicts.all_verdicts
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))

    def between(db):
        with pytest.raises(FedMendError, match="database is locked"):
            other.undo()
        return read(db)

    monkeypatch.setattr("fedmend.repairs.ledger.PATIENCE", 0)
    monkeypatch.setattr(verdicts, "all_verdicts", between)
    assert book.repairs()[0].tolist() == [-1, 1]
    assert other.undo() == 1


def test_repairs_may_be_written_over(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    book.repairs()[:] = 0
    assert book.repairs()[0].tolist() == [-1, 1]


# ---- marks and power ------------------------------------------------------------------------------------------------
BEHIND = (
    "site-1: label ledger: expected all repairs that this run has recorded, got a ledger without the latest (an older"
    " copy, or a new file); put the right one back, or let the lead go on with this one by"
    ' allow_changes=["ledgers"]'
)


def test_every_change_leaves_another_mark_and_nothing_else_does(tmp_path):
    book = ledger(tmp_path)
    assert book.mark() == ""
    book.undo()
    book.record(RULE, 0, LABELS, repairs())
    assert book.mark() == ""
    marks = []
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    marks.append(book.mark())
    book.record(RULE, 0, LABELS, repairs())  # takes the first one back
    marks.append(book.mark())
    book.record(RULE, 1, LABELS, repairs((1, 1, 0)))
    marks.append(book.mark())
    book.undo(from_round=1)
    marks.append(book.mark())
    assert len(set(marks)) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", mark) for mark in marks)
    for mark in ("", *marks):
        ledger(tmp_path).check_mark(mark)


def test_the_same_repairs_leave_other_marks_in_another_ledger(tmp_path):
    found = set()
    for name in ("one", "other"):
        (book := ledger(tmp_path / name)).record(RULE, 0, LABELS, repairs((0, 1, 1)))
        found.add(book.mark())
    assert len(found) == 2


@pytest.mark.parametrize("fate", ["an older copy", "a new file", "an empty file"])
def test_a_ledger_that_has_fallen_behind_is_refused(tmp_path, fate):
    book, file = ledger(tmp_path), tmp_path / "ledger.sqlite"
    book.record(RULE, 0, LABELS, repairs((0, 1, 1)))
    older, first = file.read_bytes(), book.mark()
    book.record(RULE, 1, LABELS, repairs((1, 1, 0)))
    told = book.mark()
    file.unlink()
    if fate != "a new file":
        file.write_bytes(older if fate == "an older copy" else b"")
    book = ledger(tmp_path)
    with refused(BEHIND):
        book.check_mark(told)
    if fate == "an older copy":
        book.check_mark(first)


def test_a_ledger_of_the_first_edition_gets_marks_with_its_next_change(tmp_path):
    ledger(tmp_path).record(RULE, 0, LABELS, repairs((0, 1, 1)))
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("DROP TABLE marks")
    assert undo_file(tmp_path / "ledger.sqlite") == 1
    assert ledger(tmp_path).mark() != ""


@pytest.mark.parametrize("damage", ["cut", "scrambled"])
def test_a_damaged_ledger_is_refused_with_the_way_on(tmp_path, damage):
    book, file = ledger(tmp_path), tmp_path / "ledger.sqlite"
    for round_num in range(3):
        book.record(RULE, round_num, LABELS, repairs(*[(s, c, 1) for s in range(4) for c in (0, 1)] * 50))
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2] if damage == "cut" else content[:4096] + b"x" * (len(content) - 4096))
    with refused(f"site-1: label ledger: expected an SQLite ledger, got another or a damaged file; {WAY_ON}"):
        ledger(tmp_path).repairs()


def test_a_transaction_is_on_disk_when_it_ends(tmp_path, monkeypatch):
    """FULL, SQLite's default, leaves the journal's name on the disk, and the journal takes the last round back."""
    levels = []

    class Watched(sqlite3.Connection):
        def commit(self):
            levels.append(self.execute("PRAGMA synchronous").fetchone()[0])
            super().commit()

        def __exit__(self, *error):
            levels.append(self.execute("PRAGMA synchronous").fetchone()[0])
            return super().__exit__(*error)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, factory=Watched))
    ledger(tmp_path).record(RULE, 0, LABELS, repairs((0, 1, 1)))
    assert set(levels) == {3}  # EXTRA
