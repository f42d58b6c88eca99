"""How the two kinds of files that list samples are read row by row: tables (CSV) and datalists of volumes (JSON)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fedmend.errors import FedMendError

if TYPE_CHECKING:
    from fedmend.data.card import SiteCard
    from fedmend.data.slices import LesionsLeft


class Rows(ABC):
    """A file of a site folder that lists the samples of a split; every method refuses one that cannot be used.

    Args:
        card: the site's card.
        file: its name in the site folder.
        split: ``train``, ``val`` or ``test``.
        classes: the classes that are checked.
    """

    leaves_out: ClassVar[bool]  # a few unreadable images may be left out

    def __init__(self, card: SiteCard, file: str, split: str, classes: Sequence[str]):
        self.card, self.file, self.split, self.classes = card, file, split, classes

    @abstractmethod
    def samples(self) -> tuple[Sequence[str], Sequence[str]]:
        """Images, of studies and volumes one each, and their patients, blank where they are unknown."""

    @abstractmethod
    def unreadable(self) -> Iterator[str]:
        """Every row whose image, or mask, cannot be read, and why."""

    @abstractmethod
    def bytes_per_pixel(self) -> int:
        """What an image takes in the store."""

    def lesions(self, opened: Any) -> LesionsLeft | None:
        """What the size at which a split was opened leaves of its lesions; None where there are no masks."""
        return None

    def mostly_marked(self, opened: Any) -> tuple[int, int]:
        """Volumes of an opened split whose masks mark most of the body, and all volumes."""
        return 0, 0

    def slices(self) -> Sequence[int]:
        """Number of slices of each sample, where samples are studies; else empty."""
        return ()


class TableRows(Rows):
    """A row is an image with its labels."""

    leaves_out = True

    def samples(self) -> tuple[Sequence[str], Sequence[str]]:
        from fedmend.data.tables import load_table

        table = load_table(self.card, self.file, self.classes)
        return [table.middle(i) for i in range(len(table.images))], table.patients

    def slices(self) -> Sequence[int]:
        from fedmend.data.card import STUDY
        from fedmend.data.tables import load_table

        if self.card.sample != STUDY:
            return ()
        return [*map(len, load_table(self.card, self.file, self.classes).slices)]

    def unreadable(self) -> Iterator[str]:
        from fedmend.data.raw import UnreadableImage
        from fedmend.data.readers import read_image
        from fedmend.data.tables import load_table

        table = load_table(self.card, self.file, self.classes)
        for row, image in ((row, path) for i, row in enumerate(table.rows) for path in table.paths(i)):
            where = f"{self.file}{' study that begins in' * bool(table.slices)} row {row}"
            try:
                read_image(self.card.image_root / image, self.card.window, color=self.card.color)
            except FileNotFoundError:
                yield f"{where}: expected a file below image_root, not found"
            except UnreadableImage as e:
                yield f"{where}: {e}"
            except OSError as e:
                yield f"{where}: expected a file that can be opened, got an error ({type(e).__name__})"

    def bytes_per_pixel(self) -> int:
        return 3 if self.card.color else 1


class DatalistRows(Rows):
    """An item is a volume with its mask; volumes are few, so that none is left out."""

    leaves_out = False

    def samples(self) -> tuple[Sequence[str], Sequence[str]]:
        from fedmend.data.datalist import load_datalist

        items = load_datalist(self.card, self.file, self.split)
        return [item.name for item in items], [item.patient for item in items]

    def unreadable(self) -> Iterator[str]:
        from fedmend.data.datalist import SECTIONS, load_datalist
        from fedmend.data.volumes import read_pair

        for number, item in enumerate(load_datalist(self.card, self.file, self.split), 1):
            try:
                where = f"{self.file}, {SECTIONS[self.split]} item {number}"
                read_pair(item, where, self.card.label_values(self.split, self.card.classes))
            except FedMendError as e:
                yield str(e)

    def lesions(self, opened: Any) -> LesionsLeft:
        from fedmend.data.slices import lesions_left

        return lesions_left(self.card, self.split, opened)

    def mostly_marked(self, opened: Any) -> tuple[int, int]:
        from fedmend.data.plausible import marks_most

        own = [opened.case == number for number in range(len(opened.items))]
        return sum(marks_most(opened.images[mine], opened.masks[mine]) for mine in own), len(own)

    def bytes_per_pixel(self) -> int:
        return 3  # a half-precision grey value and a mask


def rows_of(card: SiteCard, file: str, split: str, classes: Sequence[str]) -> Rows:
    """The reader of a file, by its ending."""
    return (DatalistRows if file.endswith(".json") else TableRows)(card, file, split, classes)
