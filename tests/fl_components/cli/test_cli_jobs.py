import json
from argparse import Namespace
from pathlib import Path

import pytest
from cli_calls import call, capture
from factories import ROOT

from fedmend.errors import FedMendError
from fedmend.records.run_folder import RUN_FOLDER
from fl_components.cli import build_parser
from fl_components.compare.runs import Comparison
from fl_components.job.folder import Changes


def test_a_job_is_configured_into_a_new_folder(tmp_path, monkeypatch, capsys):
    seen = capture(monkeypatch, "fl_components.job.folder.configure_job")
    out = tmp_path / "new"
    words = ["configure", "jobs/x", out, "--variant", "paper,fedavg", "--sites", 3, "--tracking", "mlflow"]
    assert call(*words, "--set", "a=1", "b.c=x") == 0
    changes = Changes({"a": 1, "b.c": "x"}, ["paper", "fedavg"], 3, ["mlflow"])
    assert seen == [((Path("jobs/x"), out, changes), {"strict": True})]
    assert capsys.readouterr().out == f"job written to {out}\n"


def test_a_job_is_not_configured_over_another_one(tmp_path, capsys):
    assert call("configure", "jobs/x", tmp_path) == 1
    assert capsys.readouterr().err == f"fedmend: configure: expected a new folder, {tmp_path} exists\n"


def test_simulate_passes_everything_on(monkeypatch):
    seen = []
    monkeypatch.setattr("fl_components.run.simulate.simulate", lambda *a, **k: seen.append((a, k)) or {"final": {}})
    words = "simulate jobs/x --workspace w --threads 5 --sites 2 --variant paper --quiet --set a=1 --site min_count=4"
    assert call(*words.split()) == 0
    assert seen == [
        (
            (Path("jobs/x"), Path("w"), Changes({"a": 1}, ["paper"], 2)),
            {"threads": 5, "site_settings": {"min_count": 4}, "quiet": True},
        )
    ]


@pytest.mark.parametrize(("words", "devices"), [("0,1", [0, 1]), ("", [])])
def test_simulate_spreads_the_sites_over_gpus(monkeypatch, words, devices):
    seen = []
    monkeypatch.setattr("fl_components.run.simulate.simulate", lambda *a, **k: seen.append(k) or {"final": {}})
    assert call("simulate", "jobs/x", "--gpu", words, "--site", "min_count=4") == 0
    assert seen[0]["site_settings"] == {"min_count": 4, "gpu": {"devices": devices}}


def test_several_seeds_are_several_runs_with_mean_and_deviation(tmp_path, monkeypatch, capsys):
    def run(job, workspace, changes, **options):
        seen.append((workspace.name, changes.variables))
        return {"final": {"test": {"auc": 0.5 + 0.1 * changes.variables["seed"]}}}

    seen = []
    monkeypatch.setattr("fl_components.run.simulate.simulate", run)
    assert call("simulate", "jobs/x", "--workspace", tmp_path, "--seeds", "0,2", "--set", "a=1") == 0
    assert seen == [("seed-0", {"a": 1, "seed": 0}), ("seed-2", {"a": 1, "seed": 2})]
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "final global model, mean ± sd over 2 seeds:",
        "test AUC: 60.00 ± 14.14",
    ]
    assert [r["seed"] for r in json.loads((tmp_path / "seeds.json").read_text())] == [0, 2]


def test_a_run_that_fails_is_one_sentence_and_exit_code_1(monkeypatch, capsys):
    def run(*args, **options):
        raise FedMendError("simulator: expected a complete run, got exit code 2: site-2: ...")

    monkeypatch.setattr("fl_components.run.simulate.simulate", run)
    assert call("simulate", "jobs/x") == 1
    assert capsys.readouterr().err == "fedmend: simulator: expected a complete run, got exit code 2: site-2: ...\n"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("num_rounds=abc", "job variable num_rounds: expected a whole number, got 'abc'"),
        ("phantom.slcies=3", "job variable phantom: expected the fields "),
    ],
)
def test_a_variable_that_the_job_cannot_use_is_one_sentence_and_exit_code_1(tmp_path, capsys, word, sentence):
    out = tmp_path / "out"
    assert call("configure", ROOT / "jobs" / "fedmlp_ich", out, "--set", word) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fedmend: {sentence}")
    assert not out.exists()


def test_defaults_of_a_simulation_are_those_of_the_bare_command():
    args = build_parser().parse_args(["simulate", "jobs/x"])
    assert isinstance(args, Namespace)
    assert (args.local, args.threads, args.sites, args.variants, args.set, args.site) == (False, None, 0, [], [], [])


def test_without_a_workspace_a_run_has_its_jobs_name_and_a_quiet_one_says_where_it_is(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(
        "fl_components.run.simulate.simulate", lambda job, folder, changes, **k: seen.append(folder) or {"final": {}}
    )
    assert call("simulate", "jobs/x", "--quiet") == 0
    assert seen == [Path("runs/x")]
    assert capsys.readouterr().out == f"finished; records and report.html are in {Path('runs/x') / RUN_FOLDER}\n"


def test_jobs_are_listed_with_their_variants_and_what_these_are(capsys):
    assert call("jobs", ROOT / "jobs") == 0
    lines = capsys.readouterr().out.splitlines()
    jobs = [line for line in lines if not line.startswith(" ")]
    assert jobs == [str(file.parent) for file in sorted((ROOT / "jobs").glob("*/meta.json"))]
    start = lines.index(str(ROOT / "jobs" / "fedia_ms"))
    shared = {file.stem for file in (ROOT / "jobs" / "variants" / "partial_masks").glob("*.json")}
    listed = lines[start + 1 : start + 2 + len(shared)]
    assert [line.split()[0] for line in listed] == sorted({"paper", *shared})
    about = json.loads((ROOT / "jobs" / "fedia_ms" / "variants" / "paper.json").read_text())["about"]
    assert f"  {'paper':20} {about}" in listed


def test_a_folder_without_jobs_is_refused(tmp_path, capsys):
    assert call("jobs", tmp_path) == 1
    sentence = f"jobs: expected a folder with job folders, found none in {tmp_path}"
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"


def test_a_run_without_flare_gets_the_same_and_as_many_threads_as_it_wants(monkeypatch):
    seen = []
    monkeypatch.setattr("fl_components.run.local.run_local", lambda *a, **k: seen.append((a, k)) or {"final": {}})
    words = "simulate jobs/x --workspace w --local --variant paper,fedavg --set a=1"
    assert call(*words.split()) == call(*words.split(), "--threads", 3) == 0
    options = {"site_settings": {}, "quiet": False}
    told = (Path("jobs/x"), Path("w"), Changes({"a": 1}, ["paper", "fedavg"]))
    assert seen == [(told, options), (told, {**options, "threads": 3})]


def test_compare_passes_everything_on_and_prints_the_table(tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr("fl_components.compare.runs.compare", lambda *a, **k: seen.append((a, k)) or {"own": ["r"]})
    monkeypatch.setattr("fedmend.records.run_folder.load_run", lambda folder: Namespace(info={"seed": 7}))
    monkeypatch.setattr("fl_components.compare.runs.federations", lambda comparison: {7: 3})
    written = "fedmend.comparison.paired.write_comparison"
    monkeypatch.setattr(written, lambda runs, out, metric, federations, primary: f"{list(runs)} {metric} {federations}")
    monkeypatch.setattr("fl_components.compare.paper_rows.primary_measure", lambda job: "auc")
    monkeypatch.setattr("fl_components.job.folder.read_job", lambda job: Namespace(run={"method": "own"}))
    monkeypatch.setattr("fl_components.compare.runs.cases", lambda comparison, out: [])
    monkeypatch.setattr("fl_components.compare.trial.try_rows", lambda cases, **how: ({}, {}))
    words = "compare jobs/x --rows a,paper+b --seeds 0-2,7 --variant v --sites 3 --processes 2 --metric f1"
    assert call(*words.split(), "--set", "a={SEED}", "--site", "min_count=4", "--out", tmp_path) == 0
    (((comparison, out), options),) = seen
    wanted = Comparison(Path("jobs/x"), ["a", "paper+b"], [0, 1, 2, 7], ["v"], ["a={SEED}"], ["min_count=4"], 3)
    assert (comparison, out, options["processes"]) == (wanted, tmp_path, 2)
    assert capsys.readouterr().out == f"['own'] f1 [3]\nwritten to {tmp_path}\n"


@pytest.mark.parametrize("seeds", ["0,x", "2-1", "0,0", "1-2,2", ""])
def test_seeds_are_different_whole_numbers(capsys, seeds):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["compare", "jobs/x", "--out", "o", "--seeds", seeds])
    assert f"expected different whole numbers like 0,1,2 or 0-2, got {seeds!r}" in capsys.readouterr().err
