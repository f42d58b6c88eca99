"""State lies outside the kit; a kit that has it inside says so, and a command moves it without losing anything."""

import json
import stat
import subprocess
import sys

import numpy as np
import pytest
from cli_calls import call
from factories import refused
from fl_factories import Engine, write_settings

from fedmend.basics.files import locked
from fedmend.errors import FedMendError
from fedmend.repairs.label_ledger import LabelLedger, Repairs
from fedmend.repairs.ledger import read_history
from fedmend.site.privacy import MARKS, Account, Privacy
from fl_components import kit_state
from fl_components.kit_state import DEFAULT, move_state
from fl_components.workspace import load_site_config

INSIDE = (
    "site-1: local/fedmend.json, field state_dir: expected a folder outside the kit, got one in it; stop the site and"
    " move it, ledgers and all, by: fedmend move-state KIT"
)


@pytest.fixture
def kit(tmp_path):
    """A kit with its state inside, after two runs, with an account of the privacy spent beside them."""
    folder = tmp_path / "kit"
    write_settings(folder, state_dir="state")
    (folder / "startup").mkdir()
    (folder / "startup" / "fed_client.json").write_text(json.dumps({"client": {"fqsn": "relay.site-1"}}))
    for run in ("run-1", "run-2"):
        site = folder / "state" / run / "site-1"
        site.mkdir(parents=True)
        book = LabelLedger(
            site / "ledger.sqlite", fingerprint="ab", images=["img0", "img1"], classes=["edema"], site="site-1"
        )
        book.record("rule", 0, np.array([[0], [-1]], dtype=np.int8), Repairs(*np.array([1, 0, 1, 0.5])[:, None]))
        (site / "adam-0.pt").write_bytes(run.encode())
        (site / "in_use").touch()
    (folder / "state" / ".privacy").mkdir()
    account(folder / "state").write_text(json.dumps({"spent": SPENT}))
    (folder / "state" / "note.txt").write_text("of a person")
    return folder


SPENT = [[1.0, 0.02, 1500]]  # noise multiplier, sampling rate, steps
MOVED = [".privacy", "note.txt", "run-1", "run-2"]


def settings(kit):
    return json.loads((kit / "local" / "fedmend.json").read_text())


def account(state):
    return state / ".privacy" / "site-1.json"


def spent(state):
    return json.loads(account(state).read_text())["spent"]


def files(folder):
    """What its files hold; of an account what was spent, and not its mark, which is new after a move."""
    kept = (f for f in folder.rglob("*") if f.is_file() and f.parent.name != MARKS)
    found = {str(f.relative_to(folder)): f.read_bytes() for f in kept}
    return {k: json.loads(v)["spent"] if ".privacy" in k and k.endswith(".json") else v for k, v in found.items()}


def load(kit):
    """What a job reads of the settings."""
    return load_site_config(Engine(kit, "site-1").new_context())


def test_a_kit_with_its_state_inside_takes_no_job_and_says_what_to_do(kit):
    with refused(INSIDE):
        load(kit)


def test_a_command_moves_all_state_ledgers_intact_and_jobs_go_on_there(kit, tmp_path, capsys):
    before = files(kit / "state")
    history = read_history(kit / "state" / "run-1" / "site-1" / "ledger.sqlite")
    assert len(history) == 1
    assert call("move-state", kit) == 0
    new = tmp_path / "fedmend-state" / "site-1"
    assert capsys.readouterr().out == f".privacy, note.txt, run-1, run-2 moved; state_dir is {new}\n"
    assert files(new) == before
    assert read_history(new / "run-1" / "site-1" / "ledger.sqlite") == history
    assert settings(kit)["state_dir"] == DEFAULT.format(SITE_NAME="site-1")
    assert {k: v for k, v in settings(kit).items() if k != "state_dir"} == {
        "data_root": "data",
        "cache_dir": "cache",
        "min_count": 3,
        "threads": 1,
    }
    assert load(kit).state_dir == new
    assert call("move-state", kit) == 0  # once more does nothing
    assert capsys.readouterr().out == f"nothing moved; state_dir is {new}\n"
    assert files(new) == before


def test_the_new_folder_is_for_its_owner_alone_as_the_kit_is(kit, tmp_path):
    target, _ = move_state(kit)
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    fresh = tmp_path / "fresh"
    write_settings(fresh, state_dir="../elsewhere/{SITE_NAME}")
    (fresh / "startup").mkdir()
    (fresh / "startup" / "fed_client.json").write_text("{}")
    assert stat.S_IMODE(load(fresh).state_dir.stat().st_mode) == 0o700


def test_a_folder_of_ones_own_choice_is_written_into_the_settings(kit, tmp_path):
    assert call("move-state", kit, "--to", tmp_path / "disk") == 0
    assert settings(kit)["state_dir"] == str(tmp_path / "disk")
    assert (tmp_path / "disk" / "run-2" / "site-1" / "ledger.sqlite").is_file()
    with refused("site-1: --to: expected a folder outside the kit, got one in it"):
        move_state(kit, kit / "other")


def test_settings_that_a_windows_editor_saved_are_moved_too(kit, tmp_path):
    file = kit / "local" / "fedmend.json"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert move_state(kit, tmp_path / "disk")[1] == MOVED
    assert settings(kit)["state_dir"] == str(tmp_path / "disk")


def test_state_outside_the_kit_moves_to_another_disk_too(kit, tmp_path):
    before = files(kit / "state")
    move_state(kit, tmp_path / "disk")
    assert move_state(kit, tmp_path / "larger") == (tmp_path / "larger", sorted([*MOVED, MARKS]))
    assert files(tmp_path / "larger") == before
    assert not list((tmp_path / "disk").iterdir())
    assert load(kit).state_dir == tmp_path / "larger"
    alone = "site-1: state_dir: expected a folder for state alone, got one with the kit or --to in it"
    with refused(alone):
        move_state(kit, tmp_path / "larger" / "inner")
    (tmp_path / "larger" / "run-1" / "site-2").mkdir()
    with refused("site-1: state_dir: expected the state of this site alone, got also that of site-2"):
        move_state(kit, tmp_path / "third")


def test_a_run_that_is_in_both_places_is_left_to_a_person(kit, tmp_path):
    other = tmp_path / "fedmend-state" / "site-1" / "run-2" / "site-1"
    other.mkdir(parents=True)
    (other / "ledger.sqlite").write_bytes(b"another")
    before = files(tmp_path)
    with refused("site-1: expected no run-2 in the new folder, there is one; keep one of them"):
        move_state(kit)
    assert files(tmp_path) == before


def test_what_was_spent_in_both_places_is_added_up_and_a_stopped_move_adds_it_once(kit, tmp_path, monkeypatch):
    new = tmp_path / "disk"
    account(new).parent.mkdir(parents=True)
    account(new).write_text(json.dumps({"spent": [[1.0, 0.02, 100], [2.0, 0.02, 7]]}))
    with monkeypatch.context() as cut:
        cut.setattr(kit_state, "_copy", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            move_state(kit, new)
    assert settings(kit)["state_dir"] == "state"
    # The first thing that is moved: also a site that goes on with the old place knows of the new one.
    assert spent(kit / "state") == spent(new) == [[1.0, 0.02, 1600], [2.0, 0.02, 7]]
    assert move_state(kit, new)[1] == MOVED
    assert spent(new) == [[1.0, 0.02, 1600], [2.0, 0.02, 7]]


def test_the_mark_of_the_account_moves_with_it_and_an_older_copy_is_not_moved(kit, tmp_path):
    pytest.importorskip("opacus")
    privacy = Privacy(clip=1.0, noise_multiplier=2.0, delta=1e-3)
    older = account(kit / "state").read_text()
    Account(kit / "state", "site-1", privacy, 50).spend(1.0, 4)
    newer = account(kit / "state").read_text()
    account(kit / "state").write_text(older)
    with pytest.raises(FedMendError, match="expected the one that this site wrote last, got an older copy or none"):
        move_state(kit, tmp_path / "disk")
    account(kit / "state").write_text(newer)
    move_state(kit, tmp_path / "disk")
    moved = account(tmp_path / "disk").read_text()
    Account(tmp_path / "disk", "site-1", privacy, 50).spend(1.0, 4)
    account(tmp_path / "disk").write_text(moved)
    with pytest.raises(FedMendError, match="got an older copy or none"):
        Account(tmp_path / "disk", "site-1", privacy, 50)


def test_two_accounts_that_happen_to_be_equal_are_two_accounts(kit, tmp_path):
    account(tmp_path / "disk").parent.mkdir(parents=True)
    account(tmp_path / "disk").write_text(json.dumps({"spent": SPENT}))
    move_state(kit, tmp_path / "disk")
    assert spent(tmp_path / "disk") == [[1.0, 0.02, 3000]]


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"spent": [[1.0, 0.02, -1]]}'])
def test_a_damaged_account_stops_the_move_before_anything_else(kit, tmp_path, text):
    account(kit / "state").write_text(text)
    with refused(
        "site-1: state_dir, account of the privacy spent: expected what FedMend wrote, got a damaged file; restore it"
        " from a backup"
    ):
        move_state(kit, tmp_path / "disk")
    assert account(kit / "state").read_text() == text
    assert not list((tmp_path / "disk").iterdir())


def test_the_account_of_another_site_is_not_taken_away_from_it(kit, tmp_path):
    account(kit / "state").with_name("site-2.json").write_text(json.dumps({"spent": SPENT}))
    with refused("site-1: state_dir: expected the state of this site alone, got also that of site-2"):
        move_state(kit, tmp_path / "disk")


def test_what_a_task_writes_while_its_state_is_copied_is_not_deleted(kit, tmp_path, monkeypatch):
    copy, late = kit_state._copy, kit / "state" / "run-1" / "site-1" / "late.pt"
    monkeypatch.setattr(kit_state, "_copy", lambda *given: (copy(*given), late.write_text(given[0].name)))
    with refused("site-1: expected one that is stopped, its state has changed while it was copied"):
        move_state(kit, tmp_path / "disk")
    assert late.is_file()
    assert settings(kit)["state_dir"] == "state"


@pytest.mark.parametrize("stopped", ["copytree", "rmtree"])
def test_a_move_that_is_stopped_anywhere_loses_nothing_and_goes_on(kit, tmp_path, monkeypatch, stopped):
    before = files(kit / "state")
    target = tmp_path / "fedmend-state" / "site-1"

    def power_cut(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(kit_state.shutil, stopped, power_cut)
        with pytest.raises(KeyboardInterrupt):
            move_state(kit)
    if stopped == "copytree":
        assert files(kit / "state") == before
        with refused(INSIDE):  # a job does not begin with half of it
            load(kit)
    move_state(kit)
    assert load(kit).state_dir == target
    assert files(target) == before


def test_a_site_that_runs_is_left_alone(kit):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (kit / "pid.fl").write_text(f"{process.pid}\n")
        with refused(f"site-1: expected one that is stopped, process {process.pid} of pid.fl in the kit still runs"):
            move_state(kit)
        process.stdin.close()
    with (
        locked(kit / "state" / "run-1" / "site-1" / "in_use", patience=0),
        refused("site-1: expected one that is stopped, a task of it still runs"),
    ):
        move_state(kit)
    assert settings(kit)["state_dir"] == "state"


def test_a_kit_that_is_its_own_state_folder_keeps_its_certificates(kit):
    write_settings(kit, state_dir=".")
    before = files(kit)
    with refused(INSIDE):
        load(kit)
    with refused("site-1: state_dir: expected a folder for state alone, got one with the kit or --to in it"):
        move_state(kit)
    assert files(kit) == before


def test_the_state_of_the_server_moves_too(tmp_path):
    kit = tmp_path / "kit"
    write_settings(kit, state_dir="state")
    (kit / "startup").mkdir()
    (kit / "startup" / "fed_server.json").write_text("{}")
    (kit / "state" / "run-1" / "server").mkdir(parents=True)
    (kit / "state" / "run-1" / "server" / "checkpoint.pt").write_bytes(b"model")
    assert move_state(kit) == (tmp_path / "fedmend-state" / "server", ["run-1"])
    assert settings(kit)["state_dir"] == "../fedmend-state/server"  # FLARE gives a server the project's name


def test_a_folder_that_is_no_kit_is_refused(tmp_path):
    with refused("expected the startup kit of a site or server, with startup and local, got another folder"):
        move_state(tmp_path)


def test_the_simulators_workspaces_keep_their_state(tmp_path):
    write_settings(tmp_path, state_dir="state")
    assert load(tmp_path).state_dir == tmp_path / "state"


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    write_settings(tmp_path / "kit", state_dir="../file")
    (tmp_path / "kit" / "startup").mkdir()
    (tmp_path / "kit" / "startup" / "fed_client.json").write_text("{}")
    (tmp_path / "file").touch()
    with refused("site-1: local/fedmend.json, field state_dir: expected a folder that can be written, got another"):
        load(tmp_path / "kit")
