"""A run that begins anew under a name that an earlier run has had: what that one left at the site counts no longer.

The server may begin a name anew while sites still have state and a ledger of it: its checkpoint was deleted, the first
job ended before its first checkpoint, or the run went back to its beginning. A site that takes part from the first
round on writes over most of that; one that comes later would go on from it.
"""

import logging

from fedmend.method import Site
from fedmend.repairs.ledger import FIRST
from fedmend.repairs.site_run import OPENED, STAMPS
from fedmend.site.data_marks import NOTED
from fedmend.site.limits import STEP, TASKS

RUN = "run"  # in the site's state: mark of the run
LOG = logging.getLogger("fedmend.executor")
KEPT = (RUN, STEP, OPENED, STAMPS, NOTED, TASKS)  # of the site and its data, whichever run it is


def begin(site: Site, mark: str, ledger_mark: str) -> None:
    """Takes repairs of another run of this name out of force and forgets its state; verdicts of people stay.

    Args:
        site: with state and ledger of the run_name.
        mark: of the run that asks; empty: none is told apart.
        ledger_mark: which the ledger has left in this run; empty: none. A ledger with one stays as it is, although the
            state is another one: it was put back alone.
    """
    if mark and site.state.load(RUN) != mark:
        if not ledger_mark:
            if count := site.ledger.undo(from_round=FIRST):
                LOG.info(
                    "%s: this run begins anew under the name of an earlier one; %d repairs undone", site.name, count
                )
            site.ledger.forget_marks()
        site.state.forget_all_but(KEPT)
        site.state.save(RUN, mark)
