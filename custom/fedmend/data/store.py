"""The image store: every slice of a site decoded once into one memory-mapped uint8 array.

A store is a folder ``<cache_dir>/stores/<key>`` whose key covers the manifest and the preprocessing, so a change of
either makes a new one. It is built in a temporary folder beside it and renamed when complete: a half-built store is
never seen. Several processes may ask at once; a file lock lets one build while the others wait. A finished store is
only read; one that a power loss has damaged is built again. Stores are limited in number and size: before another is
built, those go that were opened longest ago.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import disk_errors, locked, sweep, whole_folder
from fedmend.basics.parallel import mapped
from fedmend.data.dicom_files import dicom_file
from fedmend.data.raw import UnreadableImage, Window
from fedmend.data.readers import nifti_volume, read_raw, resize
from fedmend.errors import FedMendError

STORE_FORMAT = 5
MOST_STORES = 200  # in a cache_dir
FRESH = 600.0  # seconds for which an opened store stays in any case: its process may not have mapped it yet
MINUTE = 60
CHUNK = 16  # images that a process decodes at a time
LOG = logging.getLogger("fedmend.store")


@dataclass(frozen=True)
class ImageStore:
    """A finished store.

    Attributes:
        images: (N, size, size) uint8, in colour (N, size, size, 3), read-only memory map; unreadable images are zero.
        readable: (N,) bool.
    """

    images: np.ndarray
    readable: np.ndarray


def store_folder(
    cache_dir: Path,
    about: Sequence[object],
    finished: Callable[[Path], Any],
    build: Callable[[Path], None],
    *,
    need: int,
    where: str,
    prefix: str = "",
) -> tuple[Path, Any]:
    """The folder of a store, built first where there is none or a damaged one.

    Args:
        cache_dir: folder for stores; only read when the store exists.
        about: JSON values from which the store's key is made.
        finished: folder → what a whole store tells of itself; None: there is no store, or a damaged one.
        build: fills an empty folder, which takes its place among the stores when it is full.
        need: bytes of the store, for the message of a full disk.
        where: words that name what is stored, for messages.
        prefix: of the folder's name.

    Returns:
        the folder, and what ``finished`` says of it.

    Raises:
        FedMendError: no space on the disk or beside the stores that were opened a moment ago, or what ``build``
            refuses.
    """
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:24]
    folder = Path(cache_dir) / "stores" / f"{prefix}{key}"
    if finished(folder) is None:
        with contextlib.suppress(OSError):  # another process makes room too, or the next line says what is wrong
            _make_room(folder.parent, need, where)
        with disk_errors(where, need, folder), locked(folder.with_suffix(".lock")):
            if finished(folder) is None:  # no other process has built it meanwhile
                if folder.is_dir():
                    shutil.rmtree(folder)  # damaged
                sweep(folder.parent, folder.name)
                with whole_folder(folder) as temporary:
                    build(temporary)
    with contextlib.suppress(OSError):  # a cache that is only read
        os.utime(folder)
    return folder, finished(folder)


def _make_room(stores: Path, need: int, where: str) -> None:
    """Removes the stores that were opened longest ago, until those that stay and one of ``need`` bytes are at most
    :data:`MOST_STORES` and take at most half of the space that there is for them. Who has one open keeps it.

    Raises:
        FedMendError: those that have to stay and the new one would take more than half.
    """
    folders = [f for f in stores.iterdir() if f.is_dir()]
    now = time.time()
    times = [f.stat().st_mtime for f in folders]
    # What a clock that was ahead has left counts as old: it would be fresh until the right clock has come there.
    times = [opened if opened < now + FRESH else 0.0 for opened in times]
    sizes = [sum(part.stat().st_size for part in f.iterdir()) for f in folders]
    known = [*zip(times, sizes, folders, strict=True)]
    left, total = len(known), sum(size for _, size, _ in known)
    space = total + shutil.disk_usage(stores).free
    for opened, size, folder in sorted(known):
        if (left < MOST_STORES and 2 * (total + need) <= space) or opened > now - FRESH:
            break
        with locked(folder.with_suffix(".lock"), patience=0) as alone:
            if alone:
                shutil.rmtree(folder)
                left, total = left - 1, total - size
    if total and 2 * (total + need) > space:  # job after job would halve what is left, and fill the disk in minutes
        raise FedMendError(
            f"{where}: cache_dir: expected image stores that together take at most half of the space for them, got more"
            f" with those opened in the last {FRESH / MINUTE:.0f} minutes; submit the job again later, or make room"
        )


def file_stamp(path: Path) -> tuple:
    """Name, size and time of a file, which change with its content; the name alone where there is none."""
    try:
        known = path.stat()
    except OSError:  # gets its sentence where it is read
        return (str(path),)
    return (str(path), known.st_size, known.st_mtime_ns)


def decode(
    paths: Sequence[Path], window: Window, shape: tuple[int, ...]
) -> tuple[list[np.ndarray | str | None], list[str]]:
    """Images as a store holds them.

    Args:
        paths: of N images, with ``#`` and a number behind a file with several.
        window: see :class:`fedmend.data.card.SiteCard`.
        shape: of each image, (S, S), or (S, S, 3) in colour.

    Returns:
        per path the uint8 image, a reason why it is unreadable, or None when the file is missing; and what was put
        right.
    """
    decoded: list[np.ndarray | str | None] = []
    notes: list[str] = []
    for path in paths:
        try:
            raw = read_raw(path, window, color=len(shape) == 3)
            decoded.append(resize(raw.seen(raw.window), shape[0]))
            notes += raw.notes
        except FileNotFoundError:
            decoded.append(None)
        except UnreadableImage as e:
            decoded.append(str(e))
        except OSError as e:
            decoded.append(f"expected a file that can be opened, got an error ({type(e).__name__})")
    nifti_volume.cache_clear()  # a training process must not hold a volume or film for good
    dicom_file.cache_clear()
    return decoded, notes


def _build(
    folder: Path,
    paths: Sequence[Path],
    window: Window,
    shape: tuple[int, ...],
    where: Callable[[int], str],
    processes: int | None,
) -> dict[int, str]:
    """Writes ``images.u8`` into ``folder`` and returns index → reason for unreadable images."""
    unreadable: dict[int, str] = {}
    counts: Counter[str] = Counter()
    total, done, started, reported = len(paths), 0, time.monotonic(), 0
    with open(folder / "images.u8", "wb") as stream:
        if total:
            os.posix_fallocate(stream.fileno(), 0, total * math.prod(shape))  # a full disk shows here, not half-way
        chunks = [paths[i : i + CHUNK] for i in range(0, total, CHUNK)]
        for chunk, notes in mapped(partial(decode, window=window, shape=shape), chunks, processes=processes):
            counts.update(notes)
            for image in chunk:
                if image is None:
                    raise FedMendError(f"{where(done)}, column image: expected a file below image_root, not found")
                if isinstance(image, str):
                    unreadable[done] = image
                    image = np.zeros(shape, dtype=np.uint8)
                stream.write(image.tobytes())
                done += 1
            if done * 10 // total > reported and time.monotonic() - started > 2:
                reported = done * 10 // total
                LOG.info("image store: %d of %d images read, %.0f s", done, total, time.monotonic() - started)
    for note, count in counts.items():
        LOG.warning("image store: %d of %d images: %s", count, total, note)
    return unreadable


def open_store(
    cache_dir: Path,
    image_root: Path,
    images: Sequence[str],
    *,
    window: Window,
    size: int,
    where: Callable[[int], str],
    color: bool = False,
    max_unreadable: int = 0,
    processes: int | None = None,
) -> ImageStore:
    """Opens the store of a manifest, building it first when there is none.

    The key covers preprocessing, names, sizes and times of the files, so that a changed image makes a new store.

    Args:
        cache_dir: folder for stores; only read when the store exists.
        image_root: folder that ``images`` start from.
        images: N paths.
        window: see :class:`fedmend.data.card.SiteCard`.
        size: edge length in pixels that every slice is resized to.
        where: index → words that name the manifest row, for messages.
        color: keep the colour of pictures.
        max_unreadable: how many unreadable images are tolerated (and left out); more of them is an error.
        processes: decoding processes, at most; None: one per core that this site may use.

    Raises:
        FedMendError: a missing file, more than ``max_unreadable`` unreadable ones, or no space on the disk.
    """
    shape = (size, size, 3) if color else (size, size)
    num_bytes = len(images) * math.prod(shape)
    files = dict.fromkeys(image_root / image.partition("#")[0] for image in images)

    def build(folder: Path) -> None:
        refused = _build(folder, [image_root / image for image in images], window, shape, where, processes)
        _check_unreadable(refused, where, max_unreadable)  # a refused store is not kept: files get mended in place
        about = {"count": len(images), "shape": shape, "unreadable": refused}
        (folder / "meta.json").write_text(json.dumps(about))

    folder, unreadable = store_folder(
        cache_dir,
        [STORE_FORMAT, [*map(file_stamp, files)], list(images), window, shape],
        lambda folder: _finished(folder, num_bytes),
        build,
        need=num_bytes,
        where=where(0).split(" row")[0],
    )
    _check_unreadable(unreadable, where, max_unreadable)
    if unreadable:
        rows = ", ".join(map(where, unreadable))
        LOG.warning("image store: %d unreadable images left out, as max_unreadable allows: %s", len(unreadable), rows)
    readable = np.ones(len(images), dtype=bool)
    readable[list(unreadable)] = False
    if not images:
        return ImageStore(np.zeros((0, *shape), dtype=np.uint8), readable)
    return ImageStore(np.memmap(folder / "images.u8", dtype=np.uint8, mode="r", shape=(len(images), *shape)), readable)


def _finished(folder: Path, num_bytes: int) -> dict[int, str] | None:
    """Index → reason of a whole store's unreadable images; None where there is no store or a damaged one."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if (folder / "images.u8").stat().st_size != num_bytes:
            return None
    except (FileNotFoundError, ValueError):  # ValueError: what does not parse
        return None
    return {int(k): v for k, v in meta["unreadable"].items()}


def _check_unreadable(unreadable: dict[int, str], where: Callable[[int], str], max_unreadable: int) -> None:
    if len(unreadable) > max_unreadable:
        listed = "; ".join(f"{where(i)}: {reason}" for i, reason in list(unreadable.items())[:5])
        more = f" and {len(unreadable) - 5} more" if len(unreadable) > 5 else ""
        raise FedMendError(f"{listed}{more} (max_unreadable allows {max_unreadable}, got {len(unreadable)})")
