"""What a run without FLARE is given and leaves behind; the run itself is that of fedmend.local.local_federation."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from factories import ROOT, refused
from job_factories import CLIENT, SERVER, write_job

from fl_components.job.folder import UNCHANGED, Changes

METHOD = {
    "id": "method",
    "path": "fedmend.baselines.fixmatch.FixMatch",
    "args": {"local_iterations": 3, "tau_positive": 0.9, "tau_negative": 0.1},
}
WORKFLOW = {
    "id": "workflow",
    "path": "fedmend.methods.labelsets.LabelSetWorkflow",
    "args": {"aggregation": "masked"},
}


class Run:
    """Stands in for the run: notes what it is given, then leaves these records."""

    def __init__(self, *decisions):
        self.decisions = decisions

    def __call__(self, **given):
        self.__dict__ |= given
        logging.getLogger("fedmend.run").warning("round 1/1")
        if self.watch:
            self.watch({"state": "runs", "done": 1})
        records = self.workspace / "server" / "simulate_job" / "fedmend"
        records.mkdir(parents=True)
        (records / "run.json").write_text("{}")
        (records / "results.json").write_text('{"final": {}}')
        (records / "decisions.jsonl").write_text("".join(json.dumps(d) + "\n" for d in self.decisions))
        return records


@pytest.fixture
def play(tmp_path, monkeypatch):
    from fl_components.run import local

    server = {**SERVER, "components": [WORKFLOW]}
    job = write_job(tmp_path / "job", client={**CLIENT, "components": [METHOD]}, server=server)

    def start(run, changes=UNCHANGED, *, workspace="work", **options):
        monkeypatch.setattr(local, "run_locally", run)
        return local.run_local(job, tmp_path / workspace, changes, **options)

    return start


def test_a_run_gets_the_configured_job_and_gives_back_the_results(play, tmp_path):
    run = Run()
    assert play(run, Changes({"num_rounds": 4, "batch_size": 2}, sites=3), threads=2) == {"final": {}}
    assert (run.run["num_rounds"], run.site["batch_size"], run.threads) == (4, 2, 2)
    assert run.sites == ("site-1", "site-2", "site-3")
    assert run.workspace == tmp_path / "work"
    assert (type(run.method).__name__, run.settings["tau_positive"]) == ("FixMatch", 0.9)


def test_sites_have_folders_of_their_own_and_the_settings_of_the_command(play, tmp_path):
    run = Run()
    play(run, site_settings={"data_root": "/data/{SITE_NAME}", "min_count": 7})
    for name in ("site-2", "server"):
        config = run.config_of(name)
        assert (str(config.data_root), config.min_count) == (f"/data/{name}", 7)
        assert config.state_dir == tmp_path / "work" / name / "state"
    tracked = json.loads((ROOT / "simulator_workspace" / "local" / "fedmend.json").read_text())
    assert tracked["data_root"] == "phantom"


def test_initial_weights_start_at_the_app_folder_of_the_job(play, tmp_path):
    run = Run()
    play(run, Changes({"weights": "initial.pt"}))
    assert (run.app_dir, run.run["weights"]) == (tmp_path / "job" / "app", "initial.pt")


def test_the_workspace_of_an_earlier_run_is_emptied(play, tmp_path):
    play(Run())
    (tmp_path / "work" / "site-1").mkdir()
    (tmp_path / "work" / "old.txt").touch()
    play(Run())
    assert sorted(f.name for f in (tmp_path / "work").iterdir()) == ["local", "server"]


def test_a_workspace_with_other_files_is_not_emptied(play, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").touch()
    with refused("--workspace: expected a new folder or one of an earlier run, got one with other files"):
        play(Run())
    assert (tmp_path / "work" / "thesis.txt").is_file()


def test_two_runs_in_threads_of_one_process_go_one_after_the_other(play):
    both, met = threading.Barrier(2), []

    def meets(**given):
        try:
            both.wait(0.1)
            met.append(True)
        except threading.BrokenBarrierError:
            met.append(False)
        return Run()(**{"watch": None, **given})

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: play(meets, workspace=name), ("one", "two")))
    assert met == [False, False]


def test_a_mistyped_setting_leaves_no_workspace_behind(play, tmp_path):
    with refused("--set: expected a setting of this job, got 'num_round'; nearest: num_rounds"):
        play(Run(), Changes({"num_round": 4}))
    assert not (tmp_path / "work").exists()


def test_a_run_with_a_refused_site_fails_with_its_sentence(play):
    refusal = {"what": "refused", "round": 0, "value": {"site": "site-2", "reason": "site-2: train.csv row 3: bad"}}
    with refused("run: expected a complete run, got a refused result: site-2: train.csv row 3: bad"):
        play(Run({"what": "best_model", "round": 0, "value": {}}, refusal))


def test_the_picture_of_a_run_is_handed_on_as_json(play):
    seen = []
    play(Run(), watch=seen.append)
    assert [json.loads(text) for text in seen] == [{"state": "runs", "done": 1}]


def test_a_quiet_run_is_kept_in_a_file_where_nobody_has_set_up_logging(play, tmp_path, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    play(Run(), quiet=True)
    assert "round 1/1" in (tmp_path / "work.log").read_text()
    assert logging.getLogger("fedmend").level == logging.NOTSET


@pytest.mark.parametrize("quiet", [False, True])
def test_a_quiet_run_keeps_what_it_says_in_a_file(play, tmp_path, caplog, quiet):
    play(Run(), quiet=quiet)
    log = tmp_path / "work.log"
    assert log.is_file() == quiet
    assert ("round 1/1" in caplog.text) != quiet
    assert not quiet or "round 1/1" in log.read_text()
