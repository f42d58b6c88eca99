"""The ledger of repaired masks: a row per slice and class in SQLite, changed pixels beside it, and repaired volumes for
people.

A row says how many voxels of a class a slice has in the site's own label file and after the repair. Taking a row out
of force, as :mod:`fedmend.repairs.ledger` does, gives the slice its original marks of the class back; label files are
never written. A verdict keeps the pixels that the person saw changed: accepted ones stay changed, whatever becomes of
the repair, and rejected ones are never changed in that way again. Of several verdicts about a slice each counts for its
own pixels, the latest where they share some: a later repair may change other pixels, and is looked at for itself.
"""

import shutil
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import OWNER, make_folder, sweep, whole_folder, write_atomically
from fedmend.data.slices import VolumeSplit
from fedmend.data.volumes import ONE_CLASS
from fedmend.errors import WAY_ON, FedMendError
from fedmend.repairs import verdicts as people
from fedmend.repairs.ledger import Entry, Ledger
from fedmend.repairs.repaired_volumes import repaired, write_repaired
from fedmend.repairs.verdicts import ACCEPT, REJECT, Verdict

ACCEPTED, REFUSED, LEFT_OPEN = 1, 2, 3  # what people say of a change of a pixel; 0: nothing
SAID = {ACCEPT: ACCEPTED, REJECT: REFUSED}
Changed = tuple[tuple[int, int], np.ndarray]  # slice and class, and its change (size, size) int8


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
        with write_atomically(self._file(rule, round_num), mode=OWNER) as temporary, open(temporary, "wb") as stream:
            np.savez_compressed(stream, rows=rows, **pixels)
        sure = confidence.reshape(len(change), -1)[rows, of]
        self._append(rule, round_num, (rows, of, counts[rows, of, 0], counts[rows, of, 1], sure))

    def _file(self, rule: str, round_num: int) -> Path:
        return self._folder / "masks" / f"{rule}-{round_num}.npz"

    def judge(self, verdict: Verdict, *, seen: str = "") -> Verdict:
        """Writes a person's verdict about the marks of a class in a slice; see :meth:`Ledger.judge`.

        Args:
            verdict: with the pixels that the person saw changed; without any, those of :meth:`to_judge`.
            seen: see there.
        """
        pixels = verdict.pixels or _frozen(self.to_judge(verdict.sample, verdict.label_class))
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
        for (sample, _), changed in self._repairs(entries):
            found[sample] = np.where(changed, changed, found.get(sample, changed))
        for sample, said in self._said(verdicts):
            if sample in found:
                for value, words in said.items():
                    found[sample][(words == REFUSED) & (found[sample] == value)] = 0
            if (accepted := _accepted(said)).any():
                found[sample] = np.where(accepted, accepted, found.get(sample, accepted))
        return found

    def _repairs(self, entries: Iterable[Entry]) -> Iterator[Changed]:
        """Of each repair, in the order of the entries."""
        files: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for entry in entries:
            files.setdefault((entry.rule, entry.round_num), []).append((entry.sample, entry.label_class))
        for (rule, round_num), keys in files.items():
            yield from self._pixels(rule, round_num, keys)

    def accepted(self) -> np.ndarray:
        """(N, size, size) int8 as of :meth:`change`, of the pixels that people have accepted."""
        return self._slices({sample: _accepted(said) for sample, said in self._said(self.verdicts())})

    def refused(self) -> np.ndarray:
        """(N, size, size) bool: the pixels of which people have said that they show no structure."""
        found = np.zeros(self._split.masks.shape, dtype=bool)
        for sample, said in self._said(self.verdicts()):
            for value, words in said.items():
                found[sample] |= (words == REFUSED) & (value > 0)
            found[sample] &= _accepted(said) == 0
        return found

    def _said(self, verdicts: Iterable[Verdict]) -> Iterator[tuple[int, dict[int, np.ndarray]]]:
        """Slice number, and value of a change → (size, size) uint8, what people say of it at each pixel."""
        of_slice: dict[int, list[Verdict]] = {}
        for v in people.counting(verdicts, one_label=False):
            of_slice.setdefault(v.sample, []).append(v)
        for sample, several in of_slice.items():
            said: dict[int, np.ndarray] = {}
            for v in several:
                seen = self._seen(v)
                for value in (v.label_class + 1, -1):
                    if not (place := seen == value).any():
                        continue
                    if v.word == ACCEPT:  # the pixel is this now, and nothing that was accepted before
                        for words in said.values():
                            words[place & (words == ACCEPTED)] = LEFT_OPEN
                    said.setdefault(value, np.zeros(seen.shape, dtype=np.uint8))[place] = SAID.get(v.word, LEFT_OPEN)
            if said:
                yield sample, said

    def _seen(self, verdict: Verdict) -> np.ndarray:
        return _numbered(_thawed(verdict.pixels, self._split.masks.shape[1]), verdict.label_class)

    def _slices(self, found: dict[int, np.ndarray]) -> np.ndarray:
        total = np.zeros(self._split.masks.shape, dtype=np.int8)
        for sample, changed in found.items():
            total[sample] = changed
        return total

    def _recorded(self, keys: Collection[tuple[int, int]]) -> dict[tuple[int, int], np.ndarray]:
        """Slice and class → (size, size) int8: what repairs in force change, whatever people say of it."""
        wanted, found = set(keys), dict[tuple[int, int], np.ndarray]()
        for key, changed in self._repairs(e for e in self.in_force() if (e.sample, e.label_class) in wanted):
            found[key] = np.where(changed, changed, found.get(key, changed))
        return found

    def unseen(self, keys: Collection[tuple[int, int]]) -> dict[tuple[int, int], np.ndarray]:
        """Slice and class → (size, size) int8: what the repairs in force change and nobody has judged.

        Args:
            keys: slices and classes; one that no repair in force changes is not in the answer.

        Raises:
            FedMendError: as :meth:`change`.
        """
        found = self._recorded(keys)
        classes: dict[int, list[int]] = {}
        for sample, label_class in found:
            classes.setdefault(sample, []).append(label_class)
        for sample, said in self._said(v for v in self.verdicts() if v.sample in classes):
            for change in (found[sample, label_class] for label_class in classes[sample]):
                for value, words in said.items():
                    change[(words > 0) & (change == value)] = 0
        return found

    def to_judge(self, sample: int, label_class: int = 0) -> np.ndarray:
        """(size, size) int8: what a verdict about a class in a slice is about, the change that nobody has judged; where
        all is judged, all of it, and where nothing is in force, what the last verdict is about."""
        key = sample, label_class
        if (unseen := self.unseen([key]).get(key)) is not None:
            return unseen if unseen.any() else self._recorded([key])[key]
        last = people.latest(self.verdicts(), one_label=False).get(key)
        return np.zeros(self._split.masks.shape[1:], dtype=np.int8) if last is None else self._seen(last)

    def _pixels(self, rule: str, round_num: int, keys: Sequence[tuple[int, int]]) -> Iterator[Changed]:
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


def _read_pixels(file: Path, keys: Iterable[tuple[int, int]], size: int) -> Iterator[Changed]:
    """Samples and classes that a file changes, out of these, and the change of each, (size, size) int8."""
    with np.load(file) as saved:
        rows = saved["rows"]
        classes = saved["classes"] if "classes" in saved else np.zeros_like(rows)
        wanted = set(keys)
        chosen = [key in wanted for key in zip(rows.tolist(), classes.tolist(), strict=True)]
        added = saved["pixels"][chosen]
        removed = saved["removed"][chosen] if "removed" in saved else np.zeros_like(added)
    places = zip(rows[chosen].tolist(), classes[chosen].tolist(), strict=True)
    return (
        (key, _numbered(_change(planes, size), key[1])) for key, *planes in zip(places, added, removed, strict=True)
    )


def _accepted(said: Mapping[int, np.ndarray]) -> np.ndarray:
    """(size, size) int8: the change of a slice that people have accepted, see :meth:`MaskLedger._said`."""
    found = np.zeros(next(iter(said.values())).shape, dtype=np.int8)
    for value, words in said.items():
        found[words == ACCEPTED] = value
    return found


def _numbered(change: np.ndarray, label_class: int) -> np.ndarray:
    """The change of a class, 1 where it is added, with its number there, which counts from 1."""
    return np.where(change > 0, np.int8(label_class + 1), change)


def _packed(pixels: np.ndarray) -> np.ndarray:
    """(M, size, size) bool → (M, ceil(size² / 8)) uint8."""
    return np.packbits(pixels.reshape(len(pixels), pixels.shape[1] * pixels.shape[2]), axis=1)


def _change(packed: Any, size: int) -> np.ndarray:
    """(size, size) int8: 1 where pixels are added, -1 where they are removed; both as of :func:`_packed`."""
    added, removed = np.unpackbits(np.stack(packed), axis=1, count=size**2).reshape(-1, size, size).astype(np.int8)
    return added - removed


def _frozen(change: np.ndarray) -> bytes:
    """The change of a slice (size, size) int8 as bytes."""
    return zlib.compress(_packed(np.stack([change > 0, change < 0])).tobytes())


def _thawed(pixels: bytes, size: int) -> np.ndarray:
    """The inverse of :func:`_frozen`."""
    return _change(np.frombuffer(zlib.decompress(pixels), dtype=np.uint8).reshape(2, -1), size)
