import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from factories import ROOT

from fedmend.basics.files import OWNER, append_text, locked, sweep, whole_folder, write_atomically, write_text
from fedmend.basics.state import StateStore
from fedmend.repairs.label_ledger import LabelLedger

ENV = {**os.environ, "PYTHONPATH": str(ROOT / "custom")}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_crash_before_the_name_changes_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("old")

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt), write_atomically(tmp_path / "f") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "f").read_text() == "old"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("start", [4, 8])
def test_text_is_written_behind_the_bytes_that_stay(tmp_path, start):
    (tmp_path / "f").write_text("one\ntwo\nthr")
    append_text(tmp_path / "f", start, "drei\n")
    assert (tmp_path / "f").read_text() == "one\ntwo\n"[:start] + "drei\n"


@pytest.fixture(params=[0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def rights(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_written_file_has_the_rights_that_the_umask_leaves(tmp_path, umask):
    with write_atomically(tmp_path / "f") as temporary:
        temporary.write_text("new")
        assert rights(temporary) == 0o666 & ~umask
    assert (tmp_path / "f").read_text() == "new"
    assert rights(tmp_path / "f") == 0o666 & ~umask


def test_a_folder_has_the_rights_that_the_umask_leaves(tmp_path, umask):
    with whole_folder(tmp_path / "store") as temporary:
        (temporary / "a").write_text("1")
    assert rights(tmp_path / "store") == 0o777 & ~umask


def test_what_a_site_knows_of_its_patients_is_for_its_owner_alone_under_any_umask(tmp_path, umask):
    write_text(tmp_path / "account", "1", mode=OWNER)
    store = StateStore(tmp_path)
    store.save("opinions", 1)
    store.save_array("scores", 0, np.zeros(1), fingerprint="ab")
    LabelLedger(tmp_path / "ledger.sqlite", fingerprint="ab", images=["img0"], classes=["edema"], site="site-1")
    assert {rights(file) for file in tmp_path.iterdir()} == {0o600}


def test_a_folder_has_one_user_at_a_time(tmp_path):
    with locked(tmp_path / "in_use", patience=0) as first:
        with locked(tmp_path / "in_use", patience=0) as second:
            assert (first, second) == (True, False)
        with locked(tmp_path / "in_use", patience=0) as third:
            assert not third
    with locked(tmp_path / "in_use", patience=0) as fourth:
        assert fourth


def test_a_user_that_waits_gets_the_folder_when_the_process_before_it_dies(tmp_path):
    script = "import pathlib, sys, time; from fedmend.basics.files import locked\n"
    script += "with locked(pathlib.Path(sys.argv[1]), patience=0): print('mine', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "in_use"], stdout=subprocess.PIPE, env=ENV
    ) as other:
        other.stdout.readline()
        threading.Timer(0.3, other.kill).start()
        with locked(tmp_path / "in_use", patience=20) as alone:
            assert alone


def test_a_folder_that_is_replaced_is_there_until_the_new_one_is_whole(tmp_path, monkeypatch):
    def make(text):
        with whole_folder(tmp_path / "model", replaces=True) as temporary:
            (temporary / "file").write_text(text)
            if text == "broken":
                raise OSError("no space")

    def fails(source, goal):
        if Path(goal).name == "model" and (Path(source) / "file").read_text() == "refused":
            raise OSError("refused")
        replace(source, goal)

    replace = os.replace
    make("first")
    monkeypatch.setattr(os, "replace", fails)
    for text in ("broken", "refused"):
        with pytest.raises(OSError, match=r"no space|refused"):
            make(text)
        assert (tmp_path / "model" / "file").read_text() == "first"
    make("second")
    assert (tmp_path / "model" / "file").read_text() == "second"
    assert [place.name for place in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_can_be_put_neither_forth_nor_back_is_not_deleted(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "file").write_text("first")
    replace = os.replace

    def fails(source, goal):
        if Path(goal).name == "model":
            raise OSError("refused")
        replace(source, goal)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="refused"), whole_folder(tmp_path / "model", replaces=True) as temporary:
        (temporary / "file").write_text("second")
    assert [place.read_text() for place in tmp_path.glob("*/file")] == ["first"]


def test_a_folder_is_there_whole(tmp_path):
    with whole_folder(tmp_path / "store") as temporary:
        (temporary / "a").write_text("1")
        assert not (tmp_path / "store").exists()
    assert (tmp_path / "store" / "a").read_text() == "1"


def test_a_folder_that_could_not_be_filled_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "store") as temporary:
        (temporary / "none" / "a").write_text("1")
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path):
    kept = [tmp_path / name for name in ("state.pt", "masks/.hidden", "masks/rule-1.npz", "spring.backup")]
    gone = [tmp_path / ".state.pt.a1b2c3d4", tmp_path / "masks" / ".rule-1.npz.00ff00ff"]
    for file in (*kept, *gone):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    sweep(tmp_path)
    assert [file.exists() for file in (*kept, *gone)] == [True] * 4 + [False] * 2
    half = tmp_path / "key.a1b2c3d4"
    (half / "inner").mkdir(parents=True)
    sweep(tmp_path, "other")
    assert half.is_dir()
    sweep(tmp_path, "key")
    assert not half.exists()
    sweep(tmp_path / "nowhere")
