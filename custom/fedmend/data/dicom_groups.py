"""Where a DICOM header has the fields of a frame: in the groups of an enhanced file, or in the file itself."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydicom import Dataset

GROUPS = ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
PALETTE = "PALETTE COLOR"  # one sample per pixel, a number in a table of colours


def is_colored(dataset: "Dataset") -> bool:
    """Whether the header of a DICOM file says that its pixels have a colour."""
    return int(dataset.get("SamplesPerPixel") or 1) != 1 or dataset.get("PhotometricInterpretation") == PALETTE


def groups_of(dataset: "Dataset", number: int) -> tuple["Dataset", ...]:
    """The functional groups of a frame of an enhanced file, its own before the shared one; none of a plain file.

    Args:
        dataset: the file, or its header read with :data:`GROUPS`.
        number: of the frame, from 0.
    """
    own, shared = (dataset.get(name) or [] for name in GROUPS)
    return (*own[number : number + 1], *shared[:1])


def groups_in(dataset: "Dataset", number: int) -> Callable[[str], "Dataset"]:
    """Name of a sequence → where a frame's fields of that kind are, see :func:`group_of`.

    Args:
        dataset: the file.
        number: of the frame, from 0.
    """
    groups = groups_of(dataset, number)

    def of(name: str) -> "Dataset":
        found = next((found for group in groups if (found := group.get(name))), None)
        return found[0] if found else dataset

    return of


def group_of(dataset: "Dataset", number: int, name: str) -> "Dataset":
    """Where a frame's fields of some kind are: in its own or the shared group of an enhanced file, or in the file.

    Args:
        dataset: the file.
        number: of the frame, from 0.
        name: of the sequence that holds such fields in a group.
    """
    return groups_in(dataset, number)(name)
