"""What the command makes of its words; runs and trials are stood in for."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from cli_calls import call
from factories import ROOT
from job_factories import write_job

from fl_components.cli import build_parser
from fl_components.compare.runs import Comparison

JOBS = ROOT / "jobs"


@pytest.fixture
def seen(monkeypatch):
    """What the parts of the command were given."""

    def try_rows(cases, *, optional, metric, say):
        found.say = say
        found.tried, found.cases = ([case.row for case in cases], optional), [(c.row, c.seed) for c in cases]
        return {case.row: "trial" for case in cases}, found.without

    def compare(comparison, out, **how):
        found.comparison, found.out, found.how = comparison, out, how
        how["failed"].update(found.failed)
        return {row: [row] for row in ("own", *comparison.rows) if row not in found.failed}

    def paper_table(comparison, runs, without, out, wanted):
        found.table = runs, without, wanted.metric
        found.shown.append((wanted, comparison.words, comparison.rows, out))
        return "table"

    def write_level_table(table, out):
        found.levels = table, out
        return "all levels"

    def load_run(folder):
        return Namespace(info={"seed": found.comparison.seeds[0]})

    def write_comparison(runs, out, *, metric, federations, primary):
        found.federations, found.primary = federations, primary
        return "two tables"

    found = Namespace(without={}, failed={}, shown=[])
    monkeypatch.setattr("fl_components.compare.trial.try_rows", try_rows)
    monkeypatch.setattr("fl_components.compare.trial.estimates", lambda trials: {"own": 7.0})
    monkeypatch.setattr("fl_components.compare.trial.fitting_processes", lambda trials: 5)
    monkeypatch.setattr("fl_components.compare.runs.compare", compare)
    monkeypatch.setattr("fl_components.compare.paper_rows.paper_table", paper_table)
    monkeypatch.setattr("fedmend.comparison.level_table.write_level_table", write_level_table)
    monkeypatch.setattr("fedmend.records.run_folder.load_run", load_run)
    monkeypatch.setattr("fedmend.comparison.table_pages.write_paper_table", lambda table, out: "the table")
    monkeypatch.setattr("fedmend.comparison.paired.write_comparison", write_comparison)
    return found


def test_what_is_said_while_data_are_opened_is_printed_at_once(seen, capsys, tmp_path):
    assert call("compare", JOBS / "fedmlp_ich", "--rows", "fedavg", "--out", tmp_path) == 0
    capsys.readouterr()
    seen.say("fedavg, seed 0: opening the data")
    assert capsys.readouterr().out == "fedavg, seed 0: opening the data\n"


def test_a_problem_is_the_table_of_its_main_job_in_a_folder_of_its_name(seen, capsys):
    seen.without = {"fedavg_pl": "expected x"}
    assert call("compare", "missing-classes", "--seeds", "0-1", "--metric", "f1") == 0
    tried, optional = seen.tried
    assert tried[:4] == ["fedmlp", "all_labels", "closed_form", "fedavg"]
    assert optional
    assert seen.comparison.job == JOBS / "fedmlp_ich"
    assert "fedavg" in seen.comparison.rows
    assert "fedavg_pl" not in seen.comparison.rows
    assert (seen.out, seen.how["processes"], seen.how["budget"]) == (Path("runs/missing-classes"), 5, None)
    assert seen.table[1:] == ({"fedavg_pl": "expected x"}, "f1")
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["fedavg_pl: left out: expected x", "the table", f"written to {Path('runs/missing-classes')}"]


@pytest.mark.parametrize("table", [[], ["--table"]])
def test_tables_are_written_without_a_row_that_failed_which_ends_the_command(seen, tmp_path, capsys, table):
    seen.failed = {"fedavg": "seed 1: expected a finite loss"}
    words = ["compare", JOBS / "fedmlp_ich", *table, "--rows", "fedavg,fedavg_pl", "--out", tmp_path]
    assert call(*words) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == f"written to {tmp_path}"
    assert shown.err == (
        "fedmend: --rows: expected runs that end, the tables lack rows that failed:"
        " fedavg, seed 1: expected a finite loss\n"
    )
    if table:
        assert ([*seen.table[0]], seen.table[1]) == (["own", "fedavg_pl"], seen.failed)


def test_rows_that_a_person_names_take_the_place_of_the_tables_and_must_all_learn(seen, tmp_path):
    words = ["compare", JOBS / "fedmlp_ich", "--table", "--rows", "fedavg+learning_rate=0.1", "--out", tmp_path]
    assert call(*words, "--processes", 2, "--budget", "2h") == 0
    assert seen.tried == (["fedmlp", "fedavg+learning_rate=0.1"], False)
    assert seen.how["processes"] == 2
    assert (seen.how["budget"].expected("own"), seen.how["budget"].fits("own")) == (7.0, True)


def test_a_job_with_rows_alone_is_asked_everything_too(seen, tmp_path, capsys):
    assert call("compare", JOBS / "fedmlp_ich", "--rows", "fedavg", "--out", tmp_path) == 0
    assert seen.tried == (["fedmlp", "fedavg"], False)
    assert seen.comparison == Comparison(JOBS / "fedmlp_ich", ["fedavg"], [0, 1, 2], [], [], [])
    assert (seen.how["processes"], seen.how["budget"], seen.how["cluster"]) == (1, None, "")
    assert capsys.readouterr().out == f"two tables\nwritten to {tmp_path}\n"


def test_every_seed_is_tried_where_data_depend_on_it(seen, tmp_path):
    words = ["--rows", "fedavg", "--seeds", "0-1", "--out", tmp_path]
    for given, seeds in (
        ([], [0]),
        (["--set", "phantom.seed={SEED}"], [0, 1]),
        (["--site", "data_root=d{SEED}"], [0, 1]),
    ):
        assert call("compare", JOBS / "fedmlp_ich", *words, *given) == 0
        assert seen.cases == [(row, seed) for seed in seeds for row in ("fedmlp", "fedavg")]


def test_data_may_vary_with_the_seed_or_with_every_nth(seen, tmp_path):
    words = ["compare", JOBS / "fednoro_ich", "--rows", "fedavg", "--seeds", "0-1,7", "--out", tmp_path]
    assert call(*words, "--vary", "data", "--set", "num_rounds=2") == 0
    drawn = ["phantom.seed={SEED}", "phantom.noise_seed=1{SEED}", "phantom.partition_seed=2{SEED}"]
    assert seen.comparison.words == [*drawn, "num_rounds=2"]
    assert seen.cases == [(row, seed) for seed in (0, 1, 7) for row in ("fednoro", "fedavg")]
    assert call(*words, "--vary", "data=3") == 0
    assert [seen.comparison.number(seed) for seed in (0, 1, 7)] == [0, 0, 2]
    assert (seen.federations, seen.primary) == ([0], "bacc")


def test_what_may_vary_is_data_alone(capsys):
    for word in ("seed", "data=", "data=0", "data=x"):
        with pytest.raises(SystemExit):
            build_parser().parse_args(["compare", "jobs/x", "--vary", word])
        said = f"expected data or data=N, N seeds on each federation, got '{word}'"
        assert said in capsys.readouterr().err


def test_the_papers_levels_are_comparisons_of_their_own_and_one_table(seen, tmp_path, capsys):
    words = ["compare", "partial-masks", "--levels", "paper", "--rows", "fedavg", "--out", tmp_path]
    assert call(*words, "--set", "num_rounds=5") == 0
    titles = ["m = 0", "m = 1", "m = 2", "m = 3"]
    assert [wanted.level for wanted, *_ in seen.shown] == titles
    assert [given for _, given, *_ in seen.shown] == [[f"phantom.m={m}", "num_rounds=5"] for m in range(4)]
    assert [out for *_, out in seen.shown] == [tmp_path / f"m-{m}" for m in range(4)]
    table, out = seen.levels
    assert (table.name, list(table.levels), out) == ("fedia_ms", titles, tmp_path)
    assert capsys.readouterr().out.endswith(f"all levels\nwritten to {tmp_path}\n")


def test_a_sweep_makes_a_level_of_each_value(seen, tmp_path):
    assert (
        call("compare", JOBS / "fedia_lung", "--sweep", "warmup_rounds=2,4", "--rows", "fedavg", "--out", tmp_path) == 0
    )
    assert [(wanted.level, given) for wanted, given, *_ in seen.shown] == [
        ("warmup_rounds=2", ["warmup_rounds=2"]),
        ("warmup_rounds=4", ["warmup_rounds=4"]),
    ]


def test_the_budget_of_a_call_is_for_all_levels_together(seen, tmp_path, monkeypatch):
    def compare(comparison, out, *, budget, **how):
        seen.comparison = comparison
        fits.append(budget.fits("own"))  # estimated at 7 seconds
        now[0] += 16
        return {row: [row] for row in ("own", *comparison.rows)}

    now, fits = [0.0], []
    monkeypatch.setattr("fl_components.compare.budget.time.monotonic", lambda: now[0])
    monkeypatch.setattr("fl_components.compare.runs.compare", compare)
    words = ["--sweep", "warmup_rounds=2,4", "--rows", "fedavg", "--out", tmp_path, "--budget", "20s"]
    assert call("compare", JOBS / "fedia_lung", *words) == 0
    assert fits == [True, False]  # 10 seconds, then 4


def test_another_table_of_the_paper_has_rows_and_settings_of_its_own(seen, tmp_path):
    assert call("compare", "noisy-sites", "--table", "stage2", "--per-class", "--out", tmp_path) == 0
    ((wanted, given, rows, _),) = seen.shown
    assert (wanted.table, wanted.level, wanted.per_class) == ("stage2", "", True)
    assert given == ["phantom.noisy_share=0.4", "phantom.noise_low=0.3", "phantom.noise_high=0.5"]
    assert rows == ["fedla", "clean_only", "aggregation_only", "distillation_only"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--levels", "x"], "--levels: expected one of ['paper'] of this job, got 'x'"),
        (["--table", "stage3"], "--table: expected one of ['detection', 'paper', 'stage2'] of this job, got 'stage3'"),
        (["--sweep", "seed"], "--sweep: expected NAME=VALUE,VALUE,... with different values, got 'seed'"),
        (
            ["--levels", "paper", "--sweep", "a=1"],
            "--levels: expected no --sweep beside it, both are columns of the table",
        ),
        (
            ["--sweep", "num_rounds=2,3", "--set", "num_rounds=2"],
            "--sweep: expected settings that --set, --vary and --seeds leave alone, got 'num_rounds' from these",
        ),
        (
            ["--levels", "paper", "--set", 'phantom={"dataset": "ich_single"}'],
            "--levels: expected settings that --set, --vary and --seeds leave alone, got 'phantom' from these",
        ),
        (
            ["--sweep", "seed=1,2"],
            "--sweep: expected settings that --set, --vary and --seeds leave alone, got 'seed' from these",
        ),
        (
            ["--sweep", "phantom.seed=4,5", "--vary", "data"],
            "--sweep: expected settings that --set, --vary and --seeds leave alone, got 'phantom.seed' from these",
        ),
        (
            ["--levels", "paper", "--data", "d"],
            "--levels: expected no levels of the phantom beside --data, whose folders are the sites",
        ),
        (
            ["--levels", "paper", "--site", "data_root=d"],
            "--levels: expected no levels of the phantom beside --site data_root=d, whose folders are the sites",
        ),
        (
            ["--sweep", "phantom.noise_low=0.1,0.2", "--data", "d"],
            "--sweep: expected no levels of the phantom beside --data, whose folders are the sites",
        ),
    ],
)
def test_levels_and_tables_that_there_are_not_are_one_sentence(seen, capsys, words, sentence):
    assert call("compare", "noisy-sites", *words) == 1
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"
    assert not hasattr(seen, "comparison")


def test_a_job_that_is_in_no_table_is_refused_before_the_first_run(seen, tmp_path, capsys):
    job = write_job(tmp_path / "job")
    assert call("compare", job, "--table", "--rows", "learning_rate=0.1", "--out", tmp_path / "out") == 1
    sentence = "--table: expected a row of the job in its variants/paper.json, found none"
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"
    assert not hasattr(seen, "comparison")


def test_workers_of_a_cluster_are_given_whole_paths(seen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("compare", JOBS / "fedmlp_ich", "--out", "runs", "--cluster", "tcp://x:1") == 0
    assert not hasattr(seen, "tried")  # this machine need not have the data
    assert (seen.out, seen.how["cluster"]) == (tmp_path / "runs", "tcp://x:1")


def test_rows_and_seeds_add_to_a_folder_and_other_settings_have_their_own(seen, monkeypatch):
    def folder(*words):
        assert call("compare", *words) == 0
        return seen.out

    monkeypatch.setattr("fl_components.compare.paper_rows.on_data", lambda comparison, data: comparison)
    job = JOBS / "fedmlp_ich"
    assert folder(job) == folder(job, "--rows", "fedavg", "--seeds", "3-5") == Path("runs/fedmlp_ich-comparison")
    others = [["--set", "num_rounds=8"], ["--variant", "paper"], ["--site", "data_root=d"], ["--sites", 3]]
    others += [["--vary", "data"], ["--vary", "data=2"], ["--levels", "paper"], ["--sweep", "mu=1"]]
    folders = {folder(job, *words) for words in others} | {folder("missing-classes", "--data", "d")}
    assert len(folders) == 9
    assert folder(job, *others[0]) == folder(job, "--rows", "fedavg", *others[0])
    assert all(str(path).startswith(("runs/fedmlp_ich-", "runs/missing-classes-")) for path in folders)


def test_words_that_do_not_go_together_are_one_sentence(seen, capsys):
    assert call("compare", "jobs/x", "--data", "d", "--sites", 3) == 1
    sentence = "--sites: expected no number beside --data, whose folders are the sites"
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"


def test_a_time_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["compare", "jobs/x", "--out", "o", "--budget", "2"])
    assert "expected a time like 2h, 90m or 300s, got '2'" in capsys.readouterr().err


def test_seeds_beside_a_number_of_federations_are_refused(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["compare", "jobs/x", "--federations", "3", "--seeds", "5-9"])
    assert "argument --seeds: not allowed with argument --federations" in capsys.readouterr().err


def test_ctrl_c_says_that_the_same_command_goes_on(seen, tmp_path, monkeypatch, capsys):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("fl_components.compare.runs.compare", interrupted)
    assert call("compare", JOBS / "fedmlp_ich", "--out", tmp_path) == 130
    assert capsys.readouterr().err == "stopped; complete runs are kept, and the same command goes on\n"


def test_federations_are_seeds_each_with_data_of_its_own(seen, tmp_path):
    words = ["compare", JOBS / "fednoro_ich", "--rows", "fedavg", "--out", tmp_path]
    assert call(*words, "--federations", 3) == 0
    found = seen.comparison
    assert call(*words, "--seeds", "0-2", "--vary", "data") == 0
    assert found == seen.comparison
    assert found.seeds == [0, 1, 2]
    assert "phantom.seed={SEED}" in found.words
    assert call(*words, "--federations", 2, "--vary", "data=3") == 0
    assert [seen.comparison.number(seed) for seed in seen.comparison.seeds] == [0, 0, 0, 1, 1, 1]


def test_the_table_of_the_detection_is_made_of_the_runs_of_its_variants(seen, tmp_path, monkeypatch, capsys):
    def detection_table(comparison, levels, out, make):
        assert make(replace(comparison, variants=["detection_rules"]), out)[0] == ["own"]
        return comparison, [level.title for level in levels], out

    monkeypatch.setattr("fl_components.compare.detection.detection_table", detection_table)
    monkeypatch.setattr("fedmend.comparison.detection_table.write_detection_table", lambda table, out: str(table[1:]))
    words = ["compare", "noisy-sites", "--table", "detection", "--out", tmp_path]
    assert call(*words, "--federations", 2, "--sweep", "warmup_rounds=1,2") == 0
    assert seen.comparison.seeds == [0, 1]
    assert capsys.readouterr().out == f"{(['warmup_rounds=1', 'warmup_rounds=2'], tmp_path)}\nwritten to {tmp_path}\n"
    assert call(*words, "--rows", "fedla") == 1
    assert "--rows: expected none with --table detection, whose rows are rules" in capsys.readouterr().err
