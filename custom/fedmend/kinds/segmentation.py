"""One mask per volume, slice by slice: lesion or background, or several structures of which a site may mark some.

Predictions become sums of Dice over slices and volumes, in millionths so that they are whole numbers, and voxel counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from fedmend.data.card import SiteCard, check_classes
from fedmend.data.datalist import SECTIONS, load_datalist
from fedmend.data.site import Opening
from fedmend.data.slices import VolumeData, VolumeSplit, load_complete_masks, load_volumes
from fedmend.data.volumes import read_pair
from fedmend.errors import FedMendError
from fedmend.kinds.base import Kind
from fedmend.labels import SEGMENTATION
from fedmend.learning.inference import infer_classes, infer_structures
from fedmend.method import Site
from fedmend.repairs.mask_ledger import MaskLedger, changed_classes

DICE_UNIT = 1_000_000  # whole numbers per Dice of 1
# Columns of the counts: slices with lesion, their Dice, volumes with lesion, their Dice, voxels.
SEGMENTATION_COUNTS = ("slices", "slice_dice", "volumes", "volume_dice", "hits", "false_alarms", "misses")


class Segmentation(Kind):
    """One mask per volume. A volume that cannot be read always stops the site: volumes are few."""

    name = SEGMENTATION
    unit = "pixels"
    sample = "volumes"
    check_size = 256  # small lesions would vanish on smaller slices
    best_metric = "dice"
    lacking = "no slice with a lesion"
    counts_words = f"(C, {len(SEGMENTATION_COUNTS)})"

    def load(self, card: SiteCard, classes: Sequence[str], opening: Opening) -> VolumeData:
        return load_volumes(card, classes, opening)

    def open_ledger(self, path: Path, card: SiteCard, data: VolumeData) -> MaskLedger:
        values = card.label_values("", data.classes)
        return MaskLedger(path, split=data.train, classes=data.classes, site=card.site, values=values)

    def load_truth(self, card: SiteCard, data: VolumeData) -> np.ndarray | None:
        return load_complete_masks(card, data.train, data.classes)

    def describe(self, card: SiteCard, data: VolumeData) -> list[str]:
        lines = []
        for name, split in {"train": data.train, **data.evaluation}.items():
            for number, what in enumerate(data.classes, 1):
                of, word = ("", "lesion") if len(data.classes) == 1 else (f", {what}", "it")
                if not split.annotated[number - 1]:
                    lines.append(f"{name}{of}: not annotated here")
                    continue
                marked = (split.masks == number).any((1, 2))
                volumes = f"{len(split.items)} volumes, {len(np.unique(split.case[marked]))} with {word}"
                lines.append(f"{name}{of}: {volumes}; {len(split)} slices, {marked.sum()} with {word}")
        window = "none, grey values are scaled volume by volume"
        if card.window is not None:
            window = "centre {:g} HU, width {:g} HU".format(*card.window)
        return [*lines, f"window: {window}"]

    def positives(self, data: VolumeData) -> np.ndarray:
        masks = data.train.masks
        return np.array([(masks == number).any((1, 2)).sum() for number in range(1, len(data.classes) + 1)], np.int64)

    def census_extras(self, card: SiteCard) -> Mapping[str, np.ndarray]:
        """``lesions`` (2,) int64: those in the site's masks and in complete ones, where a converter removed some."""
        made = card.provenance.get("site") if isinstance(card.provenance, Mapping) else None
        known = [made.get(name) if isinstance(made, Mapping) else None for name in ("kept_lesions", "lesions")]
        return {"lesions": np.array(known, dtype=np.int64)} if all(type(v) is int for v in known) else {}

    def scored(self, model: nn.Module, split: VolumeSplit, site: Site) -> np.ndarray:
        classes = range(1, len(split.annotated) + 1)
        pixels = np.zeros((len(split), len(classes), 3), dtype=np.int64)
        for index, found in infer_classes(model, split, site):
            for c in classes:
                pixels[index, c - 1] = slice_pixels(found == c, split.masks[index] == c)
        return pixels

    def count(self, scored: np.ndarray, split: VolumeSplit, among: np.ndarray | None = None) -> np.ndarray:
        chosen = slice(None) if among is None else among
        hits, predicted, true = np.moveaxis(scored[chosen], 2, 0)
        classes = range(len(split.annotated))
        counts = [segmentation_counts(hits[:, c], predicted[:, c], true[:, c], split.case[chosen]) for c in classes]
        return np.concatenate(counts) * np.array(split.annotated)[:, None]

    def repairs(self, site: Site, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
        change, classes = site.ledger.change(), len(site.data.classes)
        some = change.any() or site.ledger.in_force()  # all of them may be rejected
        return mask_repair_counts(change, site.data.train.masks, truth, classes) if some else {}

    def opinions(self, model: nn.Module, site: Site) -> np.ndarray:
        train, change = site.data.train, site.ledger.change()
        found = np.zeros((len(train), len(site.data.classes)), dtype=np.float32)
        for index, probability in infer_structures(model, train, site):
            of = changed_classes(change[index], train.masks[index])
            for c in range(found.shape[1]):
                changed, p = of == c + 1, probability[:, c]
                wrong = np.where(change[index] > 0, 1 - p, p) * changed
                found[index, c] = wrong.sum((1, 2)) / np.maximum(changed.sum((1, 2)), 1)
        return found

    def gallery(self, site: Site, truth: np.ndarray | None, *, phantom: bool) -> str:
        from fedmend.repairs.gallery import gallery_page

        train = site.data.train
        return gallery_page(train, site.ledger.apply(train.masks), truth, phantom=phantom)

    def label_counts(self, card: SiteCard, classes: Sequence[str]) -> np.ndarray:
        """Of volumes: all are annotated, positive are those with any lesion in the mask; no file says what it lacks."""
        check_classes(card, classes)
        file = card.splits["train"]
        items = load_datalist(card, file, "train")
        where = f"{card.site}: {file}, {SECTIONS['train']} item"
        values, marked = card.label_values("train", classes), np.zeros(len(classes), dtype=np.int64)
        for number, item in enumerate(items, 1):  # the label stands in for the image, which need not be opened
            mask = read_pair(replace(item, image=item.label), f"{where} {number}", values)[1]
            marked += np.isin(np.arange(1, len(classes) + 1), mask)
        shown = np.isin(np.arange(1, len(classes) + 1), [*values.values()])
        return np.stack([len(items) * shown, marked, len(items) * ~shown]).astype(np.int64)

    def counts_shape(self, num_classes: int) -> tuple[int, ...]:
        return (len(SEGMENTATION_COUNTS),)

    def parts(self, counts: np.ndarray) -> list[np.ndarray]:
        return [counts[c, [column]] for c in range(len(counts)) for column in (0, 2)]

    def check_counts(self, counts: np.ndarray, num_classes: int, samples: int, where: str) -> None:
        known = counts.shape == (num_classes, *self.counts_shape(num_classes))
        if known and any(int(row[i + 1]) > DICE_UNIT * int(row[i]) for row in counts for i in (0, 2)):
            raise FedMendError(f"{where}: expected Dice sums of at most one per sample, got more")
        super().check_counts(counts, num_classes, samples, where)

    def metrics(self, counts: np.ndarray, chosen_on: np.ndarray | None = None) -> dict:
        return segmentation_metrics(counts)  # no intervals: of few volumes they would tell the Dice of each patient

    def few(self, counts: np.ndarray, fewest: int) -> np.ndarray:
        volumes = counts[:, SEGMENTATION_COUNTS.index("volumes")]
        return (volumes > 0) & (volumes < fewest)

    def choosers(self, counts: np.ndarray) -> np.ndarray:
        return counts[:, SEGMENTATION_COUNTS.index("slices")] > 0  # each slice has a Dice of its own

    def repairable(self, annotated: np.ndarray, positives: np.ndarray) -> np.ndarray:
        return np.ones(len(annotated), dtype=bool)  # what is annotated is repaired

    def row_names(self, classes: Sequence[str]) -> tuple[str, ...]:
        return ("background", *classes)


def slice_pixels(found: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """(B, 3) int64 of (B, H, W) bool predictions and (B, H, W) masks: pixels that are lesion in both, in the
    prediction, and in the mask."""
    return np.stack([(found & (masks > 0)).sum((1, 2)), found.sum((1, 2)), masks.sum((1, 2), dtype=np.int64)], axis=1)


def segmentation_counts(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray, case: np.ndarray) -> np.ndarray:
    """What a site sends about a split of volumes.

    Args:
        hits: (N,) int, pixels of each slice that are lesion in the prediction and in the mask.
        predicted: (N,) int, pixels that are lesion in the prediction.
        true: (N,) int, pixels that are lesion in the mask.
        case: (N,) int, the volume of each slice.

    Returns:
        (1, 7) int64, columns as in ``SEGMENTATION_COUNTS``. Dice 2|P∩G| / (|P| + |G|) of slices and volumes whose mask
        has a lesion; false alarms of the others count in the voxels, and in the Dice of their volume.
    """
    volumes = [np.bincount(case, weights=value).astype(np.int64) for value in (hits, predicted, true)]
    row = []
    for overlap, found, wanted in ((hits, predicted, true), volumes):
        with_lesion = wanted > 0
        dice = 2 * overlap[with_lesion] / (found + wanted)[with_lesion]
        row += [int(with_lesion.sum()), int(np.rint(dice * DICE_UNIT).sum())]
    row += [int(hits.sum()), int((predicted - hits).sum()), int((true - hits).sum())]
    return np.array([row], dtype=np.int64)


def segmentation_metrics(counts: np.ndarray) -> dict:
    """Dice, precision and recall of merged counts.

    Args:
        counts: (C, 7) int64, the sum over sites of :func:`segmentation_counts`.

    Returns:
        ``per_class``: dice (mean over the slices with lesion), volume_dice (mean over the volumes with lesion),
        precision and recall of lesion voxels → C floats, None where nothing is measured; ``macro``: their means;
        ``positives``: C slices with lesion.
    """
    column = dict(zip(SEGMENTATION_COUNTS, counts.T.astype(float), strict=True))
    parts = {
        "dice": (column["slice_dice"] / DICE_UNIT, column["slices"]),
        "volume_dice": (column["volume_dice"] / DICE_UNIT, column["volumes"]),
        "precision": (column["hits"], column["hits"] + column["false_alarms"]),
        "recall": (column["hits"], column["hits"] + column["misses"]),
    }
    per_class = {
        name: [float(a / b) if b else None for a, b in zip(above, below, strict=True)]
        for name, (above, below) in parts.items()
    }
    known = {name: [v for v in values if v is not None] for name, values in per_class.items()}
    return {
        "per_class": per_class,
        "macro": {name: float(np.mean(values)) if values else None for name, values in known.items()},
        "positives": counts[:, 0].tolist(),
    }


def mask_repair_counts(
    change: np.ndarray, masks: np.ndarray, complete: np.ndarray | None, classes: int = 1
) -> Mapping[str, np.ndarray]:
    """:func:`fedmend.kinds.labels.repair_counts` of masks.

    Args:
        change: (N, H, W) int8, the class, from 1, that repairs gave pixels, -1 where they became background, others 0.
        masks: (N, H, W) numbers of classes, the site's own annotation.
        complete: (N, H, W) the same of complete masks, or None where they are unknown.
        classes: C.

    Returns:
        positive, negative (C,) int64, pixels that got and lost a class against the site's own annotation, and untagged,
        0; with complete masks also correct_positive and correct_negative, those of them that have it and do not have it
        there, and missing, the pixels of a class that the site's own annotation lacks.
    """
    counts: dict[str, list[int]] = {}
    for c in range(1, classes + 1):
        added, removed = (change == c) & (masks == 0), (change < 0) & (masks == c)
        found = {"positive": added.sum(), "negative": removed.sum(), "untagged": 0}
        if complete is not None:
            there = complete == c
            found |= {
                "correct_positive": (added & there).sum(),
                "correct_negative": (removed & ~there).sum(),
                "missing": (there & (masks == 0)).sum(),
            }
        for name, value in found.items():
            counts.setdefault(name, []).append(int(value))
    return {name: np.array(values, dtype=np.int64) for name, values in counts.items()}
