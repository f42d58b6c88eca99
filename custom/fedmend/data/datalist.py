"""Datalists: the cases of a site whose annotation is masks.

A split is a section of a Decathlon-style datalist: ``training`` for train, ``validation`` for val, ``test``; each item
names ``image`` (path below the card's ``image_root``), ``label`` (path below the site folder) and optionally
``patient``, a key, ``slices``, the axial slices that are used (without it all that hold tissue), and what the card
names as ``columns``, such as sex or scanner.

MONAI's ``load_decathlon_datalist`` finds the same files. It also takes paths that leave the site's folder, and the same
image twice, and its import costs 6 s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedmend.basics.json_files import read_document
from fedmend.data.card import STUDY, SiteCard, stays_below
from fedmend.data.identity import canonical, is_missing, loose
from fedmend.errors import FedMendError

SECTIONS = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class VolumeItem:
    """One case of a datalist.

    Attributes:
        image: file of the image.
        label: file of the mask.
        name: the image as the datalist names it; stays at the site.
        slices: axial slices that are used; None: all that hold tissue.
        patient: its key; empty: unknown.
        about: field that describes it, such as sex or study → text; the card names them.
    """

    image: Path
    label: Path
    name: str
    slices: tuple[int, ...] | None = None
    patient: str = ""
    about: Mapping[str, str] = field(default_factory=dict, hash=False)


def load_datalist(card: SiteCard, file: str, split: str) -> tuple[VolumeItem, ...]:
    """Reads one section of a datalist.

    Args:
        card: the site's card.
        file: file name below the site folder.
        split: ``train``, ``val`` or ``test``.

    Raises:
        FedMendError: no such file or section, an item that lacks or breaks a field, or two items with the same
            image, or with the same mask and not of one patient.
    """
    where = f"{card.site}: {file}"
    raw = read_document(card.folder / file, where, "below the folder of site.json")
    section = SECTIONS[split]
    listed = raw.get(section) if isinstance(raw, dict) else None
    if not isinstance(listed, list):
        raise FedMendError(f"{where}: expected a list under {section!r}, got none")
    items: list[VolumeItem] = []
    for number, given in enumerate(listed, 1):
        place = f"{where}, {section} item {number}"
        if not isinstance(given, dict):
            raise FedMendError(f"{place}: expected image and label, got another kind of entry")
        paths = {name: _below(given.get(name), f"{place}, field {name}") for name in ("image", "label")}
        slices = slices_of(given, place)
        words = {name: given[name] for name in ("patient", STUDY, *card.columns) if given.get(name) is not None}
        if wrong := [name for name, value in words.items() if type(value) not in (str, int, float)]:
            raise FedMendError(f"{place}, field {wrong[0]}: expected a text or a number, got another type")
        patient = words.pop("patient", None)
        items.append(
            VolumeItem(
                card.image_root / paths["image"],
                card.folder / paths["label"],
                paths["image"],
                slices,
                "" if patient is None else canonical(str(patient)),
                {name: str(value).strip() for name, value in words.items()},
            )
        )
    images: dict[str, int] = {}
    labels: dict[Path, int] = {}
    for number, item in enumerate(items, 1):
        place = f"{where}, {section} item {number}"
        if (other := images.setdefault(item.name, number)) < number:
            raise FedMendError(f"{place}: expected each image once, got that of item {other}")
        if (other := labels.setdefault(item.label, number)) < number:
            check_shared(items[other - 1].patient, item.patient, f"{place}, field label", f"item {other}")
    return tuple(items)


def check_shared(first: str, second: str, where: str, other: str) -> None:
    """Refuses a mask of two images that are not known to be of one patient, as two sequences of an examination are.

    Args:
        first: patient of the item that names the mask first; blank: unknown.
        second: patient of another item that names it.
        where: words that name the latter's label in messages.
        other: words that name the first item.

    Raises:
        FedMendError: the patients differ, or one of them is unknown.
    """
    if is_missing(first) or loose(first) != loose(second):
        expected = "a mask of its own, or that of another image of the same patient"
        raise FedMendError(f"{where}: expected {expected}, got that of {other}")


def slices_of(item: Mapping, where: str) -> tuple[int, ...] | None:
    """The slices that an item of a datalist names, sorted; None: it names none.

    Args:
        item: as the datalist has it.
        where: words that name it in messages.

    Raises:
        FedMendError: they are no different whole numbers from 0.
    """
    slices = item.get("slices")
    if slices is None:
        return None
    whole = isinstance(slices, list) and slices and all(type(s) is int and s >= 0 for s in slices)
    if not (whole and len(set(slices)) == len(slices)):
        raise FedMendError(f"{where}, field slices: expected different slice numbers from 0, got something else")
    return tuple(sorted(slices))


def _below(value: object, where: str) -> str:
    """A relative path that stays below its root."""
    if not isinstance(value, str) or not value:
        raise FedMendError(f"{where}: expected a path, got none")
    if not stays_below(value):
        raise FedMendError(f"{where}: expected a path below its folder, got another")
    return Path(value).as_posix()  # one spelling of each path
