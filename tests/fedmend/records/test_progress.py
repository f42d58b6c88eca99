"""The picture that a run shows of itself while it goes on."""

import json

import pytest
from federation_factories import Run, failing, plain_answers

from fedmend.messages import CENSUS, TRAIN
from fedmend.methods.baselines import FedAvgWorkflow
from fedmend.records.progress import MOST_POINTS, PAUSE, Progress, curves, repaired

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}
THREE = {**BOTH, "site-3": [1, 1]}


def play(folder, answer, sites=BOTH, **options):
    return Run(folder, FedAvgWorkflow(), list(sites), answer, **options)


def test_a_finished_run_shows_rounds_sites_and_metrics(tmp_path):
    picture = play(tmp_path, plain_answers(BOTH)).content("progress.json")
    shown = {k: picture[k] for k in ("state", "run_name", "method", "phantom", "num_rounds", "done", "unit", "split")}
    assert shown == {
        "state": "finished",
        "run_name": "run-1",
        "method": "FedAvgWorkflow",
        "phantom": False,
        "num_rounds": 3,
        "done": 3,
        "unit": "labels",
        "split": "test",
    }
    assert picture["curves"]["auc"] == [[0, 1.0], [1, 1.0], [2, 1.0], [3, 1.0]]
    assert picture["highest"]["auc"] == [1, 1.0]
    assert picture["remaining"] == 0
    site = picture["sites"]["site-2"]
    assert (site["state"], site["round"], site["samples"]) == ("answered", 3, 10)


def test_a_round_in_which_a_site_was_refused_stays_in_sight(tmp_path):
    answer = failing(plain_answers(THREE), site="site-2", when=lambda name, r: name == TRAIN and r == 1, error="no")
    run = play(tmp_path, answer, THREE, min_sites=2)
    sites = run.content("progress.json")["sites"]
    assert sites["site-2"].items() >= {"refused": 2, "state": "answered", "round": 3}.items()
    assert "refused" not in sites["site-1"]


def test_a_site_is_shown_as_it_is_asked_and_answers(tmp_path):
    states, plain = [], plain_answers(BOTH)

    def answer(site, question, *rest):
        shown = json.loads(next(tmp_path.rglob("progress.json")).read_text())["sites"]
        states.append((question, *(shown[s]["state"] for s in BOTH)))
        return plain(site, question, *rest)

    play(tmp_path, answer, num_rounds=1)
    assert states == [
        ("census", "checking data", "checking data"),
        ("census", "answered", "checking data"),
        ("train", "training", "training"),
        ("train", "answered", "training"),
        ("evaluate", "evaluating", "evaluating"),
        ("evaluate", "answered", "evaluating"),
    ]


def test_a_site_that_the_job_leaves_out_is_shown_so(tmp_path):
    described = {"without": ["site-3"]}
    run = play(tmp_path, plain_answers(BOTH), THREE, without=["site-3"], described=described)
    assert run.content("progress.json")["sites"]["site-3"] == {"state": "left out"}


def test_a_run_that_stops_says_why(tmp_path):
    run = play(tmp_path, failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == CENSUS, error="no"))
    picture = run.content("progress.json")
    assert (picture["state"], picture["reason"]) == ("stopped", run.stopped)
    assert run.stopped


def test_errors_that_may_name_files_are_shown_by_their_kind_alone(tmp_path):
    with pytest.raises(OSError, match="secret"), Progress(tmp_path, lambda picture: None):
        raise OSError("secret/file")
    assert json.loads((tmp_path / "progress.json").read_text())["reason"] == "OSError"


def test_a_resumed_run_shows_the_rounds_of_the_job_before(tmp_path):
    broken = failing(plain_answers(BOTH), site="site-2", when=lambda name, r: name == TRAIN and r == 2, error="no")
    play(tmp_path, broken)
    second = play(tmp_path, plain_answers(BOTH), job="job-2")
    assert second.stopped == ""
    assert [r for r, _ in second.content("progress.json")["curves"]["auc"]] == [0, 1, 2, 3]


def test_a_disk_that_cannot_take_the_picture_stops_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    shown = []
    with Progress(tmp_path / "file", lambda picture: shown.append((picture["state"], picture.get("done")))) as progress:
        progress.tell(done=1)
    assert [done for _, done in shown] == [None, 1, 1]
    assert shown[-1][0] == "finished"


def test_single_answers_are_handed_on_at_most_every_few_seconds(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("fedmend.records.progress.time.monotonic", lambda: now[0])
    shown = []
    with Progress(tmp_path, lambda picture: shown.append(picture["time"])) as progress:
        progress.asked("train", "warmup", 0, ["a", "b", "c"])
        before = len(shown)
        progress.answered("a", "train")
        assert len(shown) == before
        now[0] = PAUSE
        progress.answered("b", "train")
        progress.answered("c", "train")
        assert len(shown) == before + 1
    assert json.loads((tmp_path / "progress.json").read_text())["sites"]["b"]["seconds"] == PAUSE


def test_answers_of_thousands_of_sites_are_not_written_one_by_one(tmp_path, monkeypatch):
    now, written = [0.0], []
    monkeypatch.setattr("fedmend.records.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr("fedmend.records.progress.os.replace", lambda *files: written.append(now[0]))
    sites = [str(i) for i in range(10_000)]
    with Progress(tmp_path, lambda picture: None) as progress:
        progress.asked("train", "warmup", 0, sites)
        before = len(written)
        for site in sites[:1000]:
            now[0] += 0.001
            progress.answered(site, "train")
    assert len(written) - before == 1000 // 200 + 1  # every 0.2 s, and the end


def line(r, auc, split="test"):
    return {"round": r, "split": split, "macro": {"auc": auc, "ece": 0.1}}


def test_the_highest_value_is_of_a_trained_model_and_a_repeated_round_replaces_its_own():
    found = curves([line(0, 0.9), line(1, 0.8), line(1, 0.6), line(2, 0.7), line(2, 0.95, "val")])
    assert found == {"split": "test", "curves": {"auc": [(0, 0.9), (1, 0.6), (2, 0.7)]}, "highest": {"auc": (2, 0.7)}}


def test_long_curves_are_thinned_and_end_with_the_last_round():
    points = curves([line(r, r / 1000) for r in range(1, 1000)])["curves"]["auc"]
    assert len(points) <= MOST_POINTS
    assert points[-1] == (999, 0.999)


def test_a_split_without_a_value_has_no_curve():
    assert curves([line(0, None)]) == {"split": "test", "curves": {}, "highest": {}}


def test_repairs_are_added_up_over_the_last_round_of_each_site():
    def count(r, site, positive, correct):
        return {
            "round": r,
            "site": site,
            "class": "a",
            "positive": positive,
            "negative": 1,
            "correct_positive": correct,
        }

    lines = [count(1, "site-1", 2, 2), count(2, "site-1", 5, 4), count(1, "site-2", 3, 3)]
    assert repaired(lines, ["b", "a"]) == {"a": {"positive": 8, "negative": 2, "correct_positive": 7}}
    assert "correct_positive" not in repaired([*lines, count(1, "site-3", 1, None)], ["a"])["a"]
