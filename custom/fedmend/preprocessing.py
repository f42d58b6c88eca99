"""How a site makes of a file what the network sees, in words that both sides speak: told at the census, kept in the run
folder, and in the package of the model, so that whoever uses the model prepares images as they were in training."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmend.basics.checked import FLAG, Check, number, one_of, taking, that
from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field, check_fields
from fedmend.labels import SEGMENTATION

# Words of DICOM that may be told; any other word of a card stays at the site as "".
MODALITIES = ("", "CT", "MR", "CR", "DX", "RG", "MG", "US", "XC", "GM", "SM", "OP", "ES", "PT", "NM", "XA", "RF")
NO_WINDOW, OWN_WINDOW = (0.0, 0.0), (0.0, -1.0)  # centre and width that mean null and "file"
# The way in which readers and stores make pixels of a file; raised whenever the same file gives others.
READER = 3
ORIENTATION = "as a radiologist sees it: front or head up, the patient's right on the left"
OF_VOLUMES = "axial slices: front up, columns from the patient's left to the right"
_RISK = "none: a setting, not made from images"
FIELDS: Mapping[str, Field] = {
    "window": Field((2,), "float64", -UNBOUNDED, UNBOUNDED, "centre and width of the grey values, or none", _RISK),
    "color": Field((), "bool", 0, 1, "whether pictures are read in colour", _RISK),
    "image_size": Field((), "int64", 32, 2048, "edge length in pixels, as the job says", _RISK),
    "study_slices": Field((), "int64", 0, 512, "slices of a study that the network sees, as the job says", _RISK),
    "spacing": Field((3,), "float64", 0, UNBOUNDED, "mm between voxels, as the job says; 0: slices as they are", _RISK),
    "patch": Field((3,), "int64", 0, 2048, "voxels that the network sees at once, as the job says", _RISK),
    "pixel_mean": Field((3,), "float64", 0, 1, "by which pixels are scaled, as the job says", _RISK),
    "pixel_deviation": Field((3,), "float64", 0, UNBOUNDED, "by which pixels are scaled, as the job says", _RISK),
    "modality": Field((), "int64", 0, len(MODALITIES) - 1, "DICOM's word, as a number of a fixed list", _RISK),
}


def _window(value: Any) -> str | tuple[float, float] | None:
    if value is None or value == "file":
        return value
    centre, width = map(number().read, value)
    if not width > 0:
        raise ValueError
    return centre, width


def _three(value: Any) -> tuple[float, ...]:
    red, green, blue = map(number(">= 0", lambda v: v >= 0).read, value)
    return red, green, blue


def _spacing(value: Any) -> tuple[float, ...]:
    return _none_or_three(value, number("> 0", lambda v: v > 0))


def _patch(value: Any) -> tuple[int, ...]:
    return _none_or_three(value, _size("patch", 1))


def _size(name: str, least: int) -> Check:
    """Takes no number that a site could not tell either: a package of somebody else may ask for all of the memory."""
    most = _most(name)
    return that(lambda value: type(value) is int and least <= value <= most, f"a whole number from {least} to {most}")


def _most(name: str) -> int:
    return int(FIELDS[name].high)


def _none_or_three(value: Any, check: Check) -> tuple:
    found = tuple(map(check.read, value))
    if len(found) not in (0, 3):
        raise ValueError
    return found


@dataclass(frozen=True)
class Preprocessing:
    """From a file to the network's input.

    Attributes:
        window: as in :class:`fedmend.data.card.SiteCard`: None, ``"file"`` or (centre, width).
        color: pictures are read in colour.
        image_size: edge length in pixels that every image is resized to.
        pixel_mean: of each colour, 0 to 1; of volumes, which are not scaled, 0.
        pixel_deviation: of each colour; of volumes 1.
        modality: DICOM's word, or "" where it is unknown; not part of what is done with a file.
        study_slices: slices of a study that the network sees, evenly spread; 0: it sees an image.
        spacing: mm along X, Y, Z that volumes are resampled to; empty: it sees slices as they are.
        patch: rows, columns and slices of such a volume that it sees at once.
    """

    window: str | tuple[float, float] | None = taking(Check(_window, "null, 'file' or [centre, width]"))
    color: bool = taking(FLAG)
    image_size: int = taking(_size("image_size", 1))
    pixel_mean: tuple[float, ...] = taking(Check(_three, "three numbers"))
    pixel_deviation: tuple[float, ...] = taking(Check(_three, "three numbers"))
    modality: str = taking(one_of(MODALITIES), default="")
    study_slices: int = taking(_size("study_slices", 0), default=0)
    spacing: tuple[float, ...] = taking(Check(_spacing, "no number or three above 0"), default=())
    patch: tuple[int, ...] = taking(Check(_patch, f"no number or three from 1 to {_most('patch')}"), default=())

    def told(self) -> dict[str, np.ndarray]:
        """Name in :data:`FIELDS` → array, as a site tells it at the census."""
        window = self.window if isinstance(self.window, tuple) else OWN_WINDOW if self.window else NO_WINDOW
        values = {**vars(self), "window": window, "modality": MODALITIES.index(self.modality)}
        values |= {name: values[name] or (0, 0, 0) for name in ("spacing", "patch")}
        return {name: np.array(values[name], dtype=field.dtype) for name, field in FIELDS.items()}

    def described(self) -> dict[str, Any]:
        """Name → value of JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @property
    def steps(self) -> dict[str, Any]:
        """What is done with a file: :meth:`described` without the modality."""
        return {name: value for name, value in self.described().items() if name != "modality"}

    def of_package(self, kind: str) -> dict[str, Any]:
        """:meth:`described` with the reader, the orientation of the images and a digest of it all, for data of a
        ``kind``."""
        more = {"orientation": OF_VOLUMES if kind == SEGMENTATION else ORIENTATION, "reader": READER}
        digest = hashlib.sha256(json.dumps({**self.steps, **more}, sort_keys=True).encode()).hexdigest()
        return {**self.described(), **more, "digest": digest}


def is_told(told: object) -> bool:
    """Whether it is all that :meth:`Preprocessing.told` gives, and nothing else."""
    if not isinstance(told, Mapping) or {*told} != {*FIELDS}:
        return False
    try:
        check_fields(told, FIELDS, {}, "")
    except FedMendError:
        return False
    width, axes = told["window"][1], [np.count_nonzero(told[name]) for name in ("spacing", "patch")]
    return axes in ([0, 0], [3, 3]) and bool(width > 0 or tuple(told["window"]) in (NO_WINDOW, OWN_WINDOW))


def as_told(told: Mapping[str, np.ndarray]) -> Preprocessing:
    """The way back from :meth:`Preprocessing.told`."""
    given = {name: value.tolist() for name, value in told.items()}
    window = {NO_WINDOW: None, OWN_WINDOW: "file"}.get(tuple(given["window"]), tuple(given["window"]))
    lists = {name: tuple(given[name]) for name in ("pixel_mean", "pixel_deviation")}
    lists |= {name: tuple(given[name]) if any(given[name]) else () for name in ("spacing", "patch")}
    return Preprocessing(**{**given, **lists, "window": window, "modality": MODALITIES[given["modality"]]})
