"""The images that a folder of DICOM files holds, by their headers: whose they are, what they show, where they lie.

Names and depth of the files do not matter; files of other kinds are counted and passed over. Series are told apart by
their UID, and their images sorted along the normal of the slices.
"""

import functools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedmend.basics.parallel import mapped
from fedmend.data import dicom_kinds
from fedmend.data.card import LONGEST_NAME
from fedmend.data.dicom_files import frames_of, lacking_decoder, no_warnings, open_dicom
from fedmend.data.dicom_kinds import kind_of, modality_of, shows_images, word_of
from fedmend.data.dicom_series import PLACE, TURN, height_of, number_of
from fedmend.data.identity import canonical
from fedmend.data.readers import NIFTI_SUFFIXES, PICTURE_SUFFIXES
from fedmend.errors import FedMendError

if TYPE_CHECKING:
    from pydicom import Dataset

# What labels can be given for, the finest first.
KEYS = ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "AccessionNumber", "PatientID")
ABOUT = ("BodyPartExamined", "Laterality", "ImageLaterality", "ViewPosition")
FIELDS = (*KEYS, *ABOUT, *dicom_kinds.FIELDS, "NumberOfFrames", "BitsStored", "InstanceNumber")


@dataclass(frozen=True)
class DicomImage:
    """One image: a file, or a frame of one.

    Attributes:
        image: path below the folder, with ``#frame`` in a multi-frame file.
        keys: :data:`KEYS` → what the header says, an empty string where it says nothing.
        modality: DICOM's word.
        place: what sorts it in its series: distance along the normal in mm, or NaN; instance number; frame.
        kind: what it shows, see :func:`fedmend.data.dicom_kinds.kind_of`.
        derived: made of other images, as a reformat is.
        about: :data:`ABOUT` → what the header says, where it says something.
    """

    image: str
    keys: Mapping[str, str]
    modality: str
    place: tuple[float, int, int]
    kind: str
    derived: bool
    about: Mapping[str, str]


@dataclass(frozen=True)
class _File:
    """What a header says of all images of a file."""

    lacking: str  # what brings a decoder, where it cannot be decoded here
    syntax: str
    keys: Mapping[str, str]
    modality: str
    places: Sequence[tuple[float, int, int]]
    kinds: Sequence[tuple[str, bool]]  # of each frame: what it shows, whether it is derived
    about: Mapping[str, str]


def find_images(folder: Path, *, processes: int | None = None) -> tuple[list[DicomImage], Counter]:
    """All images below a folder, patient by patient, study by study, series by series, each in order; and what was
    passed over: why → number of files.

    Args:
        folder: where the files lie; links that lead out of it are passed over.
        processes: that read headers; None: one per core.

    Raises:
        FedMendError: no such folder, or images whose transfer syntax cannot be decoded here.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise FedMendError("dicom, argument source: expected a folder, not found")
    passed: Counter[str] = Counter()
    lacking: Counter[tuple[str, str]] = Counter()
    names, images = [], []
    for path in _files(folder):
        reason = _unusable(path, folder)
        passed[reason] += bool(reason)
        if not reason:
            names.append(path)
    for path, found in zip(names, mapped(_images, names, processes=processes), strict=True):
        if isinstance(found, str):
            passed[found] += 1
            continue
        lacking[found.syntax, found.lacking] += bool(found.lacking)
        name = path.relative_to(folder).as_posix()
        for place, kind in zip(found.places, found.kinds, strict=True):
            image = f"{name}#{place[2]}" if len(found.places) > 1 else name
            images.append(DicomImage(image, found.keys, found.modality, place, *kind, found.about))
    if lacking := +lacking:
        words = ", ".join(f"{name} ({count} files)" for (name, _), count in lacking.most_common())
        bring = " and ".join(dict.fromkeys(bring for _, bring in lacking))
        raise FedMendError(f"dicom: expected transfer syntaxes that can be decoded here ({bring}), got also {words}")
    return _sorted(images), +passed


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(place, name) for name in sorted(names))


def _unusable(path: Path, folder: Path) -> str:
    """Why a file cannot be named in a table; nothing if it can."""
    name = path.relative_to(folder).as_posix()
    if path.name.upper() == "DICOMDIR":
        return "DICOMDIR"
    if path.name.lower().endswith((*PICTURE_SUFFIXES, *NIFTI_SUFFIXES)):
        return "pictures and volumes of other formats"
    if "#" in path.name or name != name.strip() or not name.isprintable() or len(path.name) > LONGEST_NAME:
        return "names with # or signs that cannot be printed"
    if not path.is_file():  # before it is resolved, which a link to itself cannot be
        return "no files"
    return "" if path.resolve().is_relative_to(folder) else "links that lead out of the folder"


def _images(path: Path) -> str | _File:
    """Why a file has no images for us; or what its header says."""
    from pydicom.config import disable_value_validation
    from pydicom.errors import InvalidDicomError

    try:
        with no_warnings(), disable_value_validation():
            header = open_dicom(path, stop_before_pixels=True, specific_tags=_tags())
            if not shows_images(header):
                return "DICOM without images, e.g. reports"
            frames = frames_of(header, path)
            lacking = _lacking(header)
            if lacking is None:
                return "DICOM films, or files in a private transfer syntax"
            keys, about = ({n: canonical(word_of(header, n)) for n in names} for names in (KEYS, ABOUT))
            number = number_of(header.get("InstanceNumber") or 0, 0)
            places = [(height_of(header, frame), int(number), frame) for frame in range(frames)]
            kinds = [kind_of(header, frame) for frame in range(frames)]
            about = {name: word for name, word in about.items() if word}
            syntax = header.file_meta.TransferSyntaxUID.name
            return _File(lacking, syntax, keys, modality_of(header), places, kinds, about)
    except InvalidDicomError:
        return "files of other kinds"
    except Exception:  # pydicom raises many types for a damaged file
        return "damaged DICOM files"


@functools.cache  # looking the words up in every file took a tenth of the time
def _tags() -> list:
    from pydicom.tag import Tag

    return [Tag(name) for name in (*FIELDS, PLACE, TURN)]


def _lacking(header: "Dataset") -> str | None:
    """What brings a decoder for a file that cannot be decoded here; nothing if it can be decoded; None if none can."""
    syntax = header.file_meta.TransferSyntaxUID
    if syntax.is_private or not syntax.is_transfer_syntax:
        return None
    if not syntax.is_encapsulated:
        return ""
    try:
        return lacking_decoder(header)
    except NotImplementedError:  # films
        return None


def _sorted(images: Sequence[DicomImage]) -> list[DicomImage]:
    """By patient, study and series; a series by the places of its images if all have one, else by their numbers; where
    these are alike, by file and frame, as in :mod:`fedmend.package.inputs`."""
    series: dict[tuple, list[DicomImage]] = {}
    for image in images:
        key = tuple(image.keys[name] for name in ("PatientID", "StudyInstanceUID", "SeriesInstanceUID"))
        series.setdefault(key, []).append(image)
    ordered = []
    for _, group in sorted(series.items()):
        placed = np.isfinite([image.place[0] for image in group]).all()
        ordered += sorted(group, key=lambda image: (image.place[0] if placed else 0.0, image.place[1]))
    return ordered
