"""The server's checkpoint: what a job of the same run_name needs to go on after the last round."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmend.errors import FedMendError
from fedmend.method import memory_of
from fedmend.state import StateStore

CHECKPOINT, BEST = "checkpoint", "best"


@dataclass(frozen=True)
class Saved:
    """A run as an earlier job left it.

    Attributes:
        done: rounds done.
        model: global model, name → array.
        memory: fields of the workflow's memory.
        records: see :meth:`fedmend.report.records.RunRecords.dump`.
    """

    done: int
    model: dict[str, np.ndarray]
    memory: dict[str, Any]
    records: str


class Checkpoint:
    """Model and memory of a run on the server's disk.

    Args:
        folder: made when missing.
        run_name: for messages.
        made_by: settings that a job that goes on must share.
    """

    def __init__(self, folder: Path, run_name: str, made_by: Mapping[str, object]):
        self._state, self._where, self._made_by = StateStore(folder), f"run_name {run_name!r}", dict(made_by)

    def load(self) -> Saved | None:
        """What an earlier job left, or None.

        Raises:
            FedMendError: the run is finished, or was another one.
        """
        content = self._state.load(CHECKPOINT)
        if content is None:
            return None
        if content["finished"]:
            raise FedMendError(
                f"{self._where}: expected a new or an unfinished run, got a finished one; choose another run_name"
            )
        before = content["made_by"]
        if different := [k for k, v in self._made_by.items() if before.get(k) != v]:
            raise FedMendError(
                f"{self._where}: expected to go on with the same {', '.join(different)} as before, got others; choose"
                " another run_name"
            )
        return Saved(content["round"], to_arrays(content["weights"]), to_arrays(content["memory"]), content["records"])

    def save(self, done: int, model: Mapping, memory: Any, records: str, *, finished: bool) -> None:
        """Replaces the checkpoint.

        Args:
            done: rounds done.
            model: global model.
            memory: the workflow's.
            records: what was written down so far.
            finished: no job may go on.
        """
        content = {
            "round": done,
            "weights": to_tensors(model),
            "memory": to_tensors(memory_of(memory)),
            "records": records,
            "made_by": self._made_by,
            "finished": finished,
        }
        self._state.save(CHECKPOINT, content)

    def best(self) -> tuple[float, int] | None:
        """Value and round of the best model so far."""
        content = self._state.load(BEST)
        return None if content is None else (content["value"], content["round"])

    def best_model(self) -> dict[str, np.ndarray] | None:
        """The best model so far."""
        content = self._state.load(BEST)
        return None if content is None else to_arrays(content["weights"])

    def save_best(self, value: float, round_num: int, model: Mapping[str, np.ndarray]) -> None:
        """Replaces the best model."""
        self._state.save(BEST, {"value": value, "round": round_num, "weights": to_tensors(model)})


def to_tensors(value: Any) -> Any:
    """Arrays inside mappings, lists and tuples become tensors, which torch saves without pickled code."""
    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.array(value))
    if isinstance(value, Mapping):
        return {k: to_tensors(v) for k, v in value.items()}
    return type(value)(map(to_tensors, value)) if isinstance(value, list | tuple) else value


def to_arrays(value: Any) -> Any:
    """The way back from :func:`to_tensors`."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, Mapping):
        return {k: to_arrays(v) for k, v in value.items()}
    return type(value)(map(to_arrays, value)) if isinstance(value, list | tuple) else value
