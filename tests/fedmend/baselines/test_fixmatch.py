"""FixMatch at a site: the network's own pseudo-labels, their loss and their ledger."""

import math

import numpy as np
import pytest
import torch
from torch_factories import Says, TinyNetwork, make_task
from torch_factories import make_site as make_picture_site

from fedmend.baselines.fixmatch import FixMatch

POS_WEIGHT = np.array([2, 1], dtype=np.float32)
MULTI = [[1, -1], [0, -1], [1, -1], [0, -1]]  # class 1 is unknown


def order(round_num=0, weight=POS_WEIGHT):
    return make_task(round_num=round_num, pos_weight=weight)


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.baselines.fixmatch.weak", lambda images, generator: images)
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def said(*p):
    """Logits of samples whose class 1 has these probabilities, and class 0 0.8."""
    table = np.array([[0.8, q] for q in p])
    return np.log(table / (1 - table))


def step(method, site, logits, index):
    """Loss of one step and its gradient (N, M) by the logits of the samples."""
    net = Says(logits)
    loss = method.start(net, order(), site).loss(torch.tensor(index))
    loss.backward()
    return loss.item(), net.table.grad.numpy()


# ---- the loss -------------------------------------------------------------------------------------------------------


def test_in_multi_label_data_labels_and_confident_predictions_of_unknown_classes_count(site_of, plain):
    loss, gradient = step(FixMatch(local_iterations=1), site_of(MULTI, classes=2), said(0.9, 0.005, 0.8, 0.1), range(4))
    # Of class 1 the network is sure of samples 0 (positive) and 1 (negative); class 0 has weight 2.
    terms = [-2 * math.log(0.8), -math.log(0.2), -2 * math.log(0.8), -math.log(0.2)]
    terms += [-math.log(0.9), -math.log(0.995)]
    assert loss == pytest.approx(sum(terms) / 8, rel=1e-5)
    slopes = [[-0.4, -0.1], [0.8, 0.005], [-0.4, 0], [0.8, 0]]  # the pseudo-label itself has no gradient
    assert gradient == pytest.approx(np.array(slopes) / 8, abs=1e-6)


def test_in_single_label_data_the_largest_unknown_class_counts_where_it_is_sure(site_of, plain):
    labels = [0, 1, -1, -1, -1]  # class 2 is unknown
    p = np.array([[0.2, 0.2, 0.6], [0.2, 0.2, 0.6], [0.04, 0.06, 0.9], [0.9, 0.06, 0.04], [0.1, 0.1, 0.8]])
    site = site_of(labels, batch_size=5)
    loss, gradient = step(FixMatch(local_iterations=1), site, np.log(p), range(5))
    assert loss == pytest.approx(-math.log(0.2) - math.log(0.9) / 3, rel=1e-5)  # 2 labelled, 1 of 3 sure
    slopes = np.zeros((5, 3))
    slopes[0], slopes[1], slopes[2] = (p[0] - [1, 0, 0]) / 2, (p[1] - [0, 1, 0]) / 2, (p[2] - [0, 0, 1]) / 3
    assert gradient == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "counts"), [(0.71, True), (0.69, False), (0.19, True), (0.21, False)], ids=lambda v: str(v)
)
def test_the_thresholds_are_the_arguments(site_of, plain, p, counts):
    method = FixMatch(local_iterations=1, tau_positive=0.7, tau_negative=0.2)
    gradient = step(method, site_of(MULTI, classes=2), said(p, p, p, p), [0, 1])[1]
    assert gradient[:2, 1].astype(bool).tolist() == [counts] * 2


def test_the_thresholds_are_compared_with_the_probabilities_of_a_loss_without_weights(site_of, plain):
    table = said(0.86, 0.84, 0.009, 0.011) + np.log([2, 4])
    work = FixMatch(local_iterations=1).start(Says(table), order(weight=np.float32([2, 4])), site_of(MULTI, classes=2))
    work.loss(torch.arange(4))
    assert work.pseudo.labels[:, 1].tolist() == [1, -1, 0, -1]


# ---- the labelling pass ---------------------------------------------------------------------------------------------


def test_the_weak_view_is_labelled_in_eval_mode_and_the_strong_one_learned(site_of, monkeypatch):
    monkeypatch.setattr("fedmend.baselines.fixmatch.weak", lambda images, generator: images + 1 / 25.5)
    monkeypatch.setattr(
        "fedmend.methods.labelsets.strong",
        lambda images, generator, *, vertical_flip: images + (2 + vertical_flip) / 25.5,
    )
    for vertical_flip, moved in ((False, 2), (True, 3)):
        site, net = site_of(MULTI, classes=2), Says(said(0.5, 0.9, 0.5, 0.1, 0.5, 0.5))
        method = FixMatch(local_iterations=1, vertical_flip=vertical_flip)
        method.start(net, order(), site).loss(torch.tensor([0, 2])).backward()
        assert net.calls == [(False, [1, 3]), (True, [moved, 2 + moved])]
        # The weak view of sample 0 is the sure row 1; what is learned is the row of its strong view.
        assert net.table.grad[:, 1].nonzero().flatten().tolist() == [moved]
    assert FixMatch(local_iterations=1).vertical_flip is False


def test_batchnorm_learns_from_the_strong_views_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmend.baselines.fixmatch.weak", lambda images, generator: images * 0)
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)
    site, net, method = make_picture_site(tmp_path, MULTI), TinyNetwork(2).train(), FixMatch(local_iterations=1)
    twin = TinyNetwork(2).train()
    method.start(net, order(), site).loss(torch.arange(4))
    twin(site.data.train.view(torch.arange(4)))
    assert net.training
    assert all(torch.equal(v, twin.state_dict()[k]) for k, v in net.state_dict().items())


def test_the_labelling_pass_takes_no_gradient_away_under_mixed_precision(tmp_path):
    # Autocast keeps 16-bit copies of the weights; copies made without gradient must not serve the second pass.
    site, net, method = make_picture_site(tmp_path, MULTI), TinyNetwork(2).train(), FixMatch(local_iterations=1)
    work = method.start(net, order(), site)
    with torch.autocast("cpu", torch.bfloat16):
        loss = work.loss(torch.arange(4))
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


# ---- ledger ---------------------------------------------------------------------------------------------------------


def played(play, site, table, round_num=0):
    """A round in which nobody learns."""
    method = FixMatch(local_iterations=2)
    return play(method, Says(table), order(round_num), site, learning_rate=1e-9)


def test_the_ledger_has_the_last_pseudo_labels_and_nothing_is_reported(site_of, plain, play):
    site = site_of(MULTI, classes=2)
    assert played(play, site, said(0.9, 0.001, 0.5, 0.5)) == {}
    assert site.ledger.repairs().tolist() == [[-1, 1], [-1, 0], [-1, -1], [-1, -1]]
    assert played(play, site, said(0.9, 0.95, 0.5, 0.5), 1) == {}
    assert site.ledger.repairs().tolist() == [[-1, 1], [-1, 1], [-1, -1], [-1, -1]]
    rows = [(e["image"], e["class"], e["new"], e["round"]) for e in site.ledger.history()]
    assert rows == [("0.png", "class 1", 1, 0), ("1.png", "class 1", 0, 0), ("1.png", "class 1", 1, 1)]
    assert {e["rule"] for e in site.ledger.history()} == {"fixmatch.pseudo_label"}
    assert [e["confidence"] for e in site.ledger.history()] == pytest.approx([0.4, 0.499, 0.45], abs=1e-5)


def test_single_labels_are_repaired_by_whole_rows_of_blank_samples(site_of, plain, play):
    site = site_of([0, 1, -1, -1])
    p = np.array([[0.02, 0.02, 0.96], [0.02, 0.02, 0.96], [0.02, 0.02, 0.96], [0.96, 0.02, 0.02]])
    played(play, site, np.log(p))
    assert site.ledger.repairs().tolist() == [[-1] * 3, [-1] * 3, [0, 0, 1], [-1] * 3]
