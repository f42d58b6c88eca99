"""FedCorr for single labels: the loss with logit adjustment, LID and losses of a turn, and new classes."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_factories import Says, TinyNetwork, make_single_site, make_task

from fedmend.baselines.fedcorr import FedCorr
from fedmend.baselines.fedcorr_stages import LOSSES, NOISY, RELABEL, RULE, TURN, USUAL, kept
from fedmend.methods.shared.dimensions import local_intrinsic_dimension
from fedmend.repairs import verdicts
from fedmend.repairs.verdicts import Verdict

# Six samples; the model is sure of class 1 for 0 to 2, not sure for 3, of class 0 for 4 and 5.
SURE, UNSURE = math.log(8), math.log(1.5)
TABLE = [[0, SURE, 0]] * 3 + [[0, UNSURE, 0]] + [[SURE, 0, 0]] * 2
CLASSES = [0, 1, 0, 0, 1, 2]


def relabel(site, table=TABLE, round_num=4):
    task = dataclasses.replace(make_task(RELABEL, round_num, 20, role=NOISY), training=False)
    assert FedCorr().collect(Says(table), task, site) == {}


def in_force(site):
    return site.ledger.apply(site.data.train.labels).tolist()


@pytest.mark.parametrize("la", [False, True])
def test_the_loss_is_mixed_cross_entropy_and_takes_the_prior_with_la(tmp_path, la):
    site = make_single_site(tmp_path, CLASSES)
    work = FedCorr(la=la).start(TinyNetwork(3), make_task(USUAL), site)
    list(work.batches(0))
    generator, index = site.generator(work.task, "mixup"), torch.arange(6)
    share, order = torch.rand((), generator=generator).item(), torch.randperm(6, generator=generator)
    images, target = work.batch(index)
    logits = work.model(share * images + (1 - share) * images[order])[1]
    if la:
        logits = logits + torch.tensor([3 / 6, 2 / 6, 1 / 6]).log()
    mixed = share * F.cross_entropy(logits, target) + (1 - share) * F.cross_entropy(logits, target[order])
    assert work.loss(index).item() == pytest.approx(mixed.item(), rel=1e-5)


def test_after_a_turn_the_mean_lid_leaves_and_the_losses_stay(site_of):
    site, table = site_of(CLASSES), np.random.default_rng(0).normal(size=(6, 3))
    report = FedCorr(la=True).start(Says(table), make_task(TURN, 3), site).report()
    p = torch.tensor(table).float().softmax(1).numpy()  # without the prior
    assert set(report) == {"lid"}
    assert report["lid"] == pytest.approx(local_intrinsic_dimension(p).mean(), rel=1e-4)
    assert report["lid"].dtype == np.float32
    np.testing.assert_allclose(kept(LOSSES, make_task(round_num=4), site), -np.log(p[np.arange(6), CLASSES]), rtol=1e-5)
    assert kept(LOSSES, make_task(round_num=3), site) is None


def test_samples_of_which_the_model_is_sure_get_its_class_and_training_takes_them_and_their_prior(site_of):
    site = site_of(CLASSES)
    relabel(site)
    work = FedCorr(la=True).start(Says(TABLE), make_task(USUAL, 5), site)
    assert work.target.tolist() == [1, 1, 1, 0, 0, 0]
    assert work.adjusted(torch.zeros(1, 3))[0].exp().tolist() == pytest.approx([0.5, 0.5, 0])
    assert [row["confidence"] for row in site.ledger.history()] == pytest.approx([0.8] * 2 * 4)  # 0, 2, 4, 5


def test_the_losses_of_a_turn_are_those_of_the_labels_in_force(site_of):
    site = site_of(CLASSES)
    relabel(site)
    FedCorr().start(Says(TABLE), make_task(TURN, 5), site).report()
    expected = [-math.log(0.8)] * 3 + [math.log(3.5)] + [-math.log(0.8)] * 2
    np.testing.assert_allclose(kept(LOSSES, make_task(round_num=6), site), expected, rtol=1e-5)


def test_a_class_that_a_person_gives_is_not_corrected_and_can_be_taken_back(site_of):
    site = site_of([0, 0])
    given = site.ledger.judge(Verdict(0, 2, verdicts.RELABEL, 0, 1, reviewer="AB"), seen="")
    relabel(site, [[0, SURE, 0]] * 2)
    assert in_force(site) == [[0, 0, 1], [0, 1, 0]]
    assert {entry.sample for entry in site.ledger.in_force()} == {1}
    site.ledger.judge(Verdict(0, 2, verdicts.WITHDRAW, 0, 1, reviewer="AB"), seen=given.name)
    assert in_force(site) == [[1, 0, 0], [0, 1, 0]]


def test_a_rejected_class_is_not_given_again_but_another_may_be_which_stays_when_the_rejection_is_taken_back(site_of):
    site = site_of([0, 0])
    relabel(site, [[0, SURE, 0]] * 2)
    said = site.ledger.judge(Verdict(0, 1, verdicts.REJECT, 0, 1, RULE, reviewer="AB"), seen="")
    entries = len(site.ledger.in_force())
    relabel(site, [[0, SURE, 0]] * 2, round_num=6)
    assert (in_force(site), len(site.ledger.in_force())) == ([[1, 0, 0], [0, 1, 0]], entries)
    relabel(site, [[0, 0, SURE]] * 2, round_num=8)
    assert in_force(site) == [[0, 0, 1], [0, 0, 1]]
    site.ledger.judge(Verdict(0, 1, verdicts.WITHDRAW, 0, 1, reviewer="AB"), seen=said.name)
    assert in_force(site) == [[0, 0, 1], [0, 0, 1]]
