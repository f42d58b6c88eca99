"""A piece of work on a provisioned federation that faults strike.

FedIA with phantom data; its repairs, state and final model are compared with those of the same work without a fault.
"""

import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from deployment import JOB, SITES
from factories import ROOT

from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.repairs.ledger import read_history
from fl_components.job.folder import Changes, configured
from fl_components.run.submit import fetch, submit_job

JOB_FOLDER = ROOT / "jobs" / "fedia_ms"
STRUCK, ROUND = "site-2", 3  # both sites repair their masks in this round, which counts from 0
PHANTOM = {
    "dataset": "ms",
    "images": 6,
    "sites": 2,
    "test_share": 0.33,
    "val_share": 0.0,
    "pixels": 32,
    "depth": 12,
    "m": 1,
}
SMALL = {
    **{"num_rounds": 5, "warmup_rounds": 2, "image_size": 32, "local_epochs": 16, "learning_rate": 0.014},
    **{"learning_rate_decay": 0.2, "gap": 0, "threshold": 0.5, "min_component": 1},  # falls behind any line at once
}


class Work:
    """A piece of work: the jobs under one run name."""

    def __init__(self, deployment, name, **settings):
        self.deployment, self.name, self.settings, self.jobs = deployment, name, settings, []
        self.kits, self._struck = deployment.federation.kits, None

    @property
    def changes(self):
        return Changes({**SMALL, **self.settings, "run_name": self.name}, sites=2)

    def submit(self):
        with configured(JOB_FOLDER, self.changes) as job:
            self.jobs.append(submit_job(self.deployment.session, job))

    def end(self):
        return self.deployment.end_of(self.jobs[-1])

    def state(self, site):
        return self.kits / "fedmend-state" / site / self.name / site

    def rows(self, site):
        return read_history(self.state(site) / "ledger.sqlite")

    def process(self, name):
        return self.deployment.process(name, JOB, self.jobs[-1])

    def suspended(self):
        """The job process of the struck site, suspended between repairs and result; None if it has not come to that."""
        with suppress(FedMendError):  # no ledger yet
            rows = self.rows(STRUCK)
            self._struck = self._struck or self.process(STRUCK)
            if any(row["round"] == ROUND for row in rows):
                self._struck.suspend()
                log = (self.kits / STRUCK / self.jobs[-1] / "log.txt").read_text()
                assert f"{STRUCK}: round {ROUND} " in log
                assert f"{STRUCK}: round {ROUND + 1} " not in log
                return self._struck
        return None


def strike(faults, *, timeout=240):
    """Submits works at once, and does to each its fault, ``fault(work, process)``, when its process is suspended."""
    for work in faults:
        work.submit()
    waiting, end = dict(faults), time.monotonic() + timeout
    while waiting:
        assert time.monotonic() < end, [work.name for work in waiting]
        for work in list(waiting):
            if process := work.suspended():
                waiting.pop(work)(work, process)
        time.sleep(0.02)


def model(work, folder):
    """Name → tensor of the final model of a work, whose result is fetched into a folder."""
    return model_in(fetch(work.deployment.session, work.jobs[-1], folder))


def model_in(result):
    """The same of a result that was fetched."""
    return torch.load(result / "workspace" / "app_server" / "FL_global_model.pt", weights_only=False)["model"]


def in_force(work, site):
    return [row for row in work.rows(site) if row["in_force"]]


@dataclass(frozen=True)
class Undisturbed:
    """The same work without a fault, and what hospitals wrote before anything ran."""

    work: Work
    weights: dict
    originals: dict

    def check(self, work, weights, *, same_model=True):
        """Same model to the last digit, every repair in force once, no file of a hospital touched."""
        assert same_model == all(torch.equal(value, weights[name]) for name, value in self.weights.items())
        for site in SITES:
            repairs = in_force(work, site)
            assert len({(row["image"], row["class"], row["rule"]) for row in repairs}) == len(repairs) > 0
            repeated = [{**row, "in_force": 1} for row in work.rows(site) if not row["in_force"]]
            assert all(row in repairs for row in repeated)
            assert repairs == in_force(self.work, site)
            if same_model:
                state = [StateStore(w.state(site)).load("fedia") for w in (work, self.work)]
                assert state[0] == state[1]
        for file, content in self.originals.items():
            assert file.read_bytes() == content, file.name


def files_of(hospitals):
    """File → content of everything that hospitals wrote."""
    files = [file for site in SITES for file in (hospitals / site).rglob("*") if file.is_file()]
    assert len(files) > 10
    return {file: file.read_bytes() for file in files}
