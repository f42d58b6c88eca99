"""Where the picture of a run comes from while it goes on: a folder of this machine, or the server's log of a job."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.errors import FedMendError
from fedmend.records.picture import LARGEST, Picture, clean, read_picture
from fedmend.records.progress import FINISHED, PROGRESS, STOPPED
from fedmend.records.run_folder import RUN_FOLDER

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

# Below a place: a run folder itself, a simulator's workspace, a folder of runs such as one with seeds, the rows of a
# comparison, also over levels or of a table of rules, a server's kit, a POC workspace while the job runs and when its
# result is there.
ONE = str(RUN_FOLDER)
SIMULATED = (ONE, f"*/{ONE}", *(f"{'*/' * above}seed-*/{ONE}" for above in (1, 2, 3)))
RUN_FOLDERS = ("", *SIMULATED, "*/fedmend", "*/prod_*/*/*/fedmend", "results/*/workspace/fedmend")
GONE = 30.0  # seconds until a run whose records are no longer there is given up


@dataclass(frozen=True)
class Glance:
    """What one look at a run gave.

    Attributes:
        picture: None before there is one.
        note: how the job stands, besides.
        over: nothing more will come.
        reason: why it did not end well; "" if it did.
        silent: seconds since the picture was new.
    """

    picture: Picture | None = None
    note: str = ""
    over: bool = False
    reason: str = ""
    silent: float = 0.0


class FolderRun:
    """The newest run below a folder of this machine.

    Args:
        place: see :data:`RUN_FOLDERS`.
        clock: seconds.

    Raises:
        FedMendError: no such folder.
    """

    def __init__(self, place: Path, clock: Callable[[], float] = time.monotonic):
        if not place.is_dir():
            raise FedMendError("watch: expected the folder of a run, a simulator or POC workspace, got no folder")
        self._place, self._clock = place, clock
        self._last: Picture | None = None
        self._seen = 0.0

    def look(self) -> Glance:
        """Reads the newest picture; a run that has not begun, or is gone, has none.

        Raises:
            FedMendError: it is damaged.
        """
        found = [file for where in RUN_FOLDERS for file in self._place.glob(f"{where}/{PROGRESS}".lstrip("/"))]
        text = _newest(found)
        if text is None:
            if self._last is None:
                return Glance(note="no run has begun here yet")
            if self._clock() - self._seen < GONE:
                return Glance(self._last)
            return Glance(self._last, over=True, reason="its records are gone: it was stopped, or cleared away")
        picture = read_picture(text)
        self._last, self._seen = picture, self._clock()
        stopped = picture.state == STOPPED
        return Glance(
            picture,
            over=stopped or picture.state == FINISHED,
            reason=(picture.reason or "no reason given") if stopped else "",
            silent=max(time.time() - picture.time, 0.0),  # both by the clock of this machine
        )


def _newest(files: list[Path]) -> str | None:
    dated = []
    for file in files:
        try:
            dated.append((file.stat().st_mtime, file))
        except OSError:
            continue  # cleared away meanwhile
    for _, file in sorted(dated, reverse=True):
        try:
            with open(file, encoding="utf-8", errors="replace") as stream:
                return stream.read(LARGEST + 1)
        except OSError:
            continue
    return None


class KitRun:
    """A job on a federation, as the session of a person may see it.

    Args:
        session: FLARE's, of :func:`fl_components.run.submit.open_session`.
        job_id: "": the job that was submitted last.
        clock: seconds.

    Raises:
        FedMendError: the server has no job.
    """

    def __init__(self, session: "Session", job_id: str = "", clock: Callable[[], float] = time.monotonic):
        if not job_id:
            jobs = session.list_jobs(detailed=True)
            if not jobs:
                raise FedMendError("watch: expected a job at the server, found none")
            job_id = max(jobs, key=lambda job: str(job.get("submit_time", "")))["job_id"]
        self._session, self.job_id, self._clock = session, job_id, clock
        self._picture: Picture | None = None
        self._since = clock()

    def look(self) -> Glance:
        """Reads status and log of the job.

        Raises:
            FedMendError: the picture in the log is damaged.
        """
        from fl_components.run.submit import RunStatus, job_state, pictures, reason, server_log

        meta = self._session.get_job_meta(self.job_id)
        log = server_log(self._session, self.job_id)
        told = pictures(log or [])
        if told and (picture := read_picture(told[-1])) != self._picture:
            self._picture, self._since = picture, self._clock()
        note = job_state(meta)
        if log is None:
            note += "; the server's log of this job is for its submitter and the project admin"
        status, state = str(meta["status"]), self._picture.state if self._picture else ""
        failed = status.startswith("FINISHED") and status != RunStatus.FINISHED_COMPLETED.value
        why = f"{status}: {reason(meta, log or [])}" if failed else ""
        over = status.startswith("FINISHED") or state == FINISHED  # FLARE goes on for a while
        return Glance(self._picture, clean(note), over, clean(why), self._clock() - self._since)
