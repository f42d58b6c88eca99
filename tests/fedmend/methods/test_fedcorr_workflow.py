"""FedCorr at the server: turns, noisy sites, stages, and jobs that go on."""

import numpy as np
import pytest
from factories import refused
from federation_factories import Run, confusion, failing, plain_answers

from fedmend.methods.fedcorr import CORRECT, FINETUNE, RELABEL, TURN, USUAL, FedCorrWorkflow
from fedmend.results import CENSUS, COLLECT, EVALUATE, TRAIN

SITES = [f"site-{i}" for i in range(1, 6)]
LIDS = {"site-1": 1.0, "site-2": 5.0, "site-3": 1.2, "site-4": 5.5, "site-5": 1.1}
NOISY = ["site-2", "site-4"]
LEVELS = {"site-2": 0.6, "site-4": 0.05}  # site-4 is noisy, but hardly


def answers(lids=LIDS, levels=LEVELS):
    counts = lambda round_num: {"test": confusion(0.5, 1)}  # noqa: E731
    plain = plain_answers({s: [1, 1] for s in [*SITES, "site-6"]}, counts=counts, kind="singlelabel")

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if task.stage == TURN:
            result.report = {"lid": np.float32(lids[site])}
        if task.stage == CORRECT:
            result.report = {"noise_level": np.float32(levels.get(site, 0) if task.role == "noisy" else 0)}
        return result

    return answer


def play(folder, answer=None, *, sites=SITES, rounds=4, iterations=2, **settings):
    workflow = FedCorrWorkflow(iterations=iterations, **settings.pop("arguments", {}))
    options = {"num_rounds": rounds, "max_update_factor": 0, "eval_every": 100, **settings}
    return Run(folder, workflow, sites, answer or answers(), **options)


def trained(run, stage):
    """Round → sites that trained in a stage."""
    return {r: sites for question, r, name, sites in run.asked if (question, name) == (TRAIN, stage)}


def crashing(when):
    return failing(answers(), site="site-4", when=lambda *now: now == when, error="")


# ---- stages ---------------------------------------------------------------------------------------------------------


def test_turns_come_before_the_rounds_of_the_job_which_the_two_later_stages_share(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    stages = [(question, r, stage) for question, r, stage in run.stages if question != EVALUATE]
    assert stages == [
        (CENSUS, 0, "census"),
        *((TRAIN, r, TURN) for r in range(5)),
        (COLLECT, 5, CORRECT),
        *((TRAIN, r, TURN) for r in range(5, 10)),
        (COLLECT, 10, CORRECT),
        (TRAIN, 10, FINETUNE),
        (TRAIN, 11, FINETUNE),
        (COLLECT, 12, RELABEL),
        (TRAIN, 12, USUAL),
        (TRAIN, 13, USUAL),
    ]
    assert {task.total_rounds for task, _ in run.transport.sent if task.stage != "census"} == {14}
    assert (run.content("run.json")["num_rounds"], run.content("run.json")["warmup_rounds"]) == (14, 10)


def test_in_each_iteration_every_site_has_one_turn_in_a_random_order(tmp_path):
    turns = trained(play(tmp_path), TURN)
    first, second = ([site for r in part for site in turns[r]] for part in (range(5), range(5, 10)))
    assert sorted(first) == sorted(second) == SITES
    assert first != second
    assert trained(play(tmp_path / "again"), TURN) == turns
    assert trained(play(tmp_path / "other", seed=8), TURN) != turns


def test_the_model_goes_from_site_to_site_without_an_average(tmp_path):
    run = play(tmp_path)  # each site adds 1 to all weights
    assert run.moved()[0] == pytest.approx(14, rel=1e-5)


def test_the_sites_with_the_larger_lid_are_noisy_and_told_so(tmp_path):
    run = play(tmp_path)
    assert run.roles(CORRECT) == {site: {"noisy" if site in NOISY else "clean"} for site in SITES}
    (_, first), (_, value) = run.decisions("noisy_sites")
    assert first["lid"] == {site: pytest.approx(lid, abs=1e-4) for site, lid in LIDS.items()}
    assert value["lid"] == {site: pytest.approx(2 * lid, abs=1e-4) for site, lid in LIDS.items()}
    assert (value["noisy"], value["vote_share"]) == (NOISY, 1.0)
    assert value["noise_level"] == {site: pytest.approx(LEVELS.get(site, 0)) for site in SITES}


def test_the_sum_over_iterations_decides_not_the_last_one(tmp_path):
    plain = answers()

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if task.stage == TURN:
            result.report = {"lid": np.float32(LIDS[site] if task.round_num < 5 else 2.0)}
        return result

    assert play(tmp_path, answer).decisions("noisy_sites")[-1][1]["noisy"] == NOISY


def test_stage_2_is_over_sites_of_a_low_level_and_at_its_end_noisy_sites_relabel(tmp_path):
    run = play(tmp_path)
    clean = ["site-1", "site-3", "site-4", "site-5"]
    assert trained(run, FINETUNE) == {10: clean, 11: clean}
    assert trained(run, USUAL) == {12: SITES, 13: SITES}
    assert run.roles(RELABEL) == {site: {"noisy"} for site in NOISY}


def test_without_a_clean_site_all_take_part_in_stage_2_and_the_records_say_so(tmp_path):
    run = play(tmp_path, arguments={"clean_threshold": 0.0}, answer=answers(levels=dict.fromkeys(SITES, 0.3)))
    assert trained(run, FINETUNE)[10] == ["site-1", "site-3", "site-5"]
    lonely = answers(dict.fromkeys(SITES, 1.0))

    def answer(site, question, weights, task, evaluate):
        result = lonely(site, question, weights, task, evaluate)
        if task.stage == CORRECT:
            result.report = {"noise_level": np.float32(0.3)}
        return result

    run = play(tmp_path / "none", answer)
    assert trained(run, FINETUNE) == {10: SITES, 11: SITES}
    assert run.decisions("fallback") == [(10, "no clean site found: all sites take part in stage 2")]


def test_where_all_are_alike_no_site_is_noisy_and_none_relabels(tmp_path):
    run = play(tmp_path, answers(dict.fromkeys(SITES, 1.0)))
    assert run.decisions("noisy_sites")[0][1]["noisy"] == []
    assert trained(run, FINETUNE)[10] == SITES
    assert run.roles(RELABEL) == {}


@pytest.mark.parametrize(("share", "rounds", "finetune"), [(0.5, 5, 2), (0.01, 3, 1), (1.0, 3, 3)])
def test_stage_2_has_its_share_of_the_rounds_and_at_least_one(tmp_path, share, rounds, finetune):
    run = play(tmp_path, rounds=rounds, iterations=1, arguments={"finetune_share": share})
    assert run.stopped == ""
    assert len(trained(run, FINETUNE)) == finetune
    assert len(trained(run, USUAL)) == rounds - finetune


# ---- sites that are not there ---------------------------------------------------------------------------------------


def test_fewer_than_four_sites_are_refused_before_any_training(tmp_path):
    run = play(tmp_path, sites=SITES[:3])
    assert run.stopped == "census: expected at least 4 sites for the method of this job, got 3"
    assert run.rounds() == []


def test_a_site_that_is_silent_in_its_turn_stops_the_run_and_one_left_out_is_skipped(tmp_path):
    turn = next(r for r, sites in trained(play(tmp_path / "whole"), TURN).items() if sites == ["site-4"])
    run = play(tmp_path / "run", crashing((TRAIN, turn)))
    assert run.stopped == (
        f"train of round {turn}: expected valid results from 1 sites, got 0: site-4: train: expected a result, got none"
    )
    left = [site for site in SITES if site != "site-4"]
    resumed = play(tmp_path / "run", sites=left)
    assert resumed.stopped == ""
    assert [value for _, value in resumed.decisions("turn_skipped")] == ["site-4", "site-4"]
    assert resumed.decisions("noisy_sites")[-1][1]["noisy"] == ["site-2"]
    assert trained(resumed, USUAL)[13] == left


def test_a_site_that_joins_later_is_noisy_as_nothing_speaks_for_it(tmp_path):
    assert play(tmp_path, crashing((TRAIN, 12))).stopped
    joined = play(tmp_path, sites=[*SITES, "site-6"])
    assert joined.stopped == ""
    assert trained(joined, USUAL)[13] == [*SITES, "site-6"]
    early = tmp_path / "early"
    assert play(early, crashing((COLLECT, 5))).stopped
    run = play(early, sites=[*SITES, "site-6"])
    assert run.stopped == ""
    assert run.decisions("noisy_sites")[-1][1]["noisy"] == [*NOISY, "site-6"]


def test_a_site_that_missed_a_turn_is_noisy_however_low_its_lid(tmp_path):
    def silent(site, when):
        return failing(answers(), site=site, when=lambda *now: now == when, error="")

    turn = next(r for r, s in trained(play(tmp_path / "whole"), TURN).items() if r >= 5 and s == ["site-1"])
    run = tmp_path / "run"
    assert play(run, silent("site-1", (TRAIN, turn))).stopped
    assert play(run, silent("site-2", (COLLECT, 10)), sites=SITES[1:]).stopped
    resumed = play(run)
    assert resumed.stopped == ""
    assert resumed.decisions("noisy_sites")[-1][1]["noisy"] == ["site-1", *NOISY]


@pytest.mark.parametrize("when", [(TRAIN, 11), (COLLECT, 10), (COLLECT, 12), (TRAIN, 13)])
def test_a_job_that_goes_on_makes_the_same_decisions(tmp_path, when):
    whole = play(tmp_path / "whole")
    assert play(tmp_path / "crash", crashing(when)).stopped
    resumed = play(tmp_path / "crash")
    assert resumed.stopped == ""
    assert resumed.decisions("noisy_sites") == whole.decisions("noisy_sites")
    assert trained(resumed, USUAL).items() <= trained(whole, USUAL).items()
    assert resumed.moved() == whole.moved()


# ---- reports and settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "name"), [(TURN, "lid"), (CORRECT, "noise_level")])
def test_a_report_without_the_number_of_its_stage_is_refused(stage, name):
    FedCorrWorkflow().check(stage, {name: np.float32(0.5)})
    FedCorrWorkflow().check(USUAL, {})
    with refused(f"report: expected the field {name}, got none"):
        FedCorrWorkflow().check(stage, {})


def test_a_forged_level_stops_the_run(tmp_path):
    run = play(tmp_path, answers(levels={**LEVELS, "site-2": -1.0}))
    assert "report field noise_level: expected numbers from 0 to 1, got -1 to -1" in run.stopped


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"iterations": 0}, "iterations: expected at least 1, got 0"),
        ({"finetune_share": 0.0}, "finetune_share: expected above 0 to 1, got 0.0"),
        ({"clean_threshold": 1.5}, "clean_threshold: expected 0 to 1, got 1.5"),
    ],
)
def test_settings_that_make_no_run_are_refused(settings, sentence):
    with refused(f"job variable {sentence}"):
        FedCorrWorkflow(**settings)
