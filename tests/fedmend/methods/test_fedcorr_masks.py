import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from factories import refused
from torch import nn
from torch_factories import SaysMasks, make_mask_site, make_task, sure_of

from fedmend.losses import soft_dice_loss
from fedmend.method import RoundTask
from fedmend.methods.dimensions import local_intrinsic_dimension
from fedmend.methods.fedcorr_masks import (
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
    FedCorrMasks,
    slice_losses,
    squares,
)
from fedmend.training import LocalTrainer

SIZE = 8
MASKS = np.zeros((6, SIZE, SIZE), dtype=np.uint8)
MASKS[0, 2:4, 2:4] = MASKS[1, 5, 5] = 1
ALL = torch.arange(6)


class Straight(nn.Module):
    """Logit 0 of background and, for lesion, a weight times the grey value less a half."""

    def __init__(self, weight=3.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, images):
        lesion = self.weight * (images[:, 0] * 10 - 0.5)
        return None, torch.stack([torch.zeros_like(lesion), lesion], 1)


def start(folder, *, model=None, stage=TURN, round_num=0, level=None, **options):
    site = make_mask_site(folder, MASKS)
    if level is not None:
        site.state.save_turn(LEVEL, round_num - 1, level)
    model = Straight() if model is None else model
    return FedCorrMasks(**{"augment": False, **options}).start(model, make_task(stage, round_num), site)


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["ce", "dice"])
@pytest.mark.parametrize("stage", [TURN, FINETUNE, USUAL])
def test_without_mixup_and_level_a_step_is_the_base_loss_digit_by_digit(tmp_path, base, stage):
    model = SaysMasks(np.random.default_rng(0).random(MASKS.shape))
    work = start(tmp_path, model=model, stage=stage, round_num=1, level=0.0, mixup=False, base_loss=base)
    index = torch.tensor([1, 0, 3])
    logits, marks = model(work.site.data.train.pixels(index))[1], torch.from_numpy(MASKS[index.numpy()])
    plain = F.cross_entropy(logits, marks.long()) if base == "ce" else soft_dice_loss(logits.softmax(1)[:, 1], marks)
    assert torch.equal(work.loss(index), plain)


@pytest.mark.parametrize("stage", [TURN, FINETUNE, USUAL])
def test_mixup_mixes_slices_and_losses_by_one_share(tmp_path, stage):
    work, index = start(tmp_path, stage=stage), torch.tensor([0, 1, 2, 5])
    generator = work.site.generator(work.task, "mixup")
    share, order = torch.rand((), generator=generator).item(), torch.randperm(4, generator=generator)
    assert order.tolist() != [0, 1, 2, 3]
    numbers = index.double()
    p = torch.sigmoid(3 * ((share * numbers + (1 - share) * numbers[order]) / 10 - 0.5)).tolist()
    sizes = [int(MASKS[i].sum()) for i in index]

    def entropy(n, q):
        return -(n * math.log(q) + (64 - n) * math.log(1 - q)) / 64

    own = np.mean([entropy(n, q) for n, q in zip(sizes, p, strict=True)])
    other = np.mean([entropy(sizes[j], q) for j, q in zip(order, p, strict=True)])
    assert work.loss(index).item() == pytest.approx(share * own + (1 - share) * other, rel=1e-3)


def test_the_pull_is_beta_times_level_times_the_distance_and_finite_at_0(tmp_path):
    work = start(tmp_path, round_num=1, level=0.25, mixup=False, beta=4.0)
    plain = start(tmp_path / "plain", round_num=1, level=0.0, mixup=False)
    first = work.loss(ALL)
    first.backward()
    assert torch.isfinite(work.model.weight.grad)
    assert first.item() == pytest.approx(plain.loss(ALL).item(), abs=1e-5)
    for each in (work, plain):
        with torch.no_grad():
            each.model.weight += 0.5
    assert (work.loss(ALL) - plain.loss(ALL)).item() == pytest.approx(4 * 0.25 * 0.5, rel=1e-4)


@pytest.mark.parametrize("stage", [FINETUNE, USUAL])
def test_nothing_pulls_after_stage_1(tmp_path, stage):
    work = start(tmp_path, stage=stage, round_num=1, level=1.0, mixup=False)
    with torch.no_grad():
        work.model.weight += 0.5
    plain = start(tmp_path / "plain", stage=stage, model=Straight(3.5), mixup=False)
    assert torch.equal(work.loss(ALL), plain.loss(ALL))


# ---- what a turn leaves ---------------------------------------------------------------------------------------------


def test_probabilities_are_averaged_to_16_by_16_squares():
    lesion = np.random.default_rng(0).random((3, 32, 32), dtype=np.float32)
    found = squares(lesion)
    assert found.shape == (3, 256)
    assert found[1, 0] == pytest.approx(lesion[1, :2, :2].mean())
    assert found[2, 17] == pytest.approx(lesion[2, 2:4, 2:4].mean())
    assert squares(lesion[:0]).shape == (0, 256)


def test_the_loss_of_a_slice_is_its_mean_cross_entropy_and_finite():
    lesion = np.array([[[0.9, 0.2]], [[1.0, 0.0]]], dtype=np.float32)
    marks = np.array([[[True, False]], [[False, True]]])
    first, second = slice_losses(lesion, marks)
    assert first == pytest.approx(-(math.log(0.9) + math.log(0.8)) / 2, rel=1e-5)
    assert second == pytest.approx(-math.log(1e-7), rel=1e-4)


def test_a_turn_reports_the_mean_dimension_of_slices_that_are_not_blank_and_keeps_losses(tmp_path):
    probabilities = np.random.default_rng(1).random(MASKS.shape).astype(np.float32)
    probabilities[4] = 0.04
    probabilities[5] = 0.01
    work = start(tmp_path, model=SaysMasks(probabilities), round_num=2)
    work.site.ledger.record("test", 0, np.where(np.arange(6)[:, None, None] == 2, 1, MASKS * 0), np.ones(6))
    work = FedCorrMasks(augment=False).start(work.model, work.task, work.site)
    report = work.report()
    expected = local_intrinsic_dimension(squares(probabilities[:4])).mean()
    assert report["lid"].dtype == np.float32
    assert report["lid"] == pytest.approx(expected, rel=1e-3)
    marks = MASKS > 0
    marks[2] = True  # in force
    round_num, losses = work.site.state.last_turn(LOSSES, before=9)
    assert round_num == 2
    np.testing.assert_allclose(losses, slice_losses(probabilities, marks), rtol=1e-4)


def test_blank_predictions_alone_have_dimension_0(tmp_path):
    assert start(tmp_path, model=SaysMasks(np.full(MASKS.shape, 0.01))).report() == {"lid": 0}


@pytest.mark.parametrize("stage", [FINETUNE, USUAL])
def test_nothing_leaves_after_stage_1_but_the_weights(tmp_path, stage):
    work = start(tmp_path, stage=stage)
    assert work.report() == {}
    assert work.site.state.last_turn(LOSSES, before=9) is None


# ---- relabelling ----------------------------------------------------------------------------------------------------
APART = [2.0, 0.1, 1.9, 0.1, 0.12, 0.09]  # losses: the first and the third stand out


def ask(folder, *, stage=CORRECT, role=NOISY, losses=APART, model=None, site=None, **options):
    """A question before round 3; returns site and report."""
    if site is None:
        site = make_mask_site(folder, MASKS)
        if losses is not None:
            site.state.save_turn(LOSSES, 2, torch.tensor(losses))
    model = model or sure_of(MASKS, lesion=[(0, 0, 0), (2, 7, 7), (3, 3, 3)], background=[(0, 2, 2), (1, 5, 5)])
    task = RoundTask(stage, 3, 9, role=role, seed=7, training=False)
    return site, FedCorrMasks(**options).collect(model, task, site)


def changed(site):
    """Pixels gained and lost."""
    change = site.ledger.change()
    return np.argwhere(change > 0).tolist(), np.argwhere(change < 0).tolist()


def test_a_clean_site_has_level_0_and_changes_nothing(tmp_path):
    site, report = ask(tmp_path, role=CLEAN)
    assert report == {"noise_level": 0}
    assert changed(site) == ([], [])
    assert site.state.last_turn(LEVEL, before=3) == (2, 0.0)


def test_a_noisy_site_relabels_pixels_of_the_slices_with_the_largest_losses(tmp_path):
    site, report = ask(tmp_path, relabel_ratio=0.5)
    assert report["noise_level"] == pytest.approx(2 / 6)
    assert report["noise_level"].dtype == np.float32
    assert changed(site) == ([[0, 0, 0]], [[0, 2, 2]])  # int(6 * 1/3 * 0.5) = 1 slice
    assert site.state.last_turn(LEVEL, before=3) == (2, pytest.approx(2 / 6))
    assert [(r["rule"], r["round"], r["old"], r["new"]) for r in site.ledger.history()] == [(RULE, 2, 4, 4)]
    both, _ = ask(tmp_path / "both", relabel_ratio=1.0)
    assert changed(both) == ([[0, 0, 0], [2, 7, 7]], [[0, 2, 2]])


def test_with_a_ratio_of_0_a_noisy_site_relabels_nothing(tmp_path):
    site, report = ask(tmp_path, relabel_ratio=0)
    assert report["noise_level"] == pytest.approx(2 / 6)
    assert site.ledger.history() == []


def test_the_confidence_decides_which_pixels_are_relabelled(tmp_path):
    assert changed(ask(tmp_path, relabel_ratio=1.0, confidence=0.91)[0]) == ([], [])


def test_equal_losses_give_level_0(tmp_path):
    site, report = ask(tmp_path, losses=[0.5] * 6)
    assert report == {"noise_level": 0}
    assert changed(site) == ([], [])


def test_a_noisy_site_without_a_turn_has_level_1_and_relabels_nothing(tmp_path):
    site, report = ask(tmp_path, losses=None)
    assert report == {"noise_level": 1}
    assert changed(site) == ([], [])


def test_at_the_end_of_stage_2_all_slices_are_relabelled_whatever_their_loss(tmp_path):
    site, report = ask(tmp_path, stage=RELABEL)
    assert report == {}
    assert changed(site) == ([[0, 0, 0], [2, 7, 7], [3, 3, 3]], [[0, 2, 2], [1, 5, 5]])


def test_a_question_that_is_asked_again_leaves_the_ledger_as_if_it_had_been_asked_once(tmp_path):
    site, _ = ask(tmp_path, relabel_ratio=1.0)
    once, target = changed(site), site.ledger.apply(MASKS)
    again, report = ask(tmp_path, relabel_ratio=1.0, site=site)
    assert changed(again) == once
    np.testing.assert_array_equal(site.ledger.apply(MASKS), target)
    assert report["noise_level"] == pytest.approx(2 / 6)
    assert sum(r["in_force"] for r in site.ledger.history()) == 2


def test_a_repaired_site_trains_on_its_repairs_with_its_level(tmp_path):
    site, _ = ask(tmp_path, relabel_ratio=1.0)
    work = FedCorrMasks().start(Straight(), make_task(TURN, 3), site)
    assert np.argwhere(work._target.numpy() & (MASKS == 0)).tolist() == [[0, 0, 0], [2, 7, 7]]
    assert work._pull == pytest.approx(5 * 2 / 6)


def test_a_round_is_determined_by_the_seed(tmp_path):
    weights = []
    for folder in ("a", "b"):
        work = start(tmp_path / folder, round_num=1, level=0.5, augment=True)
        LocalTrainer(learning_rate=0.1).train(work)
        weights.append(work.model.weight.item())
    assert weights[0] == weights[1] != 3.0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"beta": -1}, "job variable beta: expected >= 0, got -1"),
        ({"relabel_ratio": 2}, "job variable relabel_ratio: expected 0 to 1, got 2"),
        ({"confidence": 0.4}, "job variable confidence: expected 0.5 to 1, got 0.4"),
        ({"base_loss": "focal"}, "job variable base_loss: expected one of ['ce', 'dice'], got 'focal'"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_sentence(options, sentence):
    with refused(sentence):
        FedCorrMasks(**options)
