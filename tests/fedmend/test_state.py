import contextlib
import os
import resource
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from factories import ROOT

from fedmend.state import StateStore, sole_user, write_atomically

ENV = {**os.environ, "PYTHONPATH": str(ROOT / "custom")}


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_what_is_saved_is_loaded_by_another_store(tmp_path):
    value = {"moments": [torch.arange(3.0), torch.tensor(2)], "round": 4, "tags": {"a": True, "b": None}}
    StateStore(tmp_path / "state").save("optimizer", value)
    loaded = StateStore(tmp_path / "state").load("optimizer")
    assert torch.equal(loaded["moments"][0], value["moments"][0])
    assert (loaded["round"], loaded["tags"]) == (4, {"a": True, "b": None})


def test_a_name_that_was_never_saved_gives_the_default(tmp_path):
    store = StateStore(tmp_path)
    assert store.load("curves") is None
    assert store.load("curves", 3) == 3


def test_names_are_kept_apart_and_saved_again(tmp_path):
    store = StateStore(tmp_path)
    store.save("a", 1)
    store.save("b", 2)
    store.save("a", 3)
    assert (store.load("a"), store.load("b")) == (3, 2)
    assert names(tmp_path) == ["a.pt", "b.pt"]


def test_a_save_that_fails_half_way_keeps_the_old_state(tmp_path, monkeypatch):
    store = StateStore(tmp_path)
    store.save("a", 1)

    write_bytes = Path.write_bytes

    def half(file, content):
        write_bytes(file, b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="no space"):
        store.save("a", 2)
    assert store.load("a") == 1
    assert names(tmp_path) == ["a.pt"]


@contextlib.contextmanager
def full_disk(limit):
    """Every write of a file beyond so many bytes fails, also those of pytest's own output."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [0, 5_000])
def test_a_full_disk_is_an_error_of_the_system_and_keeps_the_old_state(tmp_path, limit):
    with pytest.raises(OSError, match="File too large"), full_disk(limit):
        StateStore(tmp_path).save("a", torch.zeros(9_999))
    assert names(tmp_path) == []


def test_the_content_is_on_disk_before_the_name_changes(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (steps.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (steps.append("replace"), replace(*paths)))
    StateStore(tmp_path).save("a", 1)
    assert steps == ["fsync", "replace"]


def test_a_crash_before_the_name_changes_keeps_the_old_file(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("old")

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt), write_atomically(tmp_path / "f") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "f").read_text() == "old"
    assert names(tmp_path) == ["f"]


def test_a_written_file_is_readable_by_others(tmp_path):
    with write_atomically(tmp_path / "f") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "f").read_text() == "new"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644


def test_a_folder_has_one_user_at_a_time(tmp_path):
    with sole_user(tmp_path, patience=0) as first:
        with sole_user(tmp_path, patience=0) as second:
            assert (first, second) == (True, False)
        with sole_user(tmp_path, patience=0) as third:
            assert not third
    with sole_user(tmp_path, patience=0) as fourth:
        assert fourth


def test_a_user_that_waits_gets_the_folder_when_the_process_before_it_dies(tmp_path):
    script = "import pathlib, sys, time; from fedmend.state import sole_user\n"
    script += "with sole_user(pathlib.Path(sys.argv[1]), patience=0): print('mine', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, env=ENV) as other:
        other.stdout.readline()
        threading.Timer(0.3, other.kill).start()
        with sole_user(tmp_path, patience=20) as alone:
            assert alone
