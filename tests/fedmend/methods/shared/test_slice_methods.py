"""What methods for masks share."""

import math

import numpy as np
import pytest
import torch
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.baselines.nr_dice import NRDice
from fedmend.labels import SEGMENTATION
from fedmend.methods.condist import ConDist
from fedmend.methods.fedia import FedIA
from fedmend.methods.shared.slices import Relabelling, SliceMethod, SliceRound, base_loss

MASKS = np.zeros((4, 8, 8), dtype=np.uint8)
MASKS[0, 2, 3] = MASKS[3, 5, 5] = 1


class SeeingRound(SliceRound):
    """Keeps what its loss is given."""

    def mask_loss(self, logits, marks, index):
        self.given = logits, marks, index
        return logits.sum()


class Seeing(SliceMethod):
    ROUND = SeeingRound


def start(folder, *, augment=False, before=lambda site: None, round_num=1):
    site = make_mask_site(folder, MASKS)
    before(site)
    model = SaysMasks(np.full(MASKS.shape, 0.3))
    return Seeing(augment=augment).start(model, make_task(round_num=round_num), site)


def test_the_loss_is_given_logits_marks_and_slice_numbers(tmp_path):
    work = start(tmp_path)
    loss = work.loss(torch.tensor([3, 1]))
    logits, marks, index = work.given
    assert loss.item() == pytest.approx(logits.sum().item())
    assert (logits.shape, logits.dtype) == ((2, 2, 8, 8), torch.float32)
    assert (marks.shape, marks.dtype) == ((2, 8, 8), torch.float32)
    assert np.argwhere(marks.numpy()).tolist() == [[0, 5, 5]]
    assert index.tolist() == [3, 1]


def test_the_marks_are_those_in_force_when_the_round_starts(tmp_path):
    def repair(site, row=7, round_num=0):
        added = np.zeros(MASKS.shape, dtype=bool)
        added[1, row, row] = True
        site.ledger.record("test.rule", round_num, added, np.ones(4))

    work = start(tmp_path, before=repair)
    repair(work.site, row=6, round_num=1)  # while the round goes on
    work.loss(torch.tensor([0, 1]))
    assert np.argwhere(work.given[1].numpy()).tolist() == [[0, 2, 3], [1, 7, 7]]


def test_grey_values_change_at_random_only_when_asked(tmp_path, monkeypatch):
    seen = []

    def augment(images, generator):
        seen.append(generator.initial_seed())
        return images + 0.001

    monkeypatch.setattr("fedmend.methods.shared.slices.augment_intensity", augment)
    start(tmp_path / "a").loss(torch.tensor([0]))
    assert seen == []
    work, index = start(tmp_path / "b", augment=True), torch.tensor([0, 2])
    work.model.register_forward_pre_hook(lambda _, images: seen.append(images[0]))
    work.loss(index)
    seed, images = seen
    assert seed == work.site.generator(work.task, "augmentation").initial_seed()
    assert torch.equal(images, work.site.data.train.pixels(index) + 0.001)


def test_methods_for_masks_take_masks_and_augment_unless_told_otherwise():
    assert SliceMethod.KINDS == (SEGMENTATION,)
    assert SliceMethod().augment
    assert [m.VOLUMES for m in (SliceMethod, FedIA, ConDist, NRDice)] == [False, True, True, True]


def test_the_base_loss_is_the_cross_entropy_of_all_pixels_or_dice():
    p = torch.tensor([0.9, 0.2, 0.3, 0.4, 0.6, 0.5]).view(1, 2, 3)
    marks = torch.tensor([1.0, 0, 1, 0, 0, 0]).view(1, 2, 3)
    logits = torch.stack([(1 - p).log(), p.log()], 1)
    entropy = -sum(math.log(q) for q in (0.9, 0.8, 0.3, 0.6, 0.4, 0.5)) / 6
    assert base_loss("ce", logits, marks).item() == pytest.approx(entropy, rel=1e-5)
    assert base_loss("dice", logits, marks).item() == pytest.approx(1 - 2 * 1.2 / (2.9 + 2 + 1e-4), rel=1e-5)


def test_a_relabelling_names_again_what_an_earlier_one_changed_and_is_sure_of_what_it_names(tmp_path):
    site = make_mask_site(tmp_path, MASKS)

    def record(round_num, slice_number, after, lesion):
        marks = Relabelling(site)
        marks.put(np.array([slice_number]), after[None], np.full((1, 8, 8), lesion))
        marks.record("test.rule", make_task(round_num=round_num))

    first = MASKS[0] > 0
    first[2, 3], first[0, :2] = False, True
    record(1, 0, first, 0.25)
    assert np.argwhere(site.ledger.change()).tolist() == [[0, 0, 0], [0, 0, 1], [0, 2, 3]]
    second = first.copy()
    second[2, 3] = True
    second[0, 1] = False
    record(2, 0, second, 0.75)
    np.testing.assert_array_equal(site.ledger.apply(MASKS)[0], second)
    one, two = site.ledger.history()
    assert (one["old"], one["new"], two["old"], two["new"]) == (1, 2, 1, 2)
    assert one["confidence"] == pytest.approx((2 * 0.25 + 0.75) / 3)
    assert two["confidence"] == pytest.approx((2 * 0.75 + 0.25) / 3)  # lesion twice, background once
    site.ledger.undo(from_round=2)
    np.testing.assert_array_equal(site.ledger.apply(MASKS)[0], first)
