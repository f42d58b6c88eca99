"""What a DICOM file shows, by its header: an image of the patient, or what a study holds besides."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedmend.data.dicom_groups import GROUPS, group_of, groups_of, is_colored
from fedmend.data.dicom_values import CT_CLASSES

if TYPE_CHECKING:
    from pydicom import Dataset

IMAGE, LOCALIZER, SECONDARY, QUANTITY = "image", "localizer", "secondary", "quantity"
WRITTEN, INTENT = "BurnedInAnnotation", "PresentationIntentType"
COMPONENT, UNIT = "ComplexImageComponent", "RescaleType"
# Fields that a header must have been read with.
FIELDS = (
    *("SOPClassUID", "ImageType", "SeriesDescription", "SamplesPerPixel", "PhotometricInterpretation", WRITTEN),
    *("Modality", "Rows", "Columns", INTENT, COMPONENT, UNIT, *GROUPS),
)
# Where a frame of an enhanced file has its FrameType, which says of it what ImageType says of a file.
FRAME_TYPES = (
    "MRImageFrameTypeSequence",
    "CTImageFrameTypeSequence",
    "PETFrameTypeSequence",
    "XRay3DFrameTypeSequence",
)
NO_IMAGES = {"SEG", "RTDOSE", "RTSTRUCT", "RTPLAN", "PR", "SR", "KO", "REG"}
# Segmentations of all kinds, registrations and the like; doses.
NO_IMAGE_CLASSES = re.compile(r"1\.2\.840\.10008\.5\.1\.4\.1\.1\.(66(\..*)?|481\.2)")
MAPS = "1.2.840.10008.5.1.4.1.1.30"  # parametric maps, as of blood flow
CAPTURES = "1.2.840.10008.5.1.4.1.1.7"  # secondary capture; those with several frames have a further number
PHASES = {"P", "PHASE", "PHASE MAP"}  # words of the ImageType of MR, or its component
SCANS = {"CT", "MR", "PT"}  # their images are grey, and none is a page of text
# Words of ImageType and of the descriptions of series, and words that say so in ImageType alone.
_LOCALIZERS = re.compile(r"\b(locali[sz]ers?|scouts?|topograms?|surview|scano(gram)?s?)\b")
# Further words of descriptions of MR, of Philips, GE and Siemens; CT has surveys of the skeleton, which are images.
_LOCALIZERS_OF_MR = re.compile(r"\b(survey|locs?|aa\w*scout)\b")
_PAGES = re.compile(r"\b(dose (info|report|page|sheet|summary)|patient protocol|screen ?(save|shot|capture)s?)\b")
_PAGE_TYPES = re.compile(r"\b(dose|prot|protocol)\b")
_PLAIN = re.compile(r"[\W_]+")


def word_of(header: "Dataset", name: str) -> str:
    """What a header says in a field, without blanks around it; an empty string where it says nothing."""
    return str(header.get(name) or "").strip(" \0")


def modality_of(header: "Dataset") -> str:
    """DICOM's word for what made the images; an empty string where neither field nor class of the file says it."""
    return word_of(header, "Modality").upper() or ("CT" if header.get("SOPClassUID") in CT_CLASSES else "")


def shows_images(header: "Dataset") -> bool:
    """Whether a file holds pixels of a patient, and not e.g. a report, plan, dose or segmentation."""
    if modality_of(header) in NO_IMAGES or NO_IMAGE_CLASSES.fullmatch(word_of(header, "SOPClassUID")):
        return False
    return bool(header.get("Rows") and header.get("Columns"))


def _types(given: str | Sequence | None) -> list[str]:
    return [str(v).strip().upper() for v in ([given] if isinstance(given, str) else given or [])]


def _frame_type(header: "Dataset", frame: int) -> "Dataset | None":
    """Where the FrameType of a frame of an enhanced file is; None where it has none."""
    for group in groups_of(header, frame):
        for name in FRAME_TYPES:
            if found := group.get(name):
                return found[0]
    return None


def kind_of(header: "Dataset", frame: int = 0) -> tuple[str, bool]:
    """What an image shows: ``image``, ``localizer`` (also scout or topogram), ``secondary`` (a captured screen, a page
    of doses) or ``quantity`` (see :func:`_of_another_quantity`); and whether it is made of other images, as a reformat
    is.

    Args:
        header: of its file, read with :data:`FIELDS`.
        frame: its number in the file, from 0.
    """
    frame_type = _frame_type(header, frame)
    types, own = _types(header.get("ImageType")), _types(None if frame_type is None else frame_type.get("FrameType"))
    scan = modality_of(header) in SCANS
    derived = any(found[:1] == ["DERIVED"] or found[1:2] == ["SECONDARY"] for found in (types, own))
    words = _PLAIN.sub(" ", "; ".join([*types[2:], *own[2:]]).lower())
    text = _PLAIN.sub(" ", word_of(header, "SeriesDescription").lower()) if scan else ""
    of_mr = modality_of(header) == "MR" and _LOCALIZERS_OF_MR.search(text)
    if _LOCALIZERS.search(words) or _LOCALIZERS.search(text) or of_mr:
        return LOCALIZER, derived
    capture = word_of(header, "SOPClassUID")
    page = _PAGES.search(words) or _PAGE_TYPES.search(words) or _PAGES.search(text)
    written = derived and word_of(header, WRITTEN) == "YES"
    if capture == CAPTURES or capture.startswith(f"{CAPTURES}."):
        return SECONDARY, derived
    if scan and (page or written or is_colored(header)):
        return SECONDARY, derived
    components = [word_of(found, COMPONENT) for found in (header, frame_type) if found is not None]
    other = _of_another_quantity(header, frame, {*types[2:], *own[2:], *components})
    return QUANTITY if other else IMAGE, derived


def _of_another_quantity(header: "Dataset", frame: int, words: set[str]) -> bool:
    """Whether the numbers are not those that people look at: of a film before it was processed for presentation, the
    phase of MR, a parametric map, or CT in another unit than HU, as of iodine."""
    if word_of(header, INTENT).upper() == "FOR PROCESSING" or word_of(header, "SOPClassUID") == MAPS:
        return True
    modality = modality_of(header)
    if modality == "MR":
        return bool(words & PHASES)
    unit = word_of(group_of(header, frame, "PixelValueTransformationSequence"), UNIT).upper()
    return modality == "CT" and not unit.startswith("H") and unit not in ("", "US")  # US: not specified
