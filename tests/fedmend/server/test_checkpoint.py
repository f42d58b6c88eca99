import dataclasses
import io

import numpy as np
import pytest
import torch
from factories import refused

from fedmend.basics.state import StateStore
from fedmend.errors import WAY_ON
from fedmend.server.checkpoint import Checkpoint, to_arrays, to_tensors

MADE_BY = {"workflow": "FedAvgWorkflow", "seed": 3}
MODEL = {"w": np.arange(4, dtype=np.float32), "scale": np.array(2.5, dtype=np.float64)}


@dataclasses.dataclass
class Memory:
    degree: np.ndarray
    roles: dict


def checkpoint(folder, **changes):
    return Checkpoint(folder, "run-1", {**MADE_BY, **changes})


def save(folder, done=2):
    memory = Memory(np.array([0.25, 1.0]), {"site-1": "noisy"})
    checkpoint(folder).save(done, MODEL, memory, "lines", marks={}, data={})


def test_a_new_run_has_no_checkpoint(tmp_path):
    assert checkpoint(tmp_path).load() is None
    assert checkpoint(tmp_path).best() is None
    assert checkpoint(tmp_path).best_model() is None


def test_a_checkpoint_gives_back_what_was_saved(tmp_path):
    save(tmp_path)
    saved = checkpoint(tmp_path).load()
    assert (saved.done, saved.records, saved.memory["roles"]) == (2, "lines", {"site-1": "noisy"})
    assert saved.memory["degree"].tolist() == [0.25, 1.0]
    for name, value in MODEL.items():
        assert saved.model[name].dtype == value.dtype
        np.testing.assert_array_equal(saved.model[name], value)


def test_a_run_keeps_the_mark_that_it_began_with_and_another_one_has_another(tmp_path):
    first = checkpoint(tmp_path / "first")
    first.load()
    first.save(1, MODEL, Memory(np.zeros(1), {}), "", marks={}, data={})
    again, other = checkpoint(tmp_path / "first"), checkpoint(tmp_path / "other")
    assert again.load().done == 1
    assert other.load() is None
    assert again.mark == first.mark != other.mark


def test_a_checkpoint_holds_no_pickled_code(tmp_path):
    save(tmp_path)
    content = (tmp_path / "checkpoint.pt").read_bytes()
    assert torch.load(io.BytesIO(content.partition(b"\n")[2]), weights_only=True)["round"] == 2


def test_the_best_model_is_kept_with_its_value_and_round(tmp_path):
    checkpoint(tmp_path).save_best(0.75, 4, MODEL, {"val": np.arange(3)})
    assert checkpoint(tmp_path).best_counts()["val"].tolist() == [0, 1, 2]
    assert checkpoint(tmp_path).best() == (0.75, 4)
    assert checkpoint(tmp_path).best_model()["w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("changes", "said", "named"),
    [
        ({"seed": 4}, "seed: before 3, now 4", '["seed"]'),
        (
            {"seed": 4, "workflow": "Other"},
            'seed: before 3, now 4; workflow: before "FedAvgWorkflow", now "Other"',
            '["seed", "workflow"]',
        ),
    ],
)
def test_another_run_is_refused_with_what_differs(tmp_path, changes, said, named):
    save(tmp_path)
    with refused(
        f"run_name 'run-1': expected the settings of the job before, got others ({said}); choose another run_name, or"
        f" change them on purpose by allow_changes={named}"
    ):
        checkpoint(tmp_path, **changes).load()


def test_a_difference_that_is_named_is_accepted_and_told(tmp_path):
    save(tmp_path)
    saved = Checkpoint(tmp_path, "run-1", {**MADE_BY, "seed": 4}, ["seed", "another"]).load()
    assert (saved.done, saved.changes) == (2, {"seed": [3, 4]})


def test_marks_of_ledgers_come_back_unless_the_job_goes_on_without_them(tmp_path):
    checkpoint(tmp_path).save(1, MODEL, Memory(np.zeros(1), {}), "", marks={"site-1": "ab" * 16}, data={})
    assert checkpoint(tmp_path).load().marks == {"site-1": "ab" * 16}
    assert Checkpoint(tmp_path, "run-1", MADE_BY, ["ledgers"]).load().marks == {}


# ---- two generations ------------------------------------------------------------------------------------------------
def damage(*files):
    for file in files:
        file.write_bytes(file.read_bytes()[:-9])


NEWEST, BEFORE = "checkpoint.pt", "checkpoint-before.pt"
DAMAGED = "run_name 'run-1': state file checkpoint.pt: expected what FedMend saved, got a damaged file; "


def test_the_checkpoint_before_the_newest_is_kept(tmp_path):
    for done in (1, 2, 3):
        save(tmp_path, done)
    assert sorted(p.name for p in tmp_path.iterdir()) == [BEFORE, NEWEST]
    saved = checkpoint(tmp_path).load()
    assert (saved.done, saved.damaged) == (3, False)


def test_a_damaged_checkpoint_makes_room_for_the_one_before_it(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path / NEWEST)
    again = checkpoint(tmp_path)
    saved = again.load()
    assert (saved.done, saved.damaged) == (1, True)
    again.save(2, MODEL, Memory(np.zeros(1), {}), "", marks={}, data={})  # that of round 1 is kept, not the damaged one
    damage(tmp_path / NEWEST)
    assert checkpoint(tmp_path).load().done == 1
    save(tmp_path, 3)
    save(tmp_path, 4)
    assert (checkpoint(tmp_path).load().done, StateStore(tmp_path).load("checkpoint-before")["round"]) == (4, 3)


def test_a_server_that_stopped_between_the_two_names_goes_on_from_the_newest_there_is(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / NEWEST).unlink()
    saved = checkpoint(tmp_path).load()
    assert (saved.done, saved.damaged) == (1, False)


@pytest.mark.parametrize("before", [True, False])
def test_where_no_checkpoint_is_whole_one_sentence_says_the_way_on(tmp_path, before):
    save(tmp_path, 1)
    if before:
        save(tmp_path, 2)
    damage(*tmp_path.iterdir())
    with refused(DAMAGED + WAY_ON):
        checkpoint(tmp_path).load()


def test_a_checkpoint_of_another_version_is_one_sentence(tmp_path):
    torch.save({"round": 1}, tmp_path / NEWEST)  # as the first edition wrote it
    with refused(
        "run_name 'run-1': state file checkpoint.pt: expected what FedMend saved, got a file of another format or"
        f" version; {WAY_ON}"
    ):
        checkpoint(tmp_path).load()


def test_a_damaged_best_model_may_be_deleted(tmp_path):
    checkpoint(tmp_path).save_best(0.75, 4, MODEL)
    damage(tmp_path / "best.pt")
    with refused(
        "run_name 'run-1': state file best.pt: expected what FedMend saved, got a damaged file; put it back from a"
        " backup, or choose another run_name, or delete it: the best of the rounds to come is kept"
    ):
        checkpoint(tmp_path).best()


def test_arrays_inside_containers_become_tensors_and_come_back():
    value = {"a": [np.ones(2), (np.float32(0.5), "text", None, True)], "b": {"c": np.arange(3)[::-1]}}
    tensors = to_tensors(value)
    assert isinstance(tensors["a"][0], torch.Tensor)
    back = to_arrays(tensors)
    assert back["a"][0].tolist() == [1, 1]
    assert (float(back["a"][1][0]), *back["a"][1][1:]) == (0.5, "text", None, True)
    assert back["b"]["c"].tolist() == [2, 1, 0]


def test_a_saved_array_does_not_follow_later_changes():
    array = np.zeros(2)
    tensor = to_tensors(array)
    array[0] = 1
    assert tensor.tolist() == [0, 0]
