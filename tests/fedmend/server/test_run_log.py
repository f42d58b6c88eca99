"""Metrics, repairs, decisions, the best model and the lines that a run leaves."""

import numpy as np
import pytest
from federation_factories import Run, Script, confusion, dice_counts, failing, histograms, in_rounds, plain_answers
from result_factories import PREPARED

from fedmend.kinds.multilabel import multilabel_metrics, multilabel_thresholds
from fedmend.messages import EVALUATE, TRAIN, SiteResult
from fedmend.methods.baselines import FedAvgWorkflow

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}
FOUR = {f"site-{i}": [1, 1] for i in range(1, 5)}


def play(folder, answer, sites=BOTH, workflow=None, **options):
    return Run(folder, workflow or FedAvgWorkflow(), list(sites), answer, **options)


def without_val(answer):
    """These sites, without a validation split."""

    def answers(site, *rest):
        result = answer(site, *rest)
        for part in ("sizes", "data") if result.census else ():
            del result.census[part]["val"]
        return result

    return answers


def test_a_run_leaves_models_records_and_a_report(tmp_path):
    run = play(tmp_path, plain_answers(BOTH), report=True)
    assert run.stopped == ""
    info = run.content("run.json")
    assert (info["run_name"], info["method"], info["phantom"]) == ("run-1", "FedAvgWorkflow", False)
    assert (info["classes"], info["num_rounds"], info["warmup_rounds"], info["seed"]) == (["a", "b"], 3, 0, 7)
    assert info["settings"] == {"note": "as configured"}
    sizes = {"train": 10, "val": 20, "test": 20}
    prepared = {"preprocessing": PREPARED.described()}
    assert info["sites"]["site-2"] == {"annotated": ["b"], **sizes, "positives": {"b": 4}, **prepared}
    metrics = run.lines("metrics.jsonl")
    assert [(m["round"], m["split"]) for m in metrics] == [(r, s) for r in range(4) for s in ("test", "val")]
    assert metrics[0]["macro"].items() >= {"auc": 1, "map": 1, "bacc": 1}.items()
    results = run.content("results.json")
    assert results["final"]["test"]["auc"] == 1
    packages = {
        "final package": str(run.folder / "run-1.fedmend"),
        "best package": str(run.folder / "run-1-best.fedmend"),
    }
    files = {"global model": "global.pt", "best model": "best.pt", **packages, "records": str(run.folder)}
    assert results["files"] == files
    assert "<html" in (run.folder / "report.html").read_text()[:200]


def test_a_report_page_that_cannot_be_made_is_a_line_of_the_log_and_costs_nothing_else(tmp_path, caplog):
    plain = plain_answers(BOTH)

    def answer(site, question, *rest):
        result = plain(site, question, *rest)
        if question == TRAIN:  # the server takes no such pair in halves over the wire
            result.repairs = {name: np.array([1, 1]) for name in ("positive", "negative", "untagged", "accepted")}
        return result

    run = play(tmp_path, answer, report=True)
    assert run.stopped == ""
    (line,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line.startswith("report: failed with KeyError at repairs.py:")
    assert line.endswith("; models, packages and records are complete")
    assert (run.folder / "run-1.fedmend").is_dir()
    assert "final package" in run.content("results.json")["files"]


def test_a_run_is_named_after_its_method_where_the_job_names_one(tmp_path):
    assert play(tmp_path, plain_answers(BOTH), method="fedavg").content("run.json")["method"] == "fedavg"


def test_the_warm_up_of_the_workflow_stands_in_the_records(tmp_path):
    workflow = Script(in_rounds(lambda fed, r: fed.train("train")))
    workflow.warmup_rounds = 2
    assert play(tmp_path, plain_answers(BOTH), workflow=workflow).content("run.json")["warmup_rounds"] == 2


def test_a_phantom_run_says_so_in_its_records_and_lines(tmp_path, caplog):
    plain = plain_answers(BOTH)

    def answer(site, question, *rest):
        result = plain(site, question, *rest)
        return SiteResult(**{**vars(result), "census": {**result.census, "phantom": True}}) if result.census else result

    with caplog.at_level("INFO", "fedmend.run"):
        run = play(tmp_path, answer)
    assert run.content("run.json")["phantom"] is True
    rounds = [r.message for r in caplog.records if " train | received model" in r.message]
    assert len(rounds) == 3
    assert all(line.startswith("PHANTOM round ") for line in rounds)
    assert run.job.prefix == "PHANTOM "


def test_a_round_is_one_line_in_the_log(tmp_path, caplog):
    with caplog.at_level("INFO", "fedmend.run"):
        play(tmp_path, plain_answers(BOTH), eval_every=2)
    lines = [r.message.partition(" | 2 sites")[0] for r in caplog.records if r.message.startswith("round")]
    assert lines == [
        "round 1/3 train | received model: test AUC 1.000 mAP 1.000 BACC 1.000",
        "round 2/3 train | received model: not evaluated",
        "round 3/3 train | received model: test AUC 1.000 mAP 1.000 BACC 1.000",
    ]


def test_models_are_evaluated_in_every_nth_round_and_at_the_end(tmp_path):
    run = play(tmp_path, plain_answers(BOTH), eval_every=2)
    assert sorted({m["round"] for m in run.lines("metrics.jsonl")}) == [0, 2, 3]


def test_metrics_and_losses_are_streamed(tmp_path):
    streamed = play(tmp_path, plain_answers(BOTH)).transport.streamed
    assert ("test/auc", 1.0, 3) in streamed
    assert ("loss/site-2", 0.5, 2) in streamed
    assert [step for tag, value, step in streamed if (tag, value) == ("round/sites", 2)] == [1, 2, 3]
    assert [step for tag, _, step in streamed if tag == "round/seconds"] == [1, 2, 3]


def test_classes_whose_annotators_are_absent_are_named_when_that_changes(tmp_path, caplog):
    sites = {"site-1": [1, 0], "site-2": [0, 1], "site-3": [1, 0]}
    answer = failing(plain_answers(sites), site="site-2", when=lambda name, r: name == TRAIN and r in (1, 2))
    run = play(tmp_path, answer, sites, min_sites=2, num_rounds=4)
    assert run.decisions("classes_without_annotator") == [(1, ["b"]), (3, [])]
    assert "round 2: no site that annotates b took part" in caplog.text
    assert "round 4: every class has an annotator again" in caplog.text


def test_counts_of_all_sites_are_pooled(tmp_path):
    plain = plain_answers(BOTH)

    def answer(site, *rest):
        result = plain(site, *rest)
        # Each site alone gives AUC 1; pooled, site-2's negatives stand above site-1's positives.
        if result.counts:
            counts = np.zeros((2, 2, 1000), dtype=np.int64)
            low, high = (100, 200) if site == "site-1" else (300, 400)
            counts[:, 0, low], counts[:, 1, high] = 10, 10
            result.counts = {"test": counts}
        return result

    assert play(tmp_path, answer).lines("metrics.jsonl")[0]["macro"]["auc"] == 0.75


def splits_apart(sites):
    """Sites of which each has these splits beside its training samples, with AUC 1 in ``test`` and 0.5 in ``val``."""
    plain = plain_answers({site: [1, 1] for site in sites})

    def answer(site, *rest):
        result = plain(site, *rest)
        if result.census:
            sizes = {"train": 10, **dict.fromkeys(sites[site], 20)}
            result.census |= {"sizes": sizes, "data": dict.fromkeys(sizes, "0" * 32)}
        auc = {"test": 1, "val": 0.5}
        result.counts = {s: histograms(auc[s], auc[s]) for s in sites[site]} if result.counts else {}
        return result

    return answer


def test_numbers_of_an_earlier_model_are_never_those_of_the_final_one(tmp_path):
    sites = {"site-1": ("val", "test"), "site-2": ()}
    answer = failing(splits_apart(sites), site="site-1", when=lambda name, r: name == EVALUATE, error="")
    run = play(tmp_path, answer, sites, min_sites=1, report=True)
    assert run.stopped == ""
    results = run.content("results.json")
    assert [results[name] for name in ("final", "intervals", "sites")] == [{}, {}, {}]
    assert results["thresholds"]["final"] == {}
    assert (results["best"]["round"], results["best"]["test"]["auc"]) == (1, 1)
    package = run.content("run-1.fedmend/package.json")
    assert [package[name] for name in ("round", "metrics", "intervals", "thresholds")] == [3, {}, {}, {}]
    page = (run.folder / "report.html").read_text()
    assert "Latest model, round 2" in page
    assert "Final model" not in page


def test_the_best_model_is_never_chosen_by_test_samples_while_the_sites_that_validate_are_absent(tmp_path):
    sites = {"site-1": ("val",), "site-2": ("test",)}
    answer = failing(splits_apart(sites), site="site-1", when=lambda name, r: r == 2, error="")
    run = play(tmp_path, answer, sites, min_sites=1)
    assert run.decisions("best_model") == [(1, {"auc": 0.5, "split": "val"})]
    assert run.content("results.json")["best"]["val"]["auc"] == 0.5
    alone = {"site-2": sites["site-2"]}
    more = play(tmp_path, splits_apart(alone), alone, min_sites=1, num_rounds=5, allow_changes=["num_rounds"])
    assert more.decisions("best_model")[1:] == [(3, {"auc": 1.0, "split": "test"})]  # which no job can compare


def test_each_site_has_its_own_metrics_which_add_up_to_the_pooled_ones(tmp_path):
    plain, sent = plain_answers(BOTH), {}

    def answer(site, *rest):
        result = plain(site, *rest)
        if result.counts:
            rng = np.random.default_rng(ord(site[-1]))
            counts = np.zeros((2, 2, 1000), dtype=np.int64)
            for c, label in np.ndindex(2, 2):
                np.add.at(counts[c, label], rng.integers(0, 1000, 8), 1)
            result.counts = sent[site] = {"test": counts}
        return result

    run = play(tmp_path, answer, num_rounds=1)
    last = run.lines("metrics.jsonl")[-1]
    assert last["sites"] == {site: multilabel_metrics(counts["test"])["macro"] for site, counts in sent.items()}
    pooled = multilabel_metrics(sum(counts["test"] for counts in sent.values()))
    assert last["macro"] == pytest.approx(pooled["macro"], abs=1e-12)
    final = run.content("results.json")["sites"]["test"]
    assert sum(np.array(final[site]["positives"]) for site in BOTH).tolist() == last["positives"]


def test_a_class_with_few_samples_at_a_site_is_held_back_there_and_pooled_all_the_same(tmp_path):
    plain = plain_answers(BOTH)

    def answer(site, *rest):
        result = plain(site, *rest)
        if result.counts:
            result.counts = {"test": histograms(1, 1)}
            result.counts["test"][1, 1, 600] = 2 if site == "site-2" else 10
        return result

    run = play(tmp_path, answer, num_rounds=1)
    final = run.content("results.json")["sites"]["test"]
    assert [final[site]["held_back"] for site in BOTH] == [[False, False], [False, True]]
    assert final["site-2"]["per_class"]["auc"] == [1.0, None]
    assert run.lines("metrics.jsonl")[-1]["positives"] == [20, 12]


def test_those_who_watch_see_the_model_at_each_site(tmp_path):
    picture = play(tmp_path, plain_answers(BOTH)).content("progress.json")
    assert (picture["metric"], picture["sites"]["site-2"]["value"]) == ("auc", 1.0)


# ---- the best model -------------------------------------------------------------------------------------------------


def test_the_best_model_is_that_of_the_best_validation_auc(tmp_path):
    val, test = {0: 0, 1: 0, 2: 1, 3: 0.5}, {0: 0, 1: 0, 2: 0.5, 3: 1}

    def counts(r):
        return {"val": histograms(val[r], val[r]), "test": histograms(test[r], test[r])}

    run = play(tmp_path, plain_answers(BOTH, counts=counts))
    assert run.decisions("best_model") == [(1, {"auc": 0.0, "split": "val"}), (2, {"auc": 1.0, "split": "val"})]
    assert run.moved(model=run.transport.saved["best"]) == pytest.approx([2, 2])  # the model received in round 2
    assert run.moved() == pytest.approx([3, 3])
    assert run.content("results.json")["best"]["round"] == 2


def test_thresholds_of_the_final_and_the_best_model_are_kept(tmp_path):
    counts = {r: {"val": histograms(*[float(r == 2)] * 2)} for r in range(4)}
    results = play(tmp_path, plain_answers(BOTH, counts=counts.__getitem__)).content("results.json")
    assert set(results["thresholds"]) == {"final", "best"}
    assert results["thresholds"]["best"] == multilabel_thresholds(2 * counts[2]["val"])  # of two sites
    assert results["thresholds"]["final"] == multilabel_thresholds(2 * counts[3]["val"])


def test_the_untrained_model_is_never_the_best_one(tmp_path):
    auc = {0: 1, 1: 0.5, 2: 0, 3: 0}
    run = play(tmp_path, plain_answers(BOTH, counts=lambda r: {"val": histograms(auc[r], auc[r])}))
    assert run.decisions("best_model") == [(1, {"auc": 0.5, "split": "val"})]
    assert run.moved(model=run.transport.saved["best"]) == pytest.approx([1, 1])


def same_until(round_num):
    """Sites that send back what they received before this round."""
    plain = plain_answers(BOTH, counts=lambda r: {"val": histograms(1, 1) if r < 3 else histograms(0.5, 0.5)})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN and task.round_num < round_num:
            result.weights = weights
        return result

    return answer


def test_a_received_model_that_no_round_has_changed_is_never_the_best_one(tmp_path):
    run = play(tmp_path, same_until(2), num_rounds=4)
    said = run.decisions("untrained_model")
    assert [(r, value["untrained"]) for r, value in said] == [(0, True), (2, False)]
    assert run.decisions("best_model") == [(3, {"auc": 0.5, "split": "val"})]
    assert run.moved(model=run.transport.saved["best"]) == pytest.approx([1, 1])
    assert "global model" in run.content("results.json")["files"]


def test_a_run_that_never_changes_the_global_model_says_that_no_model_belongs_to_its_metrics(tmp_path):
    run = play(tmp_path, same_until(3))
    assert run.decisions("best_model") == []
    assert list(run.transport.saved) == ["global"]
    assert sorted(run.content("results.json")["files"]) == ["records", "untrained model"]
    assert run.content("results.json")["best"] == {"round": None}


def test_a_job_that_goes_on_knows_that_the_model_is_still_untrained(tmp_path):
    answer = failing(same_until(3), site="site-2", when=lambda question, r: question == TRAIN and r == 1)
    assert play(tmp_path, answer).stopped
    again = play(tmp_path, same_until(3))
    assert again.stopped == ""
    assert again.decisions("best_model") == []
    assert len(again.decisions("untrained_model")) == 1


def test_the_best_model_is_the_one_that_all_evaluated_before_some_sites_trained(tmp_path):
    auc = {0: 0, 1: 0, 2: 1, 3: 0}
    step = in_rounds(lambda fed, r: fed.train("train", sites=["site-1"]))
    answer = plain_answers(BOTH, counts=lambda r: {"val": histograms(auc[r], auc[r])})
    run = play(tmp_path, answer, workflow=Script(step))
    assert run.decisions("best_model") == [(1, {"auc": 0.0, "split": "val"}), (2, {"auc": 1.0, "split": "val"})]
    assert run.moved(model=run.transport.saved["best"]) == pytest.approx([2, 2])


def test_without_a_validation_split_the_test_split_chooses_and_the_records_say_so(tmp_path):
    auc = {0: 0, 1: 0.5, 2: 1, 3: 0.5}
    run = play(tmp_path, without_val(plain_answers(BOTH, counts=lambda r: {"test": histograms(auc[r], auc[r])})))
    assert run.decisions("best_model")[-1] == (2, {"auc": 1.0, "split": "test"})


def test_where_no_class_can_choose_on_validation_the_best_model_is_the_final_one_with_a_warning(tmp_path, caplog):
    negatives = np.zeros((2, 2, 1000), dtype=np.int64)
    negatives[:, 0, 400] = 20
    counts = {"val": negatives, "test": histograms(1, 1)}  # on which nothing may be chosen
    run = play(tmp_path, plain_answers(BOTH, counts=lambda r: counts), report=True)
    assert run.decisions("best_model") == [(3, {"final": True, "split": "val"})]
    assert run.moved(model=run.transport.saved["best"]) == run.moved() == pytest.approx([3, 3])
    [(first, said)] = run.decisions("best_model_chosen_by")
    assert (first, said["classes"], said["of"]) == (1, [], 2)
    words = "the best model is the final one: none of 2 classes could choose another, all have fewer than 10 positives"
    assert said["reason"] == f"{words} or negatives in the val split"
    assert said["reason"] in caplog.text
    assert f"T{said['reason'][1:]}" in (run.folder / "report.html").read_text()
    assert run.content("results.json")["best"]["round"] == 3


def unequal(auc, positives):
    """Validation counts of two sites with enough of class a, and this many positives of class b at each."""
    counts = histograms(auc, 1 - auc)
    counts[1, 1] = np.where(counts[1, 1] > 0, positives, 0)
    return {"val": counts}


def test_half_of_the_classes_choose_the_best_model_alone_and_the_records_name_them(tmp_path, caplog):
    auc = {0: 0, 1: 0.5, 2: 1, 3: 0}
    run = play(tmp_path, plain_answers(BOTH, counts=lambda r: unequal(auc[r], 4)), report=True)
    assert run.decisions("best_model") == [(1, {"auc": 0.5, "split": "val"}), (2, {"auc": 1.0, "split": "val"})]
    [(_, said)] = run.decisions("best_model_chosen_by")
    words = "the best model is chosen by 1 of 2 classes: the others have fewer than 10 positives or negatives"
    assert said == {"split": "val", "classes": ["a"], "of": 2, "reason": f"{words} in the val split"}
    assert "chosen by 1 of 2 classes" in caplog.text
    assert "chosen by 1 of 2 classes" in (run.folder / "report.html").read_text()


def test_nothing_is_said_where_all_classes_choose_the_best_model(tmp_path):
    run = play(tmp_path, plain_answers(BOTH, counts=lambda r: unequal(1, 5)))  # ten at the two sites together
    assert run.decisions("best_model_chosen_by") == []


def test_a_job_that_goes_on_does_not_say_again_who_chooses_the_best_model(tmp_path):
    plain = plain_answers(BOTH, counts=lambda r: unequal(1, 4))
    answer = failing(plain, site="site-2", when=lambda question, r: question == TRAIN and r == 2)
    assert play(tmp_path, answer).stopped
    again = play(tmp_path, plain)
    assert again.stopped == ""
    assert len(again.decisions("best_model_chosen_by")) == 1


def test_a_run_that_nobody_can_evaluate_has_no_best_model(tmp_path):
    run = play(tmp_path, plain_answers(BOTH, counts=lambda r: {}))
    assert run.stopped == ""
    assert list(run.transport.saved) == ["global"]
    assert run.lines("metrics.jsonl") == run.decisions("best_model") == []


# ---- repairs --------------------------------------------------------------------------------------------------------


def test_repairs_are_written_for_the_classes_that_a_site_lacks(tmp_path):
    plain = plain_answers(BOTH)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question in (TRAIN, EVALUATE):
            zero, done = np.zeros(2, dtype=np.int64), np.full(2, min(task.round_num + 1, 3))
            result.repairs = {"positive": done, "negative": 2 * done, "untagged": zero}
        return result

    lines = play(tmp_path, answer).lines("repairs.jsonl")
    got = [(x["round"], x["site"], x["class"], x["positive"], x["new_positive"], x["new_negative"]) for x in lines]
    assert got == [
        (r, site, missing, r, 1, 2) for r in (1, 2, 3) for site, missing in (("site-1", "b"), ("site-2", "a"))
    ]


def test_repaired_masks_are_written_for_the_class_that_is_annotated(tmp_path):
    sites = {"site-1": [1], "site-2": [1]}
    plain = without_val(plain_answers(sites, counts=dice_counts, kind="segmentation"))

    def answer(site, question, *rest):
        result = plain(site, question, *rest)
        if question == TRAIN and site == "site-2":
            result.repairs = {name: np.array([5]) for name in ("positive", "negative", "untagged")}
        return result

    run = play(tmp_path, answer, sites, classes=["lesion"], num_rounds=1)
    assert [(x["site"], x["class"], x["positive"]) for x in run.lines("repairs.jsonl")] == [("site-2", "lesion", 5)]
    assert run.decisions("best_model") == [(1, {"dice": 0.5, "split": "test"})]


# ---- single-label data ----------------------------------------------------------------------------------------------


def single_label(recalls, splits=("val", "test")):
    """Sites whose evaluations have these recalls of the two classes in round 0, 1, ... and an AUC of 1."""
    return plain_answers(FOUR, counts=lambda r: {s: confusion(*recalls[r]) for s in splits}, kind="singlelabel")


def test_the_best_model_of_single_label_data_is_that_of_the_best_validation_bacc(tmp_path):
    run = play(tmp_path, single_label({0: (0.2, 0.2), 1: (1, 0.4), 2: (0.9, 0.9), 3: (1, 0)}), FOUR)
    assert run.stopped == ""
    assert run.decisions("best_model") == [
        (r, {"bacc": pytest.approx(bacc), "split": "val"}) for r, bacc in ((1, 0.7), (2, 0.9))
    ]
    assert run.moved(model=run.transport.saved["best"]) == pytest.approx([2, 2])
    results = run.content("results.json")
    assert results["best"]["test"]["bacc"] == pytest.approx(0.9)
    final = {"bacc": 0.5, "f1": (20 / 30 + 0) / 2, "auc": 1, "precision": (10 / 20 + 0) / 2, "accuracy": 0.5}
    final["ece"] = results["final"]["test"]["ece"]  # see the tests of the kind
    assert results["final"]["test"] == pytest.approx(final)
    assert results["intervals"]["test"]["bacc"] == [0.5, 0.5]  # no sample of a class differs from another


def test_thresholds_are_chosen_on_validation_for_the_test_split_alone(tmp_path):
    # Scores of the final round: 0.3 and 0.4 of the range in both splits, all below probability 0.5.
    counts = np.zeros((2, 2, 1000), dtype=np.int64)
    counts[:, 0, 300], counts[:, 1, 400] = 5, 5  # at each of two sites
    run = play(tmp_path, plain_answers(BOTH, counts=lambda r: {"val": counts, "test": counts}))
    results = run.content("results.json")
    assert (results["final"]["test"]["bacc"], results["final"]["test"]["bacc_val"]) == (0.5, 1)
    assert results["intervals"]["test"]["bacc_val"] == [1, 1]
    assert "bacc_val" not in results["final"]["val"]


def test_without_a_validation_split_the_test_bacc_chooses(tmp_path):
    recalls = {0: (0.2, 0.2), 1: (1, 0.4), 2: (0, 0), 3: (0, 0)}
    run = play(tmp_path, without_val(single_label(recalls, ("test",))), FOUR)
    assert run.decisions("best_model")[-1] == (1, {"bacc": pytest.approx(0.7), "split": "test"})


def test_single_label_counts_of_all_sites_are_pooled(tmp_path):
    recalls = {"site-1": (1, 0), "site-2": (0, 1), "site-3": (1, 1), "site-4": (0.6, 0.2)}
    plain = single_label(dict.fromkeys(range(4), (1, 1)))

    def answer(site, *rest):
        result = plain(site, *rest)
        result.counts = {split: confusion(*recalls[site]) for split in result.counts}
        return result

    metrics = play(tmp_path, answer, FOUR).lines("metrics.jsonl")[0]
    assert metrics["confusion"] == [[26, 14], [18, 22]]
    assert metrics["macro"]["bacc"] == pytest.approx((26 + 22) / 80)
    assert metrics["macro"]["auc"] == 1


def test_single_label_metrics_are_streamed_and_shown(tmp_path, caplog):
    with caplog.at_level("INFO", "fedmend.run"):
        run = play(tmp_path, single_label(dict.fromkeys(range(4), (1, 0.5))), FOUR)
    names = {"bacc", "f1", "auc", "precision", "accuracy"}
    assert {f"{split}/{name}" for split in ("test", "val") for name in names} <= {t for t, *_ in run.transport.streamed}
    shown = "received model: test BACC 0.750 F1 0.733 AUC 1.000 precision 0.833 accuracy 0.750 | 4 sites"
    assert shown in caplog.text


def test_the_kind_of_labels_stands_in_the_records(tmp_path):
    for kind, answer in (
        ("multilabel", plain_answers(FOUR)),
        ("singlelabel", single_label(dict.fromkeys(range(4), (1, 1)))),
    ):
        assert play(tmp_path / kind, answer, FOUR).content("run.json")["task"] == kind


@pytest.mark.parametrize("odd", ["site-1", "site-4"])
@pytest.mark.parametrize("kind", ["multilabel", "singlelabel"])
def test_a_site_that_counts_another_kind_of_labels_than_the_others_costs_itself_alone(tmp_path, odd, kind):
    counts = [histograms(1, 1), confusion(1, 1)][:: 1 if kind == "multilabel" else -1]
    plain = plain_answers(FOUR, kind=kind)

    def answer(site, *rest):
        result = plain(site, *rest)
        result.counts = dict.fromkeys(result.counts, counts[site == odd])
        return result

    run = play(tmp_path, answer, FOUR, min_sites=1)
    assert run.stopped == ""
    assert {value["site"] for _, value in run.decisions("refused")} == {odd}
    assert run.lines("metrics.jsonl")[0]["macro"]["bacc"] == 1


def test_every_site_and_its_samples_are_named_at_the_census(tmp_path, caplog):
    with caplog.at_level("INFO", "fedmend.run"):
        play(tmp_path, plain_answers(BOTH, samples={"site-1": 10, "site-2": 30}))
    assert "site-1 annotates a, 10 samples" in caplog.text
    assert "site-2 annotates b, 30 samples" in caplog.text


def test_counts_that_nobody_asked_for_choose_no_best_model_and_cost_their_site_alone(tmp_path):
    plain = plain_answers(FOUR, counts=lambda r: {split: histograms(0.5, 0.5) for split in ("val", "test")})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if site == "site-4" and question == TRAIN and not evaluate:
            result.counts = {"val": histograms(1, 1)}
        return result

    run = play(tmp_path, answer, FOUR, num_rounds=3, eval_every=2, min_sites=3)
    assert [m["round"] for m in run.lines("metrics.jsonl")] == [0, 0, 2, 2, 3, 3]
    assert run.decisions("best_model") == [(2, {"auc": 0.5, "split": "val"})]
    reason = "site-4: result of round 1, counts val: expected none, as no evaluation was asked for, got some"
    assert run.decisions("refused") == [(1, {"site": "site-4", "reason": reason})]
