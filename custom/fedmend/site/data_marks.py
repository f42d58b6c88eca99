"""Whether a run still sees the data that it began with: a random mark for what each split holds.

The site notes in its state which digest got which mark, and tells the server the marks alone, which are drawn and say
nothing about the data. The server keeps them in the checkpoint: another mark is other data, and earlier data that come
back bring their mark back. The digests are of what is trained and evaluated on, not of sizes and times of files: a
backup that is put back, or a folder that is mounted elsewhere, is the same data. Reading them takes a job once 2 s a GB
of decoded images.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmend.basics.state import StateStore

NOTED = "data_marks"


def data_marks(state: StateStore, splits: Mapping[str, Any]) -> dict[str, str]:
    """The mark of what each split holds now, drawn where it is new to the run.

    Args:
        state: of the run at the site.
        splits: name → :class:`fedmend.data.site.Split` or :class:`fedmend.data.slices.VolumeSplit`.

    Returns:
        name → 32 hexadecimal digits.
    """
    noted, marks = state.load(NOTED, {}), {}
    for name, split in splits.items():
        marks[name] = noted.setdefault(name, {}).setdefault(_digest(split), secrets.token_hex(16))
    state.save(NOTED, noted)
    return marks


def _digest(split: Any) -> str:
    """SHA-256 over names, labels or masks, and decoded images."""
    digest = hashlib.sha256(split.fingerprint().encode())
    digest.update(np.ascontiguousarray(split.images).data)
    return digest.hexdigest()
