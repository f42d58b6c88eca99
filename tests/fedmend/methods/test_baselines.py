import math

import numpy as np
import pytest
import torch

from fedmend.errors import FedMendError
from fedmend.methods.base import RoundTask
from fedmend.methods.baselines import FedAvg, FedAvgPL, FedProx

TASK = RoundTask("train", 0, 4)
LABELS = [[1, 0, -1], [0, 1, -1], [0, -1, -1], [0, 1, -1]]  # class 1 has a blank, class 2 is not annotated
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
    method.prepare(net, TASK, site)
    return method.loss(net, index, TASK, site)


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


def test_fedavg_teaches_a_missing_class_to_be_negative(make_site, flat_net):
    loss_of(FedAvg(), flat_net, make_site(LABELS)).backward()
    assert flat_net.classifier.bias.grad[2].item() == pytest.approx(1 / 4 / 3, rel=1e-6)


def test_the_loss_of_a_short_batch_is_divided_by_its_own_size(make_site, flat_net):
    site = make_site(LABELS)
    single = [loss_of(FedAvg(), flat_net, site, torch.tensor([i])).item() for i in range(4)]
    assert loss_of(FedAvg(), flat_net, site).item() == pytest.approx(np.mean(single), rel=1e-6)


def test_fedprox_adds_half_mu_times_the_squared_distance_to_the_received_model(make_site, make_net):
    site, net = make_site(LABELS), make_net(3)
    method = FedProx(mu=0.4)
    method.prepare(net, TASK, site)
    assert method.loss(net, ALL, TASK, site).item() == pytest.approx(
        loss_of(FedAvg(), net, site).item(), rel=1e-6
    )  # no distance yet
    method.prepare(net, TASK, site)
    with torch.no_grad():
        net.classifier.bias += torch.tensor([1.0, 2.0, 0.0])
        net.scale += 0.5
    gradient = torch.autograd.grad(method.loss(net, ALL, TASK, site), net.classifier.bias)[0]
    plain = FedAvg.loss(method, net, ALL, TASK, site)
    added = method.loss(net, ALL, TASK, site) - plain
    assert added.item() == pytest.approx(0.4 / 2 * (1 + 4 + 2 * 0.25), rel=1e-5)
    plain_gradient = torch.autograd.grad(plain, net.classifier.bias)[0]
    assert (gradient - plain_gradient).tolist() == pytest.approx([0.4, 0.8, 0.0], abs=1e-6)


def test_fedprox_without_mu_is_fedavg(make_site, make_net, play):
    trained = []
    for method in (FedProx(mu=0.0), FedAvg()):
        net = make_net(3)
        play(method, net, TASK, make_site(LABELS))
        trained.append(net.state_dict())
    assert all(torch.equal(trained[0][k], trained[1][k]) for k in trained[0])


def test_a_negative_mu_is_refused():
    with pytest.raises(FedMendError, match=r"mu: expected >= 0, got -1"):
        FedProx(mu=-1)


@pytest.mark.parametrize("method", [FedAvg(), FedAvgPL(), FedProx()], ids=lambda m: type(m).__name__)
def test_baselines_pass_once_over_the_data_report_nothing_and_leave_labels_alone(method, make_site, make_net, play):
    site, net = make_site(LABELS), make_net(3)
    before = site.data.train.labels.tobytes()
    assert play(method, net, TASK, site) == {}
    assert (net.samples(training=True), net.samples(training=False)) == (4, 0)
    assert site.data.train.labels.tobytes() == before
    assert (site.ledger.repairs() == -1).all()
