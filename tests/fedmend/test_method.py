"""The contract of a method: tasks, sites, and what a round does unless a method says otherwise."""

import dataclasses

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import TinyNetwork
from torch_factories import make_site as make_picture_site

from fedmend.labels import MULTILABEL
from fedmend.method import LocalMethod, Round, RoundTask, Workflow
from fedmend.methods.fednoro import FedNoRoWorkflow

LABELS = [[0], [1], [0], [1], [0], [1], [0], [1], [0]]
TASK = RoundTask("warmup", 3, 9, seed=5)


@pytest.fixture
def make_site(tmp_path):
    """The same site again whenever it is asked for by the same name."""
    return lambda labels, name="site-1", **options: make_picture_site(tmp_path / name, labels, name=name, **options)


class NothingRound(Round):
    def loss(self, index):
        return torch.zeros(())


class Nothing(LocalMethod):
    ROUND = NothingRound


# ---- a task ---------------------------------------------------------------------------------------------------------


def test_a_task_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TASK.round_num = 0


def test_repairs_of_a_collection_stand_under_the_round_before_the_training_that_follows():
    assert TASK.ledger_round == 3
    assert dataclasses.replace(TASK, training=False).ledger_round == 2


def test_a_word_of_the_server_is_there_or_missed_in_one_sentence():
    assert RoundTask("train", 3, 9, {"threshold": np.float32(0.5)}).word("threshold") == np.float32(0.5)
    with refused("round 3, threshold from the server: expected an array, got nothing"):
        TASK.word("threshold")


# ---- a site ---------------------------------------------------------------------------------------------------------


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


# ---- a round --------------------------------------------------------------------------------------------------------


def test_the_default_batches_shuffle_all_samples_anew_in_every_epoch_and_round(make_site):
    site = make_site(LABELS)

    def order(task, epoch):
        return torch.cat(list(Nothing().start(TinyNetwork(1), task, site).batches(epoch))).tolist()

    first = order(TASK, 0)
    assert sorted(first) == list(range(9))
    assert first == order(TASK, 0)
    assert len({tuple(first), tuple(order(TASK, 1)), tuple(order(dataclasses.replace(TASK, round_num=4), 0))}) == 3


def test_a_round_knows_method_model_task_and_site(make_site):
    method, model, site = Nothing(), TinyNetwork(1), make_site(LABELS)
    work = method.start(model, TASK, site)
    assert type(work) is NothingRound
    assert (work.method, work.model, work.task, work.site) == (method, model, TASK, site)


def test_by_default_nothing_is_reported_and_nothing_declared(make_site):
    work = Nothing().start(TinyNetwork(1), TASK, make_site(LABELS))
    assert work.after_step() is None
    assert work.report() == {}
    assert Nothing().collect(TinyNetwork(1), TASK, make_site(LABELS)) == {}
    assert Nothing.FIELDS == Nothing.KNOWLEDGE == {}
    assert Nothing.KINDS == (MULTILABEL,)


# ---- a workflow -----------------------------------------------------------------------------------------------------


class Training(Workflow):
    def run(self, fed):
        pass


def test_by_default_a_workflow_needs_no_report_remembers_nothing_and_has_no_warm_up():
    assert Training().check("train", {}) is None
    assert vars(Training.Memory()) == {}
    assert Training.METHOD.FIELDS == Training.METHOD.KNOWLEDGE == {}
    assert Training().check_rounds(0) is None


def test_a_warm_up_longer_than_the_run_is_refused():
    workflow = FedNoRoWorkflow(warmup_rounds=4)
    assert workflow.check_rounds(4) is None
    with refused("job variables warmup_rounds, num_rounds: expected the warm-up to fit into the run, got 4 of 3"):
        workflow.check_rounds(3)
