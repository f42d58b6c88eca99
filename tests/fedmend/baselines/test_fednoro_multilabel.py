"""FedNoRo on multi-label data: distillation on missing classes, adjusted labels on the others."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import Says, TinyNetwork, make_task
from torch_factories import make_site as make_picture_site

from fedmend.baselines.fednoro_multilabel import MultiLabelFedNoRo, teacher_weight
from fedmend.methods.baselines import FedAvgPL

LABELS = [[1, -1, -1], [0, -1, -1], [0, -1, -1], [0, -1, -1]]  # prior of class 0: 1/4
ALL = torch.arange(4)


def logit(p):
    return np.log(p / (1 - np.array(p)))


def order(round_num=2, total_rounds=3, **options):
    return make_task(round_num=round_num, total_rounds=total_rounds, **options)


def loss_of(method, site, *, received=None, student, task=None):
    """Loss of a student after the round began with another received model, and its gradient by logits."""
    task = order() if task is None else task
    work = method.start(Says(student if received is None else received), task, site)
    work.model = Says(student)
    loss = work.loss(ALL)
    loss.backward()
    return loss.item(), work.model.table.grad.numpy()


def test_missing_classes_learn_from_the_received_model_and_others_from_labels(site_of):
    received = np.tile(logit([0.5, 0.8, 0.2]), (4, 1)) * 0.8  # a temperature of .8 makes it .8 and .2
    student = np.tile(logit([0.5, 0.5, 0.1]), (4, 1))
    method = MultiLabelFedNoRo(la=False)
    loss, gradient = loss_of(method, site_of(LABELS), received=received, student=student)
    assert loss == pytest.approx(0.8 * (0.3**2 + 0.1**2) / 2 + 0.2 * math.log(2), rel=1e-5)
    slopes = [0.8 * 2 * (s - t) * s * (1 - s) / 8 for s, t in ((0.5, 0.8), (0.1, 0.2))]
    labelled = np.array([-0.5, 0.5, 0.5, 0.5]) * 0.2 / 4
    assert gradient[:, 0] == pytest.approx(labelled, abs=1e-6)
    assert gradient[:, 1:] == pytest.approx(np.tile(slopes, (4, 1)), abs=1e-6)


def test_logit_adjustment_is_in_the_supervised_term_alone(site_of):
    table = np.tile(logit([0.5, 0.8, 0.2]), (4, 1))
    loss, _ = loss_of(MultiLabelFedNoRo(temperature=1.0), site_of(LABELS), student=table)
    # The prior of 1/4 turns 1/2 into 1/4; the student is the teacher, so that its term is 0.
    assert loss == pytest.approx(0.2 * -(math.log(1 / 4) + 3 * math.log(3 / 4)) / 4, rel=1e-5)


def test_the_supervised_term_does_not_weight_positives(site_of):
    table = np.tile(logit([0.9, 0.5, 0.5]), (4, 1))
    loss, _ = loss_of(MultiLabelFedNoRo(la=False, temperature=1.0), site_of(LABELS), student=table)
    assert loss == pytest.approx(0.2 * -(math.log(0.9) + 3 * math.log(0.1)) / 4, rel=1e-5)


@pytest.mark.parametrize(
    ("round_num", "weight"), [(0, 0.005), (10, 0.005), (50, 0.012), (100, 0.029), (250, 0.22), (400, 0.65), (499, 0.8)]
)
def test_lambda_rises_as_in_500_rounds_of_the_published_code(round_num, weight):
    assert teacher_weight(round_num, 500, maximum=0.8) == pytest.approx(weight, rel=0.1)


def test_lambda_of_a_short_run_starts_at_once_and_ends_with_the_last_round():
    assert [teacher_weight(r, 3, maximum=0.8) for r in range(3)] == pytest.approx(
        [0.8 * math.exp(-5), 0.8 * math.exp(-5 / 4), 0.8]
    )


def test_without_its_parts_it_is_the_unweighted_partial_loss_digit_by_digit(tmp_path, play):
    trained = []
    for number, method in enumerate((MultiLabelFedNoRo(la=False, ramp_maximum=0.0), FedAvgPL(weighted=False))):
        net = TinyNetwork(3)
        assert play(method, net, order(), make_picture_site(tmp_path / str(number), LABELS)) == {}
        trained.append(net.state_dict())
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())


def test_a_site_that_annotates_all_classes_has_the_supervised_term_alone(site_of):
    student = Says(np.zeros((4, 2)))
    work = MultiLabelFedNoRo(la=False).start(student, order(), site_of([[1, 0], [0, 1], [0, 1], [1, 0]]))
    assert work.loss(ALL).item() == pytest.approx(0.2 * math.log(2), rel=1e-5)
    assert [training for training, _ in student.calls] == [True]  # no pass of a teacher


def test_the_teacher_is_the_received_model_on_the_view_that_is_trained(make_site, make_net):
    net, seen = make_net(3), []
    work = MultiLabelFedNoRo().start(net, order(), make_site(LABELS))
    frozen = work._teacher.clone()
    with torch.no_grad():
        net.classifier.bias.add_(1)
    net.register_forward_pre_hook(lambda _, images: seen.append(images[0]))
    work.loss(ALL).backward()
    assert torch.equal(work._teacher, frozen)
    assert torch.equal(seen[0], work.site.data.train.view(ALL, work.site.views(work.task, 1)[0]))
    assert (net.samples(training=True), net.samples(training=False)) == (4, 4)


def test_a_repeated_round_gives_the_same_and_labels_stay(tmp_path, play):
    trained = []
    for _ in range(2):
        site, net = make_picture_site(tmp_path, LABELS), TinyNetwork(3)
        play(MultiLabelFedNoRo(), net, order(), site)
        trained.append(net.state_dict())
        assert site.ledger.history() == []
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("ramp_maximum", 1.5, "0 to 1"), ("ramp_maximum", -0.1, "0 to 1"), ("temperature", 0.0, "> 0")],
)
def test_arguments_that_make_no_loss_are_refused(name, value, expected):
    with refused(f"job variable {name}: expected {expected}, got {value}"):
        MultiLabelFedNoRo(**{name: value})
