"""What an object that is written into a study takes over of the headers of its images.

An archive holds sexes, dates and times in other forms than DICOM's, and texts in signs that cannot write the words that
come beside them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydicom import Dataset

# DICOM wants these in every file, if need be without content; de-identified files may lack them.
PATIENT = ("PatientID", "PatientName", "PatientBirthDate", "PatientSex")
MAY_BE_EMPTY = (*PATIENT, "AccessionNumber", "StudyID", "StudyDate", "StudyTime", "ReferringPhysicianName")
UNICODE = "ISO_IR 192"
SEXES = ("M", "F", "O")


def with_all_fields(header: "Dataset", *texts: str) -> "Dataset":
    """The header of an image as one to copy from: patient and study as DICOM writes them, empty where it has another
    form, and signs that can write all that is copied.

    Args:
        header: of a file; it is changed.
        texts: what comes beside what it says.
    """
    for name in MAY_BE_EMPTY:
        setattr(header, name, _as_dicom(name, header.get(name)))
    if not _writes(header.get("SpecificCharacterSet"), "".join(texts)):
        header.SpecificCharacterSet = UNICODE  # values that were read stay what they are
    return header


def _as_dicom(name: str, value: Any) -> Any:
    from pydicom.multival import MultiValue
    from pydicom.valuerep import DA, TM

    if isinstance(value, MultiValue):  # one with a backslash in it
        value = value[0] if value else None
    if name == "PatientSex":
        sex = str(value or "").strip().upper()
        return sex if sex in SEXES else None
    checks: dict[str, Callable[[Any], object]] = {"Date": DA, "Time": TM}
    try:
        checks.get(name[-4:], str)(value)
    except ValueError:
        return None
    return value


def _writes(signs: Any, text: str) -> bool:
    """Whether the one set of signs of a header, or none, is DICOM's and has all letters of a text."""
    from highdicom import SpecificCharacterSetValues
    from pydicom.charset import python_encoding

    if not signs or signs == "ISO_IR 6":
        return text.isascii()
    known = isinstance(signs, str) and signs in {v.value for v in SpecificCharacterSetValues} and "2022" not in signs
    try:
        text.encode(python_encoding[signs] if known else "ascii")
    except (KeyError, UnicodeEncodeError):
        return False
    return known
