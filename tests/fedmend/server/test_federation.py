"""Rounds, subsets of sites, sites that fail, settings."""

import weakref

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, Script, failing, in_rounds, initial, plain_answers, same_models
from torch_factories import TinyNetwork

from fedmend.averaging import Fold
from fedmend.basics.files import locked
from fedmend.errors import FedMendError
from fedmend.messages import CENSUS, EVALUATE, TRAIN
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.server import federation, job
from fedmend.server.federation import RunSettings

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}
THREE = {**BOTH, "site-3": [1, 1]}
FOUR = {f"site-{i}": [1, 1] for i in range(1, 5)}
OUTSIDE = (
    "job variable weights: expected a file or package in the server's weights folder (weights_dir of its"
    " local/fedmend.json), got another"
)


def play(folder, answer, sites=BOTH, workflow=None, **options):
    return Run(folder, workflow or FedAvgWorkflow(), list(sites), answer, **options)


def script(folder, run, answer=None, sites=FOUR, **options):
    return play(folder, answer or plain_answers(sites), sites, Script(run), **options)


def when_training(name, round_num):
    return name == TRAIN


# ---- rounds ---------------------------------------------------------------------------------------------------------


def test_models_are_averaged_by_samples_in_every_round(tmp_path):
    answer = plain_answers(BOTH, samples={"site-1": 10, "site-2": 30}, step={"site-1": 1, "site-2": 2})
    run = play(tmp_path, answer)
    assert run.stopped == ""
    assert run.stages == [(CENSUS, 0, "census"), *((TRAIN, r, "train") for r in range(3)), (EVALUATE, 3, "evaluate")]
    assert run.moved() == pytest.approx([3 * (10 * 1 + 30 * 2) / 40] * 2)
    assert same_models(run.transport.saved["global"], run.model)


def test_the_order_in_which_answers_arrive_changes_no_bit(tmp_path):
    sites = {f"site-{i}": [1, 1] for i in range(1, 6)}
    plain = plain_answers(sites, samples={s: 7 * i + 3 for i, s in enumerate(sites)})

    def trained(site, shape):
        return np.random.default_rng(int(site[-1])).standard_normal(shape, dtype=np.float32)

    def answer(site, question, weights, *rest):
        result = plain(site, question, weights, *rest)
        result.weights = {k: trained(site, v.shape) for k, v in result.weights.items()}
        return result

    one, other = (play(tmp_path / str(b), answer, sites, backwards=b) for b in (False, True))
    assert same_models(one.model, other.model)
    sums = [sum(trained(site, 50) for site in order) for order in (sites, reversed(sites))]
    assert not np.array_equal(*sums)  # the order would show if nobody put it right


@pytest.mark.parametrize("backwards", [False, True])
def test_models_wait_on_disk_and_none_is_held_in_memory(tmp_path, monkeypatch, backwards):
    models, held = [], []

    def answer(site, question, *rest):
        result = plain_answers(THREE)(site, question, *rest)
        if question == TRAIN:
            models.append(weakref.ref(result.weights["classifier.bias"]))
        return result

    class Watched(Fold):
        def take(self, *result):
            held.append(sum(found() is not None for found in models))
            super().take(*result)

    monkeypatch.setattr(federation, "Fold", Watched)
    run = play(tmp_path, answer, THREE, backwards=backwards, num_rounds=2)
    assert run.stopped == ""
    assert len(models) == 6
    assert held == [0] * 6
    assert not (tmp_path / "state" / "run-1" / "server" / "round").exists()


def test_a_seed_gives_the_same_first_model_to_all(tmp_path):
    received = {}

    def answer(site, question, weights, task, evaluate):
        if question == TRAIN and task.round_num == 0:
            received[site] = weights
        return plain_answers(BOTH)(site, question, weights, task, evaluate)

    play(tmp_path, answer, seed=5)
    assert sorted(received) == ["site-1", "site-2"]
    assert all(same_models(weights, initial(["a", "b"], 5)) for weights in received.values())
    assert not same_models(initial(["a", "b"], 5), initial(["a", "b"], 0))


def test_a_task_says_seed_and_number_of_all_rounds(tmp_path):
    run = play(tmp_path, plain_answers(BOTH), seed=5)
    assert {(task.seed, task.total_rounds) for task, _ in run.transport.sent if task.stage == "train"} == {(5, 3)}


def test_the_number_of_rounds_can_be_the_workflow_s(tmp_path):
    def run(fed):
        for _ in fed.rounds(total=2 * len(fed.sites)):
            fed.train("train")
        fed.record("after", fed.num_rounds)

    run = script(tmp_path, run, sites=BOTH)
    assert run.rounds() == [0, 1, 2, 3]
    assert {task.total_rounds for task, _ in run.transport.sent if task.stage == "train"} == {4}
    assert run.content("run.json")["num_rounds"] == 4
    assert run.decisions("after") == [(4, 4)]
    assert run.asked[-1][:2] == (EVALUATE, 4)


def test_random_numbers_of_the_server_depend_on_seed_round_and_purpose_only(tmp_path):
    def drawn(folder, purpose="order", **settings):
        numbers = []
        step = in_rounds(lambda fed, r: numbers.append(fed.generator(purpose).random()) or fed.train("train"))
        script(tmp_path / folder, step, **settings)
        return numbers

    first = drawn("one")
    assert first == drawn("same")
    assert len({*first, *drawn("other", "dice"), *drawn("seed", seed=8)}) == 9


def test_random_numbers_of_a_round_are_the_same_after_a_crash(tmp_path):
    numbers = {}

    def step(fed, r):
        numbers.setdefault(r, []).append(fed.generator("order").random())
        fed.train("train")

    script(tmp_path, in_rounds(step), failing(plain_answers(FOUR), site="site-1", when=lambda name, r: r == 1))
    script(tmp_path, in_rounds(step))
    assert numbers[1][0] == numbers[1][1]


def test_a_workflow_knows_sites_rows_kind_and_the_model(tmp_path):
    seen = {}

    def look(fed):
        seen.update(
            {s: (f.samples, f.annotated.tolist(), f.positives.tolist()) for s, f in fed.sites.items()},
            known=(fed.classes, fed.rows, fed.kind, fed.num_rounds, fed.seed),
        )
        fed.model = {name: value + 1 for name, value in fed.model.items()}
        for _ in fed.rounds():
            fed.train("train")

    run = script(tmp_path, look, sites=BOTH)
    assert seen["site-2"] == (10, [False, True], [0, 4])
    assert seen["known"] == (("a", "b"), ("a", "b"), "multilabel", 3, 7)
    assert run.moved() == pytest.approx([4, 4])  # 1 of the workflow, 3 rounds


# ---- sites that fail ------------------------------------------------------------------------------------------------


def test_a_refused_site_is_named_and_the_round_goes_on_where_min_sites_allows_it(tmp_path, caplog):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == TRAIN and r == 1)
    run = play(tmp_path, answer, THREE, min_sites=2)
    assert run.stopped == ""
    sentence = "site-2: train.csv row 3: expected ..., got ..."
    assert run.decisions("refused") == [(1, {"site": "site-2", "reason": sentence})]
    assert sentence in caplog.text
    assert run.asked[-1][3] == ["site-1", "site-2", "site-3"]  # it is asked again
    assert run.moved() == pytest.approx([3, 3])


def test_only_valid_results_enter_the_model(tmp_path):
    run = play(tmp_path, plain_answers(THREE, step={"site-1": 1, "site-2": np.nan, "site-3": 3}), THREE, min_sites=2)
    assert run.moved() == pytest.approx([3 * 2] * 2)
    reasons = [value["reason"] for _, value in run.decisions("refused")]
    assert len(reasons) == 3
    assert all(reason.startswith("site-2: result of round") and "NaN or infinity" in reason for reason in reasons)


def test_without_min_sites_a_refused_site_stops_the_run_with_its_sentence(tmp_path):
    run = play(tmp_path, failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == TRAIN and r == 1))
    assert run.stopped == (
        "train of round 1: expected valid results from 2 sites, got 1: site-2: train.csv row 3: expected ..., got ..."
    )
    assert not (run.folder / "results.json").exists()
    assert len(run.decisions("refused")) == 1


def test_a_silent_site_is_named(tmp_path):
    run = play(tmp_path, failing(plain_answers(BOTH), site="site-2", when=when_training, error=""))
    assert run.stopped == (
        "train of round 0: expected valid results from 2 sites, got 1: site-2: train: expected a result, got none"
    )


def test_a_message_that_cannot_be_read_is_refused_with_what_is_wrong(tmp_path):
    plain = plain_answers(THREE)

    def answer(site, question, *rest):
        unread = site == "site-2" and question == TRAIN
        return FedMendError("weights: expected plain ones") if unread else plain(site, question, *rest)

    run = play(tmp_path, answer, THREE, min_sites=2, num_rounds=1)
    assert run.stopped == ""
    assert run.decisions("refused") == [(0, {"site": "site-2", "reason": "site-2: weights: expected plain ones"})]


@pytest.mark.parametrize(
    ("sites", "sentence"),
    [
        (["label", "site-2"], "label ledger: expected a file that can be opened"),
        (["site-1", "site-10"], "site-10: train.csv row 3: expected ..., got ..."),
    ],
)
def test_a_refused_site_is_named_before_a_sentence_that_begins_like_its_name(tmp_path, sites, sentence):
    first, known = sites[0], dict.fromkeys(sites, (1, 1))
    answer = failing(plain_answers(known), site=first, when=when_training, error=sentence)
    run = play(tmp_path, answer, known, min_sites=1, num_rounds=1)
    assert run.decisions("refused") == [(0, {"site": first, "reason": f"{first}: {sentence}"})]


def test_a_site_called_report_is_named_when_its_report_lacks_a_field(tmp_path):
    class Asking(Script):
        def check(self, stage, report):
            raise FedMendError("report: expected the field number, got none")

    sites = {"report": [1, 1]}
    run = play(tmp_path, plain_answers(sites), sites, Asking(in_rounds(lambda fed, r: fed.train("train"))))
    assert run.stopped.endswith("got 0: report: report: expected the field number, got none")


def test_no_valid_result_at_all_stops_the_run_whatever_min_sites_says(tmp_path):
    answer = failing(plain_answers({"site-1": [1, 1]}), site="site-1", when=when_training)
    run = play(tmp_path, answer, ["site-1"], min_sites=1)
    assert run.stopped.startswith("train of round 0: expected valid results from 1 sites, got 0")


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "refused"])
@pytest.mark.parametrize("odd", list(THREE))
def test_answers_count_once_each_whoever_is_refused_or_silent(tmp_path, odd, silent, backwards):
    samples, step = dict(zip(THREE, (10, 20, 30), strict=True)), dict(zip(THREE, (1.0, 2.0, 4.0), strict=True))
    plain = plain_answers(THREE, samples=samples, step=step)
    answer = failing(plain, site=odd, when=when_training, error="" if silent else f"{odd}: no")

    def twice(transport):
        exchange = transport.exchange
        transport.exchange = lambda question, receive, enough: exchange(
            question, lambda site, result: [receive(site, result), receive(site, result), receive("x", result)], enough
        )

    run = play(tmp_path, answer, THREE, num_rounds=1, min_sites=2, backwards=backwards, prepare=twice)
    assert run.stopped == ""
    assert [value["site"] for _, value in run.decisions("refused")] == [odd]
    present = [site for site in THREE if site != odd]
    mean = sum(samples[s] * step[s] for s in present) / sum(samples[s] for s in present)
    assert run.moved() == pytest.approx([mean] * 2)


def test_a_transport_may_stop_waiting_when_there_are_enough_valid_results(tmp_path):
    counted, plain = [], plain_answers(THREE, step={**dict.fromkeys(THREE, 1), "site-1": np.nan})

    def prepare(transport):
        exchange = transport.exchange

        def watched(question, receive, enough):
            exchange(question, lambda *answer: [receive(*answer), counted.append((question.name, enough()))], enough)

        transport.exchange = watched

    play(tmp_path, plain, THREE, min_sites=2, num_rounds=1, prepare=prepare)
    assert counted == [
        *((CENSUS, enough) for enough in (False, True, True)),
        *((TRAIN, enough) for enough in (False, False, True)),  # the first one is refused
        *((EVALUATE, enough) for enough in (False, True, True)),
    ]


def test_a_second_job_beside_the_first_one_is_refused_before_it_asks_anybody(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "PREDECESSOR", 0.0)
    with locked(tmp_path / "state" / "run-1" / "server" / "in_use", patience=0):
        second = play(tmp_path, plain_answers(BOTH))
    assert second.stopped == "run_name 'run-1': expected no other job of this run, one still runs; abort it first"
    assert second.asked == []
    assert play(tmp_path, plain_answers(BOTH)).stopped == ""


# ---- some of the sites ----------------------------------------------------------------------------------------------


def test_where_some_sites_train_all_evaluate_first_and_the_others_are_not_asked_to_train(tmp_path):
    run = script(tmp_path, in_rounds(lambda fed, r: fed.train("train", sites=["site-3", "site-1"])), num_rounds=2)
    some, every = ["site-1", "site-3"], list(FOUR)
    assert run.asked == [
        (CENSUS, 0, "census", every),
        (EVALUATE, 0, "evaluate", every),
        (TRAIN, 0, "train", some),
        (EVALUATE, 1, "evaluate", every),
        (TRAIN, 1, "train", some),
        (EVALUATE, 2, "evaluate", every),
    ]
    metrics = run.lines("metrics.jsonl")
    assert [(m["round"], m["split"]) for m in metrics] == [(r, s) for r in range(3) for s in ("test", "val")]
    assert run.moved() == pytest.approx([2, 2])
    assert run.decisions("classes_without_annotator") == []


def test_only_the_sites_of_a_round_enter_its_model(tmp_path):
    answer = plain_answers(FOUR, step={"site-1": 1, "site-2": 100, "site-3": 3, "site-4": 100})
    answers = []
    step = in_rounds(lambda fed, r: answers.append(fed.train("train", sites=["site-3", "site-1"])))
    run = script(tmp_path, step, answer, num_rounds=1)
    assert run.moved() == pytest.approx([2, 2])
    assert {site: a.share for site, a in answers[0].items()} == {"site-1": 0.5, "site-3": 0.5}


def test_rounds_of_one_site_each_pass_the_model_on_and_evaluate_it_once_a_round(tmp_path):
    """Cyclic training: in every round one site after the other goes on with the model of the one before."""
    received = {}

    def answer(site, question, weights, task, evaluate):
        if question == TRAIN:
            received[task.round_num, site] = float(weights["classifier.bias"][0])
            assert not evaluate
        return plain_answers(THREE, step={"site-1": 1, "site-2": 2, "site-3": 4})(
            site, question, weights, task, evaluate
        )

    def cycle(fed, r):
        for site in fed.sites:
            assert fed.train("train", sites=[site])[site].share == 1

    run = script(tmp_path, in_rounds(cycle), answer, THREE, num_rounds=2)
    assert run.stopped == ""
    start = received[0, "site-1"]
    moves = [value - start for value in received.values()]
    assert moves == pytest.approx([0, 1, 3, 7, 8, 10], abs=1e-5)
    assert run.moved() == pytest.approx([14, 14], abs=1e-5)
    assert run.rounds(EVALUATE) == [0, 1, 2]
    assert run.rounds() == [0, 0, 0, 1, 1, 1]


def test_a_round_of_some_sites_needs_no_more_results_than_it_asks_sites(tmp_path):
    run = script(tmp_path, in_rounds(lambda fed, r: fed.train("train", sites=["site-2"])), min_sites=3)
    assert run.stopped == ""
    answer = failing(plain_answers(FOUR), site="site-2", when=when_training)
    stopped = script(tmp_path / "b", in_rounds(lambda fed, r: fed.train("train", sites=["site-2"])), answer).stopped
    assert stopped.startswith("train of round 0: expected valid results from 1 sites, got 0: site-2: train.csv row 3")


def test_rounds_that_are_not_evaluated_ask_nobody_to_evaluate(tmp_path):
    step = in_rounds(lambda fed, r: fed.train("train", sites=["site-1"]))
    assert script(tmp_path, step, eval_every=2).rounds(EVALUATE) == [0, 2, 3]


# ---- settings -------------------------------------------------------------------------------------------------------

SETTINGS = {"run_name": "run-1", "classes": ["a", "b"], "network": "tiny", "num_rounds": 3}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"num_rounds": 0}, "expected num_rounds and eval_every >= 1, got 0 and 1"),
        ({"classes": []}, r"expected different class names that can be printed, got \[\]"),
        ({"classes": ["a\x1b[2J\nERROR", "b"]}, r"names that can be printed, got \['a\\x1b\[2J\\nERROR', 'b'\]"),
        ({"classes": ["a", "a"]}, "expected different class names"),
        ({"eval_every": 0}, "expected num_rounds and eval_every >= 1, got "),
        ({"min_sites": -1}, "min_sites, round_timeout, grace_period and seed >= 0"),
        ({"round_timeout": -1}, "round_timeout, grace_period and seed >= 0"),
        ({"grace_period": -1}, "grace_period and seed >= 0"),
        ({"seed": -1}, "seed >= 0"),
    ],
)
def test_settings_that_make_no_run_are_refused_at_once(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        RunSettings(**{**SETTINGS, **wrong})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("without", "site-3", "a list of texts"),
        ("classes", "ab", "a list of texts"),
        ("allow_changes", [3], "a list of texts"),
        ("refit", "false", "true or false"),
        ("seed", 2**53, "a whole number"),
        ("num_rounds", True, "a whole number"),
        ("min_sites", 1.5, "a whole number"),
        ("clip_update", float("inf"), "a number that is finite"),
        ("max_site_share", float("nan"), "a number that is finite"),
        ("weights", 5, "text"),
    ],
)
def test_a_setting_of_another_type_is_refused_by_its_name(name, value, expected):
    with refused(f"job variable {name}: expected {expected}, got {value!r}"):
        RunSettings(**{**SETTINGS, name: value})


@pytest.mark.parametrize("warmup", [-1, 4])
def test_a_warm_up_that_does_not_fit_into_the_run_is_refused_before_anybody_is_asked(tmp_path, warmup):
    workflow = FedAvgWorkflow()
    workflow.warmup_rounds = warmup
    with refused(
        f"job variables warmup_rounds, num_rounds: expected the warm-up to fit into the run, got {warmup} of 3"
    ):
        play(tmp_path, plain_answers(BOTH), workflow=workflow)


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_a_run_name_that_leaves_its_folder_is_refused_by_the_server(tmp_path, name):
    with refused(f"job variable run_name: expected at most 100 letters, digits, '_', '.' or '-', got {name!r}"):
        play(tmp_path, plain_answers(BOTH), run_name=name)


def test_a_weights_file_starts_at_the_app_folder(tmp_path):
    class Loadable(TinyNetwork):
        library_heads = ()

    (tmp_path / "job-1").mkdir()
    given = {name: torch.from_numpy(value + 1) for name, value in initial(["a", "b"]).items()}
    torch.save({"model": given}, tmp_path / "job-1" / "start.pt")
    answer = plain_answers(BOTH, step=dict.fromkeys(BOTH, 0.5))
    run = play(tmp_path, answer, weights="start.pt", backbone=Loadable, num_rounds=1)
    assert run.stopped == ""
    assert run.moved() == pytest.approx([1.5, 1.5])
    missing = play(tmp_path / "other", plain_answers(BOTH), weights="start.pt", backbone=Loadable)
    assert missing.stopped == OUTSIDE


@pytest.mark.parametrize("place", ["{0}/other/pin.txt", "../other/pin.txt", "../other/none.txt", "/", "a\0b"])
def test_a_file_outside_the_weights_folder_is_refused_in_words_that_do_not_tell_whether_it_is_there(tmp_path, place):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pin.txt").write_text("4711")
    run = play(tmp_path, plain_answers(BOTH), weights=place.format(tmp_path))
    assert run.stopped == OUTSIDE
    assert run.asked == []
    assert not (run.folder / "run.json").exists()


def test_weights_that_a_job_demands_and_the_server_lacks_stop_it_before_any_site_is_asked(tmp_path):
    run = play(tmp_path, plain_answers(BOTH), weights="imagenet")
    assert run.stopped.startswith("job variable weights: expected the ImageNet weights of tiny as tiny.pth, .pt or")
    assert run.asked == []


@pytest.mark.parametrize("again", [["site-1"], ["site-9"]], ids=["trained already", "unknown"])
def test_a_site_that_is_unknown_or_has_trained_in_the_round_is_not_asked(tmp_path, again):
    def step(fed, r):
        fed.train("train", sites=["site-1"])
        fed.train("train", sites=again)

    run = Run(tmp_path, Script(in_rounds(step)), THREE, plain_answers(THREE))
    assert run.stopped == f"round 0: expected known sites that have not trained in it yet, got {again}"


def test_a_question_to_nobody_stops_the_run(tmp_path):
    run = Run(tmp_path, Script(in_rounds(lambda fed, r: fed.train("train", sites=[]))), THREE, plain_answers(THREE))
    assert run.stopped.endswith("expected at least one site to ask, got none")
