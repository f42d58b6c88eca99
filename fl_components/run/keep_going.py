"""``submit --keep-going``: the same job again, under the same run_name, where a repeat can help, until the run is done.

A refusal in a sentence is final: the same job would be refused again. What passes is a process that ended, a site that
did not answer in time, a server that was away. FLARE shows a job as RUNNING for ever when its server was killed; such
a job is one that the server does not list among those at work.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from nvflare.apis.job_def import RunStatus
from nvflare.fuel.flare_api.flare_api import Session

from fedmend.basics.files import make_folder
from fedmend.errors import FedMendError
from fedmend.messages import QUESTIONS
from fedmend.records.picture import read_picture
from fl_components.job.folder import UNCHANGED, Changes, configured
from fl_components.run.submit import (
    POLL,
    SILENT,
    STOPPED,
    UNLISTED,
    JobFailed,
    NoAnswer,
    connected_sites,
    fetch,
    follow,
    leaving,
    named_sites,
    open_session,
    reason,
    refuse_fetched,
    submit_job,
    who_is_there,
)

TRIES = 5  # jobs that end, and absences of the server, in a row and without a new round between them
PATIENCE = 3600.0  # seconds that server or sites have to come back
LOST = 60.0  # seconds that a job may run without being listed: its start, its end
PASSING = re.compile(
    rf": ({'|'.join(QUESTIONS)}): expected a result( within \d+ s \(round_timeout\))?, got none"
    "|one still runs|one is still going on"  # what is left of the job before
)
FINAL = (RunStatus.FINISHED_ABORTED.value, RunStatus.FAILED_TO_RUN.value)  # by a person, by a policy


def keep_going(
    job: Path,
    kit: Path,
    out: Path,
    changes: Changes = UNCHANGED,
    *,
    job_id: str = "",
    show: Callable[[str], None] = print,
) -> Path:
    """Runs a job on a provisioned federation and fetches its result, by as many jobs of the run as faults make of it.

    Args:
        job: job folder.
        kit: startup kit of the lead researcher.
        out: folder for results.
        changes: other settings of the job.
        job_id: of a job of this run to come back to.
        show: gets one line at a time.

    Returns:
        Folder of the result, see :func:`fl_components.run.submit.fetch`.

    Raises:
        FedMendError: the job is refused; server or sites do not come back; or ``TRIES`` faults without a new round.
        KeyboardInterrupt: the person has left; the job goes on.
    """
    with leaving() as left, configured(job, changes, strict=True) as folder:
        refuse_fetched(out, job_id)
        make_folder(out)  # before a job runs, not after it
        run = _Run(folder, out, job_id, show, left.is_set)
        patience = 0.0  # a server that is not there at the start is none that comes back
        while True:
            connected = False
            try:
                with open_session(kit, patience=patience) as session:
                    connected, patience = True, PATIENCE
                    return run.go_on(session)
            except (JobFailed, NoAnswer) as e:
                if not connected or not run.may_go_on(e):
                    raise
                show(f"{e}; goes on")
            except KeyboardInterrupt:
                if run.job_id:
                    show(f"job {run.job_id} is left to itself; the same command with --job-id {run.job_id} goes on")
                raise


class _Run:
    """The jobs of one run, one after the other.

    Args:
        folder: the configured job.
        out: folder for results.
        job_id: of the job at work; empty: one is to be submitted.
        show: gets one line at a time.
        left: True when the person has gone.
    """

    def __init__(self, folder: Path, out: Path, job_id: str, show: Callable[[str], None], left: Callable[[], bool]):
        self.job_id, self._folder, self._out, self._show, self._left = job_id, folder, out, show, left
        self._sites = named_sites(json.loads((folder / "meta.json").read_text(encoding="utf-8")))
        self._done = self._done_before = self._idle = 0
        self._listed = time.monotonic()  # when the server last had the job among those at work, or none ran

    def go_on(self, session: Session) -> Path:
        """Submits where no job is at work, follows the one that is, and fetches its result.

        Raises:
            FedMendError: sites stay away; as :func:`follow` and :func:`fetch`.
        """
        if self.job_id:
            self._sites = self._sites or connected_sites(session)
        else:
            self._wait_for_sites(session)
            self.job_id = submit_job(session, self._folder)
            self._show(f"job {self.job_id}; Ctrl-C leaves it, and the same command with --job-id {self.job_id} goes on")
        self._listed = time.monotonic()
        follow(session, self.job_id, show=self._show, watch=self._see, left=lambda: self._look(session))
        return fetch(session, self.job_id, self._out)

    def may_go_on(self, fault: JobFailed | NoAnswer) -> bool:
        """Whether a repeat can help, and has not been tried too often; the next job is then to be submitted."""
        self._idle = 1 if self._done > self._done_before else self._idle + 1
        self._done_before = self._done
        if isinstance(fault, JobFailed):
            if not _passes(fault):
                return False
            self.job_id = ""
        return self._idle < TRIES

    def _wait_for_sites(self, session: Session) -> None:
        """Until those are connected that the job names, or that were there when its first job was submitted."""
        end, said = time.monotonic() + PATIENCE, ""
        while not self._sites <= (there := connected_sites(session)):
            if self._left():
                raise KeyboardInterrupt
            if (line := who_is_there(there, self._sites)) != said:
                self._show(line)
                said = line
            if time.monotonic() > end:
                raise FedMendError(f"sites: expected all to come back within {PATIENCE:.0f} s, {line}")
            time.sleep(POLL)
        self._sites = self._sites or there

    def _see(self, picture: str) -> None:
        with contextlib.suppress(FedMendError):  # it is no error of the run
            self._done = max(self._done, read_picture(picture).done)

    def _look(self, session: Session) -> bool:
        """Whether the person has gone; a job that its server has lost is said to have failed."""
        meta, now = session.get_job_meta(self.job_id), time.monotonic()
        at_work = {job.job_id for job in session.get_system_info().job_info}
        if meta["status"] != RunStatus.RUNNING.value or self.job_id in at_work:
            self._listed = now
        if now - self._listed > LOST:
            raise JobFailed(f"job {self.job_id}: expected it to run, its server was started again without it", meta, [])
        return self._left()


def _passes(fault: JobFailed) -> bool:
    if fault.meta["status"] in FINAL:
        return False
    why = reason(fault.meta, fault.log)
    if any(STOPPED in entry["message"] for entry in fault.log):
        return why == SILENT or PASSING.search(why) is not None
    return not UNLISTED.search(why)
