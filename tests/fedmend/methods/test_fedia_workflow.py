import math

import numpy as np
import pytest
from federation_factories import Run, dice_counts, failing, plain_answers, same_models

from fedmend.messages import CENSUS, COLLECT, EVALUATE, TRAIN
from fedmend.methods.fedia import DONE, EXEMPT, TRIGGERED, WAITS, FedIAWorkflow

SITES = {"site-1": [1], "site-2": [1], "site-3": [1]}
LESIONS = {"site-1": [4, 20], "site-2": [10, 20], "site-3": [30, 20]}  # completeness 0.2, 0.5 and 1.5
LOSS = {"site-1": 0.5, "site-2": 0.25, "site-3": 0.75}
SAMPLES = {"site-1": 10, "site-2": 20, "site-3": 70}
STEP = {"site-1": 1.0, "site-2": 2.0, "site-3": 4.0}
# Round → how far the corrections of the three sites are; the last known one goes on.
NEVER = {0: (WAITS, WAITS, WAITS)}
ALL_BY_4 = {0: (WAITS,) * 3, 2: (TRIGGERED, WAITS, WAITS), 3: (DONE, TRIGGERED, DONE), 4: (DONE,) * 3}


def answers(progress=NEVER, *, lesions=LESIONS, loss=LOSS, change=lambda site, question, task, result: result):
    plain = plain_answers(SITES, samples=SAMPLES, step=STEP, counts=dice_counts, kind="segmentation")

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == COLLECT:
            result.report = {"lesions": np.array(lesions[site]), "iou_line": np.array([0.1, 0.01], dtype=np.float32)}
        if question == TRAIN:
            now = progress[max(r for r in progress if r <= task.round_num)][list(SITES).index(site)]
            result.report = {
                "dice_loss": np.array([loss[site]], dtype=np.float32),
                "correction": np.array([now]),
            }
        return change(site, question, task, result)

    return answer


def play(folder, answer=None, *, rounds=6, min_sites=0, **options):
    workflow = FedIAWorkflow(**{"warmup_rounds": 2, **options})
    answer = answer or answers()
    given = {"num_rounds": rounds, "min_sites": min_sites, "max_site_share": 1}
    return Run(folder, workflow, list(SITES), answer, classes=["lesion"], **given)


def moved(run):
    """How far the run has moved a weight."""
    return run.moved()[0]


def absent_from_the_estimate(site, question, task, result):
    return None if site == "site-3" and question == COLLECT else result


BY_SAMPLES = 0.1 * 1 + 0.2 * 2 + 0.7 * 4


def by_completeness(completeness=(0.2, 0.5, 1.5)):
    weight = [math.exp(a / loss) for a, loss in zip(completeness, LOSS.values(), strict=True)]
    return sum(w * step for w, step in zip(weight, STEP.values(), strict=True)) / sum(weight)


def test_warm_up_then_the_estimate_then_correction_until_all_sites_are_corrected(tmp_path):
    run = play(tmp_path, answers(ALL_BY_4))
    assert run.stopped == ""
    assert run.stages == [
        (CENSUS, 0, "census"),
        (TRAIN, 0, "warmup"),
        (TRAIN, 1, "warmup"),
        (COLLECT, 2, "completeness"),
        (TRAIN, 2, "correction"),
        (TRAIN, 3, "correction"),
        (TRAIN, 4, "correction"),
        (TRAIN, 5, "corrected"),
        (EVALUATE, 6, "evaluate"),
    ]


def test_stage_2_averages_by_completeness_and_loss_and_the_others_by_samples(tmp_path):
    assert moved(play(tmp_path, answers(ALL_BY_4))) == pytest.approx(3 * BY_SAMPLES + 3 * by_completeness(), rel=1e-5)


def test_without_completeness_aggregation_every_round_averages_by_samples(tmp_path):
    run = play(tmp_path, completeness_aggregation=False)
    assert moved(run) == pytest.approx(6 * BY_SAMPLES, rel=1e-5)
    assert run.decisions("completeness_weights") == []


def test_a_temperature_changes_the_average_of_stage_2(tmp_path):
    weight = [math.exp(a / 1.5 / (loss / 0.5)) for a, loss in zip((0.2, 0.5, 1.5), LOSS.values(), strict=True)]
    expected = sum(w * step for w, step in zip(weight, STEP.values(), strict=True)) / sum(weight)
    run = play(tmp_path, rounds=3, temperature=1.0)
    assert moved(run) == pytest.approx(2 * BY_SAMPLES + expected, rel=1e-5)


def test_a_site_that_never_triggers_keeps_stage_2_to_the_end(tmp_path):
    assert (TRAIN, 5, "correction") in play(tmp_path).stages


def test_a_spared_site_is_not_waited_for(tmp_path):
    run = play(tmp_path, answers({0: (WAITS,) * 3, 2: (DONE, DONE, EXEMPT)}))
    assert run.stages[5:-1] == [(TRAIN, r, "corrected") for r in (3, 4, 5)]
    assert run.decisions("spared") == [(3, ["site-3"])]


def test_a_site_that_missed_the_estimate_has_no_line_and_is_not_waited_for(tmp_path):
    progress = {0: (WAITS,) * 3, 2: (DONE, DONE, WAITS)}
    run = play(tmp_path, answers(progress, change=absent_from_the_estimate), min_sites=2)
    assert run.stages[5:-1] == [(TRAIN, r, "corrected") for r in (3, 4, 5)]
    assert run.decisions("not_corrected") == []


def test_sites_that_are_not_corrected_by_the_end_are_named(tmp_path, caplog):
    run = play(tmp_path, answers({0: (WAITS,) * 3, 2: (DONE, WAITS, EXEMPT), 5: (DONE, TRIGGERED, EXEMPT)}))
    assert run.decisions("not_corrected") == [(6, ["site-2"])]
    assert "not corrected by the end: site-2; their IoU never fell behind its line" in caplog.text
    assert play(tmp_path / "all", answers(ALL_BY_4)).decisions("not_corrected") == []


def test_a_site_where_the_model_finds_no_lesion_counts_as_the_least_complete_and_is_named(tmp_path, caplog):
    lesions = {"site-1": [120, 0], "site-2": [10, 20], "site-3": [30, 20]}
    run = play(tmp_path, answers(lesions=lesions), rounds=3)
    assert moved(run) == pytest.approx(2 * BY_SAMPLES + by_completeness((0, 0.5, 1.5)), rel=1e-5)
    assert "site-1: completeness: the model finds no lesion there, so it counts as the least complete" in caplog.text
    assert "site-3: completeness: more lesions are marked (30) than the model finds (20)" in caplog.text
    assert "site-2: completeness" not in caplog.text


def test_estimate_lines_curves_triggers_corrections_and_weights_are_recorded(tmp_path):
    run = play(tmp_path, answers(ALL_BY_4))
    (estimate,) = run.decisions("completeness")
    assert estimate == (2, {s: {"annotated": a, "predicted": 20, "estimate": a / 20} for s, (a, _) in LESIONS.items()})
    assert run.decisions("iou_line") == [(2, {site: [0.1, 0.01] for site in SITES})]
    iou = {"site-1": 0.333333, "site-2": 0.6, "site-3": 0.142857}  # (1 - l) / (1 + l)
    assert run.decisions("iou") == [(r, iou) for r in range(1, 7)]
    assert run.decisions("triggered") == [(3, ["site-1"]), (4, ["site-2"])]
    assert run.decisions("corrected") == [(4, ["site-1", "site-3"]), (5, ["site-2"])]
    assert [r for r, _ in run.decisions("completeness_weights")] == [3, 4, 5]
    assert all(sum(v.values()) == pytest.approx(1, abs=1e-5) for _, v in run.decisions("completeness_weights"))


def test_sites_learn_the_largest_estimate_and_the_first_round_of_stage_2_only(tmp_path):
    run = play(tmp_path, answers(lesions={**LESIONS, "site-3": [5, 7]}))
    told = run.knowledge("correction")
    assert {k: float(v) for k, v in told[2].items()} == {"first_round": 2, "best_completeness": 5 / 7}


def test_a_job_that_goes_on_knows_completeness_and_corrections(tmp_path):
    crash = failing(answers(ALL_BY_4), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 4))
    assert play(tmp_path, crash).stopped
    again = play(tmp_path, answers(ALL_BY_4))
    assert again.stages[1:] == [(TRAIN, 4, "correction"), (TRAIN, 5, "corrected"), (EVALUATE, 6, "evaluate")]
    whole = play(tmp_path / "whole", answers(ALL_BY_4))
    assert same_models(again.model, whole.model)
    for what in ("corrected", "triggered", "completeness", "completeness_weights"):
        assert again.decisions(what) == whole.decisions(what)


def test_a_job_that_goes_on_with_a_warm_up_that_is_over_estimates_at_once(tmp_path):
    crash = failing(answers(NEVER), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 3))
    assert play(tmp_path, crash, warmup_rounds=5).stopped
    again = play(tmp_path, answers({0: (WAITS,) * 3, 3: (DONE,) * 3}))
    assert again.stages[1:4] == [(COLLECT, 3, "completeness"), (TRAIN, 3, "correction"), (TRAIN, 4, "corrected")]


GOOD = {"dice_loss": np.array([0.5], dtype=np.float32), "correction": np.array([WAITS])}


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        ({}, "report: expected ['correction', 'dice_loss'], got none of ['correction', 'dice_loss']"),
        ({"dice_loss": GOOD["dice_loss"]}, "report: expected ['correction', 'dice_loss'], got none of ['correction']"),
        (
            GOOD | {"dice_loss": np.array([1.5], dtype=np.float32)},
            "result of round 0, report field dice_loss: expected numbers from 0 to 1, got 1.5 to 1.5",
        ),
        (
            GOOD | {"dice_loss": np.array([-0.25], dtype=np.float32)},
            "result of round 0, report field dice_loss: expected numbers from 0 to 1, got -0.25 to -0.25",
        ),
        (
            GOOD | {"correction": np.array([7])},
            "result of round 0, report field correction: expected numbers from 0 to 3, got 7 to 7",
        ),
    ],
)
def test_a_report_that_breaks_the_aggregation_is_refused(tmp_path, report, sentence):
    def change(site, question, task, result):
        if site == "site-2" and question == TRAIN:
            result.report = report
        return result

    run = play(tmp_path, answers(change=change), min_sites=2)
    assert run.stopped == ""
    assert run.decisions("refused")[0] == (0, {"site": "site-2", "reason": f"site-2: {sentence}"})


def test_a_site_that_the_job_goes_on_without_is_not_waited_for(tmp_path):
    progress = {0: (WAITS,) * 3, 2: (DONE, DONE, WAITS)}
    assert play(tmp_path, answers(progress), rounds=4).stages[-2] == (TRAIN, 3, "correction")
    given = {"num_rounds": 6, "job": "job-2", "allow_changes": ["num_rounds"], "max_site_share": 1}
    workflow = FedIAWorkflow(warmup_rounds=2)
    again = Run(tmp_path, workflow, ["site-1", "site-2"], answers(progress), classes=["lesion"], **given)
    assert [stage for stage in again.stages if stage[0] == TRAIN] == [(TRAIN, 4, "corrected"), (TRAIN, 5, "corrected")]
    assert again.decisions("not_corrected") == []
