"""What a run leaves at a site: names of its files, and verdicts that count in later runs."""

import logging
from pathlib import Path

from fedmend.errors import FedMendError
from fedmend.repairs.ledger import Ledger

LOG = logging.getLogger("fedmend.executor")
LEDGER_NAME, GALLERY_NAME = "ledger.sqlite", "gallery.html"
# In the site's state, for a review: where its data are and how they were opened; opinions of the final model.
OPENED, OPINIONS = "opened", "opinions"


def take_over_verdicts(ledger: Ledger, own: Path) -> None:
    """What people of the site said about the same data in other runs counts in this one.

    Args:
        ledger: of this run.
        own: its file, ``<state_dir>/<run>/<site>/ledger.sqlite``.
    """
    site, state_dir = own.parent.name, own.parents[2]
    for run in sorted(state_dir.iterdir()):
        other = run / site / own.name
        if other != own and other.is_file():
            try:
                ledger.take_over(other)
            except FedMendError as e:  # another run's damage is not this one's
                LOG.warning("%s", e)
