"""Files and folders that are there whole or not at all, and the one lock for what several processes want to do."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from fedmend.errors import FedMendError

INTERVAL = 0.1  # seconds between two tries of a lock
RANDOM = 4  # bytes in the name of a temporary
OWNER = 0o600  # rights of a file that holds what a site knows of its patients
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM)


def sweep(folder: Path, name: str = "") -> None:
    """Removes temporaries that a process which was killed has left, where nobody else writes now.

    Args:
        folder: whose files and folders, at any depth, are looked at; need not exist.
        name: of the folder made by :func:`whole_folder` whose temporaries beside it are meant; empty: all files of
            :class:`write_atomically`.
    """
    random = "[0-9a-f]" * 2 * RANDOM
    for left in [*folder.glob(f"{name}.{random}")] if name else [*folder.rglob(f".*.{random}")]:
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on the disk: until then a power failure takes them away.

    Args:
        path: file or folder; of a folder on a file system that cannot do this (some of a network), nothing is asked.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Makes a folder that is missing, with its parents; their names are on the disk afterwards."""
    missing = [place for place in (folder, *folder.parents) if not place.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        sync(place.parent)


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class write_atomically:
    """Context manager: a temporary file beside ``path`` that replaces it when the block ends without an error.

    Args:
        path: the file; content and name are on the disk when the block has ended.
        before: what was at ``path`` gets this name, in the same folder; None: it is lost.
        mode: rights of the file, of which the process's umask takes away its own.
    """

    def __init__(self, path: Path, *, before: Path | None = None, mode: int = 0o666):
        self._path, self._before, self._mode = Path(path), before, mode

    def __enter__(self) -> Path:
        self._temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(RANDOM)}")
        os.close(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, self._mode))
        return self._temporary

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            if error_type is None:
                sync(self._temporary)
                if self._before is not None and self._path.is_file():
                    os.replace(self._path, self._before)
                os.replace(self._temporary, self._path)
                sync(self._path.parent)
        finally:
            self._temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Writes a text file whole or not at all; ``mode`` as of :class:`write_atomically`."""
    with write_atomically(path, mode=mode) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_text(path: Path, start: int, text: str) -> None:
    """Writes at the end of a text file; what was written is on the disk afterwards.

    Args:
        path: a file that is there.
        start: bytes of it that stay; what stands behind them, e.g. half a line of a process that was killed, goes.
        text: what comes there.
    """
    with open(path, "r+b") as stream:
        stream.seek(start)
        stream.truncate()
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def copy_folder(source: Path, goal: Path) -> None:
    """Copies a folder that may be read-only into one that its owner can write.

    Args:
        source: the folder.
        goal: where its content comes; a new folder or one that is there, in which files of the same names are replaced.
    """
    shutil.copytree(source, goal, copy_function=shutil.copyfile, dirs_exist_ok=True)
    for folder in (goal, *goal.rglob("*/")):
        folder.chmod(folder.stat().st_mode | 0o700)


@contextlib.contextmanager
def whole_folder(folder: Path, *, synced: bool = True, replaces: bool = False) -> Iterator[Path]:
    """A temporary folder beside ``folder`` that becomes it when the block ends without an error, whole for everybody.

    Args:
        folder: its parent exists.
        synced: files and names are on the disk when the block has ended; not needed for what can be made again.
        replaces: what is there of this name is lost, once the new one is whole; without it the name must not be taken
            at the end of the block.

    Yields:
        The temporary folder.
    """
    temporary, before = (folder.with_name(f"{folder.name}.{secrets.token_hex(RANDOM)}") for _ in range(2))
    temporary.mkdir()  # with the rights that the process's umask leaves
    try:
        yield temporary
        for content in (*temporary.rglob("*"), temporary) if synced else ():
            sync(content)
        if replaces and folder.is_dir():
            os.replace(folder, before)
        try:
            os.replace(temporary, folder)
        except OSError:
            if before.is_dir():
                os.replace(before, folder)
            raise
        if synced:
            sync(folder.parent)
        shutil.rmtree(before, ignore_errors=True)
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
    make_folder(lock_file.parent)
    with open(lock_file, "w") as stream:
        end = time.monotonic() + patience
        while not (mine := try_lock(stream.fileno())) and time.monotonic() < end:
            time.sleep(INTERVAL)
        yield mine


def try_lock(handle: int) -> bool:
    """Whether an open file could be locked for this process; closing it frees it.

    Args:
        handle: its descriptor.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def said(error: OSError) -> str:
    """Why the system refused something, in its own words; of a copy of many files, the first of them."""
    named = re.search(r"\[Errno (\d+)\]", str(error))  # a copy of many files keeps texts alone
    number = error.errno or (int(named[1]) if named else 0)
    return os.strerror(number) if number else str(error)


@contextlib.contextmanager
def failing_disk(where: str) -> Iterator[None]:
    """Turns the errors of a full, read-only or broken disk into one sentence, which names no file.

    Args:
        where: first words of the sentence.

    Raises:
        FedMendError: instead of such an OSError. Every other error passes.
    """
    try:
        yield
    except OSError as e:
        if e.errno not in DISK:
            raise
        raise FedMendError(
            f"{where}: expected files that can be read and written, got: {os.strerror(e.errno)}; make room or mend"
            " the disk, and submit the job again"
        ) from None


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
            space = f"{max(1, round(2 * need / 1e6))} MB of free space"
            raise FedMendError(f"{where}: cache_dir: expected {space}, twice what is needed, got less")
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            megabytes = max(1, round(need / 1e6))
            raise FedMendError(f"{where}: cache_dir: expected {megabytes} MB of free space, got a full disk") from None
        if e.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            words = "expected a folder that can be written, got one that is read-only"
            raise FedMendError(f"{where}: cache_dir: {words}") from None
        raise
