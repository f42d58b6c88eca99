"""The model of a finished run goes to the sites that want it, and to no other."""

import numpy as np
import pytest
from factories import refused
from federation_factories import Run, plain_answers

from fedmend.messages import CENSUS, KEEP, SiteResult
from fedmend.methods.baselines import FedAvgWorkflow

BOTH = {"site-1": [1, 0], "site-2": [0, 1]}


class Keepers:
    """Sites of which some want the model; ``got`` is what they received."""

    def __init__(self, *names, refusing=(), silent=(), **options):
        self.names, self.refusing, self.silent, self.got = names, refusing, silent, {}
        self.plain = plain_answers(BOTH, **options)

    def __call__(self, site, question, weights, task, evaluate):
        if question != KEEP:
            answer = self.plain(site, question, weights, task, evaluate)
            if question == CENSUS and site in self.names:
                answer.census["keep_model"] = True
            return answer
        self.got[site] = {name: content.tobytes() for name, content in weights.items()}
        if site in self.silent:
            return None
        return SiteResult(error=f"{site}: no" if site in self.refusing else "", round_num=task.round_num)


def play(folder, sites, **settings):
    return Run(folder, FedAvgWorkflow(), list(BOTH), sites, **settings)


def files(run, name):
    return {file.name: file.read_bytes() for file in (run.folder / name).iterdir()}


@pytest.mark.parametrize(("shared", "name"), [("final", "run-1.fedmend"), ("best", "run-1-best.fedmend")])
def test_a_site_that_wants_the_model_gets_the_files_of_the_package_as_the_last_task(tmp_path, shared, name):
    sites = Keepers("site-2")
    run = play(tmp_path, sites, share_model=shared)
    assert run.asked[-1] == (KEEP, 3, KEEP, ["site-2"])
    assert sites.got == {"site-2": files(run, name)}
    assert run.decisions("kept") == [(None, {"package": name, "sites": ["site-2"]})]
    assert run.content("results.json")["final"]


def test_nobody_gets_a_model_where_the_job_shares_none_or_no_site_wants_one(tmp_path):
    for folder, sites, shared in (("a", Keepers("site-1"), "none"), ("b", Keepers(), "final")):
        run = play(tmp_path / folder, sites, share_model=shared)
        assert (run.stopped, sites.got, run.decisions("kept")) == ("", {}, [])


def test_a_best_model_that_there_is_not_is_said(tmp_path, caplog):
    sites = Keepers("site-1", counts=lambda r: {})
    run = play(tmp_path, sites, share_model="best")
    assert (run.stopped, sites.got) == ("", {})
    assert "no site keeps a model: expected a best one (share_model), there is none" in caplog.text


def test_a_run_that_trained_nothing_hands_nothing_over(tmp_path):
    sites = Keepers("site-1", step=dict.fromkeys(BOTH, 0.0))
    assert play(tmp_path, sites).stopped == ""
    assert sites.got == {}


def test_a_site_that_refuses_or_is_silent_costs_the_run_nothing(tmp_path):
    run = play(tmp_path, Keepers("site-1", "site-2", refusing=["site-1"], silent=["site-2"]))
    assert run.stopped == ""
    assert run.decisions("kept") == [(None, {"package": "run-1.fedmend", "sites": []})]
    reasons = [value["reason"] for _, value in run.decisions("not_kept")]
    assert reasons == ["site-1: no", "site-2: keep: expected a result, got none"]


def test_what_a_job_shares_is_one_of_three_words(tmp_path):
    with refused("job variable share_model: expected one of ['none', 'final', 'best'], got 'all'"):
        play(tmp_path, Keepers(), share_model="all")


def test_a_job_that_shares_another_model_goes_on_with_the_run(tmp_path):
    play(tmp_path, Keepers(), share_model="none")
    sites = Keepers("site-1")
    again = play(tmp_path, sites, share_model="final", job="job-2")
    assert again.stopped == ""
    assert np.all([name in sites.got["site-1"] for name in ("package.json", "weights.safetensors", "SHA256SUMS")])
