"""Each site alone, whatever its kind of labels."""

import copy

import numpy as np
import pytest
import torch
from torch_factories import TinyNetwork, make_mask_site, make_single_site, make_site, make_task

from fedmend.learning.networks import UNET_NARROW
from fedmend.learning.training import LocalTrainer
from fedmend.methods.alone import Alone, LabelSetAlone, MaskAlone, SingleLabelAlone
from fedmend.methods.baselines import SingleLabelFedAvg
from fedmend.repairs.verdicts import RELABEL, Verdict

LABELS = [[1, 0, -1], [0, 1, -1], [0, 1, -1], [1, 0, -1]]  # nobody annotates the third class


def test_a_site_alone_trains_its_own_model_and_gives_the_received_one_back(tmp_path):
    site, received, method = make_single_site(tmp_path, [0, 1, 0, 2]), TinyNetwork(3), SingleLabelAlone(la=True)
    before = {name: value.clone() for name, value in received.state_dict().items()}
    assert method.evaluated(received, make_task(round_num=0), site) is not received
    expected = copy.deepcopy(received)
    for number in range(2):
        task = make_task(round_num=number)
        work = method.start(received, task, site)
        LocalTrainer(learning_rate=0.1).train(work)
        assert work.report() == {}
        LocalTrainer(learning_rate=0.1).train(SingleLabelFedAvg(la=True).start(expected, task, site))
        assert all(torch.equal(value, before[name]) for name, value in received.state_dict().items())
        own = method.evaluated(received, make_task(round_num=number + 1), site)
        assert all(torch.equal(value, own.state_dict()[name]) for name, value in expected.state_dict().items())
    again = method.evaluated(received, make_task(round_num=1), site)  # a round that is repeated starts where it did
    assert not torch.equal(again.classifier.weight, own.classifier.weight)
    missed = method.evaluated(received, make_task(round_num=3), site)
    assert torch.equal(missed.classifier.weight, own.classifier.weight)


def test_a_site_alone_takes_no_model_of_an_earlier_run_with_another_seed(tmp_path):
    site, received, method = make_single_site(tmp_path, [0, 1, 0, 2]), TinyNetwork(3), SingleLabelAlone()
    work = method.start(received, make_task(round_num=0, seed=8), site)
    LocalTrainer(learning_rate=0.1).train(work)
    work.report()
    own = method.evaluated(received, make_task(round_num=1, seed=7), site)
    assert torch.equal(own.classifier.weight, received.classifier.weight)


def of_labels(folder):
    return make_site(folder, LABELS), TinyNetwork(3)


def of_masks(folder):
    masks = np.zeros((4, 32, 32), dtype=np.uint8)
    masks[:2, 4:20, 4:20] = 1
    return make_mask_site(folder, masks), UNET_NARROW(1)


@pytest.mark.parametrize(
    ("method", "make"),
    [(Alone(), of_labels), (LabelSetAlone(local_iterations=2), of_labels), (MaskAlone(), of_masks)],
    ids=lambda value: type(value).__name__,
)
def test_of_every_kind_of_labels_a_site_trains_its_own_model_and_gives_the_received_one_back(tmp_path, method, make):
    site, received = make(tmp_path)
    before = copy.deepcopy(received.state_dict())
    task = make_task(pos_weight=np.ones(3, np.float32))
    work = method.start(received, task, site)
    LocalTrainer(learning_rate=0.01).train(work)
    assert work.report() == {}
    own = method.evaluated(received, make_task(round_num=1), site).state_dict()
    assert all(torch.equal(value, before[name]) for name, value in received.state_dict().items())
    assert all(torch.equal(value, own[name]) for name, value in work.model.state_dict().items())
    assert not all(torch.equal(value, before[name]) for name, value in own.items())
    assert not method.patients_apart


def test_classes_that_a_site_does_not_annotate_stay_as_they_began(tmp_path):
    for method in (Alone(), LabelSetAlone(local_iterations=2)):
        site, received = make_site(tmp_path / type(method).__name__, LABELS), TinyNetwork(3)
        work = method.start(received, make_task(pos_weight=np.ones(3, np.float32)), site)
        LocalTrainer(learning_rate=0.1, weight_decay=0.0).train(work)
        trained, began = work.model.classifier.weight, received.classifier.weight
        assert torch.equal(trained[2], began[2])
        assert not torch.equal(trained[0], began[0])


def test_alone_the_weights_of_positives_are_those_of_the_sites_own_samples(tmp_path):
    site = make_site(tmp_path, [[1, 1, -1], [0, 1, -1], [0, 1, -1], [0, 0, -1]])
    work = LabelSetAlone(local_iterations=1).start(
        TinyNetwork(3), make_task(pos_weight=np.full(3, 9, np.float32)), site
    )
    assert work.pos_weight.tolist() == pytest.approx([3, 1 / 3, 0.01])  # negatives / positives; nothing is known
    site.ledger.judge(Verdict(1, 0, RELABEL, 0, 1, reviewer="AB"))
    work = LabelSetAlone(local_iterations=1).start(TinyNetwork(3), work.task, site)
    assert work.pos_weight.tolist() == pytest.approx([1, 1 / 3, 0.01])  # with what people say


def test_alone_no_weight_of_positives_is_above_the_federations_largest(tmp_path):
    site = make_site(tmp_path, [[1, 1, -1], *[[0, 1, -1]] * 8, [0, 0, -1]])
    sent = make_task(pos_weight=np.array([3, 1, 2], np.float32))
    work = LabelSetAlone(local_iterations=1).start(TinyNetwork(3), sent, site)
    assert work.pos_weight.tolist() == pytest.approx([3, 1 / 9, 0.01])  # 9 by its own samples


@pytest.mark.parametrize("method", [Alone(weighted=False), SingleLabelAlone()], ids=lambda m: type(m).__name__)
def test_no_site_that_keeps_differential_privacy_trains_alone_as_the_account_follows_what_is_sent(method):
    assert not method.patients_apart
