"""The site that is checked, and what the checks have opened of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fl_components.sitecheck.rows import Rows, rows_of

if TYPE_CHECKING:
    from fedmend.data.card import SiteCard
    from fedmend.data.site import SiteData
    from fedmend.kinds import Kind
    from fedmend.site.config import SiteConfig
    from fl_components.sitecheck.job import JobNeeds


@dataclass
class CheckedSite:
    """A site; a later check uses what an earlier one has opened, and is skipped where that is not there.

    Attributes:
        name: the site's name.
        folder: the site folder; None: what ``data_root`` of the kit's ``fedmend.json`` names.
        kit: the site's startup kit, or None.
        job_folder: a job folder, or None.
        given_classes: the job's classes where there is no job folder; empty: those of the card.
        max_unreadable: tolerated unreadable images per split; None: what ``fedmend.json`` says, or none.
        cache: a folder for image stores, which ends with the checks.
        config: ``fedmend.json``.
        job: what the job asks of the site.
        card: the site card.
        classes: the classes that are checked.
        samples: split → images and patients, as its file lists them.
        data: the opened data.
    """

    name: str
    folder: Path | None
    kit: Path | None
    job_folder: Path | None
    given_classes: tuple[str, ...]
    max_unreadable: int | None
    cache: Path | None = None
    config: SiteConfig | None = None
    job: JobNeeds | None = None
    card: SiteCard | None = None
    classes: tuple[str, ...] = ()
    samples: dict[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    data: SiteData | None = None

    @property
    def kind(self) -> Kind:
        """Kind of labels, by the card."""
        from fedmend.kinds import kind_of

        return kind_of(self.card.kind)

    def rows(self) -> dict[str, Rows]:
        """Split → reader of its file, for the splits that a job opens."""
        from fedmend.data.site import EVALUATION_SPLITS

        card = self.card
        names = [name for name in ("train", *EVALUATION_SPLITS) if name in card.splits]
        return {name: rows_of(card, card.splits[name], name, self.classes) for name in names}

    def listed(self) -> int:
        """Number of images that the files of the splits list."""
        return sum(len(images) for images, _ in self.samples.values())

    def loaded(self) -> dict:
        """Split → opened data."""
        return {"train": self.data.train, **self.data.evaluation}


def existing(folder: Path) -> Path:
    """The folder, or the one above it that there is."""
    return next(place for place in (folder, *folder.parents) if place.exists())
