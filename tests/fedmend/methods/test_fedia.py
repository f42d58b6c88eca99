import math

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.methods.fedia import (
    COMPLETENESS,
    CORRECTED,
    CORRECTION,
    DONE,
    EXEMPT,
    TRIGGERED,
    WAITS,
    WARMUP,
    FedIA,
    completeness,
    completeness_weights,
    count_components,
    fit_line,
    soft_iou,
)
from fedmend.training import LocalTrainer

SIZE = 16
T = 4  # rounds of the warm-up


def planes(*marked):
    """A slice for each argument, a list of (row, column) of its lesion pixels."""
    masks = np.zeros((len(marked), SIZE, SIZE), dtype=np.uint8)
    for mask, pixels in zip(masks, marked, strict=True):
        for row, column in pixels:
            mask[row, column] = 1
    return masks


MASKS = planes([(2, 2), (2, 3), (9, 9)], [(5, 5)], [], [(0, 0), (1, 1)])


# ---- pure functions -------------------------------------------------------------------------------------------------


def test_components_are_counted_slice_by_slice_with_8_or_4_neighbours():
    masks = planes([(0, 0), (1, 1), (5, 5)], [(0, 0)]) > 0  # diagonal neighbours; the same place on the next slice
    assert count_components(masks) == 3
    assert count_components(masks, connectivity=4) == 4


def test_components_below_the_smallest_size_do_not_count():
    masks = planes([(0, 0), (0, 1), (0, 2), (5, 5), (5, 6), (9, 9)]) > 0
    assert [count_components(masks, smallest=n) for n in (1, 2, 3, 4)] == [3, 2, 1, 0]


def test_completeness_is_a_ratio_of_counts_and_never_divides_by_zero():
    assert completeness(np.array([3, 12])) == 0.25
    assert completeness(np.array([3, 2])) == 1.5
    assert completeness(np.array([3, 2]), clip=True) == 1
    assert completeness(np.array([3, 0])) == 0
    assert completeness(np.array([0, 5])) == 0


def test_the_line_is_the_least_squares_fit():
    assert fit_line({0: 0.1, 1: 0.3, 2: 0.2}) == pytest.approx((0.15, 0.05))
    assert fit_line({2: 0.5, 0: 0.1, 1: 0.3}) == pytest.approx((0.1, 0.2))
    assert fit_line({3: 0.4}) == (0.4, 0)
    assert fit_line({}) is None


def test_the_iou_of_a_dice_loss_is_its_jaccard_index():
    assert [soft_iou(loss) for loss in (0, 0.5, 1)] == [1, pytest.approx(1 / 3), 0]


def test_weights_are_exp_of_completeness_over_loss_without_overflow():
    a, b = math.exp(0.5 / 0.5), math.exp(0.2 / 0.4)
    assert completeness_weights({"x": 0.5, "y": 0.2}, {"x": 0.5, "y": 0.4}) == pytest.approx(
        {"x": a / (a + b), "y": b / (a + b)}
    )
    assert completeness_weights({"x": 1.0, "y": 1.0}, {"x": 1e-9, "y": 0.5}) == {"x": 1, "y": 0}
    assert completeness_weights({}, {"x": 0.3, "y": 0.3}) == {"x": 0.5, "y": 0.5}


# ---- at a site ------------------------------------------------------------------------------------------------------


class Played:
    """A site whose losses of the rounds are given, so that its learning curve is."""

    def __init__(self, folder, method, *, probabilities=None, masks=MASKS):
        self.site, self.method = make_mask_site(folder, masks), method
        self.model = SaysMasks(np.full(masks.shape, 0.1) if probabilities is None else probabilities)

    def round(self, round_num, loss, stage=CORRECTION, best=1.0):
        task = make_task(stage, round_num, 20, first_round=np.int64(T), best_completeness=np.float64(best))
        self.site.memory.clear()
        self.method.prepare(self.model, task, self.site)
        self.site.memory["losses"] = [torch.tensor(loss)]
        return int(self.method.report(self.model, task, self.site)["correction"][0])

    def warm_up(self, losses):
        for r, loss in enumerate(losses):
            assert self.round(r, loss, WARMUP) == WAITS
        self.site.memory.clear()
        return self.method.report(self.model, make_task(COMPLETENESS, len(losses), 20), self.site)


def loss_of(iou):
    return (1 - iou) / (1 + iou)


FLAT = [loss_of(0.5)] * T


def test_training_lowers_the_dice_loss_of_annotated_slices_and_leaves_empty_ones_alone(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    model = SaysMasks(np.full(MASKS.shape, 0.3))
    before, method = model.table.detach().clone(), FedIA(augment=False)
    task = make_task(WARMUP)
    method.prepare(model, task, site)
    LocalTrainer(learning_rate=0.1, weight_decay=0).train(model, method, task, site)
    moved = (model.table.detach() - before).numpy()
    assert (moved[MASKS > 0] > 0).all()
    assert (moved[[0, 1, 3]][MASKS[[0, 1, 3]] == 0] < 0).all()
    assert (moved[2] == 0).all()


def test_the_reported_loss_is_the_mean_over_the_batches(tmp_path):
    site = make_mask_site(tmp_path, MASKS, batch_size=2)
    model, method, task = SaysMasks(np.full(MASKS.shape, 0.3)), FedIA(augment=False), make_task(WARMUP)
    method.prepare(model, task, site)
    batches = [torch.tensor([0, 1]), torch.tensor([2, 3])]
    losses = [method.loss(model, batch, task, site).item() for batch in batches]
    p, pixels = 0.3, SIZE**2
    by_hand = [1 - 2 * p * n / (p * pixels + n) for n in (3, 1, 0, 2)]
    assert losses == pytest.approx([sum(by_hand[:2]) / 2, sum(by_hand[2:]) / 2], abs=1e-5)
    report = method.report(model, task, site)
    assert report["dice_loss"].tolist() == pytest.approx([sum(by_hand) / 4], abs=1e-5)


def test_training_slices_are_augmented_and_those_of_estimate_and_correction_are_not(tmp_path, monkeypatch):
    augmented = []

    def augment(images, generator):
        augmented.append((len(images), generator.initial_seed()))
        return images + 0.001

    monkeypatch.setattr("fedmend.methods.fedia.augment_intensity", augment)
    played = Played(tmp_path, FedIA())
    seen = []
    played.model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    task = make_task(WARMUP)
    played.method.prepare(played.model, task, played.site)
    plain = played.site.data.train.pixels(torch.tensor([0, 3]))
    played.method.loss(played.model, torch.tensor([0, 3]), task, played.site)
    assert augmented == [(2, played.site.generator(task, "augmentation").initial_seed())]
    assert torch.equal(seen.pop(), plain + 0.001)
    played.warm_up(FLAT)
    played.round(4, loss_of(0.1))
    played.round(5, loss_of(0.1))
    assert played.site.state.load("fedia")["corrected"] == 5
    assert len(augmented) == 1
    assert any(torch.equal(images[0], plain[0]) for images in seen)


def test_nr_dice_trains_on_its_own_loss_and_reports_dice(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    model, method, task = SaysMasks(np.full(MASKS.shape, 0.3)), FedIA(augment=False, loss="nr_dice"), make_task(WARMUP)
    method.prepare(model, task, site)
    loss = method.loss(model, torch.tensor([1]), task, site).item()
    by_hand = (0.7**1.5 + (SIZE**2 - 1) * 0.3**1.5) / (SIZE**2 * 0.09 + 1)
    assert loss == pytest.approx(by_hand, rel=1e-4)
    dice = 1 - 2 * 0.3 / (0.3 * SIZE**2 + 1)
    assert method.report(model, task, site)["dice_loss"].tolist() == pytest.approx([dice], abs=1e-4)


def test_completeness_counts_annotated_and_predicted_components_in_eval_mode(tmp_path):
    probabilities = np.full(MASKS.shape, 0.1)
    for slice_number, row, column in [(0, 2, 2), (0, 9, 9), (1, 5, 5), (2, 3, 3), (2, 4, 4), (2, 8, 8), (3, 0, 0)]:
        probabilities[slice_number, row, column] = 0.6
    played = Played(tmp_path, FedIA(), probabilities=probabilities)
    report = played.warm_up(FLAT)
    assert report["lesions"].tolist() == [
        4,
        6,
    ]  # two on the first slice, one on the second, one diagonal; (3, 3)-(4, 4) is one
    assert report["iou_line"].tolist() == pytest.approx([0.5, 0])
    assert all(not training for training, _ in played.model.calls)


def test_a_smallest_component_holds_for_annotation_and_prediction(tmp_path):
    probabilities = np.where(MASKS > 0, 0.9, 0.1)
    report = Played(tmp_path, FedIA(min_component=2), probabilities=probabilities).warm_up(FLAT)
    assert report["lesions"].tolist() == [2, 2]


def test_a_fall_behind_the_line_triggers_and_the_next_round_corrects(tmp_path):
    played = Played(tmp_path, FedIA())
    played.warm_up(FLAT)
    assert played.round(4, loss_of(0.4701)) == WAITS  # 0.0299 behind
    assert played.round(5, loss_of(0.4699)) == TRIGGERED
    assert played.round(6, loss_of(0.5)) == DONE
    assert played.round(7, loss_of(0.1)) == DONE


def test_the_line_is_followed_beyond_the_warm_up(tmp_path):
    played = Played(tmp_path, FedIA())
    played.warm_up([loss_of(iou) for iou in (0.1, 0.2, 0.3, 0.4)])
    assert played.round(4, loss_of(0.48)) == WAITS  # expected 0.5
    assert played.round(5, loss_of(0.56)) == TRIGGERED  # expected 0.6


def test_nothing_triggers_in_the_warm_up_or_in_stage_3_or_without_correction(tmp_path):
    played = Played(tmp_path / "a", FedIA())
    played.warm_up(FLAT)
    assert played.round(4, loss_of(0.1), CORRECTED) == WAITS
    other = Played(tmp_path / "b", FedIA(correct=False))
    other.warm_up(FLAT)
    assert other.round(4, loss_of(0.1)) == WAITS


def test_a_relative_gap_is_a_share_of_the_line(tmp_path):
    weak = [loss_of(0.1)] * T
    absolute, relative = Played(tmp_path / "a", FedIA()), Played(tmp_path / "b", FedIA(gap=0.1, relative=True))
    for played in (absolute, relative):
        played.warm_up(weak)
    assert absolute.round(4, loss_of(0.08)) == WAITS
    assert relative.round(4, loss_of(0.091)) == WAITS
    assert relative.round(5, loss_of(0.089)) == TRIGGERED


def test_patience_asks_for_rounds_in_a_row(tmp_path):
    played = Played(tmp_path, FedIA(patience=2))
    played.warm_up([*FLAT[:-1], loss_of(0.3)])  # a bad round of the warm-up does not count
    assert [played.round(r, loss_of(iou)) for r, iou in ((4, 0.0), (5, 0.5), (6, 0.0))] == [WAITS] * 3
    assert played.round(7, loss_of(0.0)) == TRIGGERED


def test_a_site_that_is_nearly_complete_is_spared_by_the_gate(tmp_path):
    probabilities = np.where(MASKS > 0, 0.9, 0.1)  # completeness 1
    played = Played(tmp_path, FedIA(gate=0.8), probabilities=probabilities)
    played.warm_up(FLAT)
    assert played.round(4, loss_of(0.1), best=1.25) == EXEMPT  # 1 / 1.25 is 0.8
    assert played.round(5, loss_of(0.5), CORRECTED, best=1.25) == EXEMPT  # so that stage 3 goes on
    assert played.round(6, loss_of(0.1), best=1.3) == TRIGGERED


def test_a_site_where_the_model_finds_no_lesion_is_not_spared(tmp_path):
    played = Played(tmp_path, FedIA(gate=0.1))
    assert played.warm_up(FLAT)["lesions"].tolist() == [4, 0]
    assert played.round(4, loss_of(0.1), best=0.5) == TRIGGERED


def test_a_correction_marks_what_the_received_model_is_sure_of_and_unmarks_nothing(tmp_path):
    probabilities = np.full(MASKS.shape, 0.1)
    probabilities[2, 7, 7], probabilities[2, 7, 8], probabilities[1, 5, 6] = 0.9, 0.79, 0.81
    played = Played(tmp_path, FedIA(), probabilities=probabilities)
    played.warm_up(FLAT)
    played.round(4, loss_of(0.1))
    assert not played.site.ledger.added().any()
    played.round(5, loss_of(0.1))
    target = played.site.memory["target"].numpy()
    assert np.argwhere(target & (MASKS == 0)).tolist() == [[1, 5, 6], [2, 7, 7]]
    assert target[MASKS > 0].all()
    rows = [(row["old"], row["new"], row["rule"], row["round"]) for row in played.site.ledger.history()]
    assert rows == [(1, 2, "fedia.correction", 5), (0, 1, "fedia.correction", 5)]
    assert [row["confidence"] for row in played.site.ledger.history()] == pytest.approx([0.81, 0.9], abs=1e-3)


def test_a_site_corrects_once(tmp_path):
    played = Played(tmp_path, FedIA(), probabilities=np.where(MASKS > 0, 0.9, 0.85))
    played.warm_up(FLAT)
    for r in range(4, 8):
        played.round(r, loss_of(0.1))
    assert {row["round"] for row in played.site.ledger.history()} == {5}


def test_a_trigger_just_before_stage_3_is_still_corrected(tmp_path):
    played = Played(tmp_path, FedIA())
    played.warm_up(FLAT)
    assert played.round(4, loss_of(0.1)) == TRIGGERED
    assert played.round(5, loss_of(0.1), CORRECTED) == DONE


def test_a_repeated_round_leaves_curve_flag_and_masks_as_if_it_had_run_once(tmp_path):
    def play(folder, rounds):
        played = Played(folder, FedIA(), probabilities=np.where(MASKS > 0, 0.9, 0.85))
        played.warm_up(FLAT)
        for r in rounds:
            played.site.ledger.undo(from_round=r)  # as the executor does
            played.round(r, loss_of(0.1 if r == 4 else 0.5))
        return played.site.state.load("fedia"), played.site.ledger.added()

    once, repeated = play(tmp_path / "a", [4, 5, 6]), play(tmp_path / "b", [4, 4, 5, 5, 4, 5, 6])
    assert once[0] == repeated[0]
    np.testing.assert_array_equal(once[1], repeated[1])


def test_a_site_that_joined_after_the_warm_up_has_no_line_and_waits(tmp_path):
    played = Played(tmp_path, FedIA())
    assert played.round(4, loss_of(0.1)) == WAITS


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"gap": -1},
            "job variables gap, patience, gate, threshold: expected >= 0, >= 1, 0 to 1 and 0.5 to below 1, got -1, 1, 0.0, 0.8",
        ),
        (
            {"threshold": 0.4},
            "job variables gap, patience, gate, threshold: expected >= 0, >= 1, 0 to 1 and 0.5 to below 1, got 0.03, 1, 0.0, 0.4",
        ),
        (
            {"connectivity": 6},
            "job variables connectivity, min_component: expected 4 or 8 and at least 1, got 6, 1",
        ),
        ({"loss": "focal"}, "job variable loss: expected 'dice' or 'nr_dice', got 'focal'"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_sentence(options, sentence):
    with refused(sentence):
        FedIA(**options)
