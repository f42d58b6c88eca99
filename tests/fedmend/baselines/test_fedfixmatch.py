"""FedFixMatch: images that are sure of all missing classes teach their strong views."""

import math

import numpy as np
import pytest
import torch
from torch_factories import Says, make_task

from fedmend.baselines.fedfixmatch import RULE, FedFixMatch, sure_images
from fedmend.methods.baselines import FedAvgPL
from fedmend.repairs.verdicts import REJECT, Verdict

LABELS = [[1, -1, -1], [0, -1, -1], [0, -1, -1], [1, -1, -1]]
ALL = torch.arange(4)


def logit(p):
    p = np.asarray(p)
    return np.log(p / (1 - p))


@pytest.fixture
def moved(monkeypatch):
    """The strong view of sample i is the plain image of sample i + 4."""
    monkeypatch.setattr("fedmend.baselines.fedfixmatch.strong", lambda images, generator: images + 4 / 25.5)


def step(site, weak, strong, **options):
    """Loss of one step and its gradient by the logits of weak and strong views."""
    net = Says(logit([*weak, *strong]))
    loss = FedFixMatch(**options).start(net, make_task(), site).loss(ALL)
    loss.backward()
    return loss.item(), net.table.grad[:4].numpy(), net.table.grad[4:].numpy()


def test_an_image_is_sure_only_if_it_is_of_every_missing_class():
    p = torch.tensor([[0.9, 0.1], [0.9, 0.5], [0.21, 0.9], [0.19, 0.81], [0.8, 0.1]])
    assert sure_images(p, 0.8, 0.2).tolist() == [True, False, False, True, False]


def test_sure_weak_views_teach_strong_views_and_are_not_taught(site_of, moved):
    weak = [[0.5, 0.9, 0.1], [0.5, 0.9, 0.5], [0.5, 0.1, 0.1], [0.5, 0.6, 0.9]]  # samples 0 and 2 are sure
    strong = [[0.5, 0.6, 0.3]] * 4
    loss, by_weak, by_strong = step(site_of(LABELS), weak, strong)
    supervised = (2 * 2 + 2) * math.log(2) / 4  # positives weigh 4 / 2
    unsupervised = (-math.log(0.6) - math.log(0.7)) / 4 + (-math.log(0.4) - math.log(0.7)) / 4
    assert loss == pytest.approx(supervised + unsupervised, rel=1e-5)
    expected = np.zeros((4, 3))
    expected[0, 1:], expected[2, 1:] = [-0.4 / 4, 0.3 / 4], [0.6 / 4, 0.3 / 4]
    assert by_strong == pytest.approx(expected, abs=1e-6)
    assert not by_weak[:, 1:].any()
    assert by_weak[:, 0] == pytest.approx(np.array([-1, 0.5, 0.5, -1]) / 4, abs=1e-6)


def test_without_a_sure_image_the_loss_is_the_partial_loss(site_of, moved):
    table = [[0.7, 0.9, 0.5]] * 4
    loss, _, by_strong = step(site_of(LABELS), table, table)
    plain = FedAvgPL().start(Says(logit(table)), make_task(), site_of(LABELS, folder="plain")).loss(ALL)
    assert loss == plain.item()
    assert not by_strong.any()


def test_the_thresholds_are_those_of_the_code_and_strict():
    method = FedFixMatch()
    p = torch.tensor([[0.801], [0.799], [0.201], [0.199]])
    assert sure_images(p, method.tau_positive, method.tau_negative).tolist() == [True, False, False, True]
    assert sure_images(torch.tensor([[0.75], [0.25]]), 0.75, 0.25).tolist() == [False, False]


def test_a_pseudo_label_that_people_have_rejected_neither_teaches_nor_is_written(site_of, moved):
    weak, strong = [[0.5, 0.9, 0.1]] * 4, [[0.5, 0.6, 0.3]] * 4
    site = site_of(LABELS)
    site.ledger.judge(Verdict(0, 1, REJECT, -1, 1, RULE, 0, "AB"))
    work = FedFixMatch().start(Says(logit([*weak, *strong])), make_task(), site)
    loss = work.loss(ALL)
    unsupervised = (4 * (-math.log(0.6) - math.log(0.7)) + math.log(0.6)) / 2 / 4  # an image less one of two classes
    assert loss.item() == pytest.approx((2 * 2 + 2) * math.log(2) / 4 + unsupervised, rel=1e-5)
    work.report()
    assert site.ledger.repairs().tolist() == [[-1, -1, 0], *[[-1, 1, 0]] * 3]


def test_a_site_that_annotates_all_classes_has_the_supervised_loss(site_of, moved):
    labels = [[1, 0], [0, 1], [0, 0], [1, 1]]
    net = Says(logit([[0.7, 0.9]] * 8))
    loss = FedFixMatch().start(net, make_task(), site_of(labels)).loss(ALL)
    plain = FedAvgPL().start(Says(logit([[0.7, 0.9]] * 4)), make_task(), site_of(labels, folder="plain")).loss(ALL)
    assert loss == plain.item()
    assert len(net.calls) == 1


def test_strong_views_are_drawn_by_the_sites_generator(site_of, monkeypatch):
    seeds = []
    monkeypatch.setattr(
        "fedmend.baselines.fedfixmatch.strong", lambda images, drawn: seeds.append(drawn.initial_seed()) or images
    )
    site = site_of(LABELS)
    FedFixMatch().start(Says(logit([[0.5, 0.9, 0.1]] * 4)), make_task(), site).loss(ALL)
    assert seeds == [site.generator(make_task(), "strong views").initial_seed()]


def test_both_views_pass_the_training_network_in_train_mode(site_of, moved):
    net = Says(logit([[0.5, 0.9, 0.1]] * 8))
    FedFixMatch().start(net, make_task(), site_of(LABELS)).loss(torch.tensor([1, 3]))
    assert net.calls == [(True, [1, 3]), (True, [5, 7])]


def test_the_ledger_has_the_last_pseudo_labels_and_nothing_is_reported(site_of, moved, play):
    site = site_of(LABELS)

    def played(weak, round_num):
        return play(FedFixMatch(), Says(logit([*weak, *weak])), make_task(round_num=round_num), site, 1e-9)

    assert played([[0.5, 0.9, 0.1], [0.5, 0.9, 0.5], [0.5, 0.1, 0.1], [0.5, 0.5, 0.5]], 0) == {}
    assert site.ledger.repairs().tolist() == [[-1, 1, 0], [-1, -1, -1], [-1, 0, 0], [-1, -1, -1]]
    for _ in range(2):  # a round that is repeated leaves the same
        played([[0.5, 0.9, 0.9], [0.5, 0.9, 0.5], [0.5, 0.5, 0.5], [0.5, 0.05, 0.9]], 1)
        assert site.ledger.repairs().tolist() == [[-1, 1, 1], [-1, -1, -1], [-1, 0, 0], [-1, 0, 1]]
    rows = [e for e in site.ledger.history() if e["in_force"]]
    assert {e["rule"] for e in rows} == {RULE}
    assert [(e["image"], e["class"], e["round"]) for e in rows[4:]] == [
        ("0.png", "class 2", 1),
        ("3.png", "class 1", 1),
        ("3.png", "class 2", 1),
    ]
    assert [e["confidence"] for e in rows] == pytest.approx([0.4] * 5 + [0.45, 0.4], abs=1e-4)
