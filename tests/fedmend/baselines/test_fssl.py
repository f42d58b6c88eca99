"""FSSL at a site: consistency with the received model on what the site does not know."""

import math

import numpy as np
import pytest
import torch
from torch_factories import Says, TinyNetwork, make_site, make_task

from fedmend.baselines.fssl import FSSL
from fedmend.learning.training import LocalTrainer
from fedmend.methods.labelsets import LabelSetFedAvg
from fedmend.repairs.verdicts import RELABEL, Verdict

POS_WEIGHT = np.array([2, 3, 4], dtype=np.float32)
MULTI = [[1, -1, -1], [0, -1, -1], [-1, 1, -1], [0, 0, -1]]  # class 2 is unknown
SINGLE = [0, 1, -1, -1]
RECEIVED = np.array([[0.8, 0.4, 0.6], [0.1, 0.2, 0.3], [0.5, 0.7, 0.9], [0.25, 0.35, 0.45]])


def logit(p):
    return np.log(p / (1 - p))


def order(round_num=2, total_rounds=10):
    return make_task(round_num=round_num, total_rounds=total_rounds, pos_weight=POS_WEIGHT)


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.baselines.fssl.weak", lambda images, generator: images)
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def moved(method, site, received, student, task=None):
    """Loss and gradient (N, M) of a student that has moved away from the received model."""
    net = Says(received)
    work = method.start(net, task or order(), site)
    with torch.no_grad():
        net.table.copy_(torch.tensor(student))
    loss = work.loss(torch.arange(len(received)))
    loss.backward()
    return loss.item(), net.table.grad.numpy()


def test_unknown_classes_of_multi_label_data_are_pulled_to_the_received_models_probabilities(site_of, plain):
    received, student = logit(RECEIVED), logit(RECEIVED[::-1])
    loss, gradient = moved(FSSL(local_iterations=1), site_of(MULTI), received, student)
    supervised = LabelSetFedAvg(local_iterations=1, hidden="ignored")
    known_loss, known_gradient = moved(supervised, site_of(MULTI), received, student)
    g, f = RECEIVED[:, 2], RECEIVED[::-1, 2]
    consistency = -(g * np.log(f) + (1 - g) * np.log(1 - f)).sum() / 12  # without the weight 4
    assert loss == pytest.approx(known_loss + consistency, rel=1e-5)
    expected = known_gradient.copy()
    expected[:, 2] = (f - g) / 12
    assert gradient == pytest.approx(expected, abs=1e-6)


def test_an_entry_that_a_person_has_labelled_is_learnt_and_not_pulled(site_of, plain):
    received, student = logit(RECEIVED), logit(RECEIVED[::-1])
    site = site_of(MULTI)
    site.ledger.judge(Verdict(0, 2, RELABEL, -1, 1, reviewer="AB"))
    gradient = moved(FSSL(local_iterations=1), site, received, student)[1][:, 2]
    assert gradient[0] == pytest.approx(-4 * (1 - 0.45) / 12, abs=1e-6)  # as a label of weight 4
    assert gradient[1:] == pytest.approx((RECEIVED[::-1] - RECEIVED)[1:, 2] / 12, abs=1e-6)


def test_unlabelled_images_of_single_label_data_are_pulled_to_all_its_probabilities(site_of, plain):
    g = np.array([[0.5, 0.3, 0.2]] * 3 + [[0.1, 0.1, 0.8]])
    f = np.array([[0.2, 0.2, 0.6]] * 4)
    loss, gradient = moved(FSSL(local_iterations=1), site_of(SINGLE), np.log(g), np.log(f))
    consistency = -(g[2:] * np.log(f[2:])).sum() / 2
    assert loss == pytest.approx(-2 * math.log(0.2) / 2 + consistency, rel=1e-5)
    assert gradient[2:] == pytest.approx((f - g)[2:] / 2, abs=1e-6)
    assert gradient[0] == pytest.approx((f[0] - [1, 0, 0]) / 2, abs=1e-6)


def test_the_teacher_sees_weak_views_and_the_student_strong_ones(site_of, monkeypatch):
    monkeypatch.setattr("fedmend.baselines.fssl.weak", lambda images, generator: images + 1 / 25.5)
    monkeypatch.setattr(
        "fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images + 2 / 25.5
    )
    table = np.zeros((6, 3))
    table[1:5, 2] = logit(RECEIVED[:, 2])
    net = Says(table)
    work = FSSL(local_iterations=1).start(net.train(), order(), site_of(MULTI))
    loss = work.loss(torch.arange(4))
    assert (work._teacher.calls, net.calls) == ([(False, [1, 2, 3, 4])], [(True, [2, 3, 4, 5])])
    supervised = LabelSetFedAvg(local_iterations=1, hidden="ignored").start(net, order(), site_of(MULTI))
    g, f = RECEIVED[:, 2], np.array([*RECEIVED[1:, 2], 0.5])
    consistency = -(g * np.log(f) + (1 - g) * np.log(1 - f)).sum() / 12
    assert (loss - supervised.loss(torch.arange(4))).item() == pytest.approx(consistency, rel=1e-4)


def test_the_weight_rises_over_the_first_rounds(site_of, plain):
    received, student = logit(RECEIVED), logit(RECEIVED[::-1])
    supervised = moved(LabelSetFedAvg(local_iterations=1, hidden="ignored"), site_of(MULTI), received, student)[0]

    def share(**options):
        loss = moved(FSSL(local_iterations=1, **options), site_of(MULTI), received, student, order(r, 20))[0]
        return loss - supervised

    r = 10
    full = share()
    r = 0
    assert share() == pytest.approx(full * math.exp(-5), rel=1e-2)
    assert share(ramp_share=0.0) == pytest.approx(full, rel=1e-4)
    r = 2
    assert share() == pytest.approx(full * math.exp(-5 / 9), rel=1e-4)  # 2 of 0.15 * 20 rounds
    r = 3
    assert share() == pytest.approx(full, rel=1e-4)
    assert share(consistency_weight=2.0) == pytest.approx(2 * full, rel=1e-4)


def test_without_consistency_a_round_with_augmentation_is_fedavgs_to_the_last_digit(tmp_path):
    trained = []
    for method in (
        FSSL(local_iterations=3, consistency_weight=0.0),
        LabelSetFedAvg(local_iterations=3, hidden="ignored"),
    ):
        site, net = make_site(tmp_path / type(method).__name__, MULTI * 2), TinyNetwork(3)
        LocalTrainer(learning_rate=0.01).train(method.start(net, order(), site))
        trained.append(net.state_dict())
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())
