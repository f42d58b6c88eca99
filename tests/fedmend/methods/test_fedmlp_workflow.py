import numpy as np
import pytest
from factories import refused
from federation_factories import Run, failing, plain_answers, same_models
from torch_factories import TinyNetwork

from fedmend.messages import CENSUS, EVALUATE, TRAIN
from fedmend.methods.fedmlp import FedMLPWorkflow

ANNOTATED = {"site-1": [1, 0], "site-2": [0, 1]}
SAMPLES = {"site-1": 10, "site-2": 30}
# Rows: class 0 negative, positive, class 1 negative, positive; a site has prototypes of its annotated class only.
PROTOTYPES = {
    "site-1": np.array([[1, 0], [0, 1], [0, 0], [0, 0]], dtype=np.float32),
    "site-2": np.array([[0, 0], [0, 0], [3, 4], [4, 3]], dtype=np.float32),
}
DEGREES = {"site-1": np.array([0.1, 0.2], dtype=np.float32), "site-2": np.array([0.3, 0.4], dtype=np.float32)}


def report(site):
    prototypes = PROTOTYPES[site].copy()
    return {
        "prototypes": prototypes,
        "prototype_counts": prototypes.any(1) * np.array([6, 4, 20, 10]),
        "learning_degree": DEGREES[site],
    }


class NarrowNetwork(TinyNetwork):
    """Mean of two colours."""

    num_features = 2

    def forward(self, images):
        features = self.norm(images.mean((2, 3))[:, :2])
        return features, self.classifier(features)


def answers(make_report=report, *, rounds=5, warmup=2, annotated=ANNOTATED):
    """Sites that report from the end of the warm-up to the round before the last."""
    plain = plain_answers(annotated, samples=SAMPLES)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN and warmup - 1 <= task.round_num < rounds - 1:
            result.report = make_report(site)
        return result

    return answer


def play(folder, answer=None, *, rounds=5, warmup=2, names=ANNOTATED, **options):
    answer = answer or answers(rounds=rounds, warmup=warmup)
    workflow = FedMLPWorkflow(warmup_rounds=warmup)
    return Run(folder, workflow, list(names), answer, num_rounds=rounds, backbone=NarrowNetwork, **options)


def sent(run):
    """What was sent in each round."""
    return [task.knowledge for task, _ in run.transport.sent if task.stage in ("warmup", "prototype", "detect")]


def test_stages_follow_each_other_as_in_the_paper(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    stages = ["warmup", "prototype", "detect", "detect", "detect"]
    assert run.stages == [
        (CENSUS, 0, "census"),
        *((TRAIN, r, stage) for r, stage in enumerate(stages)),
        (EVALUATE, 5, "evaluate"),
    ]
    assert run.content("run.json")["warmup_rounds"] == 2
    assert run.moved() == pytest.approx([5, 5])


def test_prototypes_of_equation_6_and_degrees_of_equation_10_are_passed_on(tmp_path):
    run = play(tmp_path)
    for knowledge in sent(run)[2:]:
        assert knowledge["prototypes"].tolist() == [[1, 0], [0, 1], [3, 4], [4, 3]]
        # The degree of a class is that of the sites that miss it: class 0 at site-2, class 1 at site-1.
        np.testing.assert_allclose(knowledge["learning_degree"], [0.3, 0.2])
        assert {v.dtype for v in knowledge.values()} == {np.dtype(np.float32)}
    assert run.decisions("learning_degree") == [(r, {"a": 0.3, "b": 0.2}) for r in (2, 3, 4)]


def test_prototypes_and_degrees_of_several_sites_are_weighted_by_samples(tmp_path):
    def make_report(site):
        value = {"site-1": 1, "site-2": 5}[site]
        shared = {"prototypes": np.full((4, 2), value, np.float32), "prototype_counts": np.full(4, 9)}
        return report(site) | shared

    nobody = {"site-1": [1, 0], "site-2": [1, 0]}  # the second class was annotated when the run began
    assert play(tmp_path, failing(answers(), site="site-1", when=lambda name, r: r == 1)).stopped
    run = play(tmp_path, answers(make_report, annotated=nobody))
    assert run.stopped == ""
    (knowledge, *_) = [k for k in sent(run) if k]
    np.testing.assert_allclose(knowledge["prototypes"], np.full((4, 2), (1 + 3 * 5) / 4))
    np.testing.assert_allclose(knowledge["learning_degree"], [1, (0.2 + 3 * 0.4) / 4], rtol=1e-6)


@pytest.mark.parametrize("warmup", [2, 3])
def test_a_run_that_is_over_and_gets_more_rounds_goes_on_with_the_last_prototypes(tmp_path, warmup):
    def answer(site, question, weights, task, evaluate):  # as a site: the last round of the detection reports nothing
        last = task.stage == "detect" and task.round_num == task.total_rounds - 1
        return answers(rounds=0 if last else 9, warmup=warmup)(site, question, weights, task, evaluate)

    assert play(tmp_path, answer, rounds=3, warmup=warmup).stopped == ""
    run = play(tmp_path, answer, rounds=5, warmup=warmup, job="job-2", allow_changes=["num_rounds"])
    assert run.stopped == ""
    assert [sorted(knowledge) for knowledge in sent(run)] == [["learning_degree", "prototypes"]] * 2


def test_a_run_that_goes_on_with_a_shorter_warm_up_asks_for_prototypes_before_it_detects(tmp_path):
    cut = failing(answers(rounds=8, warmup=6), site="site-1", when=lambda name, r: r == 3)
    assert play(tmp_path, cut, rounds=8, warmup=6).stopped
    again = answers(rounds=8, warmup=2)
    run = play(tmp_path, again, rounds=8, warmup=2, job="job-2", allow_changes=["warmup_rounds"])
    assert run.stopped == ""
    assert [stage for name, _, stage in run.stages if name == TRAIN] == ["prototype", *["detect"] * 4]
    assert [bool(knowledge) for knowledge in sent(run)] == [False, *[True] * 4]


def test_a_class_without_prototype_is_recorded(tmp_path):
    def make_report(site):
        content = report(site)
        if site == "site-2":
            content["prototypes"][3], content["prototype_counts"][3] = 0, 0
        return content

    assert play(tmp_path, answers(make_report)).decisions("no_prototype") == [(r, ["b"]) for r in (2, 3, 4)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"learning_degree": np.ones(3, np.float32)},
            "result of round 1, report field learning_degree: expected float32 of shape (2,), got float32 of shape"
            " (3,)",
        ),
        (
            {"prototypes": np.array(1.0)},
            "result of round 1, report field prototypes: expected float32 of shape (4, 2), got float64 of shape ()",
        ),
        (
            {"learning_degree": None},
            "report: expected ['learning_degree', 'prototype_counts', 'prototypes'], got none of ['learning_degree']",
        ),
    ],
)
def test_a_report_that_the_method_cannot_use_stops_the_run_and_names_the_site(tmp_path, change, sentence):
    def make_report(site):
        content = report(site) | (change if site == "site-2" else {})
        return {name: value for name, value in content.items() if value is not None}

    run = play(tmp_path, answers(make_report))
    assert run.stopped == f"train of round 1: expected valid results from 2 sites, got 1: site-2: {sentence}"


def test_a_resumed_job_gives_the_sites_the_knowledge_of_the_last_round(tmp_path):
    whole = play(tmp_path / "whole")
    assert play(tmp_path, failing(answers(), site="site-1", when=lambda name, r: r == 3)).stopped
    run = play(tmp_path)
    assert run.stopped == ""
    assert [stage for _, _, stage in run.stages[1:-1]] == ["detect", "detect"]
    assert same_models(sent(run)[0], sent(whole)[3])
    assert same_models(run.model, whole.model)


def test_a_run_without_a_warm_up_is_refused(tmp_path):
    with refused("job variable warmup_rounds: expected at least 1, got 0"):
        FedMLPWorkflow(warmup_rounds=0)
    with refused("job variables warmup_rounds, num_rounds: expected the warm-up to fit into the run, got 6 of 5"):
        play(tmp_path, warmup=6)
