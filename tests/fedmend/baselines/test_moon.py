"""MOON at a site: contrastive loss, and the local model of the round before."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import Says, TinyNetwork, make_task
from torch_factories import make_site as make_picture_site

from fedmend.baselines.moon import Moon, contrastive_loss
from fedmend.learning.training import LocalTrainer
from fedmend.methods.labelsets import LabelSetFedAvg

MULTI = [[1, -1], [0, -1], [1, -1]]
ALL = torch.arange(3)


def order(round_num=0):
    return make_task(round_num=round_num, pos_weight=np.array([2, 3], dtype=np.float32))


@pytest.fixture
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def finished(method, net, round_num, site):
    """A round that ends with this local model."""
    assert started(method, net, round_num, site).report() == {}


def started(method, net, round_num, site):
    return method.start(net, order(round_num), site)


def played(method, net, round_num, site):
    """A whole round."""
    work = started(method, net, round_num, site)
    LocalTrainer(learning_rate=0.05).train(work)
    assert work.report() == {}


def added(work, net):
    """What the contrastive term adds to the loss of another student."""
    work.model = net
    supervised = LabelSetFedAvg(local_iterations=1).start(net, work.task, work.site)
    return (work.loss(ALL) - supervised.loss(ALL)).item()


# ---- the loss -------------------------------------------------------------------------------------------------------


def test_the_contrastive_loss_prefers_the_features_of_the_received_model_to_the_previous_ones():
    z = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    received = torch.tensor([[5.0, 0.0], [0.0, 1.0], [4.0, 0.0]])
    previous = torch.tensor([[0.0, 1.0], [7.0, 0.0], [0.0, 2.0]])
    # Cosines to the received and previous features: 1 and 0, both the root of 1/2, 0 and 1.
    expected = [-math.log(math.exp(2) / (math.exp(2) + 1)), math.log(2), -math.log(1 / (1 + math.exp(2)))]
    assert contrastive_loss(z, received, previous, tau=0.5).item() == pytest.approx(np.mean(expected), rel=1e-6)


def test_the_contrastive_loss_of_features_of_0_or_of_a_low_temperature_is_finite():
    z = torch.zeros(2, 3, requires_grad=True)
    loss = contrastive_loss(z, torch.ones(2, 3), torch.zeros(2, 3), tau=0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2))
    assert z.grad.isfinite().all()
    low = contrastive_loss(torch.ones(1, 2), -torch.ones(1, 2), torch.ones(1, 2), tau=1e-4)
    assert low.item() == pytest.approx(2e4, rel=1e-4)


def test_a_step_adds_mu_times_the_contrastive_loss_of_the_strong_views(site_of, plain):
    site, method = site_of(MULTI, classes=2), Moon(local_iterations=1, mu=3.0, temperature=0.25)
    finished(method, Says([[0, 1], [1, 0], [0, -1]]), 0, site)
    work = started(method, Says([[1, 0], [1, 0], [0, 1]]), 1, site)
    student = Says([[1, 0], [0, 1], [1, 0]])  # cosines to received and previous: 1 and 0, 0 and 0, 0 and 0
    expected = (math.log(1 + math.exp(-1 / 0.25)) + 2 * math.log(2)) / 3
    assert added(work, student) == pytest.approx(3 * expected, rel=1e-5)
    without = started(Moon(local_iterations=1, mu=0.0), Says([[1, 0], [1, 0], [0, 1]]), 1, site)
    assert added(without, student) == 0


def test_without_other_settings_mu_is_1_and_the_temperature_a_half():
    method = Moon(local_iterations=1)
    assert (method.mu, method.temperature, method.vertical_flip) == (1.0, 0.5, False)


def test_the_other_models_see_the_students_images_in_eval_mode_and_get_no_gradient(tmp_path):
    site, net, method = make_picture_site(tmp_path, MULTI * 4), TinyNetwork(2), Moon(local_iterations=1)
    finished(method, TinyNetwork(2, seed=1), 0, site)
    work, seen = started(method, net, 1, site), []
    others = work._compared
    for model in (net.train(), *others):
        model.register_forward_hook(lambda module, inputs, _: seen.append((module.training, inputs[0])))
    before = [{k: v.clone() for k, v in model.state_dict().items()} for model in others]
    work.loss(ALL).backward()
    assert [training for training, _ in seen] == [True, False, False]
    assert all(torch.equal(seen[0][1], images) for _, images in seen)
    for model, own in zip(others, before, strict=True):
        assert all(not p.requires_grad and p.grad is None for p in model.parameters())
        assert all(torch.equal(v, own[k]) for k, v in model.state_dict().items())
    assert net.norm.weight.grad.abs().sum() > 0


def test_a_batch_without_a_single_label_has_the_contrastive_term_alone(site_of, plain):
    site, method = site_of([0, 1, -1]), Moon(local_iterations=1)
    finished(method, Says(np.eye(3)), 0, site)
    work = started(method, Says(np.eye(3)), 1, site)
    work.model = student = Says(np.ones((3, 3)))
    loss = work.loss(torch.tensor([2, 2]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)  # both others are the same model
    assert student.table.grad.isfinite().all()


# ---- the local model of the round before ----------------------------------------------------------------------------

RECEIVED, STUDENT = np.eye(3)[:, :2] + 0.1, np.ones((3, 2))


def started_after(site, rounds, round_num):
    """``round_num`` after rounds that left tables of their own number."""
    for r in rounds:
        finished(Moon(local_iterations=1), Says(np.full((3, 2), r + 1.0)), r, site)
    return started(Moon(local_iterations=1), Says(RECEIVED), round_num, site)


def previous_table(work):
    """The first number of the previous model's table, None for none."""
    return None if work._compared is None else work._compared[1].table[0, 0].item()


@pytest.mark.parametrize(
    ("rounds", "round_num", "found"),
    [
        ([], 0, None),
        ([0], 1, 1),
        ([0, 1], 2, 2),
        ([0, 1, 2], 3, 3),
        ([0, 1], 1, 1),
        ([0, 1, 2], 2, 2),
        ([0], 2, None),
        ([0], 3, None),
        ([0, 1], 0, None),
        ([0, 1], 4, None),
    ],
    ids=[
        "first round",
        "second",
        "third",
        "fourth",
        "second repeated",
        "third repeated",
        "one missed",
        "two missed",
        "first repeated",
        "two missed later",
    ],
)
def test_the_previous_model_is_that_of_the_round_before_or_none(site_of, rounds, round_num, found):
    assert previous_table(started_after(site_of(MULTI, classes=2), rounds, round_num)) == found


def test_without_a_previous_model_the_loss_is_that_of_fedavg(site_of, plain):
    for rounds, round_num in (([], 0), ([0], 2)):
        work = started_after(site_of(MULTI, classes=2, folder=str(round_num)), rounds, round_num)
        student = Says(STUDENT)
        assert previous_table(work) is None
        assert added(work, student) == 0
        assert [training for training, _ in student.calls] == [True, True]


def test_the_received_model_is_kept_as_it_came(site_of):
    site, method, net = site_of(MULTI, classes=2), Moon(local_iterations=1), Says(RECEIVED)
    finished(method, net, 0, site)
    work = started(method, net, 1, site)
    with torch.no_grad():
        net.table.zero_()
    received, previous = work._compared
    assert received.table.numpy() == pytest.approx(RECEIVED)
    assert previous.table.numpy() == pytest.approx(RECEIVED)


def test_another_process_finds_the_whole_local_model_of_the_round_before(tmp_path):
    net, method = TinyNetwork(2), Moon(local_iterations=2)
    first = make_picture_site(tmp_path, MULTI * 4)
    played(method, net, 0, first)
    work = started(Moon(local_iterations=2), TinyNetwork(2, seed=3), 1, make_picture_site(tmp_path, MULTI * 4))
    previous = work._compared[1].state_dict()
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in previous.items() if v.is_floating_point())
    assert not torch.equal(previous["norm.running_mean"], TinyNetwork(2).norm.running_mean)


def trained(folder, rounds, *, crash=False):
    """Weights after rounds that start from one model each, in one process or with a new one for every round."""
    net, method = TinyNetwork(2), Moon(local_iterations=3, mu=5.0)
    site = make_picture_site(folder, MULTI * 4)
    for r in rounds:
        if crash:
            net_before = {k: v.clone() for k, v in net.state_dict().items()}
            played(method, net, r, site)  # the answer is lost, the round comes again in another process
            net.load_state_dict(net_before)
            site = make_picture_site(folder, MULTI * 4)
        played(method, net, r, site)
    return net.state_dict()


def test_rounds_repeated_in_new_processes_give_the_same_weights_to_the_last_bit(tmp_path):
    first, second = (trained(tmp_path / str(crash), range(3), crash=crash) for crash in (False, True))
    assert all(torch.equal(v, second[k]) for k, v in first.items())


def test_three_files_are_kept(site_of, tmp_path):
    site = site_of(MULTI, classes=2)
    for r in range(5):
        finished(Moon(local_iterations=1), Says(RECEIVED), r, site)
    assert sorted(f.name for f in tmp_path.rglob("*.pt")) == ["moon-2.pt", "moon-3.pt", "moon-4.pt"]


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("mu", value, ">= 0") for value in (-1.0, math.inf, math.nan)]
    + [("temperature", value, "> 0") for value in (0.0, math.nan, math.inf)],
)
def test_arguments_that_make_no_loss_are_refused(name, value, expected):
    with refused(f"job variable {name}: expected {expected}, got {value}"):
        Moon(local_iterations=1, **{name: value})
