import math

import numpy as np
import pytest
import torch
from fl_factories import Federation, confusion, plain_answers
from torch_factories import TinyNetwork

from fedmend import networks
from fedmend.methods.fednoro import Detection
from fedmend.reporting import summary_text, write_report
from fl_components.controllers.fedavg import FedAvgController
from fl_components.controllers.fednoro import FedNoRoController
from fl_components.payload import CENSUS, COLLECT, EVALUATE, TRAIN, SiteResult

CLASSES = ["edema", "nodule"]
SITES = {f"site-{i}": [1, 1] for i in range(1, 6)}
LOSSES = {"site-1": [0.1, 0.4], "site-2": [1.1, 2.4], "site-3": [0.2, 0.4], "site-4": [0.9, 2.0], "site-5": [0.1, 0.5]}
NOISY = ["site-2", "site-4"]
# How far one round moves every weight. From site-2 and site-4 to the nearest clean model it is 1 and 4 in every weight.
STEP = {"site-1": 0.0, "site-2": 2.0, "site-3": 1.0, "site-4": 5.0, "site-5": 0.5}
SAMPLES = {"site-1": 10, "site-2": 20, "site-3": 30, "site-4": 40, "site-5": 50}
FALLBACK = "no {} site found: federated averaging goes on"


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", lambda classes: TinyNetwork(classes, torch.initial_seed()))
    monkeypatch.setattr("fl_components.controllers.staged.write_report", lambda folder: None)
    monkeypatch.setattr("fl_components.controllers.staged.summary_text", lambda folder: "")


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


def answers(detected=None, *, sites=SITES, change=lambda site, name, task, result: result):
    """Sites with these detection reports; ``change`` has the last word about an answer."""
    detected = reports() if detected is None else detected
    samples, step = ({s: d.get(s, 10) for s in sites} for d in (SAMPLES, STEP))
    counts = lambda round_num: {"test": confusion(0.5, 1)}  # noqa: E731
    plain = plain_answers(sites, samples=samples, step=step, counts=counts, task="singlelabel")

    def answer(site, task_name, weights, task, evaluate):
        result = plain(site, task_name, weights, task, evaluate)
        if task_name == COLLECT:
            if detected[site] is None:
                return None
            result.report = detected[site]
        return change(site, task_name, task, result)

    return answer


def controller(kind=FedNoRoController, **changes):
    settings = {"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": 6, "warmup_rounds": 2}
    return kind(**{**settings, **changes})


def play(folder, answer=None, *, sites=SITES, kind=FedNoRoController, **changes):
    return Federation(folder, controller(kind, **changes), list(sites), answer or answers()).run()


def crashing(when, error="site-1: train.csv row 3: expected ..., got ..."):
    """``answers`` whose site-1 fails at (task name, round)."""
    return answers(
        change=lambda site, name, task, result: (
            SiteResult(error=error) if site == "site-1" and (name, task.round_num) == when else result
        )
    )


def bias(federation):
    """How far the run has moved the classifier's bias."""
    model = torch.load(federation.app / "FL_global_model.pt", weights_only=False)["model"]
    start = networks.initial_network("tiny", CLASSES, 0).state_dict()
    return float((model["classifier.bias"] - start["classifier.bias"])[0])


def asked(federation, *names):
    return [(name, r) for name, r, *_ in federation.asked if name in names]


def roles(federation, stage="robust"):
    """Site → roles that it was told in a stage."""
    told = {}
    for task, sites, _ in federation.sent:
        if task.stage == stage:
            for site in sites:
                told.setdefault(site, set()).add(task.role)
    return told


def told(noisy, sites=SITES):
    return {site: {"noisy" if site in noisy else "clean"} for site in sites}


# ---- the algorithm --------------------------------------------------------------------------------------------------


def test_warm_up_then_one_detection_then_robust_rounds(tmp_path):
    federation = play(tmp_path)
    assert federation.engine.panics() == []
    stages = list(dict.fromkeys((name, r, stage) for name, r, stage, _ in federation.asked))
    assert stages == [
        (CENSUS, 0, "census"),
        (TRAIN, 0, "warmup"),
        (TRAIN, 1, "warmup"),
        (COLLECT, 2, "detect"),
        *((TRAIN, r, "robust") for r in (2, 3, 4, 5)),
        (EVALUATE, 6, "evaluate"),
    ]
    assert len(federation.asked) == 1 + 2 + 1 + 4 * 2 + 2  # two roles from stage 2 on


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


def test_every_site_is_told_its_role_from_stage_2_on_and_no_other_ones(tmp_path):
    federation = play(tmp_path)
    assert roles(federation) == told(NOISY)
    assert set.union(*roles(federation, "warmup").values(), *roles(federation, "detect").values()) == {""}
    for task, _, meta in federation.sent:
        assert not any(site in str(meta) for site in SITES)
        if task.stage == "robust":
            assert [role in str(meta) for role in ("clean", "noisy")] == [task.role == "clean", task.role == "noisy"]


def test_lambda_rises_from_the_first_robust_round_to_half_of_the_rounds(tmp_path):
    federation = play(tmp_path, num_rounds=12)  # begin 2, end 12 / 2 - 1 = 5
    expected = [0.8 * math.exp(-5 * (1 - min((r - 2) / 3, 1)) ** 2) for r in range(2, 12)]
    sent = {t.round_num: t.knowledge for t, *_ in federation.sent if t.stage == "robust"}
    assert [float(sent[r]["distillation_weight"]) for r in range(2, 12)] == pytest.approx(expected)
    assert federation.decisions("distillation_weight") == [
        (r + 1, pytest.approx(weight, abs=1e-4)) for r, weight in zip(range(2, 12), expected, strict=True)
    ]
    assert all(not t.knowledge for t, *_ in federation.sent if t.stage in ("warmup", "detect", "evaluate"))


def test_the_ramp_can_be_set(tmp_path):
    federation = play(tmp_path, ramp_begin=0, ramp_end=4, ramp_maximum=0.6)
    expected = [0.6 * math.exp(-5 * (1 - min(r / 4, 1)) ** 2) for r in range(2, 6)]
    assert [weight for _, weight in federation.decisions("distillation_weight")] == pytest.approx(expected, abs=1e-4)


def weighted(distances):
    """Sites' shares of the mean at these D, and the step of the mean."""
    weights = {site: SAMPLES[site] * math.exp(-distances.get(site, 0)) for site in SITES}
    total = sum(weights.values())
    return {s: w / total for s, w in weights.items()}, sum(weights[s] * STEP[s] for s in SITES) / total


def test_warm_up_averages_by_samples_and_stage_2_by_distance_to_the_nearest_clean_model(tmp_path):
    federation = play(tmp_path)
    shares, robust = weighted({"site-2": 0.25, "site-4": 1})
    plain = weighted({})[1]
    assert bias(federation) == pytest.approx(2 * plain + 4 * robust, rel=1e-4)
    recorded = federation.decisions("aggregation_weights")
    assert [r for r, _ in recorded] == [3, 4, 5, 6]  # rounds done
    for _, value in recorded:
        assert value == pytest.approx(shares, abs=1e-4)
        assert sum(value.values()) == pytest.approx(1, abs=1e-3)


def test_the_distance_can_be_chosen(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        "fl_components.aggregators.model_distances",
        lambda models, noisy, **settings: made.append(settings) or noisy * 1.0,
    )
    play(tmp_path, distance="l2", distance_buffers=False)
    assert made == [{"distance": "l2", "buffers": False}] * 4


def test_the_order_in_which_answers_arrive_changes_no_bit(tmp_path):
    models = []
    for backwards in (False, True):
        folder = tmp_path / str(backwards)
        Federation(folder, controller(), list(SITES), answers(), backwards=backwards).run()
        models.append(torch.load(folder / "job-1" / "app_server" / "FL_global_model.pt", weights_only=False)["model"])
    assert all(torch.equal(v, models[1][k]) for k, v in models[0].items())


def test_a_run_of_warm_up_alone_detects_nothing(tmp_path):
    federation = play(tmp_path, num_rounds=2)
    assert federation.engine.panics() == []
    assert asked(federation, COLLECT) == []
    assert federation.decisions("noisy_client_detection") == []


def test_one_loss_per_site_as_ablation(tmp_path):
    counts = {"site-1": [1, 3]}
    federation = play(tmp_path, answers(reports(counts=counts)), detection_per_class=False)
    ((_, value),) = federation.decisions("noisy_client_detection")
    assert value["class_loss"]["site-1"] == pytest.approx([(0.1 + 3 * 0.4) / 4], abs=1e-4)
    assert value["normalised"]["site-2"] == [1.0]
    assert value["noisy"] == NOISY
    assert federation.decisions("class_at_one_site") == []


def test_no_normalisation_as_ablation(tmp_path):
    ((_, value),) = play(tmp_path, detection_normalise=False).decisions("noisy_client_detection")
    assert value["normalised"] == value["class_loss"]


def test_the_report_shows_what_the_server_decided(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_components.controllers.staged.write_report", write_report)
    monkeypatch.setattr("fl_components.controllers.staged.summary_text", summary_text)
    federation = play(tmp_path)
    assert federation.engine.panics() == []
    page = (federation.records / "report.html").read_text()
    assert "2 of 5 sites were judged noisy: site-2, site-4" in page


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
            "site-5: report field class_loss: expected one number for each of 2 classes, got (3,)",
        ),
        (
            wrong(class_count=np.ones((2, 2), dtype=int)),
            "site-5: report field class_count: expected one number for each of 2 classes, got (2, 2)",
        ),
        (
            reports() | {"site-5": {}},
            "site-5: report field class_loss: expected one number for each of 2 classes, got nothing",
        ),
        (
            wrong(class_count=np.zeros(2, dtype=int)),
            "site-5: report field class_count: expected at least one class with enough samples, got none",
        ),
    ],
    ids=["silent", "NaN", "three classes", "counts of another shape", "nothing", "no samples"],
)
def test_a_site_without_usable_losses_is_treated_as_noisy_and_recorded(tmp_path, detected, reason):
    federation = play(tmp_path, answers(detected))
    assert federation.engine.panics() == []
    assert federation.decisions("refused") == [(2, {"site": "site-5", "reason": reason})]
    ((_, value),) = federation.decisions("noisy_client_detection")
    assert (value["noisy"], value["absent"]) == (NOISY, ["site-5"])
    assert "site-5" not in value["class_loss"]
    assert roles(federation) == told([*NOISY, "site-5"])
    shares = federation.decisions("aggregation_weights")[0][1]
    assert set(shares) == set(SITES)  # it trains and counts as before, by its distance: 0.5 of 4
    assert shares["site-5"] / shares["site-3"] == pytest.approx(50 / 30 * math.exp(-0.5 / 4), rel=1e-3)


def test_a_site_without_losses_is_noisy_even_where_no_other_site_is(tmp_path):
    detected = reports({site: [0.5, 0.5] for site in SITES}) | {"site-5": None}
    federation = play(tmp_path, answers(detected))
    assert federation.decisions("noisy_client_detection")[0][1]["absent"] == ["site-5"]
    assert roles(federation) == told(["site-5"])
    assert federation.decisions("fallback") == []  # it is not federated averaging: site-5 is weighed by its distance
    shares = federation.decisions("aggregation_weights")[0][1]
    assert shares["site-5"] / shares["site-1"] == pytest.approx(5 * math.exp(-1), rel=1e-2)


def test_losses_of_fewer_than_four_sites_stop_the_run(tmp_path):
    detected = reports() | {"site-5": None, "site-4": None}
    (sentence,) = play(tmp_path, answers(detected), min_sites=1).engine.panics()
    assert sentence == (
        "collect of round 2: expected valid results from 4 sites, got 3: site-4: collect: expected a result, got none;"
        " site-5: collect: expected a result, got none"
    )


def test_fewer_than_four_sites_are_refused_before_any_training(tmp_path):
    three = {site: SITES[site] for site in list(SITES)[:3]}
    federation = play(tmp_path, sites=three)
    assert federation.engine.panics() == ["census: expected at least 4 sites to tell noisy from clean ones, got 3"]
    assert asked(federation, TRAIN) == []


def test_a_site_that_misses_a_robust_round_leaves_the_shares_of_the_others(tmp_path):
    def silent(site, name, task, result):
        return None if (site, name, task.round_num) == ("site-4", TRAIN, 3) else result

    federation = play(tmp_path, answers(change=silent), min_sites=4)
    assert federation.engine.panics() == []
    shares = dict(federation.decisions("aggregation_weights"))
    assert set(shares[4]) == set(SITES) - {"site-4"}
    assert set(shares[3]) == set(shares[5]) == set(SITES)
    assert shares[4]["site-2"] / shares[4]["site-1"] == pytest.approx(2 * math.exp(-1), rel=1e-2)  # now the farthest


# ---- nothing to tell apart ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [[0.5, 0.5], [0.0, 0.0]])
def test_without_a_noisy_site_federated_averaging_goes_on_and_the_records_say_so(tmp_path, loss):
    federation = play(tmp_path / "noro", answers(reports(dict.fromkeys(SITES, loss))))
    assert federation.engine.panics() == []
    assert federation.decisions("fallback") == [(2, FALLBACK.format("noisy"))]
    assert federation.decisions("noisy_client_detection")[0][1]["noisy"] == []
    assert roles(federation) == told([])
    assert federation.decisions("aggregation_weights") == federation.decisions("distillation_weight") == []
    assert bias(federation) == pytest.approx(bias(play(tmp_path / "avg", kind=FedAvgController)), rel=1e-5)


@pytest.mark.parametrize(("least", "noisy"), [(0.67, []), (0.5, ["site-2"])])
def test_a_split_on_which_the_mixtures_disagree_makes_no_site_noisy(tmp_path, monkeypatch, least, noisy):
    monkeypatch.setattr(
        "fl_components.controllers.fednoro.detect_noisy_clients",
        lambda losses, **settings: Detection(np.arange(len(losses)) == 1, 5 / 9, "spherical"),
    )
    federation = play(tmp_path, answers(reports()), min_vote_share=least)
    assert federation.engine.panics() == []
    (found,) = federation.decisions("noisy_client_detection")
    assert (found[1]["noisy"], found[1]["vote_share"]) == (noisy, 0.5556)
    assert federation.decisions("fallback") == ([] if noisy else [(2, FALLBACK.format("noisy"))])
    assert roles(federation) == told(noisy)


@pytest.mark.parametrize("absent", [[], ["site-5"]])
def test_without_a_clean_site_federated_averaging_goes_on_and_the_records_say_so(tmp_path, monkeypatch, absent):
    monkeypatch.setattr(
        "fl_components.controllers.fednoro.detect_noisy_clients",
        lambda losses, **settings: Detection(np.ones(len(losses), dtype=bool), 1.0, "diag"),
    )
    federation = play(tmp_path / "noro", answers(reports() | dict.fromkeys(absent)))
    assert federation.engine.panics() == []
    assert federation.decisions("fallback") == [(2, FALLBACK.format("clean"))]
    assert federation.decisions("noisy_client_detection")[0][1]["noisy"] == [s for s in SITES if s not in absent]
    assert roles(federation) == told([])
    assert bias(federation) == pytest.approx(bias(play(tmp_path / "avg", kind=FedAvgController)), rel=1e-5)


def test_a_class_at_one_site_only_is_recorded_and_says_nothing(tmp_path):
    counts = {site: [7, 0] for site in SITES if site != "site-3"}
    losses = {site: [loss[0], loss[1] if site == "site-3" else 0] for site, loss in LOSSES.items()}
    federation = play(tmp_path, answers(reports(losses, counts)))
    assert federation.engine.panics() == []
    assert federation.decisions("class_at_one_site") == [(2, "nodule is at site-3 only and says nothing about noise")]
    ((_, value),) = federation.decisions("noisy_client_detection")
    assert value["class_loss"]["site-1"] == [pytest.approx(0.1), None]
    assert {row[1] for row in value["normalised"].values()} == {0}
    assert value["noisy"] == NOISY


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_a_crash_in_stage_2_keeps_the_roles_and_does_not_detect_again(tmp_path):
    whole = play(tmp_path / "whole")
    assert play(tmp_path / "crash", crashing((TRAIN, 4))).engine.panics()
    resumed = play(tmp_path / "crash", answers(dict.fromkeys(SITES)))  # no site would report again
    assert resumed.engine.panics() == []
    assert asked(resumed, COLLECT) == []
    assert sorted(set(asked(resumed, TRAIN))) == [(TRAIN, 4), (TRAIN, 5)]
    assert roles(resumed) == told(NOISY)
    assert len(resumed.decisions("noisy_client_detection")) == 1
    assert resumed.decisions("aggregation_weights") == whole.decisions("aggregation_weights")
    assert bias(resumed) == bias(whole)


@pytest.mark.parametrize(
    ("when", "first"), [((TRAIN, 1), 1), ((TRAIN, 2), 2)], ids=["in warm-up", "behind the detection"]
)
def test_a_crash_before_stage_2_is_saved_detects_once_more_and_records_it_once(tmp_path, when, first):
    whole = play(tmp_path / "whole")
    assert play(tmp_path / "crash", crashing(when)).engine.panics()
    resumed = play(tmp_path / "crash")
    assert resumed.engine.panics() == []
    assert asked(resumed, COLLECT) == [(COLLECT, 2)]
    assert min(asked(resumed, TRAIN)) == (TRAIN, first)
    assert roles(resumed) == told(NOISY)
    assert resumed.decisions("noisy_client_detection") == whole.decisions("noisy_client_detection")
    assert bias(resumed) == bias(whole)


def test_a_failed_detection_is_done_again_by_the_next_job(tmp_path):
    few = reports() | dict.fromkeys(["site-4", "site-5"])
    assert play(tmp_path, answers(few)).engine.panics()
    resumed = play(tmp_path)
    assert resumed.engine.panics() == []
    assert asked(resumed, CENSUS, COLLECT, TRAIN)[:3] == [(CENSUS, 0), (COLLECT, 2), (TRAIN, 2)]


def test_a_site_that_joins_behind_the_detection_is_noisy(tmp_path):
    assert play(tmp_path, crashing((TRAIN, 4))).engine.panics()
    joined = {**SITES, "site-6": [1, 1]}
    resumed = play(tmp_path, answers(sites=joined), sites=joined)
    assert resumed.engine.panics() == []
    assert roles(resumed) == told([*NOISY, "site-6"], joined)


def test_a_resumed_job_does_without_a_site_that_is_gone(tmp_path):
    assert play(tmp_path, crashing((TRAIN, 4))).engine.panics()
    left = {site: SITES[site] for site in SITES if site != "site-2"}
    resumed = play(tmp_path, answers(sites=left), sites=left)
    assert resumed.engine.panics() == []
    assert roles(resumed) == told(["site-4"], left)


# ---- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"covariance": "diag"}, "unknown covariance 'diag' or distance 'sum'"),
        ({"distance": "cosine"}, "unknown covariance 'auto' or distance 'cosine'"),
        ({"votes": 0}, "expected votes >= 1, ramp_maximum and min_vote_share from 0 to 1, got 0, 0.8 and 0.67"),
        (
            {"ramp_maximum": 1.1},
            "expected votes >= 1, ramp_maximum and min_vote_share from 0 to 1, got 9, 1.1 and 0.67",
        ),
        ({"ramp_maximum": -0.1}, "got 9, -0.1 and 0.67"),
        ({"ramp_maximum": float("nan")}, "got 9, nan and 0.67"),
        ({"min_vote_share": 1.5}, "got 9, 0.8 and 1.5"),
        ({"warmup_rounds": 7}, "expected 1 <= warmup_rounds <= num_rounds, got 7 and 6"),
    ],
)
def test_settings_that_make_no_run_are_refused_at_once(setting, sentence):
    with pytest.raises(ValueError, match=sentence):
        controller(**setting)


def test_votes_and_covariance_reach_the_mixtures(tmp_path, monkeypatch):
    made = []

    class Fake:
        means_ = np.array([[0.0, 0.0], [1.0, 1.0]])

        def __init__(self, components, **options):
            made.append(options)

        def fit_predict(self, losses):
            return (losses.sum(1) > 1).astype(int)

    monkeypatch.setattr("sklearn.mixture.GaussianMixture", Fake)
    federation = play(tmp_path, votes=3, covariance="full")
    assert made == [{"covariance_type": "full", "random_state": seed} for seed in range(3)]
    assert federation.decisions("noisy_client_detection")[0][1]["covariance"] == "full"
    assert roles(federation) == told(NOISY)


def test_a_baseline_can_be_run_in_the_job_of_the_method():
    built = controller(FedAvgController, votes=9, ramp_begin=-1, distance="sum", detection_per_class=True, seed=3)
    assert (built.card.seed, built.num_rounds, built.warmup_rounds) == (3, 6, 0)


def test_an_error_in_stage_2_names_stage_round_and_site(tmp_path):
    (sentence,) = play(tmp_path, crashing((TRAIN, 3))).engine.panics()
    assert sentence == (
        "train of round 3: expected valid results from 5 sites, got 4: site-1: train.csv row 3: expected ..., got ..."
    )
