"""What a run leaves at a site: names of its files, and verdicts that count in later runs."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedmend.basics.state import StateStore
from fedmend.data.card import SiteCard, load_card
from fedmend.data.identity import split_frame
from fedmend.data.site import Opening
from fedmend.data.store import file_stamp
from fedmend.errors import FedMendError
from fedmend.labels import SEGMENTATION
from fedmend.repairs.ledger import Ledger
from fedmend.repairs.ledger_rows import Unavailable

LOG = logging.getLogger("fedmend.executor")
LEDGER_NAME, GALLERY_NAME = "ledger.sqlite", "gallery.html"
# In the site's state, for a review: where its data are and how they were opened; sizes and times of the training files
# as the run first read them; opinions of the final model.
OPENED, STAMPS, OPINIONS = "opened", "stamps", "opinions"


def files_of(card: SiteCard, train: Any, sample: int) -> tuple[Path, ...]:
    """The files that a training sample is read from: its image or slices, and of a slice the mask of its volume.

    Args:
        card: the site's card.
        train: its training split, a :class:`fedmend.data.site.Split` or :class:`fedmend.data.slices.VolumeSplit`.
        sample: sample number.
    """
    if card.kind == SEGMENTATION:
        item = train.items[train.case[sample]]
        return item.image, item.label
    return tuple(dict.fromkeys(card.image_root / split_frame(path)[0] for path in train.table.paths(sample)))


def save_opened(state: StateStore, card: SiteCard, classes: Sequence[str], opening: Opening, train: Any) -> None:
    """Notes at the site which data a run is about, how they were opened, and the state of their files at that time;
    where a run goes on in a new process, the first state stays.

    Args:
        state: of the run at the site.
        card: the site's card.
        classes: the job's.
        opening: where and how they are opened.
        train: the training split.
    """
    files = dict.fromkeys(file for sample in range(len(train)) for file in files_of(card, train, sample))
    found = {name: tuple(stamp) for name, *stamp in map(file_stamp, files)}
    known = state.load(STAMPS, {})
    if not found.keys() <= known.keys():
        state.save(STAMPS, found | known)
    noted = {name: value for name, value in vars(opening).items() if name != "device"}
    about = {"data": str(card.folder.absolute()), "classes": list(classes), "cache_dir": str(opening.cache_dir)}
    state.save(OPENED, noted | about)


def load_opened(state: StateStore, site: str) -> tuple[SiteCard, tuple[str, ...], Opening] | None:
    """What :func:`save_opened` noted: card, classes and how to open the data on the CPU; None where nothing is.

    Args:
        state: of the run at the site.
        site: its name.

    Raises:
        FedMendError: the site folder has no card any more.
    """
    noted = state.load(OPENED)
    if noted is None:
        return None
    card, classes = load_card(Path(noted.pop("data")), site), tuple(noted.pop("classes"))
    return card, classes, Opening(**noted | {"cache_dir": Path(noted["cache_dir"]), "device": torch.device("cpu")})


def has_changed(stamps: Mapping[str, tuple], files: Sequence[Path]) -> bool:
    """Whether one of some files has another size or time than it had when the run first read it.

    Args:
        stamps: what :func:`save_opened` noted under :data:`STAMPS`; a file that is not in it counts as unchanged.
        files: of a sample.
    """
    return any(stamps.get(name, tuple(now)) != tuple(now) for name, *now in map(file_stamp, files))


def take_over_verdicts(ledger: Ledger, own: Path) -> None:
    """What people of the site said about the same data in other runs counts in this one.

    Args:
        ledger: of this run.
        own: its file, ``<state_dir>/<run>/<site>/ledger.sqlite``.

    Raises:
        Unavailable: a ledger that cannot be read now may hold what a person has rejected.
    """
    site, state_dir = own.parent.name, own.parents[2]
    for run in sorted(state_dir.iterdir()):
        other = run / site / own.name
        if other != own and other.is_file():
            try:
                ledger.take_over(other)
            except Unavailable:
                raise
            except FedMendError as e:  # another run's damage is not this one's
                LOG.warning("%s", e)
