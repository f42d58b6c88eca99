"""Site folders: the site card ``site.json`` and the label tables (one CSV per split) beside it.

A table has the column ``image`` (path below the card's ``image_root``), optionally ``patient``, and then either one
column per annotated class with 1, 0 or blank (``task: multilabel``) or the column ``label`` with a class name or blank
(``task: singlelabel``). Blank means *not annotated*. With ``sample: study`` rows with the same text in the column
``study`` are the slices of one study, which has one label. With ``task: segmentation`` a split is a datalist of
volumes, see :mod:`fedmend.data.datalist`. Every method reads this format; dataset converters write it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmend.basics.checked import FLAG, OBJECT, Check, accepted, checked, number, one_of, taking, that, whole
from fedmend.basics.json_files import read_document
from fedmend.data.raw import WIDEST
from fedmend.errors import FedMendError
from fedmend.labels import KIND_NAMES, SEGMENTATION

CARD_NAME = "site.json"
CARD_FORMAT = 1
STUDY = "study"  # a column that every table may have; and what a sample may be
IMAGE = "image"  # what a sample else is
SPLITS_OF_JOBS = ("train", "val", "test")  # those that jobs open; ``fedmend evaluate`` can name another table
LONGEST_NAME = 200  # characters of a file name
WINDOWS = {"brain": (40.0, 80.0), "subdural": (75.0, 215.0), "bone": (600.0, 2800.0), "lung": (-600.0, 1500.0)}


def stays_below(path: str) -> bool:
    """Whether a path can name a file, and stays below the folder that it starts from."""
    return "\0" not in path and not Path(path).is_absolute() and ".." not in Path(path).parts


def _is_text_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _is_below(name: str) -> bool:  # it stands in messages, which may travel
    return stays_below(name) and len(name) <= LONGEST_NAME and name.isprintable()


def _classes(value: list) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) and name for name in value):
        raise ValueError
    return tuple(value)


def _window(value: Any) -> str | tuple[float, float] | None:
    if value is None or value == "file":
        return value
    if isinstance(value, str):
        return WINDOWS[value]
    centre, width = map(number().read, value)
    if abs(centre) > WIDEST or not 0 < width <= WIDEST:
        raise ValueError
    return centre, width


CLASSES = Check(_classes, "a list of one or more class names")
VALUES = Check(lambda value: tuple(map(whole(1).read, value)), "a list of whole numbers >= 1")
ANNOTATED = Check(
    lambda value: {split: _classes(names) for split, names in value.items()}, "a mapping of split to class names"
)
COLUMNS = Check(lambda value: _classes(value) if value else (), "a list of names of columns")
EACH_ONCE = that(lambda names: len({*names}) == len(names), "each name once")
SPLITS = that(
    lambda value: _is_text_mapping(value) and "train" in value,
    "a mapping of split to file name with at least 'train'",
)
TRUTH = that(_is_text_mapping, "a mapping of split to file name")
BELOW = that(lambda files: all(map(_is_below, files.values())), "file names below the site folder")
WINDOW = Check(_window, f"null, 'file', one of {sorted(WINDOWS)} or [centre, width] in HU")


@dataclass(frozen=True)
class SiteCard:
    """What a site says about its folder.

    Attributes:
        site: name used in messages.
        folder: the folder that holds ``site.json``.
        kind: kind of labels, ``multilabel``, ``singlelabel`` or ``segmentation``; the card's field ``task``.
        classes: all classes of the federation, in the site's own order.
        splits: split name → file name of the CSV or, for segmentation, of the datalist; ``train`` is required.
        truth: split name → the same with complete labels, for evaluation only; training code has no access to it.
        image_root: folder that image paths start from.
        modality: DICOM modality word, for people.
        window: ``None`` (8-bit images, taken as they are), ``"file"`` (the DICOM file's own window) or
            ``(centre, width)`` in HU.
        color: pictures are read in colour; otherwise colour is turned to grey.
        foreground: value of the lesion in label volumes of one class, >= 1, where ``values`` has none.
        values: value of each class in label volumes, in the order of ``classes``; empty: 1, 2, ...
        annotated: split → the classes that its label volumes show; a split that is not named shows all.
        sample: what has a label, ``image`` or ``study``, whose slices are rows of a table.
        columns: further columns of the tables, such as sex or scanner, by which an evaluation may group samples.
        provenance: how the folder was made (source, seed, protocol).
    """

    site: str
    folder: Path
    kind: str = taking(one_of(KIND_NAMES), key="task")
    classes: tuple[str, ...] = taking(CLASSES, EACH_ONCE)
    splits: Mapping[str, str] = taking(SPLITS, BELOW)
    image_root: Path = taking(that(lambda value: isinstance(value, str), "a folder"))
    truth: Mapping[str, str] = taking(TRUTH, BELOW, default_factory=dict)
    modality: str = taking(default="")
    window: str | tuple[float, float] | None = taking(WINDOW, default=None)
    color: bool = taking(FLAG, default=False)
    foreground: int = taking(whole(1), default=1)
    values: tuple[int, ...] = taking(VALUES, EACH_ONCE, default=())
    annotated: Mapping[str, tuple[str, ...]] = taking(ANNOTATED, default_factory=dict)
    sample: str = taking(one_of((IMAGE, STUDY)), default=IMAGE)
    columns: tuple[str, ...] = taking(COLUMNS, default=())
    provenance: Mapping = taking(default_factory=dict)

    @property
    def phantom(self) -> bool:
        """Whether the folder's source says that it is synthetic."""
        return isinstance(self.provenance, Mapping) and str(self.provenance.get("source")).startswith("PHANTOM")

    def label_values(self, split: str, classes: Sequence[str]) -> dict[int, int]:
        """Value in the label volumes of a split → number of the class in ``classes``, from 1.

        Args:
            split: ``train``, ``val`` or ``test``.
            classes: all classes, in any order.
        """
        usual = [self.foreground] if len(self.classes) == 1 else [*range(1, len(self.classes) + 1)]
        shown = self.annotated.get(split, self.classes)
        pairs = zip(self.values or usual, self.classes, strict=True)
        return {value: classes.index(name) + 1 for value, name in pairs if name in shown}


def load_card(folder: Path | str, site: str) -> SiteCard:
    """Reads and checks ``site.json``.

    Args:
        folder: the site folder.
        site: site name for messages.

    Raises:
        FedMendError: no card, not JSON, or a field that is missing, unknown or wrong.
    """
    folder = Path(folder)
    where = f"{site}: {CARD_NAME}"
    raw = accepted(read_document(folder / CARD_NAME, where, "in the folder that data_root names"), [OBJECT], where)
    accepted(raw.get("format"), [that(lambda value: value == CARD_FORMAT, f"{CARD_FORMAT}")], f"{where}, field format")
    fields = {name: value for name, value in raw.items() if name not in ("format", "notes")}
    card = checked(SiteCard, fields, where, site=site, folder=folder)
    named = {"annotated": card.annotated, "truth": card.truth}
    if card.kind == SEGMENTATION:  # whose splits are sections of datalists, which have these names alone
        named["splits"] = card.splits
    for name, by_split in named.items():
        if unknown := sorted(f"{split:.40}" for split in {*by_split} - {*SPLITS_OF_JOBS}):
            raise FedMendError(f"{where}, field {name}: expected train, val or test, got {unknown}")
    if card.values and len(card.values) != len(card.classes):
        raise FedMendError(f"{where}, field values: expected one for each of {len(card.classes)} classes, got others")
    if any(not {*names} <= {*card.classes} for names in card.annotated.values()):
        raise FedMendError(f"{where}, field annotated: expected names of classes, got another")
    return replace(card, image_root=(folder / card.image_root).resolve())


def check_classes(card: SiteCard, classes: Sequence[str], owner: str = "the job") -> None:
    """Refuses a site whose class names are not those of another one (their order may differ).

    Args:
        card: the site's card.
        classes: those that it should have.
        owner: whose these are, in words.

    Raises:
        FedMendError: names the classes that only one side knows.
    """
    missing, extra = sorted(set(classes) - set(card.classes)), sorted(set(card.classes) - set(classes))
    if missing or extra:
        raise FedMendError(
            f"{card.site}: {CARD_NAME}, field classes: expected {owner}'s {sorted(classes)}, got"
            f" {sorted(card.classes)} (missing here: {missing}, unknown to {owner}: {extra})"
        )


def write_card(
    folder: Path,
    *,
    task: str,
    classes: Sequence[str],
    splits: Mapping[str, str],
    image_root: str,
    truth: Mapping[str, str] | None = None,
    modality: str = "",
    window: str | Sequence[float] | None = None,
    color: bool = False,
    foreground: int = 1,
    sample: str = IMAGE,
    values: Sequence[int] = (),
    annotated: Mapping[str, Sequence[str]] | None = None,
    provenance: Mapping | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Writes ``site.json``; fields as in :class:`SiteCard`, ``image_root`` absolute or relative to ``folder``, and
    ``notes``, field → why it is so, for people only."""
    card = {
        "format": CARD_FORMAT,
        "task": task,
        "classes": list(classes),
        "splits": dict(splits),
        "truth": dict(truth or {}),
        "image_root": image_root,
        "modality": modality,
        "window": list(window) if isinstance(window, tuple) else window,
        "color": color,
        "foreground": foreground,
        "sample": sample,
        **({"values": list(values)} if values else {}),
        **({"annotated": {split: list(names) for split, names in annotated.items()}} if annotated else {}),
        "provenance": dict(provenance or {}),
        **({"notes": dict(notes)} if notes else {}),
    }
    (Path(folder) / CARD_NAME).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
