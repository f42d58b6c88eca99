"""Receivers of metrics besides TensorBoard's: who may name them, and where the numbers go."""

import importlib
import json
import socket
import sys

import pytest
from cli_calls import call
from factories import ROOT, refused
from fl_factories import reopen_doors
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.analytix_utils import create_analytic_dxo

from fl_components.job.folder import list_receivers
from fl_components.job_check import ListedClasses
from fl_components.tracking import RECEIVERS
from provisioning import policy

JOB = ROOT / "jobs" / "fedmlp_ich"
RESOURCES = "simulator_workspace/local/resources.json"


def components(job):
    return json.loads((job / "app/config/config_fed_server.json").read_text())["components"]


@pytest.fixture(autouse=True)
def doors(monkeypatch):
    reopen_doors(monkeypatch)


@pytest.fixture
def job(tmp_path):
    assert call("configure", JOB, tmp_path / "job", "--tracking", "mlflow,wandb,statsd") == 0
    return tmp_path / "job"


@pytest.fixture
def server_says(tmp_path, job):
    """What the server of a kit with these classes besides our list answers to the job."""
    kit = tmp_path / "kit"

    def answer(*listed):
        (kit / "startup").mkdir(parents=True)
        (kit / "local").mkdir()
        (kit / "startup" / "fed_server.json").write_text("{}")
        resources = json.loads((ROOT / RESOURCES).read_text())
        resources["class_allow_list"] += listed
        (kit / "local" / "resources.json").write_text(json.dumps(resources))
        (kit / "run").mkdir()
        (job / "app").rename(kit / "run" / "app_server")
        return ListedClasses().validate(str(kit / "run" / "app_server"))[0]

    return answer


def test_a_configured_job_names_receivers_without_arguments(job):
    assert components(job)[: len(components(JOB))] == components(JOB)
    assert components(job)[len(components(JOB)) :] == [{"id": name, "path": path} for name, path in RECEIVERS.items()]


def test_an_unknown_receiver_is_refused(tmp_path, capsys):
    assert call("configure", JOB, tmp_path / "job", "--tracking", "comet") == 1
    assert capsys.readouterr().err == "fedmend: --tracking: expected some of mlflow, wandb, statsd, got comet\n"
    assert not (tmp_path / "job").exists()


def test_a_server_whose_policy_lists_none_refuses_the_job_by_name(server_says):
    path = RECEIVERS["mlflow"]
    assert server_says() == f"Component '{path}' at config path 'components.#4' is not in allow_list"


def test_a_server_whose_policy_lists_them_takes_the_job(server_says):
    assert server_says(*RECEIVERS.values()) == ""


def test_a_simulation_lists_what_its_job_names_and_nothing_else(tmp_path, job):
    file, before = tmp_path / "resources.json", (ROOT / RESOURCES).read_text()
    file.write_text(before)
    list_receivers(JOB, file)
    assert file.read_text() == before
    list_receivers(job, file)
    assert json.loads(file.read_text())["class_allow_list"][-3:] == list(RECEIVERS.values())


def test_provisioning_knows_the_same_receivers():
    assert tuple(RECEIVERS.values()) == policy.RECEIVERS


@pytest.mark.parametrize(("name", "package"), [("mlflow", "mlflow"), ("wandb", "wandb"), ("statsd", "datadog")])
def test_a_server_without_the_package_says_what_to_install(monkeypatch, name, package):
    for module in [
        m for m in sys.modules if m.split(".")[0] == package or m.startswith(f"nvflare.app_opt.tracking.{name}")
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, f"fl_components.tracking.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with refused(f"server: expected the package {package} (pip install 'fedmend[{name}]'), not found"):
        importlib.import_module(f"fl_components.tracking.{name}")


@pytest.fixture
def listener(monkeypatch):
    """A StatsD on loopback: its socket, and its address in the environment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(5)
        monkeypatch.setenv("FEDMEND_STATSD", f"127.0.0.1:{sock.getsockname()[1]}")
        yield sock


def test_statsd_gets_the_round_sites_and_seconds_and_no_metric(listener):
    pytest.importorskip("datadog")
    from fl_components.tracking.statsd import StatsD

    receiver = StatsD()
    receiver.initialize(FLContext())
    numbers = {"test/auc": 0.75, "loss/site-1": 0.5, "round/sites": 4, "round/seconds": 8.25}
    for tag, value in numbers.items():
        dxo = create_analytic_dxo(tag=tag, value=value, data_type=AnalyticsDataType.SCALAR, global_step=3)
        receiver.save(FLContext(), dxo.to_shareable(), "")
    receiver.finalize(FLContext())
    said = [listener.recv(1000).decode().rstrip() for _ in range(4)]
    assert said == ["fedmend_round:3|g", "fedmend_sites:4|g", "fedmend_round:3|g", "fedmend_seconds:8.25|g"]
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(1000)


@pytest.mark.parametrize("address", ["localhost", ":9125", "localhost:", "localhost:0", "localhost:70000", "h:²"])
def test_an_address_without_host_and_port_is_refused(monkeypatch, address):
    pytest.importorskip("datadog")
    from fl_components.tracking.statsd import StatsD

    monkeypatch.setenv("FEDMEND_STATSD", address)
    with refused("server: environment, FEDMEND_STATSD: expected HOST:PORT, got something else"):
        StatsD()
