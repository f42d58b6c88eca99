import csv
import re

import numpy as np
import pytest
from cli_calls import call
from torch_factories import make_mask_site

from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.verdicts import Verdict


@pytest.fixture
def ledger(tmp_path):
    """Round 0: sample 1 of class nodule becomes 1; round 1: sample 2 of edema becomes 0."""
    path = tmp_path / "ledger.sqlite"
    book = LabelLedger(
        path, fingerprint="ab", images=["img0", "img1", "img2"], classes=["edema", "nodule"], site="site-1"
    )
    old = np.array([[0, 1], [1, -1], [-1, 0]], dtype=np.int8)
    for round_num, rule, row in ((0, "first", (1, 1, 1, 0.75)), (1, "second", (2, 0, 0, 0.5))):
        book.record(rule, round_num, old, Repairs(*np.array(row)[:, None]))
    return path


def test_a_ledger_is_shown_in_words(ledger, capsys):
    assert call("ledger", "show", ledger) == 0
    assert capsys.readouterr().out.splitlines() == [
        "round    1  img1  nodule: blank -> 1  confidence 0.7500  first",
        "round    2  img2  edema: blank -> 0  confidence 0.5000  second",
        "2 repairs; originals are unchanged",
    ]


@pytest.fixture
def judged(ledger):
    """The same, and the repair of sample 1 is rejected."""
    book = LabelLedger(
        ledger, fingerprint="ab", images=["img0", "img1", "img2"], classes=["edema", "nodule"], site="site-1"
    )
    book.judge(Verdict(1, 1, "reject", -1, 1, "first", 0, "AB", "motion"))
    return ledger


def test_verdicts_of_people_are_shown_behind_the_repairs(judged, capsys):
    call("ledger", "show", judged)
    *_, verdict, total = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ  img1  nodule: reject 1  AB  'motion'", verdict)
    assert total == "1 verdicts of people; the last one about a label counts"


def test_verdicts_of_people_are_exported_and_survive_that_rounds_are_taken_back(judged, tmp_path):
    call("ledger", "undo", judged)
    call("ledger", "export", judged, tmp_path / "out.csv")
    with open(tmp_path / "out.csv") as stream:
        *repairs, verdict = csv.DictReader(stream)
    assert [(r["in_force"], r["word"]) for r in repairs] == [("0", ""), ("0", "")]
    told = ("image", "old", "new", "rule", "round", "in_force", "word", "reviewer", "note")
    assert [verdict[name] for name in told] == ["img1", "", "1", "first", "1", "", "reject", "AB", "motion"]


def test_the_newest_entries_of_a_ledger_are_shown_last(ledger, capsys):
    call("ledger", "show", ledger, "--last", 1)
    first, total = capsys.readouterr().out.splitlines()
    assert "img2" in first
    assert total.startswith("newest 1 of 2 repairs")


def test_repairs_are_taken_back_and_stay_in_the_history(ledger, capsys):
    assert call("ledger", "undo", ledger, "--from-round", 2) == 0
    assert capsys.readouterr().out == "1 repairs taken back; they stay in the history\n"
    call("ledger", "show", ledger)
    assert "img2" not in capsys.readouterr().out
    call("ledger", "show", ledger, "--all")
    assert "img2  edema: blank -> 0  confidence 0.5000  second  (taken back)" in capsys.readouterr().out


def test_a_round_below_0_takes_nothing_back(ledger, capsys):
    with pytest.raises(SystemExit):
        call("ledger", "undo", ledger, "--from-round", -1)
    assert "--from-round: expected a whole number from 0 on, got '-1'" in capsys.readouterr().err
    call("ledger", "show", ledger)
    assert capsys.readouterr().out.splitlines()[-1] == "2 repairs; originals are unchanged"


def test_one_rule_is_taken_back_alone(ledger, capsys):
    call("ledger", "undo", ledger, "--rule", "first")
    call("ledger", "show", ledger)
    out = capsys.readouterr().out
    assert "first" not in out
    assert "second" in out


def test_a_misspelt_rule_is_named_with_those_that_the_ledger_has(ledger, capsys):
    assert call("ledger", "undo", ledger, "--rule", "frist") == 1
    sentence = "ledger undo, rule: expected one of the ledger's, ['first', 'second'], got 'frist'"
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"


def test_a_ledger_is_exported_whole(ledger, tmp_path, capsys):
    call("ledger", "undo", ledger, "--from-round", 2)
    assert call("ledger", "export", ledger, tmp_path / "out.csv") == 0
    with open(tmp_path / "out.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(r["image"], r["class"], r["old"], r["new"], r["in_force"]) for r in rows] == [
        ("img1", "nodule", "", "1", "1"),
        ("img2", "edema", "", "0", "0"),
    ]


def test_an_export_never_takes_the_place_of_its_ledger(ledger, capsys):
    before = ledger.read_bytes()
    assert call("ledger", "export", ledger, ledger.parent / "." / ledger.name) == 1
    assert capsys.readouterr().err == "fedmend: label ledger: expected another file for the export, got the ledger\n"
    assert ledger.read_bytes() == before


def test_a_ledger_of_masks_counts_lesion_voxels_and_gives_the_masks_back(tmp_path, capsys):
    site = make_mask_site(tmp_path, np.zeros((2, 8, 8)))
    added = np.zeros((2, 8, 8), dtype=bool)
    added[1, 0, :5] = True
    site.ledger.record("fedia.correction", 2, added, np.array([0.0, 0.9]))
    path = tmp_path / "ledger.sqlite"
    assert call("ledger", "show", path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "round    3  case-0.nii.gz#1  lesion voxels: 0 -> 5  confidence 0.9000  fedia.correction",
        "1 repairs; originals are unchanged",
    ]
    assert call("ledger", "undo", path) == 0
    assert not site.ledger.added().any()
    assert call("ledger", "export", path, tmp_path / "out.csv") == 0
    with open(tmp_path / "out.csv", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert [row[name] for name in ("image", "class", "old", "new", "round", "in_force")] == [
        "case-0.nii.gz#1",
        "lesion voxels",
        "0",
        "5",
        "3",
        "0",
    ]


@pytest.mark.parametrize("action", [["show"], ["undo"], ["export", "x.csv"]], ids=lambda a: a[0])
def test_a_missing_ledger_is_one_sentence_and_exit_code_1(tmp_path, capsys, action):
    path = tmp_path / "no.sqlite"
    assert call("ledger", action[0], path, *action[1:]) == 1
    captured = capsys.readouterr()
    assert captured.err == f"fedmend: label ledger {path}: expected a ledger file, not found\n"
    assert captured.out == ""
    assert not path.exists()


def test_the_newest_none_are_none(ledger, capsys):
    call("ledger", "show", ledger, "--last", 0)
    assert capsys.readouterr().out == "newest 0 of 2 repairs; originals are unchanged\n"
