"""Copies of DICOM images: exports of archives hold some twice, in other folders or coded otherwise."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fedmend.data.dicom_files import no_warnings, open_dicom


def copies_in(images: Sequence[tuple[str, str]], folder: Path) -> tuple[set[int], int]:
    """Which images are copies of an earlier one: the same SOPInstanceUID, frame and pixels.

    Args:
        images: SOPInstanceUID, or more that copies share, blank if unknown; path below ``folder``, with ``#frame`` in a
            multi-frame file.
        folder: where they lie.

    Returns:
        Numbers of the copies; how many images have the UID and frame of another one, but other pixels.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for number, (uid, image) in enumerate(images):
        if uid:
            groups.setdefault((uid, image.partition("#")[2]), []).append(number)
    copies, others, digests = set(), 0, dict[str, str]()
    for group in groups.values():
        seen = set[str]()
        for number in group if len(group) > 1 else ():
            name = images[number][1].partition("#")[0]
            digest = digests[name] = digests.get(name) or _digest(folder / name)
            copies |= {number} if digest in seen else set()
            seen.add(digest)
        others += max(0, len(seen) - 1)
    return copies, others


@no_warnings()
def _digest(path: Path) -> str:
    """Of the pixels of a file, however they are coded; of its bytes, if they cannot be read."""
    try:
        content = open_dicom(path).pixel_array.tobytes()
    except Exception:  # pydicom raises many types for a damaged file
        content = path.read_bytes()
    return hashlib.sha256(content).hexdigest()
