"""Which faults lead to another job of the run, how often, and what the person is told; sessions are scripted."""

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import ROOT
from test_submit import entry

from fedmend.errors import FedMendError
from fl_components.console import PICTURES
from fl_components.job.folder import Changes
from fl_components.run import keep_going as module
from fl_components.run.keep_going import TRIES, keep_going
from fl_components.run.submit import NoAnswer

JOB = ROOT / "jobs" / "fedmlp_ich"
BROKEN, DONE = "FINISHED:EXECUTION_EXCEPTION", "FINISHED:COMPLETED"
GONE = NoAnswer("server: expected an answer from x:1, got none")


class Federation:
    """A server whose jobs end one after the other as ``ends`` say: a status, or a status and the log; an error is
    raised. ``there``: which sites are connected, look by look; the last look counts for ever."""

    def __init__(self, *ends, there=(("site-1", "site-2"),), at_work=True):
        self.ends, self.there, self.at_work, self.sent, self.fetched = list(ends), list(there), at_work, 0, []

    def submit_job(self, folder):
        self.sent += 1
        return f"job-{self.sent}"

    def get_system_info(self):
        there = self.there.pop(0) if len(self.there) > 1 else self.there[0]
        jobs = [SimpleNamespace(job_id=f"job-{self.sent}")] if self.at_work else []
        return SimpleNamespace(client_info=[SimpleNamespace(name=site) for site in there], job_info=jobs)

    def get_job_meta(self, job_id):
        end = self.ends[0]
        if end == "RUNNING":
            return {"status": end}
        if not self.looked:
            self.looked = True
            return {"status": "RUNNING"}
        self.ends.pop(0)
        self.looked = False
        if isinstance(end, BaseException):
            raise end
        status, self.log = end if isinstance(end, tuple) else (end, "")
        return {"status": status}

    looked, log = False, ""

    def get_job_logs(self, job_id, *, log_file_name):
        return {"logs": {"server": self.log}}

    def download_job_result(self, job_id, out):
        self.fetched.append(job_id)
        (Path(out) / job_id).mkdir()
        return str(Path(out) / job_id)


@pytest.fixture
def go(monkeypatch, tmp_path):
    lines = []

    def run(federation, sites=2, job=JOB, **options):
        @contextlib.contextmanager
        def session(kit, *, patience=0.0):
            yield federation

        monkeypatch.setattr(module, "open_session", session)
        keep_going(job, tmp_path, tmp_path / "out", Changes(sites=sites), show=lines.append, **options)

    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)  # of follow too
    run.lines = lines
    return run


def stopped(sentence):
    return BROKEN, entry(1, f"run stopped: {sentence}", level="ERROR")


@pytest.mark.parametrize(
    "fault",
    [
        BROKEN,
        stopped("train: the job was aborted"),
        stopped(
            "train of round 1: expected valid results from 2 sites, got 1: site-2: train: expected a result, got none"
        ),
        stopped("site-2: census: expected a result within 43200 s (round_timeout), got none"),
        stopped("run_name 'x': expected no other job of this run, one still runs; abort it first"),
        (BROKEN, entry(1, "cannot reach the site", logger="nvflare.x", level="ERROR")),
    ],
)
def test_after_a_fault_that_may_pass_the_job_is_submitted_again_and_its_result_is_fetched(go, fault):
    federation = Federation(fault, DONE)
    go(federation)
    assert federation.fetched == ["job-2"]
    assert "job job-2; Ctrl-C leaves it, and the same command with --job-id job-2 goes on" in go.lines


@pytest.mark.parametrize(
    "refusal",
    [
        stopped("site-1: site.json, field truth: expected complete masks for all_labels, got none"),
        stopped("run_name 'x': expected the settings of the job before, got others (seed: before 1, now 2)"),
        stopped("server: expected files that can be read and written, got: No space left on device"),
        (BROKEN, entry(1, "Component 'a.B' at config path 'x' is not in allow_list", level="ERROR")),
        "FINISHED:ABORTED",
        "FINISHED:FAILED_TO_RUN",
    ],
)
def test_a_refusal_is_final(go, refusal):
    federation = Federation(refusal)
    with pytest.raises(FedMendError, match=r"^job job-1: expected it to complete, got FINISHED:"):
        go(federation)
    assert federation.sent == 1


def test_faults_without_a_new_round_between_them_end_it(go):
    federation = Federation(*[BROKEN] * 99)
    with pytest.raises(FedMendError):
        go(federation)
    assert federation.sent == TRIES


def test_each_new_round_gives_new_patience(go):
    def after(done):
        return BROKEN, entry(1, json.dumps({"state": "runs", "done": done}), logger=PICTURES)

    federation = Federation(*[after(done) for done in range(1, 9)], *[after(8)] * 99)
    with pytest.raises(FedMendError):
        go(federation)
    assert federation.sent == 8 + TRIES - 1


def test_a_server_that_was_away_is_asked_for_the_same_job(go):
    federation = Federation(GONE, DONE)
    go(federation)
    assert (federation.sent, federation.fetched) == (1, ["job-1"])


def test_a_server_that_is_not_there_at_the_start_is_said_at_once(go, monkeypatch, tmp_path):
    @contextlib.contextmanager
    def nobody(kit, *, patience):
        assert patience == 0
        raise GONE
        yield

    federation = Federation()
    monkeypatch.setattr(module, "open_session", nobody)
    with pytest.raises(NoAnswer):
        keep_going(JOB, tmp_path, tmp_path)
    assert federation.sent == 0


def test_a_job_that_its_server_does_not_list_any_more_is_lost(go, monkeypatch):
    monkeypatch.setattr(module, "LOST", -1.0)
    federation = Federation(*["RUNNING"] * 9, at_work=False)
    with pytest.raises(FedMendError, match="expected it to run, its server was started again without it"):
        go(federation)
    assert federation.sent == TRIES


def test_the_next_job_waits_for_the_sites_of_the_first_and_names_who_is_missing(go):
    both, one = ("site-1", "site-2"), ("site-1",)
    federation = Federation(BROKEN, DONE, there=[both, both, one, one, both])
    go(federation)
    assert federation.fetched == ["job-2"]
    assert sum(line.startswith("connected sites: site-1; missing: site-2 (not started, ") for line in go.lines) == 1


def test_sites_that_do_not_come_back_end_it(go, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    federation = Federation(BROKEN, there=[("site-1", "site-2")] * 2 + [()])
    with pytest.raises(
        FedMendError, match=r"^sites: expected all to come back within 0 s, connected sites: none; miss"
    ):
        go(federation)


@pytest.mark.parametrize("named", [True, False])
def test_a_job_to_come_back_to_is_followed_first_and_its_sites_are_waited_for(go, tmp_path, named):
    both, job = ("site-1", "site-2"), tmp_path / "job"
    shutil.copytree(JOB, job)
    if not named:  # then those are waited for that were there when the person came back
        meta = json.loads((job / "meta.json").read_text())
        (job / "meta.json").write_text(json.dumps({**meta, "deploy_map": {"app": ["@ALL"]}}))
    federation = Federation(BROKEN, DONE, there=[*[both] * (2 - named), (), both])
    go(federation, 2 * named, job=job, job_id="job-0")
    assert federation.fetched == ["job-1"]
    assert any(line.startswith("connected sites: none; missing: site-1, site-2 (") for line in go.lines)


def test_who_leaves_is_told_how_to_come_back(go):
    with pytest.raises(KeyboardInterrupt):
        go(Federation(KeyboardInterrupt()))
    assert go.lines[-1] == "job job-1 is left to itself; the same command with --job-id job-1 goes on"
