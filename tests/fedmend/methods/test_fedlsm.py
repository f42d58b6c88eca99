"""The client half of FedLSM at a site: uncertainty, pools, pseudo-labels, losses, teacher, passes, report."""

import copy
import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import Says, TinyNetwork, make_single_site, make_task
from torch_factories import make_site as make_picture_site

from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL
from fedmend.learning.training import LocalTrainer
from fedmend.methods.fedlsm import UNCERTAINTY_BINS, FedLSM, split_pools
from fedmend.methods.shared.readings import READINGS
from fedmend.repairs.verdicts import ACCEPT, RELABEL, Verdict

POS_WEIGHT = np.array([2, 3, 4], dtype=np.float32)


def logit(p):
    p = np.asarray(p, dtype=np.float64)
    return np.log(p / (1 - p))


def weighted(logits):
    """What a network says that learnt these logits' probabilities with weighted positive terms."""
    return logits + np.log(POS_WEIGHT)


def order(round_num=0, classes=3, **knowledge):
    return make_task(round_num=round_num, **({"pos_weight": np.ones(classes, dtype=np.float32)} | knowledge))


def settings(**changes):
    return FedLSM(**({"local_iterations": 1, "high": 1, "low": 1, "pairs": 1} | changes))


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.methods.fedlsm.weak", lambda images, generator: images)
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def test_the_settings_are_those_of_the_released_code_unless_a_job_says_otherwise():
    set_at = {"tau_positive": 0.85, "tau_negative": 0.01, "ude_tau_positive": 0.7, "ude_tau_negative": 0.005}
    set_at |= {"high": 0.05, "low": 0.2, "pairs": 4, "ude_weight": 0.1, "mixup_alpha": 0.2, "ema_decay": 0.999}
    off = dict.fromkeys(("keep_labelled", "discount", "known_all_labelled", "vertical_flip"), False)
    expected = {"local_iterations": 1, "ue": True, "loss_mean": "parts"} | set_at | off
    assert dataclasses.asdict(FedLSM(local_iterations=1)) == expected


# ---- pools -----------------------------------------------------------------------------------------------------------


def test_pools_are_the_largest_the_smallest_and_the_rest():
    high, low, middle = split_pools(np.array([0.5, 0.1, 0.9, 0.3, 0.7]), 2, 1)
    assert (high.tolist(), low.tolist(), middle.tolist()) == ([2, 4], [1], [0, 3])


def test_equal_uncertainties_are_sorted_by_sample_number():
    high, low, middle = split_pools(np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0]), 2, 2)
    assert (high.tolist(), low.tolist(), middle.tolist()) == ([2, 4], [1, 3], [0, 5])
    assert [p.tolist() for p in split_pools(np.zeros(3), 1, 2)] == [[2], [0, 1], []]
    high, low, _ = split_pools(np.arange(99.0) % 3, 4, 4)  # many, which not every way to sort leaves in order
    assert (high.tolist(), low.tolist()) == ([89, 92, 95, 98], [0, 3, 6, 9])


@pytest.mark.parametrize(
    ("high", "low", "sizes"),
    [(3, 4, (3, 4)), (0.3, 0.5, (3, 5)), (0.38, 0.12, (4, 1)), (0.01, 0.01, (1, 1)), (5, 5, (5, 5)), (0.5, 2, (5, 2))],
    ids=["numbers", "shares", "rounded shares", "at least one", "the whole site", "mixed"],
)
def test_pool_sizes_are_numbers_or_shares(site_of, high, low, sizes):
    site = site_of([[1, -1, -1]] * 10)
    pools = settings(high=high, low=low).start(Says(np.zeros((10, 3))), order(), site)._pools
    assert tuple(len(p) for p in pools[:2]) == sizes
    assert sorted(np.concatenate(pools)) == list(range(10))


@pytest.mark.parametrize(
    ("high", "low", "got"), [(6, 5, "6 + 5"), (0.6, 0.5, "6 + 5"), (10, 1, "10 + 1"), (500, 2000, "500 + 2000")]
)
def test_pools_larger_than_the_site_are_refused(site_of, high, low, got):
    with refused(f"site-1: train.csv: expected at least high + low = {got} samples, got 10"):
        settings(high=high, low=low).start(Says(np.zeros((10, 3))), order(), site_of([[1, -1, -1]] * 10))


def test_without_uncertainty_pools_are_drawn_anew_in_every_round_by_a_generator_of_their_own(site_of):
    site, net = site_of([[1, -1, -1]] * 20), Says(np.zeros((20, 3)))
    drawn = [settings(ue=False, high=5, low=5).start(net, order(r), site) for r in (0, 0, 1)]
    first, again, other = ([pool.tolist() for pool in work._pools] for work in drawn)
    assert first == again
    assert all(pool != moved for pool, moved in zip(first, other, strict=True))
    assert sorted(np.concatenate(first)) == list(range(20))
    assert net.calls == []
    assert torch.equal(drawn[0].generator.get_state(), site.generator(order(), "augment").get_state())


@pytest.mark.parametrize("mode", [True, False])
def test_the_uncertainty_pass_is_in_eval_mode_and_leaves_model_and_batchnorm_alone(tmp_path, mode):
    site, net, modes = make_picture_site(tmp_path, [[1, -1], [0, -1]] * 5), TinyNetwork(2).train(mode), []
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.register_forward_hook(lambda module, *_: modes.append(module.training))
    settings().start(net, order(classes=2), site)
    assert modes == [False] * 3
    assert net.training is mode
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


ALL_KNOWN = [[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, -1, 1], [1, 0, 0]]


@pytest.mark.parametrize("labels", [ALL_KNOWN, [0, 1, 2, 0, -1]], ids=["multi-label", "single-label"])
def test_a_site_that_knows_all_classes_has_no_uncertainty_pass_and_no_pairs(site_of, plain, labels):
    site, net = site_of(labels), Says(np.ones((5, 3)))
    work = settings(high=500, low=500, local_iterations=3).start(net, order(), site)
    assert net.calls == []
    assert [len(b) for b in work.batches(0)] == [4, 4, 4]
    assert work.loss(torch.tensor([0, 1, 2, 4])).isfinite()
    assert work.report()["class_knowledge"].tolist() == (site.data.train.labels == 1).sum(0).tolist()


@pytest.mark.parametrize("labels", [[[-1, -1, -1]] * 3, [-1, -1, -1]], ids=["multi-label", "single-label"])
def test_a_site_that_knows_no_class_is_refused(site_of, labels):
    with refused("site-1: train.csv: expected labels of at least one class, got none"):
        settings().start(Says(np.zeros((3, 3))), order(), site_of(labels))


# ---- pseudo-labels given U_k ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("told", "expected"), [(False, [0.6, 0.35, 0.05]), (True, [0, 0.875, 0.125])])
def test_probabilities_are_given_the_unknown_classes_where_all_pictures_of_known_ones_are_labelled(
    site_of, plain, told, expected
):
    """Class 0 is known; of the picture without a label the model says .60, .35, .05, and tau is .8."""
    site, said = site_of([0, 0, -1, -1]), np.log([[0.6, 0.35, 0.05]] * 4)
    work = settings(known_all_labelled=told, tau_positive=0.8).start(Says(said), order(), site)
    found = work.probabilities(torch.tensor(said))
    assert found[2].tolist() == pytest.approx(expected, abs=1e-6)
    target, valid = work.targets(found[[0, 2]], torch.tensor([0, 2]), ~work.known, 0.8, 0.01)
    assert valid.tolist() == [[True] * 3, [told] * 3]
    assert target[0].tolist() == [1, 0, 0]  # a label stays what it is
    assert not told or target[1].tolist() == [0, 1, 0]


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, -1], [[1, -1, -1]] * 5], ids=["all known", "multi-label"])
def test_probabilities_are_over_all_classes_where_none_is_unknown_and_in_multi_label_data(site_of, labels):
    said = torch.tensor(np.log([[0.6, 0.35, 0.05]] * 5))
    one, other = (settings(known_all_labelled=v).start(Says(said), order(), site_of(labels)) for v in (True, False))
    assert torch.equal(one.probabilities(said), other.probabilities(said))


# ---- batches --------------------------------------------------------------------------------------------------------


def started(method, site, round_num=0, samples=20):
    said = np.outer(np.arange(samples), np.ones(3))  # the first are the unsure ones
    return method.start(Says(said), order(round_num), site)


def batches(*args, **options):
    return list(started(*args, **options).batches(0))


def test_pools_smaller_than_their_part_of_a_batch_give_what_they_have_and_pairs_stay_pairs(site_of):
    method, site = settings(high=2, low=1, pairs=4, local_iterations=3), site_of([[1, -1, -1]] * 5)
    for b in batches(method, site, samples=5):
        assert sorted(b[:3].tolist()) == [2, 3, 4]
        assert b[3] in (0, 1)
        assert b[4:].tolist() == [4]


def test_uncertain_samples_with_a_label_stay_in_the_main_part_when_asked_and_get_no_pseudo_labels(site_of, plain):
    labels = [[1, -1, -1], [-1, -1, -1], [0, 1, -1], [1, -1, -1], [0, -1, -1], [1, -1, -1]]
    site, table = site_of(labels, batch_size=4), np.full((6, 3), 9.0)
    table[:3, 2] = [0, 0.1, 0.2]  # of class 2, which is unknown, the teacher is unsure in the first three
    for keep, main in ((False, [3, 4, 5]), (True, [0, 2, 3, 4, 5])):
        work = settings(high=3, low=1, keep_labelled=keep).start(Says(table), order(), site)
        assert [pool.tolist() for pool in work._pools[:2]] == [[0, 1, 2], [3]]
        assert [pool.tolist() for pool, _ in work.parts()] == [main, [0, 1, 2], [3]]
    work._teacher.network.table.fill_(9)
    work.loss(torch.tensor([0, 2, 4, 1, 3]))
    assert work.pseudo.labels[:, 2].tolist() == [-1, -1, -1, -1, 1, -1]


def test_a_step_needs_images_besides_the_mixed_ones(site_of):
    site = site_of([[1, -1, -1]] * 20, batch_size=5)
    settings(high=4, low=4, pairs=3).start(Says(np.zeros((20, 3))), order(), site)
    sentence = "expected at least 2 images of a step besides the mixed ones, got 5 and 4"
    with refused(f"job variables batch_size, pairs: {sentence}"):
        settings(high=4, low=4, pairs=4).start(Says(np.zeros((20, 3))), order(), site)


def test_without_ude_no_pairs_are_drawn_and_uncertain_samples_stay_out(site_of):
    method, site = settings(high=5, low=5, ude_weight=0, local_iterations=9), site_of([[1, -1, -1]] * 20)
    found = torch.stack(batches(method, site))
    assert found.shape == (9, 4)
    assert set(found.flatten().tolist()) == set(range(5, 20))


# ---- pseudo-labels and the main loss --------------------------------------------------------------------------------


def step(method, site, teacher, student, index, task=None):
    """Loss of one step and its gradient (N, M) by the student's logits."""
    student = Says(student).train()
    work = method.start(Says(teacher), task or order(pos_weight=POS_WEIGHT), site)
    work.model = student
    loss = work.loss(torch.tensor(index))
    loss.backward()
    return loss.item(), student.table.grad.numpy()


MULTI = [[1, -1, -1], [0, -1, -1], [-1, -1, -1], [0, 1, -1], [1, 0, -1]]  # class 2 is unknown
TEACHER = logit([[0.9] * 3, [0.5, 0.5, 0.005], [0.99, 0.99, 0.5], [0.02, 0.02, 0.84], [0.5, 0.5, 0.02]])
STUDENT = logit([[0.8, 0.4, 0.6]] * 5)
P = np.array([0.8, 0.4, 0.6])


def test_the_multi_label_loss_is_the_weighted_sum_over_labels_and_confident_entries_of_unknown_classes(site_of, plain):
    site = site_of(MULTI, batch_size=5)
    loss, gradient = step(settings(ude_weight=0), site, weighted(TEACHER), STUDENT, [0, 1, 2, 3, 4])
    # Sample 2 is blank everywhere; of class 2 the teacher is sure of samples 0 (positive) and 1 (negative) only.
    entries = {(0, 0): 1, (0, 2): 1, (1, 0): 0, (1, 2): 0, (3, 0): 0, (3, 1): 1, (4, 0): 1, (4, 1): 0}
    expected, slope = 0.0, np.zeros((5, 3))
    for (i, c), y in entries.items():
        expected -= POS_WEIGHT[c] * math.log(P[c]) if y else math.log(1 - P[c])
        slope[i, c] = -POS_WEIGHT[c] * (1 - P[c]) if y else P[c]
    assert loss == pytest.approx(expected / 15, rel=1e-5)
    assert gradient == pytest.approx(slope / 15, abs=1e-6)


@pytest.mark.parametrize(
    ("teacher", "valid"), [(0.75, True), (0.7499, False), (0.25, True), (0.2501, False)], ids=lambda v: str(v)
)
def test_thresholds_include_their_own_value(site_of, plain, teacher, valid):
    site = site_of([[1, -1], [0, -1]] * 2, classes=2, batch_size=2)
    z = [[0.0, logit(teacher)]] * 4
    own = torch.tensor(z, dtype=torch.float32).sigmoid()[0, 1].item()  # 0.75 and 0.25 but for rounding
    positive, negative = own if teacher == 0.75 else 0.75, own if teacher == 0.25 else 0.25
    method = settings(ude_weight=0, tau_positive=positive, tau_negative=negative)
    gradient = step(method, site, z, np.zeros((4, 2)), [0, 1], order(classes=2))[1][:2]
    assert gradient[:, 0] == pytest.approx([-0.5 / 4, 0.5 / 4])
    assert (gradient[:, 1] != 0).tolist() == [valid] * 2
    assert not valid or (gradient[0, 1] < 0) == (teacher > 0.5)


def test_uncertainty_and_thresholds_are_those_of_a_loss_without_weights(site_of, plain):
    p = np.array([[0.5, 0.5, 0.86], [0.5, 0.5, 0.84], [0.5, 0.5, 0.009], [0.5, 0.5, 0.011]])
    site = site_of([[1, 0, -1]] * 4)
    work = settings(ude_weight=0).start(Says(weighted(logit(p))), order(pos_weight=POS_WEIGHT), site)
    expected = READINGS[MULTILABEL].uncertainty(logit(p), np.array([True, True, False]))
    assert work._entropy == pytest.approx(expected, abs=1e-6)
    work.main_loss(torch.zeros(4, 3), work.probabilities(torch.tensor(weighted(logit(p)))), torch.arange(4))
    assert work.pseudo.labels[:, 2].tolist() == [1, -1, 0, -1]


SINGLE = [0, 1, -1, -1, -1, -1]  # classes 2 and 3 of 4 are unknown
SURE = [[0.9, 0.05, 0.03, 0.02], [0.02, 0.03, 0.9, 0.05]]  # of a known class, of an unknown one
DOUBT = [0.1, 0.1, 0.6, 0.2]
SINGLE_TEACHER = np.log([SURE[1], SURE[1], SURE[0], SURE[1], DOUBT, [0.01, 0.01, 0.08, 0.9]])
SINGLE_P = np.array([0.1, 0.2, 0.3, 0.4])


def test_the_single_label_loss_is_the_mean_over_labelled_plus_the_confident_ones_by_all_unlabelled(site_of, plain):
    site = site_of(SINGLE, classes=4, batch_size=6)
    loss, gradient = step(
        settings(ude_weight=0), site, SINGLE_TEACHER, np.log([SINGLE_P] * 6), range(6), order(classes=4)
    )
    labelled, unlabelled = {0: 0, 1: 1}, {3: 2, 5: 3}
    expected = -sum(math.log(SINGLE_P[c]) for c in labelled.values()) / 2
    expected -= sum(math.log(SINGLE_P[c]) for c in unlabelled.values()) / 4
    assert loss == pytest.approx(expected, rel=1e-5)
    slope = np.zeros((6, 4))
    for i, c in {**labelled, **unlabelled}.items():
        slope[i] = (SINGLE_P - np.eye(4)[c]) / (2 if i in labelled else 4)
    assert gradient == pytest.approx(slope, abs=1e-6)


def test_the_single_label_loss_over_the_batch_gives_a_pseudo_label_the_weight_of_a_label(site_of, plain):
    site = site_of(SINGLE, classes=4, batch_size=6)
    method = settings(ude_weight=0, loss_mean="batch")
    loss, _ = step(method, site, SINGLE_TEACHER, np.log([SINGLE_P] * 6), range(6), order(classes=4))
    assert loss == pytest.approx(-sum(math.log(SINGLE_P[c]) for c in (0, 1, 2, 3)) / 6, rel=1e-5)


def test_the_teacher_sees_the_weak_view_and_the_student_the_strong_one(site_of, monkeypatch):
    monkeypatch.setattr("fedmend.methods.fedlsm.weak", lambda images, generator: images + 1 / 25.5)
    monkeypatch.setattr(
        "fedmend.methods.labelsets.strong",
        lambda images, generator, *, vertical_flip: images + (2 + vertical_flip) / 25.5,
    )
    for vertical_flip, moved in ((False, 2), (True, 3)):
        site, method = site_of([[1, -1, -1]] * 9, batch_size=3), settings(vertical_flip=vertical_flip)
        net = Says(np.zeros((12, 3)))
        work = method.start(net, order(), site)
        work._mixing = SimpleNamespace(beta=lambda a, b: 0.25)
        work.loss(torch.tensor([1, 3, 0, 4]))
        assert work._teacher.network.calls[-1] == (False, [2, 4, 0, 4])
        assert net.calls[-1] == (True, [1 + moved, 3 + moved, 1])  # 0.25 * 4 + 0.75 * 0
    assert FedLSM(local_iterations=1).vertical_flip is False


# ---- uncertain data enhancement -------------------------------------------------------------------------------------


def mixed_loss(method, site, teacher, p, index, main, task, weight=0.25):
    """What the pairs add to the loss, and the images that the student saw of them."""
    work, drawn = method.start(Says(teacher), task, site), []
    work.model = student = Says(np.tile(np.asarray(p, dtype=float), (len(teacher), 1)))
    work._mixing = SimpleNamespace(beta=lambda *alpha: drawn.append(alpha) or weight)
    assert work._pairs == method.pairs
    both = work.loss(torch.tensor(main + index)).item()
    assert drawn == [(method.mixup_alpha, method.mixup_alpha)]
    work._pairs = 0
    alone = work.loss(torch.tensor(main)).item()
    return both - alone, student.calls[0][1][len(main) :]


def test_pairs_of_multi_label_data_are_mixed_where_both_entries_are_known_or_valid(site_of, plain):
    #            uncertain 0, 1;        confident 2, 3;        classes 1 and 2 are unknown
    labels = [[1, -1, -1], [-1, -1, -1], [0, -1, -1], [1, -1, -1], [0, -1, -1]]
    teacher = logit([[0.5, 0.72, 0.004], [0.99, 0.72, 0.008], [0.5, 0.005, 0.005], [0.5, 0.9, 0.84], [0.5, 0.5, 0.5]])
    site, method = site_of(labels, batch_size=4), settings(ude_weight=0.5, high=2, low=2, pairs=2)
    task, p = order(pos_weight=POS_WEIGHT), np.array([0.8, 0.4, 0.6])
    added, seen = mixed_loss(method, site, weighted(teacher), logit(p), [0, 1, 2, 3], [4, 4], task)
    assert seen == [0.25 * 2, 0.25 * 3 + 0.75 * 1]
    # Targets 0.25 y_l + 0.75 y_h. Pair 0: 1 and 0, 1 and 0, 0 and 0. Pair 1: blank, 1 and 1, not sure on either side.
    entries = [(0, 0.75), (1, 0.75), (2, 0.0), (1, 1.0)]
    expected = -sum(POS_WEIGHT[c] * y * math.log(p[c]) + (1 - y) * math.log(1 - p[c]) for c, y in entries)
    assert added == pytest.approx(0.5 * expected / 6, rel=1e-4)


@pytest.mark.parametrize(
    ("high", "low", "counts"),
    [(0.7, 0.9, True), (0.7, 0.8, False), (0.6, 0.9, False), (0.005, 0.009, True), (0.009, 0.005, False)],
)
def test_each_side_of_a_pair_has_its_own_thresholds(site_of, plain, high, low, counts):
    site = site_of([[1, -1]] * 3, classes=2, batch_size=3)
    method = settings(ude_tau_positive=0.69, ude_tau_negative=0.006, ude_weight=1)
    teacher = logit([[0.5, high], [0.5, low], [0.5, 0.5]])
    added, _ = mixed_loss(method, site, teacher, [0, 0], [0, 1], [2, 2], order(classes=2))
    assert added == pytest.approx((1 + counts) * math.log(2) / 2, rel=1e-5)


def test_pairs_of_single_label_data_are_mixed_with_labels_and_pseudo_labels_and_dropped_without(site_of, plain):
    #            uncertain: labelled, sure, not sure;   confident: pseudo-label, labelled, labelled
    labels = [0, -1, -1, -1, 1, 0, -1]
    teacher = np.log([[0.25] * 4, [0.1, 0.1, 0.1, 0.7], DOUBT, SURE[1], [0.25] * 4, [0.25] * 4, [0.25] * 4])
    site = site_of(labels, classes=4, batch_size=5)
    method = settings(high=3, low=3, pairs=3, ude_tau_positive=0.69, ude_weight=2)
    added, _ = mixed_loss(method, site, teacher, np.log(SINGLE_P), [0, 1, 2, 3, 4, 5], [6, 6], order(classes=4))
    pairs = [(0.75, 0, 2), (0.75, 3, 1)]  # the third pair is dropped
    expected = -np.mean([w * math.log(SINGLE_P[h]) + (1 - w) * math.log(SINGLE_P[c]) for w, h, c in pairs])
    assert added == pytest.approx(2 * expected, rel=1e-5)


@pytest.mark.parametrize("labels", [[[1, -1, -1], [-1, -1, -1]] * 3, [0, -1, -1, 1, -1, -1]], ids=["multi", "single"])
def test_pairs_of_which_none_has_a_label_add_nothing(site_of, plain, labels):
    site, method = site_of(labels, batch_size=4), settings(high=2, low=2, pairs=2)
    added, _ = mixed_loss(method, site, np.zeros((6, 3)), [0.1, 0.2, 0.3], [0, 3, 1, 4], [1, 4], order())
    assert added == 0


def test_the_mixing_weight_is_drawn_anew_in_every_round(site_of):
    site, net = site_of([[1, -1, -1]] * 4), Says(np.zeros((4, 3)))
    first, again, other = (settings().start(net, order(r), site)._mixing.beta(0.2, 0.2) for r in (0, 0, 1))
    assert first == again != other


# ---- teacher --------------------------------------------------------------------------------------------------------


def test_after_a_step_the_teacher_follows_the_student_by_its_decay_and_has_its_statistics(tmp_path):
    net = TinyNetwork(3)
    work = settings(ema_decay=0.75).start(net, order(), make_picture_site(tmp_path, [[1, -1, -1]] * 4))
    before = net.classifier.bias.detach().clone()
    with torch.no_grad():
        net.classifier.bias += 8
        net.norm.running_mean += 8
    assert torch.equal(work._teacher.network.classifier.bias, before)
    work.after_step()
    assert torch.allclose(work._teacher.network.classifier.bias, before + 2)
    assert work._teacher.network.norm.running_mean.tolist() == [8.0] * 12


PICTURES = [[1, -1, -1], [0, -1, -1]] * 8


# ---- passes ---------------------------------------------------------------------------------------------------------


def passes(site, net, method, classes=3):
    """Samples of the uncertainty pass, of the teacher's and of the student's calls."""
    work = method.start(net, order(classes=classes), site)
    LocalTrainer(learning_rate=0.01).train(work)
    work.report()
    measured = [size for training, size in net.calls if not training]
    teacher = work._teacher.network.calls[len(measured) :]
    assert all(not training for training, _ in teacher)
    return measured, [size for _, size in teacher], [size for training, size in net.calls if training]


@pytest.mark.parametrize(
    ("samples", "iterations", "high", "low", "most"),
    [(946, 20, 50, 200, 6.5), (1402, 30, 50, 200, 6.6)],
    ids=["CXR, a tenth of site and iterations", "ISIC"],
)
def test_a_round_of_the_paper_costs_no_more_forward_passes_per_sample_than_the_published_code(
    make_site, make_net, samples, iterations, high, low, most
):
    site = make_site([[1, -1, -1], [0, -1, -1]] * (samples // 2), np.arange(samples) % 250, batch_size=64)
    method = FedLSM(local_iterations=iterations, high=high, low=low)
    measured, teacher, student = passes(site, make_net(3), method)
    assert sum(measured) == samples
    assert (teacher, student) == ([68] * iterations, [64] * iterations)
    assert (sum(measured) + sum(teacher) + 3 * sum(student)) / samples <= most  # a backward pass counts as two


# ---- report and ledger ----------------------------------------------------------------------------------------------


def multi_table(*changes):
    """Logits of six samples whose class 1 (unknown) is not sure, but for (sample, probability)."""
    p = np.full((6, 2), 0.5)
    for sample, probability in changes:
        p[sample, 1] = probability
    return logit(p)


HALF = [[1, -1], [0, -1], [1, -1], [1, -1], [0, -1], [0, -1]]


def played(play, site, table, round_num=0, **changes):
    """One round in which nobody learns and every sample of the main pool is seen."""
    net = Says(table)
    method = settings(**({"local_iterations": 6, "ude_weight": 0} | changes))
    return play(method, net, order(round_num, classes=np.shape(table)[1]), site, learning_rate=1e-9)


def test_q_counts_labels_of_known_classes_and_positive_pseudo_labels_of_unknown_ones_per_sample(site_of, plain, play):
    site = site_of(HALF, classes=2)
    report = played(play, site, multi_table((0, 0.9), (1, 0.86), (2, 0.8), (3, 0.001)))  # 2 is not sure enough
    assert report["class_knowledge"].tolist() == [3, 2]
    assert report["class_knowledge"].dtype == np.float32
    assert set(report) == set(FedLSM.FIELDS)


def test_q_counts_pseudo_labels_with_their_probability_where_they_are_discounted(site_of, plain, play):
    site = site_of(HALF, classes=2)
    report = played(play, site, multi_table((0, 0.9), (1, 0.86), (2, 0.8), (3, 0.001)), discount=True)
    assert report["class_knowledge"] == pytest.approx([3, 0.9 + 0.86], abs=1e-6)


def test_a_positive_that_people_have_accepted_or_given_still_counts_in_q(site_of, plain, play):
    site = site_of(HALF, classes=2)
    site.ledger.judge(Verdict(0, 1, ACCEPT, -1, 1, FedLSM.RULE, 0, "AB"))
    site.ledger.judge(Verdict(1, 0, RELABEL, 0, 1, reviewer="AB"))
    report = played(play, site, multi_table((0, 0.9), (1, 0.86)))
    assert report["class_knowledge"].tolist() == [4, 2]


def test_q_of_uncertain_samples_counts_their_labels_but_no_pseudo_labels(site_of, plain, play):
    site = site_of([[1, -1]] * 6, classes=2)
    report = played(play, site, multi_table(*((i, 0.9) for i in range(5)), (5, 0.86)), pairs=2, ude_weight=0.1)
    assert site.ledger.repairs()[:, 1].tolist() == [1] * 5 + [-1]  # the last one is D_h
    assert report["class_knowledge"].tolist() == [6, 5]


def test_q_of_single_label_data_counts_pseudo_labels_of_unknown_classes_alone(site_of, plain, play):
    site = site_of(SINGLE, classes=4)
    report = played(play, site, SINGLE_TEACHER)
    assert report["class_knowledge"].tolist() == [1, 1, 1, 1]
    repairs = site.ledger.repairs()
    assert repairs[[3, 5]].tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert (repairs[[0, 1, 2, 4]] == -1).all()


def test_the_last_pseudo_label_of_a_round_counts(site_of, plain):
    site = site_of(HALF, classes=2, batch_size=2)
    work = settings(ude_weight=0).start(Says(multi_table((0, 0.9), (1, 0.9))), order(classes=2), site)
    work.model = Says(np.zeros((6, 2)))
    for change in ((0, 0.9), (1, 0.9)), ((0, 0.001), (1, 0.5)):
        with torch.no_grad():
            work._teacher.network.table.copy_(torch.tensor(multi_table(*change)))
        work.loss(torch.tensor([0, 1]))
    assert work.report()["class_knowledge"].tolist() == [3, 0]
    assert site.ledger.repairs()[:2].tolist() == [[-1, 0], [-1, -1]]


def test_the_ledger_has_the_last_pseudo_labels_and_each_change_once(site_of, plain, play):
    site = site_of(HALF, classes=2)
    before = site.data.train.labels.tobytes()
    played(play, site, multi_table((0, 0.9), (1, 0.95), (3, 0.001)))
    assert site.ledger.repairs().tolist() == [[-1, 1], [-1, 1], [-1, -1], [-1, 0], [-1, -1], [-1, -1]]
    played(play, site, multi_table((0, 0.9), (1, 0.005), (2, 0.86), (3, 0.5)), 1)
    assert site.ledger.repairs().tolist() == [[-1, 1], [-1, 0], [-1, 1], [-1, 0], [-1, -1], [-1, -1]]
    entries = [(e["image"], e["new"], e["round"], e["rule"]) for e in site.ledger.history()]
    first = [("0.png", 1, 0, FedLSM.RULE), ("1.png", 1, 0, FedLSM.RULE), ("3.png", 0, 0, FedLSM.RULE)]
    assert entries == [*first, ("1.png", 0, 1, FedLSM.RULE), ("2.png", 1, 1, FedLSM.RULE)]
    assert {e["class"] for e in site.ledger.history()} == {"class 1"}
    confidence = [e["confidence"] for e in site.ledger.history()]
    assert confidence == pytest.approx([0.4, 0.45, 0.499, 0.495, 0.36], abs=1e-5)
    assert site.data.train.labels.tobytes() == before


def test_a_repeated_round_leaves_the_same_ledger_and_report(site_of, plain, play):
    site, second = site_of(HALF, classes=2), multi_table((0, 0.9), (1, 0.005))
    played(play, site, multi_table((0, 0.9), (1, 0.9)))
    report = played(play, site, second, 1)
    repairs = site.ledger.repairs()
    in_force = lambda: [(e["image"], e["new"], e["round"]) for e in site.ledger.history() if e["in_force"]]  # noqa: E731
    entries = in_force()
    again = played(play, site, second, 1)
    assert np.array_equal(site.ledger.repairs(), repairs)
    assert in_force() == entries
    assert all(np.array_equal(again[k], v) for k, v in report.items())


def test_the_histogram_of_uncertainty_counts_every_sample(site_of, plain, play):
    site = site_of(HALF, classes=2)
    seen = played(play, site, multi_table((0, 0.99), (1, 0.001)))["uncertainty"]
    expected = np.zeros(UNCERTAINTY_BINS, dtype=int)
    expected[[1, 0, -1]] = [1, 1, 4]  # entropies 0.081, 0.011 and 1
    assert seen.tolist() == expected.tolist()
    assert seen.dtype == np.int64
    unsure = played(play, site, multi_table(*((i, 0.9) for i in range(6))), 1)["uncertainty"]
    assert unsure.tolist() == [0] * 9 + [6] + [0] * 10  # entropy 0.469


# ---- whole rounds ---------------------------------------------------------------------------------------------------


def round_of(folder, labels, net=None, round_num=0, **changes):
    """Student and report of one round on random pictures."""
    labels = np.asarray(labels)
    make = make_single_site if labels.ndim == 1 else make_picture_site
    site, net = make(folder, labels), net or TinyNetwork(3)
    task = order(round_num, pos_weight=np.array([0.01, 1, 100], dtype=np.float32))
    options = {"local_iterations": 4, "tau_positive": 0.5, "ude_tau_positive": 0.5, "tau_negative": 0.49}
    work = FedLSM(**(options | changes)).start(net, task, site)
    loss = LocalTrainer(learning_rate=0.05).train(work)
    return loss, net.state_dict(), work.report()


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        ([[1, -1, -1], [0, -1, -1]], {"high": 1, "low": 1}),
        ([0, 1], {"high": 1, "low": 1}),
        ([0, -1], {"high": 1, "low": 1}),
        ([0] + [-1] * 7, {}),
        ([0, 1, 2, 0, 1], {}),
        ([[1, 0, 1], [0, 1, 0], [1, 1, 0]], {}),
        (PICTURES, {"mixup_alpha": 1e-3}),
        (PICTURES, {"high": 15, "low": 1, "pairs": 40}),
        (PICTURES, {"ema_decay": 0.0, "ude_weight": 50}),
        (PICTURES, {"tau_positive": 1.0, "tau_negative": 0.0, "ude_tau_positive": 1.0, "ude_tau_negative": 0.0}),
    ],
    ids=[
        "two samples",
        "two single labels",
        "one single label",
        "one labelled",
        "all labels",
        "all classes known",
        "extreme mixing",
        "a main pool of one",
        "large weight",
        "nothing is sure",
    ],
)
def test_no_site_is_so_poor_that_a_nan_enters_the_model(tmp_path, labels, changes):
    loss, state, report = round_of(tmp_path, labels, **changes)
    assert np.isfinite(loss)
    assert all(v.isfinite().all() for v in state.values())
    assert all(np.isfinite(v).all() for v in report.values())
    if "uncertainty" in report:
        assert report["uncertainty"].sum() == len(labels)


@pytest.mark.parametrize("labels", [[[1, -1, -1], [0, -1, -1]], [0, 1]], ids=["multi-label", "single-label"])
def test_a_batch_of_one_sample_which_batchnorm_cannot_take_is_refused_before_training(tmp_path, labels):
    with pytest.raises(FedMendError, match=r"^site-1: train\.csv: expected at least 2 .*, got 1$"):
        round_of(tmp_path, labels, high=1, low=1, ude_weight=0)


def test_a_network_sure_of_everything_stays_finite(tmp_path):
    for number, scale in enumerate((1e4, -1e4)):
        net = TinyNetwork(3)
        with torch.no_grad():
            net.classifier.weight.mul_(scale)
        for kind, labels in {"multi": PICTURES, "single": [0, 1, -1, -1, 0, 1]}.items():
            loss, state, report = round_of(tmp_path / f"{kind}{number}", labels, copy.deepcopy(net))
            assert np.isfinite(loss)
            assert all(v.isfinite().all() for v in state.values())
            assert report["uncertainty"].sum() == len(labels)


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tau_positive": 0.49}, "job variable tau_positive: expected 0.5 to 1, got 0.49"),
        ({"tau_positive": float("nan")}, "job variable tau_positive: expected 0.5 to 1, got nan"),
        ({"ude_tau_positive": 1.1}, "job variable ude_tau_positive: expected 0.5 to 1, got 1.1"),
        ({"tau_negative": 0.5}, "job variable tau_negative: expected 0 to below 0.5, got 0.5"),
        ({"ude_tau_negative": -0.1}, "job variable ude_tau_negative: expected 0 to below 0.5, got -0.1"),
        ({"local_iterations": 0}, "job variable local_iterations: expected at least 1, got 0"),
        ({"pairs": 0}, "job variable pairs: expected at least 1, got 0"),
        ({"high": 0}, "job variable high: expected > 0, got 0"),
        ({"low": float("nan")}, "job variable low: expected > 0, got nan"),
        ({"ude_weight": -1}, "job variable ude_weight: expected >= 0, got -1"),
        ({"mixup_alpha": 0}, "job variable mixup_alpha: expected > 0, got 0"),
        ({"ema_decay": 1.0}, "job variable ema_decay: expected 0 to below 1, got 1.0"),
    ],
)
def test_arguments_that_make_no_round_are_refused(changes, sentence):
    with refused(sentence):
        FedLSM(**({"local_iterations": 5} | changes))
