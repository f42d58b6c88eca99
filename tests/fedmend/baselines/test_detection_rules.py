"""Rules that tell noisy sites from the others: what a site tells, how it is scaled, and one warm-up for all."""

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, confusion, plain_answers
from torch_factories import TinyNetwork, make_single_site, make_task

from fedmend.baselines import detection_rules
from fedmend.baselines.detection_rules import RULES, DetectionRules, DetectionRulesWorkflow, Rule, indicators
from fedmend.messages import CENSUS, COLLECT, EVALUATE, TRAIN
from fedmend.methods.fednoro import FedNoRo
from fedmend.methods.shared.dimensions import Detection, local_intrinsic_dimension

SITES = {f"site-{i}": [1, 1] for i in range(1, 6)}
LOSSES = {"site-1": [0.1, 0.4], "site-2": [1.1, 2.4], "site-3": [0.2, 0.4], "site-4": [0.9, 2.0], "site-5": [0.1, 0.5]}
DIMENSIONS = {"site-1": 2.0, "site-2": 2.0, "site-3": 6.0, "site-4": 2.0, "site-5": 2.0}  # site-3 alone stands out
CONFIDENCES = {"site-1": 0.5, "site-2": 0.9, "site-3": 0.9, "site-4": 0.9, "site-5": 0.9}  # site-1 is unsure


def report(site, counts=(7, 7)):
    return {
        "class_loss": np.array(LOSSES[site], dtype=np.float32),
        "class_count": np.array(counts),
        "lid": np.array(DIMENSIONS[site], dtype=np.float32),
        "mean_confidence": np.array(CONFIDENCES[site], dtype=np.float32),
    }


JUDGED = {"site-1": [0.1, 0.1], "site-2": [0.1, 0.1], "site-3": [0.1, 0.2], "site-4": [0.2, 0.1], "site-5": [3.0, 3.0]}
HEADS = {
    "head_weights": np.ones((2, 12), dtype=np.float32),
    "head_biases": np.ones(2, dtype=np.float32),
    "head_counts": np.array([7, 7]),
}


def losses_under_others(site):
    return {"class_loss": np.array(JUDGED[site], dtype=np.float32), "class_count": np.array([7, 7])}


REPORTS = {site: report(site) for site in SITES}


def play(folder, *, change=lambda site, result: None, **settings):
    plain = plain_answers(SITES, counts=lambda round_num: {"test": confusion(0.5, 1)}, kind="singlelabel")

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == COLLECT:
            result.report = {"heads": dict(HEADS), "judge": losses_under_others(site)}.get(task.stage, report(site))
            change(site, result)
        return result

    workflow = DetectionRulesWorkflow(**{"warmup_rounds": 2, **settings})
    return Run(folder, workflow, list(SITES), answer, classes=["edema", "nodule"], num_rounds=6)


def test_all_rules_judge_one_warm_up_and_nothing_is_trained_after_it(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    trained = [(TRAIN, 0, "warmup"), (TRAIN, 1, "warmup")]
    collected = [(COLLECT, 2, stage) for stage in ("detect", "heads", "judge")]
    assert run.stages == [(CENSUS, 0, "census"), *trained, *collected, (EVALUATE, 2, "evaluate")]
    ((_, found),) = run.decisions("detection_rules")
    assert list(found) == list(RULES)
    assert found["rule of the job"] == {"noisy": ["site-2", "site-4"], "vote_share": 1.0}
    assert found["mean LID"]["noisy"] == ["site-3"]
    assert found["mean confidence"]["noisy"] == ["site-1"]
    assert found["losses under the others' heads"]["noisy"] == ["site-5"]


def test_indicators_are_larger_at_noisy_sites_and_scaled():
    assert indicators(Rule("lid"), REPORTS)[:, 0].tolist() == [0, 0, 1, 0, 0]
    assert indicators(Rule("mean_confidence"), REPORTS)[:, 0] == pytest.approx([1, 0, 0, 0, 0], abs=1e-6)
    assert indicators(Rule(), REPORTS)[3] == pytest.approx([0.8, 0.8], abs=1e-6)  # .8 of 1.0 and 1.6 of 2.0
    assert indicators(Rule(normalise=False), REPORTS)[3] == pytest.approx([0.9, 2.0])
    assert indicators(Rule(per_class=False, normalise=False), REPORTS)[3] == pytest.approx([1.45])


def test_only_the_rule_of_the_job_is_silent_with_too_few_votes(tmp_path, monkeypatch):
    asked = []

    def unsure(losses, *, votes, covariance):
        asked.append((votes, covariance))
        return Detection(np.array([False, True, False, True, False]), 0.5, covariance)

    monkeypatch.setattr(detection_rules, "detect_noisy_clients", unsure)
    ((_, found),) = play(tmp_path, votes=4, covariance="spherical").decisions("detection_rules")
    assert [name for name, told in found.items() if not told["noisy"]] == ["rule of the job"]
    assert {told["vote_share"] for told in found.values()} == {0.5}
    assert set(asked) == {(4, "spherical"), (4, "full")}
    assert asked[list(RULES).index("full covariance, as released")] == (4, "full")


def test_a_report_of_no_class_is_refused(tmp_path):
    run = play(tmp_path, change=lambda site, result: result.report.update(report(site, (0, 0))))
    assert "report field class_count: expected at least one class with enough samples, got none" in run.stopped


def test_a_site_tells_the_losses_of_fednoro_and_how_the_model_sees_its_samples(tmp_path):
    site, net = make_single_site(tmp_path, [0, 1, 2, 0, 1, 0]), TinyNetwork(3).eval()
    task = make_task("detect", training=False)
    found, fednoro = DetectionRules().collect(net, task, site), FedNoRo().collect(net, task, site)
    heads = DetectionRules().collect(net, make_task("heads", training=False), site)
    assert sorted(found | heads) == sorted(DetectionRules.FIELDS)
    for name, value in fednoro.items():
        assert found[name].tolist() == value.tolist()
    with torch.no_grad():
        probabilities = net(site.data.train.view(torch.arange(6)))[1].double().softmax(1).numpy()
    assert float(found["mean_confidence"]) == pytest.approx(probabilities.max(1).mean(), rel=1e-5)
    assert float(found["lid"]) == pytest.approx(local_intrinsic_dimension(probabilities).mean(), rel=1e-3)


def test_a_sample_without_a_label_is_refused(tmp_path):
    with refused("site-1: train.csv row 3, column label: expected a class name, got a blank"):
        task = make_task("detect", training=False)
        DetectionRules().collect(TinyNetwork(3), task, make_single_site(tmp_path, [0, -1, 1]))
