"""What FedLSM and its baselines share, and FedAvg, FedProx and FedRS on labels that do not cover all classes."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import Says, TinyNetwork, make_single_site, make_task
from torch_factories import make_site as make_picture_site

from fedmend.baselines.fedrs import FedRS
from fedmend.baselines.fixmatch import FixMatch
from fedmend.baselines.fpsl import FPSL
from fedmend.baselines.fssl import FSSL
from fedmend.baselines.moon import Moon
from fedmend.learning.training import LocalTrainer
from fedmend.methods.labelsets import LabelSetFedAvg, LabelSetFedProx
from fedmend.methods.shared.readings import READINGS

POS_WEIGHT = np.array([2, 3, 4], dtype=np.float32)
BASELINES = [LabelSetFedAvg, LabelSetFedProx, FedRS, Moon, FixMatch, FPSL, FSSL]
every_baseline = pytest.mark.parametrize("method", BASELINES, ids=lambda m: m.__name__)


def order(round_num=0, weight=POS_WEIGHT):
    return make_task(round_num=round_num, pos_weight=weight)


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.baselines.fixmatch.weak", lambda images, generator: images)
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def step(method, site, logits, index):
    """Loss of one step and its gradient (N, M) by the logits of the samples."""
    net = Says(logits)
    loss = method.start(net, order(), site).loss(torch.tensor(index))
    loss.backward()
    return loss.item(), net.table.grad.numpy()


# ---- batches --------------------------------------------------------------------------------------------------------


def batches(site, round_num=0, epoch=0):
    """(12, B) sample numbers of a round."""
    work = LabelSetFedAvg(local_iterations=12).start(Says(np.zeros((20, 3))), order(round_num), site)
    return torch.stack(list(work.batches(epoch)))


@pytest.mark.parametrize(("batch_size", "full"), [(4, 5), (6, 3)], ids=["in whole batches", "with a rest"])
def test_a_round_has_its_number_of_batches_and_repeats_a_sample_only_when_too_few_others_are_left(
    site_of, batch_size, full
):
    found = batches(site_of([[1, -1, -1]] * 20, batch_size=batch_size))
    assert found.shape == (12, batch_size)
    passes = [tuple(found[i : i + full].flatten().tolist()) for i in range(0, 12 - full + 1, full)]
    assert all(len(set(p)) == len(p) for p in passes)
    assert len(set(passes)) == len(passes)  # a new order each time
    assert len(found.unique()) == 20


def test_every_round_and_epoch_has_an_order_of_its_own_which_a_repeated_round_has_again(site_of):
    site = site_of([[1, -1, -1]] * 20)
    first, again, second, later = (batches(site, r, epoch) for r, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)))
    assert torch.equal(first, again)
    assert not torch.equal(first[:5], second[:5])
    assert not torch.equal(first[:5], later[:5])


def test_strong_views_are_other_ones_at_each_call_and_the_same_in_a_repeated_round(tmp_path):
    site, net = make_picture_site(tmp_path, MULTI), TinyNetwork(3)
    method, index = LabelSetFedAvg(local_iterations=1), torch.arange(4)
    works = [method.start(net, order(), site) for _ in range(2)]
    (first, second), again = ([work.inputs(index) for _ in range(2)] for work in works)
    assert not torch.equal(first, second)
    assert all(torch.equal(x, y) for x, y in zip((first, second), again, strict=True))


# ---- FedAvg ---------------------------------------------------------------------------------------------------------

MULTI = [[1, -1, -1], [0, -1, -1], [-1, 1, -1], [0, 0, -1]]  # class 2 is unknown
P = np.array([0.8, 0.4, 0.6])
SAID = np.tile(np.log(P / (1 - P)), (4, 1))
SINGLE = [0, 1, -1, 0]  # class 2 is unknown
SINGLE_P = np.array([0.5, 0.3, 0.2])


def weighted_bce(labels, p=P):
    """(N, 3) terms of the loss, and their slopes by the logits; hidden labels are negative."""
    positive = np.array(labels) == 1
    terms = np.where(positive, -POS_WEIGHT * np.log(p), -np.log(1 - p))
    return terms, np.where(positive, -POS_WEIGHT * (1 - p), p)


def test_in_multi_label_data_hidden_labels_are_negative_and_all_entries_count(site_of, plain):
    loss, gradient = step(LabelSetFedAvg(local_iterations=1), site_of(MULTI), SAID, [0, 1, 2, 3])
    terms, slopes = weighted_bce(MULTI)
    assert loss == pytest.approx(terms.mean(), rel=1e-5)
    assert gradient == pytest.approx(slopes / 12, abs=1e-6)


def test_hidden_labels_of_multi_label_data_can_be_ignored(site_of, plain):
    methods = [LabelSetFedAvg, LabelSetFedProx, FedRS, Moon]
    known = np.array(MULTI) != -1
    terms, slopes = weighted_bce(MULTI)
    for method in methods:
        options = {"alpha": 1.0} if method is FedRS else {}
        method = method(local_iterations=1, hidden="ignored", **options)
        loss, gradient = step(method, site_of(MULTI), SAID, [0, 1, 2, 3])
        assert loss == pytest.approx((terms * known).sum() / 12, rel=1e-5)
        assert gradient == pytest.approx(slopes * known / 12, abs=1e-6)


def test_hidden_is_negative_or_ignored():
    with refused("job variable hidden: expected one of ['negative', 'ignored'], got 'no'"):
        LabelSetFedAvg(local_iterations=1, hidden="no")


def test_single_label_data_have_no_hidden_label_that_could_be_negative(site_of, plain):
    methods = (LabelSetFedAvg(local_iterations=1, hidden=hidden) for hidden in ("negative", "ignored"))
    first, second = (step(m, site_of(SINGLE), np.log([SINGLE_P] * 4), [0, 1, 2, 3]) for m in methods)
    assert first[0] == second[0]
    assert np.array_equal(first[1], second[1])


def test_in_single_label_data_the_loss_is_the_mean_over_the_labelled_samples(site_of, plain):
    loss, gradient = step(LabelSetFedAvg(local_iterations=1), site_of(SINGLE), np.log([SINGLE_P] * 4), [0, 1, 2])
    assert loss == pytest.approx(-(math.log(0.5) + math.log(0.3)) / 2, rel=1e-5)
    slopes = np.zeros((4, 3))
    slopes[0], slopes[1] = (SINGLE_P - [1, 0, 0]) / 2, (SINGLE_P - [0, 1, 0]) / 2
    assert gradient == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize("method", [LabelSetFedAvg, FedRS, FixMatch], ids=lambda m: m.__name__)
def test_a_site_that_knows_all_classes_has_the_usual_loss(site_of, plain, method):
    multi, single = [[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 1]], [0, 1, 2, 0]
    loss, _ = step(method(local_iterations=1), site_of(multi, folder="multi"), SAID, [0, 1, 2, 3])
    assert loss == pytest.approx(weighted_bce(multi)[0].mean(), rel=1e-5)
    loss, _ = step(method(local_iterations=1), site_of(single, folder="single"), np.log([SINGLE_P] * 4), [0, 1, 2, 3])
    assert loss == pytest.approx(-np.log(SINGLE_P[single]).mean(), rel=1e-5)


# ---- FedProx and FedRS ----------------------------------------------------------------------------------------------


def test_fedprox_adds_half_mu_times_the_squared_distance_to_the_received_model(site_of, plain):
    site, net = site_of(MULTI), Says(SAID)
    work = LabelSetFedProx(local_iterations=1, mu=0.4).start(net, order(), site)
    with torch.no_grad():
        net.table += torch.tensor([1.0, 2.0, 0.0])
    loss = work.loss(torch.arange(4))
    plain_loss = LabelSetFedAvg(local_iterations=1).start(net, order(), site).loss(torch.arange(4))
    assert (loss - plain_loss).item() == pytest.approx(0.4 / 2 * 4 * (1 + 4), rel=1e-5)
    assert LabelSetFedProx(local_iterations=1).mu == 0.01


def test_fedrs_multiplies_the_logits_of_unknown_classes_in_multi_label_data(site_of, plain):
    loss, gradient = step(FedRS(local_iterations=1, alpha=0.25), site_of(MULTI), SAID, [0, 1, 2, 3])
    restricted = 1 / (1 + np.exp(-SAID[0] * [1, 1, 0.25]))
    terms, slopes = weighted_bce(MULTI, restricted)
    assert loss == pytest.approx(terms.mean(), rel=1e-5)
    assert gradient == pytest.approx(slopes * [1, 1, 0.25] / 12, abs=1e-6)


def test_fedrs_multiplies_the_logits_of_unknown_classes_in_single_label_data(site_of, plain):
    said = np.array([[1.0, 2.0, 4.0]] * 4)
    loss, gradient = step(FedRS(local_iterations=1), site_of(SINGLE), said, [0, 1, 2, 3])
    p = np.exp([1, 2, 2]) / np.exp([1, 2, 2]).sum()  # alpha is 0.5
    assert loss == pytest.approx(-(2 * math.log(p[0]) + math.log(p[1])) / 3, rel=1e-5)
    assert gradient[0] == pytest.approx((p - [1, 0, 0]) * [1, 1, 0.5] / 3, abs=1e-6)


@pytest.mark.parametrize("labels", [[0, 1, -1, 0], [[1, -1, -1], [0, 1, -1], [1, -1, -1], [0, 0, -1]]])
def test_graded_fedrs_multiplies_logits_the_more_the_rarer_the_class_is_at_the_site(site_of, plain, labels):
    site, said = site_of(labels), np.tile([1.0, 2.0, 4.0], (4, 1))
    graded = step(FedRS(local_iterations=1, alpha=0.4, graded=True), site, said, [0, 1, 2, 3])
    # Two positives of class 0, one of class 1, none of class 2.
    scale = np.array([1, 0.4 + 0.6 / 2, 0.4])
    plainly = step(LabelSetFedAvg(local_iterations=1), site, said * scale, [0, 1, 2, 3])
    assert graded[0] == pytest.approx(plainly[0], rel=1e-5)
    assert graded[1] == pytest.approx(plainly[1] * scale, abs=1e-6)


def test_graded_fedrs_is_finite_where_a_site_has_no_positive(site_of, plain):
    method = FedRS(local_iterations=1, graded=True)
    loss, gradient = step(method, site_of([[0, -1, -1]] * 4), SAID, [0, 1, 2, 3])
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


# ---- whole rounds of all baselines ----------------------------------------------------------------------------------


def rounds_of(folder, method, labels, rounds=2, **options):
    """Loss and network after some rounds on random pictures, and the site."""
    make = make_single_site if np.ndim(labels) == 1 else make_picture_site
    site, net = make(folder, labels), TinyNetwork(3)
    method = method(**({"local_iterations": 4} | options))
    for r in range(rounds):
        work = method.start(net, order(r), site)
        loss = LocalTrainer(learning_rate=0.05).train(work)
        assert work.report() == {}
    return loss, net.state_dict(), site


@every_baseline
@pytest.mark.parametrize(
    "labels",
    [
        [[1, -1, -1], [0, -1, -1]],
        [0, 1],
        [0, -1],
        [0] + [-1] * 11,
        [0, 1, 2, 0, 1],
        [[1, 0, 1], [0, 1, 0], [1, 1, 0]],
    ],
    ids=["two samples", "two single labels", "one single label", "one labelled", "all labels", "all classes known"],
)
def test_no_site_is_so_poor_that_a_nan_enters_the_model(tmp_path, method, labels):
    loss, state, site = rounds_of(tmp_path, method, labels, rounds=2)
    assert np.isfinite(loss)
    assert all(v.isfinite().all() for v in state.values())
    known = READINGS[site.data.kind].known_classes(site.data.train.labels)
    assert not known.all() or (site.ledger.repairs() == -1).all()


# ---- bad input ------------------------------------------------------------------------------------------------------


@every_baseline
@pytest.mark.parametrize("labels", [[[-1, -1, -1]] * 3, [-1, -1, -1]], ids=["multi-label", "single-label"])
def test_a_site_that_knows_no_class_is_refused(site_of, method, labels):
    with refused("site-1: train.csv: expected labels of at least one class, got none"):
        method(local_iterations=1).start(Says(np.zeros((3, 3))), order(), site_of(labels))


@every_baseline
def test_a_multi_label_site_needs_weights_of_positive_terms(site_of, method):
    with refused("round 2, pos_weight from the server: expected an array, got nothing"):
        method(local_iterations=1).start(Says(SAID), make_task(round_num=2), site_of(MULTI))


@every_baseline
def test_a_round_without_a_step_is_refused(method):
    with refused("job variable local_iterations: expected at least 1, got 0"):
        method(local_iterations=0)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_an_alpha_that_restricts_nothing_is_refused(alpha):
    with refused(f"job variable alpha: expected 0 to 1, got {alpha}"):
        FedRS(local_iterations=1, alpha=alpha)


def test_a_negative_mu_is_refused():
    with refused("job variable mu: expected >= 0, got -1"):
        LabelSetFedProx(local_iterations=1, mu=-1)
