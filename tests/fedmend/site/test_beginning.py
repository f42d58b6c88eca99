"""Another run under the name of an earlier one."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from factories import LABELS, make_site_folder
from torch_factories import PlainMethod, PlainRound
from worker_factories import Client, census_task, global_model, one_site

from fedmend.basics.state import StateStore
from fedmend.method import RoundTask
from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.ledger import read_history
from fedmend.repairs.site_run import LEDGER_NAME

FIRST, SECOND = "1" * 32, "2" * 32


class CountingRound(PlainRound):
    """Repairs a label, and counts the rounds of the site in each of the ways that state can be kept."""

    def report(self):
        state, r, fingerprint = self.site.state, self.task.round_num, "same data"
        turn = state.last_turn("turn", before=r)
        array = state.last_array("array", before=r, fingerprint=fingerprint)
        counts = [state.load("plain", 0), turn[1] if turn else 0, 0 if array is None else int(array[0])]
        labels = self.site.data.train.labels
        one = Repairs(np.array([0]), np.array([1]), np.array([1]), np.array([0.9]))
        self.site.ledger.record("rule", r, labels, one)
        state.save("plain", counts[0] + 1)
        state.save_turn("turn", r, counts[1] + 1)
        state.save_array("array", r, np.array([counts[2] + 1]), fingerprint=fingerprint)
        return {"counts": np.array(counts)}


class Counting(PlainMethod):
    ROUND = CountingRound


@pytest.fixture
def site(tmp_path):
    make_site_folder(tmp_path / "data", LABELS)
    with one_site():
        site = Client(tmp_path, Counting())
        site.run = replace(site.run, mark=FIRST)
        yield site


def in_force(site):
    return [row["round"] for row in read_history(folder(site) / LEDGER_NAME) if row["in_force"]]


def folder(site):
    return site.config.state_dir / site.run.run_name / site.name


def test_a_site_that_comes_late_to_another_run_starts_without_what_the_earlier_one_left(site):
    assert [site.train(r).report["counts"].tolist() for r in (0, 1)] == [[0, 0, 0], [1, 1, 1]]
    site.run = replace(site.run, mark=SECOND)
    late = site.train(2)
    assert late.report["counts"].tolist() == [0, 0, 0]
    assert in_force(site) == [2]
    site.start()
    assert site.train(3, mark=late.ledger_mark).report["counts"].tolist() == [1, 1, 1]
    assert in_force(site) == [2, 3]


def test_the_log_of_a_site_says_that_repairs_of_an_earlier_run_are_undone(site, caplog):
    caplog.set_level("INFO", "fedmend.executor")
    site.train(0)
    said = "site-1: this run begins anew under the name of an earlier one; 1 repairs undone"
    assert said not in caplog.text
    site.run = replace(site.run, mark=SECOND)
    site.ask("evaluate", RoundTask("evaluate", 1, 3, seed=7), global_model())
    assert said in caplog.text
    assert in_force(site) == []


def test_a_run_that_goes_on_in_another_process_finds_all_that_it_left(site):
    site.train(0)
    site.start()
    assert site.train(1).report["counts"].tolist() == [1, 1, 1]
    assert in_force(site) == [0, 1]


def test_a_census_and_a_task_outside_a_run_take_nothing_from_a_run(site):
    site.train(0)
    site.run = replace(site.run, mark=SECOND)
    assert site.ask("census", census_task()).error == ""
    site.run = replace(site.run, mark="")
    assert site.train(1).report["counts"].tolist() == [1, 1, 1]


def test_a_task_of_another_run_that_does_not_fit_takes_nothing_away(site):
    site.train(0)
    site.run = replace(site.run, mark=SECOND)
    task = RoundTask("train", 0, 3, {"unknown": np.zeros(1)}, seed=7)
    assert "knowledge of the server" in site.ask("train", task, global_model()).error
    assert "global model" in site.ask("train", replace(task, knowledge={}), {}).error
    assert in_force(site) == [0]
    assert (
        site.ask("train", replace(task, round_num=1, knowledge={}), global_model()).report["counts"].tolist() == [0] * 3
    )


def test_the_earlier_run_does_not_go_on_with_what_is_left_of_it(site):
    told = site.train(0).ledger_mark
    site.run = replace(site.run, mark=SECOND)
    site.train(0)
    site.run = replace(site.run, mark=FIRST)
    assert "got a ledger without the latest" in site.train(1, mark=told).error


def test_a_ledger_that_is_put_back_without_the_state_keeps_its_repairs(site):
    told = site.train(0).ledger_mark
    ledger = (folder(site) / LEDGER_NAME).read_bytes()
    shutil.rmtree(folder(site))
    folder(site).mkdir()
    (folder(site) / LEDGER_NAME).write_bytes(ledger)
    site.start()
    assert site.train(1, mark=told).report["counts"].tolist() == [0, 0, 0]
    assert in_force(site) == [0, 1]


def test_the_tasks_of_an_earlier_run_count_against_the_limit(site):
    site.config = replace(site.config, max_rounds=3)
    site.train(0)
    site.run = replace(site.run, mark=SECOND)
    site.train(0)
    assert StateStore(folder(site)).load("tasks") == {"train": 2}
