"""Small state that must outlive a task, a process or a job: one file per name, written atomically."""

import io
from pathlib import Path
from typing import Any

import torch

from fedmend.files import write_atomically


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
