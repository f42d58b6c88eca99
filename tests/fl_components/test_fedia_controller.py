import math

import numpy as np
import pytest
import torch
from fl_factories import Federation, plain_answers
from torch_factories import TinyNetwork

from fedmend import networks
from fedmend.evaluation import DICE_UNIT
from fedmend.methods.fedia import DONE, EXEMPT, TRIGGERED, WAITS
from fl_components.controllers.fedia import FedIAController
from fl_components.payload import CENSUS, COLLECT, EVALUATE, TRAIN, SiteResult

SITES = {"site-1": [1], "site-2": [1], "site-3": [1]}
LESIONS = {"site-1": [4, 20], "site-2": [10, 20], "site-3": [30, 20]}  # completeness 0.2, 0.5 and 1.5
LOSS = {"site-1": 0.5, "site-2": 0.25, "site-3": 0.75}
SAMPLES = {"site-1": 10, "site-2": 20, "site-3": 70}
STEP = {"site-1": 1.0, "site-2": 2.0, "site-3": 4.0}
# Round → how far the corrections of the three sites are; the last known one goes on.
NEVER = {0: (WAITS, WAITS, WAITS)}
ALL_BY_4 = {0: (WAITS,) * 3, 2: (TRIGGERED, WAITS, WAITS), 3: (DONE, TRIGGERED, DONE), 4: (DONE,) * 3}


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", lambda classes: TinyNetwork(classes, torch.initial_seed()))
    monkeypatch.setattr("fl_components.controllers.staged.write_report", lambda folder: None)
    monkeypatch.setattr("fl_components.controllers.staged.summary_text", lambda folder: "")


def dice_counts(round_num):
    """Ten slices and two volumes with Dice 0.5 and 0.25."""
    return {"test": np.array([[10, 5 * DICE_UNIT, 2, DICE_UNIT // 2, 30, 10, 20]])}


def answers(progress=NEVER, *, lesions=LESIONS, loss=LOSS, change=lambda site, name, task, result: result):
    plain = plain_answers(SITES, samples=SAMPLES, step=STEP, counts=dice_counts, task="segmentation")

    def answer(site, task_name, weights, task, evaluate):
        result = plain(site, task_name, weights, task, evaluate)
        if task_name == COLLECT:
            result.report = {"lesions": np.array(lesions[site]), "iou_line": np.array([0.1, 0.01], dtype=np.float32)}
        if task_name == TRAIN:
            now = progress[max(r for r in progress if r <= task.round_num)][list(SITES).index(site)]
            result.report = {
                "dice_loss": np.array([loss[site]], dtype=np.float32),
                "correction": np.array([now]),
            }
        return change(site, task_name, task, result)

    return answer


def play(folder, answer=None, **changes):
    settings = {"run_name": "run-1", "classes": ["lesion"], "network": "tiny", "num_rounds": 6, "warmup_rounds": 2}
    controller = FedIAController(**{**settings, **changes})
    return Federation(folder, controller, list(SITES), answer or answers()).run()


def stages(federation):
    return [(name, r, stage) for name, r, stage, _ in federation.asked]


def moved(federation):
    """How far the run has moved a weight."""
    model = torch.load(federation.app / "FL_global_model.pt", weights_only=False)["model"]
    start = networks.initial_network("tiny", ["lesion"], 0).state_dict()
    return float((model["classifier.bias"] - start["classifier.bias"])[0])


BY_SAMPLES = 0.1 * 1 + 0.2 * 2 + 0.7 * 4


def by_completeness(completeness=(0.2, 0.5, 1.5)):
    weight = [math.exp(a / loss) for a, loss in zip(completeness, LOSS.values(), strict=True)]
    return sum(w * step for w, step in zip(weight, STEP.values(), strict=True)) / sum(weight)


def test_warm_up_then_the_estimate_then_correction_until_all_sites_are_corrected(tmp_path):
    federation = play(tmp_path, answers(ALL_BY_4))
    assert federation.engine.panics() == []
    assert stages(federation) == [
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
    federation = play(tmp_path, completeness_aggregation=False)
    assert moved(federation) == pytest.approx(6 * BY_SAMPLES, rel=1e-5)
    assert federation.decisions("completeness_weights") == []


def test_an_estimate_above_1_is_kept_or_clipped(tmp_path):
    clipped = play(tmp_path / "clip", num_rounds=3, clip=True)
    assert moved(clipped) == pytest.approx(2 * BY_SAMPLES + by_completeness((0.2, 0.5, 1.0)), rel=1e-5)
    kept = play(tmp_path / "keep", num_rounds=3)
    assert moved(kept) == pytest.approx(2 * BY_SAMPLES + by_completeness(), rel=1e-5)


def test_a_site_that_never_triggers_keeps_stage_2_to_the_end_or_to_its_limit(tmp_path):
    assert (TRAIN, 5, "correction") in stages(play(tmp_path / "end"))
    limited = stages(play(tmp_path / "limit", max_stage2_rounds=2))
    assert limited[4:-1] == [(TRAIN, r, "correction") for r in (2, 3)] + [(TRAIN, r, "corrected") for r in (4, 5)]


def test_a_spared_site_is_not_waited_for(tmp_path):
    federation = play(tmp_path, answers({0: (WAITS,) * 3, 2: (DONE, DONE, EXEMPT)}))
    assert stages(federation)[5:-1] == [(TRAIN, r, "corrected") for r in (3, 4, 5)]
    assert federation.decisions("spared") == [(3, ["site-3"])]


def test_a_site_that_missed_the_estimate_has_no_line_and_is_not_waited_for(tmp_path):
    silent = lambda site, name, task, result: None if site == "site-3" and name == COLLECT else result  # noqa: E731
    progress = {0: (WAITS,) * 3, 2: (DONE, DONE, WAITS)}
    federation = play(tmp_path, answers(progress, change=silent), min_sites=2)
    assert stages(federation)[5:-1] == [(TRAIN, r, "corrected") for r in (3, 4, 5)]
    assert federation.decisions("not_corrected") == []


def test_sites_that_are_not_corrected_by_the_end_are_named(tmp_path, caplog):
    federation = play(tmp_path, answers({0: (WAITS,) * 3, 2: (DONE, WAITS, EXEMPT), 5: (DONE, TRIGGERED, EXEMPT)}))
    assert federation.decisions("not_corrected") == [(6, ["site-2"])]
    assert "not corrected by the end: site-2; their IoU never fell behind its line" in caplog.text
    assert play(tmp_path / "all", answers(ALL_BY_4)).decisions("not_corrected") == []


def test_a_site_where_the_model_finds_no_lesion_counts_as_the_least_complete_and_is_named(tmp_path, caplog):
    lesions = {"site-1": [120, 0], "site-2": [10, 20], "site-3": [30, 20]}
    federation = play(tmp_path, answers(lesions=lesions), num_rounds=3)
    assert moved(federation) == pytest.approx(2 * BY_SAMPLES + by_completeness((0, 0.5, 1.5)), rel=1e-5)
    assert "site-1: completeness: the model finds no lesion there, so it counts as the least complete" in caplog.text
    assert "site-3: completeness: more lesions are marked (30) than the model finds (20)" in caplog.text
    assert "site-2: completeness" not in caplog.text


def test_estimate_lines_curves_triggers_corrections_and_weights_are_recorded(tmp_path):
    federation = play(tmp_path, answers(ALL_BY_4))
    (estimate,) = federation.decisions("completeness")
    assert estimate == (2, {s: {"annotated": a, "predicted": 20, "estimate": a / 20} for s, (a, _) in LESIONS.items()})
    assert federation.decisions("iou_line") == [(2, {site: [0.1, 0.01] for site in SITES})]
    iou = {"site-1": 0.333333, "site-2": 0.6, "site-3": 0.142857}  # (1 - l) / (1 + l)
    assert federation.decisions("iou") == [(r, iou) for r in range(1, 7)]
    assert federation.decisions("triggered") == [(3, ["site-1"]), (4, ["site-2"])]
    assert federation.decisions("corrected") == [(4, ["site-1", "site-3"]), (5, ["site-2"])]
    assert [r for r, _ in federation.decisions("completeness_weights")] == [3, 4, 5]
    assert all(sum(v.values()) == pytest.approx(1, abs=1e-5) for _, v in federation.decisions("completeness_weights"))


def test_sites_learn_the_largest_estimate_and_the_first_round_of_stage_2_only(tmp_path):
    federation = play(tmp_path, answers(lesions={**LESIONS, "site-3": [5, 7]}))
    told = {task.round_num: task.knowledge for task, _, _ in federation.sent if task.stage == "correction"}
    assert {k: float(v) for k, v in told[2].items()} == {"first_round": 2, "best_completeness": 5 / 7}


def test_the_best_model_is_that_with_the_largest_dice(tmp_path):
    (first, *_) = play(tmp_path).decisions("best_model")
    assert first == (0, {"dice": 0.5, "split": "test"})


def test_a_job_that_goes_on_knows_completeness_and_corrections(tmp_path):
    crash = lambda site, name, task, result: (  # noqa: E731
        SiteResult(error="site-1: out of memory")
        if site == "site-1" and (name, task.round_num) == (TRAIN, 4)
        else result
    )
    broken = play(tmp_path, answers(ALL_BY_4, change=crash))
    assert broken.engine.panics()
    again = play(tmp_path, answers(ALL_BY_4))
    assert stages(again)[1:] == [(TRAIN, 4, "correction"), (TRAIN, 5, "corrected"), (EVALUATE, 6, "evaluate")]
    whole = play(tmp_path / "whole", answers(ALL_BY_4))
    assert moved(again) == moved(whole)
    assert again.decisions("corrected") == whole.decisions("corrected")


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        ({}, "report field dice_loss: expected 1 numbers from 0 to 1"),
        ({"dice_loss": np.array([1.5], dtype=np.float32)}, "report field dice_loss: expected 1 numbers from 0 to 1"),
        ({"dice_loss": np.array([-0.1], dtype=np.float32)}, "report field dice_loss: expected 1 numbers from 0 to 1"),
        (
            {"dice_loss": np.array([0.5], dtype=np.float32), "correction": np.array([7])},
            "report field correction: expected 1 numbers from 0 to 3",
        ),
    ],
)
def test_a_report_that_breaks_the_aggregation_is_refused(tmp_path, report, sentence):
    def change(site, name, task, result):
        if site == "site-2" and name == TRAIN:
            result.report = report
        return result

    federation = play(tmp_path, answers(change=change), min_sites=2)
    assert federation.engine.panics() == []
    assert federation.decisions("refused")[0] == (0, {"site": "site-2", "reason": f"site-2: {sentence}"})


def test_a_site_without_an_estimate_counts_as_the_least_complete(tmp_path):
    silent = lambda site, name, task, result: None if site == "site-3" and name == COLLECT else result  # noqa: E731
    federation = play(tmp_path, answers(change=silent), min_sites=2, num_rounds=3)
    assert moved(federation) == pytest.approx(2 * BY_SAMPLES + by_completeness((0.2, 0.5, 0.2)), rel=1e-5)


@pytest.mark.parametrize("changes", [{"warmup_rounds": 1}, {"max_stage2_rounds": -1}])
def test_settings_out_of_range_are_refused(changes):
    settings = {"run_name": "run-1", "classes": ["lesion"], "network": "tiny", "num_rounds": 6, "warmup_rounds": 2}
    with pytest.raises(
        ValueError, match=r"^expected warmup_rounds >= 2, which a line needs, and max_stage2_rounds >= 0"
    ):
        FedIAController(**{**settings, **changes})
