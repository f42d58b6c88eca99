"""The equations of FedMLP as functions, and the loss."""

import copy
import math

import numpy as np
import pytest
import torch
from factories import refused

from fedmend.method import RoundTask
from fedmend.methods.baselines import FedAvg
from fedmend.methods.fedmlp import (
    DETECT,
    RULE,
    WARMUP,
    FedMLP,
    global_learning_degree,
    learning_degree,
)
from fedmend.repairs.label_ledger import Repairs

# Class 0 is annotated, class 1 has a blank (sample 4), class 2 is missing.
LABELS = np.array([[1, 0, -1], [0, 1, -1], [0, 0, -1], [0, 1, -1], [1, -1, -1], [0, 0, -1]], dtype=np.int8)
KNOWN = LABELS >= 0
SHIFT = np.array([math.log(2 / 4), math.log(2 / 3), 0.0])  # class 0: 2 of 6 positive, class 1: 2 of 5 known
INDEX = torch.tensor([4, 0, 3])
AXES = np.tile(np.eye(2, dtype=np.float32), (3, 1))  # for PixelNet: bright leans negative, dark positive
KNOWLEDGE = {"prototypes": AXES, "learning_degree": np.ones(3, dtype=np.float32)}
WARM, STAGE2 = RoundTask(WARMUP, 0, 9), RoundTask(DETECT, 5, 9, KNOWLEDGE)
NO_TAGS = {"ratio_negative": 0.0, "ratio_positive": 0.0}


def logits_on(net, site, index, view):
    with torch.no_grad():
        return net(site.data.train.view(index, view))[1].double().numpy()


def literal_bce(logits, target, mask, shift=0.0):
    """Sum of Eq. (4) with the probabilities of Eq. (3) as printed; ``shift`` = log(pi_1 / pi_0)."""
    s, pi = 1 / (1 + np.exp(-logits)), 1 / (1 + np.exp(-np.asarray(shift)))
    adjusted = s * pi / (s * pi + (1 - s) * (1 - pi))
    return -(np.where(target == 1, np.log(adjusted), np.log(1 - adjusted)) * mask).sum()


def literal_mse(logits, teacher, mask):
    return (((1 / (1 + np.exp(-logits)) - 1 / (1 + np.exp(-teacher))) ** 2) * mask).sum()


def loss_of(method, net, task, site, index=INDEX):
    return method.start(net, task, site).loss(index)


# ---- Eqs. (5)-(10) --------------------------------------------------------------------------------------------------


def test_the_learning_degree_counts_strictly_outside_low_and_high():
    probabilities = np.array([[0.25, 0.5], [0.249, 0.75], [0.751, 0.5], [0.75, 0.5]])
    degree = learning_degree(probabilities, 0.25, 0.75)
    assert degree.tolist() == [0.5, 0.0]
    assert degree.dtype == np.float32


def test_the_global_learning_degree_is_weighted_by_samples_over_the_sites_that_miss_the_class():
    reports = {
        "b": {"learning_degree": np.array([0.5, 1.0, 0.5, 0.5], np.float32)},
        "a": {"learning_degree": np.array([0.25, 0.5, 0.5, 0.25], np.float32)},
    }
    annotated = {"a": np.array([True, False, True, False]), "b": np.array([False, True, True, False])}
    degree = global_learning_degree(reports, {"a": 300, "b": 100}, annotated)
    assert degree.tolist() == [0.5, 0.5, 1.0, 0.3125]
    assert degree.dtype == np.float32


# ---- Eqs. (3)-(4) and section 2.4 -----------------------------------------------------------------------------------


def test_the_warmup_loss_is_eq_4_on_known_labels_averaged_over_two_views(make_site, make_net):
    site, net = make_site(LABELS), make_net(3)
    rows = INDEX.numpy()
    views = [literal_bce(logits_on(net, site, INDEX, v), LABELS[rows], KNOWN[rows], SHIFT) for v in site.views(WARM, 2)]
    loss = loss_of(FedMLP(), net, WARM, site)
    assert loss.item() == pytest.approx(sum(views) / 2 / (3 * 2), rel=1e-5)  # two annotated classes


def test_the_warmup_sees_two_different_views_of_each_image(make_site, make_net, monkeypatch):
    site, seen = make_site(LABELS), []
    view = type(site.data.train).view
    monkeypatch.setattr(type(site.data.train), "view", lambda split, i, v: seen.append(v) or view(split, i, v))
    loss_of(FedMLP(), make_net(3), WARM, site)
    first, second = site.views(WARM, 2)
    assert not torch.equal(first, second)
    assert [torch.equal(v, wanted) for v, wanted in zip(seen, (first, second), strict=True)] == [True, True]


@pytest.mark.parametrize("task", [WARM, STAGE2], ids=lambda t: t.stage)
def test_wpc_gives_missing_classes_exactly_no_gradient(task, make_site, make_net):
    net = make_net(3)
    loss_of(FedMLP(cr=False, **NO_TAGS), net, task, make_site(LABELS)).backward()
    assert net.classifier.weight.grad[2].tolist() == [0.0, 0.0]
    assert net.classifier.bias.grad[2].item() == 0.0
    assert net.classifier.bias.grad[:2].abs().min() > 0


def test_without_la_the_logits_are_not_shifted(make_site, make_net):
    site, net, rows = make_site(LABELS), make_net(3), INDEX.numpy()
    expected = literal_bce(logits_on(net, site, INDEX, site.views(STAGE2, 1)[0]), LABELS[rows], KNOWN[rows]) / 9
    assert loss_of(FedMLP(la=False, cr=False, **NO_TAGS), net, STAGE2, site).item() == pytest.approx(expected, rel=1e-5)


def test_stage_2_adds_consistency_with_the_received_model_on_untagged_entries(make_site, make_net):
    site, net, method = make_site(LABELS), make_net(3), FedMLP(cr_weight=0.7, **NO_TAGS)
    received, rows, view = copy.deepcopy(net), INDEX.numpy(), site.views(STAGE2, 1)[0]
    work = method.start(net, STAGE2, site)
    with torch.no_grad():
        net.classifier.bias += torch.tensor([0.5, -1.0, 2.0])
    student, teacher = (logits_on(n, site, INDEX, view) for n in (net, received))
    consistency = literal_mse(student, teacher, ~KNOWN[rows])  # the blank in class 1, and class 2
    assert consistency > 0.1
    expected = (literal_bce(student, LABELS[rows], KNOWN[rows], SHIFT) + 0.7 * consistency) / 9
    assert work.loss(INDEX).item() == pytest.approx(expected, rel=1e-5)
    without = loss_of(FedMLP(cr=False, **NO_TAGS), net, STAGE2, site)
    assert without.item() == pytest.approx(literal_bce(student, LABELS[rows], KNOWN[rows], SHIFT) / 9, rel=1e-5)


@pytest.mark.parametrize(
    ("labels", "divisor"), [(LABELS, 3), (LABELS[:, :2], 3)], ids=["missing class", "only a blank"]
)
def test_warmup_distillation_is_a_mean_over_samples_and_missing_classes(labels, divisor, make_site, make_net):
    site, net, rows = make_site(labels), make_net(labels.shape[1]), INDEX.numpy()
    received = copy.deepcopy(net)
    work = FedMLP(warmup_distillation=2.0).start(net, WARM, site)
    with torch.no_grad():
        net.classifier.bias += 1.5
    added = work.loss(INDEX).item() - loss_of(FedMLP(), net, WARM, site).item()
    terms = [
        literal_mse(logits_on(net, site, INDEX, v), logits_on(received, site, INDEX, v), labels[rows] < 0)
        for v in site.views(WARM, 2)
    ]
    assert added == pytest.approx(2.0 * sum(terms) / 2 / divisor, rel=1e-4)


def test_each_view_of_the_warmup_has_the_scores_of_the_received_model_for_itself(make_site, make_net):
    site, net = make_site(LABELS), make_net(3)
    work = FedMLP(warmup_distillation=2.0).start(net, WARM, site)
    scores = [1 / (1 + np.exp(-logits_on(net, site, torch.arange(6), v))) for v in site.views(WARM, 2)]
    for found, expected in zip(work._teacher.numpy(), scores, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    work._teacher[0], work._teacher[1] = 0.0, 1.0
    rows, missing = INDEX.numpy(), LABELS[INDEX.numpy()] < 0
    added = work.loss(INDEX).item() - loss_of(FedMLP(), net, WARM, site).item()
    first, second = ((s[rows] - teacher) ** 2 for s, teacher in zip(scores, (0, 1), strict=True))
    assert added == pytest.approx(2.0 * ((first + second) * missing).sum() / 2 / 3, rel=1e-4)


def test_the_prior_of_a_missing_class_is_that_of_its_tags(make_site, make_net):
    site, net = make_site(LABELS), make_net(3)  # tags: two positives, one negative; untagged: three
    tags = Repairs(np.array([0, 2, 5]), np.array([2, 2, 2]), np.array([1, 0, 1]), np.ones(3))
    site.ledger.record(RULE, 4, LABELS, tags)
    target = site.ledger.apply(LABELS)
    everything = torch.arange(6)
    logits = logits_on(net, site, everything, site.views(STAGE2, 1)[0])
    expected = literal_bce(logits, target, target >= 0, np.array([SHIFT[0], SHIFT[1], math.log(3 / 2)])) / 18
    loss = loss_of(FedMLP(cr=False, **NO_TAGS), net, STAGE2, site, everything)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("tags", "weight"), [([0, 1, 0, 0], 3.0), ([1, 1], 0.5), ([0, 0], 5.0), ([], 5.0)])
def test_without_wpc_the_positive_weight_of_a_missing_class_is_n0_by_n1_of_its_tags(tags, weight, make_site, make_net):
    site, samples = make_site(LABELS), np.arange(len(tags))
    found = Repairs(samples, np.full(len(tags), 2), np.array(tags, dtype=np.int64), np.ones(len(tags)))
    site.ledger.record(RULE, STAGE2.ledger_round - 1, LABELS, found)
    work = FedMLP(wpc=False, cr=False, **NO_TAGS).start(make_net(3), STAGE2, site)
    assert work._pos_weight.tolist() == pytest.approx([6 / 2, 6 / 2, weight])


def test_without_wpc_but_with_cr_missing_entries_are_left_to_the_teacher(make_site, make_net):
    net = make_net(3)
    loss = loss_of(FedMLP(wpc=False, **NO_TAGS), net, STAGE2, make_site(LABELS))
    loss.backward()
    assert net.classifier.bias.grad[2].item() == pytest.approx(0, abs=1e-7)  # the student still is the teacher
    net.zero_grad()
    loss_of(FedMLP(wpc=False, cr=False, **NO_TAGS), net, STAGE2, make_site(LABELS)).backward()
    assert net.classifier.bias.grad[2].item() > 1e-3  # Eq. (1): negative


@pytest.mark.parametrize("task", [WARM, STAGE2], ids=lambda t: t.stage)
def test_with_all_switches_off_the_loss_is_that_of_fedavg_on_the_same_views(task, make_site, make_net):
    site, net, off, fedavg = make_site(LABELS), make_net(3), FedMLP(mld=False, wpc=False, cr=False, st=False), FedAvg()
    loss = loss_of(off, net, task, site).item()
    views = site.views(task, 2 if task is WARM else 1)
    others = []
    for v in range(len(views)):
        site.views = lambda task, count, v=v: views[v : v + 1]
        others.append(loss_of(fedavg, net, task, site).item())
    assert loss == pytest.approx(sum(others) / len(others), rel=1e-6)


def test_the_settings_are_those_of_the_paper():
    method = FedMLP()
    assert (method.ratio_negative, method.ratio_positive) == (0.005, 0.01)
    assert (method.low, method.high) == (0.3, 0.7)
    assert (method.cr_weight, method.warmup_distillation) == (1, 0)
    assert (method.quota_rounding, method.score) == ("floor", "cosine")
    assert all([method.mld, method.wpc, method.cr, method.st, method.la])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"quota_rounding": "up"}, "job variable quota_rounding: expected one of ['floor', 'ceil'], got 'up'"),
        ({"ratio_negative": 1.5}, "job variable ratio_negative: expected 0 to 1, got 1.5"),
        ({"ratio_negative": math.nan}, "job variable ratio_negative: expected 0 to 1, got nan"),
        ({"ratio_positive": -0.1}, "job variable ratio_positive: expected 0 to 1, got -0.1"),
        ({"low": 0.8}, "job variables low, high: expected 0 <= low < high <= 1, got 0.8, 0.7"),
        ({"score": "euclid"}, "job variable score: expected one of ['cosine', 'whitened'], got 'euclid'"),
        ({"cr_weight": -1.0}, "job variable cr_weight: expected >= 0, got -1.0"),
        ({"warmup_distillation": math.nan}, "job variable warmup_distillation: expected >= 0, got nan"),
    ],
)
def test_settings_out_of_range_are_refused(settings, sentence):
    with refused(sentence):
        FedMLP(**settings)
