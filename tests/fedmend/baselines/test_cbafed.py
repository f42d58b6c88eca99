"""CBAFed: pseudo-labels by thresholds for each class at the site; thresholds, averages and blends at the server."""

import math

import numpy as np
import pytest
import torch
from federation_factories import Run, failing, plain_answers
from torch_factories import Says, make_task

from fedmend.averaging import Contribution
from fedmend.baselines.cbafed import PSEUDO, RULE, WARMUP, CBAFed, CBAFedWorkflow, by_labels, pseudo_loss, thresholds
from fedmend.messages import TRAIN
from fedmend.methods.baselines import FedAvgPL

LABELS = [[1, -1, -1], [0, -1, -1], [0, -1, -1], [1, -1, -1]]
ALL = torch.arange(4)
TAU = np.array([0.95, 0.7, 0.9], dtype=np.float32)


def logit(p):
    p = np.asarray(p)
    return np.log(p / (1 - p))


def order(stage=PSEUDO, round_num=3, tau=TAU):
    return make_task(stage, round_num, 9, **({"thresholds": tau} if stage == PSEUDO else {}))


# ---- the site -------------------------------------------------------------------------------------------------------


def test_each_class_has_the_mean_over_its_own_pseudo_labels_with_their_own_weight():
    z = torch.tensor(logit([[0.8, 0.9], [0.2, 0.6], [0.6, 0.1], [0.1, 0.5]]), requires_grad=True)
    used = torch.tensor([[True, False], [True, False], [False, True], [True, False]])
    found = pseudo_loss(z, used)
    found.backward()
    # Class 0: a positive, which weighs 3 / 1, and two negatives. Class 1: one negative.
    expected = (-3 * math.log(0.8) - math.log(0.8) - math.log(0.9)) / 3 - math.log(0.9)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    slopes = [[-0.6 / 3, 0], [0.2 / 3, 0], [0, 0.1], [0.1 / 3, 0]]
    assert z.grad.numpy() == pytest.approx(np.array(slopes), abs=1e-6)


def test_answers_beyond_the_threshold_of_their_class_are_learned(site_of):
    table = logit([[0.99, 0.71, 0.89], [0.01, 0.29, 0.11], [0.5, 0.69, 0.91], [0.5, 0.31, 0.09]])
    net = Says(table)
    loss = CBAFed().start(net, order(), site_of(LABELS)).loss(ALL)
    loss.backward()
    assert net.table.grad[:, 1].bool().tolist() == [True, True, False, False]
    assert net.table.grad[:, 2].bool().tolist() == [False, False, True, True]
    plain = FedAvgPL().start(Says(table), order(), site_of(LABELS, folder="plain")).loss(ALL)
    added = (-2 * math.log(0.71) - math.log(0.71)) / 2 + (-2 * math.log(0.91) - math.log(0.91)) / 2
    assert loss.item() == pytest.approx(plain.item() + added, rel=1e-5)
    assert len(net.calls) == 1


def test_the_report_counts_labels_and_the_last_pseudo_labels_which_are_in_the_ledger(site_of, play):
    labels = [[1, -1, -1], [0, -1, -1], [-1, -1, -1], [1, -1, -1]]  # a blank is no label
    table = logit([[0.5, 0.8, 0.95], [0.5, 0.1, 0.5], [0.5, 0.75, 0.5], [0.5, 0.5, 0.5]])
    site = site_of(labels)
    report = play(CBAFed(), Says(table), order(), site, 1e-9)
    assert report["label_counts"].tolist() == [3, 3, 1]
    assert report["label_counts"].dtype == np.int64
    assert site.ledger.repairs().tolist() == [[-1, 1, 1], [-1, 0, -1], [-1, 1, -1], [-1, -1, -1]]
    assert {row["rule"] for row in site.ledger.history()} == {RULE}
    assert [row["confidence"] for row in site.ledger.history()] == pytest.approx([0.3, 0.45, 0.4, 0.25], abs=1e-4)
    report = play(CBAFed(), Says(logit(np.full((4, 3), 0.5))), order(round_num=4), site, 1e-9)
    assert report["label_counts"].tolist() == [3, 0, 0]  # what stands in the ledger from before does not count


# ---- the server -----------------------------------------------------------------------------------------------------


def test_thresholds_by_hand():
    shares = np.array([0.1, 0.2, 0.6])
    spread = math.sqrt(((0.1 - 0.3) ** 2 + (0.2 - 0.3) ** 2 + (0.6 - 0.3) ** 2) / 2)
    assert thresholds(shares).tolist() == pytest.approx([0.55, 0.55, 0.45 + 0.6 - spread], rel=1e-6)
    assert thresholds(np.array([0.8] * 5)).tolist() == pytest.approx([0.95] * 5)  # 1.25 is cut
    assert thresholds(np.array([1.0])).tolist() == pytest.approx([0.95])  # one class has no spread


def test_models_weigh_by_their_labels_but_not_by_more_than_they_can_have():
    told = {
        "a": Contribution(10, {"label_counts": np.array([10, 3])}),
        "b": Contribution(5, {"label_counts": np.array([10**9, 1])}),
    }
    assert by_labels(told) == {"a": 13, "b": 6}


ANNOTATED = {"site-1": [1, 0], "site-2": [0, 1]}
SAMPLES = {"site-1": 10, "site-2": 30}
COUNTS = {WARMUP: {"site-1": [10, 0], "site-2": [0, 30]}, PSEUDO: {"site-1": [10, 6], "site-2": [14, 30]}}


def answers(change=None, steps=None):
    plain = plain_answers(ANNOTATED, samples=SAMPLES, step=steps or {"site-1": 1.0, "site-2": 3.0})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN:
            counts = np.array(COUNTS[task.stage][site])
            result.report = {"label_counts": change(site, counts) if change else counts}
        return result

    return answer


def play(folder, answer=None, rounds=4, warmup=2, **settings):
    settings = {"num_rounds": rounds, "eval_every": 100, **settings}
    return Run(folder, CBAFedWorkflow(warmup_rounds=warmup), list(ANNOTATED), answer or answers(), **settings)


def test_thresholds_follow_the_labels_in_use_from_the_end_of_the_warm_up_on(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    assert [stage for question, _, stage in run.stages if question == TRAIN] == [WARMUP] * 2 + [PSEUDO] * 2
    assert [dict(k) for k in run.knowledge(WARMUP).values()] == [{}, {}]
    found = [k["thresholds"].tolist() for k in run.knowledge(PSEUDO).values()]
    spread = np.std([10 / 40, 30 / 40], ddof=1)
    assert found[0] == pytest.approx([0.55, 0.45 + 0.75 - spread], rel=1e-5)
    spread = np.std([24 / 60, 36 / 60], ddof=1)
    assert found[1] == pytest.approx([0.45 + 0.4 - spread, 0.45 + 0.6 - spread], rel=1e-5)


def test_models_are_averaged_by_samples_then_by_labels_in_use(tmp_path):
    moved = play(tmp_path).moved()
    warm = (10 * 1 + 30 * 3) / 40
    late = (16 * 1 + 44 * 3) / 60
    assert moved == pytest.approx([2 * warm + 2 * late] * 2, rel=1e-5)


def test_a_long_run_blends_its_models_and_starts_anew_after_the_warm_up(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmend.baselines.cbafed.RESIDUAL_ROUNDS", 0.2)  # a blend in every second of 11 rounds
    run = play(tmp_path, answers(steps={"site-1": 1.0, "site-2": 1.0}), rounds=11, warmup=5)
    assert run.stopped == ""
    w = memory = 0.0
    for r in range(11):
        w += 1
        began, old = (0, 0.8) if r < 5 else (5, 0.5)
        if (r - began) % 2 == 0:
            w = memory = w if r == began else (1 - old) * w + old * memory
    assert run.moved() == pytest.approx([w] * 2, rel=1e-5)
    assert w == pytest.approx(5.8)


def test_a_run_that_gets_so_many_rounds_that_it_blends_begins_with_the_model_that_it_has(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmend.baselines.cbafed.RESIDUAL_ROUNDS", 0.1)  # no blend in 4 rounds, one in each of 8
    alike = answers(steps={"site-1": 1.0, "site-2": 1.0})
    assert play(tmp_path, alike, rounds=4).moved() == pytest.approx([4] * 2)
    run = play(tmp_path, alike, rounds=8, job="job-2", allow_changes=["num_rounds"])
    assert run.stopped == ""
    assert run.moved() == pytest.approx([5 + 0.5 + 0.5 + 0.5] * 2, rel=1e-5)


def test_a_run_that_goes_on_with_a_shorter_warm_up_counts_labels_before_it_has_thresholds(tmp_path):
    cut = failing(answers(), site="site-1", when=lambda name, r: name == TRAIN and r == 3)
    assert play(tmp_path, cut, rounds=6, warmup=5).stopped
    run = play(tmp_path, rounds=6, warmup=2, job="job-2", allow_changes=["warmup_rounds"])
    assert [stage for question, _, stage in run.stages if question == TRAIN] == [WARMUP, PSEUDO, PSEUDO]
    assert [sorted(k) for k in run.knowledge(PSEUDO).values()] == [["thresholds"]] * 2
