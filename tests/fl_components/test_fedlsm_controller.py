import numpy as np
import pytest
import torch
from fl_factories import Federation, confusion, plain_answers
from torch_factories import TinyNetwork

from fedmend import networks
from fl_components.controllers.fedlsm import FedLSMController
from fl_components.payload import CENSUS, EVALUATE, TRAIN, SiteResult

CLASSES = ["edema", "nodule", "mass"]
SITES = {"site-1": [1, 0, 0], "site-2": [1, 1, 0], "site-3": [0, 0, 1]}
STEP = {"site-1": 1.0, "site-2": 3.0, "site-3": 6.0}  # how far one round moves every weight
SAMPLES = {"site-1": 10, "site-2": 30, "site-3": 60}
Q = {"site-1": [4, 2, 0], "site-2": [12, 4, 0], "site-3": [0, 2, 0]}
HEAD = ["classifier.weight", "classifier.bias"]


@pytest.fixture(autouse=True)
def tiny_network(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "tiny", lambda classes: TinyNetwork(classes, torch.initial_seed()))
    monkeypatch.setattr("fl_components.controllers.staged.write_report", lambda folder: None)
    monkeypatch.setattr("fl_components.controllers.staged.summary_text", lambda folder: "")


def report(site):
    return {"class_knowledge": np.array(Q[site], dtype=np.float32), "uncertainty": np.arange(20) * int(site[-1])}


def answers(*, task="multilabel", change=lambda site, name, task, result: result):
    """Sites that report Q; ``change`` has the last word about an answer."""
    counts = (lambda round_num: {"test": confusion(0.5, 1, 1) // 2}) if task == "singlelabel" else None
    plain = plain_answers(SITES, samples=SAMPLES, step=STEP, counts=counts, task=task)

    def answer(site, task_name, weights, task, evaluate):
        result = plain(site, task_name, weights, task, evaluate)
        if task_name == TRAIN:
            result.report = report(site)
        return change(site, task_name, task, result)

    return answer


def controller(**changes):
    settings = {"run_name": "run-1", "classes": CLASSES, "network": "tiny", "num_rounds": 3, "warmup_rounds": 1}
    return FedLSMController(**{**settings, "classifier": HEAD, **changes})


def play(folder, answer=None, *, backwards=False, **changes):
    return Federation(folder, controller(**changes), list(SITES), answer or answers(), backwards=backwards).run()


def crashing(when):
    """``answers`` whose site-1 fails at (task name, round)."""
    error = "site-1: train.csv row 3: expected ..., got ..."
    return answers(
        change=lambda site, name, task, result: (
            SiteResult(error=error) if site == "site-1" and (name, task.round_num) == when else result
        )
    )


def model(federation):
    return torch.load(federation.app / "FL_global_model.pt", weights_only=False)["model"]


def moved(federation, key):
    """How far the run has moved a tensor, one number per row."""
    start = networks.initial_network("tiny", CLASSES, 0).state_dict()
    return (model(federation)[key] - start[key]).reshape(len(start[key]), -1)[:, 0].tolist()


# ---- the algorithm --------------------------------------------------------------------------------------------------


def test_all_rounds_are_one_stage(tmp_path):
    federation = play(tmp_path)
    assert federation.engine.panics() == []
    asked = [(name, r, stage) for name, r, stage, _ in federation.asked]
    assert asked == [(CENSUS, 0, "census"), *((TRAIN, r, "train") for r in range(3)), (EVALUATE, 3, "evaluate")]
    assert federation.controller.warmup_rounds == 0


def test_the_weights_of_positive_terms_are_sent_in_every_round(tmp_path):
    federation = play(tmp_path)  # 4 positives of each known class
    sent = [task.knowledge for task, *_ in federation.sent if task.stage == "train"]
    expected = [(10 - 4 + 30 - 4) / 8, (30 - 4) / 4, (60 - 4) / 4]
    assert all(set(knowledge) == {"pos_weight"} for knowledge in sent)
    assert [k["pos_weight"].tolist() for k in sent] == [pytest.approx(expected)] * 3
    capped = play(tmp_path / "capped", pos_weight_cap=5.0)
    assert capped.sent[1][0].knowledge["pos_weight"].tolist() == [4, 5, 5]


@pytest.mark.parametrize(
    ("aggregation", "rows"),
    [
        ("awpa", [(4 * 1 + 12 * 3) / 16, (2 * 1 + 4 * 3 + 2 * 6) / 8, 6]),  # nobody has q of mass: its only owner
        ("masked", [(10 * 1 + 30 * 3) / 40, 3, 6]),
        ("samples", [4.6, 4.6, 4.6]),
    ],
)
def test_rows_of_the_classifier_are_averaged_class_by_class_and_the_rest_by_samples(tmp_path, aggregation, rows):
    federation = play(tmp_path, aggregation=aggregation)
    assert federation.engine.panics() == []
    for key in HEAD:
        assert moved(federation, key) == pytest.approx([3 * v for v in rows], rel=1e-4)
    backbone = 3 * (10 * 1 + 30 * 3 + 60 * 6) / 100
    for key in ("norm.weight", "norm.running_mean"):
        assert moved(federation, key) == pytest.approx([backbone] * 12, rel=1e-4)


@pytest.mark.parametrize(("aggregation", "row"), [("masked", 2.5), ("samples", 4.6)])
def test_baselines_that_report_nothing_run_without_awpa(tmp_path, aggregation, row):
    def silent(site, name, task, result):
        result.report = {}
        return result

    federation = play(tmp_path, answers(change=silent), aggregation=aggregation)
    assert federation.engine.panics() == []
    assert federation.decisions("class_knowledge") == []
    assert moved(federation, "classifier.bias")[0] == pytest.approx(3 * row, rel=1e-4)


def test_only_the_classifier_that_the_job_names_is_averaged_class_by_class(tmp_path):
    federation = play(tmp_path, classifier=["classifier.bias"])
    assert moved(federation, "classifier.weight") == pytest.approx([3 * 4.6] * 3, rel=1e-4)
    assert moved(federation, "classifier.bias")[2] == pytest.approx(18, rel=1e-4)


def test_q_and_uncertainty_of_every_round_are_recorded(tmp_path):
    federation = play(tmp_path)
    assert federation.decisions("class_knowledge") == [(r, Q) for r in (1, 2, 3)]  # rounds done
    histograms = {site: report(site)["uncertainty"].tolist() for site in SITES}
    assert federation.decisions("uncertainty") == [(r, histograms) for r in (1, 2, 3)]


def test_a_site_without_uncertainty_is_left_out_of_the_record(tmp_path):
    def known(site, name, task, result):
        if site == "site-2":
            result.report.pop("uncertainty", None)
        return result

    federation = play(tmp_path, answers(change=known))
    assert federation.engine.panics() == []
    assert {tuple(value) for _, value in federation.decisions("uncertainty")} == {("site-1", "site-3")}


def test_single_label_sites_are_run_alike_without_weights_and_repair_the_classes_that_they_do_not_know(
    tmp_path, caplog
):
    def change(site, name, task, result):
        if name == CENSUS:
            result.census["annotated"] = np.ones(3, dtype=bool)  # a single-label column has no blank class
        if name == TRAIN:
            assert dict(task.knowledge) == {}
            result.repairs = {
                "positive": np.arange(3),
                "negative": np.zeros(3, dtype=int),
                "untagged": np.ones(3, dtype=int),
            }
        return result

    with caplog.at_level("INFO", "fedmend.run"):
        federation = play(tmp_path, answers(task="singlelabel", change=change))
    for site, flags in SITES.items():
        named = ", ".join(c for c, known in zip(CLASSES, flags, strict=True) if known)
        assert f"{site} annotates {named}, {SAMPLES[site]} samples" in caplog.text
    assert federation.engine.panics() == []
    unknown = {(site, CLASSES[c]) for site, flags in SITES.items() for c in range(3) if not flags[c]}
    assert {(line["site"], line["class"]) for line in federation.lines("repairs.jsonl")} == unknown
    assert moved(federation, "classifier.bias")[0] == pytest.approx(7.5, rel=1e-4)


def test_the_order_in_which_answers_arrive_changes_no_bit_of_the_model(tmp_path):
    first, second = (model(play(tmp_path / str(b), backwards=b)) for b in (False, True))
    assert all(torch.equal(v, second[k]) for k, v in first.items())


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["fc.weight", "norm.weight", "classifier"])
def test_a_key_that_is_no_classifier_stops_the_run_before_any_training(tmp_path, key):
    federation = play(tmp_path, classifier=["classifier.bias", key])
    assert federation.engine.panics() == [
        f"job variable classifier: expected keys of the model with 3 rows, got {key!r}"
    ]
    assert [name for name, *_ in federation.asked] == [CENSUS]


def test_a_job_that_names_no_classifier_is_refused(tmp_path):
    with pytest.raises(ValueError, match="classifier"):
        controller(classifier=[])


@pytest.mark.parametrize(
    ("knowledge", "reason"),
    [
        (None, "site-2: report field class_knowledge: expected 3 numbers >= 0"),
        ([1, 2], "site-2: report field class_knowledge: expected 3 numbers >= 0"),
        ([1, -1, 0], "site-2: report field class_knowledge: expected 3 numbers >= 0"),
        (
            [1, np.nan, 0],
            "site-2: result of round 1, report field class_knowledge: expected finite numbers, got NaN or infinity",
        ),
    ],
    ids=["missing", "two classes", "negative", "NaN"],
)
def test_a_report_without_usable_q_is_refused_and_its_model_left_out(tmp_path, knowledge, reason):
    def spoiled(site, name, task, result):
        if (site, name, task.round_num) == ("site-2", TRAIN, 1):
            result.report = {} if knowledge is None else {"class_knowledge": np.array(knowledge, dtype=np.float32)}
        return result

    federation = play(tmp_path, answers(change=spoiled), min_sites=2)
    assert federation.engine.panics() == []
    assert federation.decisions("refused") == [(1, {"site": "site-2", "reason": reason})]
    assert set(dict(federation.decisions("class_knowledge"))[2]) == {"site-1", "site-3"}
    assert moved(federation, "classifier.bias")[0] == pytest.approx(2.5 + 1 + 2.5, rel=1e-4)
    assert all(v.isfinite().all() for v in model(federation).values())


def test_a_report_without_q_stops_a_run_that_needs_all_sites(tmp_path):
    def silent(site, name, task, result):
        result.report = {}
        return result

    (sentence,) = play(tmp_path, answers(change=silent)).engine.panics()
    assert sentence.startswith(
        "train of round 0: expected valid results from 3 sites, got 0: site-1: report field class"
    )


EXPECTED = "expected aggregation awpa, masked or samples and pos_weight_cap >= 1, got"


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"aggregation": "mean"}, f"{EXPECTED} 'mean' and 100.0"),
        ({"pos_weight_cap": 0.5}, f"{EXPECTED} 'awpa' and 0.5"),
        ({"pos_weight_cap": float("nan")}, f"{EXPECTED} 'awpa' and nan"),
        ({"num_rounds": 0}, "expected 1 <= warmup_rounds <= num_rounds, got 1 and 0"),
    ],
)
def test_settings_that_make_no_run_are_refused_at_once(setting, sentence):
    with pytest.raises(ValueError, match=sentence):
        controller(**setting)


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_a_job_goes_on_behind_a_crash_to_the_same_model_and_records(tmp_path):
    whole = play(tmp_path / "whole")
    (sentence,) = play(tmp_path / "crash", crashing((TRAIN, 2))).engine.panics()
    assert sentence.startswith("train of round 2: expected valid results from 3 sites, got 2: site-1: train.csv row 3")
    resumed = play(tmp_path / "crash")
    assert resumed.engine.panics() == []
    assert [(name, r) for name, r, *_ in resumed.asked] == [(CENSUS, 0), (TRAIN, 2), (EVALUATE, 3)]
    for what in ("class_knowledge", "uncertainty"):
        assert resumed.decisions(what) == whole.decisions(what)
    assert all(torch.equal(v, model(whole)[k]) for k, v in model(resumed).items())
