"""The split of a site folder that a model is asked about, read as the model's package says."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedmend.data.card import STUDY, SiteCard, check_classes, load_card
from fedmend.data.datalist import SECTIONS
from fedmend.data.identity import canonical
from fedmend.data.site import Opening, Split, load_split
from fedmend.data.slices import VolumeSplit, load_volume_split
from fedmend.errors import FedMendError
from fedmend.labels import NOT_ANNOTATED, SEGMENTATION
from fedmend.preprocessing import Preprocessing


@dataclass(frozen=True)
class HeldOut:
    """A split and who is in it.

    Attributes:
        card: of the site folder, with the window and colour of the package.
        split: N samples.
        name: of the split.
        differs: what the folder's card says otherwise than the package, in words; empty: nothing.
    """

    card: SiteCard
    split: Split | VolumeSplit
    name: str
    differs: str = ""

    @property
    def unit(self) -> np.ndarray:
        """(N,) number of the image or volume that a sample is of."""
        return unit_of(self.split)

    @property
    def patients_known(self) -> bool:
        """Whether any patient is known."""
        return any(patients_of(self.split))


def open_held_out(
    folder: Path, name: str, kind: str, classes: tuple[str, ...], prepared: Preprocessing, opening: Opening
) -> HeldOut:
    """Opens one split of a site folder.

    Args:
        folder: with ``site.json``.
        name: of the split.
        kind: of the model's labels.
        classes: C names, of the model.
        prepared: how images are read and scaled.
        opening: where and how they are opened.

    Raises:
        FedMendError: another kind of labels or other classes, no such split, or anything that cannot be read.
    """
    site = folder.resolve().name
    card = load_card(folder, site)
    if card.kind != kind:
        raise FedMendError(f"{site}: site.json, field task: expected {kind!r}, as the package, got {card.kind!r}")
    if name not in card.splits or (kind == SEGMENTATION and name not in SECTIONS):
        raise FedMendError(f"{site}: site.json, field splits: expected {name!r}, got {sorted(card.splits)}")
    check_classes(card, classes, "the package")
    pairs = {"window": (card.window, prepared.window), "color": (card.color, prepared.color)}
    differs = [
        f"{what} {own!r} here, {wanted!r} in the package" for what, (own, wanted) in pairs.items() if own != wanted
    ]
    card = replace(card, window=prepared.window, color=prepared.color)
    found: Split | VolumeSplit | None
    if kind == SEGMENTATION:
        found = load_volume_split(card, card.splits[name], name, opening, classes)
    else:
        table = load_split(card, card.splits[name], classes, opening)
        found = replace(table, mean=prepared.pixel_mean, deviation=prepared.pixel_deviation)
    if found is None or not len(found):
        raise FedMendError(f"{site}: {card.splits[name]}: expected samples in the split {name}, got none")
    return HeldOut(card, found, name, "; ".join(differs))


def unit_of(split: Split | VolumeSplit) -> np.ndarray:
    """(N,) int64, for each sample of a split the number of the image or volume that it is of, from 0."""
    return split.case if isinstance(split, VolumeSplit) else np.arange(len(split))


def patients_of(split: Split | VolumeSplit) -> tuple[str, ...]:
    """The patient of each image or volume of a split; empty where it is unknown."""
    return tuple(item.patient for item in split.items) if isinstance(split, VolumeSplit) else split.table.patients


def persons_of(split: Split | VolumeSplit) -> np.ndarray:
    """(M,) int64 number of the patient of each image or volume; one without a patient stands for itself."""
    keys = [patient or f"\0{number}" for number, patient in enumerate(patients_of(split))]
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def labels_of(split: Split | VolumeSplit) -> np.ndarray:
    """(M, C) int8 labels of each image or volume; of a volume whether any slice has the class, -1 where masks do not
    show it."""
    if isinstance(split, Split):
        return split.labels
    labels = np.full((len(split.items), len(split.annotated)), NOT_ANNOTATED, dtype=np.int8)
    for c in np.flatnonzero(split.annotated):
        labels[:, c] = np.bincount(split.case, (split.masks == c + 1).any((1, 2)), minlength=len(labels)) > 0
    return labels


def column_of(split: Split | VolumeSplit, column: str, site: str) -> tuple[str, ...]:
    """What a column of the table, or field of the datalist, says of each of the M images or volumes.

    Raises:
        FedMendError: there is no such column.
    """
    if isinstance(split, VolumeSplit):
        known = {name for item in split.items for name in item.about}
        found = tuple(item.about.get(column, "") for item in split.items)
    else:
        known, found = set(split.table.about), split.table.about.get(column, ())
    if column not in known:
        where = f"{site}: {split.file}" if site else split.file
        raise FedMendError(f"{where}: expected a column {column!r} that site.json lists under columns, got none")
    return found


def studies_of(split: Split) -> np.ndarray | None:
    """(N,) int64 number of the study of each image, -1 where it is unknown; None where no study is known. Tables may
    count the studies of each patient from 1."""
    names = [canonical(name) for name in split.table.about.get(STUDY, ())]
    if not any(names):
        return None
    pairs = [*zip(names, split.table.patients, strict=True)]
    patients: dict[str, set[str]] = {}
    for name, patient in pairs:
        patients.setdefault(name, set()).update({patient} - {""})
    keys = [(name, patient if len(patients[name]) > 1 else "") for name, patient in pairs]
    numbers: dict[tuple[str, str], int] = {}
    found = [numbers.setdefault(key, len(numbers)) if key[0] else NOT_ANNOTATED for key in keys]
    return np.array(found, dtype=np.int64)
