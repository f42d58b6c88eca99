"""FedNoRo whose noisy sites are found by the heads of all others: what sites send, and what the server asks."""

import numpy as np
import pytest
import torch
from federation_factories import Run, confusion, plain_answers
from torch_factories import TinyNetwork, make_single_site, make_task

from fedmend.messages import CENSUS, COLLECT, EVALUATE, TRAIN
from fedmend.methods.fednoro import JudgedFedNoRo, JudgedFedNoRoWorkflow
from fedmend.methods.shared.noisy_sites import NOISY

SITES = {f"site-{i}": [1, 1] for i in range(1, 6)}
LOSSES = {"site-1": [0.1, 0.4], "site-2": [1.1, 2.4], "site-3": [0.2, 0.4], "site-4": [0.9, 2.0], "site-5": [0.1, 0.5]}


def test_a_site_sends_heads_and_then_its_losses_under_those_of_all_others(tmp_path):
    site, net = make_single_site(tmp_path, [0, 0, 1, 1, 2, 2]), TinyNetwork(3).eval()
    site.min_count = 2
    heads = JudgedFedNoRo().collect(net, make_task("heads", training=False), site)
    assert sorted(heads) == ["head_biases", "head_counts", "head_weights"]
    assert heads["head_counts"].tolist() == [2, 2, 2]
    # Two sites in all, and the other one's rows are the opposite: the mean over both is 0.
    every = {
        "mean_weights": np.zeros((3, 12), dtype=np.float32),
        "mean_biases": np.zeros(3, dtype=np.float32),
        "all_counts": 2 * heads["head_counts"],
    }
    told = JudgedFedNoRo().collect(net, make_task("judge", training=False, **every), site)
    with torch.no_grad():
        features = net(site.data.train.view(torch.arange(6)))[0].numpy()
    scores = -(features @ heads["head_weights"].T + heads["head_biases"])
    loss = np.log(np.exp(scores).sum(1)) - scores[np.arange(6), [0, 0, 1, 1, 2, 2]]
    assert told["class_count"].tolist() == [2, 2, 2]
    assert told["class_loss"] == pytest.approx(loss.reshape(3, 2).mean(1), rel=1e-4)


def play(folder, counts=(7, 7)):
    plain = plain_answers(SITES, counts=lambda round_num: {"test": confusion(0.5, 1)}, kind="singlelabel")
    rows = {site: float(i) for i, site in enumerate(SITES)}
    received = {}

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == COLLECT and task.stage == "heads":
            result.report = {
                "head_weights": np.full((2, 12), rows[site], dtype=np.float32),
                "head_biases": np.full(2, rows[site], dtype=np.float32),
                "head_counts": np.array([7, 7]),
            }
        elif question == COLLECT:
            received[site] = task.knowledge
            result.report = {"class_loss": np.array(LOSSES[site], dtype=np.float32), "class_count": np.array(counts)}
        return result

    workflow = JudgedFedNoRoWorkflow(warmup_rounds=2)
    return Run(folder, workflow, list(SITES), answer, classes=["edema", "nodule"], num_rounds=4), received


def test_the_roles_come_before_the_warm_up_from_the_losses_under_the_others_heads(tmp_path):
    run, received = play(tmp_path)
    assert run.stopped == ""
    assert run.stages == [
        (CENSUS, 0, "census"),
        (COLLECT, 0, "heads"),
        (COLLECT, 0, "judge"),
        *((TRAIN, r, "warmup") for r in (0, 1)),
        *((TRAIN, r, "robust") for r in (2, 3)),
        (EVALUATE, 4, "evaluate"),
    ]
    assert {known["mean_weights"][0, 0] for known in received.values()} == {2.0}  # of 0, 1, 2, 3 and 4
    assert run.decisions("noisy_client_detection")[0][1]["noisy"] == ["site-2", "site-4"]
    roles = run.job.federation.memory.roles
    assert sorted(site for site, role in roles.items() if role == NOISY) == ["site-2", "site-4"]


def test_losses_of_no_class_are_refused(tmp_path):
    run, _ = play(tmp_path, (0, 0))
    assert "report field class_count: expected at least one class with enough samples, got none" in run.stopped
