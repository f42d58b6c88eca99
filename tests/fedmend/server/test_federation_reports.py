"""What travels beside the weights: knowledge, roles, reports, decisions."""

import numpy as np
import pytest
from federation_factories import Run, Script, in_rounds, plain_answers

from fedmend.errors import FedMendError
from fedmend.messages import CENSUS, COLLECT, TRAIN

FOUR = {f"site-{i}": [1, 1] for i in range(1, 5)}


def script(folder, run, answer=None, sites=FOUR, **options):
    return Run(folder, Script(run), list(sites), answer or plain_answers(sites), **options)


# ---- knowledge and roles --------------------------------------------------------------------------------------------


def test_knowledge_goes_to_every_site_of_a_question(tmp_path):
    scale = np.float32([0.25, 1])
    run = script(tmp_path, in_rounds(lambda fed, r: fed.train("train", knowledge={"scale": scale})), num_rounds=1)
    assert [sites for task, sites in run.transport.sent if task.knowledge] == [list(FOUR)]
    assert run.knowledge("train")[0]["scale"].tolist() == [0.25, 1]


@pytest.mark.parametrize(
    ("knowledge", "wrong"),
    [
        ({"scales": np.float32([1, 1])}, "scales: expected one of ['scale'], got another"),
        ({"scale": np.float32([1, 1, 1])}, "scale: expected float32 of shape (2,), got float32 of shape (3,)"),
        ({"scale": np.ones(2)}, "scale: expected float32 of shape (2,), got float64 of shape (2,)"),
        ({"scale": np.float32([0, 2])}, "scale: expected numbers from 0 to 1, got 0 to 2"),
        ({"scale": np.float32([0, np.nan])}, "scale: expected finite numbers, got NaN or infinity"),
    ],
)
@pytest.mark.parametrize("question", ["train", "collect"])
def test_knowledge_that_does_not_fit_its_field_is_not_sent(tmp_path, question, knowledge, wrong):
    run = script(tmp_path, in_rounds(lambda fed, r: getattr(fed, question)("ask", knowledge=knowledge)))
    assert run.stopped == f"ask: knowledge for the sites, {wrong}"
    assert [name for name, *_ in run.asked] == [CENSUS]


ROLES = {"site-1": "clean", "site-2": "noisy", "site-3": "clean"}  # site-4 has none


def test_each_site_learns_its_own_role(tmp_path):
    def step(fed, r):
        fed.collect("look", roles=ROLES if r else None)
        fed.train("train", roles=ROLES)

    run = script(tmp_path, in_rounds(step), num_rounds=2)
    told = {site: {ROLES.get(site, "")} for site in FOUR}
    assert run.roles("train") == told
    assert run.roles("look") == {site: {"", *roles} for site, roles in told.items()}
    assert run.roles("census") == run.roles("evaluate") == {site: {""} for site in FOUR}


def test_a_round_with_roles_averages_all_sites_once(tmp_path):
    answer = plain_answers(FOUR, step={"site-1": 1, "site-2": 2, "site-3": 4, "site-4": 9})
    run = script(tmp_path, in_rounds(lambda fed, r: fed.train("train", roles=ROLES)), answer, num_rounds=2)
    assert run.moved() == pytest.approx([2 * (1 + 2 + 4 + 9) / 4] * 2)


# ---- reports --------------------------------------------------------------------------------------------------------


def reporting(numbers, question=COLLECT):
    """Sites that report their number; None for a silent site."""
    plain = plain_answers(FOUR)

    def answer(site, name, *rest):
        result = plain(site, name, *rest)
        if name == question:
            if numbers[site] is None:
                return None
            result.report = {"number": np.array(numbers[site])}
        return result

    return answer


def collecting(at_least=0):
    """A workflow that collects before the first round; what it got stands in the list."""
    got = []

    def run(fed):
        for r in fed.rounds():
            if r == 0:
                got.append(fed.collect("look", at_least=at_least))
            fed.train("train")

    return run, got


def test_reports_are_collected_without_training(tmp_path):
    run, got = collecting()
    played = script(tmp_path, run, reporting({"site-1": 5, "site-2": 6, "site-3": 7, "site-4": 8}))
    assert [(site, int(a.report["number"]), a.share) for site, a in got[0].items()] == [
        (f"site-{i}", 4 + i, 0.0) for i in range(1, 5)
    ]
    assert played.stages[:3] == [(CENSUS, 0, "census"), (COLLECT, 0, "look"), (TRAIN, 0, "train")]
    assert {(task.stage, task.training) for task, _ in played.transport.sent if task.stage in ("look", "train")} == {
        ("look", False),
        ("train", True),
    }


def test_some_sites_can_be_asked_for_reports(tmp_path):
    got = []
    step = in_rounds(lambda fed, r: got.append(list(fed.collect("look", sites=["site-4", "site-2"]))))
    run = script(tmp_path, step, reporting(dict.fromkeys(FOUR, 1)), num_rounds=1)
    assert got == [["site-2", "site-4"]]
    assert run.asked[1] == (COLLECT, 0, "look", ["site-2", "site-4"])


def test_a_site_may_be_absent_from_a_collection_and_is_recorded(tmp_path):
    run, got = collecting(at_least=2)
    played = script(tmp_path, run, reporting({"site-1": 5, "site-2": None, "site-3": -1, "site-4": 8}))
    assert played.stopped == ""
    assert list(got[0]) == ["site-1", "site-4"]
    wrong = "result of round 0, report field number: expected numbers from 0 to 99, got -1 to -1"
    assert played.decisions("refused") == [
        (0, {"site": "site-2", "reason": "site-2: collect: expected a result, got none"}),
        (0, {"site": "site-3", "reason": f"site-3: {wrong}"}),
    ]
    assert played.moved() == pytest.approx([3, 3])  # it trains with the others all the same


def test_a_collection_with_too_few_reports_stops_the_run_whatever_min_sites_says(tmp_path):
    run, _ = collecting(at_least=2)
    numbers = {"site-1": 5, "site-2": None, "site-3": None, "site-4": None}
    stopped = script(tmp_path, run, reporting(numbers), min_sites=1).stopped
    assert stopped.startswith("collect of round 0: expected valid results from 2 sites, got 1: site-2: collect: ")


FIELD = "site-2: result of round 0, report field"


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"names": np.array(1)}, f"{FIELD} names: expected one of ['number'], got another"),
        ({"number": np.float32(1)}, f"{FIELD} number: expected int64 of shape (), got float32 of shape ()"),
        ({"number": np.array([1])}, f"{FIELD} number: expected int64 of shape (), got int64 of shape (1,)"),
        ({"number": np.array(100)}, f"{FIELD} number: expected numbers from 0 to 99, got 100 to 100"),
    ],
    ids=["unknown", "another dtype", "another shape", "out of range"],
)
def test_a_report_that_does_not_fit_its_field_costs_its_site_alone(tmp_path, report, reason):
    plain = plain_answers(FOUR, step=dict(zip(FOUR, (1, 100, 1, 1), strict=True)))

    def answer(site, question, *rest):
        result = plain(site, question, *rest)
        if question == TRAIN:
            result.report = report if site == "site-2" else {"number": np.array(1)}
        return result

    got = []
    step = in_rounds(lambda fed, r: got.append(fed.train("train")))
    run = script(tmp_path, step, answer, num_rounds=1, min_sites=1)
    assert run.stopped == ""
    assert run.decisions("refused") == [(0, {"site": "site-2", "reason": reason})]
    assert {site: int(a.report["number"]) for site, a in got[0].items()} == dict.fromkeys(
        sorted(set(FOUR) - {"site-2"}), 1
    )
    assert run.moved() == pytest.approx([1, 1])


def test_the_workflow_may_refuse_a_report_of_a_stage(tmp_path):
    class Picky(Script):
        def check(self, stage, report):
            if stage == "look" and "number" not in report:
                raise FedMendError("report: expected a number, got none")

    run, got = collecting(at_least=1)
    answer = reporting(dict.fromkeys(FOUR, 1))
    silent = lambda site, *rest: plain_answers(FOUR)(site, *rest) if site == "site-3" else answer(site, *rest)  # noqa: E731
    played = Run(tmp_path, Picky(run), list(FOUR), silent)
    assert played.decisions("refused") == [
        (0, {"site": "site-3", "reason": "site-3: report: expected a number, got none"})
    ]
    assert played.stopped == ""
    assert list(got[0]) == ["site-1", "site-2", "site-4"]


def test_warnings_and_decisions_of_a_workflow_are_written_down(tmp_path, caplog):
    def run(fed):
        fed.record("before", 1)
        for r in fed.rounds():
            fed.record("first", r)
            fed.train("train")
            fed.record("done", r)
        fed.record("after", [1])
        fed.warn("site-1: something odd")

    run = script(tmp_path, run, num_rounds=2)
    assert run.decisions("before") == [(None, 1)]
    assert run.decisions("first") == [(0, 0), (1, 1)]
    assert run.decisions("done") == [(1, 0), (2, 1)]
    assert run.decisions("after") == [(2, [1])]
    assert "site-1: something odd" in caplog.text
