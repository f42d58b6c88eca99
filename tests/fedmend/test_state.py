import contextlib
import os
import resource
from pathlib import Path

import pytest
import torch

from fedmend.state import StateStore


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
