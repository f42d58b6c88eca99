"""The ledger of repaired masks: a row per slice in SQLite, the added pixels beside it, and the repaired volumes for people.

A row says how many lesion voxels a slice has in the site's own label file and after the repair. Taking a row out of force,
as :mod:`fedmend.ledger` does, gives the slice its original mask back; label files are never written.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedmend.data.volumes import VolumeSplit, write_repaired
from fedmend.errors import FedMendError
from fedmend.files import write_atomically
from fedmend.ledger import ANY_RULE, LabelLedger, Repairs


class MaskLedger:
    """The mask ledger of one site and run.

    Args:
        path: SQLite file; made when missing. ``masks`` and ``repaired`` are folders beside it.
        split: the training slices.
        classes: the one class.
        site: site name for messages.
        foreground: value of the lesion in label files.

    Raises:
        FedMendError: as :class:`fedmend.ledger.LabelLedger`.
    """

    def __init__(self, path: Path, *, split: VolumeSplit, classes: Sequence[str], site: str, foreground: int = 1):
        self._folder, self._split, self._foreground, self._site = Path(path).parent, split, foreground, site
        counted = [f"{name} voxels" for name in classes]  # what people read beside the numbers
        self._rows = LabelLedger(path, fingerprint=split.fingerprint(), images=split.names, classes=counted, site=site)

    def record(self, rule: str, round_num: int, added: np.ndarray, confidence: np.ndarray) -> None:
        """Records what one rule adds to the masks in one round, in one transaction, and writes the repaired volumes.

        Args:
            rule: the method's rule, e.g. ``fedia.correction``.
            round_num: communication round.
            added: (N, size, size) bool, pixels that become lesion.
            confidence: (N,) float, mean probability of the added pixels of each slice.
        """
        volumes = self._folder / "repaired" / f"{rule}-round-{round_num + 1}"
        shutil.rmtree(volumes, ignore_errors=True)  # of an earlier attempt at this round
        counts = write_repaired(self._split, added, volumes, self._foreground)
        rows = np.flatnonzero(added.any((1, 2)))
        self._file(rule, round_num).parent.mkdir(exist_ok=True)
        # First the pixels: rows without them would be worth nothing.
        pixels = np.packbits(added[rows].reshape(len(rows), added[0].size), axis=1)
        with write_atomically(self._file(rule, round_num)) as temporary, open(temporary, "wb") as stream:
            np.savez_compressed(stream, rows=rows, pixels=pixels)
        repairs = Repairs(rows, np.zeros(len(rows)), counts[rows, 1], confidence[rows])
        self._rows.record(rule, round_num, counts[:, :1], repairs)

    def _file(self, rule: str, round_num: int) -> Path:
        return self._folder / "masks" / f"{rule}-{round_num}.npz"

    def undo(self, *, rule: str = ANY_RULE, from_round: int = 0) -> int:
        """See :meth:`fedmend.ledger.LabelLedger.undo`."""
        return self._rows.undo(rule=rule, from_round=from_round)

    def added(self) -> np.ndarray:
        """(N, size, size) bool: the pixels added by the repairs in force.

        Raises:
            FedMendError: the folder ``masks`` beside the ledger lacks a file.
        """
        size = self._split.masks.shape[1]
        total = np.zeros(self._split.masks.shape, dtype=bool)
        in_force: dict[tuple[str, int], list[int]] = {}
        for sample, _, _, rule, round_num in self._rows.in_force():
            in_force.setdefault((rule, round_num), []).append(sample)
        for (rule, round_num), samples in in_force.items():
            file = self._file(rule, round_num)
            if not file.is_file():
                raise FedMendError(
                    f"{self._site}: label ledger: expected the folder masks beside it with the pixels of round"
                    f" {round_num + 1}, not found"
                )
            with np.load(file) as saved:
                pixels = np.unpackbits(saved["pixels"], axis=1, count=size**2).astype(bool).reshape(-1, size, size)
                chosen = np.isin(saved["rows"], samples)
                total[saved["rows"][chosen]] |= pixels[chosen]
        return total

    def apply(self, masks: np.ndarray) -> np.ndarray:
        """The training target: ``masks`` (N, size, size) with the added pixels; a new bool array."""
        return (masks > 0) | self.added()

    def history(self) -> list[dict]:
        """See :meth:`fedmend.ledger.LabelLedger.history`; ``old`` and ``new`` are lesion voxels of the slice."""
        return self._rows.history()
