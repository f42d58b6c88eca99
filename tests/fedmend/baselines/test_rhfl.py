"""RHFL: the loss at a site, and the weights at the server."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, confusion, plain_answers
from torch_factories import Says, make_task

from fedmend.averaging import Contribution
from fedmend.baselines.rhfl import RHFL, RHFLWorkflow, confidence_weights, symmetric_cross_entropy
from fedmend.messages import TRAIN
from fedmend.methods.baselines import SingleLabelFedAvg

TABLE = np.log([[0.5, 0.25, 0.25], [0.2, 0.6, 0.2], [0.5, 0.25, 0.25], [0.8, 0.1, 0.1]])
CLASSES = (0, 1, 2, 0)
OWN = np.array([0.5, 0.6, 0.25, 0.8])  # probabilities of the labels
SYMMETRIC = -0.1 * np.log(OWN) + 4 * math.log(10) * (1 - OWN)


# ---- at a site ------------------------------------------------------------------------------------------------------


def test_symmetric_cross_entropy_is_mostly_the_mean_absolute_error():
    found = symmetric_cross_entropy(torch.tensor(TABLE).float(), torch.tensor(CLASSES))
    assert found.item() == pytest.approx(SYMMETRIC.mean(), rel=1e-5)


def test_an_extreme_sample_has_a_finite_loss_and_gradient():
    logits = torch.tensor([[500.0, -500, 0]], requires_grad=True)
    loss = symmetric_cross_entropy(logits, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(100 + 4 * math.log(10), rel=1e-5)
    assert torch.isfinite(logits.grad).all()


def start(site_of, method):
    return method.start(Says(TABLE), make_task(), site_of(list(CLASSES)))


def test_a_site_reports_the_mean_over_the_samples_of_its_last_epoch(site_of):
    work = start(site_of, RHFL())
    for epoch, parts in enumerate([[[0], [1]], [[0, 1, 2], [3]]]):
        list(work.batches(epoch))
        losses = [work.loss(torch.tensor(part)).item() for part in parts]
    assert losses == pytest.approx([SYMMETRIC[:3].mean(), SYMMETRIC[3]], rel=1e-5)
    report = work.report()
    assert (set(report), report["local_loss"].dtype) == ({"local_loss"}, np.float32)
    assert report["local_loss"] == pytest.approx(SYMMETRIC.mean(), rel=1e-5)


def test_with_plain_cross_entropy_the_loss_is_that_of_federated_averaging(site_of):
    losses = []
    for method in (RHFL(local_loss="ce"), SingleLabelFedAvg()):
        work = start(site_of, method)
        list(work.batches(0))
        losses.append(work.loss(torch.arange(4)).item())
    assert losses[0] == losses[1]


# ---- weights --------------------------------------------------------------------------------------------------------


def softmax(exponents):
    values = np.exp(exponents)
    return (values / values.sum()).tolist()


def test_the_weights_are_the_softmax_of_each_site_s_part_in_the_fall():
    falls = np.array([0.1, 0.3, -0.2])  # sum 0.2
    assert confidence_weights(falls, eta=0.5).tolist() == pytest.approx(softmax([0.25, 0.75, -0.5]))
    assert confidence_weights(falls, eta=0.5, normaliser="abs").tolist() == pytest.approx(
        softmax([0.05 / 0.6, 0.15 / 0.6, -0.1 / 0.6])
    )


def test_with_absolute_values_one_site_of_20_has_at_most_8_percent():
    falls = np.array([0.2] + 19 * [0.0])  # e^0.5 / (e^0.5 + 19)
    assert confidence_weights(falls, eta=0.5, normaliser="abs")[0] == pytest.approx(0.0798, abs=5e-5)


def test_a_sum_near_0_lets_no_exponent_exceed_3_and_a_negative_one_reverses_the_ranking():
    falls = np.array([0.5, -0.4999999, 0.0])
    assert confidence_weights(falls, eta=0.5).tolist() == pytest.approx(softmax([3, -3, 0]))
    assert np.argmax(confidence_weights(-falls - 0.01, eta=0.5)) == 0


@pytest.mark.parametrize("falls", [[0.0, 0, 0], [0.5, -0.5, 0]])
def test_where_the_falls_add_up_to_0_the_weights_are_uniform(falls):
    assert confidence_weights(np.array(falls), eta=0.5).tolist() == pytest.approx([1 / 3] * 3)


def contribution(loss, samples=10):
    return Contribution(samples, {"local_loss": np.float32(loss)})


def test_the_fall_is_relative_to_the_new_loss_and_an_unknown_site_has_none():
    now = {"a": contribution(0.5), "b": contribution(1.0), "c": contribution(4.0)}
    found = RHFLWorkflow().weights({"a": 0.75, "b": 1.25}, now)  # 0.5, 0.25, 0
    assert list(found.values()) == pytest.approx(softmax([0.5 / 1.5, 0.25 / 1.5, 0]))


def test_a_loss_that_rises_counts_against_a_site_where_absolute_values_are_added_up():
    now = {"a": contribution(0.5), "b": contribution(1.0)}
    found = RHFLWorkflow(normaliser="abs").weights({"a": 0.75, "b": 0.75}, now)  # 0.5, -0.25
    assert list(found.values()) == pytest.approx(softmax([0.5 / 1.5, -0.25 / 1.5]))


def test_a_loss_of_0_takes_the_whole_fall():
    now = {"a": contribution(0.0), "b": contribution(1.0)}
    found = RHFLWorkflow().weights({"a": 1.0, "b": 2.0}, now)
    assert list(found.values()) == pytest.approx(softmax([0.5, 0]), rel=1e-6)


def test_samples_count_only_when_asked():
    now = {"a": contribution(1, 10), "b": contribution(1, 30)}
    assert list(RHFLWorkflow().weights({}, now).values()) == pytest.approx([0.5, 0.5])
    assert list(RHFLWorkflow(times_samples=True).weights({}, now).values()) == pytest.approx([5, 15])


# ---- the server -----------------------------------------------------------------------------------------------------

SITES = ["site-1", "site-2", "site-3"]
LOSSES = {"site-1": [2.0, 1, 1, 1], "site-2": [2.0, 2, 1, 1], "site-3": [2.0, 2, 2, 1]}  # by round


def answers(site, question, weights, task, evaluate):
    counts = lambda round_num: {"test": confusion(0.5, 1)}  # noqa: E731
    plain = plain_answers(
        {s: [1, 1] for s in SITES},
        samples={"site-1": 10, "site-2": 20, "site-3": 30},
        step={"site-1": 1.0, "site-2": 0.0, "site-3": 0.0},
        counts=counts,
        kind="singlelabel",
    )
    result = plain(site, question, weights, task, evaluate)
    if question == TRAIN:
        result.report = {"local_loss": np.float32(LOSSES[site][task.round_num])}
    return result


def play(folder, answer=answers, **settings):
    return Run(folder, RHFLWorkflow(), SITES, answer, num_rounds=4, max_update_factor=0, **settings)


def test_the_first_round_is_uniform_and_later_ones_follow_the_falls(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    shares = [value for _, value in run.decisions("confidence_shares")]
    expected = [[1 / 3] * 3, softmax([0.5, 0, 0]), softmax([0, 0.5, 0]), softmax([0, 0, 0.5])]
    assert [list(s.values()) for s in shares] == [pytest.approx(e, abs=1e-4) for e in expected]
    assert run.moved()[0] == pytest.approx(sum(e[0] for e in expected), rel=1e-5)


def test_a_site_that_missed_a_round_has_no_fall_in_the_next_one(tmp_path):
    def absent(site, question, weights, task, evaluate):
        missed = (site, question, task.round_num) == ("site-1", TRAIN, 1)
        return None if missed else answers(site, question, weights, task, evaluate)

    run = play(tmp_path, absent, min_sites=2)
    shares = [list(value.values()) for _, value in run.decisions("confidence_shares")]
    assert shares[2] == pytest.approx(softmax([0, 0.5, 0]), abs=1e-4)


def test_a_report_without_the_loss_is_refused():
    with refused("report: expected ['local_loss'], got none of ['local_loss']"):
        RHFLWorkflow().check("train", {})
