import numpy as np
import pytest
from factories import refused
from federation_factories import Run, confusion, failing, plain_answers, same_models
from torch import nn
from torch_factories import TinyNetwork

from fedmend.messages import CENSUS, EVALUATE, TRAIN
from fedmend.methods.fedlsm import FedLSMWorkflow
from fedmend.methods.labelsets import LabelSetWorkflow

CLASSES = ["edema", "nodule", "mass"]
SITES = {"site-1": [1, 0, 0], "site-2": [1, 1, 0], "site-3": [0, 0, 1]}
STEP = {"site-1": 1.0, "site-2": 3.0, "site-3": 6.0}  # how far one round moves every weight
SAMPLES = {"site-1": 10, "site-2": 30, "site-3": 60}
Q = {"site-1": [4, 2, 0], "site-2": [12, 4, 0], "site-3": [0, 2, 0]}
HEAD = ["classifier.weight", "classifier.bias"]


def report(site):
    return {"class_knowledge": np.array(Q[site], dtype=np.float32), "uncertainty": np.arange(20) * int(site[-1])}


def answers(*, kind="multilabel", change=lambda site, question, task, result: result):
    """Sites that report Q; ``change`` has the last word about an answer."""
    counts = (lambda round_num: {"test": confusion(0.5, 1, 1) // 2}) if kind == "singlelabel" else None
    plain = plain_answers(SITES, samples=SAMPLES, step=STEP, counts=counts, kind=kind)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN:
            result.report = report(site)
        return change(site, question, task, result)

    return answer


def silent(site, question, task, result):
    result.report = {}
    return result


def play(folder, answer=None, workflow=None, **options):
    names, answer = list(SITES), answer or answers()
    options |= {"classes": CLASSES, "max_site_share": 1}
    return Run(folder, workflow or FedLSMWorkflow(), names, answer, **options)


# ---- the algorithm --------------------------------------------------------------------------------------------------


def test_all_rounds_are_one_stage(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    assert run.stages == [(CENSUS, 0, "census"), *((TRAIN, r, "train") for r in range(3)), (EVALUATE, 3, "evaluate")]
    assert run.content("run.json")["warmup_rounds"] == 0


def test_the_weights_of_positive_terms_are_sent_in_every_round(tmp_path):
    sent = play(tmp_path).knowledge("train")  # 4 positives of each known class
    expected = [(10 - 4 + 30 - 4) / 8, (30 - 4) / 4, (60 - 4) / 4]
    assert {r: list(knowledge) for r, knowledge in sent.items()} == {r: ["pos_weight"] for r in range(3)}
    assert [k["pos_weight"].tolist() for k in sent.values()] == [pytest.approx(expected)] * 3
    capped = play(tmp_path / "capped", workflow=FedLSMWorkflow(pos_weight_cap=5.0))
    assert capped.knowledge("train")[0]["pos_weight"].tolist() == [4, 5, 5]


@pytest.mark.parametrize(
    ("workflow", "rows"),
    [
        # nobody has q of mass: its only owner
        (FedLSMWorkflow(), [(4 * 1 + 12 * 3) / 16, (2 * 1 + 4 * 3 + 2 * 6) / 8, 6]),
        (FedLSMWorkflow(aggregation="masked"), [(10 * 1 + 30 * 3) / 40, 3, 6]),
        (FedLSMWorkflow(aggregation="samples"), [4.6, 4.6, 4.6]),
    ],
    ids=["awpa", "masked", "samples"],
)
def test_rows_of_the_classifier_are_averaged_class_by_class_and_the_rest_by_samples(tmp_path, workflow, rows):
    run = play(tmp_path, workflow=workflow)
    assert run.stopped == ""
    for key in HEAD:
        assert run.moved(key) == pytest.approx([3 * v for v in rows], rel=1e-4)
    backbone = 3 * (10 * 1 + 30 * 3 + 60 * 6) / 100
    for key in ("norm.weight", "norm.running_mean"):
        assert run.moved(key) == pytest.approx([backbone] * 12, rel=1e-4)


def test_a_site_that_annotates_a_class_without_a_positive_has_no_part_in_its_row(tmp_path):
    def change(site, question, task, result):
        if question == CENSUS:
            result.census["annotated"] = np.ones(3, dtype=bool)
        return result

    run = play(tmp_path, answers(change=change), FedLSMWorkflow(aggregation="masked"))
    assert run.stopped == ""
    assert run.moved() == pytest.approx([3 * v for v in ((10 * 1 + 30 * 3) / 40, 3, 6)], rel=1e-4)
    assert LabelSetWorkflow(aggregation="masked").pos_weight_cap == 100.0


@pytest.mark.parametrize(("aggregation", "row"), [("masked", 2.5), ("samples", 4.6)])
@pytest.mark.parametrize("workflow", [FedLSMWorkflow, LabelSetWorkflow])
def test_baselines_that_report_nothing_run_without_awpa(tmp_path, workflow, aggregation, row):
    run = play(tmp_path, answers(change=silent), workflow(aggregation=aggregation))
    assert run.stopped == ""
    assert run.decisions("class_knowledge") == []
    assert run.moved()[0] == pytest.approx(3 * row, rel=1e-4)


def test_q_and_uncertainty_of_every_round_are_recorded(tmp_path):
    run = play(tmp_path)
    assert run.decisions("class_knowledge") == [(r, Q) for r in (1, 2, 3)]  # rounds done
    histograms = {site: report(site)["uncertainty"].tolist() for site in SITES}
    assert run.decisions("uncertainty") == [(r, histograms) for r in (1, 2, 3)]


def test_a_site_that_knows_every_class_is_recorded(tmp_path):
    everything = {"site-1": [1, 1, 1], "site-2": [1, 1, 0]}
    answer = plain_answers(everything)
    run = Run(tmp_path, LabelSetWorkflow(aggregation="masked"), list(everything), answer, classes=CLASSES)
    assert run.decisions("every_class_known") == [(None, "no pseudo-labels and no mixed pairs at site-1")]


def test_single_label_sites_are_run_alike_without_weights_and_repair_the_classes_that_they_do_not_know(
    tmp_path, caplog
):
    def change(site, question, task, result):
        if question == CENSUS:
            result.census["annotated"] = np.ones(3, dtype=bool)  # a single-label column has no blank class
        if question == TRAIN:
            assert dict(task.knowledge) == {}
            result.repairs = {
                "positive": np.arange(3),
                "negative": np.zeros(3, dtype=int),
                "untagged": np.ones(3, dtype=int),
            }
        return result

    with caplog.at_level("INFO", "fedmend.run"):
        run = play(tmp_path, answers(kind="singlelabel", change=change))
    for site, flags in SITES.items():
        named = ", ".join(c for c, known in zip(CLASSES, flags, strict=True) if known)
        assert f"{site} annotates {named}, {SAMPLES[site]} samples" in caplog.text
    assert run.stopped == ""
    unknown = {(site, CLASSES[c]) for site, flags in SITES.items() for c in range(3) if not flags[c]}
    assert {(line["site"], line["class"]) for line in run.lines("repairs.jsonl")} == unknown
    assert run.moved()[0] == pytest.approx(7.5, rel=1e-4)


# ---- bad input ------------------------------------------------------------------------------------------------------


class TallHead(TinyNetwork):
    """A classifier with a row too many."""

    def __init__(self, num_classes, seed=0):
        super().__init__(num_classes, seed)
        self.classifier = nn.Linear(12, num_classes + 1)


def test_a_network_with_another_classifier_stops_the_run_before_any_training(tmp_path):
    run = play(tmp_path, backbone=TallHead)
    assert run.stopped == ("job variable network: expected a classifier with 3 rows, got 4 in 'classifier.weight'")
    assert [name for name, *_ in run.asked] == [CENSUS]


FIELD = "site-2: result of round 1, report field class_knowledge"


@pytest.mark.parametrize(
    ("knowledge", "reason"),
    [
        (None, "site-2: report: expected ['class_knowledge'], got none of ['class_knowledge']"),
        ([1, 2], f"{FIELD}: expected float32 of shape (3,), got float32 of shape (2,)"),
        ([1, -1, 0], f"{FIELD}: expected numbers from 0 to 1e+09, got -1 to 1"),
        ([1, np.nan, 0], f"{FIELD}: expected finite numbers, got NaN or infinity"),
    ],
    ids=["missing", "two classes", "negative", "NaN"],
)
def test_a_report_without_usable_q_is_refused_and_its_model_left_out(tmp_path, knowledge, reason):
    def spoiled(site, question, task, result):
        if (site, question, task.round_num) == ("site-2", TRAIN, 1):
            result.report = {} if knowledge is None else {"class_knowledge": np.array(knowledge, dtype=np.float32)}
        return result

    run = play(tmp_path, answers(change=spoiled), min_sites=2)
    assert run.stopped == ""
    assert run.decisions("refused") == [(1, {"site": "site-2", "reason": reason})]
    assert set(dict(run.decisions("class_knowledge"))[2]) == {"site-1", "site-3"}
    assert run.moved()[0] == pytest.approx(2.5 + 1 + 2.5, rel=1e-4)
    assert all(np.isfinite(v).all() for v in run.model.values())


AGGREGATION = "job variable aggregation: expected one of ['awpa', 'masked', 'samples'], got"


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"aggregation": "mean"}, f"{AGGREGATION} 'mean'"),
        ({"pos_weight_cap": 0.5}, "job variable pos_weight_cap: expected >= 1, got 0.5"),
        ({"pos_weight_cap": float("nan")}, "job variable pos_weight_cap: expected >= 1, got nan"),
    ],
)
def test_settings_that_make_no_run_are_refused_at_once(setting, sentence):
    with refused(sentence):
        FedLSMWorkflow(**setting)


def test_the_baselines_have_no_class_knowledge_to_average_by():
    with refused("job variable aggregation: expected one of ['masked', 'samples'], got 'awpa'"):
        LabelSetWorkflow(aggregation="awpa")


# ---- resuming -------------------------------------------------------------------------------------------------------


def test_a_job_goes_on_behind_a_crash_to_the_same_model_and_records(tmp_path):
    whole = play(tmp_path / "whole")
    error = "site-1: train.csv row 3: expected ..., got ..."
    crash = failing(answers(), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 2), error=error)
    assert play(tmp_path / "crash", crash).stopped == (
        f"train of round 2: expected valid results from 3 sites, got 2: {error}"
    )
    resumed = play(tmp_path / "crash")
    assert resumed.stopped == ""
    assert [(name, r) for name, r, *_ in resumed.asked] == [(CENSUS, 0), (TRAIN, 2), (EVALUATE, 3)]
    for what in ("class_knowledge", "uncertainty"):
        assert resumed.decisions(what) == whole.decisions(what)
    assert same_models(resumed.model, whole.model)


def goes_on_with(folder, *names):
    """The weights of positive terms that a second job of a run sends to the sites that are left."""
    first = play(folder, num_rounds=2)
    left = {site: SITES[site] for site in names}
    plain = plain_answers(left, samples=SAMPLES, step=STEP)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        result.report = report(site) if question == TRAIN else {}
        return result

    more = {"num_rounds": 3, "job": "job-2", "allow_changes": ["num_rounds"]}
    again = Run(folder, FedLSMWorkflow(), list(left), answer, classes=CLASSES, max_site_share=1, **more)
    assert (first.stopped, again.stopped) == ("", "")
    return again.knowledge("train")[2]["pos_weight"].tolist()


def test_a_class_whose_only_site_is_gone_keeps_the_weight_that_its_row_was_trained_with(tmp_path):
    sent = goes_on_with(tmp_path, "site-1", "site-2")
    assert sent == pytest.approx([(10 - 4 + 30 - 4) / 8, (30 - 4) / 4, (60 - 4) / 4])


def test_a_class_that_a_site_still_knows_has_the_weight_of_the_sites_that_are_left(tmp_path):
    assert goes_on_with(tmp_path, "site-2", "site-3") == pytest.approx([(30 - 4) / 4, (30 - 4) / 4, (60 - 4) / 4])
