"""Real federations for tests: provisioned with our policy, run as processes of this machine, stopped whatever
happens."""

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from factories import ROOT
from nvflare.fuel.flare_api.flare_api import Session

from fedmend.errors import FedMendError
from fl_components.job.folder import Changes, configured
from fl_components.run.poc import ProvisionedFederation
from fl_components.run.submit import follow, submit_job

DAEMON, PARENT, JOB = "daemon", "parent", "job"  # what restarts the parent, what stays connected, what runs one job
_ROLES = {
    "sub_start.sh": DAEMON,
    "client_train": PARENT,
    "server_train": PARENT,
    "worker_process": JOB,
    "runner_process": JOB,
}
SITES = ("site-1", "site-2")  # every job starts a process at each of them
PHANTOM = {"phantom.images": 300, "phantom.sites": len(SITES), "phantom.annotated_per_site": 4}
TINY = {"num_rounds": 2, "warmup_rounds": 1, "image_size": 32, "batch_size": 8, "st": False, **PHANTOM}


def until(condition, *, timeout=120):
    """Returns when ``condition()`` is true."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"expected it within {timeout} s"
        time.sleep(0.1)


@dataclass(frozen=True)
class Deployment:
    """A running federation.

    Attributes:
        federation: kits (= workspaces) by name, start and stop.
        session: of the lead researcher.
    """

    federation: ProvisionedFederation
    session: Session

    def processes(self, name, role, job_id=""):
        """Processes of the server or of a site that play this role now, for this job or for any."""
        found = []
        for process, owner in self.federation.processes().items():
            with contextlib.suppress(Exception):  # it may have ended since
                words = " ".join(process.cmdline())
                if owner == name and job_id in words and any(w in words and r == role for w, r in _ROLES.items()):
                    found.append(process)
        return found

    def process(self, name, role, job_id="", *, timeout=120):
        """The one process of that role, as soon as there is one: to kill, suspend or resume."""
        until(lambda: len(self.processes(name, role, job_id)) == 1, timeout=timeout)
        return self.processes(name, role, job_id)[0]

    @contextlib.contextmanager
    def settings(self, site, **fields):
        """Other fields in the site's ``fedmend.json`` for a while; it is read per job."""
        file = self.federation.kits / site / "local" / "fedmend.json"
        text = file.read_text()
        file.write_text(json.dumps({**json.loads(text), **fields}))
        yield
        file.write_text(text)

    def run(self, folder, send=submit_job):
        """Submits a job folder and waits for its end.

        Args:
            folder: job folder.
            send: from session and folder to the job's id.

        Returns:
            What the lead sees, and the sentence at the end of a job that failed, or "".
        """
        return self.end_of(send(self.session, folder))

    def end_of(self, job_id):
        """Waits for the end of a job; returns what :meth:`run` does."""
        lines = []
        try:
            follow(self.session, job_id, show=lines.append, interval=1)
        except FedMendError as e:
            return lines, str(e)
        return lines, ""


@contextlib.contextmanager
def deployed(folder, *, baselines=False, provisioned=ProvisionedFederation, **settings):
    """A running federation in a new folder, with the policy of a hospital's kit unless it asks for baselines; its sites
    have phantom data and these other fields in ``fedmend.json``. ``provisioned`` makes the kits."""
    paths = os.pathsep.join([str(ROOT / "custom"), str(ROOT)])
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # FLARE's scripts call python3
    with mock.patch.dict(os.environ, {"PYTHONPATH": paths, "PATH": programs, "OMP_NUM_THREADS": "1"}):
        federation = provisioned(folder / "federation", list(SITES), baselines=baselines)
        federation.configure_sites({"cache_dir": str(folder / "cache"), **settings})
        with federation.running() as session:
            yield Deployment(federation, session)


def tiny_job(job, **variables):
    """For as long as it is needed, a copy of the job that only tests plumbing."""
    return configured(ROOT / "jobs" / job, Changes({**TINY, **variables}, sites=len(SITES)), strict=True)
