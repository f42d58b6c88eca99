"""The client half of FedNoRo at a site: losses, teacher, augmentation, report."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import Says, TinyNetwork, make_single_site, one_hot

from fedmend.method import RoundTask
from fedmend.methods.fednoro import CLEAN, DETECT, NOISY, ROBUST, WARMUP, FedNoRo

LN2, LN3, LN5 = math.log(2), math.log(3), math.log(5)
Y = [0, 1, 0, 0]  # prior 3/4, 1/4, and no sample of class 2
ALL = torch.arange(4)
Q = (0.5, 0.3, 0.2)  # what the teacher says
TEN = [0, 1, 2, 0, 1, 0, 2, 0, 1, 0]


def task(stage=WARMUP, role="", round_num=3, **knowledge):
    return RoundTask(stage, round_num, 9, knowledge, role, seed=7)


def robust(role=NOISY, weight=0.25, **options):
    return task(ROBUST, role, distillation_weight=np.float32(weight), **options)


@pytest.fixture
def site_of(make_site):
    return lambda classes, values=None, **options: make_site(one_hot(classes, 3), values, **options)


def says(net, logits):
    """Makes the network give these logits whatever the image."""
    with torch.no_grad():
        net.classifier.weight.zero_()
        net.classifier.bias.copy_(torch.as_tensor(logits))
    return net


def loss_of(method, net, site, order, student=None):
    """The loss of one batch of all samples; ``student`` moves the model after it was received."""
    work = method.start(net, order, site)
    list(work.batches(0))
    if student is not None:
        says(net, student)
    return work.loss(ALL)


# ---- losses ---------------------------------------------------------------------------------------------------------


def test_the_warmup_loss_is_the_cross_entropy_of_logits_plus_log_prior(site_of, make_net):
    net = says(make_net(3), [0, LN3, LN5])  # with the prior: 3/4 * 1 : 1/4 * 3 : 0, which is 1/2, 1/2, 0
    loss = loss_of(FedNoRo(), net, site_of(Y), task())
    assert loss.item() == pytest.approx(LN2, rel=1e-6)
    loss.backward()
    assert net.classifier.bias.grad.tolist() == pytest.approx([0.5 - 3 / 4, 0.5 - 1 / 4, 0], abs=1e-6)
    assert net.classifier.bias.grad[2].item() == 0.0  # a class without a sample


def test_without_logit_adjustment_the_loss_is_plain_cross_entropy(site_of, make_net):
    net = says(make_net(3), [0, LN3, LN5])  # 1/9, 3/9, 5/9
    loss = loss_of(FedNoRo(la=False), net, site_of(Y), task())
    assert loss.item() == pytest.approx((3 * math.log(9) + math.log(3)) / 4, rel=1e-6)
    loss.backward()
    assert net.classifier.bias.grad[2].item() == pytest.approx(5 / 9, rel=1e-5)


def test_the_prior_is_that_of_the_site_not_of_the_batch(site_of, make_net):
    work = FedNoRo().start(says(make_net(3), [0, LN3, LN5]), task(), site_of(Y))
    list(work.batches(0))
    assert work.loss(torch.tensor([0, 2])).item() == pytest.approx(LN2, rel=1e-6)


@pytest.mark.parametrize("weight", [0.25, 0.8, 0.0, 1.0])
def test_the_loss_of_a_noisy_site_in_stage_2_is_equation_5(site_of, make_net, weight):
    received = says(make_net(3), 0.8 * np.log(Q))  # divided by T = 0.8 and without prior: Q
    loss = loss_of(FedNoRo(), received, site_of(Y), robust(weight=weight), student=[0, LN3, LN5])  # 1/2, 1/2, 0
    divergence = 0.5 * math.log(0.5 / 0.5) + 0.3 * math.log(0.3 / 0.5)  # the teacher's 0.2 on class 2 is dropped
    assert loss.item() == pytest.approx(weight * divergence + (1 - weight) * LN2, rel=1e-5)


def test_both_terms_of_equation_5_drive_the_student(site_of, make_net):
    net = says(make_net(3), 0.8 * np.log(Q))
    loss = loss_of(FedNoRo(), net, site_of(Y), robust(weight=0.25), student=[0, LN3, LN5])
    loss.backward()
    own = np.array([0.5 - 3 / 4, 0.5 - 1 / 4])
    distilled = 0.5 * 0.8 - np.array([0.5, 0.3])  # p * sum(q) - q over the two possible classes
    expected = [*(0.25 * distilled + 0.75 * own), 0]
    assert net.classifier.bias.grad.tolist() == pytest.approx(expected, abs=1e-6)


def test_without_logit_adjustment_the_student_of_equation_5_has_no_prior_either(site_of, make_net):
    received = says(make_net(3), 0.8 * np.log(Q))
    loss = loss_of(FedNoRo(la=False), received, site_of(Y), robust(weight=0.25), student=[0, LN3, LN5])
    p = np.array([1, 3, 5]) / 9
    divergence = float((np.array(Q) * np.log(Q / p)).sum())
    assert loss.item() == pytest.approx(0.25 * divergence + 0.75 * (3 * math.log(9) + LN3) / 4, rel=1e-5)


def test_the_temperature_softens_the_teacher_alone(site_of, make_net):
    received = says(make_net(3), 2 * np.log(Q))
    loss = loss_of(FedNoRo(temperature=2.0), received, site_of(Y), robust(weight=1.0), student=[0, LN3, LN5])
    assert loss.item() == pytest.approx(0.3 * math.log(0.3 / 0.5), rel=1e-5)


# ---- teacher --------------------------------------------------------------------------------------------------------


def test_the_teacher_answers_in_eval_mode_for_the_batch_that_the_student_is_trained_on(site_of):
    net = Says(np.zeros((4, 3)))
    work = FedNoRo().start(net, robust(), site_of(Y, 10 * np.arange(4)))
    list(work.batches(0))
    work.loss(torch.tensor([2, 0]))
    assert (net.calls, work._teacher.calls) == ([(True, [2, 0])], [(False, [2, 0])])


@pytest.mark.parametrize("order", [task(WARMUP, NOISY, distillation_weight=np.float32(0.25)), robust(CLEAN)])
def test_in_the_warmup_and_at_a_clean_site_nothing_is_distilled(site_of, make_net, order):
    received = says(make_net(3), 0.8 * np.log(Q))
    loss = loss_of(FedNoRo(), received, site_of(Y), order, student=[0, LN3, LN5])
    assert loss.item() == pytest.approx(LN2, rel=1e-6)


# ---- report ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(site_of, make_net):
    """A site of grey images, the mean cross-entropy of each class there by hand, and the network."""
    classes, values = [0, 0, 2, 0, 2], [10, 60, 120, 180, 240]
    site, net = site_of(classes, values, batch_size=2), make_net(3)
    v = np.array(values) / 255
    weight, bias = (p.detach().double().numpy() for p in net.classifier.parameters())
    logits = np.stack([v, 1 - v], 1) @ weight.T + bias
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), classes]
    return site, net, [loss[[0, 1, 3]].mean(), 0, loss[[2, 4]].mean()]


@pytest.mark.parametrize("la", [True, False])
def test_the_report_is_the_mean_loss_of_each_class_without_logit_adjustment(shown, la):
    site, net, expected = shown
    report = FedNoRo(la=la).collect(net, task(DETECT), site)
    assert report["class_loss"].tolist() == pytest.approx(expected, abs=1e-5)
    assert report["class_count"].tolist() == [3, 0, 2]
    assert (report["class_loss"].dtype, report["class_count"].dtype) == (np.float32, np.int64)
    assert set(report) == set(FedNoRo.FIELDS)


def test_the_report_is_made_of_plain_images(tmp_path):
    site, net = make_single_site(tmp_path, TEN), TinyNetwork(3).eval()
    report = FedNoRo().collect(net, task(DETECT), site)
    with torch.no_grad():
        logits = net(site.data.train.view(torch.arange(10)))[1]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(TEN), reduction="none").numpy()
    for c in range(3):
        assert report["class_loss"][c] == pytest.approx(loss[np.array(TEN) == c].mean(), rel=1e-5)


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_a_sample_without_a_label_is_refused_by_training_and_report(site_of, make_net):
    site, net = site_of([0, 1, -1, 0]), make_net(3)
    sentence = "site-1: train.csv row 4, column label: expected a class name, got a blank"
    with refused(sentence):
        FedNoRo().start(net, task(), site)
    with refused(sentence):
        FedNoRo().collect(net, task(DETECT), site)


def test_a_noisy_site_needs_a_distillation_weight(site_of, make_net):
    with refused("round 3, distillation_weight from the server: expected an array, got nothing"):
        FedNoRo().start(make_net(3), task(ROBUST, NOISY), site_of(Y))


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature):
    with refused(f"job variable temperature: expected > 0, got {temperature}"):
        FedNoRo(temperature=temperature)


def test_the_method_takes_single_label_data_and_never_changes_a_label(site_of, make_net, play):
    assert FedNoRo.KINDS == ("singlelabel",)
    site = site_of(TEN)
    before = site.data.train.labels.tobytes()
    assert play(FedNoRo(), make_net(3), robust(), site) == {}
    assert site.data.train.labels.tobytes() == before
    assert (site.ledger.repairs() == -1).all()
