"""What a run leaves at a site: names of its files, and verdicts that count in later runs."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from fedmend.basics.state import StateStore
from fedmend.data.card import SiteCard, load_card
from fedmend.data.site import Opening
from fedmend.errors import FedMendError
from fedmend.repairs.ledger import Ledger, Unavailable

LOG = logging.getLogger("fedmend.executor")
LEDGER_NAME, GALLERY_NAME = "ledger.sqlite", "gallery.html"
# In the site's state, for a review: where its data are and how they were opened; opinions of the final model.
OPENED, OPINIONS = "opened", "opinions"


def save_opened(state: StateStore, card: SiteCard, classes: Sequence[str], opening: Opening) -> None:
    """Notes at the site which data a run is about and how they were opened.

    Args:
        state: of the run at the site.
        card: the site's card.
        classes: the job's.
        opening: where and how they are opened.
    """
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
