"""The site that is checked, what the checks have opened of it so far, and what one of them found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fl_components.sitecheck.rows import Rows, rows_of

if TYPE_CHECKING:
    from fedmend.data.card import SiteCard
    from fedmend.data.site import SiteData
    from fedmend.site.config import SiteConfig
    from fl_components.sitecheck.job import JobNeeds

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"
OTHERS = 0o077  # rights of the group and of everybody


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        status: ``ok``, ``warn``, ``fail`` or ``skip``.
        text: what was expected and found.
        details: further lines.
    """

    status: str
    text: str
    details: Sequence[str] = ()


@dataclass
class CheckedSite:
    """A site; a later check uses what an earlier one has opened, and is skipped where that is not there. The fields
    before ``cache`` are what :func:`fl_components.sitecheck.run.sitecheck` was given.

    Attributes:
        name: the site's name.
        sheet: a file for pictures of some training images, or None.
        agreed: hash of the policy that the hospitals have agreed to, or None.
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
    sheet: Path | None
    agreed: str | None
    cache: Path
    config: SiteConfig | None = None
    job: JobNeeds | None = None
    card: SiteCard | None = None
    classes: tuple[str, ...] = ()
    samples: dict[str, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    data: SiteData | None = None

    def rows(self) -> dict[str, Rows]:
        """Split → reader of its file, for the splits that a job opens."""
        from fedmend.data.card import SPLITS_OF_JOBS

        card = self.card
        assert card is not None
        names = [name for name in SPLITS_OF_JOBS if name in card.splits]
        return {name: rows_of(card, card.splits[name], name, self.classes) for name in names}

    def listed(self) -> int:
        """Number of images that the files of the splits list."""
        return sum(len(images) for images, _ in self.samples.values())

    def loaded(self) -> dict:
        """Split → opened data."""
        assert self.data is not None
        return {"train": self.data.train, **self.data.evaluation}


def existing(folder: Path) -> Path:
    """The folder, or the one above it that there is."""
    return next(place for place in (folder, *folder.parents) if place.exists())
