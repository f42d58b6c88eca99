"""Every process of a federation is killed once, and ``submit --keep-going`` brings the run to its end by itself.

FLARE's daemons start killed parents again, as the units of real machines do; nobody else does anything.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from deployment import JOB, PARENT, deployed, until
from fault_factories import JOB_FOLDER, PHANTOM, STRUCK, Undisturbed, Work, files_of, model, model_in
from nvflare.fuel.flare_api.api_spec import JobNotDone

from fedmend.basics.state import StateStore
from fedmend.phantoms.sites import ensure_phantom, phantom_spec
from fl_components.run import keep_going as module
from fl_components.run.keep_going import keep_going
from fl_components.run.submit import open_session

pytestmark = pytest.mark.slow
ROUNDS = 6
DEADLINE = 45  # seconds of a round, the start of processes included


def rounds_done(work):
    """Rounds in the checkpoint of the run."""
    server = work.kits / "fedmend-state" / "server" / work.name / "server"
    saved = StateStore(server).load("checkpoint")
    return saved["round"] if saved else 0


def kill_at(work, number, process):
    """Kills the ``process`` (owner, role) when the run's job of this number is at work and as many rounds are done."""
    owner, role = process
    until(lambda: work.going.done() or (len(work.jobs) >= number and rounds_done(work) >= number), timeout=240)
    assert not work.going.done(), work.going.result()
    work.deployment.process(owner, role, work.jobs[-1] if role == JOB else "").kill()


def test_each_process_may_be_killed_and_the_run_goes_on_by_itself_to_the_same_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOST", 10.0)
    hospitals = ensure_phantom(tmp_path / "hospitals", phantom_spec(PHANTOM))
    originals = files_of(hospitals)
    with deployed(tmp_path, data_root=str(hospitals / "{SITE_NAME}")) as deployment, ThreadPoolExecutor(1) as pool:
        federation = deployment.federation
        whole = Work(deployment, "undisturbed", num_rounds=ROUNDS)
        whole.submit()
        assert whole.end()[1] == ""
        undisturbed = Undisturbed(whole, model(whole, tmp_path / "whole"), originals)
        work = Work(deployment, "struck", num_rounds=ROUNDS, round_timeout=DEADLINE)
        lines = []

        def show(line):
            lines.append(line)
            if "; Ctrl-C leaves it" in line:
                work.jobs.append(line.split()[1].rstrip(";"))

        work.going = pool.submit(keep_going, JOB_FOLDER, federation.lead, tmp_path / "out", work.changes, show=show)
        faults = [(STRUCK, JOB), (federation.server, JOB), (STRUCK, PARENT), (federation.server, PARENT)]
        for number, process in enumerate(faults, 1):
            kill_at(work, number, process)
        result = work.going.result(timeout=300)
        print("\n".join(lines))
        assert len(work.jobs) == 1 + len(faults)
        undisturbed.check(work, model_in(result))
        clear_away(federation, work.jobs[3])


def clear_away(federation, dead):
    """A job whose server was killed runs for ever in name only; the way out of the admin's runbook."""
    with open_session(federation.lead) as session:
        assert session.get_job_meta(dead)["status"] == "RUNNING"
        with pytest.raises(JobNotDone):
            session.delete_job(dead)
        meta = federation.kits.parents[1] / "storage" / "jobs" / dead / "meta"
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "status": "FINISHED:ABNORMAL"}))
        session.delete_job(dead)
        assert dead not in {job["job_id"] for job in session.list_jobs()}
