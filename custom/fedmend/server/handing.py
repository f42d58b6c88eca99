"""The model of a finished run on its way to the sites that want it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedmend.messages import KEEP, Question, RunSpec
from fedmend.method import RoundTask
from fedmend.server.exchange import Exchange
from fedmend.server.run_log import RunLog

NONE = "none"  # what a job shares that leaves no model at the sites


def hand_over(
    package: Path, tasks: Mapping[str, RoundTask], run: RunSpec, *, exchange: Exchange, log: RunLog, needed: int
) -> None:
    """Sends the files of a package; which sites keep it, and why others do not, is written down. The run is over,
    whatever they say.

    Args:
        package: the folder.
        tasks: site that wants it → its task.
        run: the run.
        exchange: asks the sites.
        log: where answers are written down.
        needed: sites after which the others are waited for no longer than in a round.

    Raises:
        FedMendError: the job was aborted.
    """
    files = {file.name: np.fromfile(file, dtype=np.uint8) for file in sorted(package.iterdir())}
    kept, refused = exchange.ask(Question(KEEP, files, tasks, run), needed)
    log.decision("kept", {"package": package.name, "sites": sorted(kept)}, None)
    for site, reason in refused.items():
        log.decision("not_kept", {"site": site, "reason": reason}, None)
        log.warn(reason)
