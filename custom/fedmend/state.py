"""Small state that must outlive a task, a process or a job: one file per name, written atomically."""

import contextlib
import fcntl
import io
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch


class StateStore:
    """Named objects in a folder.

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
        """Saves tensors, numbers, strings and containers of them; after a crash the old or the new file is there, whole."""
        content = io.BytesIO()  # writing to a file, torch turns the OSError of a full disk into a RuntimeError
        torch.save(value, content)
        with write_atomically(self._folder / f"{name}.pt") as temporary:
            temporary.write_bytes(content.getbuffer())


@contextlib.contextmanager
def sole_user(folder: Path, *, patience: float) -> Iterator[bool]:
    """Keeps other processes that ask for it too out of a folder; the end of this process, however it comes, lets them in.

    Args:
        folder: it exists.
        patience: seconds to wait for another process.

    Yields:
        Whether this process has the folder.
    """
    with open(folder / "in_use", "w") as stream:
        end = time.monotonic() + patience
        while not (alone := _locked(stream)) and time.monotonic() < end:
            time.sleep(0.1)
        yield alone


def _locked(stream: IO) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class write_atomically:
    """Context manager: a temporary file beside ``path`` that replaces it when the block ends without an error."""

    def __init__(self, path: Path):
        self._path = Path(path)

    def __enter__(self) -> Path:
        handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        os.close(handle)
        self._temporary = Path(name)
        return self._temporary

    def __exit__(self, error_type, error, trace) -> None:
        try:
            if error_type is None:
                with open(self._temporary, "rb") as stream:
                    os.fsync(stream.fileno())
                self._temporary.chmod(0o644)
                os.replace(self._temporary, self._path)
        finally:
            self._temporary.unlink(missing_ok=True)
