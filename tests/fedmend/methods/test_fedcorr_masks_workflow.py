import numpy as np
import pytest
from factories import refused
from federation_factories import Run, dice_counts, failing, plain_answers, same_models

from fedmend.methods.fedcorr_masks import (
    CLEAN,
    CORRECT,
    FINETUNE,
    NOISY,
    RELABEL,
    TURN,
    USUAL,
    FedCorrMasksWorkflow,
)
from fedmend.results import COLLECT, EVALUATE, TRAIN

SITES = {f"site-{i}": [1] for i in range(1, 6)}
LID = {"site-1": 2.0, "site-2": 9.0, "site-3": 2.2, "site-4": 8.5, "site-5": 2.1}
LEVEL = {"site-2": 0.4, "site-4": 0.05}  # of the noisy ones; the others say 0
SAMPLES = {"site-1": 10, "site-2": 20, "site-3": 30, "site-4": 40, "site-5": 50}
STEP = {"site-1": 0.1, "site-2": 0.2, "site-3": 0.4, "site-4": 0.8, "site-5": 1.6}


def answers(lid=LID, level=LEVEL, *, sites=SITES, drop=""):
    plain = plain_answers(sites, samples=SAMPLES, step=STEP, counts=dice_counts, kind="segmentation")

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if task.stage == TURN and question == TRAIN:
            result.report = {"lid": np.float32(lid[site])}
        if task.stage == CORRECT:
            result.report = {"noise_level": np.float32(level.get(site, 0))}
        if drop == task.stage:
            result.report = {}
        return result

    return answer


def play(folder, answer=None, *, sites=SITES, rounds=10, **options):
    workflow = FedCorrMasksWorkflow(**{"iterations": 2, "finetune_share": 0.5, **options})
    chosen = {"classes": ["lesion"], "num_rounds": rounds, "max_update_factor": 0}
    return Run(folder, workflow, list(sites), answer or answers(), **chosen)


def asked(run, stage):
    """(round, sites) of every question of a stage."""
    return [(r, sites) for _, r, name, sites in run.asked if name == stage]


def test_stage_1_goes_from_site_to_site_then_clean_sites_train_then_all(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    turns = asked(run, TURN)
    assert [r for r, _ in turns] == [0] * 5 + [1] * 5
    for part in (turns[:5], turns[5:]):
        assert sorted(site for _, (site,) in part) == sorted(SITES)
    assert turns[:5] != turns[5:]
    assert asked(run, CORRECT) == [(1, sorted(SITES)), (2, sorted(SITES))]
    assert asked(run, FINETUNE) == [(r, ["site-1", "site-3", "site-4", "site-5"]) for r in range(2, 6)]
    assert asked(run, RELABEL) == [(6, ["site-2", "site-4"])]
    assert asked(run, USUAL) == [(r, sorted(SITES)) for r in range(6, 10)]


def test_each_site_of_stage_1_starts_from_what_the_one_before_it_left(tmp_path):
    run = play(tmp_path)
    clean = (10 * 0.1 + 30 * 0.4 + 40 * 0.8 + 50 * 1.6) / 130
    every = (10 * 0.1 + 20 * 0.2 + 30 * 0.4 + 40 * 0.8 + 50 * 1.6) / 150
    assert run.moved()[0] == pytest.approx(2 * sum(STEP.values()) + 4 * clean + 4 * every, rel=1e-5)


def test_sites_of_a_high_dimension_are_noisy_and_learn_their_own_role_alone(tmp_path):
    run = play(tmp_path)
    assert run.roles(CORRECT) == {s: {NOISY if s in LEVEL else CLEAN} for s in SITES}
    assert run.roles(RELABEL) == {s: {NOISY} for s in LEVEL}
    assert set.union(*(roles for stage in (TURN, FINETUNE, USUAL) for roles in run.roles(stage).values())) == {""}
    (first, one), (second, two) = run.decisions("noisy_sites")
    assert (first, second) == (1, 2)
    assert one["lid"] == {s: pytest.approx(v, abs=1e-4) for s, v in LID.items()}
    assert two["lid"] == {s: pytest.approx(2 * v, abs=1e-4) for s, v in LID.items()}  # summed
    assert one["noisy"] == two["noisy"] == ["site-2", "site-4"]
    assert two["noise_level"] == {s: LEVEL.get(s, 0) for s in SITES}
    assert two["vote_share"] == 1


def test_sites_that_correct_are_recorded(tmp_path):
    noisy = ["site-2", "site-4"]
    assert play(tmp_path).decisions("corrected") == [(1, noisy), (2, noisy), (6, noisy)]
    none = play(tmp_path / "b", answers(level={"site-2": 0.4}))  # site-4 has no slice that stands out
    assert none.decisions("corrected") == [(1, ["site-2"]), (2, ["site-2"]), (6, noisy)]


def test_the_threshold_decides_who_is_clean_enough_for_stage_2(tmp_path):
    run = play(tmp_path, clean_threshold=0.01)
    assert asked(run, FINETUNE)[0][1] == ["site-1", "site-3", "site-5"]
    assert asked(play(tmp_path / "all", clean_threshold=0.41), FINETUNE)[0][1] == sorted(SITES)


def test_where_no_site_stands_out_the_one_of_the_smallest_dimension_is_the_clean_one(tmp_path):
    level = dict.fromkeys(SITES, 0.3) | {"site-1": 0.0}
    run = play(tmp_path, answers(dict.fromkeys(SITES, 3.0), level))
    assert run.decisions("noisy_sites")[0][1]["noisy"] == ["site-2", "site-3", "site-4", "site-5"]
    assert asked(run, FINETUNE)[0][1] == ["site-1"]


def test_without_any_clean_site_all_take_part_in_stage_2(tmp_path):
    run = play(tmp_path, answers(level=dict.fromkeys(SITES, 0.5)))
    assert asked(run, FINETUNE)[0][1] == sorted(SITES)


def test_the_schedule_is_5_155_140_of_300_rounds_and_5_40_35_of_80():
    for rounds, stages in ((300, (155, 140)), (80, (40, 35))):
        workflow = FedCorrMasksWorkflow()
        second = round(workflow.finetune_share * (rounds - workflow.warmup_rounds))
        assert (second, rounds - workflow.warmup_rounds - second) == stages


def test_a_run_of_stage_1_alone_ends_without_a_question(tmp_path):
    run = play(tmp_path, rounds=2)
    assert run.stopped == ""
    assert run.asked[-1][0] == EVALUATE
    assert [r for r, _ in asked(run, CORRECT)] == [1]


def test_fewer_than_four_sites_are_refused(tmp_path):
    three = {site: SITES[site] for site in list(SITES)[:3]}
    run = play(tmp_path, answers(sites=three), sites=three)
    assert run.stopped == "census: expected at least 4 sites for the method of this job, got 3"


@pytest.mark.parametrize("crash", [(TRAIN, 1), (COLLECT, 2), (TRAIN, 4), (COLLECT, 6)])
def test_a_job_that_goes_on_ends_as_if_nothing_had_happened(tmp_path, crash):
    broken = play(tmp_path / "a", failing(answers(), site="site-4", when=lambda *now: now == crash))
    assert broken.stopped
    again, whole = play(tmp_path / "a"), play(tmp_path / "b")
    assert same_models(again.model, whole.model)
    assert again.decisions("noisy_sites") == whole.decisions("noisy_sites")
    assert asked(again, USUAL) == asked(whole, USUAL)


@pytest.mark.parametrize(("stage", "name"), [(TURN, "lid"), (CORRECT, "noise_level")])
def test_a_report_without_the_number_of_its_stage_is_refused(tmp_path, stage, name):
    run = play(tmp_path, answers(drop=stage))
    assert f"report: expected the field {name}, got none" in run.stopped
    FedCorrMasksWorkflow().check(USUAL, {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"iterations": 0}, "job variable iterations: expected at least 1, got 0"),
        ({"finetune_share": 2}, "job variables finetune_share, clean_threshold: expected 0 to 1, got 2, 0.1"),
        ({"clean_threshold": -1}, "job variables finetune_share, clean_threshold: expected 0 to 1, got 0.527, -1"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_sentence(options, sentence):
    with refused(sentence):
        FedCorrMasksWorkflow(**options)
