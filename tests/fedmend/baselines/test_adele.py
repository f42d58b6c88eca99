import math

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, dice_counts, plain_answers
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
from fedmend.messages import TRAIN
from fedmend.methods.shared.slices import DONE, TRIGGERED, WAITS

SIZE = 8
MASKS = np.zeros((4, SIZE, SIZE), dtype=np.uint8)
MASKS[0, 2:4, 2:4] = MASKS[1, 5, 5] = 1


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


@pytest.mark.parametrize(("edge", "seen"), [(256, [176, 256, 384]), (32, [24, 32, 48])])  # 179.2 and 22.4 are rounded
def test_an_edge_is_the_nearest_multiple_of_8(edge, seen):
    model = BySize(dict.fromkeys(seen, 0.0))
    scaled_logits(model, torch.zeros(1, 1, edge, edge))
    assert model.seen == seen


def test_slices_are_scaled_linearly_between_pixels():
    seen = []
    image = torch.zeros(1, 1, 8, 8)
    image[0, 0, 0, 0] = 1
    scaled_logits(lambda images: seen.append(images) or (None, torch.cat([images, images], 1)), image, [2.0])
    assert seen[0][0, 0, 0, :4].tolist() == pytest.approx([1, 8 / 15, 1 / 15, 0], abs=1e-6)  # steps of 7 / 15


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
    unsure = torch.tensor([0.795, 0.8]).view(2, 1, 1, 1)  # mean probabilities of lesion, two slices
    logits = [torch.cat([1 - p, p], 1).log() for p in (unsure - 0.1, unsure, unsure + 0.1)]
    first, second = disagreement(logits).tolist()
    assert first == 0
    assert second > 0.01


def test_the_mean_is_kept_from_0_and_1_in_the_divergence():
    logits = [torch.tensor([50.0, -50.0]).view(1, 2, 1, 1)] * 3
    assert disagreement(logits).item() == pytest.approx(3 * -math.log(0.999), rel=1e-3)


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


def test_by_default_the_disagreement_counts_as_much_as_the_base_loss_which_may_be_dice(tmp_path, three_sizes):
    sizes = {16: 3.0, 8: 2.0, 24: 4.0}
    p = [sigmoid(z) for z in sizes.values()]
    mean = np.mean(p)
    dice = [1 - 2 * q * 4 / (q * 64 + 4) for q in p]
    divergence = sum(q * math.log(q / mean) + (1 - q) * math.log((1 - q) / (1 - mean)) for q in p)
    work = start(tmp_path / "three", model=BySize(sizes), base_loss="dice")
    assert work.loss(torch.tensor([0])).item() == pytest.approx((sum(dice) + divergence) / 3, rel=1e-4)
    one = start(tmp_path / "one", model=BySize(sizes), base_loss="dice", consistency=0.0)
    assert one.loss(torch.tensor([0])).item() == pytest.approx(dice[1], rel=1e-4)
    assert one.model.seen == [8]


def test_the_disagreement_moves_the_network(tmp_path, three_sizes):
    slopes = []
    for weight in (0.5, 50.0):
        work = start(tmp_path / str(weight), model=BySize({16: 3.0, 8: 2.0, 24: 4.0}), consistency=weight)
        work.loss(torch.tensor([0])).backward()
        slopes.append(work.model.weight.grad.item())
    # Along the common factor of the logits, where the terms through the mean cancel: z p (1 - p) (z - logit of p).
    p = [sigmoid(z) for z in (3.0, 2.0, 4.0)]
    middle = math.log(np.mean(p) / (1 - np.mean(p)))
    own = sum(z * q * (1 - q) * (z - middle) for z, q in zip((3.0, 2.0, 4.0), p, strict=True))
    assert slopes[1] - slopes[0] == pytest.approx(49.5 * own / 3, rel=1e-4)


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


def test_rounds_before_the_first_jump_are_cut_off_and_none_without_one():
    assert from_first_jump([0.1, 0.12, 0.3, 0.3, 0.5]) == [0.12, 0.3, 0.3, 0.5]
    assert from_first_jump([0.1, 0.15, 0.2]) == [0.1, 0.15, 0.2]
    assert from_first_jump([0.1, 0.195, 0.3, 0.3]) == [0.195, 0.3, 0.3]
    assert from_first_jump([]) == []


def exponential(points, height=0.6, length=8.0):
    return [height * (1 - math.exp(-x / length)) for x in range(1, points + 1)]


def test_the_slope_of_a_curve_has_fallen_by_90_percent_where_the_formula_says():
    assert turning_point(exponential(20), 300) == 20  # exp(-(x - 1) / 8) < 0.1 from 19.4 on
    assert turning_point(exponential(20, length=4), 300) == 11  # from 10.2
    assert turning_point(exponential(20), 20) is None


def test_later_points_of_a_curve_weigh_more():
    bent = [*exponential(6, length=1.0), *exponential(24)[6:]]  # the first points rise as if it were over
    assert turning_point(bent, 300) > 12


def test_a_curve_is_fitted_as_in_the_code(monkeypatch):
    asked = []

    def fit(value, x, y, **options):
        asked.append((x.tolist(), y, options.pop("sigma").tolist(), options))
        return (0.5, 1.0, 8.0), None

    monkeypatch.setattr("scipy.optimize.curve_fit", fit)
    assert turning_point([0.1, 0.2, 0.3], 300) == 20
    options = {"p0": (1, 1, 1), "bounds": ([0, 0, 0], [1, 1, np.inf])}
    assert asked == [([1, 2, 3], [0.1, 0.2, 0.3], [1, pytest.approx(10**-0.5), 0.1], options)]


@pytest.mark.parametrize(("after", "turn", "slow"), [(6, 1, False), (7, 1, True), (7, 8, True), (7, 9, False)])
def test_the_points_from_the_jump_on_are_those_that_count(monkeypatch, after, turn, slow):
    monkeypatch.setattr(adele, "turning_point", lambda curve, horizon: turn)
    assert slowed([0.0] * 4 + exponential(after, length=0.5), 300) == slow  # one more point: that before the jump


def test_a_curve_slows_when_the_site_has_come_so_far():
    assert not slowed(exponential(19), 300)
    assert slowed(exponential(20), 300)


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


# ---- the correction -------------------------------------------------------------------------------------------------
SLOW = exponential(9, length=0.5)


def marked(work):
    """Pixels that the round trains on against the site's own annotation: those gained and those lost."""
    target = work.site.ledger.apply(MASKS)
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


def test_pixels_are_corrected_of_which_the_model_is_surer_than_seven_tenths(tmp_path):
    table = np.full(MASKS.shape, 0.5)
    table[1, 0, 0], table[2, 7, 7], table[0, 2, 2], table[0, 2, 3] = 0.71, 0.69, 0.29, 0.31
    assert marked(start(tmp_path, model=SaysMasks(table), round_num=9, curve=SLOW)) == ([[1, 0, 0]], [[0, 2, 2]])


def test_a_threshold_of_1_corrects_nothing_and_slices_without_a_mark_may_be_left_alone(tmp_path):
    options = {"model": sure_of(MASKS, lesion=[(1, 0, 0), (2, 7, 7)]), "round_num": 9, "curve": SLOW}
    assert marked(start(tmp_path / "none", threshold=1.0, **options)) == ([], [])
    assert start(tmp_path / "none", threshold=1.0, **options).report()["correction"].tolist() == [WAITS]
    assert marked(start(tmp_path / "skip", skip_unmarked=True, **options)) == ([[1, 0, 0]], [])


@pytest.mark.parametrize(("consistency", "passes"), [(1.0, 3), (0.0, 1)])
def test_a_correction_looks_at_the_scales_of_the_training(tmp_path, consistency, passes):
    model = sure_of(MASKS)
    start(tmp_path, model=model, round_num=9, curve=SLOW, consistency=consistency)
    assert model.calls == [(False, [0, 1, 2, 3])] * passes


def test_a_round_that_is_repeated_leaves_curve_and_corrections_as_if_it_had_run_once(tmp_path):
    work = start(tmp_path, model=sure_of(MASKS), round_num=9, curve=SLOW)
    for _ in range(2):
        work.report()
        kept = work.site.state.last_turn(CURVE, before=99)
        assert kept == (9, {"iou": [*SLOW, 0.0], "corrected": [9]})
        work = work.method.start(work.model, work.task, work.site)


def test_a_slice_that_would_lose_its_lesion_is_spared(tmp_path):
    everything = [tuple(pixel) for pixel in np.argwhere(MASKS).tolist()]
    work = start(tmp_path, model=sure_of(MASKS, lesion=[], background=everything))
    assert spared(MASKS[:1] > 0, np.zeros((1, *MASKS.shape[1:]), dtype=bool)).tolist() == [True]
    work.method.correct_masks(work.model, work.task, work.site)
    assert marked(work) == ([], [])


def test_a_slice_is_not_spared_that_keeps_five_percent_of_lesion():
    before, after = np.zeros((2, 1, 10, 10), dtype=bool)
    before[0, 0], after[0, 5, :5] = True, True
    assert spared(before, after).tolist() == [False]  # 95 % background is not more than that
    after[0, 5, 0] = False
    assert spared(before, after).tolist() == [True]
    assert spared(np.zeros_like(before), np.zeros_like(before)).tolist() == [False]


@pytest.mark.parametrize(("kept", "expected"), [(9, True), (10, False)])
def test_a_slice_is_not_spared_that_keeps_half_of_its_lesion(kept, expected):
    before, after = np.zeros((2, 1, 20, 20), dtype=bool)
    before[0, 0], after[0, 0, :kept] = True, True
    assert spared(before, after).tolist() == [expected]


def test_corrections_come_again_after_a_tenth_of_the_rounds():
    method, progress = Adele(), Progress(SLOW, [9])
    due = [r for r in range(10, 20) if method.is_time(progress, make_task(round_num=r, total_rounds=40))]
    assert due[0] == 13
    assert method.is_time(progress, make_task(round_num=10, total_rounds=4))
    assert [method.is_time(progress, make_task(round_num=r, total_rounds=200)) for r in (28, 29)] == [False, True]


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


def test_a_flag_that_no_site_sends_is_refused():
    with refused("report field correction: expected 0 or 2, got 1"):
        AdeleWorkflow().check("train", {"correction": np.array([TRIGGERED])})
