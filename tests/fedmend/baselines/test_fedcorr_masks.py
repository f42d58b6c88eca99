"""FedCorr for masks: the base losses, the dimension and the losses of slices, and pixels that are relabelled."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch_factories import SaysMasks, make_mask_site, make_task, sure_of

from fedmend.baselines.fedcorr_masks import FedCorrMasks, slice_losses, squares
from fedmend.baselines.fedcorr_stages import CORRECT, LOSSES, NOISY, RELABEL, RULE, TURN, USUAL, keep, kept
from fedmend.learning.losses import soft_dice_loss
from fedmend.method import RoundTask
from fedmend.methods.shared.dimensions import local_intrinsic_dimension

SIZE = 8
MASKS = np.zeros((6, SIZE, SIZE), dtype=np.uint8)
MASKS[0, 2:4, 2:4] = MASKS[1, 5, 5] = 1


class Straight(nn.Module):
    """Logit 0 of background and, for lesion, a weight times the grey value less a half."""

    def __init__(self, weight=3.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, images):
        lesion = self.weight * (images[:, 0] * 10 - 0.5)
        return None, torch.stack([torch.zeros_like(lesion), lesion], 1)


def start(folder, *, model=None, stage=TURN, round_num=0, **options):
    site = make_mask_site(folder, MASKS)
    model = Straight() if model is None else model
    return FedCorrMasks(**{"augment": False, **options}).start(model, make_task(stage, round_num), site)


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["ce", "dice"])
def test_mixup_mixes_slices_and_base_losses_by_one_share(tmp_path, base):
    work, index = start(tmp_path, stage=USUAL, base_loss=base), torch.tensor([0, 1, 2, 5])
    generator = work.site.generator(work.task, "mixup")
    share, order = torch.rand((), generator=generator).item(), torch.randperm(4, generator=generator)
    assert order.tolist() != [0, 1, 2, 3]
    numbers = index.double()
    p = torch.sigmoid(3 * ((share * numbers + (1 - share) * numbers[order]) / 10 - 0.5))

    def entropy(marks):
        n, q = marks.sum((1, 2)), p.numpy()
        return -(n * np.log(q) + (64 - n) * np.log(1 - q)).mean() / 64

    def dice(marks):
        return soft_dice_loss(p[:, None, None].expand(4, SIZE, SIZE), torch.from_numpy(marks)).item()

    loss, marks = {"ce": entropy, "dice": dice}[base], MASKS[index.numpy()]
    expected = share * loss(marks) + (1 - share) * loss(marks[order.numpy()])
    assert work.loss(index).item() == pytest.approx(expected, rel=1e-3)


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
    site = make_mask_site(tmp_path, MASKS)
    site.ledger.record("test", 0, np.where(np.arange(6)[:, None, None] == 2, 1, MASKS * 0), np.ones(6))
    report = FedCorrMasks(augment=False).start(SaysMasks(probabilities), make_task(TURN, 2), site).report()
    expected = local_intrinsic_dimension(squares(probabilities[:4])).mean()
    assert report["lid"].dtype == np.float32
    assert report["lid"] == pytest.approx(expected, rel=1e-3)
    marks = MASKS > 0
    marks[2] = True  # in force
    losses = kept(LOSSES, make_task(round_num=3), site)
    np.testing.assert_allclose(losses, slice_losses(probabilities, marks), rtol=1e-4)


# ---- relabelling ----------------------------------------------------------------------------------------------------
APART = [2.0, 0.1, 1.9, 0.1, 0.12, 0.09]  # losses: the first and the third stand out


def ask(folder, *, stage=CORRECT, site=None, **options):
    """A question to a noisy site before round 3; returns site and report."""
    task = RoundTask(stage, 3, 9, role=NOISY, seed=7, training=False)
    if site is None:
        site = make_mask_site(folder, MASKS)
        keep(LOSSES, np.float32(APART), 2, task, site)
    model = sure_of(MASKS, lesion=[(0, 0, 0), (2, 7, 7), (3, 3, 3)], background=[(0, 2, 2), (1, 5, 5)])
    return site, FedCorrMasks(**options).collect(model, task, site)


def changed(site):
    """Pixels gained and lost."""
    change = site.ledger.change()
    return np.argwhere(change > 0).tolist(), np.argwhere(change < 0).tolist()


def test_a_noisy_site_relabels_pixels_of_the_slices_with_the_largest_losses(tmp_path):
    site, report = ask(tmp_path, relabel_ratio=0.5)
    assert report["noise_level"] == pytest.approx(2 / 6)
    assert changed(site) == ([[0, 0, 0]], [[0, 2, 2]])  # int(6 * 1/3 * 0.5) = 1 slice
    assert [(r["rule"], r["round"], r["old"], r["new"]) for r in site.ledger.history()] == [(RULE, 2, 4, 4)]
    both, _ = ask(tmp_path / "both", relabel_ratio=1.0)
    assert changed(both) == ([[0, 0, 0], [2, 7, 7]], [[0, 2, 2]])


def test_at_the_end_of_stage_2_all_slices_are_relabelled_whatever_their_loss(tmp_path):
    site, report = ask(tmp_path, stage=RELABEL)
    assert report == {}
    assert changed(site) == ([[0, 0, 0], [2, 7, 7], [3, 3, 3]], [[0, 2, 2], [1, 5, 5]])
