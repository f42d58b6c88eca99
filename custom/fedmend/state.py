"""State that must outlive a task, a process or a job: one file per name, written atomically."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmend.files import write_atomically, write_text


class StateStore:
    """Named objects in a folder.

    Small objects are saved under a name (:meth:`save`). What a round leaves for the next one is saved in turns
    (:meth:`save_turn`): a file per round, of which the last two are kept. So a round that is repeated after a crash
    finds what the last round before it left, also at a site that does not take part in every round. Large arrays are
    saved in turns too, and read without being loaded (:meth:`save_array`).

    Args:
        folder: made when missing.
    """

    def __init__(self, folder: Path):
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def load(self, name: str, default: Any = None) -> Any:
        """The object saved under ``name`` (tensors on the CPU), or ``default``."""
        path = self._folder / f"{name}.pt"
        return torch.load(path, map_location="cpu", weights_only=True) if path.is_file() else default

    def save(self, name: str, value: Any) -> None:
        """Saves tensors, numbers, strings and containers of them; after a crash the old or the new file is there."""
        content = io.BytesIO()  # writing to a file, torch turns the OSError of a full disk into a RuntimeError
        torch.save(value, content)
        with write_atomically(self._folder / f"{name}.pt") as temporary:
            temporary.write_bytes(content.getbuffer())

    def save_turn(self, name: str, round_num: int, value: Any) -> None:
        """Saves what a round leaves, beside what the round before it left.

        Args:
            name: name of the value.
            round_num: the round that leaves it.
            value: as in :meth:`save`.
        """
        self.save(f"{name}-{round_num}", {"round": round_num, "value": value})
        self._forget(name, round_num, ".pt")

    def last_turn(self, name: str, *, before: int) -> tuple[int, Any] | None:
        """The newest value that a round before ``before`` left, with its round; None where there is none."""
        earlier = [r for r in self._rounds(name, ".pt") if r < before]
        return (max(earlier), self.load(f"{name}-{max(earlier)}")["value"]) if earlier else None

    def save_array(self, name: str, round_num: int, array: np.ndarray, *, fingerprint: str) -> None:
        """Saves a large array, e.g. one row per sample, in turns as :meth:`save_turn`; it is not copied in memory.

        Args:
            name: name of the array.
            round_num: the round that leaves it.
            array: numbers of any shape.
            fingerprint: what the rows belong to, e.g. :meth:`LabelTable.fingerprint` of their samples.
        """
        path, about = self._array_files(name, round_num)
        # Without its description an array counts as absent, so the two can never be of different attempts.
        about.unlink(missing_ok=True)
        with write_atomically(path) as temporary, open(temporary, "wb") as stream:
            np.save(stream, array, allow_pickle=False)
        write_text(about, json.dumps({"round": round_num, "fingerprint": fingerprint}))
        self._forget(name, round_num, ".npy", ".npy.json")

    def last_array(self, name: str, *, before: int, fingerprint: str) -> np.ndarray | None:
        """The newest array that a round before ``before`` left, as a read-only memory map.

        Args:
            name: name of the array.
            before: rounds from this one on do not count.
            fingerprint: what the rows must belong to.

        Returns:
            the array; None where there is none, where it belongs to something else or where its file is damaged.
        """
        for number in sorted((r for r in self._rounds(name, ".npy.json") if r < before), reverse=True):
            path, about = self._array_files(name, number)
            try:
                known = json.loads(about.read_text(encoding="utf-8"))["fingerprint"]
            except (ValueError, KeyError, TypeError):  # was not finished
                continue
            try:
                return np.load(path, mmap_mode="r", allow_pickle=False) if known == fingerprint else None
            except (FileNotFoundError, EOFError, ValueError):
                return None
        return None

    def _array_files(self, name: str, round_num: int) -> tuple[Path, Path]:
        return self._folder / f"{name}-{round_num}.npy", self._folder / f"{name}-{round_num}.npy.json"

    def _rounds(self, name: str, suffix: str) -> list[int]:
        """Rounds of which there is a file."""
        pattern = re.compile(rf"{re.escape(name)}-(\d+){re.escape(suffix)}")
        return [int(found[1]) for file in self._folder.iterdir() if (found := pattern.fullmatch(file.name))]

    def _forget(self, name: str, round_num: int, *suffixes: str) -> None:
        """Keeps what this round left, and the newest before it, which a repeated attempt needs."""
        for suffix in suffixes:
            rounds = self._rounds(name, suffix)
            kept = {round_num, max((r for r in rounds if r < round_num), default=round_num)}
            for number in set(rounds) - kept:
                (self._folder / f"{name}-{number}{suffix}").unlink(missing_ok=True)
