"""FedPU at a site: the risk of positive and unlabelled images."""

import math

import numpy as np
import pytest
import torch
from torch_factories import Says, TinyNetwork, make_single_site, make_task

from fedmend.learning.training import LocalTrainer
from fedmend.methods.fedpu import FedPU
from fedmend.methods.labelsets import LabelSetFedAvg
from fedmend.repairs.verdicts import RELABEL, Verdict

LABELS = [0, 1, -1, 0]  # class 2 is unknown
P = np.array([0.5, 0.3, 0.2])
SAID = np.log([P] * 4)


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """No augmentation."""
    monkeypatch.setattr("fedmend.methods.labelsets.strong", lambda images, generator, *, vertical_flip: images)


def step(method, site, logits, index):
    """Loss of one step and its gradient (N, M) by the logits of the samples."""
    net = Says(logits)
    loss = method.start(net, make_task(), site).loss(torch.tensor(index))
    loss.backward()
    return loss.item(), net.table.grad.numpy()


def other(p):
    """l_c."""
    return -math.log(1 - p + 0.01)


def test_an_unlabelled_image_is_none_of_the_known_classes(site_of):
    loss, gradient = step(FedPU(local_iterations=1), site_of(LABELS), SAID, [0, 1, 2])
    entropy = -(math.log(0.5) + math.log(0.3)) / 2
    assert loss == pytest.approx(entropy + (other(0.5) + other(0.3)) / 2, rel=1e-5)
    # Of the unlabelled image, logits of known classes fall and that of the unknown one rises.
    assert (gradient[2] > 0).tolist() == [True, True, False]
    slopes = (P - [1, 0, 0]) / 2
    assert gradient[0] == pytest.approx(slopes, abs=1e-6)  # labelled images have the cross-entropy alone
    assert not gradient[3].any()


def test_its_weight_is_an_argument_and_without_it_the_row_is_fedavg_to_the_last_digit(site_of):
    site = site_of(LABELS)
    full, half, none = (step(FedPU(local_iterations=1, weight=w), site, SAID, [0, 1, 2]) for w in (1.0, 0.5, 0.0))
    fedavg = step(LabelSetFedAvg(local_iterations=1), site, SAID, [0, 1, 2])
    assert none[0] == fedavg[0]
    assert np.array_equal(none[1], fedavg[1])
    assert half[0] == pytest.approx((full[0] + none[0]) / 2, rel=1e-6)


def test_images_of_known_classes_that_have_no_label_are_taken_back_by_their_prior(site_of):
    # Two and one labelled images, one without a label, a fifth of each class hidden: priors 1/4 * 2 and 1/4 * 1.
    loss = step(FedPU(local_iterations=1, hidden_share=0.2), site_of(LABELS), SAID, [0, 1, 2])[0]
    entropy = -(math.log(0.5) + math.log(0.3)) / 2
    unlabelled = (other(0.5) + other(0.3)) / 2
    taken_back = (0.5 * other(0.5) + 0.25 * other(0.3)) / 2
    elsewhere = 0.5 * 2 * other(0.2) / (2 * 1)
    assert loss == pytest.approx(entropy + unlabelled - taken_back + elsewhere, rel=1e-5)


def test_what_is_taken_back_of_a_class_never_exceeds_its_risk(site_of):
    said = np.log([[0.9, 0.05, 0.05], [0.3, 0.5, 0.2], [0.1, 0.6, 0.3], [0.9, 0.05, 0.05]])
    loss = step(FedPU(local_iterations=1, hidden_share=0.5), site_of(LABELS), said, [0, 1, 2, 3])[0]
    # Both priors are 1, also that of class 0, whose share would be 2. Its part is 0; that of class 1 is not.
    entropy = -(2 * math.log(0.9) + math.log(0.5)) / 3
    second = other(0.6) / 2 - other(0.5) / 3
    elsewhere = (2 * other(0.05) + other(0.2)) / 3
    assert loss == pytest.approx(entropy + second + elsewhere, rel=1e-5)


def test_without_a_prior_the_risk_may_be_below_0(site_of):
    # A class of probability below .01 has l = -ln(1 - p + .01) < 0.
    said = np.log([[0.001, 0.002, 0.997]] * 4)
    loss = step(FedPU(local_iterations=1), site_of(LABELS), said, [2])[0]
    assert loss == pytest.approx((other(0.001) + other(0.002)) / 2, rel=1e-4)
    assert loss < 0


def test_the_prior_of_labelled_images_is_that_of_the_first_class_that_the_site_knows(site_of):
    # Class 0 is unknown; class 1 has two labelled images of three, class 2 one: priors 1/4 * 2 and 1/4 * 1.
    loss = step(FedPU(local_iterations=1, hidden_share=0.2), site_of([1, 2, -1, 1]), SAID, [0])[0]
    assert loss == pytest.approx(-math.log(0.3) + 0.5 * other(0.5), rel=1e-5)


def test_an_unknown_class_that_a_person_gave_an_image_is_not_taken_from_it(site_of):
    site = site_of([*LABELS, -1])
    site.ledger.judge(Verdict(2, 2, RELABEL, -1, 1, reviewer="AB"))
    loss = step(FedPU(local_iterations=1, hidden_share=0.2), site, np.log([P] * 5), [0, 2])[0]
    entropy = -(math.log(0.5) + math.log(0.2)) / 2
    assert loss == pytest.approx(entropy + 0.5 * other(0.2) / 2, rel=1e-5)  # the first image alone is none of class 2


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize(
    ("labels", "index"),
    [
        ([0, 1, -1, -1], [2, 3]),
        ([0, 1, -1, -1], [0, 1]),
        ([0, 1, 2, -1], [0, 1, 2, 3]),
        ([0, 1, 2, 0], [0, 1, 2, 3]),
        ([0, 1, 0, 0], [0, 1, 2, 3]),
    ],
    ids=["no label", "labels alone", "all classes known", "all classes and labels", "all labels"],
)
def test_parts_without_an_image_are_0(site_of, share, labels, index):
    loss, gradient = step(FedPU(local_iterations=1, hidden_share=share), site_of(labels), SAID, index)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()
    if -1 not in labels:
        assert loss == pytest.approx(-np.log(P[labels]).mean(), rel=1e-5)


def trained(folder, labels, seed):
    site, net = make_single_site(folder, labels), TinyNetwork(3)
    torch.manual_seed(seed)
    for r in range(2):
        work = FedPU(local_iterations=4, hidden_share=0.1).start(net, make_task(round_num=r), site)
        loss = LocalTrainer(learning_rate=0.05).train(work)
        assert work.report() == {}
    return loss, net.state_dict()


@pytest.mark.parametrize("labels", [[0, -1], [0, 1], [0] + [-1] * 7])
def test_no_site_is_so_poor_that_a_nan_enters_the_model(tmp_path, labels):
    loss, state = trained(tmp_path, labels, 0)
    assert np.isfinite(loss)
    assert all(v.isfinite().all() for v in state.values())
