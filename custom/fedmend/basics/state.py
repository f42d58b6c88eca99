"""State that must outlive a task, a process or a job: one file per name, written atomically, with a checksum."""

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmend.basics.files import OWNER, make_folder, sync, write_atomically, write_text
from fedmend.errors import WAY_ON, FedMendError

FORMAT = b"FedMend state 1 "  # a file begins with a line of it and the SHA-256 of the rest
SUFFIXES = (".npy.json", ".npy", ".pt")  # of its files
TURNS = 3  # the round itself, and one for each of the server's two checkpoints


class StateStore:
    """Named objects in a folder.

    Small objects are saved under a name (:meth:`save`). What a round leaves for the next one is saved in turns
    (:meth:`save_turn`): a file per round, of which the last three are kept. So a round that is repeated after a crash
    finds what the last round before it left, also at a site that does not take part in every round, and also when the
    server goes on from the older of its two checkpoints. Large arrays are saved in turns too, and read without being
    loaded (:meth:`save_array`).

    Args:
        folder: made when missing.
    """

    def __init__(self, folder: Path):
        self._folder = Path(folder)
        make_folder(self._folder)

    def load(self, name: str, default: Any = None) -> Any:
        """The object saved under ``name`` (tensors on the CPU), or ``default``.

        Raises:
            FedMendError: the file is damaged, or of another version.
        """
        where = f"state file {name}.pt: expected what FedMend saved"
        try:
            with open(self._folder / f"{name}.pt", "rb") as stream:
                header, content = stream.readline(len(FORMAT) + 65), stream.read()
        except FileNotFoundError:
            return default
        if not header.startswith(FORMAT):
            raise FedMendError(f"{where}, got a file of another format or version; {WAY_ON}")
        if header != _header(content):
            raise FedMendError(f"{where}, got a damaged file; {WAY_ON}")
        try:
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception:  # a whole file, so somebody made it; torch raises many types
            raise FedMendError(f"{where}, got something else; {WAY_ON}") from None

    def save(self, name: str, value: Any, *, before: str = "") -> None:
        """Saves tensors, numbers, strings and containers of them; after a crash the old or the new file is there.

        Args:
            name: name of the value.
            value: what is saved.
            before: the name that what was saved under ``name`` gets; empty: it is lost.
        """
        content = torch_bytes(value)
        kept = self._folder / f"{before}.pt" if before else None
        goal = self._folder / f"{name}.pt"
        with write_atomically(goal, before=kept, mode=OWNER) as file, open(file, "wb") as stream:
            stream.write(_header(content))
            stream.write(content)

    def keep(self, name: str, other: str) -> None:
        """Gives what is saved under ``name`` another name too, which it keeps when ``name`` is saved anew. The file is
        not copied where the file system knows links."""
        with write_atomically(self._folder / f"{other}.pt", mode=OWNER) as file:
            file.unlink()
            try:
                os.link(self._folder / f"{name}.pt", file)
            except OSError:
                file.touch(mode=OWNER)
                shutil.copyfile(self._folder / f"{name}.pt", file)

    def forget(self, name: str) -> None:
        """Deletes what is saved under ``name``, if anything is."""
        (self._folder / f"{name}.pt").unlink(missing_ok=True)
        sync(self._folder)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Deletes everything that was saved, under whatever name, but what has one of these names."""
        for file in [f for suffix in SUFFIXES for f in self._folder.glob(f"*{suffix}")]:
            if file.stem not in names:
                file.unlink()
        sync(self._folder)

    def save_turn(self, name: str, round_num: int, value: Any) -> None:
        """Saves what a round leaves, beside what the rounds before it left.

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
        with write_atomically(path, mode=OWNER) as temporary, open(temporary, "wb") as stream:
            np.save(stream, array, allow_pickle=False)
        write_text(about, json.dumps({"round": round_num, "fingerprint": fingerprint}), mode=OWNER)
        self._forget(name, round_num, ".npy", ".npy.json")

    def last_array(self, name: str, *, before: int, fingerprint: str) -> np.ndarray | None:
        """The newest array that a round before ``before`` left, as a read-only memory map.

        Args:
            name: name of the array.
            before: rounds from this one on do not count.
            fingerprint: what the rows must belong to.

        Returns:
            the array, any shape; None where there is none, or only one of something else or in a damaged file.
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
        """Keeps what this round left, and the newest before it, which repeated attempts need."""
        for suffix in suffixes:
            rounds = self._rounds(name, suffix)
            kept = {round_num, *sorted(r for r in rounds if r < round_num)[1 - TURNS :]}
            for number in set(rounds) - kept:
                (self._folder / f"{name}-{number}{suffix}").unlink(missing_ok=True)


def torch_bytes(value: Any) -> memoryview:
    """What ``torch.save`` writes; writing to a file, torch turns the OSError of a full disk into a RuntimeError."""
    content = io.BytesIO()
    torch.save(value, content)
    return content.getbuffer()


def _header(content: bytes | memoryview) -> bytes:
    return FORMAT + hashlib.sha256(content).hexdigest().encode() + b"\n"
