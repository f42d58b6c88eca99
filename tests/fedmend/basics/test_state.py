import os
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import refused
from full_disk import full_disk

from fedmend.basics import state
from fedmend.basics.state import StateStore
from fedmend.errors import WAY_ON


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

    def half(content):
        raise OSError("no space left on device")

    monkeypatch.setattr(state, "_header", half)
    with pytest.raises(OSError, match="no space"):
        store.save("a", 2, before="b")
    monkeypatch.undo()
    assert store.load("a") == 1
    assert names(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("limit", [0, 5_000])
def test_a_full_disk_is_an_error_of_the_system_and_keeps_the_old_state(tmp_path, limit):
    with pytest.raises(OSError, match="File too large"), full_disk(limit):
        StateStore(tmp_path).save("a", torch.zeros(9_999))
    assert names(tmp_path) == []


def test_the_content_is_on_disk_before_the_name_changes_and_the_name_before_the_save_returns(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        steps.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        fsync(handle)

    StateStore(tmp_path).save("a", 1)
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda old, new: (steps.append(Path(new).name), replace(old, new)))
    StateStore(tmp_path).save("a", 2, before="b")
    assert steps == ["file", "b.pt", "a.pt", "folder"]


def test_the_names_of_new_folders_are_on_disk_before_anything_is_kept_in_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("fedmend.basics.files.sync", synced.append)
    StateStore(tmp_path / "run" / "site")
    assert sorted(synced) == [tmp_path, tmp_path / "run"]


def test_what_was_saved_before_can_be_kept(tmp_path):
    store = StateStore(tmp_path)
    store.save("a", 1, before="b")
    assert names(tmp_path) == ["a.pt"]
    store.save("a", 2, before="b")
    assert (store.load("a"), store.load("b")) == (2, 1)


def flipped(content):
    """One bit in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [flipped, lambda c: c[:-1], lambda c: c + b"0", lambda c: c[:110]])
def test_a_damaged_file_is_refused_in_a_sentence(tmp_path, damage):
    store = StateStore(tmp_path)
    store.save("moments", torch.arange(99.0))
    file = tmp_path / "moments.pt"
    file.write_bytes(damage(file.read_bytes()))
    with refused(f"state file moments.pt: expected what FedMend saved, got a damaged file; {WAY_ON}"):
        store.load("moments")


@pytest.mark.parametrize("content", [b"", b"FedMend state 2 " + b"0" * 64 + b"\n", b"PK" * 99])
def test_a_file_of_another_format_is_refused_in_a_sentence(tmp_path, content):
    (tmp_path / "moments.pt").write_bytes(content)
    with refused(
        f"state file moments.pt: expected what FedMend saved, got a file of another format or version; {WAY_ON}"
    ):
        StateStore(tmp_path).load("moments")


# ---- turns ----------------------------------------------------------------------------------------------------------
def test_a_repeated_round_finds_what_the_round_before_it_left(tmp_path):
    store = StateStore(tmp_path)
    for round_num in (0, 1, 2):
        store.save_turn("moments", round_num, torch.tensor(10.0 * round_num))
    assert store.last_turn("moments", before=3) == (2, torch.tensor(20.0))
    assert StateStore(tmp_path).last_turn("moments", before=2) == (1, torch.tensor(10.0))  # round 2 is repeated
    assert store.last_turn("moments", before=1) == (0, torch.tensor(0.0))  # round 1 is, from the older checkpoint
    store.save_turn("moments", 3, torch.tensor(30.0))
    assert store.last_turn("moments", before=1) is None  # what round 0 left has made room for round 3
    assert names(tmp_path) == ["moments-1.pt", "moments-2.pt", "moments-3.pt"]


def test_the_newest_turn_is_found_over_a_gap_of_rounds(tmp_path):
    store = StateStore(tmp_path)
    assert store.last_turn("moments", before=5) is None
    store.save_turn("moments", 3, "three")
    store.save_turn("moments", 8, "eight")
    assert store.last_turn("moments", before=8) == (3, "three")
    assert store.last_turn("moments", before=20) == (8, "eight")
    assert store.last_turn("others", before=20) is None


def test_a_turn_may_be_nothing_or_zero(tmp_path):
    store = StateStore(tmp_path)
    store.save_turn("count", 0, 0)
    store.save_turn("count", 1, None)
    assert store.last_turn("count", before=1) == (0, 0)
    assert store.last_turn("count", before=2) == (1, None)


# ---- arrays ---------------------------------------------------------------------------------------------------------
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def filled(folder, rounds=(0, 1, 2), fingerprint="mine"):
    """A store in which round r left ``ROWS`` + r."""
    store = StateStore(folder)
    for round_num in rounds:
        store.save_array("scores", round_num, ROWS + round_num, fingerprint=fingerprint)
    return store


def test_an_array_comes_back_as_a_read_only_memory_map(tmp_path):
    filled(tmp_path)
    array = StateStore(tmp_path).last_array("scores", before=3, fingerprint="mine")
    assert isinstance(array, np.memmap)
    assert (array.dtype, array.tolist()) == (np.float32, (ROWS + 2).tolist())
    assert not array.flags.writeable
    assert names(tmp_path) == [f"scores-{r}.npy{end}" for r in (0, 1, 2) for end in ("", ".json")]


def test_a_repeated_round_finds_the_array_of_the_round_before_it(tmp_path):
    store = filled(tmp_path)
    assert store.last_array("scores", before=2, fingerprint="mine").tolist() == (ROWS + 1).tolist()
    assert store.last_array("scores", before=1, fingerprint="mine").tolist() == ROWS.tolist()
    store.save_array("scores", 3, ROWS, fingerprint="mine")
    assert store.last_array("scores", before=1, fingerprint="mine") is None
    assert store.last_array("others", before=3, fingerprint="mine") is None


def test_an_array_of_other_samples_is_none(tmp_path):
    store = filled(tmp_path)
    assert store.last_array("scores", before=3, fingerprint="theirs") is None
    store.save_array("scores", 3, ROWS[:2], fingerprint="theirs")
    assert store.last_array("scores", before=4, fingerprint="theirs").tolist() == ROWS[:2].tolist()
    assert store.last_array("scores", before=4, fingerprint="mine") is None  # the newest one counts


@pytest.mark.parametrize("content", [b"", b"no array", "cut", None])
def test_a_damaged_array_is_none(tmp_path, content):
    store = filled(tmp_path)
    file = tmp_path / "scores-2.npy"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-4] if content == "cut" else content)
    assert store.last_array("scores", before=3, fingerprint="mine") is None
    assert store.last_array("scores", before=2, fingerprint="mine").tolist() == (ROWS + 1).tolist()


def test_an_array_that_was_not_finished_leaves_the_one_before_it(tmp_path, monkeypatch):
    store = filled(tmp_path)
    for step in ("write_text", "write_atomically"):  # between array and round, and before both
        with monkeypatch.context() as patched:
            patched.setattr(f"fedmend.basics.state.{step}", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.save_array("scores", 4, ROWS, fingerprint="mine")
        assert store.last_array("scores", before=5, fingerprint="mine").tolist() == (ROWS + 2).tolist()
    store.save_array("scores", 4, ROWS, fingerprint="mine")
    assert store.last_array("scores", before=5, fingerprint="mine").tolist() == ROWS.tolist()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"round": 2}'])
def test_an_array_whose_round_is_not_known_does_not_count(tmp_path, content):
    store = filled(tmp_path)
    (tmp_path / "scores-2.npy.json").write_text(content)
    assert store.last_array("scores", before=3, fingerprint="mine").tolist() == (ROWS + 1).tolist()


def test_an_open_array_is_not_changed_by_a_later_round(tmp_path):
    store = filled(tmp_path)
    array = store.last_array("scores", before=3, fingerprint="mine")
    store.save_array("scores", 4, ROWS * 0, fingerprint="mine")
    assert array.tolist() == (ROWS + 2).tolist()


def test_objects_are_no_array(tmp_path):
    with pytest.raises(ValueError, match="allow_pickle"):
        StateStore(tmp_path).save_array("scores", 0, np.array([{}]), fingerprint="mine")


def test_a_site_that_misses_rounds_still_finds_what_it_left_before_a_repeated_one(tmp_path):
    store = StateStore(tmp_path)
    for round_num in (3, 5):  # both odd
        store.save_turn("moments", round_num, round_num)
        store.save_array("scores", round_num, ROWS * round_num, fingerprint="mine")
    assert store.last_turn("moments", before=5) == (3, 3)
    assert store.last_array("scores", before=5, fingerprint="mine").tolist() == (ROWS * 3).tolist()


@pytest.mark.parametrize("links", [True, False])
def test_what_is_kept_under_another_name_stays_when_the_first_is_saved_anew(tmp_path, monkeypatch, links):
    if not links:  # some file systems of a network
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError))
    store = StateStore(tmp_path)
    store.save("model", 1)
    store.keep("model", "good")
    store.keep("model", "good")
    store.save("model", 2)
    assert (store.load("good"), store.load("model")) == (1, 2)
    store.forget("good")
    store.forget("good")
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]
