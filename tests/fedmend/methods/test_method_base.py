import dataclasses

import pytest
import torch

from fedmend.methods.base import LocalMethod, RoundTask

LABELS = [[0], [1], [0], [1], [0], [1], [0], [1], [0]]
TASK = RoundTask("warmup", 3, 9, seed=5)


class Nothing(LocalMethod):
    def loss(self, model, index, task, site):
        return torch.zeros(())


def draw(site, task, purpose):
    return torch.rand(4, generator=site.generator(task, purpose)).tolist()


def test_a_generator_depends_on_seed_site_round_and_purpose_only(make_site):
    site = make_site(LABELS)
    first = draw(site, TASK, "views")
    torch.rand(7)  # global random state plays no part
    assert draw(make_site(LABELS), dataclasses.replace(TASK, stage="detect", total_rounds=20), "views") == first
    others = [
        draw(site, dataclasses.replace(TASK, seed=6), "views"),
        draw(site, dataclasses.replace(TASK, round_num=4), "views"),
        draw(site, TASK, "shuffle 0"),
        draw(make_site(LABELS, name="site-2"), TASK, "views"),
    ]
    assert all(other != first for other in others)


def test_views_are_the_same_whenever_asked_in_a_round_and_after_a_restart(make_site):
    site = make_site(LABELS)
    views = site.views(TASK, 2)
    assert views.shape == (2, 9, 2, 3)
    assert site.views(TASK, 2) is views
    assert torch.equal(make_site(LABELS).views(TASK, 2), views)
    assert not torch.equal(site.views(dataclasses.replace(TASK, round_num=4), 2), views)


def test_the_two_views_of_a_sample_differ(make_site):
    views = make_site(LABELS).views(TASK, 2)
    assert not (views[0] == views[1]).all(-1).all(-1).any()


def test_a_last_batch_of_one_joins_the_batch_before(make_site):
    site = make_site(LABELS, batch_size=4)
    assert [b.tolist() for b in site.batches(torch.arange(9))] == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    assert [len(b) for b in site.batches(torch.arange(10))] == [4, 4, 2]
    assert [len(b) for b in site.batches(torch.arange(1))] == [1]


def test_the_default_batches_shuffle_all_samples_anew_in_every_epoch_and_round(make_site):
    site, method = make_site(LABELS), Nothing()

    def order(task, epoch):
        return torch.cat(list(method.batches(task, site, epoch))).tolist()

    first = order(TASK, 0)
    assert sorted(first) == list(range(9))
    assert first == order(TASK, 0)
    assert len({tuple(first), tuple(order(TASK, 1)), tuple(order(dataclasses.replace(TASK, round_num=4), 0))}) == 3


def test_by_default_nothing_is_reported_and_nothing_declared(make_site, make_net):
    method = Nothing()
    assert method.prepare(make_net(1), TASK, make_site(LABELS)) is None
    assert method.report(make_net(1), TASK, make_site(LABELS)) == {}
    assert method.REPORT_FIELDS == {}


def test_a_task_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.round_num = 0
