"""The ledger of repaired masks: a row per slice in SQLite, changed pixels beside it, and repaired volumes for people.

A row says how many lesion voxels a slice has in the site's own label file and after the repair. Taking a row out of
force, as :mod:`fedmend.repairs.ledger` does, gives the slice its original mask back; label files are never
written. A verdict keeps the pixels that the person saw changed: accepted ones stay changed, whatever becomes of the
repair, and rejected ones are never changed in that way again.
"""

import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import make_folder, sweep, whole_folder, write_atomically
from fedmend.data.slices import VolumeSplit
from fedmend.errors import WAY_ON, FedMendError
from fedmend.repairs import verdicts as people
from fedmend.repairs.ledger import Entry, Ledger
from fedmend.repairs.repaired_volumes import write_repaired
from fedmend.repairs.verdicts import ACCEPT, Verdict


class MaskLedger(Ledger):
    """The mask ledger of one site and run.

    Args:
        path: SQLite file; made when missing. ``masks`` and ``repaired`` are folders beside it.
        split: the training slices.
        classes: the one class.
        site: site name for messages.
        foreground: value of the lesion in label files.

    Raises:
        FedMendError: as :class:`fedmend.repairs.ledger.Ledger`.
    """

    def __init__(self, path: Path, *, split: VolumeSplit, classes: Sequence[str], site: str, foreground: int = 1):
        self._folder, self._split, self._foreground = Path(path).parent, split, foreground
        counted = [f"{name} voxels" for name in classes]  # what people read beside the numbers
        super().__init__(path, fingerprint=split.fingerprint(), images=split.names, classes=counted, site=site)

    def record(self, rule: str, round_num: int, change: np.ndarray, confidence: np.ndarray) -> None:
        """Records what one rule changes in the masks in one round, in one transaction, and writes the repaired volumes.

        Args:
            rule: the method's rule, e.g. ``fedia.correction``.
            round_num: communication round.
            change: (N, size, size) int8, pixels that become lesion (1) or background (-1), others 0; or bool, lesion.
            confidence: (N,) float, the rule's own measure per slice, e.g. the mean probability of the added pixels.
        """
        volumes = self._folder / "repaired" / f"{rule}-round-{round_num + 1}"
        shutil.rmtree(volumes, ignore_errors=True)  # of an earlier attempt at this round
        change = change.astype(np.int8, copy=False)
        make_folder(volumes.parent)
        sweep(volumes.parent, volumes.name)
        with whole_folder(volumes) as temporary:
            counts = write_repaired(self._split, change, temporary, self._foreground)
        rows = np.flatnonzero(change.any((1, 2)))
        make_folder(self._file(rule, round_num).parent)
        # First the pixels: rows without them would be worth nothing.
        pixels: dict[str, Any] = {"pixels": _packed(change[rows] > 0)}
        if (removed := change[rows] < 0).any():
            pixels["removed"] = _packed(removed)
        with write_atomically(self._file(rule, round_num)) as temporary, open(temporary, "wb") as stream:
            np.savez_compressed(stream, rows=rows, **pixels)
        self._append(rule, round_num, (rows, np.zeros_like(rows), counts[rows, 0], counts[rows, 1], confidence[rows]))

    def _file(self, rule: str, round_num: int) -> Path:
        return self._folder / "masks" / f"{rule}-{round_num}.npz"

    def judge(self, verdict: Verdict, *, seen: str = "") -> Verdict:
        """Writes a person's verdict about the marks of a slice; see :meth:`Ledger.judge`.

        Args:
            verdict: with the pixels that the person saw changed; without any, those that are changed now.
            seen: see there.
        """
        pixels = verdict.pixels or _frozen(self.recorded(verdict.sample))
        return super().judge(replace(verdict, pixels=pixels), seen=seen)

    def change(self) -> np.ndarray:
        """(N, size, size) int8: pixels made lesion (1) or background (-1) by the repairs in force, others 0.

        Where several repairs change a pixel, the one recorded last counts; above all what people accept and reject.

        Raises:
            FedMendError: the folder ``masks`` beside the ledger lacks a file, or one is damaged.
        """
        return self._slices(self._outcome())

    def _combine(self, entries: list[Entry], verdicts: list[Verdict]) -> dict[int, np.ndarray]:
        """Slice number → (size, size) int8 as of :meth:`change`, of the slices that anything changes."""
        found: dict[int, np.ndarray] = {}
        in_force: dict[tuple[str, int], list[int]] = {}  # in the order in which they were recorded
        for entry in entries:
            in_force.setdefault((entry.rule, entry.round_num), []).append(entry.sample)
        for (rule, round_num), samples in in_force.items():
            for sample, changed in zip(*self._pixels(rule, round_num, samples), strict=True):
                found[sample] = np.where(changed, changed, found.get(sample, changed))
        for v in people.refusals(verdicts, one_label=False):
            if v.sample in found:
                rejected = _thawed(v.pixels, self._split.masks.shape[1])
                found[v.sample][(rejected != 0) & (found[v.sample] == rejected)] = 0
        for sample, accepted in self._accepted(verdicts).items():
            found[sample] = np.where(accepted, accepted, found.get(sample, accepted))
        return found

    def accepted(self) -> np.ndarray:
        """(N, size, size) int8 as of :meth:`change`, of the pixels that people have accepted."""
        return self._slices(self._accepted(self.verdicts()))

    def _accepted(self, verdicts: list[Verdict]) -> dict[int, np.ndarray]:
        last = people.latest(verdicts, one_label=False).values()
        return {v.sample: _thawed(v.pixels, self._split.masks.shape[1]) for v in last if v.word == ACCEPT}

    def _slices(self, found: dict[int, np.ndarray]) -> np.ndarray:
        total = np.zeros(self._split.masks.shape, dtype=np.int8)
        for sample, changed in found.items():
            total[sample] = changed
        return total

    def recorded(self, sample: int) -> np.ndarray:
        """(size, size) int8: the change of a slice by the repairs in force, before people had their say.

        Raises:
            FedMendError: as :meth:`change`.
        """
        total = np.zeros(self._split.masks.shape[1:], dtype=np.int8)
        for entry in self.in_force():
            if entry.sample == sample:
                _, changed = self._pixels(entry.rule, entry.round_num, [sample])
                total = np.where(changed[0], changed[0], total)
        return total

    def _pixels(self, rule: str, round_num: int, samples: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        file = self._file(rule, round_num)
        if not file.is_file():
            what = f"expected the folder masks beside it with the pixels of round {round_num + 1}"
            raise FedMendError(f"{self._where}: {what}, not found")
        try:
            return _read_pixels(file, samples, self._split.masks.shape[1])
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            what = f"expected the pixels of round {round_num + 1} in the folder masks beside it, got a damaged file"
            raise FedMendError(f"{self._where}: {what}; {WAY_ON}") from None

    def added(self) -> np.ndarray:
        """(N, size, size) bool: the pixels made lesion by the repairs in force; otherwise as :meth:`change`."""
        return self.change() > 0

    def apply(self, masks: np.ndarray) -> np.ndarray:
        """The training target: ``masks`` (N, size, size) with the changes in force; a new bool array."""
        change = self.change()
        return (masks > 0) & (change >= 0) | (change > 0)


def _read_pixels(file: Path, samples: Sequence[int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that a file changes, out of these samples, and the change of each, (M, size, size) int8."""
    with np.load(file) as saved:
        chosen = np.isin(saved["rows"], samples)
        changed = _unpacked(saved["pixels"][chosen], size).astype(np.int8)
        if "removed" in saved:
            changed -= _unpacked(saved["removed"][chosen], size)
        return saved["rows"][chosen], changed


def _packed(pixels: np.ndarray) -> np.ndarray:
    """(M, size, size) bool → (M, ceil(size² / 8)) uint8."""
    return np.packbits(pixels.reshape(len(pixels), pixels.shape[1] * pixels.shape[2]), axis=1)


def _unpacked(packed: np.ndarray, size: int) -> np.ndarray:
    """(M, size, size) uint8 of 0 and 1; the inverse of :func:`_packed`."""
    return np.unpackbits(packed, axis=1, count=size**2).reshape(-1, size, size)


def _frozen(change: np.ndarray) -> bytes:
    """The change of a slice (size, size) int8 as bytes."""
    return zlib.compress(_packed(np.stack([change > 0, change < 0])).tobytes())


def _thawed(pixels: bytes, size: int) -> np.ndarray:
    """The inverse of :func:`_frozen`."""
    packed = np.frombuffer(zlib.decompress(pixels), dtype=np.uint8).reshape(2, -1)
    added, removed = _unpacked(packed, size).astype(np.int8)
    return added - removed
