"""A model that most sites cannot evaluate: the run goes back to the last one that they could, and names a site."""

import numpy as np
import pytest
from federation_factories import Run, initial, plain_answers

from fedmend.learning.inference import NOT_FINITE
from fedmend.messages import CENSUS, TRAIN, SiteResult
from fedmend.methods.baselines import FedAvgWorkflow

SITES = {f"site-{i}": [1, 1] for i in (1, 2, 3, 4)}
ROGUE = "site-4"
START = initial(["a", "b"])["classifier.bias"]


def answers(*, ruin=1, blind=tuple(SITES)[:3], times=8):
    """Sites that add 1 to all weights; in round ``ruin`` the rogue adds ``times`` as much to one tensor, which makes
    every later model useless for the real images of the sites ``blind``."""
    plain = plain_answers(SITES)

    def answer(site, question, weights, task, evaluate):
        done = 0 if question == CENSUS else float((weights["classifier.bias"] - START).mean())
        if evaluate and site in blind and done > task.round_num + 0.5:
            return SiteResult(error=f"{site}: {NOT_FINITE}")
        result = plain(site, question, weights, task, evaluate)
        if (site, question, task.round_num) == (ROGUE, TRAIN, ruin):
            result.weights["classifier.bias"] += np.float32(times - 1)
        return result

    return answer


def play(folder, answer, **options):
    return Run(folder, FedAvgWorkflow(), list(SITES), answer, **options)


def test_the_run_goes_back_names_the_site_and_goes_on_without_it(tmp_path):
    first = play(tmp_path, answers(), num_rounds=4, min_sites=2)
    assert first.stopped == (
        "round 2: expected a global model that most sites can evaluate, got NaN or infinity at site-1, site-2, site-3;"
        " the run has gone back to the model after 1 round. Since then the result of site-4 stands out, which changed"
        ' a tensor 8 times as much as the median of the sites: submit again with without=["site-4"]'
    )
    told = {"cannot_evaluate": ["site-1", "site-2", "site-3"], "back_to": 1, "suspect": ROGUE, "times": 8.0}
    assert first.decisions("went_back") == [(2, told)]
    again = play(tmp_path, answers(ruin=99), job="job-2", num_rounds=4, min_sites=2, without=[ROGUE])
    assert again.stopped == ""
    assert again.rounds() == [1, 2, 3]
    assert again.moved() == pytest.approx([4, 4])


def test_a_server_that_was_killed_in_between_knows_the_site_all_the_same(tmp_path):
    silent = answers()

    def killed(site, question, weights, task, evaluate):
        return None if question == TRAIN and task.round_num == 2 else silent(site, question, weights, task, evaluate)

    assert "expected valid results" in play(tmp_path, killed, num_rounds=4, min_sites=2).stopped
    again = play(tmp_path, answers(), job="job-2", num_rounds=4, min_sites=2)
    assert 'without=["site-4"]' in again.stopped
    assert again.decisions("went_back")[-1][1]["back_to"] == 1


def test_a_run_that_evaluates_now_and_then_goes_back_to_the_last_model_that_was_evaluated(tmp_path):
    first = play(tmp_path, answers(ruin=3), num_rounds=7, min_sites=2, eval_every=3)
    assert first.rounds() == [0, 1, 2, 3, 4, 5, 6]
    assert "gone back to the model after 3 rounds. Since then the result of site-4 stands out" in first.stopped
    again = play(tmp_path, answers(ruin=99), job="job-2", num_rounds=7, min_sites=2, eval_every=3, without=[ROGUE])
    assert (again.stopped, again.rounds()) == ("", [3, 4, 5, 6])


def test_where_the_first_round_has_ruined_the_model_the_run_begins_anew(tmp_path):
    first = play(tmp_path, answers(ruin=0), min_sites=2)
    assert "gone back to the model after 0 rounds" in first.stopped
    again = play(tmp_path, answers(ruin=99), job="job-2", min_sites=2, without=[ROGUE])
    assert (again.stopped, again.rounds()) == ("", [0, 1, 2])


def test_a_final_model_that_most_sites_cannot_evaluate_is_taken_back_too(tmp_path):
    first = play(tmp_path, answers(ruin=2), min_sites=2)
    assert first.stopped.startswith("round 3: expected a global model that most sites can evaluate")
    again = play(tmp_path, answers(ruin=99), job="job-2", min_sites=2, without=[ROGUE])
    assert (again.stopped, again.rounds()) == ("", [2])


@pytest.mark.parametrize("blind", [("site-1",), ("site-1", "site-2")])
def test_sites_that_are_no_majority_take_nothing_back(tmp_path, blind):
    run = play(tmp_path, answers(blind=blind), num_rounds=4, min_sites=2)
    assert (run.stopped, run.rounds()) == ("", [0, 1, 2, 3])
    assert run.decisions("went_back") == []
