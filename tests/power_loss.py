"""A disk that loses power: a real file system in a file, of which a copy holds what was synced and nothing else.

The kernel keeps what a program writes in memory and writes it to the disk (here: to the file) when the program asks
for it. A copy of the file is what a computer finds after a power failure at that moment.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

# No write-back by the clock, and no help of ext4 for programs that replace a file without syncing it.
OPTIONS = "loop,noatime,commit=300,noauto_da_alloc"
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class PowerSupply:
    """Disks for one test.

    Args:
        folder: where their files and mount points are.
    """

    def __init__(self, folder: Path):
        self._folder, self._stack = folder, contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def disk(self, name: str, *, megabytes: int = 32) -> Path:
        """Makes and mounts a disk; returns the folder where it is mounted."""
        image = self._folder / f"{name}.img"
        with open(image, "wb") as stream:
            stream.truncate(megabytes * 2**20)
        _system("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(image))
        return self._mount(image)

    def _mount(self, image: Path) -> Path:
        place = image.with_suffix("")
        place.mkdir()
        _system("mount", "-o", OPTIONS, str(image), str(place))
        self._stack.callback(_system, "umount", str(place))
        return place

    def cut(self, disk: Path) -> Path:
        """What a disk would hold if its power failed now: a copy, mounted beside it. The disk itself goes on."""
        image = Path(tempfile.mktemp(prefix=f"{disk.name}-", suffix=".img", dir=self._folder))
        shutil.copyfile(disk.with_suffix(".img"), image)
        return self._mount(image)


def _system(command: str, *words: str) -> None:
    found = shutil.which(command, path=PATH)
    if found is None:
        raise FileNotFoundError(command)
    subprocess.run([found, *words], check=True, capture_output=True)


@functools.cache
def _hindrance() -> str:
    """Why no disk can be made here; empty where one can."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with PowerSupply(Path(folder)) as supply:
                supply.disk("try", megabytes=4)
        except FileNotFoundError as e:
            return f"no {e}"
        except subprocess.CalledProcessError as e:
            return f"{Path(e.cmd[0]).name}: {e.stderr.decode().strip()}"
    return ""


@pytest.fixture
def power(tmp_path):
    """A :class:`PowerSupply`; skips where nobody may mount a file system in a file."""
    if reason := _hindrance():
        pytest.skip(f"needs root and a loop device with ext4; {reason}")
    with PowerSupply(tmp_path) as supply:
        yield supply
