"""Jobs from Python before anything runs; what the places do has tests of its own."""

import copy
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from factories import ROOT, refused
from job_factories import SERVER, write_job
from run_factories import make_run

from fedmend.errors import FedMendError
from fedmend.records.run_folder import RUN_FOLDER
from fl_components import api
from fl_components.api import Job, Run
from fl_components.job.folder import Changes


@pytest.fixture
def job(tmp_path):
    variant = {"about": "a longer run", "set": {"num_rounds": 20}}
    return write_job(tmp_path / "job", long=variant)


class Place:
    """Stands in for a run function: notes what it is given and leaves a run where that function would."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *args, **options):
        self.args, self.options = args, options
        self.level = logging.getLogger("nvflare").level
        folder = args[1] / RUN_FOLDER if self.folder is None else self.folder / "workspace" / "fedmend"
        folder.mkdir(parents=True)
        make_run(folder)
        return {} if self.folder is None else self.folder


@pytest.fixture
def places(monkeypatch, tmp_path):
    from fl_components.run import local, poc, simulate, submit

    made = {"local": Place(None), "simulator": Place(None), "poc": Place(tmp_path / "p"), "kit": Place(tmp_path / "k")}
    monkeypatch.setattr(local, "run_local", made["local"])
    monkeypatch.setattr(simulate, "simulate", made["simulator"])
    monkeypatch.setattr(poc, "poc", made["poc"])
    monkeypatch.setattr(submit, "submit", made["kit"])
    monkeypatch.chdir(tmp_path)
    return made


def test_a_job_shows_its_name_method_variables_and_variants(job):
    opened = Job(job, variants=["long"], sites=3, batch_size=2, **{"phantom.images": 99})
    assert (opened.name, opened.method, opened.run_name) == ("job", "own", "job_long")
    assert opened.sites == ("site-1", "site-2", "site-3")
    assert (opened.variables["num_rounds"], opened.variables["batch_size"]) == (20, 2)
    assert opened.variables["phantom"]["images"] == 99
    assert opened.variants == {"long": "a longer run"}
    assert repr(opened) == "job job with long: own, 3 sites, 20 rounds"
    shown = str(opened).splitlines()
    assert shown[:2] == [repr(opened), "variables:"]
    assert "  batch_size      2" in shown
    assert shown[-2:] == ["variants:", "  long  a longer run"]


def test_a_job_that_does_not_name_its_method_is_opened(tmp_path):
    server = copy.deepcopy(SERVER)
    del server["workflows"][0]["args"]["method"]  # for report and log alone
    assert Job(write_job(tmp_path / "job", server=server)).method == ""


def test_a_job_of_ours_is_found_by_its_name_and_a_folder_here_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Job("fedmlp_ich").folder == ROOT / "jobs" / "fedmlp_ich"
    assert Job("fedmlp_ich").method == "fedmlp"
    write_job(tmp_path / "fedmlp_ich")
    assert Job("fedmlp_ich").method == "own"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"num_round": 3},
            "--set: expected a setting of this job, got 'num_round'; nearest: num_rounds, warmup_rounds",
        ),
        ({"num_rounds": "x"}, "job variable num_rounds: expected a whole number, got 'x'"),
        ({"variants": ["short"]}, "variant: expected one of long, got 'short'"),
        ({"variants": "long"}, "variants: expected a list of names, got 'long'"),
        ({"variants": None}, "variants: expected a list of names, got None"),
        ({"variants": [["long"]]}, "variants: expected a list of names, got [['long']]"),
        ({"sites": "3"}, "sites: expected a whole number >= 0, got '3'"),
        ({"sites": 10**6}, "sites: expected at most 10000, got 1000000"),
        ({"sites": -1}, "sites: expected a whole number >= 0, got -1"),
        ({"sites": np.array([1, 2])}, "sites: expected a whole number >= 0, got [1, 2]"),
        ({"names": [{"a"}]}, "job variable names: expected a value that JSON can hold, got [{'a'}]"),
        ({"batch_size": float("nan")}, "job variable batch_size: expected a value that JSON can hold, got nan"),
        ({"learning_rate": 10**400}, f"job variable learning_rate: expected a value that JSON can hold, got 1{0:0119}"),
        ({"num_rounds": 10**5000}, "job variable num_rounds: expected a value that JSON can hold, got another int"),
    ],
)
def test_what_the_command_refuses_is_refused_at_once(job, given, sentence):
    with refused(sentence):
        Job(job, **given)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("condist_organs", {"spacing": [2, 2, 2], "patch": ["1", "2", "3"]}, "got ['1', '2', '3']"),
        ("condist_organs", {"spacing": [2, 2, 2], "patch": [16, 16, 0]}, "got [16, 16, 0]"),
        ("evaluate", {"packages": [3]}, "expected a list of different packages, got [3]"),
        ("fedmlp_ich", {"network": "nosuch"}, "timm/NAME or monai/NAME, got 'nosuch'"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_before_a_run_has_a_workspace(tmp_path, name, given, sentence):
    job = Job(name, **given)
    with pytest.raises(FedMendError, match=re.escape(sentence)):
        job.run(workspace=tmp_path / "w")
    assert not (tmp_path / "w").exists()


TOO_LONG = "x" * 256


@pytest.mark.parametrize("path", [3, b"job", np.array(["job", "local"]), "a\0b", TOO_LONG, "job/meta.json/below"])
def test_what_is_no_path_is_refused_in_a_sentence(job, places, path):
    wrong = f"expected a path that can be looked up, got {path!r:.120}"
    asked = {"job": Job, "run": Run, "configure": Job(job).save, "place": Job(job).run}
    asked["--workspace"] = lambda path: Job(job).run("local", path)
    for word, ask in asked.items():
        with refused(f"{word}: {wrong}"):
            ask(path)
    with refused("job: expected a path that can be looked up, got None"):
        Job(None)


def test_a_workspace_that_is_a_file_is_refused(job, places):
    with refused("--workspace: expected a folder, or the name of a new one, got 'job/meta.json'"):
        Job(job).run("local", "job/meta.json")


def test_numbers_of_numpy_tuples_and_paths_are_what_a_job_file_holds(job):
    given = {"num_rounds": np.int64(4), "learning_rate": np.float64(0.25), "names": ("a", "b"), "weights": Path("x.pt")}
    found = Job(job, variants=(name for name in ["long"]), sites=np.int64(3), **given)
    assert found.sites == ("site-1", "site-2", "site-3")
    assert found.run_name == "job_long"
    values = [found.variables[name] for name in given]
    assert values == [4, 0.25, ["a", "b"], "x.pt"]
    assert [*map(type, values)] == [int, float, list, str]


def test_a_job_is_saved_with_its_settings_into_a_new_folder(job, tmp_path):
    assert Job(job, num_rounds=2).save(tmp_path / "out") == tmp_path / "out"
    server = json.loads((tmp_path / "out" / "app" / "config" / "config_fed_server.json").read_text())
    assert server["workflows"][0]["args"]["num_rounds"] == 2
    with refused(f"configure: expected a new folder, {tmp_path / 'out'} exists"):
        Job(job).save(tmp_path / "out")


@pytest.mark.parametrize("place", ["local", "simulator"])
def test_a_simulation_gets_all_settings_and_gives_back_its_run(job, places, place):
    run = Job(job, variants=["long"], sites=3, batch_size=2).run(place, threads=2, site={"min_count": 4})
    assert run.folder == Path("runs/job_long") / RUN_FOLDER
    assert run.name == "demo"
    assert places[place].args == (job, Path("runs/job_long"), Changes({"batch_size": 2}, ["long"], 3))
    options = places[place].options
    assert options.pop("watch")
    assert options == {"threads": 2, "site_settings": {"min_count": 4}, "quiet": True}


def test_settings_of_sites_are_what_their_file_holds(job, places):
    Job(job).run("local", site={"data_root": Path("data"), "min_count": np.int64(4)})
    assert places["local"].options["site_settings"] == {"data_root": "data", "min_count": 4}
    with refused("site: expected names with values, got 'data'"):
        Job(job).run("local", site="data")


def test_without_threads_a_place_has_its_own_number(job, places):
    Job(job).run(workspace="w")
    assert places["local"].args[:2] == (job, Path("w"))
    assert "threads" not in places["local"].options


def test_a_federation_of_this_machine_is_quiet_and_gives_back_what_was_fetched(job, places, tmp_path, caplog):
    caplog.set_level(logging.INFO, "nvflare")
    run = Job(job).run("poc", site={"min_count": 4})
    assert run.folder == tmp_path / "p" / "workspace" / "fedmend"
    assert places["poc"].args[:2] == (job, Path("runs/job"))
    assert places["poc"].options["site_settings"] == {"min_count": 4}
    assert places["poc"].options["show"]("job submitted") is None
    assert places["poc"].options["watch"]
    assert (places["poc"].level, logging.getLogger("nvflare").level) == (logging.CRITICAL, logging.INFO)


@pytest.mark.parametrize("progress", [True, False])
def test_a_startup_kit_submits_the_job_and_says_its_id_unless_told_not_to(job, places, tmp_path, progress):
    (tmp_path / "kit").mkdir()
    run = Job(job, num_rounds=2).run(tmp_path / "kit", progress=progress)
    assert run.folder == tmp_path / "k" / "workspace" / "fedmend"
    assert places["kit"].args == (job, tmp_path / "kit", Path("runs/results"), Changes({"num_rounds": 2}, []))
    assert places["kit"].options["announce"] is (print if progress else None)


@pytest.mark.parametrize(
    ("place", "options", "sentence"),
    [
        ("simulate", {}, "place: expected local, simulator, poc or the folder of a startup kit, got 'simulate'"),
        (
            ".",
            {"site": {"a": 1}},
            "site: expected no settings with a startup kit, whose sites have their own fedmend.json",
        ),
        ("poc", {"threads": 2}, "threads: expected none with a federation, got 2"),
        ("local", {"threads": np.array([1, 2])}, "threads: expected a whole number >= 0, got [1, 2]"),
        ("local", {"site": np.array([1, 2])}, "site: expected names with values, got array([1, 2])"),
    ],
)
def test_what_a_place_does_not_have_is_refused(job, places, place, options, sentence):
    with refused(sentence):
        Job(job).run(place, **options)


def test_progress_is_a_bar_and_none_where_nobody_wants_one(job, places, capsys):
    Job(job).run("local", "a", progress=False)
    assert places["local"].options["watch"] is None
    assert capsys.readouterr().err == ""
    Job(job).run("simulator", "b")
    assert "round 0 of 9" in capsys.readouterr().err


def test_the_module_offers_jobs_and_runs():
    assert api.__all__ == ["Job", "Run"]
