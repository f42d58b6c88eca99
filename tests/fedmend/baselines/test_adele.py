import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from factories import refused
from federation_factories import Run, dice_counts, failing, plain_answers
from torch import nn
from torch_factories import SaysMasks, make_mask_site, make_task, sure_of

from fedmend.baselines import adele
from fedmend.baselines.adele import (
    CURVE,
    RULE,
    Adele,
    AdeleWorkflow,
    MeanOfScales,
    Progress,
    disagreement,
    from_first_jump,
    scaled_logits,
    slowed,
    spared,
    turning_point,
)
from fedmend.kinds.segmentation import mask_repair_counts
from fedmend.learning.losses import soft_dice_loss
from fedmend.messages import TRAIN
from fedmend.methods.shared.slices import DONE, TRIGGERED, WAITS

SIZE = 8
MASKS = np.zeros((4, SIZE, SIZE), dtype=np.uint8)
MASKS[0, 2:4, 2:4] = MASKS[1, 5, 5] = 1
ALL = torch.arange(4)


class BySize(nn.Module):
    """Logit 0 of background and, for lesion, a number that depends on the edge of the slices; ``seen`` notes edges."""

    def __init__(self, lesion):
        super().__init__()
        self.lesion, self.seen = lesion, []
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, images):
        size = images.shape[2]
        self.seen.append(size)
        z = torch.zeros(len(images), 2, size, size)
        z[:, 1] = self.lesion[size]
        return None, z * self.weight


EDGES = {16: 1.0, 8: -0.5, 24: 0.25}  # of slices of 8 at scales 2, 1 and 3; scale 0.7 would be 8 again


@pytest.fixture
def three_sizes(monkeypatch):
    """Slices of 8 x 8 are seen at 16, 8 and 24."""
    monkeypatch.setattr(adele, "SCALES", (2.0, 1.0, 3.0))
    monkeypatch.setattr(adele.scaled_logits, "__defaults__", ((2.0, 1.0, 3.0),))
    return EDGES


def sigmoid(z):
    return 1 / (1 + math.exp(-z))


def start(folder, *, model=None, round_num=0, rounds=20, curve=None, corrected=(), **options):
    """The first round after a curve of these IoU."""
    site = make_mask_site(folder, MASKS)
    if curve is not None:
        site.state.save_turn(CURVE, round_num - 1, {"iou": list(curve), "corrected": list(corrected)})
    model = SaysMasks(np.full(MASKS.shape, 0.3)) if model is None else model
    task = make_task(round_num=round_num, total_rounds=rounds)
    return Adele(**{"augment": False, **options}).start(model, task, site)


# ---- three scales ---------------------------------------------------------------------------------------------------


def test_slices_are_seen_at_three_scales_whose_edges_are_multiples_of_8():
    model = BySize({32: 0.1, 48: 0.2, 72: 0.3})
    parts = scaled_logits(model, torch.zeros(2, 1, 48, 48))
    assert model.seen == [32, 48, 72]
    assert [part.shape for part in parts] == [(2, 2, 48, 48)] * 3
    assert [part[0, 1, 7, 9].item() for part in parts] == pytest.approx([0.1, 0.2, 0.3])


def test_scaled_logits_come_back_with_aligned_corners():
    class Corner(nn.Module):
        def forward(self, images):
            return None, torch.cat([images, images], 1)

    image = torch.arange(64.0).view(1, 1, 8, 8)
    (part,) = scaled_logits(Corner(), image, [3.0])
    assert part[0, 0, 0, 0] == pytest.approx(0, abs=1e-5)
    assert part[0, 0, -1, -1] == pytest.approx(63, abs=1e-4)
    assert part[0, 1, 3, 4] == pytest.approx(28, abs=1)


def test_the_disagreement_is_the_divergence_from_the_mean_by_hand():
    lesion = [torch.tensor([[0.9, 0.01]]), torch.tensor([[0.6, 0.01]]), torch.tensor([[0.3, 0.01]])]
    logits = [torch.stack([(1 - p).log(), p.log()]).view(1, 2, 1, 2) for p in lesion]
    divergence = sum(p * math.log(p / 0.6) + (1 - p) * math.log((1 - p) / 0.4) for p in (0.9, 0.6, 0.3))
    assert disagreement(logits).tolist() == pytest.approx([divergence / 2], rel=1e-4)  # the second pixel: 0


def test_a_slice_of_which_nothing_is_sure_does_not_count():
    unsure = torch.tensor([0.7, 0.8]).view(2, 1, 1, 1)  # mean probabilities of lesion, two slices
    logits = [torch.cat([1 - p, p], 1).log() for p in (unsure - 0.1, unsure, unsure + 0.1)]
    first, second = disagreement(logits).tolist()
    assert first == 0
    assert second > 0.01


def test_the_mean_is_kept_from_0_and_1_in_the_divergence():
    logits = [torch.tensor([50.0, -50.0]).view(1, 2, 1, 1)] * 3
    assert disagreement(logits).item() == pytest.approx(3 * -math.log(0.999), rel=1e-3)


def test_equal_answers_at_all_scales_do_not_disagree():
    logits = [torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))] * 3
    assert disagreement(logits).abs().max() < 1e-6


def test_the_predictor_is_the_mean_of_the_probabilities(three_sizes):
    model = MeanOfScales(BySize(three_sizes).eval(), adele.SCALES)
    assert not model.training
    lesion = model(torch.zeros(1, 1, 8, 8))[1].softmax(1)[0, 1]
    assert lesion.flatten().tolist() == pytest.approx([np.mean([sigmoid(z) for z in EDGES.values()])] * 64)


def test_the_loss_is_a_third_of_all_cross_entropies_and_of_the_weighted_disagreement(tmp_path, three_sizes):
    sizes = {16: 3.0, 8: 2.0, 24: 4.0}
    p = [sigmoid(z) for z in sizes.values()]
    mean = np.mean(p)
    assert mean > adele.CERTAIN
    entropy = sum(-(4 * math.log(q) + 60 * math.log(1 - q)) / 64 for q in p)
    divergence = sum(q * math.log(q / mean) + (1 - q) * math.log((1 - q) / (1 - mean)) for q in p)
    work = start(tmp_path, model=BySize(sizes), consistency=0.5)
    assert work.loss(torch.tensor([0])).item() == pytest.approx((entropy + 0.5 * divergence) / 3, rel=1e-5)
    assert work.model.seen == [16, 8, 24]


@pytest.mark.parametrize("base", ["ce", "dice"])
def test_without_consistency_a_step_is_the_base_loss_of_one_scale_digit_by_digit(tmp_path, base):
    model = SaysMasks(np.random.default_rng(0).random(MASKS.shape))
    work = start(tmp_path, model=model, consistency=0, base_loss=base)
    index = torch.tensor([1, 0, 3])
    logits, marks = model(work.site.data.train.pixels(index))[1], torch.from_numpy(MASKS[index.numpy()])
    plain = F.cross_entropy(logits, marks.long()) if base == "ce" else soft_dice_loss(logits.softmax(1)[:, 1], marks)
    assert torch.equal(work.loss(index), plain)


def test_all_scales_take_the_dice_loss_where_it_is_the_base_loss(tmp_path, three_sizes):
    p = [sigmoid(z) for z in EDGES.values()]
    work = start(tmp_path, model=BySize(EDGES), base_loss="dice", consistency=1e-9)
    dice = sum(1 - 2 * 4 * q / (64 * q + 4 + 1e-4) for q in p) / 3
    assert work.loss(torch.tensor([0])).item() == pytest.approx(dice, rel=1e-5)


# ---- the learning curve ---------------------------------------------------------------------------------------------


def test_the_iou_pools_the_pixels_of_a_round_at_scale_1(tmp_path):
    probabilities = np.full(MASKS.shape, 0.1)
    probabilities[0, 2, 2:5] = probabilities[2, 0, 0] = 0.9  # two hits, two false alarms; three pixels missed
    for consistency in (0, 1):
        work = start(tmp_path / str(consistency), model=SaysMasks(probabilities), consistency=consistency)
        work.loss(torch.tensor([0, 2]))
        work.loss(torch.tensor([1, 3]))
        assert work.report()["correction"].tolist() == [WAITS]
        assert work.site.state.last_turn(CURVE, before=9) == (0, {"iou": [2 / 7], "corrected": []})


def test_the_iou_of_a_round_without_lesion_is_0(tmp_path):
    work = start(tmp_path)
    work.loss(torch.tensor([2, 3]))
    work.report()
    assert work.site.state.last_turn(CURVE, before=9)[1]["iou"] == [0]


def test_rounds_before_the_first_jump_are_cut_off_and_none_without_one():
    assert from_first_jump([0.1, 0.12, 0.3, 0.3, 0.5]) == [0.12, 0.3, 0.3, 0.5]
    assert from_first_jump([0.1, 0.15, 0.2]) == [0.1, 0.15, 0.2]
    assert from_first_jump([]) == []


def exponential(points, height=0.6, length=8.0):
    return [height * (1 - math.exp(-x / length)) for x in range(1, points + 1)]


def test_the_slope_of_a_curve_has_fallen_by_90_percent_where_the_formula_says():
    assert turning_point(exponential(20), 300) == 20  # exp(-(x - 1) / 8) < 0.1 from 19.4 on
    assert turning_point(exponential(20, length=4), 300) == 11  # from 10.2
    assert turning_point(exponential(20), 20) is None


def test_a_curve_slows_when_the_site_has_come_so_far():
    assert not slowed(exponential(19), 300)
    assert slowed(exponential(20), 300)


def test_a_curve_that_goes_on_rising_does_not_slow():
    assert not slowed([0.02 * x for x in range(1, 41)], 300)


def test_fewer_than_eight_points_do_not_slow():
    flat = exponential(7, length=0.5)
    assert turning_point(flat, 300) <= 7
    assert not slowed(flat, 300)
    assert slowed(exponential(8, length=0.5), 300)


def test_a_fit_that_fails_does_not_fire(monkeypatch):
    def fails(*args, **options):
        raise RuntimeError

    monkeypatch.setattr("scipy.optimize.curve_fit", fails)
    assert turning_point(exponential(30), 300) is None
    assert not slowed(exponential(30), 300)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_flat_curve_gives_no_error(value):
    assert slowed([value] * 9, 2) in (True, False)


def test_later_points_weigh_more(monkeypatch):
    given = {}

    def fit(f, x, y, **options):
        given.update(options, x=x)
        return (0.6, 1.0, 8.0), None

    monkeypatch.setattr("scipy.optimize.curve_fit", fit)
    assert turning_point(exponential(9), 300) == 20
    assert given["x"].tolist() == list(range(1, 10))
    assert given["sigma"][[0, -1]].tolist() == pytest.approx([1, 0.1])
    np.testing.assert_allclose(given["sigma"][1:] / given["sigma"][:-1], 0.1 ** (1 / 8))


# ---- the correction -------------------------------------------------------------------------------------------------
SLOW = exponential(9, length=0.5)


def marked(work):
    """Pixels that the round trains on against the site's own annotation: those gained and those lost."""
    target = work._target.numpy()
    return np.argwhere(target & (MASKS == 0)).tolist(), np.argwhere(~target & (MASKS > 0)).tolist()


def test_a_correction_marks_and_unmarks_what_the_received_model_is_sure_of(tmp_path):
    model = sure_of(MASKS, lesion=[(1, 0, 0), (2, 7, 7)], background=[(0, 2, 2), (3, 3, 3)])
    work = start(tmp_path, model=model, round_num=9, curve=SLOW)
    assert marked(work) == ([[1, 0, 0], [2, 7, 7]], [[0, 2, 2]])
    assert all(not training for training, _ in model.calls)
    rows = [(r["old"], r["new"], r["rule"], r["round"]) for r in work.site.ledger.history()]
    assert rows == [(4, 3, RULE, 9), (1, 2, RULE, 9), (0, 1, RULE, 9)]
    assert [r["confidence"] for r in work.site.ledger.history()] == pytest.approx([0.9] * 3, rel=1e-4)
    assert work.report()["correction"].tolist() == [DONE]
    counts = mask_repair_counts(work.site.ledger.change(), MASKS, None)
    assert {name: int(n[0]) for name, n in counts.items()} == {"positive": 2, "negative": 1, "untagged": 0}


def test_the_threshold_decides_what_is_sure(tmp_path):
    work = start(tmp_path, model=sure_of(MASKS, lesion=[(2, 7, 7)]), round_num=9, curve=SLOW, threshold=0.91)
    assert marked(work) == ([], [])
    other = start(tmp_path / "b", model=sure_of(MASKS, lesion=[(2, 7, 7)]), round_num=9, curve=SLOW, threshold=0.89)
    assert marked(other)[0] == [[2, 7, 7]]


def test_slices_without_a_mark_can_be_left_alone(tmp_path):
    model = sure_of(MASKS, lesion=[(1, 0, 0), (2, 7, 7)])
    assert marked(start(tmp_path, model=model, round_num=9, curve=SLOW, skip_unmarked=True)) == ([[1, 0, 0]], [])


def test_a_slice_that_would_lose_more_than_half_of_its_lesion_and_be_nearly_empty_is_spared(tmp_path):
    square = [(0, 2, 2), (0, 2, 3), (0, 3, 2), (0, 3, 3)]
    half = start(tmp_path / "a", model=sure_of(MASKS, background=square[:2]), round_num=9, curve=SLOW)
    assert len(marked(half)[1]) == 2
    more = start(
        tmp_path / "b", model=sure_of(MASKS, background=square[:3], lesion=[(0, 0, 0)]), round_num=9, curve=SLOW
    )
    assert marked(more) == ([], [])


def test_a_slice_is_not_spared_that_keeps_five_percent_of_lesion():
    before, after = np.zeros((2, 1, 10, 10), dtype=bool)
    before[0, 0], after[0, 5, :5] = True, True
    assert spared(before, after).tolist() == [False]  # 95 % background is not more than that
    after[0, 5, 0] = False
    assert spared(before, after).tolist() == [True]
    assert spared(np.zeros_like(before), np.zeros_like(before)).tolist() == [False]


def test_no_correction_before_the_curve_slows_or_at_a_threshold_of_1(tmp_path):
    model = sure_of(MASKS, lesion=[(2, 7, 7)])
    assert marked(start(tmp_path / "a", model=model, round_num=7, curve=SLOW[:7])) == ([], [])
    assert marked(start(tmp_path / "b", model=model, round_num=9, curve=SLOW, threshold=1)) == ([], [])
    assert marked(start(tmp_path / "c", model=model)) == ([], [])


def test_corrections_come_again_after_a_tenth_of_the_rounds():
    method, progress = Adele(), Progress(SLOW, [9])
    due = [r for r in range(10, 20) if method.is_time(progress, make_task(round_num=r, total_rounds=40))]
    assert due[0] == 13
    assert method.is_time(progress, make_task(round_num=10, total_rounds=4))


def test_a_later_correction_starts_from_the_marks_in_force_and_says_alone_what_they_are(tmp_path):
    site = make_mask_site(tmp_path, MASKS)
    method = Adele(augment=False)

    def correct(round_num, **sure):
        method.correct_masks(sure_of(MASKS, **sure), make_task(round_num=round_num), site)

    correct(9, lesion=[(2, 7, 7), (2, 7, 6), (2, 7, 5)], background=[(0, 2, 2)])
    correct(11, lesion=[(0, 2, 2)], background=[(2, 7, 7)])
    change = site.ledger.change()
    target = site.ledger.apply(MASKS)
    assert np.argwhere(target & (MASKS == 0)).tolist() == [[2, 7, 5], [2, 7, 6]]
    assert target[MASKS > 0].all()
    site.ledger.undo(rule=RULE, from_round=11)
    assert not np.array_equal(site.ledger.change(), change)
    last = [row for row in site.ledger.history() if row["round"] == 11]
    assert [(row["old"], row["new"]) for row in last] == [(4, 4), (0, 2)]


def test_a_repeated_round_leaves_curve_and_masks_as_if_it_had_run_once(tmp_path):
    def play(folder, rounds):
        site, method = make_mask_site(folder, MASKS), Adele(augment=False)
        site.state.save_turn(CURVE, 8, {"iou": SLOW, "corrected": []})
        for r in rounds:
            site.ledger.undo(from_round=r)  # as the executor does
            work = method.start(sure_of(MASKS, lesion=[(2, 7, r % 8)]), make_task(round_num=r, total_rounds=20), site)
            work.loss(ALL)
            work.report()
        return site.state.last_turn(CURVE, before=99), site.ledger.change()

    once, repeated = play(tmp_path / "a", [9, 10, 11]), play(tmp_path / "b", [9, 9, 10, 11, 10, 11])
    assert once[0] == repeated[0]
    assert once[0][1]["corrected"] == [9, 11]
    np.testing.assert_array_equal(once[1], repeated[1])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"consistency": -1}, "job variable consistency: expected >= 0, got -1"),
        ({"threshold": 0.4}, "job variable threshold: expected 0.5 to 1, got 0.4"),
        ({"base_loss": "focal"}, "job variable base_loss: expected one of ['ce', 'dice'], got 'focal'"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_sentence(options, sentence):
    with refused(sentence):
        Adele(**options)


# ---- the server -----------------------------------------------------------------------------------------------------
SITES = {"site-1": [1], "site-2": [1]}
FIRST = {"site-1": 1, "site-2": 3}  # round of a site's first correction


def answers():
    samples, step = {"site-1": 10, "site-2": 30}, {"site-1": 1.0, "site-2": 2.0}
    plain = plain_answers(SITES, samples=samples, step=step, counts=dice_counts, kind="segmentation")

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN:
            result.report = {"correction": np.array([DONE if task.round_num >= FIRST[site] else WAITS])}
        return result

    return answer


def play(folder, answer):
    return Run(folder, AdeleWorkflow(), list(SITES), answer, classes=["lesion"], num_rounds=5)


def test_every_round_averages_by_samples_and_first_corrections_are_recorded(tmp_path):
    run = play(tmp_path, answers())
    assert run.stopped == ""
    assert [stage[:2] for stage in run.stages[1:-1]] == [(TRAIN, r) for r in range(5)]
    assert run.moved()[0] == pytest.approx(5 * (0.25 * 1 + 0.75 * 2), rel=1e-5)
    assert run.decisions("corrected") == [(2, ["site-1"]), (4, ["site-2"])]


def test_a_job_that_goes_on_knows_who_has_corrected(tmp_path):
    assert play(tmp_path, failing(answers(), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 2))).stopped
    run = play(tmp_path, answers())
    assert run.stopped == ""
    assert run.decisions("corrected") == [(2, ["site-1"]), (4, ["site-2"])]


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        ({}, "report: expected ['correction'], got none of ['correction']"),
        ({"correction": np.array([TRIGGERED])}, "report field correction: expected 0 or 2, got 1"),
    ],
)
def test_a_report_without_the_flag_or_with_another_is_refused(report, sentence):
    with refused(sentence):
        AdeleWorkflow().check("train", report)
