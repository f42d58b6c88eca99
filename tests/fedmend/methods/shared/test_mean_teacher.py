import numpy as np
import pytest
import torch
from torch_factories import TinyNetwork, make_site, make_task

from fedmend.methods.shared.mean_teacher import AVERAGED, COPIED, OWN, LastingTeacher, MeanTeacher

LABELS = [[1, -1], [0, -1]]


@pytest.fixture
def site(tmp_path):
    return make_site(tmp_path, LABELS)


def teacher(site, round_num=0, *, net=None, decay=0.999, statistics=AVERAGED, seed=7):
    task = make_task(round_num=round_num, seed=seed)
    return LastingTeacher("teacher", net or TinyNetwork(2), task, site, decay=decay, statistics=statistics), task


def student(value):
    """A network whose parameters and statistics all have this value."""
    net = TinyNetwork(2)
    with torch.no_grad():
        for tensor in (*net.parameters(), net.norm.running_mean, net.norm.running_var):
            tensor.fill_(value)
    return net


def numbers(found):
    """The one value of its parameters, and that of its statistics."""
    net = found.network
    values = {round(float(v), 5) for p in net.parameters() for v in p.flatten()}
    statistics = {round(float(v), 5) for v in (*net.norm.running_mean, *net.norm.running_var)}
    assert len(values) == len(statistics) == 1
    return values.pop(), statistics.pop()


def test_the_first_teacher_is_the_received_model(site):
    net = TinyNetwork(2, seed=3)
    found, _ = teacher(site, net=net)
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in found.network.state_dict().items())
    assert not any(p.requires_grad for p in found.network.parameters())


def test_a_young_teacher_is_the_mean_of_all_networks_after_their_steps(site):
    found, _ = teacher(site)
    for value in (1, 3, 8):
        found.follow(student(value))
    assert numbers(found) == (4, 4)


def test_an_old_teacher_forgets_by_its_decay(site):
    found, _ = teacher(site, decay=0.5)
    for value in (1, 3, 8, 8):  # 1, (1 + 3) / 2, (2 + 8) / 2, (5 + 8) / 2
        found.follow(student(value))
    assert numbers(found) == (6.5, 6.5)


def test_with_the_statistics_of_its_own_batches_it_averages_parameters_alone(site):
    found, _ = teacher(site, statistics=OWN)
    assert found.network.training
    found.follow(student(5.0))
    assert float(found.network.classifier.bias[0]) == 5
    assert float(found.network.norm.running_mean[0]) == 0
    assert not teacher(site)[0].network.training


def test_a_teacher_of_one_round_keeps_its_decay_from_the_first_step_on_and_copies_statistics():
    found = MeanTeacher(student(2.0), decay=0.75, statistics=COPIED)
    assert not found.network.training
    assert not any(p.requires_grad for p in found.network.parameters())
    for value in (6.0, 7.0):  # 0.75 * 2 + 0.25 * 6 = 3, 0.75 * 3 + 0.25 * 7 = 4
        found.follow(student(value))
    assert numbers(found) == (4, 7)


def test_it_goes_on_over_rounds_with_all_its_steps_and_a_repeated_round_starts_where_it_did(site):
    first, task = teacher(site)
    first.follow(student(1))
    first.follow(student(3))
    first.save(task, site)
    for _ in range(2):
        again, task = teacher(site, 1)
        assert numbers(again) == (2, 2)
        again.follow(student(8))
        assert numbers(again) == (4, 4)
        again.save(task, site)
    missed, _ = teacher(site, 5)
    assert numbers(missed) == (4, 4)


def test_the_teacher_of_an_earlier_run_with_another_seed_does_not_count(site):
    first, task = teacher(site, seed=8)
    first.follow(student(1))
    first.save(task, site)
    found, _ = teacher(site, 1, net=TinyNetwork(2, seed=3))
    assert torch.equal(found.network.classifier.weight, TinyNetwork(2, seed=3).classifier.weight)
    assert np.isfinite(found.network.classifier.weight.numpy()).all()
