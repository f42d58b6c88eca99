"""Site folders: the site card ``site.json`` and the label tables (one CSV per split) beside it.

A table has the column ``image`` (path below the card's ``image_root``), optionally ``patient``, and then either one
column per annotated class with 1, 0 or blank (``task: multilabel``) or the column ``label`` with a class name or blank
(``task: singlelabel``). Blank means *not annotated*. With ``task: segmentation`` a split is a datalist of volumes, see
:mod:`fedmend.data.datalist`. Every method reads this format; dataset converters write it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedmend.basics.json_files import read_json
from fedmend.data.raw import WIDEST
from fedmend.errors import FedMendError
from fedmend.labels import KIND_NAMES

CARD_NAME = "site.json"
CARD_FORMAT = 1
LONGEST_NAME = 200  # characters of a file name
WINDOWS = {"brain": (40.0, 80.0), "subdural": (75.0, 215.0), "bone": (600.0, 2800.0), "lung": (-600.0, 1500.0)}


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
        foreground: value of the lesion in label volumes, >= 1.
        provenance: how the folder was made (source, seed, protocol).
    """

    site: str
    folder: Path
    kind: str
    classes: tuple[str, ...]
    splits: Mapping[str, str]
    image_root: Path
    truth: Mapping[str, str] = field(default_factory=dict)
    modality: str = ""
    window: str | tuple[float, float] | None = None
    color: bool = False
    foreground: int = 1
    provenance: Mapping = field(default_factory=dict)

    @property
    def phantom(self) -> bool:
        """Whether the folder's source says that it is synthetic."""
        return isinstance(self.provenance, Mapping) and str(self.provenance.get("source")).startswith("PHANTOM")


def _type(value) -> str:
    """A refused value of the card in words that cannot hold patient data."""
    return "nothing" if value is None else f"another {type(value).__name__}"


def _parse_window(value, where: str):
    if value is None or value == "file":
        return value
    if isinstance(value, str) and value in WINDOWS:
        return WINDOWS[value]
    if isinstance(value, list) and len(value) == 2 and all(_is_number(v) for v in value) and value[1] > 0:
        return (float(value[0]), float(value[1]))
    raise FedMendError(
        f"{where}, field window: expected null, 'file', one of {sorted(WINDOWS)} or [centre, width] in HU,"
        f" got {_type(value)}"
    )


def _is_number(value) -> bool:
    return isinstance(value, int | float) and abs(value) <= WIDEST


def stays_below(path: str) -> bool:
    """Whether a path stays below the folder that it starts from."""
    return not Path(path).is_absolute() and ".." not in Path(path).parts


def _is_text_mapping(value) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def load_card(folder: Path | str, site: str) -> SiteCard:
    """Reads and checks ``site.json``.

    Args:
        folder: the site folder.
        site: site name for messages.

    Raises:
        FedMendError: no card, not JSON, or a field that is missing or wrong.
    """
    folder = Path(folder)
    where = f"{site}: {CARD_NAME}"
    raw = _read_card(folder, where)
    if raw.get("task") not in KIND_NAMES:
        raise FedMendError(f"{where}, field task: expected one of {list(KIND_NAMES)}, got {_type(raw.get('task'))}")
    classes = raw.get("classes")
    if not isinstance(classes, list) or not classes or not all(isinstance(c, str) and c for c in classes):
        raise FedMendError(f"{where}, field classes: expected a list of one or more class names, got {_type(classes)}")
    if len(set(classes)) != len(classes):
        raise FedMendError(f"{where}, field classes: expected each name once, got {classes!r}")
    splits, truth = raw.get("splits"), raw.get("truth", {})
    _check_files(splits, truth, where)
    if not isinstance(raw.get("color", False), bool):
        raise FedMendError(f"{where}, field color: expected true or false, got {_type(raw['color'])}")
    foreground = raw.get("foreground", 1)
    if type(foreground) is not int or foreground < 1:
        raise FedMendError(f"{where}, field foreground: expected a whole number from 1, got {_type(foreground)}")
    if not isinstance(raw.get("image_root"), str):
        raise FedMendError(f"{where}, field image_root: expected a folder, got {_type(raw.get('image_root'))}")
    return SiteCard(
        site=site,
        folder=folder,
        kind=raw["task"],
        classes=tuple(classes),
        splits=splits,
        truth=truth,
        image_root=(folder / raw["image_root"]).resolve(),
        modality=raw.get("modality", ""),
        window=_parse_window(raw.get("window"), where),
        color=raw.get("color", False),
        foreground=foreground,
        provenance=raw.get("provenance", {}),
    )


def _read_card(folder: Path, where: str) -> dict:
    try:
        raw = read_json(folder / CARD_NAME)
    except (FileNotFoundError, IsADirectoryError):
        raise FedMendError(f"{where}: expected in the folder that data_root names, not found") from None
    except ValueError:
        raise FedMendError(f"{where}: expected JSON, got a file that does not parse") from None
    if not isinstance(raw, dict) or raw.get("format") != CARD_FORMAT:
        got = _type(raw.get("format") if isinstance(raw, dict) else raw)
        raise FedMendError(f"{where}, field format: expected {CARD_FORMAT}, got {got}")
    return raw


def _check_files(splits: object, truth: object, where: str) -> None:
    if not _is_text_mapping(splits) or "train" not in splits:
        raise FedMendError(
            f"{where}, field splits: expected a mapping of split to file name with at least 'train', got"
            f" {_type(splits)}"
        )
    if not _is_text_mapping(truth):
        raise FedMendError(f"{where}, field truth: expected a mapping of split to file name, got {_type(truth)}")
    for name in (*splits.values(), *truth.values()):  # they stand in messages, which may travel
        if not stays_below(name) or len(name) > LONGEST_NAME or not name.isprintable():
            raise FedMendError(
                f"{where}, fields splits and truth: expected file names below the site folder, got another"
            )


def check_classes(card: SiteCard, job_classes: Sequence[str]) -> None:
    """Refuses a site whose class names are not the job's (their order may differ).

    Raises:
        FedMendError: names the classes that only one side knows.
    """
    missing, extra = sorted(set(job_classes) - set(card.classes)), sorted(set(card.classes) - set(job_classes))
    if missing or extra:
        raise FedMendError(
            f"{card.site}: {CARD_NAME}, field classes: expected the job's {sorted(job_classes)}, got"
            f" {sorted(card.classes)} (missing here: {missing}, unknown to the job: {extra})"
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
        "provenance": dict(provenance or {}),
        **({"notes": dict(notes)} if notes else {}),
    }
    (Path(folder) / CARD_NAME).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
