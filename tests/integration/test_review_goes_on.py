"""Verdicts in a job that goes on and in a later one, undisturbed and with the process killed in the middle of a round.

People judge when a round of the first job has repaired labels; the job then does its last two. A second job on the same
data begins with what they said.
"""

import os
import signal
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from forgetful import FORK_SERVER, IMPORTED, run_here
from simulation import SMALL, fedmend, lines

from fedmend.learning.training import LocalTrainer
from fedmend.local.local_federation import LocalTransport
from fedmend.records.run_folder import BEST_MODEL, MODEL, MODELS, RUN_FOLDER
from fedmend.repairs.ledger import read_history, read_verdicts
from fedmend.repairs.site_run import LEDGER_NAME
from fedmend.repairs.verdicts import ACCEPT, REJECT
from fedmend.review.desk import RANDOM, Choice, Desk, reviewable

pytestmark = pytest.mark.slow
SITES, ROUNDS = ("site-1", "site-2", "site-3"), 4
JUDGED = KILLED = 2  # rounds count from 0; labels are repaired from round 1 on
STRUCK = "site-2"  # when it dies, site-1 has answered
FIRST, SECOND = "first", "second"
EACH = 6  # verdicts of each word at a site


def judge(state: Path) -> None:
    """People of every site accept some repairs and reject others, the same ones whenever they see the same queue."""
    for folder in reviewable(state):
        desk = Desk(folder)
        for number, item in enumerate(desk.queue(Choice(order=RANDOM))[: 2 * EACH]):
            desk.judge(item, (ACCEPT, REJECT)[number % 2], reviewer="AB")


def play(home: Path, sites: Path, run: str, *, review: bool, kill: bool) -> None:
    """One job in this process.

    Args:
        home: the sites' state and the workspaces are below it.
        sites: their data.
        run: name of the run, and of its workspace.
        review: people judge before the round ``JUDGED``.
        kill: the process dies in the round ``KILLED``, when ``STRUCK`` has repaired its labels and not yet trained.
    """
    exchange, train = LocalTransport.exchange, LocalTrainer.train

    def judge_first(transport, question, *words):
        if review and (question.name, question.tasks[STRUCK].round_num) == ("train", JUDGED):
            judge(home / "state")
        exchange(transport, question, *words)

    def die(trainer, work, *words):
        if kill and (work.site.name, work.task.round_num) == (STRUCK, KILLED):
            os.kill(os.getpid(), signal.SIGKILL)
        return train(trainer, work, *words)

    where = {"data_root": f"{sites}/{{SITE_NAME}}", "cache_dir": str(sites / "cache")}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(LocalTransport, "exchange", judge_first))
        stack.enter_context(mock.patch.object(LocalTrainer, "train", die))
        run_here(
            "fedmlp_ich",
            home / run,
            sites=len(SITES),
            settings=[*SMALL["fedmlp_ich"], f"num_rounds={ROUNDS}", "eval_every=9", f"run_name={run}"],
            site_settings={**where, "state_dir": str(home / "state" / "{SITE_NAME}")},
            threads=1,
        )


def job(home: Path, sites: Path, run: str, *, review: bool = False, kill: bool = False) -> int:
    """:func:`play` in a process of its own; how that ended."""
    FORK_SERVER.set_forkserver_preload(IMPORTED)
    process = FORK_SERVER.Process(target=play, args=(home, sites, run), kwargs={"review": review, "kill": kill})
    process.start()
    process.join()
    return process.exitcode


class Series:
    """What the jobs below a folder left.

    Args:
        home: see :func:`play`.
    """

    def __init__(self, home: Path):
        self.home = home

    def ledger(self, run, site):
        return self.home / "state" / site / run / site / LEDGER_NAME

    def models(self, run):
        folder = (self.home / run / RUN_FOLDER).with_name(MODELS)
        return {name: (folder / name).read_bytes() for name in (MODEL, BEST_MODEL)}

    def set_by_rules(self, run, site, *, since=0):
        """(image, class, label) of the entries in force from a round on."""
        rows = [row for row in read_history(self.ledger(run, site)) if row["in_force"]]
        return {(r["image"], r["class"], r["new"]) for r in rows if r["round"] >= since}

    def trained_on(self, run, site):
        """(image, class, label) of all labels that the next round would train on."""
        desk = Desk(self.ledger(run, site).parent)
        target, images = desk.ledger.apply(desk.data.train.labels).tolist(), desk.data.train.table.images
        rows = zip(images, target, strict=True)
        return {(image, *pair) for image, row in rows for pair in zip(desk.classes, row, strict=True)}

    def said(self, run, site):
        """Word → (image, class, label) of the repairs judged so."""
        found = {ACCEPT: set(), REJECT: set()}
        for v in read_verdicts(self.ledger(run, site)):
            found[v["word"]].add((v["image"], v["class"], v["value"]))
        return found


@pytest.fixture(scope="module")
def series(sites, tmp_path_factory):
    """Both jobs undisturbed, both killed and run again, and a first job that nobody reviewed."""

    @cache
    def home(name):
        return tmp_path_factory.mktemp(name)

    assert job(home("unseen"), sites, FIRST) == 0
    for run in (FIRST, SECOND):
        assert job(home("whole"), sites, run, review=run == FIRST) == 0
        assert job(home("killed"), sites, run, review=run == FIRST, kill=True) == -signal.SIGKILL
        assert job(home("killed"), sites, run) == 0
    return {name: Series(home(name)) for name in ("unseen", "whole", "killed")}


@pytest.mark.parametrize("run", [FIRST, SECOND])
def test_a_killed_job_goes_on_with_the_verdicts_to_the_last_digit(series, run):
    whole, killed = series["whole"], series["killed"]
    assert killed.models(run) == whole.models(run)
    assert killed.models(run) != series["unseen"].models(FIRST)  # which both would be without the verdicts
    for site in SITES:
        assert killed.said(run, site) == whole.said(run, site)
        assert killed.set_by_rules(run, site) == whole.set_by_rules(run, site)
        assert killed.trained_on(run, site) == whole.trained_on(run, site)
        died = [row for row in read_history(killed.ledger(run, site)) if not row["in_force"]]
        assert bool(died) == (site <= STRUCK)  # what the round wrote that had to be repeated
    resumed = [line["value"] for line in lines(killed.home / run, "decisions.jsonl") if line["what"] == "resumed"]
    assert resumed == [{"at_round": KILLED}]


@pytest.mark.parametrize("run", [FIRST, SECOND])
@pytest.mark.parametrize("name", ["whole", "killed"])
def test_rejected_repairs_never_come_back_and_accepted_ones_are_fixed(series, name, run):
    this = series[name]
    for site in SITES:
        said = this.said(run, site)
        assert {word: len(labels) for word, labels in said.items()} == {ACCEPT: EACH, REJECT: EACH}
        assert said[ACCEPT] <= this.trained_on(run, site)
        assert not said[REJECT] & this.trained_on(run, site)
        assert not said[REJECT] & this.set_by_rules(run, site, since=JUDGED)  # no place in a quota
        unseen = series["unseen"].trained_on(FIRST, site)
        assert said[REJECT] <= unseen  # without a review they stay
        assert said[ACCEPT] <= unseen


def test_verdicts_survive_an_undo_of_all_rounds(series, tmp_path):
    this = series["killed"]
    for site in SITES:
        said = this.said(SECOND, site)
        assert this.set_by_rules(SECOND, site)
        code, out = fedmend("ledger", "undo", this.ledger(SECOND, site), "--from-round", 1, home=tmp_path)
        assert (code, out.strip().endswith("repairs taken back; they stay in the history")) == (0, True)
        assert this.set_by_rules(SECOND, site) == set()
        assert this.said(SECOND, site) == said
        assert said[ACCEPT] <= this.trained_on(SECOND, site)
        assert not said[REJECT] & this.trained_on(SECOND, site)
