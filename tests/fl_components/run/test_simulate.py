import json
import subprocess
import sys
from pathlib import Path

import pytest
from factories import ROOT, refused
from job_factories import write_job
from review_factories import make_run

from fedmend.errors import FedMendError
from fedmend.review.desk import Desk
from fl_components.job.folder import UNCHANGED, Changes
from fl_components.run import simulate
from fl_components.run.simulate import lay_policy, seed_lines

JOB = ROOT / "jobs" / "fedmlp_ich"


@pytest.fixture
def job(tmp_path):
    return write_job(tmp_path / "job")


def configs(job):
    return tuple(
        json.loads((job / "app" / "config" / f"config_fed_{w}.json").read_text()) for w in ("server", "client")
    )


def test_the_policy_is_laid_with_the_settings_of_the_command(tmp_path):
    lay_policy(tmp_path, {"data_root": "/data/{SITE_NAME}", "min_count": 7})
    settings = json.loads((tmp_path / "local" / "fedmend.json").read_text())
    assert (settings["data_root"], settings["min_count"]) == ("/data/{SITE_NAME}", 7)
    tracked = ROOT / "simulator_workspace" / "local"
    for name in ("privacy.json", "resources.json"):
        assert (tmp_path / "local" / name).read_bytes() == (tracked / name).read_bytes()
    assert json.loads((tracked / "fedmend.json").read_text())["data_root"] == "phantom"


def test_without_the_policy_of_the_checkout_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(simulate, "POLICY", tmp_path / "nowhere")
    with refused("site policy: expected simulator_workspace/local in the FedMend checkout, not found"):
        lay_policy(tmp_path / "w", {})


@pytest.mark.parametrize(
    ("given", "laid"),
    [
        ("sites/{SITE_NAME}", "{cwd}/sites/{SITE_NAME}"),
        ("~/sites", "{home}/sites"),
        ("/data/{SITE_NAME}", "/data/{SITE_NAME}"),
        ("phantom", "phantom"),
        (3, 3),
    ],
)
def test_a_relative_data_root_starts_at_the_folder_of_the_person_who_types_it(tmp_path, monkeypatch, given, laid):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/person")
    lay_policy(tmp_path / "w", {"data_root": given})
    settings = json.loads((tmp_path / "w" / "local" / "fedmend.json").read_text())
    if isinstance(laid, str):
        laid = laid.replace("{cwd}", str(tmp_path)).replace("{home}", "/home/person")
    assert settings["data_root"] == laid
    assert settings["state_dir"] == "state"  # stays in the workspace


def test_a_relative_folder_of_weights_starts_there_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay_policy(tmp_path / "w", {"weights_dir": "models"})
    settings = json.loads((tmp_path / "w" / "local" / "fedmend.json").read_text())
    assert settings["weights_dir"] == str(tmp_path / "models")


OTHER_FILES = "--workspace: expected a new folder or one of an earlier run, got one with other files"


@pytest.mark.parametrize("content", ["thesis.txt", "local/notes.json", "local/fedmend.json startup/client.key"])
def test_a_workspace_with_other_files_is_not_emptied(tmp_path, content):
    for name in content.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    with refused(OTHER_FILES):
        lay_policy(tmp_path, {})
    assert all((tmp_path / name).read_text() == "{}" for name in content.split())
    assert not (tmp_path / "local" / "privacy.json").exists()


def test_a_file_is_no_workspace(tmp_path):
    (tmp_path / "file").write_text("x")
    with refused(OTHER_FILES):
        lay_policy(tmp_path / "file", {})


def test_the_tracked_workspace_is_not_emptied(tmp_path, monkeypatch):
    policy = tmp_path / "simulator_workspace" / "local"
    policy.mkdir(parents=True)
    (policy / "fedmend.json").write_text("{}")
    monkeypatch.setattr(simulate, "POLICY", policy)
    for workspace in (policy.parent, policy):
        with refused(OTHER_FILES):
            lay_policy(workspace, {"min_count": 9})
    assert (policy / "fedmend.json").read_text() == "{}"


@pytest.mark.parametrize("folders", [[], ["server", "startup"]], ids=["as the policy was laid", "after a run"])
def test_the_workspace_of_an_earlier_run_is_used_again(tmp_path, folders):
    lay_policy(tmp_path, {})
    for name in folders:
        (tmp_path / name).mkdir()
    lay_policy(tmp_path, {"min_count": 9})
    assert json.loads((tmp_path / "local" / "fedmend.json").read_text())["min_count"] == 9


class Simulator:
    """Stands in for the process: notes the command and the configured job, then leaves these records."""

    def __init__(self, *, code=0, results=True, decisions=(), log=""):
        self.code, self.results, self.decisions, self.log = code, results, decisions, log

    def __call__(self, command, results, server_log, **streams):
        self.command, self.streams = command, streams
        self.job = configs(Path(command[command.index("simulator") + 1]))
        records = Path(command[command.index("-w") + 1]) / "server" / "simulate_job" / "fedmend"
        records.mkdir(parents=True)
        if self.results:
            (records / "results.json").write_text('{"final": {}}')
        (records / "decisions.jsonl").write_text("".join(json.dumps(d) + "\n" for d in self.decisions))
        if self.log:
            (records.parents[1] / "log.txt").write_text(self.log)
        return self.code


@pytest.fixture
def play(job, tmp_path, monkeypatch):
    def run(simulator, changes=UNCHANGED, **options):
        monkeypatch.setattr(simulate, "_run_simulator", simulator)
        return simulate.simulate(job, tmp_path / "work", changes, **options)

    return run


def test_the_simulator_gets_the_configured_job_and_gives_back_the_results(play, tmp_path):
    simulator = Simulator()
    assert play(simulator, Changes({"num_rounds": 4}), threads=5) == {"final": {}}
    assert simulator.job[0]["workflows"][0]["args"]["num_rounds"] == 4
    assert simulator.command[-4:] == ["-w", str(tmp_path / "work"), "-t", "2"]  # as many as there are sites
    assert simulator.streams.get("stdout") is None
    assert not list(tmp_path.glob("*.log"))


def test_a_setting_that_the_job_does_not_have_leaves_no_workspace_behind(play, tmp_path):
    with pytest.raises(FedMendError, match="expected a setting of this job"):
        play(Simulator(), Changes({"rounds": 4}))
    assert not (tmp_path / "work").exists()


def test_a_quiet_run_keeps_the_output_in_a_file(play, tmp_path):
    simulator = Simulator()
    play(simulator, quiet=True)
    assert simulator.streams["stdout"].name == str(tmp_path / "work.log")


def test_a_run_with_a_refused_site_fails_with_its_sentence(play):
    refusal = {"what": "refused", "round": 0, "value": {"site": "site-2", "reason": "site-2: train.csv row 3: bad"}}
    other = {"what": "best_model", "round": 0, "value": {}}
    with refused("simulator: expected a complete run, got exit code 0: site-2: train.csv row 3: bad"):
        play(Simulator(decisions=[other, refusal]))


def test_a_decision_that_was_half_written_when_the_run_ended_is_passed_over(tmp_path):
    refusal = {"what": "refused", "round": 0, "value": {"site": "site-2", "reason": "site-2: no data"}}
    (tmp_path / "decisions.jsonl").write_text(json.dumps(refusal) + '\n{"what": "refu')
    assert simulate.refused_results(tmp_path) == ["site-2: no data"]


@pytest.mark.parametrize("fault", [{"code": 2}, {"results": False}])
def test_a_run_that_ends_without_a_reason_fails_and_says_so(play, fault):
    code = fault.get("code", 0)
    with refused(f"simulator: expected a complete run, got exit code {code}: it ended without a word"):
        play(Simulator(**fault))


def test_what_flare_refuses_is_said_as_its_last_error(play):
    log = "\n".join(
        [
            "2026-01-01 10:00:00,000 - Cell - ERROR - [identity=,run=?]: first",
            "2026-01-01 10:00:01,000 - SimulatorRunner - \x1b[31mERROR\x1b[0m - Simulator setup error: ValueError: bad",
            "2026-01-01 10:00:02,000 - SimulatorRunner - INFO - good bye",
        ]
    )
    with refused("simulator: expected a complete run, got exit code 1: Simulator setup error: ValueError: bad"):
        play(Simulator(code=1, results=False, log=log))


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_that_the_server_stopped_fails_with_its_last_sentence(play, quiet):
    log = "\n".join(
        [
            "2026-01-01 10:00:00,000 - fedmend.run - ERROR - run stopped: of another time",
            "2026-01-01 10:00:01,000 - fedmend.run - ERROR - PHANTOM run stopped: run_name 'x': expected a new run",
            "2026-01-01 10:00:02,000 - ServerRunner - INFO - asked to abort",
        ]
    )
    with refused("simulator: expected a complete run, got exit code 2: run_name 'x': expected a new run"):
        play(Simulator(code=2, results=False, log=log), quiet=quiet)


BUSY = (
    "2026-01-01 10:00:00,000 - TCPServer - ERROR - 7: Error binding to  127.0.0.1:{}: OSError: [Errno 98] Address"
    " already in use\n"
)


def test_a_server_whose_port_another_start_has_taken_says_so(play):
    with refused(
        "simulator: expected a complete run, got exit code 0: server: expected a free port, got one that another"
        " process has taken in the same moment; start it again"
    ):
        play(Simulator(results=False, log=5 * BUSY.format(4001)))


def test_ports_that_were_passed_over_or_became_free_stop_nobody(play):
    log = 4 * BUSY.format(4001) + "".join(BUSY.format(port) for port in range(4002, 4010))
    assert play(Simulator(log=log)) == {"final": {}}
    with refused("simulator: expected a complete run, got exit code 2: site-1: no data"):
        play(Simulator(code=2, results=False, log=5 * BUSY.format(4001) + "run stopped: site-1: no data"))


WRITES = "import sys, time; open(sys.argv[1], 'w').write(sys.argv[2]); time.sleep(float(sys.argv[3])); sys.exit(3)"


@pytest.mark.parametrize(("sleeps", "code"), [(600, 0), (0, 3)])
@pytest.mark.parametrize(
    ("name", "text"),
    [("results.json", "{}"), ("log.txt", "ERROR run stopped: site-1: no data"), ("log.txt", 5 * BUSY.format(4001))],
)
def test_a_simulator_that_does_not_end_after_its_run_is_stopped(tmp_path, monkeypatch, name, text, sleeps, code):
    monkeypatch.setattr(simulate, "GRACE" if name == "results.json" else "LAST_WORDS", 0.0)
    command = [sys.executable, "-c", WRITES, str(tmp_path / name), text, str(sleeps)]
    assert simulate._run_simulator(command, tmp_path / "results.json", tmp_path / "log.txt") == code
    assert (tmp_path / name).is_file()


DRAWS = "import pathlib, sys, time; time.sleep(1.5); pathlib.Path(sys.argv[1]).write_text('last')"


def test_the_picture_of_the_run_is_handed_on(tmp_path):
    seen, picture = [], tmp_path / "progress.json"
    command = [sys.executable, "-c", DRAWS, str(picture)]
    assert simulate._run_simulator(command, tmp_path / "results.json", tmp_path / "log.txt", watch=seen.append) == 0
    assert set(seen) == {"last"}


def test_an_interrupted_simulator_is_stopped_with_its_children(tmp_path, monkeypatch):
    started, results = [], tmp_path / "results.json"

    class Popen(subprocess.Popen):
        def wait(self, timeout=None):
            if timeout is not None:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait()

    monkeypatch.setattr(simulate.subprocess, "Popen", Popen)
    with pytest.raises(KeyboardInterrupt):
        simulate._run_simulator([sys.executable, "-c", "import time; time.sleep(600)"], results, tmp_path / "log.txt")
    assert started[0].poll() == -9


def test_mean_and_deviation_over_seeds():
    runs = [
        {"final": {"test": {"auc": auc, "map": ap, "bacc": None}}} for auc, ap in ((0.7, 0.5), (0.8, None), (0.9, 0.6))
    ]
    assert seed_lines(runs) == ["test AUC: 80.00 ± 10.00", "test mAP: n/a"]  # as in all tables
    assert seed_lines(runs[:1]) == ["test AUC: 70.00", "test mAP: 50.00"]  # one seed has no deviation
    runs[1]["final"]["val"] = {"auc": 0.5}
    assert seed_lines(runs)[-1] == "val AUC: n/a"


def test_a_workspace_with_verdicts_of_people_is_not_emptied(tmp_path):
    run = make_run(tmp_path / "workspace" / "site-1", (0, 1, 1, 0, 0.9))
    lay_policy_over(tmp_path / "workspace")
    desk = Desk(run)
    desk.judge(desk.item(0, 1), "accept", reviewer="AB")
    with refused(
        "--workspace: expected one without verdicts of people, got 1 of site-1; choose another workspace, and the same"
        " state_dir outside of both (--site state_dir=...) for both runs"
    ):
        lay_policy(tmp_path / "workspace", {})
    assert len(Desk(run).ledger.verdicts()) == 1


def lay_policy_over(workspace):
    """As an earlier run leaves a workspace."""
    (workspace / "local").mkdir()
    (workspace / "local" / "fedmend.json").write_text("{}")
    lay_policy(workspace, {})
