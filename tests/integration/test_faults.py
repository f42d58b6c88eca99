"""What faults in the middle of a round do to a piece of work on a provisioned federation, see ``docs/faults.md``.

Every fault strikes a site between its repairs of a round and its result, and at most one job more, under the same
run name, finishes the work. Rogue sites, which send worse than a damaged result, are in ``tests/test_security.py``.
"""

import json
import re
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest
import torch
from deployment import JOB, PARENT, SITES, deployed, until
from factories import ROOT
from nvflare.fuel.flare_api.api_spec import JobNotDone, NoConnection

from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.phantoms.sites import ensure_phantom, phantom_spec
from fedmend.repairs.ledger import read_history
from fl_components.job.folder import Changes, configured
from fl_components.run.submit import SILENT, fetch, submit_job

pytestmark = pytest.mark.slow
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
    **{"learning_rate_decay": 0.5, "gap": 0, "threshold": 0.5, "min_component": 1},  # falls behind any line at once
}
DEADLINE = (
    60  # seconds of a round; much longer than any round of two works side by side, the start of processes included
)
DAMAGE = """
from pathlib import Path
import numpy as np
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter
class Damage(Filter):
    def process(self, shareable, fl_ctx):
        if not Path(__file__).with_name(fl_ctx.get_job_id()).exists():
            return shareable
        dxo = from_shareable(shareable)
        name = sorted(dxo.data)[0]
        dxo.data[name] = np.full_like(dxo.data[name], np.nan)
        return dxo.update_shareable(shareable)
"""


class Work:
    """A piece of work: the jobs under one run name."""

    def __init__(self, deployment, name, **settings):
        self.deployment, self.name, self.settings, self.jobs = deployment, name, settings, []
        self.kits, self._struck = deployment.federation.kits, None

    def submit(self):
        changes = Changes({**SMALL, **self.settings, "run_name": self.name}, sites=2)
        with configured(ROOT / "jobs" / "fedia_ms", changes) as job:
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
    result = fetch(work.deployment.session, work.jobs[-1], folder)
    return torch.load(result / "workspace" / "app_server" / "FL_global_model.pt", weights_only=False)["model"]


def in_force(work, site):
    return [row for row in work.rows(site) if row["in_force"]]


@dataclass(frozen=True)
class Undisturbed:
    """The same work without a fault, and what hospitals wrote before anything ran."""

    work: Work
    weights: dict
    originals: dict

    def check(self, work, folder, *, same_model=True):
        """Same model to the last digit, every repair in force once, no file of a hospital touched."""
        weights = model(work, folder)
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


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    return ensure_phantom(tmp_path_factory.mktemp("hospitals"), phantom_spec(PHANTOM))


@pytest.fixture(scope="module")
def deployment(hospitals, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployed")
    with deployed(folder, data_root=str(hospitals / "{SITE_NAME}")) as running:
        local = running.federation.kits / STRUCK / "local"
        (local / "custom").mkdir(exist_ok=True)
        (local / "custom" / "damage.py").write_text(DAMAGE)
        privacy = json.loads((local / "privacy.json").read_text())
        privacy["scopes"][0]["task_result_filters"].insert(0, {"path": "damage.Damage"})
        (local / "privacy.json").write_text(json.dumps(privacy))
        yield running
    assert running.federation.processes() == {}


@pytest.fixture(scope="module")
def originals(hospitals):
    files = [file for site in SITES for file in (hospitals / site).rglob("*") if file.is_file()]
    assert len(files) > 10
    return {file: file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def side_by_side(deployment, originals):
    """Three works at once, the last with another seed."""
    works = [Work(deployment, "undisturbed"), Work(deployment, "beside"), Work(deployment, "other_seed", seed=1)]
    for work in works:
        work.submit()
    until(lambda: all(deployment.processes(STRUCK, JOB, work.jobs[-1]) for work in works))
    return works


@pytest.fixture(scope="module")
def undisturbed(side_by_side, originals, tmp_path_factory):
    work = side_by_side[0]
    lines, sentence = work.end()
    assert sentence == ""
    assert any(line.endswith("Corrected: site-1 in round 4, site-2 in round 4") for line in lines)
    return Undisturbed(work, model(work, tmp_path_factory.mktemp("undisturbed")), originals)


def test_works_at_once_on_the_same_sites_do_not_mix(side_by_side, undisturbed, tmp_path):
    _, same, other = side_by_side
    assert [same.end()[1], other.end()[1]] == ["", ""]
    undisturbed.check(same, tmp_path)
    assert all(in_force(other, site) != in_force(same, site) for site in SITES)


def check_resumed(end, *, rounds=("45",)):
    """The job did the struck round and what follows, and not what came before."""
    lines, sentence = end
    assert sentence == ""
    assert "".join(line.split("round ")[1][0] for line in lines if " | received model: " in line) in rounds


def kill(work, process):
    process.kill()


def kill_at_server(work, process):
    work.process(work.deployment.federation.server).kill()
    process.resume()


def hang(work, process):
    """It stays suspended until FLARE ends it."""


def hang_for_a_round(work, process):
    """It comes back in the round after the one that went on without it."""
    timer = threading.Timer(DEADLINE + 5, process.resume)
    timer.daemon = True
    timer.start()


def fill_disk(work, process):
    """From now on every write of the process fails, as on a full disk."""
    process.rlimit(psutil.RLIMIT_FSIZE, (0, process.rlimit(psutil.RLIMIT_FSIZE)[1]))
    process.resume()


def damage(work, process):
    (work.kits / STRUCK / "local" / "custom" / work.jobs[-1]).touch()
    process.resume()


ENDING = {
    "hung": (hang, {"round_timeout": DEADLINE}, f"{STRUCK}: train: expected a result, got none"),
    "killed": (kill, {}, SILENT),
    "killed_at_server": (kill_at_server, {}, SILENT),
    "disk_full": (fill_disk, {}, f"{STRUCK}: train: expected a result, got none"),
    "damaged": (damage, {}, f"{STRUCK}: result of round {ROUND}, weights"),
}


@pytest.fixture(scope="module")
def struck(deployment, undisturbed):
    """Works that ran side by side (FLARE runs four at a time), each with its fault.

    Returns:
        Name → work, end of its first job, end of its second one, which those of ``ENDING`` need.
    """
    hung_for_a_round = Work(deployment, "hung_for_a_round", round_timeout=DEADLINE, min_sites=1)
    faults = {Work(deployment, name, **settings): fault for name, (fault, settings, _) in ENDING.items()}
    hung = next(work for work in faults if work.name == "hung")
    strike({hung_for_a_round: hang_for_a_round, hung: hang})  # alone: with four at once, a first round may be late
    strike({work: fault for work, fault in faults.items() if work is not hung})
    first = {}
    for work in reversed(faults):  # the hung one ends last
        first[work] = work.end()
        work.submit()
    again = {work: work.end() for work in faults}
    ends = {work.name: (work, first[work], again[work]) for work in faults}
    return {**ends, hung_for_a_round.name: (hung_for_a_round, hung_for_a_round.end(), None)}


@pytest.mark.parametrize("name", ENDING)
def test_a_fault_ends_the_job_with_a_sentence_and_the_next_job_goes_on_to_the_same_model(
    struck, undisturbed, tmp_path, name
):
    work, (_, sentence), again = struck[name]
    assert ENDING[name][2] in sentence
    check_resumed(again)
    undisturbed.check(work, tmp_path)


def test_a_round_goes_on_without_a_site_that_hangs_where_min_sites_allows_it(struck, undisturbed, tmp_path):
    work, (lines, sentence), _ = struck["hung_for_a_round"]
    assert sentence == ""
    sites = [re.search(r"(\d) sites \|", line)[1] for line in lines if " | received model: " in line]
    assert sites == ["2", "2", "2", "1", "2"]
    assert any(line.endswith(f"{STRUCK}: train: expected a result, got none") for line in lines)
    undisturbed.check(work, tmp_path, same_model=False)


def test_a_site_that_freezes_for_half_a_minute_takes_part_again_as_if_nothing_had_happened(
    deployment, undisturbed, tmp_path
):
    work = Work(deployment, "cut")

    def cut(work, _):
        running = [process for process, owner in deployment.federation.processes().items() if owner == STRUCK]
        for process in running:
            process.suspend()
        time.sleep(30)
        for process in running:
            process.resume()

    strike({work: cut})
    lines, sentence = work.end()
    assert sentence == ""
    assert not any("expected a result" in line for line in lines)
    undisturbed.check(work, tmp_path)


def test_the_job_of_a_site_whose_parent_process_died_waits_until_the_lead_aborts_it(deployment, undisturbed, tmp_path):
    work = Work(deployment, "parent_killed")

    def kill_parent(_, process):
        deployment.process(STRUCK, PARENT).kill()
        process.resume()

    strike({work: kill_parent})
    until(lambda: not deployment.processes(STRUCK, JOB))  # it ends by itself
    until(lambda: deployment.processes(STRUCK, PARENT))  # the daemon's work
    assert deployment.session.get_job_meta(work.jobs[-1])["status"] == "RUNNING"
    deployment.session.abort_job(work.jobs[-1])
    assert work.end()[1].endswith("FINISHED:ABORTED: somebody aborted it")
    work.submit()
    check_resumed(work.end(), rounds=("45", "5"))  # the orphan may still deliver its result before it ends
    undisturbed.check(work, tmp_path)


def test_a_job_whose_server_died_runs_for_ever_in_name_only_and_the_next_one_goes_on(deployment, undisturbed, tmp_path):
    federation, session, work = deployment.federation, deployment.session, Work(deployment, "server_killed")

    def kill_server(_, process):
        deployment.process(federation.server, PARENT).kill()
        process.resume()

    def sites_are_back():
        with suppress(NoConnection):
            return {client.name for client in session.get_system_info().client_info} == set(SITES)

    strike({work: kill_server})
    until(sites_are_back)
    work.submit()
    check_resumed(work.end())
    undisturbed.check(work, tmp_path)
    dead = work.jobs[0]
    assert session.get_job_meta(dead)["status"] == "RUNNING"
    with pytest.raises(JobNotDone):
        session.delete_job(dead)
    meta = federation.kits.parents[1] / "storage" / "jobs" / dead / "meta"  # the way out of the admin's runbook
    meta.write_text(meta.read_text().replace('"status": "RUNNING"', '"status": "FINISHED:ABNORMAL"'))
    session.delete_job(dead)
    assert dead not in {job["job_id"] for job in session.list_jobs()}
