"""Which runs a comparison makes, and which it does not make again; the runs are stood in for."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Event

import pytest
from factories import refused
from job_factories import write_job

import fedmend
from fedmend.basics.files import locked
from fedmend.errors import FedMendError
from fl_components.compare import runs as module
from fl_components.compare.budget import Budget
from fl_components.compare.runs import Comparison, cases, compare, effort, federations

OTHER = "other settings or of another version of FedMend"


@pytest.fixture
def job(tmp_path):
    return write_job(tmp_path / "job", big={"set": {"num_rounds": 50}}, plain={"set": {"mu": 0}})


@pytest.fixture
def ran(monkeypatch):
    """Row and seed of every run that is made."""

    def run_local(job, workspace, changes, **given):
        made.append((workspace.parent.name, changes.variables["seed"]))
        if made[-1] == fails:
            raise FedMendError("run: expected a complete run")

    made, fails = [], ()
    monkeypatch.setattr(module, "run_local", run_local)

    def fail(row, seed):
        nonlocal fails
        fails = (row, seed)

    run_local.made, run_local.fail = made, fail
    return run_local


def test_rows_are_variants_and_settings_joined_by_plus(job, tmp_path):
    asked = Comparison(
        job, ["plain", "plain+mu=0.25"], [3], variants=["big"], words=["steps=7"], site_words=["threads=2"]
    )
    found = cases(asked, tmp_path)
    assert [(c.row, c.workspace.relative_to(tmp_path).as_posix()) for c in found] == [
        ("own", "own/seed-3"),
        ("plain", "plain/seed-3"),
        ("plain+mu=0.25", "plain+mu=0.25/seed-3"),
    ]
    assert [c.changes.variants for c in found] == [("big",), ("big", "plain"), ("big", "plain")]
    assert found[2].changes.variables == {"steps": 7, "mu": 0.25, "seed": 3}
    assert {json.dumps(c.site_settings) for c in found} == {'{"threads": 2}'}


def test_a_setting_that_only_the_method_has_holds_for_its_rows_alone(tmp_path):
    plain = {"components": {"method": {"path": "fedmend.methods.own.Plain", "args": {}, "keep": ["steps"]}}}
    job = write_job(tmp_path / "job", plain=plain)
    found = cases(Comparison(job, ["plain", "batch_size=2"], [3], words=["steps=7", "mu=0.25"]), tmp_path)
    assert [c.changes.variables for c in found] == [
        {"steps": 7, "mu": 0.25, "seed": 3},
        {"steps": 7, "seed": 3},
        {"steps": 7, "mu": 0.25, "batch_size": 2, "seed": 3},
    ]


def test_a_seed_may_choose_the_data(job, tmp_path):
    words = {"words": ["phantom.seed={SEED}"], "site_words": ["data_root=folds/{SEED}/{SITE_NAME}"]}
    first, second = cases(Comparison(job, [], [4, 5], **words), tmp_path)
    assert (first.changes.variables["phantom.seed"], second.changes.variables["phantom.seed"]) == (4, 5)
    assert second.site_settings == {"data_root": "folds/5/{SITE_NAME}"}
    assert '"seed": 5' in second.wanted()


def test_a_setting_does_not_take_the_place_of_the_seeds(job, tmp_path):
    found = cases(Comparison(job, ["seed=9"], [3, 4], words=["seed=8"]), tmp_path)
    assert [c.changes.variables["seed"] for c in found] == [3, 3, 4, 4]


def test_several_seeds_may_share_a_federation_and_the_data_tell_how_many_there_are(job, tmp_path):
    asked = Comparison(job, [], [4, 5, 6], words=["phantom.seed={SEED}"], per_federation=2)
    assert [c.changes.variables["phantom.seed"] for c in cases(asked, tmp_path)] == [2, 2, 3]
    assert [c.changes.variables["seed"] for c in cases(asked, tmp_path)] == [4, 5, 6]
    assert federations(asked) == {4: 0, 5: 0, 6: 1}
    assert federations(Comparison(job, [], [4, 5])) == {4: 0, 5: 0}
    folders = Comparison(job, [], [4, 5], site_words=["data_root=fold-{SEED}/{SITE_NAME}"])
    assert federations(folders) == {4: 0, 5: 1}


def test_complete_runs_are_not_made_again_and_failed_ones_are(job, tmp_path, ran):
    ran.fail("plain", 0)
    with refused("plain, seed 0: run: expected a complete run"):
        compare(Comparison(job, ["plain"], [0, 1]), tmp_path / "out")
    ran.fail("", 0)
    lines = []
    folders = compare(Comparison(job, ["plain", "big"], [0, 1]), tmp_path / "out", show=lines.append)
    assert ran.made == [("own", 0), ("plain", 0), ("plain", 0), ("big", 0), ("own", 1), ("plain", 1), ("big", 1)]
    assert lines[0] == "plain, seed 0: done, 4 runs to go"
    assert list(folders) == ["own", "plain", "big"]
    assert folders["big"][1] == tmp_path / "out" / "big" / "seed-1" / "server" / "simulate_job" / "fedmend"


def test_a_row_that_fails_is_left_out_and_the_others_go_on(job, tmp_path, ran):
    ran.fail("plain", 0)
    failed, lines = {}, []
    asked = Comparison(job, ["plain", "big"], [0, 1])
    folders = compare(asked, tmp_path, failed=failed, show=lines.append)
    assert ran.made == [("own", 0), ("plain", 0), ("big", 0), ("own", 1), ("big", 1)]
    assert {row: len(found) for row, found in folders.items()} == {"own": 2, "big": 2}
    assert failed == {"plain": "seed 0: run: expected a complete run"}
    assert lines[1:3] == ["plain, seed 0: run: expected a complete run", "big, seed 0: done, 2 runs to go"]


def test_a_comparison_ends_where_the_row_of_the_job_fails(job, tmp_path, ran):
    ran.fail("own", 0)
    with refused("own, seed 0: run: expected a complete run"):
        compare(Comparison(job, ["plain"], [0]), tmp_path, failed={})


def test_a_run_that_ends_after_another_has_failed_is_kept(job, tmp_path, monkeypatch):
    def run_local(job, workspace, changes, **given):
        if workspace.parent.name == "own":
            begun.wait(10)
            raise FedMendError("run: expected a complete run")
        begun.set()
        time.sleep(0.1)

    begun = Event()
    monkeypatch.setattr(module, "run_local", run_local)
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda count, **how: ThreadPoolExecutor(count))
    asked = Comparison(job, ["plain"], [0])
    with refused("own, seed 0: run: expected a complete run"):
        compare(asked, tmp_path, processes=2)
    assert [case.marker.exists() for case in cases(asked, tmp_path)] == [False, True]


def test_runs_of_other_settings_or_another_version_are_neither_mixed_nor_overwritten(job, tmp_path, ran, monkeypatch):
    compare(Comparison(job, [], [0]), tmp_path, show=str)
    compare(Comparison(job, [], [0], site_words=["cache_dir=elsewhere"]), tmp_path)  # of no consequence
    for change in ({"words": ["mu=0.25"]}, {"variants": ["big"]}, {"sites": 3}, {"site_words": ["min_count=9"]}):
        with refused(f"--out: expected new runs or the same ones, got one of own, seed 0, with {OTHER}"):
            compare(Comparison(job, [], [0], **change), tmp_path)
    monkeypatch.setattr(fedmend, "__version__", "0.0.1")
    with refused(f"--out: expected new runs or the same ones, got one of own, seed 0, with {OTHER}"):
        compare(Comparison(job, [], [0]), tmp_path)
    assert ran.made == [("own", 0)]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (["plain", "plain"], "--rows: expected different rows, none of them own, got plain,plain"),
        (["mu=/1", "mu=_1"], "--rows: expected different rows, none of them own, got mu=/1,mu=_1"),  # one folder
        (["own"], "--rows: expected different rows, none of them own, got own"),
        (["plane"], "variant: expected one of big, plain, got 'plane'"),
        (["plain+mu=x"], "job variable mu: expected a whole number, got 'x'"),
    ],
)
def test_a_mistyped_row_is_one_sentence_before_the_first_run(job, tmp_path, ran, rows, sentence):
    with refused(sentence):
        compare(Comparison(job, rows, [0]), tmp_path)
    assert ran.made == []


def test_two_comparisons_do_not_write_into_one_folder(job, tmp_path, ran):
    with locked(tmp_path / "in_use"), refused("--out: expected no other comparison at work in it, there is one"):
        compare(Comparison(job, [], [0]), tmp_path)
    assert ran.made == []


def test_a_comparison_does_not_go_into_a_workspace_that_the_next_simulation_empties(job, tmp_path, ran):
    (tmp_path / "run" / "local").mkdir(parents=True)
    (tmp_path / "run" / "local" / "fedmend.json").write_text("{}")
    with refused("--out: expected a folder for comparisons, got the workspace of a run"):
        compare(Comparison(job, [], [0]), tmp_path / "run")
    assert ran.made == []
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["local"]


def test_a_run_that_was_killed_is_one_sentence(job, tmp_path, monkeypatch):
    class Killed(ThreadPoolExecutor):
        def __init__(self, processes, **how):
            super().__init__(processes)

        def submit(self, run, *given):
            return super().submit(lambda: (_ for _ in ()).throw(BrokenProcessPool))

    monkeypatch.setattr(module, "ProcessPoolExecutor", Killed)
    with refused("--processes: expected runs to end by themselves, one was killed (memory?)"):
        compare(Comparison(job, [], [0]), tmp_path, processes=2)


def test_a_run_leaves_what_it_cost_beside_its_marker(job, tmp_path, ran):
    compare(Comparison(job, ["big"], [0]), tmp_path, show=str)
    own, big = cases(Comparison(job, ["big"], [0]), tmp_path)
    assert own.cost_file == tmp_path / "own" / "seed-0.cost.json"
    assert set(own.cost()) == {"seconds", "peak_memory", "initial_model", "sites", "effort"}
    assert own.cost()["effort"] == {"unit": "epochs", "per_round": 1}
    assert big.cost()["sites"] == {}
    own.cost_file.unlink()  # as in comparisons of earlier versions, which stay readable
    assert own.cost() == {}
    assert len(compare(Comparison(job, ["big"], [0]), tmp_path)["own"]) == 1
    assert len(ran.made) == 2


def test_effort_is_counted_in_steps_where_a_job_counts_so():
    assert effort({"local_iterations": 50, "local_epochs": 4}) == {"unit": "steps", "per_round": 50}
    assert effort({"local_epochs": 4}) == {"unit": "epochs", "per_round": 4}


def test_a_run_name_comes_before_the_names_of_variants(job, tmp_path):
    own, plain = cases(Comparison(job, ["plain+mu=0.25"], [3], run_name="job_data"), tmp_path)
    assert own.changes.variables["run_name"] == "job_data"
    assert plain.changes.variables == {"run_name": "job_data_plain", "mu": 0.25, "seed": 3}


@pytest.fixture
def minutes(monkeypatch):
    """A clock that each run moves by a minute."""
    from fl_components.compare import budget

    def run_local(job, workspace, changes, **given):
        now[0] += 60
        made.append((workspace.parent.name, changes.variables["seed"]))

    now, made = [0.0], []
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "run_local", run_local)
    return made


def test_the_budget_ends_a_call_before_a_run_that_would_not_fit_and_the_next_call_goes_on(job, tmp_path, minutes):
    asked = Comparison(job, ["plain"], [0, 1])
    folders = compare(asked, tmp_path, budget=Budget(200), show=str)
    assert minutes == [("own", 0), ("plain", 0), ("own", 1)]
    assert [folder.parents[2].name for folder in folders["plain"]] == ["seed-0"]  # seed 1 is not whole
    folders = compare(asked, tmp_path, budget=Budget(200), show=str)
    assert minutes[3:] == [("plain", 1)]
    assert [len(found) for found in folders.values()] == [2, 2]


def test_a_budget_too_small_for_one_run_of_each_row_is_refused_before_the_first(job, tmp_path, minutes):
    small = Budget(60, {"own": 50, "plain": 50})
    with refused("--budget: expected time for one run of each of 2 rows, about 2 min by an estimate, got 60 s"):
        compare(Comparison(job, ["plain"], [0]), tmp_path, budget=small)
    assert minutes == []


def test_a_budget_that_runs_out_before_a_seed_is_whole_keeps_what_is_complete(job, tmp_path, minutes):
    with refused("--budget: expected time for all rows of one seed, it ran out; complete runs are kept"):
        compare(Comparison(job, ["plain"], [0]), tmp_path, budget=Budget(90), show=str)
    assert minutes == [("own", 0)]
    compare(Comparison(job, ["plain"], [0]), tmp_path, show=str)
    assert minutes == [("own", 0), ("plain", 0)]
