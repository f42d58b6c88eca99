import dataclasses

import numpy as np
import pytest
import torch
from factories import refused

from fedmend.checkpoint import Checkpoint, to_arrays, to_tensors

MADE_BY = {"workflow": "FedAvgWorkflow", "seed": 3}
MODEL = {"w": np.arange(4, dtype=np.float32), "scale": np.array(2.5, dtype=np.float64)}


@dataclasses.dataclass
class Memory:
    degree: np.ndarray
    roles: dict


def checkpoint(folder, **changes):
    return Checkpoint(folder, "run-1", {**MADE_BY, **changes})


def save(folder, done=2, *, finished=False):
    memory = Memory(np.array([0.25, 1.0]), {"site-1": "noisy"})
    checkpoint(folder).save(done, MODEL, memory, "lines", finished=finished)


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


def test_a_checkpoint_holds_no_pickled_code(tmp_path):
    save(tmp_path)
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert content["round"] == 2


def test_the_best_model_is_kept_with_its_value_and_round(tmp_path):
    checkpoint(tmp_path).save_best(0.75, 4, MODEL)
    assert checkpoint(tmp_path).best() == (0.75, 4)
    assert checkpoint(tmp_path).best_model()["w"].tolist() == [0, 1, 2, 3]


def test_a_finished_run_is_refused(tmp_path):
    save(tmp_path, finished=True)
    with refused("run_name 'run-1': expected a new or an unfinished run, got a finished one; choose another run_name"):
        checkpoint(tmp_path).load()


@pytest.mark.parametrize(
    ("changes", "named"), [({"seed": 4}, "seed"), ({"seed": 4, "workflow": "Other"}, "workflow, seed")]
)
def test_another_run_is_refused_with_what_differs(tmp_path, changes, named):
    save(tmp_path)
    with refused(
        f"run_name 'run-1': expected to go on with the same {named} as before, got others; choose another run_name"
    ):
        checkpoint(tmp_path, **changes).load()


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
