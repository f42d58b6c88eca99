"""The ledger of repaired masks: a row per slice and class in SQLite, changed pixels beside it, and repaired volumes for
people.

A row says how many voxels of a class a slice has in the site's own label file and after the repair. Taking a row out
of force, as :mod:`fedmend.repairs.ledger` does, gives the slice its original marks of the class back; label files are
never written. A verdict keeps the pixels that the person saw changed: accepted ones stay changed, whatever becomes of
the repair, and rejected ones are never changed in that way again.
"""

import shutil
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import make_folder, sweep, whole_folder, write_atomically
from fedmend.data.slices import VolumeSplit
from fedmend.data.volumes import ONE_CLASS
from fedmend.errors import WAY_ON, FedMendError
from fedmend.repairs import verdicts as people
from fedmend.repairs.ledger import Entry, Ledger
from fedmend.repairs.repaired_volumes import repaired, write_repaired
from fedmend.repairs.verdicts import ACCEPT, Verdict


def changed_classes(change: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """The class of each pixel that a repair changes.

    Args:
        change: (N, H, W) int8, the class, from 1, that a pixel becomes, -1 where it becomes background, others 0.
        masks: (N, H, W) numbers of classes, the site's own annotation.

    Returns:
        (N, H, W) int: the class that a pixel gets, or the one that it had; the first where it had none.
    """
    return np.where(change < 0, np.maximum(masks, 1), change)


class MaskLedger(Ledger):
    """The mask ledger of one site and run.

    Args:
        path: SQLite file; made when missing. ``masks`` and ``repaired`` are folders beside it.
        split: the training slices.
        classes: C, in the order of their numbers in the masks.
        site: site name for messages.
        values: value in label files → number of its class, from 1, of all C.

    Raises:
        FedMendError: as :class:`fedmend.repairs.ledger.Ledger`.
    """

    _largest = 2**62

    def __init__(
        self,
        path: Path,
        *,
        split: VolumeSplit,
        classes: Sequence[str],
        site: str,
        values: Mapping[int, int] = ONE_CLASS,
    ):
        self._folder, self._split, self._values = Path(path).parent, split, values
        counted = [f"{name} voxels" for name in classes]  # what people read beside the numbers
        super().__init__(path, fingerprint=split.fingerprint(), images=split.names, classes=counted, site=site)

    def record(self, rule: str, round_num: int, change: np.ndarray, confidence: np.ndarray) -> None:
        """Records what one rule changes in the masks in one round, in one transaction, and writes the repaired volumes.

        Args:
            rule: the method's rule, e.g. ``fedia.correction``.
            round_num: communication round.
            change: (N, size, size) int8, number of the class that an unmarked pixel becomes, -1 where a pixel becomes
                background, others 0; or bool, the one class. What is marked never becomes another class.
            confidence: (N, C) float, of one class also (N,): the rule's own measure per slice and class, e.g. the mean
                probability of the added pixels.
        """
        volumes = self._folder / "repaired" / f"{rule}-round-{round_num + 1}"
        shutil.rmtree(volumes, ignore_errors=True)  # of an earlier attempt at this round
        change = change.astype(np.int8, copy=False)
        make_folder(volumes.parent)
        sweep(volumes.parent, volumes.name)
        with whole_folder(volumes) as temporary:
            counts = write_repaired(self._split, change, temporary, self._values)
        changed = changed_classes(change, self._split.masks)
        classes = range(1, len(self._values) + 1)
        rows, of = np.nonzero(np.stack([(changed == c).any((1, 2)) for c in classes], axis=1))
        number = of[:, None, None] + 1
        make_folder(self._file(rule, round_num).parent)
        # First the pixels: rows without them would be worth nothing.
        pixels: dict[str, Any] = {"pixels": _packed(change[rows] == number)}
        if len(self._values) > 1:
            pixels["classes"] = of
        if (removed := (change[rows] < 0) & (changed[rows] == number)).any():
            pixels["removed"] = _packed(removed)
        with write_atomically(self._file(rule, round_num)) as temporary, open(temporary, "wb") as stream:
            np.savez_compressed(stream, rows=rows, **pixels)
        sure = confidence.reshape(len(change), -1)[rows, of]
        self._append(rule, round_num, (rows, of, counts[rows, of, 0], counts[rows, of, 1], sure))

    def _file(self, rule: str, round_num: int) -> Path:
        return self._folder / "masks" / f"{rule}-{round_num}.npz"

    def judge(self, verdict: Verdict, *, seen: str = "") -> Verdict:
        """Writes a person's verdict about the marks of a class in a slice; see :meth:`Ledger.judge`.

        Args:
            verdict: with the pixels that the person saw changed; without any, those that are changed now.
            seen: see there.
        """
        pixels = verdict.pixels or _frozen(self.recorded(verdict.sample, verdict.label_class))
        return super().judge(replace(verdict, pixels=pixels), seen=seen)

    def change(self) -> np.ndarray:
        """(N, size, size) int8: class, from 1, that pixels became by the repairs in force, -1 for background; else 0.

        Where several repairs change a pixel, the one recorded last counts; above all what people accept and reject.

        Raises:
            FedMendError: the folder ``masks`` beside the ledger lacks a file, or one is damaged.
        """
        return self._slices(self._outcome())

    def _combine(self, entries: list[Entry], verdicts: list[Verdict]) -> dict[int, np.ndarray]:
        """Slice number → (size, size) int8 as of :meth:`change`, of the slices that anything changes."""
        found: dict[int, np.ndarray] = {}
        in_force: dict[tuple[str, int], list[tuple[int, int]]] = {}  # in the order in which they were recorded
        for entry in entries:
            in_force.setdefault((entry.rule, entry.round_num), []).append((entry.sample, entry.label_class))
        for (rule, round_num), keys in in_force.items():
            for sample, changed in self._pixels(rule, round_num, keys):
                found[sample] = np.where(changed, changed, found.get(sample, changed))
        for v in people.refusals(verdicts, one_label=False):
            if v.sample in found:
                rejected = self._seen(v)
                found[v.sample][(rejected != 0) & (found[v.sample] == rejected)] = 0
        for sample, accepted in self._accepted(verdicts).items():
            found[sample] = np.where(accepted, accepted, found.get(sample, accepted))
        return found

    def accepted(self) -> np.ndarray:
        """(N, size, size) int8 as of :meth:`change`, of the pixels that people have accepted."""
        return self._slices(self._accepted(self.verdicts()))

    def refused(self) -> np.ndarray:
        """(N, size, size) bool: the pixels of which people have said that they show no structure."""
        found = np.zeros(self._split.masks.shape, dtype=bool)
        for v in people.refusals(self.verdicts(), one_label=False):
            found[v.sample] |= self._seen(v) > 0
        return found & (self.accepted() == 0)

    def _accepted(self, verdicts: list[Verdict]) -> dict[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for v in people.latest(verdicts, one_label=False).values():
            if v.word == ACCEPT:
                accepted = self._seen(v)
                found[v.sample] = np.where(accepted, accepted, found.get(v.sample, accepted))
        return found

    def _seen(self, verdict: Verdict) -> np.ndarray:
        return _numbered(_thawed(verdict.pixels, self._split.masks.shape[1]), verdict.label_class)

    def _slices(self, found: dict[int, np.ndarray]) -> np.ndarray:
        total = np.zeros(self._split.masks.shape, dtype=np.int8)
        for sample, changed in found.items():
            total[sample] = changed
        return total

    def recorded(self, sample: int, label_class: int = 0) -> np.ndarray:
        """(size, size) int8: the change of a class in a slice by the repairs in force, before people had their say.

        Raises:
            FedMendError: as :meth:`change`.
        """
        total = np.zeros(self._split.masks.shape[1:], dtype=np.int8)
        for entry in self.in_force():
            if (entry.sample, entry.label_class) == (sample, label_class):
                for _, changed in self._pixels(entry.rule, entry.round_num, [(sample, label_class)]):
                    total = np.where(changed, changed, total)
        return total

    def _pixels(self, rule: str, round_num: int, keys: Sequence[tuple[int, int]]) -> list[tuple[int, np.ndarray]]:
        file = self._file(rule, round_num)
        if not file.is_file():
            what = f"expected the folder masks beside it with the pixels of round {round_num + 1}"
            raise FedMendError(f"{self._where}: {what}, not found")
        try:
            return _read_pixels(file, keys, self._split.masks.shape[1])
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            what = f"expected the pixels of round {round_num + 1} in the folder masks beside it, got a damaged file"
            raise FedMendError(f"{self._where}: {what}; {WAY_ON}") from None

    def added(self) -> np.ndarray:
        """(N, size, size) bool: the pixels that repairs in force gave a class; otherwise as :meth:`change`."""
        return self.change() > 0

    def judged(self, masks: np.ndarray) -> np.ndarray:
        """``masks`` (N, size, size) with the pixels that people have accepted, and no other repair; uint8."""
        return repaired(masks, self.accepted())

    def apply(self, masks: np.ndarray) -> np.ndarray:
        """The training target: ``masks`` (N, size, size) with the changes in force; of one class bool, else uint8."""
        target = repaired(masks, self.change())
        return target > 0 if len(self._values) == 1 else target


def _read_pixels(file: Path, keys: Iterable[tuple[int, int]], size: int) -> list[tuple[int, np.ndarray]]:
    """Rows that a file changes, out of these samples and classes, and the change of each, (size, size) int8."""
    with np.load(file) as saved:
        rows = saved["rows"]
        classes = saved["classes"] if "classes" in saved else np.zeros_like(rows)
        wanted = set(keys)
        chosen = [key in wanted for key in zip(rows.tolist(), classes.tolist(), strict=True)]
        changed = _unpacked(saved["pixels"][chosen], size).astype(np.int8)
        if "removed" in saved:
            changed -= _unpacked(saved["removed"][chosen], size)
        found = zip(rows[chosen].tolist(), changed, classes[chosen].tolist(), strict=True)
        return [(row, _numbered(part, number)) for row, part, number in found]


def _numbered(change: np.ndarray, label_class: int) -> np.ndarray:
    """The change of a class, 1 where it is added, with its number there, which counts from 1."""
    return np.where(change > 0, np.int8(label_class + 1), change)


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
