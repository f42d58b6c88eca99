"""The end of a job with ``refit``."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from federation_factories import Run, collected_answers, failing, initial
from result_factories import PREPARED

from fedmend.messages import COLLECT
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.methods.closed_form import ClosedFormWorkflow
from fedmend.methods.fednoro import CLEAN, NOISY, FedNoRoWorkflow
from fedmend.methods.labelsets import LabelSetWorkflow

SITES = ["site-1", "site-2"]


def head(value, counts):
    """Heads of features of which the first is not read, as where a classifier reads stages."""
    known = np.array(counts) > 0
    return {
        "head_weights": np.outer(known, [0.0, *[value] * 11]).astype(np.float32),
        "head_biases": (known * value).astype(np.float32),
        "head_counts": np.array(counts),
    }


def test_rows_that_sites_solve_are_averaged_with_those_that_were_trained(tmp_path):
    heads = {"site-1": head(1.0, [10, 0]), "site-2": head(4.0, [20, 0])}
    run = Run(tmp_path, FedAvgWorkflow(), SITES, collected_answers(heads), num_rounds=2, refit=True)
    assert not run.stopped
    trained = initial(["a", "b"])["classifier.bias"] + 2  # two rounds, each of which adds 1
    assert run.model["classifier.bias"] == pytest.approx([(trained[0] + 3.0) / 2, trained[1]])
    weight = initial(["a", "b"])["classifier.weight"] + 2
    assert run.model["classifier.weight"][0] == pytest.approx((weight[0] + [0.0, *[3.0] * 11]) / 2)
    assert run.model["classifier.weight"][1] == pytest.approx(weight[1])
    assert run.stages[-2:] == [("collect", 2, "refit"), ("evaluate", 2, "evaluate")]
    assert run.decisions("refit") == [(2, {"sites": SITES, "classes": ["a"]})]
    assert np.array_equal(run.transport.saved["global"]["classifier.bias"], run.model["classifier.bias"])


def test_no_site_has_more_than_half_of_a_solved_row_where_three_know_the_class(tmp_path):
    heads = {"site-1": head(1.0, [2, 2]), "site-2": head(1.0, [2, 2]), "site-3": head(5.0, [20, 4])}
    run = Run(tmp_path, FedAvgWorkflow(), [*heads], collected_answers(heads), num_rounds=1, refit=True)
    assert not run.stopped
    trained = initial(["a", "b"])["classifier.bias"] + 1
    assert run.model["classifier.bias"] == pytest.approx((trained + 3.0) / 2)  # (2 + 2 + 4 * 5) / 8


def test_masks_are_refused_before_anything_is_trained(tmp_path):
    answers = collected_answers({site: head(1.0, [10, 5]) for site in SITES}, kind="segmentation")
    run = Run(tmp_path, FedAvgWorkflow(), SITES, answers, num_rounds=1, refit=True)
    assert "job variable refit: expected false for masks, got true" in run.stopped
    assert not run.rounds("train")


def test_solved_rows_are_moved_as_weights_of_positives_have_moved_the_trained_ones(tmp_path):
    heads = {site: head(1.0, [10, 10]) for site in SITES}
    workflow = LabelSetWorkflow(aggregation="samples", pos_weight_cap=3.0)
    run = Run(tmp_path, workflow, SITES, collected_answers(heads), num_rounds=1, refit=True)
    assert not run.stopped
    weight = run.knowledge("train")[0]["pos_weight"]
    assert (weight != 1).any()
    trained = initial(["a", "b"])["classifier.bias"] + 1
    assert run.model["classifier.bias"] == pytest.approx((trained + 1.0 + np.log(weight)) / 2)


def test_what_a_method_asks_of_its_own_reports_is_not_asked_of_solved_rows(tmp_path):
    def check(stage, report):
        assert stage == "train"

    workflow = FedAvgWorkflow()
    workflow.check = check
    heads = {site: head(1.0, [10, 10]) for site in SITES}
    run = Run(tmp_path, workflow, SITES, collected_answers(heads), num_rounds=1, refit=True)
    assert run.decisions("refit") == [(1, {"sites": SITES, "classes": ["a", "b"]})]


def test_without_refit_nobody_is_asked(tmp_path):
    run = Run(tmp_path, FedAvgWorkflow(), SITES, collected_answers(dict.fromkeys(SITES)), num_rounds=1)
    assert not run.rounds(COLLECT)


def test_a_report_without_counts_is_refused(tmp_path):
    heads = {"site-1": head(1.0, [10, 5]), "site-2": {"head_weights": head(1.0, [10, 5])["head_weights"]}}
    run = Run(tmp_path, FedAvgWorkflow(), SITES, collected_answers(heads), num_rounds=1, refit=True)
    assert "site-2: report: expected ['head_biases', 'head_counts', 'head_weights'], got none of" in run.stopped


def test_a_site_that_keeps_differential_privacy_is_named_before_anything_is_trained(tmp_path):
    plain = collected_answers({site: head(1.0, [10, 5]) for site in SITES})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if site == "site-2":
            result.privacy = {"epsilon": 1.0, "delta": 1e-5, "noise": 1.0, "clip": 1.0}
        return result

    run = Run(tmp_path, FedAvgWorkflow(), SITES, answer, num_rounds=1, refit=True)
    assert "job variable refit: expected false with differential privacy at site-2" in run.stopped
    assert not run.rounds("train")


def test_studies_are_refused_before_anything_is_trained(tmp_path):
    plain = collected_answers({site: head(1.0, [10, 5]) for site in SITES})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if result.census:
            result.census = result.census | {"preprocessing": replace(PREPARED, study_slices=4).told()}
        return result

    run = Run(tmp_path, FedAvgWorkflow(), SITES, answer, num_rounds=1, refit=True)
    assert "job variable refit: expected false for studies, got true" in run.stopped
    assert not run.rounds("train")


def test_a_job_that_trains_nothing_has_no_refit(tmp_path):
    heads = collected_answers({site: head(1.0, [10, 5]) for site in SITES})
    run = Run(tmp_path, ClosedFormWorkflow(), SITES, heads, num_rounds=1, refit=True)
    assert "job variable refit: expected false in a job that trains nothing, got true" in run.stopped
    assert not run.rounds(COLLECT)


def test_noisy_sites_have_no_part_in_what_is_solved():
    sites, workflow = ["site-1", "site-2", "site-3"], FedNoRoWorkflow(warmup_rounds=1)

    def trusted(roles):
        return workflow.trusted_sites(SimpleNamespace(sites=sites, memory=FedNoRoWorkflow.Memory(roles)))

    assert trusted({"site-1": CLEAN, "site-2": NOISY, "site-3": CLEAN}) == ["site-1", "site-3"]
    assert trusted(dict.fromkeys(sites, NOISY)) is None
    assert trusted({}) is None  # nobody was told apart


def test_a_site_that_came_after_the_detection_has_no_part_in_what_is_solved():
    memory = FedNoRoWorkflow.Memory({"site-1": CLEAN, "site-2": NOISY})
    fed = SimpleNamespace(sites=["site-1", "site-2", "site-3"], memory=memory)
    assert FedNoRoWorkflow(warmup_rounds=1).trusted_sites(fed) == ["site-1"]


def test_a_job_whose_sites_refuse_to_solve_keeps_what_was_trained_and_ends_without(tmp_path):
    refusing = failing(
        collected_answers({site: head(1.0, [10, 5]) for site in SITES}),
        site="site-2",
        when=lambda question, r: question == COLLECT,
    )
    first = Run(tmp_path, FedAvgWorkflow(), SITES, refusing, num_rounds=2, refit=True)
    assert "site-2: train.csv row 3" in first.stopped
    again = Run(tmp_path, FedAvgWorkflow(), SITES, refusing, num_rounds=2, job="job-2", allow_changes=["refit"])
    assert not again.stopped
    assert not again.rounds("train")
    assert again.moved() == pytest.approx([2.0, 2.0])


def test_too_few_trusted_sites_for_one_of_them_leave_the_trained_classifier(tmp_path, caplog):
    base = collected_answers({site: head(1.0, [10, 5]) for site in SITES})

    def answer(site, question, *rest):
        result = base(site, question, *rest)
        if result.census:
            result.census = result.census | {"min_federation": 2}
        return result

    workflow = FedAvgWorkflow()
    workflow.trusted_sites = lambda fed: ["site-1"]
    run = Run(tmp_path, workflow, SITES, answer, num_rounds=1, refit=True)
    assert not run.stopped
    assert not run.rounds(COLLECT)
    assert run.moved() == pytest.approx([1.0, 1.0])
    assert "refit: the trained classifier stays: site-1 may solve none alone (min_federation)" in caplog.text


THREE = [*SITES, "site-3"]


def test_a_site_that_may_not_solve_among_the_trusted_ones_is_not_asked(tmp_path):
    base = collected_answers({site: head(1.0, [5, 5]) for site in THREE})

    def answer(site, question, *rest):
        result = base(site, question, *rest)
        if result.census:
            result.census = result.census | {"min_federation": 3 if site == "site-3" else 1}
        return result

    workflow = FedAvgWorkflow()
    workflow.trusted_sites = lambda fed: ["site-2", "site-3"]
    run = Run(tmp_path, workflow, THREE, answer, num_rounds=1, refit=True)
    assert run.decisions("refit")[0][1]["sites"] == ["site-2"]


def test_a_site_whose_solved_classifier_is_far_larger_has_no_part_and_is_named(tmp_path):
    heads = {site: head(1.0, [5, 5]) for site in SITES} | {"site-3": head(-9e8, [5, 5])}
    run = Run(tmp_path, FedAvgWorkflow(), THREE, collected_answers(heads), num_rounds=1, refit=True, min_sites=2)
    assert not run.stopped
    assert run.decisions("refit") == [(1, {"sites": SITES, "classes": ["a", "b"]})]
    trained = initial(["a", "b"])["classifier.bias"] + 1
    assert run.model["classifier.bias"] == pytest.approx((trained + 1.0) / 2)
    [(_, told)] = run.decisions("refused")
    assert told["reason"].startswith("site-3: result of round 1, report field head_weights: expected at most 10 times")
    off = Run(tmp_path / "off", FedAvgWorkflow(), THREE, collected_answers(heads), refit=True, max_update_factor=0)
    assert off.decisions("refit")[0][1]["sites"] == THREE


def test_more_samples_behind_a_solved_classifier_than_a_site_has_are_refused(tmp_path):
    heads = {site: head(1.0, [10, 10]) for site in SITES} | {"site-3": head(-1.0, [10**9, 10])}  # each has 20
    run = Run(tmp_path, FedAvgWorkflow(), THREE, collected_answers(heads), num_rounds=1, refit=True)
    assert (
        "site-3: result of round 1, report field head_counts: expected numbers from 0 to 20, got 10 to 1e+09"
        in run.stopped
    )
