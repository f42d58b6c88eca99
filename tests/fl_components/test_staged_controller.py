import itertools
import json
import weakref

import numpy as np
import pytest
import torch
from factories import refused
from fl_factories import Federation, census, confusion, histograms, plain_answers, write_settings
from nvflare.apis.dxo import MetaKey
from torch_factories import TinyNetwork

from fedmend import networks
from fedmend.errors import FedMendError
from fedmend.files import locked
from fl_components.aggregators import SampleWeightedAggregator
from fl_components.controllers import staged
from fl_components.controllers.fedavg import FedAvgController
from fl_components.payload import CENSUS, COLLECT, EVALUATE, TRAIN, SiteResult

CLASSES = ["edema", "nodule"]
BOTH = {"site-1": [1, 0], "site-2": [0, 1]}
THREE = {**BOTH, "site-3": [1, 1]}


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", lambda classes: TinyNetwork(classes, torch.initial_seed()))


@pytest.fixture
def plain_report(monkeypatch):
    """No figures, where a test is not about the report."""
    monkeypatch.setattr("fl_components.controllers.staged.write_report", lambda folder: None)
    monkeypatch.setattr("fl_components.controllers.staged.summary_text", lambda folder: "")


def controller(**changes):
    settings = {"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": 3, "warmup_rounds": 1}
    return FedAvgController(**{**settings, **changes})


def run(folder, answer, sites=BOTH, *, backwards=False, **changes):
    return Federation(folder, controller(**changes), list(sites), answer, backwards=backwards).run()


def initial(name, seed=0):
    return networks.initial_network("tiny", CLASSES, seed).state_dict()[name].numpy()


def saved(federation, file="FL_global_model.pt"):
    return torch.load(federation.app / file, weights_only=False)["model"]


def bias_after(federation, file="FL_global_model.pt"):
    """How far the run has moved the classifier's bias."""
    return float((saved(federation, file)["classifier.bias"].numpy() - initial("classifier.bias"))[0])


def failing(answer, *, site, when, error="site-2: train.csv row 3: expected ..., got ..."):
    """``answer``, but one site says ``error`` where ``when(task_name, round)``."""

    def answers(name, task_name, weights, task, evaluate):
        if name == site and when(task_name, task.round_num):
            return SiteResult(error=error) if error else None
        return answer(name, task_name, weights, task, evaluate)

    return answers


def test_a_run_leaves_models_records_and_a_report(tmp_path):
    federation = run(tmp_path, plain_answers(BOTH))
    assert federation.engine.panics() == []
    info = json.loads((federation.records / "run.json").read_text())
    assert (info["run_name"], info["method"], info["phantom"]) == ("run-1", "FedAvgController", False)
    assert info["settings"] == {"note": "as configured"}
    sizes = {"train": 10, "val": 20, "test": 20}
    assert info["sites"]["site-2"] == {"annotated": ["nodule"], **sizes, "positives": {"nodule": 4}}
    metrics = federation.lines("metrics.jsonl")
    assert [(m["round"], m["split"]) for m in metrics] == [(r, s) for r in range(4) for s in ("test", "val")]
    assert metrics[0]["macro"] == {"auc": 1, "map": 1, "bacc": 1}
    results = json.loads((federation.records / "results.json").read_text())
    assert results["final"]["test"]["auc"] == 1
    for name in ("global model", "best model", "records"):
        assert (tmp_path / results["files"][name]).exists()
    assert "<html" in (federation.records / "report.html").read_text()[:200]


def test_a_phantom_run_says_so_in_its_records(tmp_path, plain_report, caplog):
    plain = plain_answers(BOTH)

    def answer(site, task_name, *rest):
        result = plain(site, task_name, *rest)
        return SiteResult(**{**vars(result), "census": {**result.census, "phantom": True}}) if result.census else result

    with caplog.at_level("INFO", "fedmend.run"):
        federation = run(tmp_path, answer)
    assert json.loads((federation.records / "run.json").read_text())["phantom"] is True
    rounds = [r.message for r in caplog.records if " train | received model" in r.message]
    assert len(rounds) == 3
    assert all(line.startswith("PHANTOM round ") for line in rounds)


def test_models_are_averaged_by_samples_in_every_round(tmp_path, plain_report):
    answer = plain_answers(BOTH, samples={"site-1": 10, "site-2": 30}, step={"site-1": 1, "site-2": 2})
    assert bias_after(run(tmp_path, answer)) == pytest.approx(3 * (10 * 1 + 30 * 2) / 40)


def test_the_order_in_which_answers_arrive_changes_no_bit(tmp_path, plain_report):
    sites = {f"site-{i}": [1, 1] for i in range(1, 6)}
    plain = plain_answers(sites, samples={s: 7 * i + 3 for i, s in enumerate(sites)})

    def trained(site, shape):
        return np.random.default_rng(int(site[-1])).standard_normal(shape, dtype=np.float32)

    def answer(site, task_name, weights, *rest):
        result = plain(site, task_name, weights, *rest)
        result.weights = {k: trained(site, v.shape) for k, v in result.weights.items()}
        return result

    one, other = (run(tmp_path / str(b), answer, sites, backwards=b) for b in (False, True))
    assert all(torch.equal(value, saved(other)[name]) for name, value in saved(one).items())
    sums = [sum(trained(site, 50) for site in order) for order in (sites, reversed(sites))]
    assert not np.array_equal(*sums)  # the order would show if nobody put it right


def trickling(federation):
    """Answers arrive one at a time, a poll of the server apart."""
    broadcast, underway = federation.controller.broadcast_model, []

    def send(*, targets, **options):
        underway.extend(
            (broadcast, [site], options) for site in (reversed(targets) if federation.backwards else targets)
        )

    def ask():
        if underway:
            send_one, targets, options = underway.pop(0)
            send_one(targets=targets, **options)
            return 1
        return 0

    federation.controller.broadcast_model = send
    federation.controller.get_num_standing_tasks = ask
    return federation


@pytest.mark.parametrize(
    ("trickle", "backwards", "expected"),
    [(False, False, [3, 2, 1]), (True, False, [1, 1, 1]), (True, True, [3, 3, 2])],
    ids=["all at once", "in turn", "backwards"],
)
def test_the_server_holds_only_models_that_came_before_their_turn(
    tmp_path, plain_report, monkeypatch, fast_clock, trickle, backwards, expected
):
    models, held = [], []

    def held_models():
        return sum(found() is not None for found in models)

    def answer(site, task_name, weights, task, evaluate):
        result = plain_answers(THREE)(site, task_name, weights, task, evaluate)
        if task_name == TRAIN:
            models.append(weakref.ref(result.weights["classifier.bias"]))
        return result

    class Watched(SampleWeightedAggregator):
        def accept_model(self, model):
            held.append(held_models())
            super().accept_model(model)

    monkeypatch.setattr(staged, "SampleWeightedAggregator", Watched)
    monkeypatch.setattr(staged, "cleanup_memory", lambda: held.append(f"cleaned with {held_models()}"))
    federation = Federation(tmp_path, controller(num_rounds=2), list(THREE), answer, backwards=backwards)
    (trickling(federation) if trickle else federation).run()
    assert len(models) == 6
    assert held == [*expected, "cleaned with 0"] * 2


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "refused"])
@pytest.mark.parametrize("odd", list(THREE))
def test_answers_that_trickle_in_count_once_each_whoever_is_refused_or_silent(
    tmp_path, plain_report, fast_clock, odd, silent, backwards
):
    samples, step = dict(zip(THREE, (10, 20, 30), strict=True)), dict(zip(THREE, (1.0, 2.0, 4.0), strict=True))
    plain = plain_answers(THREE, samples=samples, step=step)
    answer = failing(plain, site=odd, when=lambda name, r: name == TRAIN, error="" if silent else f"{odd}: no")
    federation = Federation(tmp_path, controller(num_rounds=1, min_sites=2), list(THREE), answer, backwards=backwards)
    direct = federation._broadcast
    federation.controller.broadcast_model = lambda *, callback, **message: direct(
        callback=lambda reply: [callback(reply) for _ in range(2)], **message
    )
    trickling(federation).run()
    assert federation.engine.panics() == []
    assert [value["site"] for _, value in federation.decisions("refused")] == [odd]
    present = [site for site in THREE if site != odd]
    mean = sum(samples[s] * step[s] for s in present) / sum(samples[s] for s in present)
    assert bias_after(federation) == pytest.approx(mean)


def test_a_seed_gives_the_same_first_model_to_all(tmp_path, plain_report):
    received = {}

    def answer(site, task_name, weights, task, evaluate):
        if task_name == TRAIN and task.round_num == 0:
            received[site] = weights["classifier.weight"]
        return plain_answers(BOTH)(site, task_name, weights, task, evaluate)

    run(tmp_path, answer, seed=5)
    for weights in received.values():
        np.testing.assert_array_equal(weights, initial("classifier.weight", 5))
    assert not np.array_equal(initial("classifier.weight", 5), initial("classifier.weight", 0))


def test_a_refused_site_is_named_and_the_round_goes_on_where_min_sites_allows_it(tmp_path, plain_report, caplog):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == TRAIN and r == 1)
    federation = run(tmp_path, answer, THREE, min_sites=2)
    assert federation.engine.panics() == []
    sentence = "site-2: train.csv row 3: expected ..., got ..."
    assert federation.decisions("refused") == [(1, {"site": "site-2", "reason": sentence})]
    assert sentence in caplog.text
    assert federation.asked[-1][3] == ["site-1", "site-2", "site-3"]  # it is asked again
    assert bias_after(federation) == pytest.approx(3)


def test_only_valid_results_enter_the_model(tmp_path, plain_report):
    answer = plain_answers(THREE, step={"site-1": 1, "site-2": np.nan, "site-3": 3})
    federation = run(tmp_path, answer, THREE, min_sites=2)
    assert bias_after(federation) == pytest.approx(3 * 2)
    reasons = [value["reason"] for _, value in federation.decisions("refused")]
    assert len(reasons) == 3
    assert all(reason.startswith("site-2: result of round") and "NaN or infinity" in reason for reason in reasons)


def test_without_min_sites_a_refused_site_stops_the_run_with_its_sentence(tmp_path):
    answer = failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == TRAIN and r == 1)
    federation = run(tmp_path, answer)
    assert federation.engine.panics() == [
        "train of round 1: expected valid results from 2 sites, got 1: site-2: train.csv row 3: expected ..., got ..."
    ]
    assert not (federation.records / "results.json").exists()
    assert len(federation.decisions("refused")) == 1


def test_a_silent_site_is_named(tmp_path):
    answer = failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == TRAIN, error="")
    assert run(tmp_path, answer).engine.panics() == [
        "train of round 0: expected valid results from 2 sites, got 1: site-2: train: expected a result, got none"
    ]


def test_a_site_that_fails_the_census_is_not_asked_again(tmp_path, plain_report):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == CENSUS)
    federation = run(tmp_path, answer, THREE, min_sites=2)
    assert federation.engine.panics() == []
    assert {tuple(asked) for name, _, _, asked in federation.asked if name != CENSUS} == {("site-1", "site-3")}


def waiting(folder, answer, sites, polls, *, slow=TRAIN, **changes):
    """A run in which FLARE waits for a late answer to every task ``slow``; ``polls`` notes how often it was asked."""
    federation = Federation(folder, controller(**changes), list(sites), answer)
    broadcast, standing = federation.controller.broadcast_model, {"tasks": 0}

    def send(*, task_name, **options):
        broadcast(task_name=task_name, **options)
        standing["tasks"] = int(task_name == slow)

    def ask():
        polls.append(standing["tasks"])
        if len(polls) > 200:
            standing["tasks"] = 0
        return standing["tasks"]

    federation.controller.broadcast_model = send
    federation.controller.get_num_standing_tasks = ask
    federation.controller.cancel_all_tasks = lambda: standing.update(tasks=0)
    return federation.run()


@pytest.fixture
def fast_clock(monkeypatch):
    """A clock that moves by half a second whenever it is looked at, and does not sleep."""
    now = itertools.count(0, 0.5)
    monkeypatch.setattr("fl_components.controllers.staged.time.monotonic", lambda: next(now))
    monkeypatch.setattr("fl_components.controllers.staged.time.sleep", lambda seconds: None)


def test_a_round_waits_for_the_others_no_longer_than_the_grace_period(tmp_path, plain_report, fast_clock):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == TRAIN, error="")
    polls = []
    federation = waiting(tmp_path, answer, THREE, polls, min_sites=2, grace_period=3, num_rounds=1)
    assert federation.engine.panics() == []
    assert polls.count(1) == 7  # 3 seconds after the second answer at half a second each
    assert federation.decisions("refused")[0] == (
        0,
        {"site": "site-2", "reason": "site-2: train: expected a result, got none"},
    )


def test_the_grace_period_begins_with_enough_results_and_not_with_sentences(tmp_path, plain_report, fast_clock):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == TRAIN)
    polls = []
    federation = waiting(tmp_path, answer, THREE, polls, min_sites=3, grace_period=3, num_rounds=1)
    assert len(polls) > 200  # nobody ends the wait
    assert federation.engine.panics()[0].startswith("train of round 0: expected valid results from 3 sites, got 2")


def test_a_refused_result_does_not_start_the_grace_period(tmp_path, plain_report, fast_clock):
    plain = plain_answers(THREE)

    def answer(site, task_name, *rest):
        result = plain(site, task_name, *rest)
        if site == "site-2" and task_name == TRAIN:
            result.weights["classifier.bias"] = result.weights["classifier.bias"] * np.nan
        return result

    polls = []
    waiting(tmp_path, answer, THREE, polls, min_sites=3, grace_period=3, num_rounds=1)
    assert len(polls) > 200  # nobody ends the wait


def test_the_census_has_no_grace_period_as_who_misses_it_is_out_of_the_whole_job(tmp_path, plain_report, fast_clock):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == CENSUS, error="")
    polls = []
    waiting(tmp_path, answer, THREE, polls, min_sites=2, grace_period=3, num_rounds=1, slow=CENSUS)
    assert len(polls) > 200  # nobody ends the wait


def test_classes_whose_annotators_are_absent_are_named_when_that_changes(tmp_path, plain_report):
    sites = {"site-1": [1, 0], "site-2": [0, 1], "site-3": [1, 0]}
    answer = failing(plain_answers(sites), site="site-2", when=lambda name, r: name == TRAIN and r in (1, 2))
    federation = run(tmp_path, answer, sites, min_sites=2, num_rounds=4)
    assert federation.decisions("classes_without_annotator") == [(1, [CLASSES[1]]), (3, [])]


def test_no_valid_result_at_all_stops_the_run_whatever_min_sites_says(tmp_path):
    answer = failing(plain_answers({"site-1": [1, 1]}), site="site-1", when=lambda name, r: name == TRAIN)
    federation = run(tmp_path, answer, ["site-1"], min_sites=1)
    assert federation.engine.panics()[0].startswith("train of round 0: expected valid results from 1 sites, got 0")


def test_a_bad_setting_of_the_server_stops_the_run_with_its_sentence(tmp_path, caplog):
    federation = Federation(tmp_path, controller(), list(BOTH), plain_answers(BOTH))
    write_settings(tmp_path, min_count=-1)
    sentence = "server: local/fedmend.json, field min_count: expected a number >= 0, got -1"
    assert federation.run().engine.panics() == [sentence]
    assert f"run stopped: {sentence}" in caplog.text
    assert federation.asked == []


def test_a_class_that_no_site_annotates_stops_the_run(tmp_path):
    answer = plain_answers({"site-1": [1, 0], "site-2": [1, 0]})
    assert run(tmp_path, answer).engine.panics() == [
        "census: expected every class of the job to be annotated at a site, got none for ['nodule']"
    ]


@pytest.mark.parametrize("stopped_at", [1, 2])
def test_a_job_submitted_again_goes_on_to_the_same_bytes(tmp_path, plain_report, stopped_at):
    answer = plain_answers(BOTH, samples={"site-1": 10, "site-2": 31}, step={"site-1": 0.1, "site-2": 0.7})
    whole = run(tmp_path / "whole", answer)
    run(tmp_path / "crash", failing(answer, site="site-1", when=lambda name, r: name == TRAIN and r == stopped_at))
    resumed = run(tmp_path / "crash", answer)
    assert [r for name, r, *_ in resumed.asked if name == TRAIN] == list(range(stopped_at, 3))
    assert all(torch.equal(value, saved(resumed)[name]) for name, value in saved(whole).items())
    assert resumed.decisions("resumed") == [(None, {"at_round": stopped_at})]

    def rounds(federation):
        return [{k: v for k, v in m.items() if k != "seconds"} for m in federation.lines("metrics.jsonl")]

    assert rounds(resumed) == rounds(whole)


def test_a_run_goes_on_without_the_only_annotator_of_a_class_and_names_the_class(tmp_path, plain_report, caplog):
    crash = failing(plain_answers(BOTH), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 1))
    run(tmp_path, crash)
    left = {"site-1": BOTH["site-1"]}  # site-2 alone annotates nodule
    federation = run(tmp_path, plain_answers(left), left)
    assert federation.engine.panics() == []
    assert federation.decisions("classes_without_annotator") == [(1, ["nodule"])]
    assert "round 2: no site that annotates nodule took part" in caplog.text
    assert [r for name, r, *_ in federation.asked if name == TRAIN] == [1, 2]


def test_a_finished_run_name_is_refused(tmp_path, plain_report):
    run(tmp_path, plain_answers(BOTH))
    again = run(tmp_path, plain_answers(BOTH))
    assert again.engine.panics() == [
        "run_name 'run-1': expected a new or an unfinished run, got a finished one; choose another run_name"
    ]
    assert [name for name, *_ in again.asked] == [CENSUS]


def test_a_second_job_beside_the_first_one_is_refused_before_it_asks_anybody(tmp_path, plain_report, monkeypatch):
    monkeypatch.setattr(staged, "PREDECESSOR", 0.0)
    (tmp_path / "state" / "run-1" / "server").mkdir(parents=True)
    with locked(tmp_path / "state" / "run-1" / "server" / "in_use", patience=0):
        second = run(tmp_path, plain_answers(BOTH))
    assert second.engine.panics() == [
        "run_name 'run-1': expected no other job of this run, one still runs; abort it first"
    ]
    assert second.asked == []
    assert run(tmp_path, plain_answers(BOTH)).engine.panics() == []


def test_a_failed_final_evaluation_costs_no_model_and_the_run_can_be_finished(tmp_path, plain_report):
    failed = run(tmp_path, failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == EVALUATE))
    assert failed.engine.panics()[0].startswith("evaluate of round 3: expected valid results from 2 sites, got 1")
    assert not (failed.records / "results.json").exists()
    assert bias_after(failed) == pytest.approx(3)
    (failed.app / "FL_global_model.pt").unlink()
    again = run(tmp_path, plain_answers(BOTH))
    assert again.engine.panics() == []
    assert [name for name, *_ in again.asked] == [CENSUS, EVALUATE]
    assert bias_after(again) == pytest.approx(3)
    assert json.loads((again.records / "results.json").read_text())["final"]["test"]["auc"] == 1
    assert "a finished one" in run(tmp_path, plain_answers(BOTH)).engine.panics()[0]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"method": "fedprox"}, "method"),
        ({"network": "other"}, "network"),
        ({"classes": ["nodule", "edema"]}, "classes"),
        ({"seed": 1, "method": "fedprox"}, "method, seed"),
    ],
)
def test_another_run_under_the_same_name_is_refused_with_what_differs(tmp_path, plain_report, changes, named):
    run(tmp_path, failing(plain_answers(BOTH), site="site-1", when=lambda name, r: r == 1))
    again = run(tmp_path, plain_answers(BOTH), **changes)
    assert again.engine.panics() == [
        f"run_name 'run-1': expected to go on with the same {named} as before, got others; choose another run_name"
    ]
    assert [name for name, *_ in again.asked] == [CENSUS]


@pytest.mark.parametrize("better", [True, False])
def test_a_server_that_dies_between_best_model_and_checkpoint_goes_on_in_agreement(tmp_path, plain_report, better):
    """The model of round 2 is the best one; the repeated round measures it again, a little better or worse."""
    auc = {0: 0, 1: 0, 2: 0.5, 3: 0}
    first = Federation(tmp_path, controller(), list(BOTH), plain_answers(BOTH, counts=lambda r: val(auc[r])))
    save = first.controller.save_progress

    def die(model, done_rounds, knowledge=None, **options):
        if done_rounds == 3:
            raise FedMendError("the power failed")
        save(model, done_rounds, knowledge, **options)

    first.controller.save_progress = die
    assert first.run().engine.panics() == ["the power failed"]
    assert first.decisions("best_model")[-1] == (2, {"auc": 0.5, "split": "val"})
    auc[2] = int(better)
    again = run(tmp_path, plain_answers(BOTH, counts=lambda r: val(auc[r])))
    assert again.engine.panics() == []
    assert again.decisions("best_model") == [
        (0, {"auc": 0.0, "split": "val"}),
        (2, {"auc": float(better), "split": "val"}),
    ]
    best = json.loads((again.records / "results.json").read_text())["best"]
    assert (best["round"], best["val"]["auc"]) == (2, float(better))
    assert bias_after(again, "best_FL_global_model.pt") == pytest.approx(2)


def val(auc):
    return {"val": histograms(auc, auc)}


def test_the_best_model_is_that_of_the_best_validation_auc(tmp_path, plain_report):
    val, test = {0: 0, 1: 1, 2: 0.5, 3: 0.5}, {0: 0, 1: 0, 2: 0.5, 3: 1}

    def counts(r):
        return {"val": histograms(val[r], val[r]), "test": histograms(test[r], test[r])}

    federation = run(tmp_path, plain_answers(BOTH, counts=counts))
    assert federation.decisions("best_model") == [
        (0, {"auc": 0.0, "split": "val"}),
        (1, {"auc": 1.0, "split": "val"}),
    ]
    assert bias_after(federation, "best_FL_global_model.pt") == pytest.approx(1)  # the model received in round 1
    assert bias_after(federation) == pytest.approx(3)
    assert json.loads((federation.records / "results.json").read_text())["best"]["round"] == 1


def test_without_a_validation_split_the_test_split_chooses_and_the_records_say_so(tmp_path, plain_report):
    auc = {0: 0, 1: 0.5, 2: 1, 3: 0.5}
    federation = run(tmp_path, plain_answers(BOTH, counts=lambda r: {"test": histograms(auc[r], auc[r])}))
    assert federation.decisions("best_model")[-1] == (2, {"auc": 1.0, "split": "test"})


def test_counts_of_all_sites_are_pooled(tmp_path, plain_report):
    plain = plain_answers(BOTH)

    def answer(site, task_name, weights, task, evaluate):
        result = plain(site, task_name, weights, task, evaluate)
        # Each site alone gives AUC 1; pooled, site-2's negatives stand above site-1's positives.
        if result.counts:
            counts = np.zeros((2, 2, 1000), dtype=np.int64)
            low, high = (100, 200) if site == "site-1" else (300, 400)
            counts[:, 0, low], counts[:, 1, high] = 10, 10
            result.counts = {"test": counts}
        return result

    assert run(tmp_path, answer).lines("metrics.jsonl")[0]["macro"]["auc"] == 0.75


def test_models_are_evaluated_in_every_nth_round_and_at_the_end(tmp_path, plain_report):
    federation = run(tmp_path, plain_answers(BOTH), eval_every=2)
    assert sorted({m["round"] for m in federation.lines("metrics.jsonl")}) == [0, 2, 3]


def test_repairs_are_written_for_the_classes_that_a_site_lacks(tmp_path, plain_report):
    plain = plain_answers(BOTH)

    def answer(site, task_name, weights, task, evaluate):
        result = plain(site, task_name, weights, task, evaluate)
        if task_name == TRAIN:
            zero, done = np.zeros(2, dtype=np.int64), np.full(2, task.round_num + 1)
            result.repairs = {"positive": done, "negative": 2 * done, "untagged": zero}
        return result

    lines = run(tmp_path, answer).lines("repairs.jsonl")
    got = [(x["round"], x["site"], x["class"], x["positive"], x["new_positive"], x["new_negative"]) for x in lines]
    assert got == [
        (r, site, missing, r, 1, 2) for r in (1, 2, 3) for site, missing in (("site-1", "nodule"), ("site-2", "edema"))
    ]


def test_metrics_and_losses_are_streamed(tmp_path, plain_report):
    federation = run(tmp_path, plain_answers(BOTH))
    streamed = [data["DXO"] for event, data in federation.engine.events if event == "analytix_log_stats"]
    tags = [(d["data"]["track_key"], d["data"]["global_step"]) for d in streamed]
    assert ("test/auc", 3) in tags
    assert ("loss/site-2", 2) in tags


def test_an_abort_ends_the_run(tmp_path):
    federation = Federation(tmp_path, controller(), list(BOTH), None)
    federation.answer = lambda site, *rest: federation.controller.abort_signal.trigger("stop") or census(BOTH[site])
    assert federation.run().engine.panics() == ["census: the job was aborted"]
    assert len(federation.asked) == 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"warmup_rounds": 0}, "expected 1 <= warmup_rounds <= num_rounds, got 0 and 3"),
        ({"warmup_rounds": 4}, "expected 1 <= warmup_rounds <= num_rounds, got 4 and 3"),
        ({"classes": []}, r"expected different class names, got \[\]"),
        ({"classes": ["a", "a"]}, "expected different class names"),
        ({"eval_every": 0}, "expected eval_every >= 1"),
        ({"min_sites": -1}, "min_sites >= 0"),
        ({"round_timeout": -1}, "round_timeout >= 0"),
        ({"grace_period": -1}, "grace_period >= 0"),
    ],
)
def test_settings_that_make_no_run_are_refused_at_once(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        controller(**wrong)


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_a_run_name_that_leaves_its_folder_is_refused_by_the_server(name):
    with refused(f"job variable run_name: expected letters, digits, '_', '.' or '-', got {name!r}"):
        controller(run_name=name)


def test_a_baseline_has_no_warmup_in_its_records(tmp_path, plain_report):
    federation = run(tmp_path, plain_answers(BOTH), warmup_rounds=2)
    assert json.loads((federation.records / "run.json").read_text())["warmup_rounds"] == 0


def test_a_baseline_takes_the_settings_of_the_method_whose_job_it_shares():
    assert controller(degree_over="missing", prototype_weighting="samples").card.classes == tuple(CLASSES)


def repaired(**changes):
    return {**{name: np.zeros(2, dtype=np.int64) for name in ("positive", "negative", "untagged")}, **changes}


def weights(value):
    """Puts another value, made from the honest one, in the place of one tensor."""

    def spoil(result):
        if result.weights:
            result.weights["classifier.bias"] = value(result.weights["classifier.bias"])

    return spoil


def attribute(task_name, **changes):
    """Sets attributes of the results of one task."""

    def spoil(result):
        if bool(result.census) == (task_name == CENSUS):
            vars(result).update(changes)

    return spoil


def in_census(**changes):
    return lambda result: result.census and result.census.update(changes)


JUNK = {
    "counts of three classes": lambda r: r.counts and r.counts.update(val=np.zeros((3, 2, 1000), dtype=np.int64)),
    "negative counts": lambda r: r.counts and r.counts.update(val=-np.ones((2, 2, 1000), dtype=np.int64)),
    "counts of an unknown split": lambda r: r.counts and r.counts.update(train=r.counts["val"]),
    "a list in the report": lambda r: r.report.update(field=[1, 2]),
    "nested junk in the report": lambda r: r.report.update(field={"a": [{"b": "c"}]}),
    "nested junk as report": attribute(TRAIN, report={"a": {"b": [None, {"c": 1}]}}),
    "nested junk as counts": attribute(TRAIN, counts={"val": [[{"a": 1}]]}),
    "no annotated classes": lambda r: r.census.pop("annotated", None),
    "no census": attribute(CENSUS, census={}),
    "annotated of another shape": in_census(annotated=np.ones((2, 2), dtype=bool)),
    "annotated of three classes": in_census(annotated=np.ones(3, dtype=bool)),
    "positives as text": in_census(positives="many"),
    "sizes as a list": in_census(sizes=[10]),
    "kind of labels as an array": in_census(task=np.ones(3)),
    "an unknown kind of labels": in_census(task="boxes"),
    "infinite size": in_census(sizes={"train": float("inf")}),
    "repairs without names": attribute(TRAIN, repairs={"positive": np.zeros(2, dtype=np.int64)}),
    "repairs of another shape": attribute(TRAIN, repairs=repaired(positive=np.zeros((2, 2), dtype=np.int64))),
    "repairs of three classes": attribute(TRAIN, repairs=repaired(positive=np.zeros(3, dtype=np.int64))),
    "weights as text": weights(lambda v: np.array(["a"] * len(v))),
    "complex weights": weights(lambda v: v.astype(np.complex64)),
    "weights of double precision": weights(lambda v: v.astype(np.float64)),
    "ragged lists as weights": weights(lambda v: [[1.0], [1.0, 2.0]]),
    "weights without name": lambda r: r.weights and r.weights.update({3: np.ones(2), "c": np.ones(2)}),
    "a million million samples": attribute(TRAIN, samples=10**12),
    "infinitely many samples": attribute(TRAIN, samples=float("inf")),
    "an endless error": attribute(TRAIN, error="x" * 3000),
}


@pytest.mark.parametrize("spoil", JUNK.values(), ids=JUNK)
def test_an_answer_of_another_kind_costs_its_site_alone(tmp_path, plain_report, spoil):
    plain = plain_answers({"site-1": [1, 1], "site-2": [1, 1]}, step={"site-1": 1, "site-2": 100})

    def answer(site, *rest):
        result = plain(site, *rest)
        if site == "site-2":
            spoil(result)
        return result

    federation = run(tmp_path, answer, min_sites=1)
    assert federation.engine.panics() == []
    reasons = federation.decisions("refused")
    assert {value["site"] for _, value in reasons} == {"site-2"}
    assert reasons[0][1]["reason"].startswith("site-2: result")
    assert len(reasons[0][1]["reason"]) < 300
    assert bias_after(federation) == pytest.approx(3)


# ---- roles and reports without training -----------------------------------------------------------------------------

FOUR = {f"site-{i}": [1, 1] for i in range(1, 5)}
ROLES = {"site-1": "clean", "site-2": "noisy", "site-3": "clean"}  # site-4 has none


class TwoStages(FedAvgController):
    """Reports on the first model, then roles, then two rounds."""

    def rounds(self):
        model, _, first = self.start_run()
        self.resumed_with = dict(self.roles)
        for r in range(first, 2):
            if r == 0:
                self.reports = self.collect(model, "look", r, at_least=2, check_report=self.check_report)
                self.roles = dict(ROLES)
            model, _ = self.train_round(model, "train", r)
            self.save_progress(model, r + 1)
        self.finish(model)

    def check_report(self, report):
        if report["number"] < 0:
            raise FedMendError("report field number: expected a number >= 0, got another")


def reporting(numbers, plain=None):
    """Sites that report their number; None for a silent site."""
    plain = plain or plain_answers(FOUR)

    def answer(site, task_name, weights, task, evaluate):
        result = plain(site, task_name, weights, task, evaluate)
        if task_name == COLLECT:
            if numbers[site] is None:
                return None
            result.report = {"number": np.array(numbers[site])}
        return result

    return answer


def two_stages(folder, answer, sites=FOUR, **changes):
    settings = {"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": 2, "warmup_rounds": 1}
    return Federation(folder, TwoStages(**{**settings, **changes}), list(sites), answer)


def test_each_site_learns_its_own_role_and_no_message_names_another_ones(tmp_path, plain_report):
    federation = two_stages(tmp_path, reporting(dict.fromkeys(FOUR, 1))).run()
    assert federation.engine.panics() == []
    told = {}
    for task, targets, meta in federation.sent:
        if task.stage == "train":
            told.update({(task.round_num, site): task.role for site in targets})
            text = str(meta)
            assert not any(site in text for site in FOUR)
            assert [role for role in ("clean", "noisy") if role in text] == [role for role in (task.role,) if role]
        elif task.stage in ("census", "look"):
            assert task.role == ""
    assert told == {(r, site): ROLES.get(site, "") for r in (0, 1) for site in FOUR}


def test_a_round_with_roles_averages_all_sites_in_sorted_order_once(tmp_path, plain_report):
    step = {"site-1": 1, "site-2": 2, "site-3": 4, "site-4": 9}
    federation = two_stages(tmp_path, reporting(dict.fromkeys(FOUR, 1), plain_answers(FOUR, step=step))).run()
    assert bias_after(federation) == pytest.approx(2 * (1 + 2 + 4 + 9) / 4)
    asked = [sites for name, r, _, sites in federation.asked if (name, r) == (TRAIN, 1)]
    assert asked == [["site-4"], ["site-1", "site-3"], ["site-2"]]


def test_messages_of_all_roles_are_out_before_the_first_answer_is_waited_for(tmp_path, plain_report, monkeypatch):
    """As in FLARE, answers arrive one by one while the controller waits."""
    monkeypatch.setattr(staged, "POLL", 0)
    federation = two_stages(tmp_path, reporting(dict.fromkeys(FOUR, 1)))
    pending, waited_for, direct = [], [], federation._broadcast

    def later(*, targets, callback, **message):
        pending.extend((target, callback, message) for target in targets)

    def standing():
        if pending:
            waited_for.append(len(pending))
            target, callback, message = pending.pop(0)
            direct(targets=[target], callback=callback, **message)
        return len(pending)

    federation.controller.broadcast_model, federation.controller.get_num_standing_tasks = later, standing
    assert federation.run().engine.panics() == []
    assert waited_for == [4, 3, 2, 1] * 5  # census, collection, two rounds, evaluation
    assert bias_after(federation) == pytest.approx(2)


def test_an_abort_while_answers_are_waited_for_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(staged, "POLL", 0)
    federation = two_stages(tmp_path, reporting(dict.fromkeys(FOUR, 1)))
    polls = []

    def standing():
        if federation.asked[-1][0] != COLLECT:
            return 0
        polls.append(1)
        if len(polls) == 3:
            federation.controller.abort_signal.trigger("stop")
        return 1

    federation.controller.get_num_standing_tasks = standing
    assert federation.run().engine.panics() == ["collect: the job was aborted"]
    assert len(polls) == 3


def test_reports_are_collected_without_training(tmp_path, plain_report):
    federation = two_stages(tmp_path, reporting({"site-1": 5, "site-2": 6, "site-3": 7, "site-4": 8})).run()
    collected = federation.controller.reports
    assert {site: int(result.report["number"]) for site, result in collected.items()} == {
        f"site-{i}": 4 + i for i in range(1, 5)
    }
    assert list(collected) == sorted(FOUR)
    assert all(result.weights == {} for result in collected.values())
    assert [a[:3] for a in federation.asked][:2] == [(CENSUS, 0, "census"), (COLLECT, 0, "look")]


def test_a_site_may_be_absent_from_a_collection_and_is_recorded(tmp_path, plain_report):
    federation = two_stages(tmp_path, reporting({"site-1": 5, "site-2": None, "site-3": -1, "site-4": 8})).run()
    assert federation.engine.panics() == []
    assert list(federation.controller.reports) == ["site-1", "site-4"]
    assert federation.decisions("refused") == [
        (0, {"site": "site-2", "reason": "site-2: collect: expected a result, got none"}),
        (0, {"site": "site-3", "reason": "site-3: report field number: expected a number >= 0, got another"}),
    ]
    assert bias_after(federation) == pytest.approx(2)  # it trains with the others all the same


def test_a_collection_with_too_few_reports_stops_the_run_whatever_min_sites_says(tmp_path):
    numbers = {"site-1": 5, "site-2": None, "site-3": None, "site-4": None}
    (sentence,) = two_stages(tmp_path, reporting(numbers), min_sites=1).run().engine.panics()
    assert sentence.startswith("collect of round 0: expected valid results from 2 sites, got 1: site-2: collect: ")


def test_a_resumed_job_keeps_the_roles(tmp_path, plain_report):
    answer = reporting(dict.fromkeys(FOUR, 1))
    crash = failing(answer, site="site-1", when=lambda name, r: name == TRAIN and r == 1)
    assert two_stages(tmp_path, crash).run().engine.panics()
    resumed = two_stages(tmp_path, answer).run()
    assert resumed.engine.panics() == []
    assert resumed.controller.resumed_with == ROLES
    assert COLLECT not in [name for name, *_ in resumed.asked]
    assert {task.role for task, sites, _ in resumed.sent if sites == ["site-2"]} == {"noisy"}


# ---- single-label data ----------------------------------------------------------------------------------------------


def single_label(recalls, splits=("val", "test")):
    """Sites whose evaluations have these recalls of the two classes in round 0, 1, ... and an AUC of 1 in all of them."""
    return plain_answers(FOUR, counts=lambda r: {s: confusion(*recalls[r]) for s in splits}, task="singlelabel")


def test_the_best_model_of_single_label_data_is_that_of_the_best_validation_bacc(tmp_path, plain_report):
    recalls = {0: (0.2, 0.2), 1: (1, 0.4), 2: (0.9, 0.9), 3: (1, 0)}
    federation = run(tmp_path, single_label(recalls), FOUR)
    assert federation.engine.panics() == []
    assert federation.decisions("best_model") == [
        (r, {"bacc": pytest.approx(bacc), "split": "val"}) for r, bacc in ((0, 0.2), (1, 0.7), (2, 0.9))
    ]
    assert bias_after(federation, "best_FL_global_model.pt") == pytest.approx(2)
    results = json.loads((federation.records / "results.json").read_text())
    assert results["best"]["test"]["bacc"] == pytest.approx(0.9)
    final = {"bacc": 0.5, "f1": (20 / 30 + 0) / 2, "auc": 1, "precision": (10 / 20 + 0) / 2, "accuracy": 0.5}
    assert results["final"]["test"] == pytest.approx(final)


def test_without_a_validation_split_the_test_bacc_chooses(tmp_path, plain_report):
    recalls = {0: (0.2, 0.2), 1: (1, 0.4), 2: (0, 0), 3: (0, 0)}
    federation = run(tmp_path, single_label(recalls, ("test",)), FOUR)
    assert federation.decisions("best_model")[-1] == (1, {"bacc": pytest.approx(0.7), "split": "test"})


def test_single_label_counts_of_all_sites_are_pooled(tmp_path, plain_report):
    plain, recalls = (
        plain_answers(FOUR, task="singlelabel"),
        {"site-1": (1, 0), "site-2": (0, 1), "site-3": (1, 1), "site-4": (0.6, 0.2)},
    )

    def answer(site, *rest):
        result = plain(site, *rest)
        result.counts = {split: confusion(*recalls[site]) for split in result.counts}
        return result

    metrics = run(tmp_path, answer, FOUR).lines("metrics.jsonl")[0]
    assert metrics["confusion"] == [[26, 14], [18, 22]]
    assert metrics["macro"]["bacc"] == pytest.approx((26 + 22) / 80)
    assert metrics["macro"]["auc"] == 1


def test_single_label_metrics_are_streamed_and_shown(tmp_path, plain_report, caplog):
    with caplog.at_level("INFO", "fedmend.run"):
        federation = run(tmp_path, single_label(dict.fromkeys(range(4), (1, 0.5))), FOUR)
    tags = {
        data["DXO"]["data"]["track_key"] for event, data in federation.engine.events if event == "analytix_log_stats"
    }
    names = {"bacc", "f1", "auc", "precision", "accuracy"}
    assert {f"{split}/{name}" for split in ("test", "val") for name in names} <= tags
    shown = "received model: test BACC 0.750 F1 0.733 AUC 1.000 PRECISION 0.833 ACCURACY 0.750 | 4 sites"
    assert shown in caplog.text


@pytest.mark.parametrize("positives", [[4, 0], [0, 4], [0, 0]])
def test_a_class_without_a_positive_sample_at_any_site_stops_the_run_at_the_census(tmp_path, positives):
    answer = plain_answers(FOUR)
    federation = run(
        tmp_path,
        lambda site, name, *rest: census([1, 1], positives=positives) if name == CENSUS else answer(site, name, *rest),
        FOUR,
    )
    absent = [c for c, n in zip(CLASSES, positives, strict=True) if not n]
    assert federation.engine.panics() == [
        f"census: expected every class of the job to be annotated at a site, got none for {absent}"
    ]
    assert [name for name, *_ in federation.asked] == [CENSUS]


def test_a_class_with_a_positive_sample_at_one_site_is_enough(tmp_path, plain_report):
    answer, positives = plain_answers(FOUR), {site: [4, int(site == "site-3")] for site in FOUR}
    federation = run(
        tmp_path,
        lambda site, name, *rest: (
            census([1, 1], positives=positives[site]) if name == CENSUS else answer(site, name, *rest)
        ),
        FOUR,
    )
    assert federation.engine.panics() == []


def test_a_diagnosis_that_no_sample_of_a_site_has_is_not_annotated_there(tmp_path, plain_report):
    answer, positives = (
        single_label(dict.fromkeys(range(4), (1, 1))),
        {site: [4, int(site == "site-3")] for site in FOUR},
    )

    def answers(site, name, *rest):
        if name == CENSUS:
            return census([1, 1], positives=positives[site], task="singlelabel")
        return answer(site, name, *rest)

    told = json.loads((run(tmp_path, answers, FOUR).records / "run.json").read_text())["sites"]
    assert {site: told[site]["annotated"] for site in told} == {
        **dict.fromkeys(FOUR, CLASSES[:1]),
        "site-3": CLASSES,
    }
    assert told["site-1"]["positives"] == dict(zip(CLASSES, [4, 0], strict=True))


@pytest.mark.parametrize("odd", ["site-1", "site-4"])
@pytest.mark.parametrize("task", ["multilabel", "singlelabel"])
def test_a_site_that_counts_another_kind_of_labels_than_the_others_costs_itself_alone(
    tmp_path, plain_report, odd, task
):
    kinds = [histograms(1, 1), confusion(1, 1)][:: 1 if task == "multilabel" else -1]
    plain = plain_answers(FOUR, task=task)

    def answer(site, *rest):
        result = plain(site, *rest)
        result.counts = dict.fromkeys(result.counts, kinds[site == odd])
        return result

    federation = run(tmp_path, answer, FOUR, min_sites=1)
    assert federation.engine.panics() == []
    assert {value["site"] for _, value in federation.decisions("refused")} == {odd}
    assert federation.lines("metrics.jsonl")[0]["macro"]["bacc"] == 1


def test_sites_with_different_kinds_of_labels_stop_the_run_at_the_census(tmp_path):
    tasks = {site: "singlelabel" if site == "site-3" else "multilabel" for site in FOUR}
    federation = run(tmp_path, lambda site, *rest: census([1, 1], task=tasks[site]), FOUR)
    assert federation.engine.panics() == [
        "census: expected one kind of labels at all sites, got multilabel at site-1, site-2, site-4, singlelabel at site-3"
    ]
    assert [name for name, *_ in federation.asked] == [CENSUS]


def test_the_kind_of_labels_stands_in_the_records(tmp_path, plain_report):
    for task, answer in (
        ("multilabel", plain_answers(FOUR)),
        ("singlelabel", single_label(dict.fromkeys(range(4), (1, 1)))),
    ):
        federation = run(tmp_path / task, answer, FOUR)
        assert json.loads((federation.records / "run.json").read_text())["task"] == task


def test_encrypted_weights_stop_the_run_with_the_reason(tmp_path):
    federation = two_stages(tmp_path, reporting(dict.fromkeys(FOUR, 1)))
    direct = federation._broadcast

    def encrypted(*, task_name, callback, **message):
        def receive(reply):
            if task_name == TRAIN:
                reply.meta[MetaKey.PROCESSED_ALGORITHM] = "HE_CKKS"
            callback(reply)

        direct(task_name=task_name, callback=receive, **message)

    federation.controller.broadcast_model = encrypted
    (sentence,) = federation.run().engine.panics()
    assert sentence.startswith(
        "train of round 0: expected valid results from 4 sites, got 0: site-1: weights: expected plain"
    )
    assert "switch homomorphic encryption off for this job" in sentence
