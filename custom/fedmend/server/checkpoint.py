"""The server's checkpoint: what a job of the same run_name needs to go on after the last round."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.server.fingerprint import LEDGERS, Fingerprint, Marks, changes

CHECKPOINT, BEFORE, BEST = "checkpoint", "checkpoint-before", "best"
GOOD = "checkpoint-good"  # the last one whose model most sites could evaluate
NOBODY = (0.0, "")


@dataclass(frozen=True)
class Saved:
    """A run as an earlier job left it.

    Attributes:
        done: rounds done.
        model: global model, name → array.
        memory: fields of the workflow's memory.
        records: see :meth:`fedmend.records.run_records.RunRecords.dump`.
        marks: site → latest mark of its ledger, see :mod:`fedmend.repairs.ledger`.
        data: site → split → mark of its data, see :func:`fedmend.server.fingerprint.other_data`.
        changes: what this job changes on purpose, see :func:`fedmend.server.fingerprint.changes`.
        suspect: see :func:`fedmend.server.safety_net.suspect`, over the rounds since most sites could evaluate a model.
        damaged: the newest checkpoint could not be read; this is the one before it.
        job: which did the last round; empty where jobs have no names.
    """

    done: int
    model: dict[str, np.ndarray]
    memory: dict[str, Any]
    records: str
    marks: dict[str, str]
    data: Marks
    changes: dict[str, list]
    suspect: tuple[float, str]
    damaged: bool
    job: str


class Checkpoint:
    """Model and memory of a run on the server's disk: what the last round left, and what the one before it left.

    Args:
        folder: made when missing.
        run_name: for messages.
        made_by: what a job that goes on must share.
        allow_changes: names of what it may change all the same.
        job: this one.

    Attributes:
        folder: as given.
        mark: of the run, drawn where it begins, see :class:`fedmend.messages.RunSpec`.
    """

    def __init__(
        self, folder: Path, run_name: str, made_by: Fingerprint, allow_changes: Sequence[str] = (), *, job: str = ""
    ):
        self.folder, self._state, self._where = folder, StateStore(folder), f"run_name {run_name!r}"
        self._made_by, self._allowed, self._job = dict(made_by), tuple(allow_changes), job
        self._damaged = False  # the newest checkpoint, which then gives way instead of being kept
        self.mark = secrets.token_hex(16)

    def load(self) -> Saved | None:
        """What an earlier job left, or None; a run that begins anew has no best model either.

        Raises:
            FedMendError: the run was another one, or neither of the two checkpoints can be read.
        """
        content = self._read()
        if content is None:
            self._state.forget(BEST)
            return None
        self.mark = content["mark"]
        return Saved(
            content["round"],
            to_arrays(content["weights"]),
            to_arrays(content["memory"]),
            content["records"],
            {} if LEDGERS in self._allowed else content["marks"],
            content["data"],
            changes(content["made_by"], self._made_by, self._allowed, self._where),
            content["suspect"],
            self._damaged,
            content["job"],
        )

    def check_rounds(self, done: int, num_rounds: int) -> None:
        """Refuses fewer rounds than are done.

        Raises:
            FedMendError: there are fewer.
        """
        if done > num_rounds:
            raise FedMendError(
                f"{self._where}: expected num_rounds of at least the {done} rounds that are done, got {num_rounds}"
            )

    def _read(self) -> dict | None:
        """The newest checkpoint that can be read."""
        sentence = ""
        for name in (CHECKPOINT, BEFORE):
            try:
                content = self._state.load(name)
            except FedMendError as e:
                sentence, self._damaged = sentence or f"{self._where}: {e}", True
                continue
            if content is not None:
                return content
        if sentence:
            raise FedMendError(sentence)
        return None

    def save(
        self,
        done: int,
        model: Mapping,
        memory: Any,
        records: str,
        *,
        marks: Mapping[str, str],
        data: Marks,
        suspect: tuple[float, str] = NOBODY,
    ) -> None:
        """Writes a checkpoint; the last one is kept beside it. Arguments are as in :class:`Saved`, the memory as the
        workflow has it."""
        content = {
            "round": done,
            "weights": to_tensors(model),
            "memory": to_tensors(vars(memory)),
            "records": records,
            "made_by": self._made_by,
            "job": self._job,
            "mark": self.mark,
            "marks": dict(marks),
            "data": dict(data),
            "suspect": suspect,
        }
        self._state.save(CHECKPOINT, content, before="" if self._damaged else BEFORE)
        self._damaged = False

    def confirm(self) -> None:
        """Notes that most sites could evaluate the model of the checkpoint that the run is at, if there is one."""
        name = BEFORE if self._damaged else CHECKPOINT
        if (self.folder / f"{name}.pt").is_file():
            self._state.keep(name, GOOD)

    def go_back(self) -> int:
        """Makes the last checkpoint whose model most sites could evaluate the newest one.

        Returns:
            Rounds done; 0: there is none, and the run begins anew.

        Raises:
            FedMendError: its file is damaged.
        """
        content = self._state.load(GOOD)
        self._state.forget(BEFORE)
        if content is None:
            self._state.forget(CHECKPOINT)
            return 0
        self._state.keep(GOOD, CHECKPOINT)
        return content["round"]

    def best(self) -> tuple[float, int] | None:
        """Value and round of the best model so far.

        Raises:
            FedMendError: its file is damaged.
        """
        try:
            content = self._state.load(BEST)
        except FedMendError as e:
            raise FedMendError(f"{self._where}: {e}, or delete it: the best of the rounds to come is kept") from None
        return None if content is None else (content["value"], content["round"])

    def best_model(self) -> dict[str, np.ndarray] | None:
        """The best model so far."""
        content = self._state.load(BEST)
        return None if content is None else to_arrays(content["weights"])

    def best_counts(self) -> dict[str, np.ndarray]:
        """Split → counts of the best model on it, (C, ...) int64; empty where there is none."""
        content = self._state.load(BEST)
        return {} if content is None else to_arrays(content["counts"])

    def save_best(
        self,
        value: float,
        round_num: int,
        model: Mapping[str, np.ndarray],
        counts: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """Replaces the best model; ``counts`` are its own on each split, (C, ...) int64."""
        content = {"value": value, "round": round_num, "weights": to_tensors(model), "counts": to_tensors(counts)}
        self._state.save(BEST, content)


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
