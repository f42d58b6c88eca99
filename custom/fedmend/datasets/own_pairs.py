"""Whether the names of images and masks say that a list pairs them as they belong."""

import re
from collections import Counter
from collections.abc import Sequence

_PART = re.compile(r"[^\W\d_]+|\d+")


def mixed_up(images: Sequence[str], masks: Sequence[str], patients: Sequence[str]) -> list[int]:
    """The pairs whose mask has more of its name in common with an image of another patient, as where patients changed
    places in a list. Where masks are named after something else, nothing is known.

    Args:
        images: N paths.
        masks: N paths.
        patients: N keys, blank for unknown.

    Returns:
        Numbers of the pairs.
    """
    holders: dict[str, set[int]] = {}
    for number, image in enumerate(images):
        for part in _parts(image):
            holders.setdefault(part, set()).add(number)
    found = []
    for number, mask in enumerate(masks):
        telling = [holders[part] for part in _parts(mask) if part in holders and len(holders[part]) < len(images)]
        shared = Counter(other for own in telling for other in own)
        most, key = max(shared.values(), default=0), patients[number]
        best = [other for other, count in shared.items() if count == most]
        if best and all(other != number and (not key or patients[other] != key) for other in best):
            found.append(number)
    return found


def _parts(path: str) -> set[str]:
    """Words and numbers of a path; 7 for 007."""
    return {part.lstrip("0") or "0" if part.isdecimal() else part for part in _PART.findall(path.casefold())}
