"""What methods for single-label data share."""

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import TinyNetwork, make_single_site, make_task

from fedmend.labels import SINGLELABEL
from fedmend.methods.baselines import SingleLabelFedAvg
from fedmend.methods.shared.singlelabel import SingleLabelMethod, SingleLabelRound, class_changes, class_numbers

CLASSES = [0, 1, 0, 0, 2, 0]


class PlainRound(SingleLabelRound):
    def loss(self, index):
        return self.adjusted(self.model(self.batch(index)[0])[1]).sum()


class TwoViews(PlainRound):
    VIEWS = 2


class Relabelled(PlainRound):
    def labels(self):
        labels = self.site.data.train.labels.copy()
        labels[1] = [1, 0, 0]
        return labels


def start(folder, round_type=PlainRound, *, la=True, classes=CLASSES, **options):
    site = make_single_site(folder, classes, **options)
    return round_type(SingleLabelFedAvg(la=la), TinyNetwork(3), make_task(), site)


def test_class_numbers_are_those_of_the_labels(tmp_path):
    site = make_single_site(tmp_path, CLASSES)
    found = class_numbers(site, site.data.train.labels)
    assert (found.tolist(), found.dtype) == (CLASSES, np.int64)


def test_a_sample_without_a_label_is_refused_by_its_row(tmp_path):
    with refused("site-1: train.csv row 4, column label: expected a class name, got a blank"):
        start(tmp_path, classes=[0, 1, -1, -1])


def test_a_batch_is_the_views_of_the_epoch_and_their_targets(tmp_path):
    work = start(tmp_path)
    assert torch.cat(list(work.batches(0))).sort().values.tolist() == list(range(6))
    assert work.views.shape == (1, 6, 2, 3)
    index = torch.tensor([4, 1])
    images, target = work.batch(index)
    assert target.tolist() == [2, 1]
    assert torch.equal(images, work.site.data.train.view(index, work.views[0]))


def test_views_are_new_in_every_epoch_and_as_many_as_a_method_wants(tmp_path):
    work = start(tmp_path, TwoViews)
    work.batches(0)
    first = work.views
    work.batches(1)
    assert first.shape == work.views.shape == (2, 6, 2, 3)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, work.views)
    index = torch.tensor([0, 3])
    second = work.site.data.train.view(index, work.views[1])
    assert torch.equal(work.batch(index, 1)[0], second)


@pytest.mark.parametrize("la", [True, False])
def test_logits_are_adjusted_by_the_log_prior_of_the_site_when_asked(tmp_path, la):
    work = start(tmp_path, la=la)
    adjusted = work.adjusted(torch.zeros(2, 3, dtype=torch.bfloat16))
    expected = np.log([4 / 6, 1 / 6, 1 / 6]) if la else [0, 0, 0]
    assert adjusted.dtype == torch.float32
    assert adjusted[0].tolist() == pytest.approx(list(expected), rel=1e-6)


def test_a_method_that_relabels_gets_targets_and_prior_of_its_labels(tmp_path):
    work = start(tmp_path, Relabelled)
    assert work.target.tolist() == [0, 0, 0, 0, 2, 0]
    prior = work.adjusted(torch.zeros(1, 3))[0].exp().tolist()
    assert prior == pytest.approx([5 / 6, 0, 1 / 6])


def test_a_changed_class_is_two_repairs_and_an_unchanged_one_none(tmp_path):
    site = make_single_site(tmp_path, CLASSES)
    labels, target = site.data.train.labels, np.array([0, 1, 2, 0, 1, 0])
    changes = class_changes(labels, target, np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]))
    assert changes.sample.tolist() == [2, 2, 4, 4]
    assert changes.label_class.tolist() == [0, 2, 2, 1]
    assert changes.new.tolist() == [0, 1, 0, 1]
    assert changes.confidence.tolist() == [0.2, 0.2, 0.4, 0.4]
    site.ledger.record("a rule", 0, labels, changes)
    assert site.ledger.apply(labels).argmax(1).tolist() == target.tolist()


def test_single_label_methods_take_single_labels():
    assert SingleLabelMethod.KINDS == (SINGLELABEL,)
