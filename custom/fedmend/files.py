"""Files and folders that are there whole or not at all, and the one lock for what several processes want to do."""

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fedmend.errors import FedMendError

INTERVAL = 0.1  # seconds between two tries of a lock


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


def write_text(path: Path, text: str) -> None:
    """Writes a text file whole or not at all."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def whole_folder(folder: Path, *, synced: bool = True) -> Iterator[Path]:
    """A temporary folder beside ``folder`` that becomes it when the block ends without an error; nobody sees half of
    it.

    Args:
        folder: the name must not be taken at the end of the block; its parent exists.
        synced: the files are on the disk before the name changes; not needed for what can be made again.

    Yields:
        The temporary folder.
    """
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        yield temporary
        for file in temporary.rglob("*") if synced else ():
            if file.is_file():
                with open(file, "rb") as stream:
                    os.fsync(stream.fileno())
        temporary.chmod(0o755)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked(lock_file: Path, *, patience: float = float("inf")) -> Iterator[bool]:
    """An advisory lock that one process holds at a time; the end of that process, however it comes, frees it.

    Args:
        lock_file: made when missing, with its folder.
        patience: seconds to wait for another process.

    Yields:
        Whether this process has the lock.
    """
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with open(lock_file, "w") as stream:
        end = time.monotonic() + patience
        while not (mine := _try_lock(stream.fileno())) and time.monotonic() < end:
            time.sleep(INTERVAL)
        yield mine


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def disk_errors(where: str, need: int, folder: Path) -> Iterator[None]:
    """Turns the errors of a full or read-only cache folder into one sentence, and keeps a job from filling the disk.

    Args:
        where: first words of the sentence.
        need: bytes that the block writes.
        folder: where it writes them; need not exist.

    Raises:
        FedMendError: the block needs more than half of the free space; or instead of such an OSError. Every other error
        passes.
    """
    try:
        there = next(f for f in (folder, *folder.absolute().parents) if f.is_dir())
        if 2 * need > shutil.disk_usage(there).free:
            megabytes = max(1, round(2 * need / 1e6))
            raise FedMendError(
                f"{where}: cache_dir: expected {megabytes} MB of free space, twice what is needed, got less"
            )
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            megabytes = max(1, round(need / 1e6))
            raise FedMendError(f"{where}: cache_dir: expected {megabytes} MB of free space, got a full disk") from None
        if e.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise FedMendError(
                f"{where}: cache_dir: expected a folder that can be written, got one that is read-only"
            ) from None
        raise
