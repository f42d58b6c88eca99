import contextlib
import os
import sys

import pytest
from factories import refused
from job_factories import write_job

from fedmend.basics.files import locked
from fedmend.errors import FedMendError
from fl_components.run import local, simulate
from fl_components.run.poc import poc
from fl_components.run.simulate import fresh
from fl_components.run.start import check_paths, in_use, proxy_of, reach_this_machine, set_aside

BUSY = "--workspace: expected one without a run at work, there is one; wait for its end, or choose another"
BLANK = (
    "path of the workspace or kit: expected one without blanks and quotation marks, which FLARE cannot take, got one"
    " with them; move it (a simulation may also do without FLARE, by --local)"
)


def run_in(workspace, model, *, began="run.json"):
    """What a run leaves."""
    records = workspace / "server" / "simulate_job" / "fedmend"
    records.mkdir(parents=True)
    (records / "model").write_text(model)
    (workspace / "state").mkdir()
    if began:
        (records / began).write_text("{}")


def files_of(folder):
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


@pytest.fixture
def finished(tmp_path):
    """A workspace with a finished run."""
    with fresh(tmp_path / "w", {"min_count": 7}):
        run_in(tmp_path / "w", "earlier")
    return tmp_path / "w"


@pytest.mark.parametrize("start", [local.run_local, simulate.simulate, poc], ids=["local", "simulator", "poc"])
def test_a_second_start_in_a_workspace_is_refused_and_destroys_nothing(tmp_path, monkeypatch, start):
    monkeypatch.setattr("fl_components.job.folder.JobSettings.build", lambda self, component: None)
    job, workspace = write_job(tmp_path / "job"), tmp_path / "w"
    with fresh(workspace, {}):
        run_in(workspace, "at work")
        before = files_of(workspace)
        with refused(BUSY):
            start(job, workspace)
        assert files_of(workspace) == before


def test_a_workspace_is_free_again_when_its_run_has_ended(tmp_path):
    for _ in range(2):
        with in_use(tmp_path / "w"):
            pass
    with locked(tmp_path / ".w.lock", patience=0) as alone:
        assert alone


def test_an_earlier_run_comes_back_where_the_new_one_does_not_begin(finished):
    before = files_of(finished)
    with contextlib.suppress(FedMendError), fresh(finished, {}):
        assert files_of(finished) == ["local/fedmend.json", "local/privacy.json", "local/resources.json"]
        (finished / "site-1").mkdir()
        raise FedMendError("no data")
    assert files_of(finished) == before
    assert not (finished / "site-1").exists()
    assert '"min_count": 7' in (finished / "local" / "fedmend.json").read_text()
    assert [f.name for f in finished.parent.iterdir() if f.name != "w"] == [".w.lock"]


@pytest.mark.parametrize("began", ["run.json", "results.json"], ids=["a training", "a label audit"])
def test_an_earlier_run_is_lost_when_the_new_one_has_begun(finished, began):
    with contextlib.suppress(FedMendError), fresh(finished, {}):
        run_in(finished, "new", began=began)
        raise FedMendError("round 2")
    assert (finished / "server" / "simulate_job" / "fedmend" / "model").read_text() == "new"
    assert [f.name for f in finished.parent.iterdir() if f.name != "w"] == [".w.lock"]


@pytest.mark.parametrize("when", ["moving out", "before it began", "after it began", "moving back"])
def test_whenever_a_start_is_killed_the_next_one_finds_a_whole_run(finished, when):
    before, moving, aside = files_of(finished), finished.with_name(".w.moving"), finished.with_name(".w.earlier")
    killed = set_aside(finished)
    if when in ("moving out", "moving back"):
        moving.mkdir()
        (finished / "server").rename(moving / "server")
    else:
        killed.__enter__()
        run_in(finished, "new", began="run.json" * (when == "after it began"))
    with set_aside(finished):
        assert not list(finished.iterdir())
        kept = files_of(aside)
    if when == "after it began":
        assert "local/fedmend.json" not in kept
        before = kept
    assert kept == files_of(finished) == before
    assert not moving.exists()
    assert not aside.exists()


def test_flare_is_given_no_path_with_a_blank(tmp_path):
    job = write_job(tmp_path / "job")
    for start in (simulate.simulate, poc):
        with refused(BLANK):
            start(job, tmp_path / "my runs" / "w")
    assert not (tmp_path / "my runs").exists()


def test_a_python_with_a_blank_in_its_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/home/my venv/bin/python")
    with refused(BLANK.replace("workspace or kit", "Python")):
        check_paths(tmp_path)


def test_without_flare_a_blank_is_allowed(tmp_path):
    with fresh(tmp_path / "my runs", {}):
        assert (tmp_path / "my runs").is_dir()


@pytest.mark.parametrize("threads", [-1, "2", 2.5])
@pytest.mark.parametrize("start", [local.run_local, simulate.simulate])
def test_a_number_of_threads_is_at_least_one(tmp_path, monkeypatch, start, threads):
    monkeypatch.setattr("fl_components.job.folder.JobSettings.build", lambda self, component: None)
    with refused(f"--threads: expected a whole number >= 1, got {threads!r}"):
        start(write_job(tmp_path / "job"), tmp_path / "w", threads=threads)


@pytest.fixture
def environment(monkeypatch):
    """No proxy; what a test sets, or the code, is gone after it."""
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_this_machine_is_reached_past_a_proxy_and_other_exceptions_stay(environment):
    environment.setenv("https_proxy", "http://proxy:3128")
    environment.setenv("NO_PROXY", "intranet,localhost")
    assert proxy_of("127.0.0.1") == "https_proxy"
    reach_this_machine()
    assert os.environ["no_proxy"] == "intranet,localhost,127.0.0.1,::1"
    assert "no_grpc_proxy" not in os.environ
    assert not any(proxy_of(host) for host in ("localhost", "127.0.0.1", "intranet"))
    assert proxy_of("fl.example.org") == "https_proxy"


def test_the_variable_of_grpc_counts_before_that_of_everybody(environment):
    environment.setenv("grpc_proxy", "http://proxy:3128")
    environment.setenv("https_proxy", "http://other:3128")
    environment.setenv("no_proxy", "fl.example.org")
    assert proxy_of("fl.example.org") == ""
    environment.setenv("no_grpc_proxy", "else")
    assert proxy_of("fl.example.org") == "grpc_proxy"
    reach_this_machine()
    assert dict(os.environ)["no_grpc_proxy"] == "else,localhost,127.0.0.1,::1"
