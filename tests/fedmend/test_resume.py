"""A job of the same run_name goes on where an earlier one stopped."""

import numpy as np
import pytest
from federation_factories import Run, Script, failing, histograms, plain_answers, same_models

from fedmend.errors import FedMendError
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.results import CENSUS, EVALUATE, TRAIN

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}
FINISHED = "run_name 'run-1': expected a new or an unfinished run, got a finished one; choose another run_name"


def play(folder, answer=None, sites=BOTH, workflow=None, **options):
    return Run(folder, workflow or FedAvgWorkflow(), list(sites), answer or plain_answers(sites), **options)


def crashing(round_num, question=TRAIN, answer=None):
    """Sites of which site-1 fails in a round."""
    return failing(
        answer or plain_answers(BOTH), site="site-1", when=lambda name, r: (name, r) == (question, round_num)
    )


def metrics(run):
    return [{k: v for k, v in line.items() if k != "seconds"} for line in run.lines("metrics.jsonl")]


@pytest.mark.parametrize("stopped_at", [0, 1, 2])
def test_a_job_submitted_again_goes_on_to_the_same_bytes(tmp_path, stopped_at):
    answer = plain_answers(BOTH, samples={"site-1": 10, "site-2": 31}, step={"site-1": 0.1, "site-2": 0.7})
    whole = play(tmp_path / "whole", answer)
    assert play(tmp_path / "crash", crashing(stopped_at, answer=answer)).stopped
    resumed = play(tmp_path / "crash", answer, job="job-2")
    assert resumed.rounds() == list(range(stopped_at, 3))
    assert same_models(whole.model, resumed.model)
    assert resumed.decisions("resumed") == ([(None, {"at_round": stopped_at})] if stopped_at else [])
    assert metrics(resumed) == metrics(whole)


def test_a_run_goes_on_without_the_only_annotator_of_a_class_and_names_the_class(tmp_path, caplog):
    play(tmp_path, crashing(1))
    left = {"site-1": BOTH["site-1"]}  # site-2 alone annotates the second class
    run = play(tmp_path, sites=left)
    assert run.stopped == ""
    assert run.decisions("classes_without_annotator") == [(1, ["b"])]
    assert "round 2: no site that annotates b took part" in caplog.text
    assert run.rounds() == [1, 2]


def test_a_finished_run_name_is_refused(tmp_path):
    assert play(tmp_path).stopped == ""
    again = play(tmp_path)
    assert again.stopped == FINISHED
    assert again.asked == []


def test_a_failed_final_evaluation_costs_no_model_and_the_run_can_be_finished(tmp_path):
    failed = play(tmp_path, failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == EVALUATE))
    assert failed.stopped.startswith("evaluate of round 3: expected valid results from 2 sites, got 1")
    assert not (failed.folder / "results.json").exists()
    saved = failed.transport.saved["global"]
    assert failed.moved(model=saved) == pytest.approx([3, 3])
    again = play(tmp_path)
    assert again.stopped == ""
    assert again.stages == [(CENSUS, 0, "census"), (EVALUATE, 3, "evaluate")]
    assert same_models(again.transport.saved["global"], saved)
    assert again.content("results.json")["final"]["test"]["auc"] == 1
    assert play(tmp_path).stopped == FINISHED


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"method": "fedprox"}, "method"),
        ({"network": "other"}, "network"),
        ({"classes": ["b", "a"]}, "classes"),
        ({"seed": 1, "method": "fedprox"}, "method, seed"),
        ({"workflow": Script(lambda fed: None)}, "workflow"),
    ],
)
def test_another_run_under_the_same_name_is_refused_with_what_differs(tmp_path, changes, named):
    play(tmp_path, crashing(1))
    again = play(tmp_path, **changes)
    assert again.stopped == (
        f"run_name 'run-1': expected to go on with the same {named} as before, got others; choose another run_name"
    )
    assert again.asked == []


def test_the_number_of_rounds_may_be_raised_while_a_run_is_unfinished(tmp_path):
    play(tmp_path, crashing(2))
    more = play(tmp_path, num_rounds=5)
    assert more.rounds() == [2, 3, 4]
    assert more.moved() == pytest.approx([5, 5])


def val(auc):
    return {"val": histograms(auc, auc)}


@pytest.mark.parametrize("better", [True, False])
def test_a_server_that_dies_between_best_model_and_checkpoint_goes_on_in_agreement(tmp_path, better):
    """The model of round 2 is the best one; the repeated round measures it again, a little better or worse."""
    auc = {0: 0, 1: 0, 2: 0.5, 3: 0}

    def dying(federation):
        save = federation._save

        def die(done, **options):
            if done == 3:
                raise FedMendError("the power failed")
            save(done, **options)

        federation._save = die

    first = play(tmp_path, plain_answers(BOTH, counts=lambda r: val(auc[r])), prepare=dying)
    assert first.stopped == "the power failed"
    assert first.decisions("best_model")[-1] == (2, {"auc": 0.5, "split": "val"})
    auc[2] = int(better)
    again = play(tmp_path, plain_answers(BOTH, counts=lambda r: val(auc[r])))
    assert again.stopped == ""
    assert again.decisions("best_model") == [
        (0, {"auc": 0.0, "split": "val"}),
        (2, {"auc": float(better), "split": "val"}),
    ]
    best = again.content("results.json")["best"]
    assert (best["round"], best["val"]["auc"]) == (2, float(better))
    assert again.moved(model=again.transport.saved["best"]) == pytest.approx([2, 2])


def test_what_a_workflow_remembers_comes_back_in_the_same_types(tmp_path):
    seen = []

    def run(fed):
        for r in fed.rounds():
            seen.append((r, fed.memory.notes))
            fed.train("train")
            fed.memory.notes = {
                "prototypes": np.arange(4, dtype=np.float32).reshape(2, 2) + r,
                "sites": {"site-1": {"counts": np.array([r, 2**40]), "flags": np.array([True, False])}},
                "list": [r, 0.5, "text", None, np.float32(0.25)],
                "tuple": (1, np.zeros((0, 3))),
            }

    play(tmp_path, crashing(1), workflow=Script(run))
    del seen[:]
    resumed = play(tmp_path, workflow=Script(run))
    assert resumed.stopped == ""
    round_num, notes = seen[0]
    assert round_num == 1
    assert notes["prototypes"].dtype == np.float32
    assert notes["prototypes"].tolist() == [[0, 1], [2, 3]]
    assert notes["sites"]["site-1"]["counts"].tolist() == [0, 2**40]
    assert notes["sites"]["site-1"]["flags"].dtype == bool
    assert notes["list"] == [0, 0.5, "text", None, 0.25]
    assert (notes["tuple"][0], notes["tuple"][1].shape) == (1, (0, 3))
    assert seen[1][1]["prototypes"].tolist() == [[1, 2], [3, 4]]


def test_a_job_that_goes_on_begins_with_an_empty_memory_where_nothing_was_remembered(tmp_path):
    seen = []

    def run(fed):
        for _ in fed.rounds():
            seen.append(fed.memory.notes)
            fed.train("train")

    play(tmp_path, crashing(1), workflow=Script(run))
    play(tmp_path, workflow=Script(run))
    assert seen == [{}] * 4


def test_a_round_of_some_sites_is_repeated_whole(tmp_path):
    def run(fed):
        for _ in fed.rounds():
            for site in fed.sites:
                fed.train("train", sites=[site])

    whole = play(tmp_path / "whole", workflow=Script(run))
    crash = failing(plain_answers(BOTH), site="site-2", when=lambda name, r: (name, r) == (TRAIN, 1))
    assert play(tmp_path / "crash", crash, workflow=Script(run)).stopped
    resumed = play(tmp_path / "crash", workflow=Script(run))
    assert [question[3] for question in resumed.asked if question[:2] == (TRAIN, 1)] == [["site-1"], ["site-2"]]
    assert same_models(whole.model, resumed.model)
    assert metrics(resumed) == metrics(whole)
