"""Candidate sets at a site: the class of an unlabelled image is one of those that the site does not know."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import Says, TinyNetwork, make_single_site, make_task

from fedmend.learning.training import LocalTrainer
from fedmend.methods.candidate_sets import CandidateSets, candidate_losses
from fedmend.methods.labelsets import LabelSetFedAvg
from fedmend.repairs.verdicts import RELABEL, Verdict

LABELS = [0, -1, 0, -1]  # classes 1 and 2 are unknown
P = np.array([0.5, 0.3, 0.2])  # given that it is not class 0: .6, .4
SAID = np.log([P] * 4)
ENTROPY = -(0.6 * math.log(0.6) + 0.4 * math.log(0.4))


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def method(**changes):
    return CandidateSets(**({"local_iterations": 1, "ramp_share": 0.0} | changes))


def step(method, site, index, *, said=SAID, moved=None, round_num=0):
    """Loss of one step and its gradient (N, M) by the logits, which have ``moved`` since the model was received."""
    net = Says(said)
    work = method.start(net, make_task(round_num=round_num, total_rounds=20), site)
    if moved is not None:
        with torch.no_grad():
            net.table.copy_(torch.tensor(moved))
    loss = work.loss(torch.tensor(index))
    loss.backward()
    return loss.item(), net.table.grad.numpy()


def test_the_two_losses_of_a_candidate_set_by_hand():
    logits = torch.tensor(np.log([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]) + 3)
    outside, within = candidate_losses(
        logits, torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([False, True, True])
    )
    assert outside.item() == pytest.approx(-(math.log(0.5) + math.log(0.9)) / 2)
    first = -(0.9 * math.log(0.6) + 0.1 * math.log(0.4))
    second = -(math.log(2 / 3) + math.log(1 / 3)) / 2
    assert within.item() == pytest.approx((first + second) / 2)


def test_labelled_images_have_the_cross_entropy_and_the_others_are_of_the_unknown_classes(site_of):
    loss, gradient = step(method(), site_of(LABELS), [0, 1])
    assert loss == pytest.approx(-math.log(0.5) - math.log(0.5) + ENTROPY, rel=1e-5)
    assert gradient[0] == pytest.approx(P - [1, 0, 0], abs=1e-6)
    # p - p(.|U); the model agrees with itself about which of U it is.
    assert gradient[1] == pytest.approx(P - [0, 0.6, 0.4], abs=1e-6)
    assert not gradient[2:].any()


def test_which_of_the_unknown_classes_it_is_says_the_received_model(site_of):
    moved = np.log([[0.2, 0.2, 0.6]] * 4)  # given U: .25, .75
    loss, gradient = step(method(weight=0.5), site_of(LABELS), [1, 3], moved=moved)
    within = -(0.6 * math.log(0.25) + 0.4 * math.log(0.75))
    assert loss == pytest.approx(-math.log(0.8) + 0.5 * within, rel=1e-5)
    slopes = np.array([0.2, 0.2 - 0.25, 0.6 - 0.75]) + 0.5 * np.array([0, 0.25 - 0.6, 0.75 - 0.4])
    assert gradient[1] == pytest.approx(slopes / 2, abs=1e-6)


@pytest.mark.parametrize(("round_num", "weight"), [(0, math.exp(-5)), (2, math.exp(-5 / 4)), (4, 1.0), (19, 1.0)])
def test_its_weight_rises_over_a_share_of_the_rounds(site_of, round_num, weight):
    assert CandidateSets(local_iterations=1).ramp_share == 0.15
    loss = step(method(ramp_share=0.2), site_of(LABELS), [1], round_num=round_num)[0]  # until round 4 of 20
    assert loss == pytest.approx(-math.log(0.5) + weight * ENTROPY, rel=1e-5)


def test_one_unknown_class_is_the_label(site_of):
    loss, _ = step(method(), site_of([0, 1, -1, 0]), [2])
    assert loss == pytest.approx(-math.log(0.2), rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "index"), [([0, 1, 2, -1], [0, 1, 2, 3]), (LABELS, [0, 2])], ids=["all classes known", "labels alone"]
)
def test_without_candidates_or_unlabelled_images_it_is_fedavg_to_the_last_digit(site_of, labels, index):
    site = site_of(labels)
    found, fedavg = (step(m, site, index) for m in (method(), LabelSetFedAvg(local_iterations=1)))
    assert found[0] == fedavg[0]
    assert np.array_equal(found[1], fedavg[1])


def test_classifiers_are_solved_from_labels_of_people_and_shares_of_the_unknown_classes(site_of):
    site = site_of(LABELS)
    site.ledger.judge(Verdict(1, 2, RELABEL, -1, 1, reviewer="AB"))
    assert site.data.annotated.all()  # a column of single labels is; the site knows class 0 alone
    solved = method().solved_from(torch.tensor(SAID), site)
    assert solved == pytest.approx(np.array([[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 0.6, 0.4]]))


@pytest.mark.parametrize("labels", [[0, -1], [0] + [-1] * 7, [0, 1, 2, -1]])
def test_no_site_is_so_poor_that_a_nan_enters_the_model(tmp_path, labels):
    site, net = make_single_site(tmp_path, labels), TinyNetwork(3)
    for r in range(2):
        work = method(local_iterations=4).start(net, make_task(round_num=r), site)
        assert math.isfinite(LocalTrainer(learning_rate=0.05).train(work))
        assert work.report() == {}
    assert not site.ledger.history()
    assert all(v.isfinite().all() for v in net.state_dict().values())


@pytest.mark.parametrize(
    ("setting", "expected"), [({"weight": -1.0}, ">= 0"), ({"ramp_share": 1.1}, "0 to 1")], ids=["weight", "ramp_share"]
)
def test_a_setting_out_of_range_is_refused(setting, expected):
    ((name, value),) = setting.items()
    with refused(f"job variable {name}: expected {expected}, got {value!r}"):
        method(**setting)
