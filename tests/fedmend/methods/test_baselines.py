import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import one_hot

from fedmend.learning.networks import build_network
from fedmend.local.metering import Meter
from fedmend.messages import TRAIN, Question, RunSpec
from fedmend.method import RoundTask
from fedmend.methods.baselines import FedAvg, FedAvgPL, FedProx, SingleLabelFedAvg, SingleLabelFedProx
from fedmend.methods.fednoro import FedNoRo

TASK = RoundTask("train", 0, 4)
LABELS = [[1, 0, -1], [0, 1, -1], [0, -1, -1], [0, 1, -1]]  # class 1 has a blank, class 2 is not annotated
CLASSES = [0, 1, 0, 0]  # prior 3/4, 1/4, and no sample of class 2
ALL = torch.arange(4)


@pytest.fixture
def flat_net(make_net):
    """Logits 0, ln 3, -ln 3, that is probabilities 1/2, 3/4, 1/4, whatever the image."""
    net = make_net(3)
    with torch.no_grad():
        net.classifier.weight.zero_()
        net.classifier.bias.copy_(torch.tensor([0.0, math.log(3), -math.log(3)]))
    return net


def loss_of(method, net, site, index=ALL):
    work = method.start(net, TASK, site)
    list(work.batches(0))
    return work.loss(index)


def test_fedavg_counts_missing_labels_as_negative_and_weights_positives_by_n_over_n_pos(make_site, flat_net):
    column_0 = 4 * math.log(2) + 3 * math.log(2)  # weight 4/1
    column_1 = 2 * 2 * -math.log(3 / 4) + 2 * -math.log(1 / 4)  # weight 4/2; the blank is a second negative
    column_2 = 4 * -math.log(3 / 4)  # all negative
    expected = (column_0 + column_1 + column_2) / (4 * 3)
    assert loss_of(FedAvg(), flat_net, make_site(LABELS)).item() == pytest.approx(expected, rel=1e-6)


def test_fedavg_pl_counts_annotated_columns_only(make_site, flat_net):
    column_0 = 4 * math.log(2) + 3 * math.log(2)
    column_1 = 2 * 3 / 2 * -math.log(3 / 4) + -math.log(1 / 4)  # weight 3/2: three known labels
    expected = (column_0 + column_1) / (4 * 2)
    loss = loss_of(FedAvgPL(), flat_net, make_site(LABELS))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    loss.backward()
    assert flat_net.classifier.bias.grad[2].item() == 0.0
    assert flat_net.classifier.bias.grad[:2].abs().min() > 0


def test_with_two_views_fedavg_pl_averages_the_losses_of_both_and_a_pass_of_each_counts(make_site):
    site, net = make_site(LABELS), build_network("resnet_narrow", 3).eval()
    works = [FedAvgPL(views=views).start(net, TASK, site) for views in (2, 1)]
    with Meter() as meter:
        meter.asked(Question(TRAIN, {}, {"site-1": TASK}, RunSpec("run", ("a",), "tiny", 0), False))
        with meter.working("site-1"):
            loss = works[0].loss(ALL)
    assert meter.measured()["sites"]["site-1"]["images"] == 2 * 4
    views = site.views(TASK, 2)  # those of FedMLP's warm-up
    assert not torch.equal(views[0], views[1])
    expected = [works[1].supervised(net(site.data.train.view(ALL, view))[1], ALL).item() for view in views]
    assert expected[0] != expected[1]
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-6)


@pytest.mark.parametrize("views", [0, 5])
def test_more_views_than_a_site_has_memory_for_are_refused(views):
    with refused(f"job variable views: expected 1 to 4, got {views}"):
        FedAvgPL(views=views)


@pytest.mark.parametrize("other", [LABELS[3], [1, 0, -1]], ids=["as above", "another label"])
@pytest.mark.parametrize(("method", "columns"), [(FedAvg, 3), (FedAvgPL, 2)])
def test_without_weights_the_loss_of_a_sample_depends_on_that_sample_alone(make_site, flat_net, method, columns, other):
    # sample 0 is (1, 0, missing) with probabilities 1/2, 3/4, 1/4; the labels of sample 3 do not matter
    expected = -sum(math.log(p) for p in (1 / 2, 1 / 4, 3 / 4)[:columns]) / columns
    site = make_site([*LABELS[:3], other])
    loss = loss_of(method(weighted=False), flat_net, site, torch.tensor([0]))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_the_loss_of_a_short_batch_is_divided_by_its_own_size(make_site, flat_net):
    site = make_site(LABELS)
    single = [loss_of(FedAvg(), flat_net, site, torch.tensor([i])).item() for i in range(4)]
    assert loss_of(FedAvg(), flat_net, site).item() == pytest.approx(np.mean(single), rel=1e-6)


def test_fedprox_adds_half_mu_times_the_squared_distance_to_the_received_model(make_site, make_net):
    site, net = make_site(LABELS), make_net(3)
    work, fedavg = (method.start(net, TASK, site) for method in (FedProx(mu=0.4), FedAvg()))
    assert work.loss(ALL).item() == pytest.approx(fedavg.loss(ALL).item(), rel=1e-6)  # no distance yet
    with torch.no_grad():
        net.classifier.bias += torch.tensor([1.0, 2.0, 0.0])
        net.scale += 0.5
    gradient = torch.autograd.grad(work.loss(ALL), net.classifier.bias)[0]
    plain = fedavg.loss(ALL)
    added = work.loss(ALL) - plain
    assert added.item() == pytest.approx(0.4 / 2 * (1 + 4 + 2 * 0.25), rel=1e-5)
    plain_gradient = torch.autograd.grad(plain, net.classifier.bias)[0]
    assert (gradient - plain_gradient).tolist() == pytest.approx([0.4, 0.8, 0.0], abs=1e-6)


@pytest.mark.parametrize("method", [FedProx, SingleLabelFedProx])
def test_a_negative_mu_is_refused(method):
    with refused("job variable mu: expected >= 0, got -1"):
        method(mu=-1)


def test_single_label_fedavg_is_cross_entropy(make_site, flat_net):
    loss = loss_of(SingleLabelFedAvg(), flat_net, make_site(one_hot(CLASSES, 3)))  # 3/13, 9/13, 1/13
    assert loss.item() == pytest.approx(math.log(13) - (3 * math.log(3) + math.log(9)) / 4, rel=1e-6)
    loss.backward()
    assert flat_net.classifier.bias.grad.tolist() == pytest.approx([3 / 13 - 3 / 4, 9 / 13 - 1 / 4, 1 / 13], abs=1e-6)


def test_with_logit_adjustment_it_is_the_warm_up_of_fednoro(make_site, flat_net):
    site = make_site(one_hot(CLASSES, 3))
    loss = loss_of(SingleLabelFedAvg(la=True), flat_net, site)  # 3/4 * 1 : 1/4 * 3 : 0, which is 1/2, 1/2, 0
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    assert loss.item() == loss_of(FedNoRo(), flat_net, site).item()
    loss.backward()
    assert flat_net.classifier.bias.grad[2].item() == 0.0


@pytest.mark.parametrize("la", [True, False])
def test_single_label_fedprox_adds_the_proximal_term_to_the_same_loss(make_site, make_net, la):
    site, net = make_site(one_hot(CLASSES, 3)), make_net(3)
    work, plain = (m.start(net, TASK, site) for m in (SingleLabelFedProx(mu=0.4, la=la), SingleLabelFedAvg(la=la)))
    for other in (work, plain):
        list(other.batches(0))  # draws the views
    assert work.loss(ALL).item() == plain.loss(ALL).item()  # no distance yet
    with torch.no_grad():
        net.classifier.bias += torch.tensor([1.0, 2.0, 0.0])
        net.scale += 0.5
    added = work.loss(ALL) - plain.loss(ALL)
    assert added.item() == pytest.approx(0.4 / 2 * (1 + 4 + 2 * 0.25), rel=1e-5)


def test_a_sample_without_a_label_is_refused_by_single_label_baselines(make_site, make_net):
    for method in (SingleLabelFedAvg(), SingleLabelFedProx()):
        with refused("site-1: train.csv row 3, column label: expected a class name, got a blank"):
            method.start(make_net(3), TASK, make_site(one_hot([0, -1, 1, 0], 3)))


@pytest.mark.parametrize(
    ("method", "apart"),
    [
        (FedAvg(), False),
        (FedAvg(weighted=False), True),
        (FedAvgPL(), False),
        (FedAvgPL(weighted=False), True),
        (FedProx(), False),
        (SingleLabelFedAvg(la=True), False),
        (SingleLabelFedAvg(), True),
    ],
)
def test_patients_count_apart_only_where_no_class_weight_is_made_of_all_of_them(method, apart):
    assert method.patients_apart == apart
