"""A copy of what a site keeps, made while a run writes, and put back without losing what is newer."""

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import stat

import numpy as np
import pytest
from cli_calls import call
from factories import refused
from fl_factories import write_settings

from fedmend.basics.files import locked
from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.ledger import read_history, read_verdicts
from fedmend.repairs.site_run import take_over_verdicts
from fedmend.repairs.verdicts import REJECT, Verdict
from fedmend.site.privacy import Account, Privacy
from fedmend.site.register import note, problems, read_register, register_file
from fl_components.approval import approve, approved_audit, check_approved, requests
from fl_components.backup import backup, restore


def book(state, run="run-1"):
    about = {"fingerprint": "ab", "images": ["img0", "img1"], "classes": ["edema"], "site": "site-1"}
    return LabelLedger(state / run / "site-1" / "ledger.sqlite", **about)


def repair(ledger, round_num):
    ledger.record("rule", round_num, np.array([[0], [-1]], np.int8), Repairs(*np.array([1, 0, 1, 0.5])[:, None]))


def spent(state, *parts):
    (state / ".privacy").mkdir(exist_ok=True)
    (state / ".privacy" / "site-1.json").write_text(json.dumps({"spent": parts}))


@pytest.fixture
def kit(tmp_path):
    folder = tmp_path / "kit"
    write_settings(folder, state_dir="../state")
    (folder / "startup").mkdir()
    (folder / "startup" / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "site-1"}}))
    state = tmp_path / "state"
    repair(book(state), 0)
    StateStore(state / "run-1" / "site-1").save("moments-0", 7)
    spent(state, [2.0, 0.1, 30])
    note(state, "site-1", {"task": "train"})
    return folder


def test_ledgers_and_state_are_for_their_owner_alone_in_a_backup_and_after_it(kit, tmp_path):
    state, copy = tmp_path / "state", tmp_path / "copy"
    owned = [*state.rglob("*.sqlite"), *state.rglob("*.pt"), register_file(state, "site-1")]
    names = [file.relative_to(state) for file in owned]
    umask = os.umask(0o022)
    try:
        backup(kit, copy)
        shutil.rmtree(state)
        restore(copy, kit)
    finally:
        os.umask(umask)
    for folder in (copy / "state", state):
        assert [stat.S_IMODE((folder / name).stat().st_mode) for name in names] == [0o600] * 3


def test_an_approval_that_was_used_since_does_not_come_back(kit, tmp_path):
    state, ask = tmp_path / "state", {"stop": lambda: True}
    with pytest.raises(FedMendError, match="waits until"), approved_audit(state, "site-1", {"job": "audit"}):
        pass
    with pytest.raises(FedMendError, match="waits until"):
        check_approved(state, "site-1", "job-1", {"job": "j"}, **ask)
    for name in requests(state, "site-1"):
        approve(state, "site-1", name)
    backup(kit, tmp_path / "copy")
    with approved_audit(state, "site-1", {"job": "audit"}):
        pass
    shutil.rmtree(state)
    restore(tmp_path / "copy", kit)
    with pytest.raises(FedMendError, match="waits until"), approved_audit(state, "site-1", {"job": "audit"}):
        pass
    check_approved(state, "site-1", "job-1", {"job": "j"}, **ask)


def test_a_backup_while_a_task_runs_holds_what_was_recorded_and_no_lock_nor_half_a_file(kit, tmp_path):
    run, out = tmp_path / "state" / "run-1" / "site-1", tmp_path / "copies" / "monday"
    (run / ".moments-0.pt.a1b2c3d4").write_text("half")
    (run / "ledger.sqlite-journal").touch()
    with contextlib.closing(sqlite3.connect(run / "ledger.sqlite", isolation_level=None)) as writing:
        with locked(run / "in_use"):
            writing.execute("BEGIN IMMEDIATE")
            writing.execute("INSERT INTO marks (mark) VALUES ('not yet')")
            assert backup(kit, out) == 5
        writing.execute("ROLLBACK")
    files = sorted(str(f.relative_to(out / "state")) for f in (out / "state").rglob("*") if f.is_file())
    register = [".register/site-1.jsonl", ".register/site-1.mark"]
    assert files == [".privacy/site-1.json", *register, "run-1/site-1/ledger.sqlite", "run-1/site-1/moments-0.pt"]
    copied = out / "state" / "run-1" / "site-1"
    assert read_history(copied / "ledger.sqlite") == read_history(run / "ledger.sqlite")
    assert StateStore(copied).load("moments-0") == 7
    assert stat.S_IMODE(out.stat().st_mode) == 0o700


def test_a_backup_goes_into_a_new_folder_outside_the_state(kit, tmp_path):
    for out in (tmp_path, tmp_path / "state" / "copy"):
        with refused("site-1: backup: expected the name of a new folder outside state_dir, got another"):
            backup(kit, out)


def test_a_backup_of_nothing_as_of_a_misspelt_state_dir_is_refused_and_so_is_an_empty_one(kit, tmp_path):
    copy = tmp_path / "copy"
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    with refused("site-1: backup: expected ledgers, state or checkpoints in state_dir, found none"):
        backup(kit, copy)
    assert not (tmp_path / "state").exists()
    assert not copy.exists()
    copy.mkdir()
    (copy / "backup.json").write_text(json.dumps({"name": "site-1", "made": "", "files": {}}))
    with refused("site-1: restore: expected a backup with files in it, got an empty one"):
        restore(copy, kit)


def test_a_run_whose_folder_is_a_link_is_in_the_backup(kit, tmp_path):
    state, copy = tmp_path / "state", tmp_path / "copy"
    (state / "run-1").rename(tmp_path / "larger_disk")
    (state / "run-1").symlink_to(tmp_path / "larger_disk")
    (tmp_path / "larger_disk" / "back").symlink_to(state)
    assert backup(kit, copy) == 5
    assert len(read_history(copy / "state" / "run-1" / "site-1" / "ledger.sqlite")) == 1
    restore(copy, kit)
    assert not (state / "run-1").is_symlink()
    assert StateStore(state / "run-1" / "site-1").load("moments-0") == 7


def test_what_was_lost_comes_back(kit, tmp_path):
    state = tmp_path / "state"
    backup(kit, tmp_path / "copy")
    before = read_history(state / "run-1" / "site-1" / "ledger.sqlite")
    shutil.rmtree(state)
    restore(tmp_path / "copy", kit)
    assert read_history(state / "run-1" / "site-1" / "ledger.sqlite") == before
    assert json.loads((state / ".privacy" / "site-1.json").read_text())["spent"] == [[2.0, 0.1, 30]]
    assert problems(register_file(state, "site-1")) == []
    assert StateStore(state / "run-1" / "site-1").load("moments-0") == 7


def test_a_restore_that_meets_a_full_disk_leaves_every_run_in_its_place_and_the_account_is_back(
    kit, tmp_path, monkeypatch
):
    state, copy = tmp_path / "state", tmp_path / "copy"
    backup(kit, copy)
    repair(book(state), 1)
    (state / ".privacy" / "site-1.json").unlink()

    def full(source, goal, **how):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(OSError, match="No space left"):
        restore(copy, kit)
    assert {f.name for f in state.iterdir()} == {"run-1", ".privacy", ".privacy_marks", ".register"}
    assert len(read_history(state / "run-1" / "site-1" / "ledger.sqlite")) == 2
    assert json.loads((state / ".privacy" / "site-1.json").read_text())["spent"] == [[2.0, 0.1, 30]]


def test_what_is_newer_than_the_backup_is_not_lost(kit, tmp_path, capsys):
    state = tmp_path / "state"
    backup(kit, tmp_path / "copy")
    repair(book(state), 1)
    book(state).judge(Verdict(1, 0, REJECT, -1, 1, "rule", 1, "AB"))
    spent(state, [2.0, 0.1, 50], [1.5, 0.2, 9])
    note(state, "site-1", {"task": "train"})
    assert call("restore", tmp_path / "copy", kit) == 0
    (aside,) = state.glob("run-1.replaced-*")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"run-1 was there and is now {aside.name}"
    assert said[2:4] == [
        "account of the privacy spent: the larger numbers of both",
        "register of what left: the one there stays, it is no shorter",
    ]
    assert len(read_history(state / "run-1" / "site-1" / "ledger.sqlite")) == 1
    account = json.loads((state / ".privacy" / "site-1.json").read_text())["spent"]
    assert sorted(account) == [[1.5, 0.2, 9], [2.0, 0.1, 50]]
    assert len(read_register(register_file(state, "site-1"))) == 2
    ledger = state / "run-1" / "site-1" / "ledger.sqlite"
    take_over_verdicts(book(state), ledger)  # as the next task does
    assert [verdict["word"] for verdict in read_verdicts(ledger)] == [REJECT]


def test_a_backup_is_restored_again_within_a_second_and_nothing_is_lost(kit, tmp_path, monkeypatch):
    state = tmp_path / "state"
    backup(kit, tmp_path / "copy")
    monkeypatch.setattr("fl_components.backup.time.strftime", lambda *_: "20260102T030405")
    for value in (1, 2, 3):
        StateStore(state / "run-1" / "site-1").save("moments-0", value)
        restore(tmp_path / "copy", kit)
    aside = [state / f"run-1.replaced-20260102T030405{end}" for end in ("", "-2", "-3")]
    assert [StateStore(folder / "site-1").load("moments-0") for folder in aside] == [1, 2, 3]
    assert StateStore(state / "run-1" / "site-1").load("moments-0") == 7


@pytest.mark.parametrize(
    ("copy", "said", "steps"),
    [("friday", "restored", 42), ("monday", "what was spent since the backup is not in it", 35)],
)
def test_an_account_that_a_restore_has_put_right_is_taken_and_says_what_it_lacks(kit, tmp_path, copy, said, steps):
    pytest.importorskip("opacus")
    state, privacy = tmp_path / "state", Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3)
    file = state / ".privacy" / "site-1.json"
    Account(state, "site-1", privacy, 50).spend(0.1, 5)
    older = file.read_text()
    backup(kit, tmp_path / "monday")
    Account(state, "site-1", privacy, 50).spend(0.1, 7)
    backup(kit, tmp_path / "friday")
    file.write_text(older)
    with pytest.raises(FedMendError, match="got an older copy or none"):
        Account(state, "site-1", privacy, 50)
    assert restore(tmp_path / copy, kit)[-2].endswith(said)
    Account(state, "site-1", privacy, 50)
    assert json.loads(file.read_text())["spent"] == [[2.0, 0.1, steps]]


@pytest.fixture
def lost(kit, tmp_path):
    """The promise of a site that spent some of it and lost its ``state_dir`` after a backup into ``copy``."""
    pytest.importorskip("opacus")
    privacy = Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3)
    Account(tmp_path / "state", "site-1", privacy, 50).spend(0.1, 5)
    backup(kit, tmp_path / "copy")
    shutil.rmtree(tmp_path / "state")
    return privacy


def account(state):
    return json.loads((state / ".privacy" / "site-1.json").read_text())["spent"]


def test_what_a_site_spent_without_its_account_is_added_to_that_of_the_backup_once(kit, tmp_path, lost):
    Account(tmp_path / "state", "site-1", lost, 50).spend(0.1, 7)
    said = restore(tmp_path / "copy", kit)
    assert "account of the privacy spent: the sum of both, as each knows what the other does not" in said
    restore(tmp_path / "copy", kit)
    assert account(tmp_path / "state") == [[2.0, 0.1, 42]]


def test_a_backup_that_is_put_back_after_everything_was_lost_fits_its_mark(tmp_path, lost):
    state = tmp_path / "state"
    shutil.copytree(tmp_path / "copy" / "state", state)  # by hand
    Account(state, "site-1", lost, 50).spend(0.1, 5)
    assert account(state) == [[2.0, 0.1, 40]]


def test_a_damaged_backup_one_of_another_site_and_a_running_site_are_refused(kit, tmp_path):
    copy, state = tmp_path / "copy", tmp_path / "state"
    backup(kit, copy)
    with (
        locked(state / "run-1" / "site-1" / "in_use"),
        refused("site-1: expected one that is stopped, a task of it still runs"),
    ):
        restore(copy, kit)
    with refused("site-1: restore, backup.json: expected a folder that fedmend backup made, not found"):
        restore(tmp_path, kit)
    (copy / "state" / "run-1" / "site-1" / "moments-0.pt").write_text("damaged")
    with refused("site-1: restore: expected every file as it was backed up, got a damaged or missing one"):
        restore(copy, kit)
    about = json.loads((copy / "backup.json").read_text())
    (copy / "backup.json").write_text(json.dumps({**about, "name": "site-2"}))
    with refused("site-1: restore: expected a backup of site-1, got one of 'site-2'"):
        restore(copy, kit)
    assert not list(state.glob("*.replaced-*"))


def test_a_backup_with_a_file_more_is_refused(kit, tmp_path):
    backup(kit, tmp_path / "copy")
    (tmp_path / "copy" / "state" / "run-1" / "site-1" / "moments-1.pt").write_text("of nobody")
    with refused("site-1: restore: expected the files that were backed up alone, got one more"):
        restore(tmp_path / "copy", kit)


@pytest.mark.parametrize("key", ["name", "made", "files"])
def test_a_backup_whose_list_lacks_something_is_refused_before_anything_is_put_back(kit, tmp_path, key):
    backup(kit, tmp_path / "copy")
    file = tmp_path / "copy" / "backup.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: None}))
    with refused("site-1: restore, backup.json: expected name, time and files of a backup, got others"):
        restore(tmp_path / "copy", kit)
    assert not list((tmp_path / "state").glob("*.replaced-*"))
