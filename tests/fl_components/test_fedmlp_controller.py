import numpy as np
import pytest
from fl_factories import Federation, plain_answers
from torch_factories import TinyNetwork

from fedmend import networks
from fl_components.controllers.fedmlp import FedMLPController
from fl_components.payload import TRAIN

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
    num_features = 2


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Runs R rounds; gives the federation, stages and knowledge of all training tasks of site-1."""
    monkeypatch.setitem(networks.NETWORKS, "tiny", NarrowNetwork)
    monkeypatch.setattr("fl_components.controllers.staged.write_report", lambda folder: None)
    monkeypatch.setattr("fl_components.controllers.staged.summary_text", lambda folder: "")

    def run(*, make_report=report, rounds=5, warmup=2, answer_from=0, **settings):
        plain, seen = plain_answers(ANNOTATED, samples=SAMPLES), []

        def answer(site, task_name, weights, task, evaluate):
            result = plain(site, task_name, weights, task, evaluate)
            if task_name == TRAIN:
                if site == "site-1":
                    seen.append((task.stage, task.knowledge))
                if warmup - 1 <= task.round_num < rounds - 1:
                    result.report = make_report(site)
                if task.round_num == answer_from - 1:
                    result.samples = 0
            return result

        controller = FedMLPController(
            run_name="run-1",
            classes=["edema", "nodule"],
            network="tiny",
            num_rounds=rounds,
            warmup_rounds=warmup,
            **settings,
        )
        federation = Federation(tmp_path, controller, list(ANNOTATED), answer).run()
        return federation, [stage for stage, _ in seen], [knowledge for _, knowledge in seen]

    return run


def test_stages_follow_each_other_as_in_the_paper(play):
    federation, stages, _ = play()
    assert stages == ["warmup", "prototype", "detect", "detect", "detect"]
    assert federation.engine.panics() == []
    assert [a[0] for a in federation.asked] == ["census", *["train"] * 5, "evaluate"]


def test_a_warmup_of_one_round_asks_for_prototypes_at_once(play):
    assert play(rounds=2, warmup=1)[1] == ["prototype", "detect"]


def test_the_first_rounds_travel_without_knowledge(play):
    _, _, knowledge = play()
    assert [sorted(k) for k in knowledge] == [[], [], *[["learning_degree", "prototypes"]] * 3]


def test_prototypes_of_equation_6_and_degrees_of_equation_10_are_passed_on(play):
    federation, _, knowledge = play()
    np.testing.assert_allclose(knowledge[2]["prototypes"], [[1, 0], [0, 1], [3, 4], [4, 3]])
    # The degree of a class is that of the sites that miss it: class 0 at site-2, class 1 at site-1.
    np.testing.assert_allclose(knowledge[2]["learning_degree"], [0.3, 0.2])
    assert federation.decisions("learning_degree") == [(r, {"edema": 0.3, "nodule": 0.2}) for r in (2, 3, 4)]


def test_knowledge_is_weighted_by_samples_where_several_sites_count(play):
    _, _, knowledge = play(degree_over="all")
    np.testing.assert_allclose(knowledge[2]["learning_degree"], [(0.1 + 3 * 0.3) / 4, (0.2 + 3 * 0.4) / 4], rtol=1e-6)


def test_degrees_can_be_taken_from_the_sites_that_annotate(play):
    _, _, knowledge = play(degree_over="annotated")
    np.testing.assert_allclose(knowledge[2]["learning_degree"], [0.1, 0.4])


@pytest.mark.parametrize(("weighting", "expected"), [("samples", (1 + 3 * 5) / 4), ("uniform", 3)])
def test_prototypes_are_weighted_as_the_job_says(play, weighting, expected):
    def make_report(site):
        value = {"site-1": 1, "site-2": 5}[site]
        return report(site) | {
            "prototypes": np.full((4, 2), value, np.float32),
            "prototype_counts": np.full(4, 9),
        }

    _, _, knowledge = play(make_report=make_report, prototype_weighting=weighting)
    np.testing.assert_allclose(knowledge[2]["prototypes"], np.full((4, 2), expected))


def test_a_class_without_prototype_is_recorded(play):
    def make_report(site):
        content = report(site)
        if site == "site-2":
            content["prototypes"][3], content["prototype_counts"][3] = 0, 0
        return content

    federation, _, _ = play(make_report=make_report)
    assert federation.decisions("no_prototype") == [(r, ["nodule"]) for r in (2, 3, 4)]


@pytest.mark.parametrize("wrong", [{"learning_degree": np.ones(3)}, {"prototypes": np.array(1.0)}])
def test_a_report_that_the_method_cannot_use_stops_the_run_and_names_the_site(play, wrong):
    def make_report(site):
        return report(site) | wrong if site == "site-2" else report(site)

    federation, stages, _ = play(make_report=make_report)
    assert stages == ["warmup", "prototype"]
    (sentence,) = federation.engine.panics()
    assert "got 1: site-2: report: expected the shapes" in sentence


def test_a_resumed_job_gives_the_sites_the_knowledge_of_the_last_round(play):
    stopped, _, _ = play(answer_from=4)  # round 3 fails
    assert "field samples: expected the 10 of its census, got 0" in stopped.engine.panics()[0]
    federation, stages, knowledge = play()
    assert federation.engine.panics() == []
    assert stages == ["detect", "detect"]
    np.testing.assert_allclose(knowledge[0]["prototypes"], [[1, 0], [0, 1], [3, 4], [4, 3]])
    np.testing.assert_allclose(knowledge[0]["learning_degree"], [0.3, 0.2])


@pytest.mark.parametrize("wrong", [{"degree_over": "some"}, {"prototype_weighting": "random"}])
def test_unknown_choices_are_refused_at_once(play, wrong):
    with pytest.raises(ValueError, match="unknown degree_over"):
        play(**wrong)
