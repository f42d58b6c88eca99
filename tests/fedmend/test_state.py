import os
import stat

import pytest
import torch

from fedmend.state import StateStore, write_atomically


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

    def half(value, path):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="no space"):
        store.save("a", 2)
    assert store.load("a") == 1
    assert names(tmp_path) == ["a.pt"]


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
