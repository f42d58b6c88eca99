"""Metrics of a real run in MLflow's database and W&B's offline file, its rounds at a StatsD."""

import socket

import pytest
from factories import ROOT
from simulation import SMALL, fedmend, lines

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def statsd():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, pytest.MonkeyPatch.context() as patch:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        patch.setenv("FEDMEND_STATSD", f"127.0.0.1:{sock.getsockname()[1]}")
        yield sock


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, statsd):
    home = tmp_path_factory.mktemp("home")
    job = ROOT / "jobs" / "fedmlp_ich"
    phantom = ["phantom.images=300", "phantom.sites=2", "phantom.annotated_per_site=4"]
    words = ["configure", job, home / "job", "--tracking", "mlflow,wandb,statsd", "--sites", 2]
    words += ["--set", *SMALL["fedmlp_ich"], *phantom]
    for command in (words, ["simulate", home / "job", "--workspace", home / "work", "--threads", 2]):
        code, out = fedmend(*command, home=home)
        assert code == 0, out
    return home / "work"


def run_folder(workspace):
    return workspace / "server" / "simulate_job"


def test_mlflow_has_every_value_of_the_records(workspace):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run_folder(workspace)}/mlflow.db")
    (experiment,) = (e for e in client.search_experiments() if e.name == "fedmend")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    found = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "test/auc")}
    assert found == {m["round"]: m["macro"]["auc"] for m in lines(workspace, "metrics.jsonl") if m["split"] == "test"}
    assert "loss/site-2" in run.data.metrics


def test_wandb_has_the_numbers_offline_and_nothing_of_the_machine(workspace):
    (file,) = run_folder(workspace).glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    final = [m for m in lines(workspace, "metrics.jsonl") if m["split"] == "test"][-1]["macro"]["auc"]
    assert str(final).encode() in content
    assert b"loss/site-2" in content
    assert str(workspace).encode() not in content
    assert f'"{socket.gethostname()}"'.encode() not in content
    assert [f.name for f in (file.parent / "files").rglob("*") if f.is_file()] == []


def test_statsd_has_heard_every_round_and_nothing_else(workspace, statsd):
    said = [statsd.recv(1000).decode().rstrip() for _ in range(12)]
    assert said[::4] == ["fedmend_round:1|g", "fedmend_round:2|g", "fedmend_round:3|g"]
    assert said[1::4] == ["fedmend_sites:2.0|g"] * 3
    assert all(line.startswith("fedmend_seconds:") for line in said[3::4])
    statsd.setblocking(False)
    with pytest.raises(BlockingIOError):
        statsd.recv(1000)
