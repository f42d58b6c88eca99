import math

import numpy as np
import pytest
from factories import refused
from federation_factories import Run, confusion, failing, plain_answers

from fedmend.messages import CENSUS, COLLECT, EVALUATE, TRAIN
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.methods.fednoro import FedNoRoWorkflow
from fedmend.methods.shared import class_losses
from fedmend.methods.shared.dimensions import Detection

CLASSES = ["edema", "nodule"]
SITES = {f"site-{i}": [1, 1] for i in range(1, 6)}
LOSSES = {"site-1": [0.1, 0.4], "site-2": [1.1, 2.4], "site-3": [0.2, 0.4], "site-4": [0.9, 2.0], "site-5": [0.1, 0.5]}
NOISY = ["site-2", "site-4"]
# How far one round moves every weight. From site-2 and site-4 to the nearest clean model it is 1 and 4 in every weight.
STEP = {"site-1": 0.0, "site-2": 2.0, "site-3": 1.0, "site-4": 5.0, "site-5": 0.5}
SAMPLES = {"site-1": 10, "site-2": 20, "site-3": 30, "site-4": 40, "site-5": 50}
FALLBACK = "no {} site found: federated averaging goes on"
ERROR = "site-1: train.csv row 3: expected ..., got ..."


def reports(losses=LOSSES, counts=None):
    """Site → detection report, 7 samples in each class; None for a site without losses."""
    return {
        site: loss
        and {
            "class_loss": np.array(loss, dtype=np.float32),
            "class_count": np.array((counts or {}).get(site, [7] * len(loss))),
        }
        for site, loss in losses.items()
    }


def answers(detected=None, *, sites=SITES, change=lambda site, question, task, result: result):
    """Sites with these detection reports; ``change`` has the last word about an answer."""
    detected = reports() if detected is None else detected
    samples, step = ({s: d.get(s, 10) for s in sites} for d in (SAMPLES, STEP))
    counts = lambda round_num: {"test": confusion(0.5, 1)}  # noqa: E731
    plain = plain_answers(sites, samples=samples, step=step, counts=counts, kind="singlelabel")

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == COLLECT:
            if detected[site] is None:
                return None
            result.report = detected[site]
        return change(site, question, task, result)

    return answer


def play(
    folder, answer=None, *, sites=SITES, workflow=None, rounds=6, min_sites=0, backwards=False, report=False, **changes
):
    """A run of FedNoRo with these settings of its workflow, or of another workflow."""
    workflow = workflow or FedNoRoWorkflow(**{"warmup_rounds": 2, **changes})
    options = {"classes": CLASSES, "num_rounds": rounds, "min_sites": min_sites}
    options |= {"max_update_factor": 0, "max_site_share": 1}
    return Run(folder, workflow, list(sites), answer or answers(), backwards=backwards, report=report, **options)


def crashing(when):
    """``answers`` whose site-1 fails at (question, round)."""
    return failing(answers(), site="site-1", when=lambda *now: now == when, error=ERROR)


def bias(run):
    """How far the run has moved the classifier's bias."""
    return run.moved()[0]


def asked(run, *names):
    return [(name, r) for name, r, *_ in run.asked if name in names]


def told(noisy, sites=SITES):
    return {site: {"noisy" if site in noisy else "clean"} for site in sites}


# ---- the algorithm --------------------------------------------------------------------------------------------------


def test_warm_up_then_one_detection_then_robust_rounds(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    assert run.stages == [
        (CENSUS, 0, "census"),
        (TRAIN, 0, "warmup"),
        (TRAIN, 1, "warmup"),
        (COLLECT, 2, "detect"),
        *((TRAIN, r, "robust") for r in (2, 3, 4, 5)),
        (EVALUATE, 6, "evaluate"),
    ]


def test_the_detection_is_about_the_aggregated_model_of_the_warm_up(tmp_path):
    received, plain = {}, answers()

    def answer(site, task_name, weights, task, evaluate):
        received.setdefault((task_name, task.round_num), weights["classifier.bias"] if weights else None)
        assert not (task_name == COLLECT and evaluate)
        return plain(site, task_name, weights, task, evaluate)

    play(tmp_path, answer)
    np.testing.assert_array_equal(received[COLLECT, 2], received[TRAIN, 2])
    assert not np.array_equal(received[COLLECT, 2], received[TRAIN, 1])


def test_sites_with_large_losses_are_found_and_the_decision_is_recorded_in_full(tmp_path):
    ((round_num, value),) = play(tmp_path).decisions("noisy_client_detection")
    assert round_num == 2
    assert value["noisy"] == NOISY
    assert value["absent"] == []
    assert value["class_loss"] == {site: pytest.approx(loss, abs=1e-4) for site, loss in LOSSES.items()}
    assert value["normalised"]["site-1"] == [0, 0]
    assert value["normalised"]["site-2"] == [1, 1]
    assert value["normalised"]["site-4"] == pytest.approx([0.8, 0.8], abs=1e-4)
    assert (value["vote_share"], value["covariance"]) == (1.0, "spherical")


def test_every_site_is_told_its_role_from_stage_2_on(tmp_path):
    run = play(tmp_path)
    assert run.roles("robust") == told(NOISY)
    assert set.union(*run.roles("warmup").values(), *run.roles("detect").values()) == {""}


def test_lambda_rises_over_39_of_90_rounds_of_stage_2(tmp_path):
    run = play(tmp_path, rounds=12)  # begin 2, end 2 + 39/90 * 10 = 6.33
    expected = [0.8 * math.exp(-5 * (1 - min((r - 2) / 4, 1)) ** 2) for r in range(2, 12)]
    sent = run.knowledge("robust")
    assert [float(sent[r]["distillation_weight"]) for r in range(2, 12)] == pytest.approx(expected)
    assert run.decisions("distillation_weight") == [
        (r + 1, pytest.approx(weight, abs=1e-4)) for r, weight in zip(range(2, 12), expected, strict=True)
    ]
    assert all(not task.knowledge for task, _ in run.transport.sent if task.stage != "robust")


@pytest.mark.parametrize(
    ("rounds", "settings", "expected"),
    [
        (9, {"warmup_rounds": 3}, (3, 6)),  # 39/90 * 6 = 2.6
        (8, {"warmup_rounds": 2}, (2, 5)),  # 39/90 * 6 = 2.6
        (100, {"warmup_rounds": 10}, (10, 49)),  # the paper
        (20, {"warmup_rounds": 8}, (8, 13)),  # 39/90 * 12 = 5.2
        (100, {"warmup_rounds": 10, "ramp_begin": 0, "ramp_end": 20}, (0, 20)),
        (300, {"warmup_rounds": 20, "ramp_end": 149}, (20, 149)),
    ],
    ids=["isic2019", "ich", "paper", "masks", "both given", "end given"],
)
def test_the_ramp_takes_the_share_of_stage_2_that_it_has_in_the_paper(rounds, settings, expected):
    assert FedNoRoWorkflow(**settings).ramp(rounds) == expected


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({}, []),
        ({"ramp_end": 3}, []),
        ({"ramp_end": 2}, ["ramp_end: expected a round after ramp_begin, 2, got 2: lambda does not rise"]),
        ({"ramp_end": 0}, ["ramp_end: expected a round after ramp_begin, 2, got 0: lambda does not rise"]),
        ({"ramp_begin": 5}, ["ramp_end: expected a round after ramp_begin, 5, got 4: lambda does not rise"]),
        ({"warmup_rounds": 5}, []),  # one round of stage 2: nobody asked for a ramp
    ],
    ids=["default", "rises", "end at the begin", "end at the start of the run", "begin after the end", "no room"],
)
def test_a_ramp_without_length_that_somebody_set_is_warned_of(tmp_path, caplog, settings, warned):
    play(tmp_path, **settings)  # 6 rounds: begin 2, end 2 + 39/90 * 4 = 3.73
    assert [text for text in caplog.messages if text.startswith("ramp_end")] == warned


def weighted(distances):
    """Sites' shares of the mean at these D, and the step of the mean."""
    weights = {site: SAMPLES[site] * math.exp(-distances.get(site, 0)) for site in SITES}
    total = sum(weights.values())
    return {s: w / total for s, w in weights.items()}, sum(weights[s] * STEP[s] for s in SITES) / total


def test_warm_up_averages_by_samples_and_stage_2_by_distance_to_the_nearest_clean_model(tmp_path):
    run = play(tmp_path)
    shares, robust = weighted({"site-2": 0.25, "site-4": 1})
    plain = weighted({})[1]
    assert bias(run) == pytest.approx(2 * plain + 4 * robust, rel=1e-4)
    recorded = run.decisions("aggregation_weights")
    assert [r for r, _ in recorded] == [3, 4, 5, 6]  # rounds done
    for _, value in recorded:
        assert value == pytest.approx(shares, abs=1e-4)
        assert sum(value.values()) == pytest.approx(1, abs=1e-3)


def test_stage_2_averages_by_samples_where_the_aggregation_is_left_out(tmp_path):
    run = play(tmp_path, aggregation="samples")
    assert run.roles("robust") == told(NOISY)
    shares, step = weighted({})
    assert bias(run) == pytest.approx(6 * step, rel=1e-4)
    assert all(value == pytest.approx(shares, abs=1e-4) for _, value in run.decisions("aggregation_weights"))


def test_noisy_sites_take_no_part_in_stage_2_where_only_clean_ones_do(tmp_path):
    run = play(tmp_path, aggregation="clean")
    assert run.stopped == ""
    assert run.roles("robust") == told([], [site for site in SITES if site not in NOISY])
    clean = (10 * 0 + 30 * 1 + 50 * 0.5) / 90
    assert bias(run) == pytest.approx(2 * weighted({})[1] + 4 * clean, rel=1e-4)


def test_an_unknown_aggregation_is_refused():
    known = "['distance', 'samples', 'clean']"
    with refused(f"job variable aggregation: expected one of {known}, got 'median'"):
        FedNoRoWorkflow(warmup_rounds=2, aggregation="median")


def test_one_loss_per_site_as_ablation(tmp_path):
    counts = {"site-1": [1, 3]}
    run = play(tmp_path, answers(reports(counts=counts)), detection_per_class=False)
    ((_, value),) = run.decisions("noisy_client_detection")
    assert value["class_loss"]["site-1"] == pytest.approx([(0.1 + 3 * 0.4) / 4], abs=1e-4)
    assert value["normalised"]["site-2"] == [1.0]
    assert value["noisy"] == NOISY
    assert run.decisions("class_at_one_site") == []


# ---- sites without losses -------------------------------------------------------------------------------------------


def wrong(**changes):
    return reports() | {"site-5": reports()["site-5"] | changes}


@pytest.mark.parametrize(
    ("detected", "reason"),
    [
        (reports() | {"site-5": None}, "site-5: collect: expected a result, got none"),
        (
            wrong(class_loss=np.array([np.nan, 1], dtype=np.float32)),
            "site-5: result of round 2, report field class_loss: expected finite numbers, got NaN or infinity",
        ),
        (
            wrong(class_loss=np.ones(3, dtype=np.float32)),
            "site-5: result of round 2, report field class_loss: expected float32 of shape (2,), got float32"
            " of shape (3,)",
        ),
        (
            wrong(class_count=np.ones((2, 2), dtype=int)),
            "site-5: result of round 2, report field class_count: expected int64 of shape (2,), got int64"
            " of shape (2, 2)",
        ),
        (
            reports() | {"site-5": {}},
            "site-5: report: expected ['class_count', 'class_loss'], got none of ['class_count', 'class_loss']",
        ),
        (
            wrong(class_count=np.zeros(2, dtype=int)),
            "site-5: report field class_count: expected at least one class with enough samples, got none",
        ),
    ],
    ids=["silent", "NaN", "three classes", "counts of another shape", "nothing", "no samples"],
)
def test_a_site_without_usable_losses_is_treated_as_noisy_and_recorded(tmp_path, detected, reason):
    run = play(tmp_path, answers(detected))
    assert run.stopped == ""
    assert run.decisions("refused") == [(2, {"site": "site-5", "reason": reason})]
    ((_, value),) = run.decisions("noisy_client_detection")
    assert (value["noisy"], value["absent"]) == (NOISY, ["site-5"])
    assert "site-5" not in value["class_loss"]
    assert run.roles("robust") == told([*NOISY, "site-5"])
    shares = run.decisions("aggregation_weights")[0][1]
    assert set(shares) == set(SITES)  # it trains and counts as before, by its distance: 0.5 of 4
    assert shares["site-5"] / shares["site-3"] == pytest.approx(50 / 30 * math.exp(-0.5 / 4), rel=1e-3)


def test_a_site_without_losses_is_noisy_even_where_no_other_site_is(tmp_path):
    detected = reports({site: [0.5, 0.5] for site in SITES}) | {"site-5": None}
    run = play(tmp_path, answers(detected))
    assert run.decisions("noisy_client_detection")[0][1]["absent"] == ["site-5"]
    assert run.roles("robust") == told(["site-5"])
    assert run.decisions("fallback") == []  # it is not federated averaging: site-5 is weighed by its distance
    shares = run.decisions("aggregation_weights")[0][1]
    assert shares["site-5"] / shares["site-1"] == pytest.approx(5 * math.exp(-1), rel=1e-2)


def test_losses_of_fewer_than_four_sites_stop_the_run(tmp_path):
    detected = reports() | {"site-5": None, "site-4": None}
    sentence = play(tmp_path, answers(detected), min_sites=1).stopped
    assert sentence == (
        "collect of round 2: expected valid results from 4 sites, got 3: site-4: collect: expected a result, got none;"
        " site-5: collect: expected a result, got none"
    )


def test_a_site_that_misses_a_robust_round_leaves_the_shares_of_the_others(tmp_path):
    def silent(site, name, task, result):
        return None if (site, name, task.round_num) == ("site-4", TRAIN, 3) else result

    run = play(tmp_path, answers(change=silent), min_sites=4)
    assert run.stopped == ""
    shares = dict(run.decisions("aggregation_weights"))
    assert set(shares[4]) == set(SITES) - {"site-4"}
    assert set(shares[3]) == set(shares[5]) == set(SITES)
    assert shares[4]["site-2"] / shares[4]["site-1"] == pytest.approx(2 * math.exp(-1), rel=1e-2)  # now the farthest


# ---- nothing to tell apart ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [[0.5, 0.5], [0.0, 0.0]])
def test_without_a_noisy_site_federated_averaging_goes_on_and_the_records_say_so(tmp_path, loss):
    run = play(tmp_path / "noro", answers(reports(dict.fromkeys(SITES, loss))))
    assert run.stopped == ""
    assert run.decisions("fallback") == [(2, FALLBACK.format("noisy"))]
    assert run.decisions("noisy_client_detection")[0][1]["noisy"] == []
    assert run.roles("robust") == told([])
    assert run.decisions("aggregation_weights") == run.decisions("distillation_weight") == []
    assert bias(run) == pytest.approx(bias(play(tmp_path / "avg", workflow=FedAvgWorkflow())), rel=1e-5)


@pytest.mark.parametrize(("least", "noisy"), [(0.67, []), (0.5, ["site-2"])])
def test_a_split_on_which_the_mixtures_disagree_makes_no_site_noisy(tmp_path, monkeypatch, least, noisy):
    monkeypatch.setattr(
        class_losses,
        "detect_noisy_clients",
        lambda losses, **settings: Detection(np.arange(len(losses)) == 1, 5 / 9, "spherical"),
    )
    run = play(tmp_path, answers(reports()), min_vote_share=least)
    assert run.stopped == ""
    (found,) = run.decisions("noisy_client_detection")
    assert (found[1]["noisy"], found[1]["vote_share"]) == (noisy, 0.5556)
    assert run.decisions("fallback") == ([] if noisy else [(2, FALLBACK.format("noisy"))])
    assert run.roles("robust") == told(noisy)


@pytest.mark.parametrize("absent", [[], ["site-5"]])
def test_without_a_clean_site_federated_averaging_goes_on_and_the_records_say_so(tmp_path, monkeypatch, absent):
    monkeypatch.setattr(
        class_losses,
        "detect_noisy_clients",
        lambda losses, **settings: Detection(np.ones(len(losses), dtype=bool), 1.0, "diag"),
    )
    run = play(tmp_path / "noro", answers(reports() | dict.fromkeys(absent)))
    assert run.stopped == ""
    assert run.decisions("fallback") == [(2, FALLBACK.format("clean"))]
    assert run.decisions("noisy_client_detection")[0][1]["noisy"] == [s for s in SITES if s not in absent]
    assert run.roles("robust") == told([])
    assert bias(run) == pytest.approx(bias(play(tmp_path / "avg", workflow=FedAvgWorkflow())), rel=1e-5)


def test_a_class_at_one_site_only_is_recorded_and_says_nothing(tmp_path):
    counts = {site: [7, 0] for site in SITES if site != "site-3"}
    losses = {site: [loss[0], loss[1] if site == "site-3" else 0] for site, loss in LOSSES.items()}
    run = play(tmp_path, answers(reports(losses, counts)))
    assert run.stopped == ""
    assert run.decisions("class_at_one_site") == [(2, "nodule is at site-3 only and says nothing about noise")]
    ((_, value),) = run.decisions("noisy_client_detection")
    assert value["class_loss"]["site-1"] == [pytest.approx(0.1), None]
    assert {row[1] for row in value["normalised"].values()} == {0}
    assert value["noisy"] == NOISY


def test_a_class_of_nobody_is_no_column_that_one_site_has(tmp_path):
    losses = {site: [loss[0], 0] for site, loss in LOSSES.items()}
    run = play(tmp_path, answers(reports(losses, {site: [7, 0] for site in SITES})))
    assert run.stopped == ""
    assert run.decisions("class_at_one_site") == []
    assert run.roles("robust") == told(NOISY)


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_a_crash_in_stage_2_keeps_the_roles_and_does_not_detect_again(tmp_path):
    whole = play(tmp_path / "whole")
    assert play(tmp_path / "crash", crashing((TRAIN, 4))).stopped
    resumed = play(tmp_path / "crash", answers(dict.fromkeys(SITES)))  # no site would report again
    assert resumed.stopped == ""
    assert asked(resumed, COLLECT) == []
    assert sorted(set(asked(resumed, TRAIN))) == [(TRAIN, 4), (TRAIN, 5)]
    assert resumed.roles("robust") == told(NOISY)
    assert len(resumed.decisions("noisy_client_detection")) == 1
    assert resumed.decisions("aggregation_weights") == whole.decisions("aggregation_weights")
    assert bias(resumed) == bias(whole)


@pytest.mark.parametrize(
    ("when", "first"), [((TRAIN, 1), 1), ((TRAIN, 2), 2)], ids=["in warm-up", "behind the detection"]
)
def test_a_crash_before_stage_2_is_saved_detects_once_more_and_records_it_once(tmp_path, when, first):
    whole = play(tmp_path / "whole")
    assert play(tmp_path / "crash", crashing(when)).stopped
    resumed = play(tmp_path / "crash")
    assert resumed.stopped == ""
    assert asked(resumed, COLLECT) == [(COLLECT, 2)]
    assert min(asked(resumed, TRAIN)) == (TRAIN, first)
    assert resumed.roles("robust") == told(NOISY)
    assert resumed.decisions("noisy_client_detection") == whole.decisions("noisy_client_detection")
    assert bias(resumed) == bias(whole)


def test_a_site_that_joins_behind_the_detection_is_noisy(tmp_path):
    assert play(tmp_path, crashing((TRAIN, 4))).stopped
    joined = {**SITES, "site-6": [1, 1]}
    resumed = play(tmp_path, answers(sites=joined), sites=joined)
    assert resumed.stopped == ""
    assert resumed.roles("robust") == told([*NOISY, "site-6"], joined)


def test_a_run_that_goes_on_without_its_clean_sites_averages_all_that_are_left(tmp_path):
    assert play(tmp_path, crashing((TRAIN, 4)), aggregation="clean").stopped
    left = {site: [1, 1] for site in [*NOISY, "site-6", "site-7"]}
    resumed = play(tmp_path, answers(sites=left), sites=left, aggregation="clean")
    assert resumed.stopped == ""
    assert resumed.roles("robust") == told(left, left)


def test_a_run_that_goes_on_with_a_warm_up_that_is_over_detects_at_once(tmp_path):
    assert play(tmp_path, crashing((TRAIN, 3)), warmup_rounds=5).stopped
    resumed = play(tmp_path, warmup_rounds=2)
    assert asked(resumed, COLLECT) == [(COLLECT, 3)]
    assert resumed.roles("robust") == told(NOISY)


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"votes": 0}, "job variable votes: expected at least 1, got 0"),
        ({"warmup_rounds": 0}, "job variable warmup_rounds: expected at least 1, got 0"),
        ({"ramp_maximum": 1.1}, "job variable ramp_maximum: expected 0 to 1, got 1.1"),
        ({"ramp_maximum": -0.1}, "job variable ramp_maximum: expected 0 to 1, got -0.1"),
        ({"ramp_maximum": float("nan")}, "job variable ramp_maximum: expected 0 to 1, got nan"),
        ({"min_vote_share": 1.5}, "job variable min_vote_share: expected 0 to 1, got 1.5"),
        (
            {"warmup_rounds": 7},
            "job variables warmup_rounds, num_rounds: expected the warm-up to fit into the run, got 7 of 6",
        ),
    ],
)
def test_settings_that_make_no_run_are_refused_at_once(tmp_path, setting, sentence):
    with refused(sentence):
        play(tmp_path, **setting)
