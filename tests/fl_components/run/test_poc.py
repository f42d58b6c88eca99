"""A federation of this machine before anything starts; tests/integration starts one."""

import contextlib
import json
import subprocess

import pytest
import yaml
from factories import ROOT, refused

from fl_components.cli import main
from fl_components.job.folder import Changes
from fl_components.run import poc
from fl_components.run.poc import ProvisionedFederation, local_project
from fl_components.run.submit import NoAnswer

PROJECT = yaml.safe_load((ROOT / "provisioning" / "project.yml").read_text())
NAMES = [f"site-{i}" for i in range(1, 9)]


def of_type(project, kind):
    return [p for p in project["participants"] if p["type"] == kind]


@pytest.fixture
def project(tmp_path):
    return local_project(tmp_path, NAMES)


def test_a_local_project_has_the_wanted_sites_each_of_its_own_organisation(project):
    assert [p["name"] for p in of_type(project, "client")] == NAMES
    orgs = {p["org"] for p in project["participants"]}
    assert len({p["org"] for p in of_type(project, "client")}) == len(NAMES)
    assert orgs >= {"coordination", "site_1"}


def test_a_local_project_keeps_the_people_and_every_builder(project):
    assert of_type(project, "admin") == of_type(PROJECT, "admin")
    assert [b["path"] for b in project["builders"]] == [b["path"] for b in PROJECT["builders"]]
    ours, published = (p["builders"][-1]["args"] for p in (project, PROJECT))
    assert ours["weight_filters"] == published["weight_filters"]


@pytest.mark.parametrize("given", [{}, {"baselines": False}], ids=["by default", "not asked for"])
def test_a_federation_of_one_machine_runs_baselines_unless_it_shall_not(tmp_path, given):
    project = local_project(tmp_path, NAMES, **given)
    assert project["builders"][-1]["args"]["baselines"] is (given == {})


def test_a_local_project_is_on_loopback_with_free_ports_and_storage_of_its_own(project, tmp_path):
    (server,) = of_type(project, "server")
    assert server["default_host"] == "localhost"
    assert len({server["fed_learn_port"], server["admin_port"], 8002, 8003}) == 4
    assert project["builders"][-1]["args"]["server_storage"] == str(tmp_path / "storage")


def test_the_published_project_is_not_changed(project):
    assert yaml.safe_load((ROOT / "provisioning" / "project.yml").read_text()) == PROJECT


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "x").touch()
    with refused("--workspace: expected a new or empty folder, got one with files"):
        ProvisionedFederation(tmp_path, NAMES)


def test_a_place_without_the_checkout_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(poc, "PROJECT", tmp_path / "project.yml")
    with refused("provisioning: expected provisioning/project.yml in the FedMend checkout, not found"):
        ProvisionedFederation(tmp_path / "new", NAMES)


def test_what_flares_provisioning_refuses_is_said(tmp_path, monkeypatch):
    def run(words, **options):
        return subprocess.CompletedProcess(words, 1, "bad ", "name\n")

    monkeypatch.setattr(poc.subprocess, "run", run)
    with refused("provisioning: expected startup kits, got: bad name"):
        ProvisionedFederation(tmp_path / "new", NAMES)


@pytest.fixture
def provisioned(tmp_path, monkeypatch):
    """Kits of two sites and the lead, without FLARE."""

    def run(words, **options):
        for name in ("lead@fedmend.example.org", "site-1", "site-2"):
            (tmp_path / "w" / "fedmend" / "prod_00" / name / "local").mkdir(parents=True)
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(poc.subprocess, "run", run)
    return ProvisionedFederation(tmp_path / "w", ["site-1", "site-2"])


def test_every_site_gets_the_phantom_or_the_data_that_are_named(provisioned):
    for given, expected in ({}, "phantom"), ({"data_root": "/data/{SITE_NAME}"}, "/data/{SITE_NAME}"):
        provisioned.configure_sites(given)
        for site in ("site-1", "site-2"):
            settings = json.loads((provisioned.kits / site / "local" / "fedmend.json").read_text())
            assert settings["data_root"] == expected
            assert settings["state_dir"] == "../fedmend-state/{SITE_NAME}"


def test_a_folder_of_weights_is_the_servers_too(provisioned, tmp_path, monkeypatch):
    own = provisioned.kits / provisioned.server / "local" / "fedmend.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"data_root": "a server has no data", "min_count": 5}')
    provisioned.configure_sites({})
    assert "weights_dir" not in json.loads(own.read_text())
    provisioned.configure_sites({"weights_dir": "/models"})
    assert json.loads(own.read_text()) == {
        "data_root": "a server has no data",
        "min_count": 5,
        "weights_dir": "/models",
    }
    monkeypatch.chdir(tmp_path)
    provisioned.configure_sites({"weights_dir": "models"})
    assert json.loads(own.read_text())["weights_dir"] == str(tmp_path / "models")


def test_whatever_goes_wrong_everything_is_stopped(provisioned, monkeypatch):
    stopped = []
    monkeypatch.setattr(provisioned, "start", lambda: None)
    monkeypatch.setattr(provisioned, "stop", lambda: stopped.append(True))
    with refused("--kit: expected the startup kit of a person, with startup/fed_admin.json"), provisioned.running():
        pass
    assert stopped == [True]


def test_a_site_that_does_not_connect_is_named(provisioned, monkeypatch):
    class Client:
        name = "site-2"

    class Session:
        def get_system_info(self):
            return type("Info", (), {"client_info": [Client]})

    monkeypatch.setattr(poc, "PATIENCE", -1)
    (provisioned.kits / "site-1" / "log.txt").write_text("2026 - Cell - ERROR - certificate is not yet valid\n")
    with refused(
        "federation: expected all sites to connect, site-1 did not; site-1 said last: certificate is not yet valid"
    ):
        provisioned.wait_until_ready(Session())


def test_nobody_waits_for_a_server_in_silence_and_its_last_words_are_said(provisioned, monkeypatch):
    lines = []

    def open_session(kit, *, patience):
        raise NoAnswer("server: expected an answer from localhost:1, got none")

    clock = iter((0.0, 1.0, 2.0, 1000.0))
    monkeypatch.setattr(poc, "open_session", open_session)
    monkeypatch.setattr(poc.time, "monotonic", lambda: next(clock))
    (provisioned.kits / provisioned.server).mkdir(exist_ok=True)
    (provisioned.kits / provisioned.server / "output.txt").write_text("Traceback\nOSError: port in use\n")
    sentence = "server: expected an answer from localhost:1, got none; the server said last: OSError: port in use"
    with refused(sentence), contextlib.ExitStack() as stack:
        provisioned.connect(stack, lines.append)
    assert lines == ["the server does not answer yet"] * 2


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """What the console command hands on."""
    made = []
    monkeypatch.setattr("fl_components.cli.federation.quiet_flare", lambda: None)
    monkeypatch.setattr(poc, "poc", lambda *a, **k: made.append((a, k)) or tmp_path)
    return made


def test_the_console_command_passes_everything_on(calls, tmp_path, capsys):
    words = "poc j --workspace w --sites 2 --variant paper --set a=1 --site min_count=4"
    assert main(words.split()) == 0
    (job, workspace, changes), options = calls[-1]
    assert (str(job), str(workspace), changes) == ("j", "w", Changes({"a": 1}, ["paper"], 2))
    assert options["site_settings"] == {"min_count": 4}
    assert capsys.readouterr().out == f"result: {tmp_path}\n"
