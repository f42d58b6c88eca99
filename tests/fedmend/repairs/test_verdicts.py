import contextlib
import sqlite3

import numpy as np
import pytest
from factories import refused
from torch_factories import make_mask_split

from fedmend.errors import WAY_ON
from fedmend.repairs import verdicts
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.ledger import read_verdicts
from fedmend.repairs.mask_ledger import MaskLedger, _frozen
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, UNSURE, WITHDRAW, Verdict

RULE = "fedmlp.missing_label_detection"
LABELS = np.array([[1, -1], [0, -1], [0, -1]], dtype=np.int8)
ONE_HOT = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.int8)


def ledger(folder, labels=LABELS, name="ledger.sqlite", fingerprint="ab" * 32, **more):
    about = {"fingerprint": fingerprint, "images": list("xyz"), "classes": list("abc")[: labels.shape[1]]}
    return LabelLedger(folder / name, **about, site="site-1", **more)


def repair(book, *rows, round_num=0, labels=LABELS):
    """Rows of (sample, class, new)."""
    sample, label_class, new = np.array(rows).T
    book.record(RULE, round_num, labels, Repairs(sample, label_class, new, np.ones(len(rows))))


def word(word, sample=0, label_class=1, value=1, old=-1, rule=RULE, **more):
    return Verdict(sample, label_class, word, old, value, rule, 0 if rule else -1, **{"reviewer": "AB", **more})


def test_a_rejected_repair_is_undone_and_never_comes_back(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1), (1, 1, 1))
    book.judge(word(REJECT))
    assert book.repairs().tolist() == [[-1, -1], [-1, 1], [-1, -1]]
    assert book.apply(LABELS).tolist() == [[1, -1], [0, 1], [0, -1]]
    repair(book, (0, 1, 1), round_num=5)
    assert ledger(tmp_path).repairs()[0].tolist() == [-1, -1]


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE verdicts SET sample = -1",
        "UPDATE verdicts SET sample = 3",
        "UPDATE verdicts SET label_class = 2",
        "UPDATE verdicts SET value = 7",
        "UPDATE verdicts SET value = 'yes'",
        "UPDATE verdicts SET word = 'Accept'",
        "UPDATE verdicts SET made = '01.02.2026'",
        "UPDATE verdicts SET made = '9999-12-31T23:59:59.999999Z'",
        "UPDATE entries SET sample = -1",
        "UPDATE entries SET class = 2",
        "UPDATE entries SET new = 5",
    ],
)
def test_a_ledger_that_was_edited_into_what_cannot_be_is_refused(tmp_path, edit):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1))
    book.judge(word(ACCEPT))
    other = ledger(tmp_path, name="other.sqlite")
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db, db:
        db.execute(edit)
    words = f"expected an SQLite ledger, got another or a damaged file; {WAY_ON}"
    with refused(f"site-1: label ledger: {words}"):
        ledger(tmp_path)
    if "verdicts" in edit:
        with refused(f"site-1: label ledger of another run: {words}"):
            other.take_over(tmp_path / "ledger.sqlite")


def test_another_repair_of_a_rejected_label_may_come_and_both_can_be_rejected(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1))
    first = book.judge(word(REJECT))
    repair(book, (0, 1, 0), round_num=1)
    assert book.repairs()[0].tolist() == [-1, 0]
    book.judge(word(REJECT, value=0), seen=first.name)
    assert book.repairs()[0].tolist() == [-1, -1]
    assert book.banned().tolist() == [[[False] * 2, [True] * 2], [[False] * 2] * 2, [[False] * 2] * 2]


def test_an_accepted_repair_stays_when_rounds_are_taken_back(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1), (1, 1, 1))
    book.judge(word(ACCEPT))
    assert book.undo(from_round=0) == 2
    assert book.repairs().tolist() == [[-1, 1], [-1, -1], [-1, -1]]
    assert book.judged(LABELS).tolist() == [[1, 1], [0, -1], [0, -1]]
    repair(book, (0, 1, 0), round_num=3)
    assert book.repairs()[0].tolist() == [-1, 1]


def test_another_label_takes_the_place_of_a_repair_and_of_an_original_label(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1))
    book.judge(word(RELABEL, value=0))
    book.judge(word(RELABEL, sample=1, label_class=0, value=1, old=0, rule=""))
    assert book.judged(LABELS).tolist() == [[1, 0], [1, -1], [0, -1]]
    assert book.apply(LABELS).tolist() == [[1, 0], [1, -1], [0, -1]]


def test_unsure_and_withdraw_leave_a_repair_as_it_is(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1))
    for last in (UNSURE, REJECT, WITHDRAW, ACCEPT, UNSURE, REJECT, UNSURE):
        counting = verdicts.counting(book.verdicts(), one_label=False)
        book.judge(word(last), seen=counting[-1].name if counting else "")
        assert book.repairs()[0].tolist() == ([-1, -1] if last == REJECT else [-1, 1])
    assert np.array_equal(book.judged(LABELS), LABELS)


def test_the_verdict_of_somebody_else_is_not_written_over_unseen(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1))
    mine = book.judge(word(ACCEPT))
    with refused("verdict: expected a label as it was shown, AB was the last to judge it; look again"):
        book.judge(word(REJECT, reviewer="CD"))
    assert book.repairs()[0, 1] == 1
    book.judge(word(REJECT, reviewer="CD"), seen=mine.name)
    assert [(v.reviewer, v.word) for v in book.verdicts()] == [("AB", ACCEPT), ("CD", REJECT)]


def test_a_clock_that_was_put_back_lets_no_earlier_verdict_win(tmp_path, monkeypatch):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1))
    first = book.judge(word(ACCEPT))

    class Earlier(verdicts.datetime):
        @classmethod
        def now(cls, zone):
            return cls(2020, 1, 1, tzinfo=zone)

    monkeypatch.setattr(verdicts, "datetime", Earlier)
    for seen in range(20):  # names are random, and must not decide
        first = book.judge(word(REJECT if seen % 2 else UNSURE), seen=first.name)
    assert book.verdicts()[-1] == first
    assert book.repairs()[0, 1] == -1


def test_two_ledgers_with_verdicts_of_one_moment_come_to_the_same_label(tmp_path, monkeypatch):
    class Stopped(verdicts.datetime):
        @classmethod
        def now(cls, zone):
            return cls(2020, 1, 1, tzinfo=zone)

    monkeypatch.setattr(verdicts, "datetime", Stopped)
    for i in range(8):  # with the number of the row in the place of the name, each had its own last
        one, two = ledger(tmp_path / f"{i}a"), ledger(tmp_path / f"{i}b")
        one.judge(word(RELABEL, value=1, rule=""))
        two.judge(word(RELABEL, value=0, rule=""))
        one.take_over(tmp_path / f"{i}b" / "ledger.sqlite")
        two.take_over(tmp_path / f"{i}a" / "ledger.sqlite")
        assert one.verdicts() == two.verdicts()
        assert one.repairs().tolist() == two.repairs().tolist()


def test_with_one_label_per_sample_a_rejected_class_gives_the_sample_its_own_back(tmp_path):
    book = ledger(tmp_path, ONE_HOT, one_label=True)
    change = (0, 0, 0), (0, 2, 1), (1, 1, 0), (1, 0, 1)  # sample 0 becomes c, sample 1 becomes a
    repair(book, *change, labels=ONE_HOT)
    rejected = book.judge(word(REJECT, label_class=2, old=0))
    assert book.apply(ONE_HOT).argmax(1).tolist() == [0, 0, 2]
    book.judge(word(RELABEL, label_class=1, old=0), seen=rejected.name)
    assert book.apply(ONE_HOT).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    book.undo()
    assert book.apply(ONE_HOT).argmax(1).tolist() == [1, 1, 2]


def test_a_later_run_takes_over_what_was_said_about_the_same_data(tmp_path, caplog):
    earlier, later = ledger(tmp_path, name="a.sqlite"), ledger(tmp_path, name="b.sqlite")
    repair(earlier, (0, 1, 1), (1, 1, 1))
    earlier.judge(word(ACCEPT))
    earlier.judge(word(REJECT, sample=1))
    before = later.mark()
    assert later.take_over(tmp_path / "a.sqlite") == 2
    assert later.mark() != before
    repair(later, (1, 1, 1))
    assert later.repairs().tolist() == [[-1, 1], [-1, -1], [-1, -1]]
    assert later.take_over(tmp_path / "a.sqlite") == 0
    other = ledger(tmp_path, name="c.sqlite", fingerprint="cd" * 32)
    with caplog.at_level("INFO"):
        assert other.take_over(tmp_path / "a.sqlite") == 0
    assert "site-1: label ledger: 2 verdicts of run" in caplog.messages[-1]


def test_a_verdict_that_was_taken_back_in_one_run_takes_none_of_another_run_back(tmp_path):
    one, two, three, later = (ledger(tmp_path, name=f"{run}.sqlite") for run in range(4))
    first = one.judge(word(ACCEPT))
    for book in (two, three):
        book.take_over(tmp_path / "0.sqlite")
    two.judge(word(REJECT, reviewer="CD"), seen=first.name)
    for book in (one, three):
        book.judge(word(WITHDRAW), seen=first.name)
    assert [v["note"] for v in read_verdicts(tmp_path / "0.sqlite")] == ["", ""]
    for run in range(3):
        later.take_over(tmp_path / f"{run}.sqlite")
    (left,) = verdicts.counting(later.verdicts(), one_label=False)
    assert (left.word, left.reviewer) == (REJECT, "CD")
    repair(later, (0, 1, 1))
    assert later.repairs()[0].tolist() == [-1, -1]
    with contextlib.closing(sqlite3.connect(tmp_path / "3.sqlite")) as db, db:
        db.execute("UPDATE verdicts SET note = '' WHERE word = ?", (WITHDRAW,))  # as earlier versions wrote them
    assert verdicts.counting(later.verdicts(), one_label=False) == []


def test_a_ledger_of_an_earlier_version_has_no_verdicts(tmp_path):
    book = ledger(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("DROP TABLE verdicts")
    assert book.verdicts() == []
    assert ledger(tmp_path).judge(word(ACCEPT)).name


@pytest.mark.parametrize(
    ("verdict", "sentence"),
    [
        (word("perhaps"), "verdict: expected one of accept, reject, unsure, relabel, withdraw, got another word"),
        (word(ACCEPT, reviewer=""), "verdict, initials: expected 1 to 12 letters, digits, '.' or '-', got others"),
        (word(ACCEPT, reviewer="a b"), "verdict, initials: expected 1 to 12 letters, digits, '.' or '-', got others"),
        (word(ACCEPT, note="x" * 501), "verdict, note: expected at most 500 printable characters, got others"),
        (word(ACCEPT, note="\x1b[2J"), "verdict, note: expected at most 500 printable characters, got others"),
        (
            word(REJECT, rule=""),
            "verdict: expected another label for an original one that is wrong, got its rejection",
        ),
    ],
)
def test_what_nobody_can_have_meant_is_refused(tmp_path, verdict, sentence):
    book = ledger(tmp_path)
    with refused(sentence):
        book.judge(verdict)
    assert book.verdicts() == []


def test_verdicts_about_repairs_are_counted_per_class_from_a_number_on(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1), (1, 1, 1), (2, 1, 0))
    book.judge(word(ACCEPT))
    book.judge(word(REJECT, sample=1))
    book.judge(word(RELABEL, sample=2, value=1))
    book.judge(word(ACCEPT, sample=0, label_class=0, old=1, rule=""))  # an original label
    counts = {
        least: {
            name: found.tolist()
            for name, found in verdicts.verdict_counts(book.verdicts(), 2, one_label=False, min_count=least).items()
        }
        for least in (3, 4)
    }
    assert counts == {3: {"accepted": [0, 1], "rejected": [0, 2]}, 4: {"accepted": [0, 0], "rejected": [0, 0]}}


def test_a_word_about_an_original_label_is_no_word_about_a_repair(tmp_path):
    book = ledger(tmp_path)
    book.judge(word(ACCEPT, label_class=0, old=1, rule=""))
    counts = verdicts.verdict_counts(book.verdicts(), 2, one_label=False, min_count=1)
    assert {name: found.tolist() for name, found in counts.items()} == {"accepted": [0, 0], "rejected": [0, 0]}


def test_with_one_label_per_sample_a_rejected_class_takes_the_whole_row_out():
    banned = np.zeros((2, 3, 2), dtype=bool)
    banned[0, 1, 1] = True
    found = {one: verdicts.refused(ONE_HOT[[1, 2]], banned, one_label=one).tolist() for one in (True, False)}
    assert found == {True: [[True] * 3, [False] * 3], False: [[False, True, False], [False] * 3]}


def test_what_a_ledger_gives_may_be_written_over(tmp_path):
    book = ledger(tmp_path)
    repair(book, (0, 1, 1))
    book.repairs()[:] = 0
    assert book.repairs()[0].tolist() == [-1, 1]


# ---- masks ----------------------------------------------------------------------------------------------------------
MASKS = np.zeros((4, 8, 8), dtype=np.uint8)  # two volumes of two slices
MASKS[1, 2:4, 3:6] = 1
SURE = np.ones(4)


def mask_ledger(folder):
    return MaskLedger(
        folder / "state" / "ledger.sqlite",
        split=make_mask_split(folder, MASKS, volumes=2),
        classes=["lesion"],
        site="site-1",
    )


def change(**places):
    """(4, 8, 8) int8 of ``s<slice>``=[(row, column, value), ...]."""
    made = np.zeros(MASKS.shape, dtype=np.int8)
    for name, pixels in places.items():
        for row, column, value in pixels:
            made[int(name[1:]), row, column] = value
    return made


def test_rejected_pixels_of_a_slice_never_come_back_but_others_may(tmp_path):
    book = mask_ledger(tmp_path)
    book.record("r", 0, change(s1=[(7, 0, 1), (2, 3, -1)], s3=[(4, 4, 1)]), SURE)
    book.judge(word(REJECT, sample=1, label_class=0, rule="r"))
    assert np.array_equal(book.change(), change(s3=[(4, 4, 1)]))
    book.record("r", 1, change(s1=[(7, 0, 1), (2, 3, 1), (6, 6, 1)]), SURE)
    assert np.array_equal(book.change(), change(s1=[(2, 3, 1), (6, 6, 1)], s3=[(4, 4, 1)]))


def test_accepted_pixels_stay_when_rounds_are_taken_back(tmp_path):
    book = mask_ledger(tmp_path)
    book.record("r", 0, change(s1=[(7, 0, 1), (2, 3, -1)], s3=[(4, 4, 1)]), SURE)
    seen = book.judge(word(ACCEPT, sample=1, label_class=0, rule="r")).name
    assert book.undo() == 2
    assert np.array_equal(book.change(), change(s1=[(7, 0, 1), (2, 3, -1)]))
    book.judge(word(WITHDRAW, sample=1, label_class=0, rule="r"), seen=seen)
    assert not book.change().any()


def test_a_later_run_takes_over_what_was_said_about_masks(tmp_path):
    book = mask_ledger(tmp_path)
    book.record("r", 0, change(s1=[(7, 0, 1)]), SURE)
    book.judge(word(ACCEPT, sample=1, label_class=0, rule="r"))
    later = mask_ledger(tmp_path / "later")
    assert later.take_over(tmp_path / "state" / "ledger.sqlite") == 1
    assert np.array_equal(later.change(), change(s1=[(7, 0, 1)]))


@pytest.mark.parametrize(
    ("first", "second", "counts", "again"),
    [
        (REJECT, ACCEPT, [(0, 7)], [(0, 7)]),
        (ACCEPT, REJECT, [(7, 0)], [(7, 0)]),
        (ACCEPT, ACCEPT, [(0, 7), (7, 0)], [(0, 7), (7, 0)]),
        (REJECT, UNSURE, [(0, 7)], [(0, 7)]),
        (ACCEPT, UNSURE, [(0, 7), (7, 0)], [(0, 7), (7, 0)]),
        (UNSURE, REJECT, [], [(7, 0)]),
    ],
)
def test_a_verdict_about_other_pixels_of_a_slice_leaves_the_earlier_one_as_it_is(
    tmp_path, first, second, counts, again
):
    book, later = mask_ledger(tmp_path), mask_ledger(tmp_path / "later")
    book.record("r", 0, change(s1=[(7, 0, 1)]), SURE)
    about = {"sample": 1, "label_class": 0, "rule": "r"}
    name = book.judge(word(first, **about)).name
    later.take_over(tmp_path / "state" / "ledger.sqlite")
    later.record("r", 0, change(s1=[(0, 7, 1)]), SURE)
    later.judge(word(second, **about), seen=name)
    assert np.argwhere(later.change()[1]).tolist() == [list(place) for place in counts]
    later.record("r", 1, change(s1=[(0, 7, 1), (7, 0, 1)]), SURE)  # the first lesion is found again
    assert np.argwhere(later.change()[1]).tolist() == [list(place) for place in again]


def test_taking_a_verdict_about_a_slice_back_gives_its_pixels_what_was_said_before(tmp_path):
    book, about = mask_ledger(tmp_path), {"sample": 1, "label_class": 0, "rule": "r"}
    book.record("r", 0, change(s1=[(7, 0, 1)]), SURE)
    seen = book.judge(word(REJECT, **about))
    both = change(s1=[(7, 0, 1), (0, 7, 1)])
    book.record("r", 1, both, SURE)
    seen = book.judge(word(ACCEPT, pixels=_frozen(both[1]), **about), seen=seen.name)
    assert np.array_equal(book.change(), both)
    book.judge(word(WITHDRAW, **about), seen=seen.name)
    assert np.array_equal(book.change(), change(s1=[(0, 7, 1)]))
    assert np.array_equal(book.refused(), change(s1=[(7, 0, 1)]) > 0)
    assert not book.accepted().any()
