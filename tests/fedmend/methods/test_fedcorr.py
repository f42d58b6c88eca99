"""FedCorr at a site: mixup, the proximal term, LID, and labels that are corrected."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from factories import refused
from torch_factories import Says, TinyNetwork, make_single_site, make_task

from fedmend.methods.dimensions import local_intrinsic_dimension
from fedmend.methods.fedcorr import (
    CLEAN,
    CORRECT,
    FINETUNE,
    LEVEL,
    LOSSES,
    NOISY,
    RELABEL,
    RULE,
    TURN,
    USUAL,
    FedCorr,
    fingerprint,
)
from fedmend.training import LocalTrainer

# Ten samples; the model is sure of class 1 for 0 to 4, not sure for 5, of class 0 for 6 to 9.
SURE, UNSURE = math.log(8), math.log(1.5)
TABLE = [[0, SURE, 0]] * 5 + [[0, UNSURE, 0]] + [[SURE, 0, 0]] * 4
CLASSES = [0, 0, 1, 1, 0, 0, 0, 1, 0, 0]  # wrong: 0, 1, 4, 7, and 5 of which the model is not sure
ALL = torch.arange(10)


def collecting(stage=CORRECT, role=NOISY, round_num=4):
    return dataclasses.replace(make_task(stage, round_num, 20, role=role), training=False)


def keep_losses(site, losses, round_num=2):
    owner = fingerprint(make_task(), site)
    site.state.save_array(LOSSES, round_num, np.float32(losses), fingerprint=owner)


def labels_of(site):
    return site.ledger.apply(site.data.train.labels).argmax(1).tolist()


# ---- training -------------------------------------------------------------------------------------------------------


def mixed_loss(work):
    """The loss of one batch of all samples, with the share and the partners that were drawn for it."""
    generator = work.site.generator(work.task, "mixup 0")
    share = torch.rand((), generator=generator).item()
    order = torch.randperm(len(ALL), generator=generator)
    images, target = work.batch(ALL)
    logits = work.adjusted(work.model(share * images + (1 - share) * images[order])[1])
    return share * F.cross_entropy(logits, target) + (1 - share) * F.cross_entropy(logits, target[order])


@pytest.mark.parametrize("la", [False, True])
@pytest.mark.parametrize("stage", [TURN, FINETUNE, USUAL])
def test_all_stages_train_with_mixup(tmp_path, stage, la):
    site = make_single_site(tmp_path, CLASSES)
    work = FedCorr(la=la).start(TinyNetwork(3), make_task(stage), site)
    list(work.batches(0))
    loss = work.loss(ALL).item()
    assert loss == pytest.approx(mixed_loss(work).item(), rel=1e-5)
    plain = F.cross_entropy(work.adjusted(work.model(work.batch(ALL)[0])[1]), work.target)
    assert loss != pytest.approx(plain.item(), rel=1e-3)
    assert work.loss(ALL).item() != loss  # the next batch has another share


def moved_loss(site, stage=TURN, round_num=4, **options):
    """What the proximal term adds when one weight has moved by 3 and another by 4."""
    losses = []
    for beta in (0.0, 5.0):
        model = TinyNetwork(3)
        work = FedCorr(beta=beta, **options).start(model, make_task(stage, round_num), site)
        with torch.no_grad():
            model.classifier.bias[0] += 3
            model.norm.weight[1] -= 4
        list(work.batches(0))
        losses.append(work.loss(ALL))
    return (losses[1] - losses[0]).item()


def test_in_a_turn_a_noisy_site_is_pulled_to_the_received_model_by_its_noise_level(tmp_path):
    site = make_single_site(tmp_path, CLASSES)
    assert moved_loss(site) == 0  # no level yet
    site.state.save_turn(LEVEL, 3, 0.4)
    assert moved_loss(site) == pytest.approx(5 * 0.4 * 5, rel=1e-5)
    assert moved_loss(site, USUAL) == moved_loss(site, FINETUNE) == 0
    assert moved_loss(site, round_num=3) == 0  # of a later round than this one


def test_the_pull_has_a_finite_gradient_where_nothing_has_moved(tmp_path):
    site, model = make_single_site(tmp_path, CLASSES), TinyNetwork(3)
    site.state.save_turn(LEVEL, 0, 1.0)
    work = FedCorr().start(model, make_task(TURN, 1), site)
    list(work.batches(0))
    work.loss(ALL).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_after_a_turn_the_mean_lid_leaves_and_the_losses_stay(site_of):
    site, table = site_of(CLASSES), np.random.default_rng(0).normal(size=(10, 3))
    work = FedCorr().start(Says(table), make_task(TURN, 3), site)
    report = work.report()
    p = torch.tensor(table).float().softmax(1).numpy()
    assert set(report) == {"lid"}
    assert report["lid"] == pytest.approx(local_intrinsic_dimension(p).mean(), rel=1e-4)
    kept = site.state.last_array(LOSSES, before=4, fingerprint=fingerprint(work.task, site))
    np.testing.assert_allclose(kept, -np.log(p[np.arange(10), CLASSES]), rtol=1e-5)


@pytest.mark.parametrize("stage", [FINETUNE, USUAL])
def test_later_stages_report_nothing(site_of, stage):
    assert FedCorr().start(Says(TABLE), make_task(stage), site_of(CLASSES)).report() == {}


def test_training_takes_labels_and_prior_in_force(site_of):
    site = site_of(CLASSES)
    assert FedCorr().collect(Says(TABLE), collecting(RELABEL), site) == {}
    work = FedCorr(la=True).start(Says(TABLE), make_task(USUAL, 5), site)
    assert work.target.tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    assert work.adjusted(torch.zeros(1, 3))[0].exp().tolist() == pytest.approx([0.5, 0.5, 0])


def test_a_repeated_round_gives_the_same_model(tmp_path):
    site, weights = make_single_site(tmp_path, CLASSES), []
    for _ in range(2):
        model = TinyNetwork(3)
        LocalTrainer(learning_rate=0.05, local_epochs=2).train(FedCorr().start(model, make_task(TURN), site))
        weights.append(model.classifier.weight.clone())
    assert torch.equal(*weights)


# ---- correction -----------------------------------------------------------------------------------------------------

HIGH = [9.0, 9.1, 0.1, 0.2, 9.2, 9.3, 0.3, 9.4, 0.1, 0.2]  # 0, 1, 4, 5, 7: five of ten stand out


def test_a_noisy_site_relabels_the_largest_losses_of_which_the_model_is_sure(site_of):
    site = site_of(CLASSES)
    keep_losses(site, HIGH)
    report = FedCorr().collect(Says(TABLE), collecting(), site)
    assert (report["noise_level"], report["noise_level"].dtype) == (0.5, np.float32)
    assert labels_of(site) == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]  # int(10 * 0.5 * 0.5) = 2 largest: 7, and 5 is not sure
    row = site.ledger.history()[0]
    assert (row["rule"], row["round"], row["confidence"]) == (RULE, 3, pytest.approx(0.8))
    assert site.state.last_turn(LEVEL, before=4) == (3, 0.5)


def test_ratio_and_confidence_can_be_set(site_of):
    site = site_of(CLASSES)
    keep_losses(site, HIGH)
    FedCorr(relabel_ratio=1.0, confidence=0.4).collect(Says(TABLE), collecting(), site)
    assert labels_of(site) == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]


def test_a_clean_site_has_level_0_and_keeps_its_labels(site_of):
    site, model = site_of(CLASSES), Says(TABLE)
    keep_losses(site, HIGH)
    assert FedCorr().collect(model, collecting(role=CLEAN), site) == {"noise_level": np.float32(0)}
    assert labels_of(site) == CLASSES
    assert site.state.last_turn(LEVEL, before=4) == (3, 0.0)
    assert model.calls == []


@pytest.mark.parametrize(("losses", "level"), [([0.5] * 10, 0.0), (None, 1.0)], ids=["all equal", "none"])
def test_without_losses_that_stand_out_no_label_changes(site_of, losses, level):
    site = site_of(CLASSES)
    if losses:
        keep_losses(site, losses)
    assert FedCorr().collect(Says(TABLE), collecting(), site)["noise_level"] == level
    assert labels_of(site) == CLASSES


def test_losses_of_another_run_do_not_count(site_of):
    site = site_of(CLASSES)
    keep_losses(site, HIGH)
    other = dataclasses.replace(collecting(), seed=8)
    assert FedCorr().collect(Says(TABLE), other, site)["noise_level"] == 1


def test_later_corrections_go_on_from_the_labels_in_force_and_may_take_them_back(site_of):
    site = site_of(CLASSES)
    FedCorr().collect(Says(TABLE), collecting(RELABEL), site)
    assert labels_of(site) == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    FedCorr().collect(Says([[SURE, 0, 0]] * 10), collecting(RELABEL, round_num=9), site)
    assert labels_of(site) == [0] * 10


def test_a_question_that_is_asked_again_leaves_the_labels_as_after_the_first(site_of):
    site = site_of(CLASSES)
    for _ in range(2):
        FedCorr().collect(Says(TABLE), collecting(RELABEL), site)
    assert sum(row["in_force"] for row in site.ledger.history()) == 2 * 4  # 0, 1, 4, 7
    site.ledger.undo(from_round=4)  # the round that follows the question
    assert labels_of(site) == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    site.ledger.undo(from_round=3)
    assert labels_of(site) == CLASSES


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"beta": -1.0}, " beta: expected >= 0, got -1.0"),
        ({"relabel_ratio": 2.0}, "s relabel_ratio, confidence: expected 0 to 1, got 2.0, 0.5"),
        ({"confidence": -0.1}, "s relabel_ratio, confidence: expected 0 to 1, got 0.5, -0.1"),
    ],
)
def test_settings_that_make_no_method_are_refused(settings, sentence):
    with refused(f"job variable{sentence}"):
        FedCorr(**settings)
