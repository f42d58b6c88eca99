import monai.losses  # noqa: F401 - takes seconds, which no test shall seem to take
import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import SaysMasks, make_mask_site, make_task

from fedmend.learning.training import LocalTrainer
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
    FedIAWorkflow,
    uncorrected,
)
from fedmend.repairs.verdicts import REJECT, Verdict

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


# ---- at a site ------------------------------------------------------------------------------------------------------


class Played:
    """A site whose losses of the rounds are given, so that its learning curve is."""

    def __init__(self, folder, method, *, probabilities=None, masks=MASKS):
        self.site, self.method = make_mask_site(folder, masks), method
        self.model = SaysMasks(np.full(masks.shape, 0.1) if probabilities is None else probabilities)

    def round(self, round_num, loss, stage=CORRECTION, best=1.0):
        task = make_task(stage, round_num, 20, first_round=np.int64(T), best_completeness=np.float64(best))
        self.work = self.method.start(self.model, task, self.site)
        self.work._losses = [torch.tensor(loss)]
        return int(self.work.report()["correction"][0])

    def warm_up(self, losses):
        for r, loss in enumerate(losses):
            assert self.round(r, loss, WARMUP) == WAITS
        return self.estimate(len(losses))

    def estimate(self, round_num=T):
        return self.method.collect(self.model, make_task(COMPLETENESS, round_num, 20), self.site)


def loss_of(iou):
    return (1 - iou) / (1 + iou)


FLAT = [loss_of(0.5)] * T


def test_training_lowers_the_dice_loss_of_annotated_slices_and_leaves_empty_ones_alone(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    model = SaysMasks(np.full(MASKS.shape, 0.3))
    before = model.table.detach().clone()
    work = FedIA(augment=False).start(model, make_task(WARMUP), site)
    LocalTrainer(learning_rate=0.1, weight_decay=0).train(work)
    moved = (model.table.detach() - before).numpy()
    assert (moved[MASKS > 0] > 0).all()
    assert (moved[[0, 1, 3]][MASKS[[0, 1, 3]] == 0] < 0).all()
    assert (moved[2] == 0).all()


def test_the_reported_loss_is_the_mean_over_the_batches(tmp_path):
    site = make_mask_site(tmp_path, MASKS, batch_size=2)
    work = FedIA(augment=False).start(SaysMasks(np.full(MASKS.shape, 0.3)), make_task(WARMUP), site)
    batches = [torch.tensor([0, 1]), torch.tensor([2, 3])]
    losses = [work.loss(batch).item() for batch in batches]
    p, pixels = 0.3, SIZE**2
    by_hand = [1 - 2 * p * n / (p * pixels + n) for n in (3, 1, 0, 2)]
    assert losses == pytest.approx([sum(by_hand[:2]) / 2, sum(by_hand[2:]) / 2], abs=1e-5)
    assert work.report()["dice_loss"].tolist() == pytest.approx([sum(by_hand) / 4], abs=1e-5)


def test_the_loss_of_marked_slices_leaves_those_without_a_mark_out(tmp_path):
    site = make_mask_site(tmp_path, MASKS, batch_size=2)
    work = FedIA(augment=False, marked_slices=True).start(SaysMasks(np.full(MASKS.shape, 0.3)), make_task(WARMUP), site)
    for batch in ([0, 1], [2, 3]):
        work.loss(torch.tensor(batch))
    by_hand = [1 - 2 * 0.3 * n / (0.3 * SIZE**2 + n) for n in (3, 1, 2)]
    loss = sum(by_hand) / 3
    assert work.report()["dice_loss"].tolist() == pytest.approx([loss], abs=1e-5)
    assert site.state.load("fedia")["iou"][0] == pytest.approx((1 - loss) / (1 + loss), abs=1e-5)


def test_a_round_on_slices_without_any_mark_has_the_highest_loss(tmp_path):
    site = make_mask_site(tmp_path, planes([], []), batch_size=2)
    work = FedIA(augment=False, marked_slices=True).start(SaysMasks(np.full((2, SIZE, SIZE), 0.3)), make_task(), site)
    work.loss(torch.tensor([0, 1]))
    assert work.report()["dice_loss"].tolist() == [1]


def test_a_loss_of_marked_slices_that_rounding_puts_outside_0_to_1_is_0(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    work = FedIA(marked_slices=True).start(SaysMasks(np.full(MASKS.shape, 0.3)), make_task(WARMUP), site)
    work._losses, work._marked = [torch.tensor(0.25)], [torch.tensor(0.5)]  # 1 - 0.75 / 0.5
    assert work.report()["dice_loss"].tolist() == [0]


def test_training_slices_are_augmented_and_those_of_estimate_and_correction_are_not(tmp_path, monkeypatch):
    augmented = []

    def augment(images, generator):
        augmented.append((len(images), generator.initial_seed()))
        return images + 0.001

    monkeypatch.setattr("fedmend.methods.shared.slices.augment_intensity", augment)
    played = Played(tmp_path, FedIA())
    seen = []
    played.model.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    task = make_task(WARMUP)
    work = played.method.start(played.model, task, played.site)
    plain = played.site.data.train.pixels(torch.tensor([0, 3]))
    work.loss(torch.tensor([0, 3]))
    assert augmented == [(2, played.site.generator(task, "augmentation").initial_seed())]
    assert torch.equal(seen.pop(), plain + 0.001)
    played.warm_up(FLAT)
    played.round(4, loss_of(0.1))
    played.round(5, loss_of(0.1))
    assert played.site.state.load("fedia")["corrected"] == 5
    assert len(augmented) == 1
    assert any(torch.equal(images[0], plain[0]) for images in seen)


def test_completeness_counts_annotated_and_predicted_components_in_eval_mode(tmp_path):
    probabilities = np.full(MASKS.shape, 0.1)
    for slice_number, row, column in [(0, 2, 2), (0, 9, 9), (1, 5, 5), (2, 3, 3), (2, 4, 4), (2, 8, 8), (3, 0, 0)]:
        probabilities[slice_number, row, column] = 0.6
    probabilities[1, 12, 12] = 0.5  # is not above
    played = Played(tmp_path, FedIA(), probabilities=probabilities)
    report = played.warm_up(FLAT)
    # Annotated: two on the first slice, one on the second, one diagonal. Predicted: (3, 3)-(4, 4) is one.
    assert report["lesions"].tolist() == [4, 6]
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


@pytest.mark.parametrize(
    ("share", "line"), [(1.0, (0.095, 0.145)), (0.51, (-1 / 30, 0.2)), (0.5, (0.1, 0.15)), (0.01, (0.1, 0.15))]
)
def test_the_line_may_go_through_the_last_rounds_of_the_warm_up_alone(tmp_path, share, line):
    played = Played(tmp_path, FedIA(line_share=share))
    ious = [0.1, 0.2, 0.45, 0.5] if share == 1 else [0.9, 0.15, 0.4, 0.55]
    report = played.warm_up([loss_of(iou) for iou in ious])
    assert report["iou_line"].tolist() == pytest.approx(line, abs=1e-6)


def test_by_default_the_line_goes_through_the_whole_warm_up(tmp_path):
    report = Played(tmp_path, FedIA()).warm_up([loss_of(iou) for iou in (0.1, 0.2, 0.45, 0.5)])
    assert report["iou_line"].tolist() == pytest.approx((0.095, 0.145), abs=1e-6)


@pytest.mark.parametrize(("missed", "line"), [((2,), (0.864286, -0.110714)), ((0, 1, 3), None), ((0, 1, 2, 3), None)])
def test_a_site_that_missed_rounds_gets_its_line_through_all_it_has_and_none_through_one(tmp_path, missed, line):
    played = Played(tmp_path, FedIA(line_share=0.5))
    for r, iou in enumerate([0.9, 0.7, 0.1, 0.55]):
        if r not in missed:
            played.round(r, loss_of(iou), WARMUP)
    if line is None:
        with refused(f"learning curve: expected at least two rounds, which a line needs, got {T - len(missed)}"):
            played.estimate()
        assert played.round(T, loss_of(0.1)) == WAITS
    else:
        assert played.estimate()["iou_line"].tolist() == pytest.approx(line, abs=1e-5)


def test_a_site_that_missed_the_estimate_takes_none_that_an_earlier_run_of_this_name_left(tmp_path):
    played = Played(tmp_path, FedIA())
    played.warm_up(FLAT)
    assert played.round(4, loss_of(0.1)) == TRIGGERED
    for r in (1, 2, 3):  # of another run, whose first round and estimate it missed
        played.round(r, loss_of(0.5), WARMUP)
    assert played.round(4, loss_of(0.1)) == WAITS
    assert played.site.state.load("fedia")["lesions"] is None


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


def test_a_round_that_a_site_missed_is_none_in_a_row(tmp_path):
    played = Played(tmp_path, FedIA(patience=2))
    played.warm_up(FLAT)
    assert [played.round(r, loss_of(0.0)) for r in (4, 6, 7)] == [WAITS, WAITS, TRIGGERED]


def test_a_site_that_is_nearly_complete_is_spared_by_the_gate(tmp_path):
    probabilities = np.where(MASKS > 0, 0.9, 0.1)  # completeness 1
    played = Played(tmp_path, FedIA(gate=0.8), probabilities=probabilities)
    played.warm_up(FLAT)
    assert played.round(4, loss_of(0.1), best=1.25) == EXEMPT  # 1 / 1.25 is 0.8
    assert played.round(5, loss_of(0.5), CORRECTED, best=1.25) == EXEMPT  # so that stage 3 goes on
    assert played.round(6, loss_of(0.1), best=1.3) == TRIGGERED


@pytest.mark.parametrize("best", [0.5, 0.0])  # 0: nor at any other site
def test_a_site_where_the_model_finds_no_lesion_is_not_spared(tmp_path, best):
    played = Played(tmp_path, FedIA(gate=0.1))
    assert played.warm_up(FLAT)["lesions"].tolist() == [4, 0]
    assert played.round(4, loss_of(0.1), best=best) == TRIGGERED


def test_a_correction_marks_what_the_received_model_is_sure_of_and_unmarks_nothing(tmp_path):
    probabilities = np.full(MASKS.shape, 0.1)
    probabilities[2, 7, 7], probabilities[2, 7, 8], probabilities[1, 5, 6] = 0.9, 0.79, 0.81
    played = Played(tmp_path, FedIA(), probabilities=probabilities)
    played.warm_up(FLAT)
    played.round(4, loss_of(0.1))
    assert not played.site.ledger.added().any()
    played.round(5, loss_of(0.1))
    target = played.work._target.numpy()
    assert np.argwhere(target & (MASKS == 0)).tolist() == [[1, 5, 6], [2, 7, 7]]
    assert target[MASKS > 0].all()
    rows = [(row["old"], row["new"], row["rule"], row["round"]) for row in played.site.ledger.history()]
    assert rows == [(1, 2, "fedia.correction", 5), (0, 1, "fedia.correction", 5)]
    assert [row["confidence"] for row in played.site.ledger.history()] == pytest.approx([0.81, 0.9], abs=1e-3)


def corrected(folder, probabilities, **options):
    """Pixels that a correction adds."""
    played = Played(folder, FedIA(**options), probabilities=probabilities)
    played.warm_up(FLAT)
    played.round(4, loss_of(0.1))
    played.round(5, loss_of(0.1))
    return np.argwhere(played.work._target.numpy() & (MASKS == 0)).tolist()


def test_an_extent_brings_along_what_is_connected_with_a_sure_pixel(tmp_path):
    probabilities = np.full(MASKS.shape, 0.1)
    probabilities[2, 7, 7], probabilities[2, 7, 8], probabilities[2, 3, 3] = 0.9, 0.6, 0.7
    assert corrected(tmp_path / "pixels", probabilities) == [[2, 7, 7]]
    assert corrected(tmp_path / "lesions", probabilities, extent=0.5) == [[2, 7, 7], [2, 7, 8]]


def test_a_prior_on_volume_adds_as_much_as_the_estimate_says_is_missing(tmp_path):
    # Marked: 6 pixels in 4 components. Predicted are 8 components, so a = 1/2 and 6 pixels are missing.
    probabilities = np.where(MASKS > 0, 0.95, 0.1)
    found = [(2, 1, 1), (2, 1, 2), (2, 6, 6), (2, 6, 7), (2, 9, 9), (2, 9, 10), (2, 12, 12), (2, 12, 13)]
    for place, p in zip(found, (0.75, 0.7, 0.65, 0.64, 0.62, 0.61, 0.55, 0.54), strict=True):
        probabilities[place] = p
    assert corrected(tmp_path / "fixed", probabilities) == []
    added = corrected(tmp_path / "prior", probabilities, volume_prior=True)
    assert added == [list(place) for place in found[:6]]


def test_a_prior_on_volume_adds_nothing_where_all_is_marked(tmp_path):
    probabilities = np.where(MASKS > 0, 0.95, 0.1)
    probabilities[2, 0, 0] = 0.45
    assert corrected(tmp_path, probabilities, volume_prior=True) == []


def test_without_an_estimate_a_prior_on_volume_leaves_the_threshold(tmp_path):
    low, later = np.full(MASKS.shape, 0.1), np.full(MASKS.shape, 0.1)
    later[2, 7, 7], later[2, 7, 8] = 0.9, 0.6
    played = Played(tmp_path, FedIA(volume_prior=True), probabilities=low)
    assert played.warm_up(FLAT)["lesions"].tolist() == [4, 0]
    played.round(4, loss_of(0.1))
    played.model = SaysMasks(later)
    played.round(5, loss_of(0.1))
    assert np.argwhere(played.work._target.numpy() & (MASKS == 0)).tolist() == [[2, 7, 7]]


def test_a_correction_that_marks_more_than_can_be_missing_waits_for_a_later_model(tmp_path):
    # 6 pixels are marked: with 114 more that would be a twentieth.
    few, many = np.full(MASKS.shape, 0.1), np.full(MASKS.shape, 0.1)
    few[2].flat[:114], many[2].flat[:115] = 0.9, 0.9
    played = Played(tmp_path, FedIA(), probabilities=many)
    played.warm_up(FLAT)
    assert played.round(4, loss_of(0.1)) == TRIGGERED
    assert played.round(5, loss_of(0.1)) == TRIGGERED
    assert not played.site.ledger.added().any()
    played.model = SaysMasks(few)
    assert played.round(6, loss_of(0.1)) == DONE
    assert played.site.ledger.added().sum() == 114
    assert {row["round"] for row in played.site.ledger.history()} == {6}


def test_pixels_that_people_have_refused_are_not_added_and_take_no_place_of_others(tmp_path):
    sure = np.where(MASKS > 0, 0.95, 0.1)
    sure[2].flat[:115] = 0.9  # more than most_added allows
    sure[2, 15, 15] = 0.85
    for folder, options in (("fixed", {}), ("prior", {"volume_prior": True})):
        played = Played(tmp_path / folder, FedIA(**options), probabilities=sure)
        refused = np.zeros(MASKS.shape, dtype=bool)
        refused[2].flat[:115] = True
        played.site.ledger.record("fedia.correction", 0, refused, np.full(len(MASKS), 0.9))
        played.site.ledger.judge(Verdict(2, 0, REJECT, 0, 115, "fedia.correction", 0, "AB"))
        played.site.ledger.undo()  # of another run
        played.warm_up(FLAT)
        played.round(4, loss_of(0.1))
        assert played.round(5, loss_of(0.1)) == DONE
        assert np.argwhere(played.site.ledger.added()).tolist() == [[2, 15, 15]]
        assert [row["new"] for row in played.site.ledger.history() if row["in_force"]] == [1]


@pytest.mark.parametrize(("most", "flag"), [(20.0, DONE), (0.0, DONE), (19.0, TRIGGERED)])
def test_how_much_a_correction_may_add_is_a_setting_and_0_sets_no_limit(tmp_path, most, flag):
    many = np.full(MASKS.shape, 0.1)
    many[2].flat[:115] = 0.9
    played = Played(tmp_path, FedIA(most_added=most), probabilities=many)
    played.warm_up(FLAT)
    played.round(4, loss_of(0.1))
    assert played.round(5, loss_of(0.1)) == flag


def test_a_site_without_marks_is_corrected_whatever_the_size(tmp_path):
    played = Played(tmp_path, FedIA(), probabilities=np.full(MASKS.shape, 0.9), masks=np.zeros_like(MASKS))
    played.warm_up(FLAT)
    played.round(4, loss_of(0.1))
    assert played.round(5, loss_of(0.1)) == DONE
    assert played.site.ledger.added().all()


def test_a_site_corrects_once(tmp_path):
    probabilities = np.where(MASKS > 0, 0.9, 0.1)
    probabilities[2, 7] = 0.85
    played = Played(tmp_path, FedIA(), probabilities=probabilities)
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
        played = Played(folder, FedIA(most_added=0), probabilities=np.where(MASKS > 0, 0.9, 0.85))
        played.warm_up(FLAT)
        for r in rounds:
            played.site.ledger.undo(from_round=r)  # as the executor does
            played.round(r, loss_of(0.1 if r == 4 else 0.5))
        return played.site.state.load("fedia"), played.site.ledger.added()

    once, repeated = play(tmp_path / "a", [4, 5, 6]), play(tmp_path / "b", [4, 4, 5, 5, 4, 5, 6])
    assert once[0] == repeated[0]
    assert (once[0]["triggered"], once[0]["corrected"]) == (4, 5)
    assert once[1].any()
    np.testing.assert_array_equal(once[1], repeated[1])


def test_a_site_that_joined_after_the_warm_up_has_no_line_and_waits(tmp_path):
    played = Played(tmp_path, FedIA())
    assert played.round(4, loss_of(0.1)) == WAITS


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"line_share": 0}, "job variable line_share: expected above 0 to 1, got 0"),
        ({"gap": -1}, "job variable gap: expected >= 0, got -1"),
        ({"gate": 1.1}, "job variable gate: expected 0 to 1, got 1.1"),
        ({"patience": 0}, "job variable patience: expected at least 1, got 0"),
        ({"min_component": 0}, "job variable min_component: expected at least 1, got 0"),
        ({"threshold": 0.4}, "job variable threshold: expected 0.5 to below 1, got 0.4"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_sentence(options, sentence):
    with refused(sentence):
        FedIA(**options)


# ---- at the server --------------------------------------------------------------------------------------------------


def test_sites_that_have_corrected_or_are_spared_are_waited_for_no_longer():
    memory = FedIAWorkflow.Memory(
        {"d": 0.4, "a": 0.1, "b": 0.2, "c": 0.3, "e": 0.5}, {"a": DONE, "b": EXEMPT, "c": WAITS}
    )
    assert uncorrected(memory, memory.completeness) == ["c", "d", "e"]
    memory.correction |= {"c": DONE, "d": TRIGGERED, "e": DONE}
    assert uncorrected(memory, memory.completeness) == ["d"]


def test_a_warm_up_too_short_for_a_line_is_refused():
    with refused("job variable warmup_rounds: expected at least 2, which a line needs, got 1"):
        FedIAWorkflow(warmup_rounds=1)


def test_a_negative_temperature_is_refused():
    with refused("job variable temperature: expected >= 0, got -1"):
        FedIAWorkflow(warmup_rounds=2, temperature=-1)
