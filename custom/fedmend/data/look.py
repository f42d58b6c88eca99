"""What the images of a hospital are like, from a look at some of them, and how a site card should have them read."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.data.card import WINDOWS
from fedmend.data.dicom_files import no_warnings, open_dicom
from fedmend.data.dicom_groups import group_of
from fedmend.data.dicom_kinds import kind_of
from fedmend.data.dicom_values import header_number
from fedmend.data.raw import UnreadableImage
from fedmend.data.readers import NIFTI_SUFFIXES, PICTURE_SUFFIXES, nifti_volume, open_nifti, read_raw

LOOKED_AT = 20  # images
SOFT_TISSUE = (40.0, 400.0)
SIZES = (32, 64, 128, 224)  # edge lengths that jobs and papers have
LONGEST_WORD = 16  # of DICOM's code strings
AIR = -500  # HU; no MR image has values below
PLANES = ("sagittal", "coronal", "axial")  # across the patient's axes x, y, z
# How NIfTI files are stored.
SLICES, DIRECTIONS = "slices are stored", "directions by"
FROM_THE_FEET, FROM_THE_HEAD, OTHER_PLANE = "from the feet up", "from the head down", "in another plane"
ONE_MATRIX, BOTH_DIFFER, NO_MATRIX = "the header", "the sform, as the qform differs", "a guess, as the header has none"
# Body part, as DICOM writes it, → window. Other parts get the one for soft tissue.
BODY_PARTS = {"HEAD": "brain", "BRAIN": "brain", "SKULL": "brain", "CHEST": "lung", "LUNG": "lung", "THORAX": "lung"}


@dataclass
class Look:
    """What has been seen.

    Attributes:
        formats: DICOM, picture or NIfTI → number of images.
        unreadable: reason → number of images that could not be read.
        sizes: rows and columns of each image.
        words: what headers say, e.g. ``bits`` → Counter of them: kind, bits, photometric, modality, part, plane,
            spacing (mm).
        color: pictures, those in DICOM files too, whose channels differ.
        colored: DICOM images in colour.
        own_windows: DICOM images whose header has a window.
        values: the 0.5 and 99.5 percentiles of each image that is no picture.
    """

    formats: Counter = field(default_factory=Counter)
    unreadable: Counter = field(default_factory=Counter)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    words: dict[str, Counter] = field(default_factory=dict)
    color: int = 0
    colored: int = 0
    own_windows: int = 0
    values: list[tuple[float, float]] = field(default_factory=list)

    def say(self, name: str, word: object) -> None:
        """Counts a word of a header; a blank is none."""
        if word not in (None, ""):
            self.words.setdefault(name, Counter())[str(word)] += 1

    def lines(self) -> list[str]:
        """What people are told; no word of it is about one image or patient."""
        found = [f"{n} {name}" for name, n in self.formats.most_common()]
        lines = [f"looked at {sum(self.formats.values())} images: {', '.join(found) or 'none'}"]
        if self.sizes:
            low, high = np.min(self.sizes, axis=0), np.max(self.sizes, axis=0)
            lines.append(f"rows x columns: {low[0]} x {low[1]} to {high[0]} x {high[1]}")
        for name, words in self.words.items():
            lines.append(f"{name}: " + ", ".join(f"{word[:40]} ({n})" for word, n in words.most_common(5)))
        if self.values:
            lines.append(f"values: {self._range()[0]:g} to {self._range()[1]:g} (0.5 and 99.5 percentiles)")
        lines += [f"unreadable: {reason} ({n})" for reason, n in self.unreadable.most_common(5)]
        return lines

    def _looks_like_ct(self) -> bool:
        """Whether most volumes hold air in HU; one damaged one says nothing."""
        return bool(self.values) and float(np.median([low for low, _ in self.values])) < AIR

    def _range(self) -> tuple[float, float]:
        return min(low for low, _ in self.values), max(high for _, high in self.values)

    def most(self, name: str) -> str:
        """The word that most headers say, or nothing."""
        return self.words[name].most_common(1)[0][0] if name in self.words else ""

    def window(self) -> tuple[str | tuple[float, float] | None, str]:
        """Through which window the images should be seen, and why."""
        dicom, nifti = self.formats["DICOM"] - self.colored, self.formats["NIfTI"]
        if not dicom and not nifti:
            return None, "pictures in 8 bits are taken as they are"
        if self.most("modality") == "CT" or (not dicom and self._looks_like_ct()):
            part = self.most("part").upper()
            if part in BODY_PARTS:
                name = BODY_PARTS[part]
                return name, f"CT of the body part {part}: {name} is {list(WINDOWS[name])}; [40, 400] shows soft tissue"
            return (
                SOFT_TISSUE,
                "CT of no body part that has a window of its own: centre and width for soft tissue, in HU",
            )
        if dicom and self.own_windows == dicom:
            return "file", "each DICOM file that was looked at has a window of its own"
        return (
            None,
            "grey values without a unit: each series or volume is scaled by its own 0.5 and 99.5 percentiles",
        )

    def in_color(self) -> tuple[bool, str]:
        """Whether pictures should be read in colour, and why."""
        pictures = self.formats["picture"] + self.colored
        if pictures == sum(self.formats.values()) and self.color:
            return True, f"{self.color} of {pictures} pictures have channels that differ"
        return False, "no picture that was looked at has colour" if not self.color else "not all images are pictures"

    def image_size(self) -> tuple[int, str]:
        """A value for a job's ``image_size``, and why."""
        edge = int(np.median([min(size) for size in self.sizes])) if self.sizes else SIZES[-1]
        size = max((s for s in SIZES if s <= edge), default=SIZES[0])
        return (
            size,
            f"for image_size of a job, not of this card: the shorter edge is {edge} pixels, the papers have 224",
        )


def spread(number: int, most: int) -> list[int]:
    """At most so many places in a list, evenly spread."""
    return np.unique(np.linspace(0, number - 1, min(most, number)).astype(int)).tolist()


def some_of(images: Sequence[str], most: int = LOOKED_AT) -> list[str]:
    """Some images, evenly spread over the list."""
    return [images[i] for i in spread(len(images), most)]


def look_at(root: Path, images: Iterable[str]) -> Look:
    """Opens some images.

    Args:
        root: folder that the paths start from.
        images: paths below it, with ``#slice`` or ``#frame`` where there are several; of a NIfTI volume without it the
            middle slice is taken.
    """
    seen = Look()
    for image in images:
        path = root / image
        try:
            _look(seen, path, path.name.partition("#")[0].lower())
        except UnreadableImage as e:
            seen.unreadable[str(e)] += 1
        except Exception as e:  # of the file system, or of a damaged header
            seen.unreadable[f"expected a file that can be opened, got an error ({type(e).__name__})"] += 1
    nifti_volume.cache_clear()
    return seen


def _look(seen: Look, path: Path, name: str) -> None:
    if name.endswith(PICTURE_SUFFIXES):
        seen.formats["picture"] += 1
        raw = read_raw(path, None, color=True)
    elif name.endswith(NIFTI_SUFFIXES):
        seen.formats["NIfTI"] += 1
        if "#" not in path.name and path.is_file():
            planes = nifti_volume(path, path.stat().st_mtime_ns).shape[2]
            path = path.with_name(f"{path.name}#{planes // 2}")
        raw = read_raw(path, None)
        _look_at_volume(seen, path.with_name(path.name.partition("#")[0]))
    else:
        from pydicom.errors import InvalidDicomError

        seen.formats["DICOM"] += 1
        with contextlib.suppress(InvalidDicomError):  # the reader says what it is
            _look_at_header(seen, path)
        raw = read_raw(path, SOFT_TISSUE)
        seen.own_windows += raw.own_window is not None
        if raw.window is None:
            seen.colored += 1
            raw = read_raw(path, None, color=True)
    seen.sizes.append(raw.values.shape[:2])
    for note in raw.notes:
        seen.say("put right", note)
    if raw.window is None:
        seen.color += bool((raw.values != raw.values[..., :1]).any())
    else:
        low, high = np.percentile(raw.measured(), (0.5, 99.5))
        seen.values.append((float(low), float(high)))


@no_warnings()
def _look_at_header(seen: Look, path: Path) -> None:
    name, _, frame = path.name.partition("#")
    header = open_dicom(path.with_name(name), stop_before_pixels=True)
    seen.say("kind", kind_of(header, int(frame) if frame.isdecimal() else 0)[0])
    seen.say("modality", header.get("Modality"))
    seen.say("plane", plane_of(header, int(frame) if frame.isdecimal() else 0))
    seen.say("part", header.get("BodyPartExamined"))
    seen.say("bits", f"{header.get('BitsStored')}{' signed' if header.get('PixelRepresentation') else ''}")
    seen.say("photometric", header.get("PhotometricInterpretation"))
    seen.say("transfer syntax", header.file_meta.TransferSyntaxUID.name)
    if spacing := header.get("PixelSpacing") or header.get("ImagerPixelSpacing"):
        seen.say("spacing in mm", " x ".join(f"{header_number(v, 'spacing'):g}" for v in spacing))


def plane_of(header: Any, frame: int) -> str:
    """``axial``, ``coronal`` or ``sagittal``, whichever a frame is nearest to; nothing where its header does not say.

    Args:
        header: of its file, a Dataset.
        frame: its number, from 0.
    """
    given = group_of(header, frame, "PlaneOrientationSequence").get("ImageOrientationPatient")
    if given is None or len(given) != 6:
        return ""
    turn = np.array([header_number(value, "ImageOrientationPatient") for value in given]).reshape(2, 3)
    normal = np.abs(np.cross(*turn))
    return PLANES[int(normal.argmax())] if normal.max() > 0 else ""  # of NaN none is


def look_at_volumes(root: Path, images: Iterable[str]) -> Counter:
    """How volumes are stored, from the headers of all of them: words → number of NIfTI files.

    Args:
        root: folder that the paths start from.
        images: paths below it, with or without ``#slice``; files of other kinds, and damaged ones, are passed over.
    """
    seen = Look()
    for name in dict.fromkeys(image.partition("#")[0] for image in images):
        if name.lower().endswith(NIFTI_SUFFIXES):
            with contextlib.suppress(
                Exception
            ):  # nibabel raises many types; the file gets its sentence where it is read
                _look_at_volume(seen, root / name)
                seen.formats["NIfTI"] += 1
    return Counter(seen.formats) + seen.words.get(SLICES, Counter()) + seen.words.get(DIRECTIONS, Counter())


def _look_at_volume(seen: Look, path: Path) -> None:
    import nibabel

    image = open_nifti(path)
    height = nibabel.aff2axcodes(image.affine)[2]
    seen.say(SLICES, {"S": FROM_THE_FEET, "I": FROM_THE_HEAD}.get(height, OTHER_PLANE))
    by = [matrix for matrix, _ in (image.get_sform(coded=True), image.get_qform(coded=True)) if matrix is not None]
    turns = {tuple(nibabel.io_orientation(matrix).ravel()) for matrix in by}
    seen.say(DIRECTIONS, BOTH_DIFFER if len(turns) > 1 else ONE_MATRIX if turns else NO_MATRIX)


def proposal(seen: Look) -> dict[str, tuple[object, str]]:
    """Field of the card (and ``image_size`` of a job) → value and reason."""
    modality = seen.most("modality")[:LONGEST_WORD]
    return {
        "modality": (modality, "what most of the DICOM headers say" if modality else "no header says it"),
        "window": seen.window(),
        "color": seen.in_color(),
        "image_size": seen.image_size(),
    }


def notes_of(proposed: Mapping[str, tuple[object, str]], asked: Mapping[str, object]) -> dict[str, str]:
    """Field → reason, for the card; what a person has asked for has this as its reason."""
    shown = {name: json.dumps(value) for name, (value, _) in proposed.items()}
    return {
        name: f"as asked; looking at the images would give {shown[name]}: {why}"
        if name in asked and asked[name] != value
        else (f"{shown[name]} {why}" if name == "image_size" else why)
        for name, (value, why) in proposed.items()
    }
