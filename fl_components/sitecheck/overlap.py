"""Whether splits are apart: no image, under any name, and no patient is in two of them."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from fedmend.data.identity import file_key, is_missing, loose, split_frame
from fl_components.sitecheck.site import OK, SKIP, WARN, CheckedSite, Result


def overlap(site: CheckedSite) -> Result:
    """Images and patients in two splits; where patients are unknown, nobody can say that none is in two."""
    if not (site.card and site.samples):
        return Result(SKIP, "needs the tables")
    root, samples = site.card.image_root, site.samples
    images = _in_two([[file_key(root, image) or image for image in names] for names, _ in samples.values()])
    keys = [["" if is_missing(patient) else loose(patient) for patient in patients] for _, patients in samples.values()]
    patients = _in_two(keys)
    # Where one split is all there is, nobody can be in two.
    unknown = sum(not key for key in chain.from_iterable(keys)) if len(samples) > 1 else 0
    details = _twins(site, images)
    parts = [[split_frame(image) for image in names] for names, _ in samples.values()]
    if files := _in_two([[file_key(root, file) or file for file, frame in own if frame] for own in parts]):
        details.append(f"slices or frames of {files} files are in two splits")
    text = f"expected nothing in two splits, got {images} images and {patients} patients"
    if unknown == site.listed():
        text = f"expected nothing in two splits, got {images} images; no patients are named, so that one may be in two"
        text += " of them"
    elif unknown:
        details.append(f"{unknown} of {site.listed()} images name no patient, who may be in two splits")
    return Result(WARN if images or patients or unknown or details else OK, text, details)


def _twins(site: CheckedSite, known: int) -> list[str]:
    """Lines about images whose pixels are those of another one, at the size that was checked.

    Args:
        site: with its data, if they could be opened.
        known: images in two splits by their files.
    """
    if site.data is None:
        return []
    splits = site.loaded()
    keys: Mapping[str, Sequence[str]] = {name: _digests(split) for name, split in splits.items()}
    lines = []
    if (more := _in_two(list(keys.values())) - known) > 0:
        lines.append(f"{more} images are in two splits under different names, with the same pixels")
    for name, own in keys.items():
        count = Counter(own)
        if twice := sum(number - 1 for key, number in count.items() if key):
            lines.append(f"{name}: {twice} images have the pixels of another one{_contradicting(splits[name], own)}")
    return lines


def _contradicting(split: Any, keys: Sequence[str]) -> str:
    """How many of the repeated images have other labels, in words; masks are not compared."""
    if not hasattr(split, "labels"):
        return ""
    labels: dict[str, set[bytes]] = {}
    for key, row in zip(keys, split.labels, strict=True):
        labels.setdefault(key, set()).add(row.tobytes())
    other = sum(len(rows) - 1 for key, rows in labels.items() if key)
    return f", {other} of them with other labels" if other else ""


def _digests(split: Any) -> list[str]:
    """A key of the pixels of each image of a split, or of each volume; blank where all have one value, as air has."""
    images = split.images
    cases = getattr(split, "case", None)
    if cases is None:
        return [_digest(images[i : i + 1]) for i in range(len(images))]
    return [_digest(images[cases == case]) for case in np.unique(cases)]


def _digest(pixels: np.ndarray) -> str:
    if pixels.min() == pixels.max():
        return ""
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).hexdigest()


def _in_two(splits: Sequence[Sequence[Hashable]]) -> int:
    """Number of keys, blank ones aside, that are in two splits or more."""
    splits_of = Counter(chain.from_iterable(set(keys) - {""} for keys in splits))
    return sum(count > 1 for count in splits_of.values())
