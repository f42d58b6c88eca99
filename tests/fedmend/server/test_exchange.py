import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from factories import refused
from federation_factories import NUMBER, Script, Sites, Told, census, failing, initial, plain_answers

from fedmend.errors import FedMendError
from fedmend.messages import CENSUS, COLLECT, TRAIN, WAITS, Question, RunSpec, SiteResult
from fedmend.method import RoundTask
from fedmend.records.progress import Progress
from fedmend.server.census import read_census
from fedmend.server.exchange import Exchange, valid_results

THREE = {"site-1": [1, 1], "site-2": [1, 1], "site-3": [1, 1]}
SPEC, MODEL = RunSpec("run-1", ("a", "b"), "tiny", 7), initial(["a", "b"])


class Net:
    """Takes models; the update of ``wild`` is too large."""

    def __init__(self, wild=""):
        self.wild, self.models = wild, {}

    def check(self, model, where):
        if np.isclose(model["classifier.bias"], initial(["a", "b"])["classifier.bias"] + 9).all():
            raise FedMendError(f"{where}: expected finite scores")

    def put(self, site, model):
        self.models[site] = model

    def outliers(self):
        return {self.wild: "update: too large"} if self.wild in self.models else {}


@pytest.fixture
def exchange(tmp_path):
    """Sites that answer; the census is known unless the question is about it."""

    def make(answer, *, known=True, backwards=False):
        found = read_census({s: census(flags) for s, flags in THREE.items()}, SPEC.classes, goes_on=False)
        transport = Sites(THREE, answer, backwards=backwards)
        progress = Progress(tmp_path, transport.show)
        return Exchange(transport, progress, Script(None), found if known else None, {"C": 2})

    return make


def question(name=TRAIN, sites=THREE, weights=MODEL):
    return Question(name, weights, {s: RoundTask("stage", 4, 9, training=name == TRAIN) for s in sites}, SPEC)


def reporting(numbers):
    """Sites that report these numbers, or None."""
    plain = plain_answers(THREE)

    def answer(site, *rest):
        result = plain(site, *rest)
        if numbers[site] is not None:
            result.report = {"number": np.array(numbers[site])}
        return result

    return answer


def test_results_come_in_the_order_of_the_sites_and_their_models_in_the_net(exchange):
    net = Net()
    results, refused = exchange(plain_answers(THREE), backwards=True).ask(question(), 3, net)
    assert (list(results), refused) == (list(THREE), {})
    assert set(net.models) == set(THREE)
    assert all(result.weights == {} for result in results.values())


@pytest.mark.parametrize(
    ("error", "reason"), [("no", "site-2: no"), ("", "site-2: train: expected a result, got none")]
)
def test_who_is_refused_and_who_is_silent_has_a_reason(exchange, error, reason):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda *_: True, error=error)
    results, refused = exchange(answer).ask(question(), 2, Net())
    assert (list(results), refused) == (["site-1", "site-3"], {"site-2": reason})


def test_a_model_without_finite_scores_and_one_too_far_from_the_others_do_not_count(exchange):
    steps = {"site-1": 9.0, "site-2": 1.0, "site-3": 1.0}
    results, refused = exchange(plain_answers(THREE, step=steps)).ask(question(), 1, Net("site-3"))
    assert list(results) == ["site-2"]
    assert refused == {
        "site-1": "site-1: result of round 4: expected finite scores",
        "site-3": "site-3: result of round 4, update: too large",
    }


def test_a_report_is_checked_against_the_workflow_s_fields(exchange):
    most = NUMBER.high
    results, refused = exchange(reporting({"site-1": 7, "site-2": most + 1, "site-3": None})).ask(question(COLLECT), 1)
    assert int(results["site-1"].report["number"]) == 7
    assert list(results) == ["site-1", "site-3"]
    assert refused["site-2"].startswith("site-2: result of round 4, report field number: expected")


def test_a_census_needs_no_census(exchange):
    asked = Question(CENSUS, {}, {s: RoundTask(CENSUS, 0, 9, training=False) for s in THREE}, SPEC)
    results, refused = exchange(plain_answers(THREE), known=False).ask(asked, 3)
    assert (list(results), refused) == (list(THREE), {})


def test_a_question_to_nobody_is_refused(exchange):
    with refused("train: expected at least one site to ask, got none"):
        exchange(plain_answers(THREE)).ask(question(sites=()), 1)


def test_a_site_at_which_a_person_has_to_approve_the_job_is_asked_until_somebody_has(exchange, monkeypatch, caplog):
    monkeypatch.setattr("fedmend.server.exchange.PAUSE", 0)
    asked, plain = [], plain_answers(THREE)

    def answer(site, name, *rest):
        asked.append(site)
        if site == "site-2" and asked.count(site) < 3:
            return SiteResult(error=f"site-2: {WAITS}")
        return plain(site, name, *rest)

    log = SimpleNamespace(decision=lambda *_: pytest.fail("nobody is refused"), warn=logging.warning)
    about = Question(CENSUS, {}, {s: RoundTask(CENSUS, 0, 9, training=False) for s in THREE}, SPEC)
    found = valid_results(exchange(answer, known=False), log, about, 3)
    assert list(found) == ["site-1", "site-2", "site-3"]
    assert sorted(asked) == ["site-1", "site-2", "site-2", "site-2", "site-3"]
    assert caplog.text.count(f"site-2: {WAITS}") == 1


def test_only_a_census_is_asked_again(exchange):
    plain = plain_answers(THREE)

    def answer(site, *rest):
        return SiteResult(error=f"site-2: {WAITS}") if site == "site-2" else plain(site, *rest)

    log = SimpleNamespace(decision=lambda *_: None, warn=logging.warning)
    assert list(valid_results(exchange(answer), log, question(COLLECT), 2)) == ["site-1", "site-3"]


def test_a_site_cannot_count_more_samples_than_its_census(exchange):
    class Counting(Told):
        FIELDS: ClassVar = {"number": replace(NUMBER, of_samples=True)}  # up to 99; each site has 10 samples

    asking = exchange(reporting({"site-1": 10, "site-2": 11, "site-3": None}))
    asking = replace(asking, workflow=Script(None))
    asking.workflow.METHOD = Counting
    results, refused = asking.ask(question(), 3)
    assert list(results) == ["site-1", "site-3"]
    assert refused["site-2"].endswith("report field number: expected numbers from 0 to 10, got 11 to 11")
