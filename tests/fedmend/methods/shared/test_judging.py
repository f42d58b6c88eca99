"""Sites judged by the heads of all others: what a site sends and keeps, and the losses that it tells."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from factories import refused
from torch_factories import TinyNetwork, make_single_site, make_task

from fedmend.learning.discriminant import solve_heads
from fedmend.method import Answer
from fedmend.methods.shared.judging import heads_to_judge_by, judged, judged_losses
from fedmend.repairs.verdicts import RELABEL, Verdict


def test_a_site_sends_and_keeps_the_heads_of_the_classes_that_it_has(tmp_path):
    site = make_single_site(tmp_path, [0, 0, 1, 0, 1])  # of three classes
    features = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    report = heads_to_judge_by(TinyNetwork(3), features, site)
    labels = np.array([[1, 0, -1], [1, 0, -1], [0, 1, -1], [1, 0, -1], [0, 1, -1]])
    expected = solve_heads(features, labels, 1.0, balanced=True)
    assert report["head_weights"] == pytest.approx(expected.weights, rel=1e-5)
    assert report["head_biases"] == pytest.approx(expected.biases, rel=1e-5)
    assert report["head_counts"].tolist() == [2, 2, 0]
    kept = site.state.load("own_heads")
    assert {name: value.tolist() for name, value in kept.items()} == {n: v.tolist() for n, v in report.items()}


def test_a_sample_without_a_label_is_refused(tmp_path):
    with refused("site-1: train.csv row 3, column label: expected a class name, got a blank"):
        heads_to_judge_by(TinyNetwork(3), torch.zeros(3, 12), make_single_site(tmp_path, [0, -1, 1]))


def test_a_site_is_judged_by_the_mean_of_all_heads_without_its_own(tmp_path):
    site = make_single_site(tmp_path, [0] * 3 + [1] * 3 + [2] * 2)
    site.min_count = 2
    features = torch.tensor([[1.0]] * 3 + [[-1.0]] * 3 + [[0.0]] * 2)
    own = {"head_weights": [[9.0], [3.0], [5.0]], "head_biases": [1.0, 2.0, 3.0], "head_counts": [3, 3, 2]}
    site.state.save("own_heads", {name: torch.tensor(value) for name, value in own.items()})
    # Others: 3 samples with weight -1, bias 0 for class 0, 9 with weight -2, bias 1 for class 1; none for class 2.
    every = {
        "mean_weights": np.array([[(3 * 9 - 3) / 6], [(3 * 3 - 9 * 2) / 12], [5.0]], dtype=np.float32),
        "mean_biases": np.array([3 / 6, (3 * 2 + 9) / 12, 3.0], dtype=np.float32),
        "all_counts": np.array([6, 12, 2]),
    }
    found = judged(features, make_task("judge", **every), site)
    # Class 0 at x = 1: scores -1 and -1; class 1 at x = -1: scores 1 and 3.
    assert found["class_count"].tolist() == [3, 3, 0]
    assert found["class_loss"] == pytest.approx([np.log(2), np.log(1 + np.exp(-2)), 0], rel=1e-5)


def test_a_label_that_a_person_gave_is_judged_too(tmp_path):
    site = make_single_site(tmp_path, [-1, 0, 1, 1])
    site.ledger.judge(Verdict(0, 1, RELABEL, -1, 1, reviewer="AB"))
    every = {
        "mean_weights": np.array([[1.0], [0.0], [0.0]], dtype=np.float32),
        "mean_biases": np.zeros(3, dtype=np.float32),
        "all_counts": np.array([9, 9, 0]),
    }
    found = judged(torch.tensor([[-1.0], [1.0], [-1.0], [-1.0]]), make_task("judge", **every), site)
    assert found["class_count"].tolist() == [1, 3, 0]
    assert found["class_loss"] == pytest.approx([*[np.log(1 + np.exp(-1))] * 2, 0], rel=1e-5)


def test_a_site_that_nobody_elses_head_can_judge_tells_no_loss(tmp_path):
    nothing = {"mean_weights": (3, 1), "mean_biases": 3, "all_counts": 3}  # all sites are too small to send a head
    every = {name: np.zeros(shape, dtype=np.float32) for name, shape in nothing.items()}
    found = judged(torch.ones(4, 1), make_task("judge", **every), make_single_site(tmp_path, [0, 0, 1, 1]))
    assert found["class_count"].tolist() == [0, 0, 0]


def test_a_head_that_the_guard_kept_at_the_site_is_not_taken_out_of_the_mean(tmp_path):
    site = make_single_site(tmp_path, [0] * 3 + [1])
    site.min_count = 2
    own = {"head_weights": [[1.0], [100.0], [0.0]], "head_biases": [0.0, 100.0, 0.0], "head_counts": [3, 1, 0]}
    site.state.save("own_heads", {name: torch.tensor(value) for name, value in own.items()})
    # Others: 3 samples with weight 3 for class 0, 4 with weight -1 for class 1, where the site's one did not count.
    every = {
        "mean_weights": np.array([[(3 * 1 + 3 * 3) / 6], [-1.0], [0.0]], dtype=np.float32),
        "mean_biases": np.zeros(3, dtype=np.float32),
        "all_counts": np.array([6, 4, 0]),
    }
    found = judged(torch.tensor([[1.0]] * 3 + [[-1.0]]), make_task("judge", **every), site)
    # Scores 3 and -1 at x = 1, -3 and 1 at x = -1.
    assert found["class_loss"] == pytest.approx([*[np.log(1 + np.exp(-4))] * 2, 0], rel=1e-4)


def test_sites_are_judged_by_a_mean_in_which_a_large_one_counts_in_full():
    told = {}

    def collect(stage, *, sites, knowledge, at_least):
        told.update(knowledge, at_least=at_least)
        return {site: Answer({"class_loss": np.zeros(1)}) for site in sites}

    heads = {
        site: {"head_weights": np.array([[w]]), "head_biases": np.array([2 * w]), "head_counts": np.array([n])}
        for site, w, n in (("a", 1.0, 10), ("b", 2.0, 1), ("c", 3.0, 1))
    }
    assert list(judged_losses(SimpleNamespace(collect=collect), heads)) == ["a", "b", "c"]
    # Each site takes its own part out by its true count, so none may be capped.
    assert told["mean_weights"] == pytest.approx(np.array([[15 / 12]]))
    assert told["mean_biases"] == pytest.approx([30 / 12])
    assert told["all_counts"].tolist() == [12]
    assert told["at_least"] == 4  # of which a mixture can tell two kinds
