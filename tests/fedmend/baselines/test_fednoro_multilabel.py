"""FedNoRo on multi-label data: distillation on missing classes, adjusted labels on the others."""

import math

import numpy as np
import pytest
import torch
from torch_factories import Says, make_task

from fedmend.baselines.fednoro_multilabel import MultiLabelFedNoRo, teacher_weight

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


def test_a_site_that_annotates_all_classes_has_the_supervised_term_alone(site_of):
    student = Says(np.zeros((4, 2)))
    work = MultiLabelFedNoRo(la=False).start(student, order(), site_of([[1, 0], [0, 1], [0, 1], [1, 0]]))
    assert work.loss(ALL).item() == pytest.approx(0.2 * math.log(2), rel=1e-5)
    assert [training for training, _ in student.calls] == [True]  # no pass of a teacher
