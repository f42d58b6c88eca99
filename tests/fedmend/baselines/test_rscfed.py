"""RSCFed: consistency with a teacher at the site, averages over random groups at the server."""

import math

import numpy as np
import pytest
import torch
from federation_factories import Run, plain_answers
from torch_factories import Says, make_task

from fedmend.averaging import Contribution
from fedmend.baselines.rscfed import RSCFed, RSCFedWorkflow, group_weights
from fedmend.methods.shared.distances import pairwise_distances

LABELS = [[1, -1, -1], [0, -1, -1], [0, -1, -1], [1, -1, -1]]
ALL = torch.arange(4)


def logit(p):
    p = np.asarray(p)
    return np.log(p / (1 - p))


# ---- the site -------------------------------------------------------------------------------------------------------


def test_missing_classes_are_held_to_the_teacher_and_others_learn_from_labels(site_of):
    work = RSCFed().start(Says(np.tile(logit([0.5, 0.8, 0.2]), (4, 1))), make_task(), site_of(LABELS))
    work.model = Says(np.tile(logit([0.5, 0.5, 0.1]), (4, 1)))
    loss = work.loss(ALL)
    loss.backward()
    supervised = (2 * 2 + 2) * math.log(2) / 4  # positives weigh 4 / 2
    assert loss.item() == pytest.approx(supervised + (0.3**2 + 0.1**2) / 2, rel=1e-5)
    slopes = [2 * (s - t) * s * (1 - s) / 8 for s, t in ((0.5, 0.8), (0.1, 0.2))]
    assert work.model.table.grad[:, 1:].numpy() == pytest.approx(np.tile(slopes, (4, 1)), abs=1e-6)


# ---- the server -----------------------------------------------------------------------------------------------------


def model(a, b):
    return {"a": np.array([a, 0], dtype=np.float32), "b": np.array([[b]], dtype=np.float32)}


def test_a_distant_model_weighs_less_in_its_group():
    models, samples = [model(0, 0), model(0, 0), model(3, 12)], np.array([10.0, 20.0, 20.0])
    found = group_weights(pairwise_distances(models), samples, beta=2.0)
    # The mean is (1, 4): the first two are 1 + 4 away, the third 2 + 8.
    expected = np.array([10 * math.exp(-2 * 5 / 10), 20 * math.exp(-2 * 5 / 20), 20 * math.exp(-2 * 10 / 20)])
    assert found.tolist() == pytest.approx((expected / expected.sum()).tolist(), rel=1e-5)


def test_very_distant_models_make_no_nan():
    found = group_weights(pairwise_distances([model(0, 0), model(1e9, 1e9)]), np.array([1.0, 3.0]), beta=1e4)
    assert found.sum() == pytest.approx(1)
    assert np.isfinite(found).all()


def contributions(samples, values):
    found = {
        f"site-{i}": Contribution(n, {}, model(v, v)) for i, (n, v) in enumerate(zip(samples, values, strict=True))
    }
    return dict(sorted(found.items()))


def test_the_shares_are_the_mean_weights_over_the_groups():
    class Draws:
        groups = iter([[2, 0], [1, 2]])

        def choice(self, count, size, *, replace):
            assert (count, size, replace) == (3, 2, False)
            return np.array(next(self.groups))

    shares = RSCFedWorkflow(groups=2, beta=0.0).shares(2, Draws(), contributions([10, 30, 30], [0, 1, 2]))
    expected = [10 / 40 / 2, 30 / 60 / 2, (30 / 40 + 30 / 60) / 2]
    assert list(shares.values()) == pytest.approx(expected)
    assert list(shares) == ["site-0", "site-1", "site-2"]


def test_groups_of_all_sites_without_beta_are_federated_averaging():
    found = RSCFedWorkflow(beta=0.0).shares(5, np.random.default_rng(0), contributions([10, 30, 60], [0, 1, 2]))
    assert list(found.values()) == pytest.approx([0.1, 0.3, 0.6])


ANNOTATED = {f"site-{i}": [i == 0, i != 0] for i in range(5)}


def test_every_round_draws_other_groups_of_three_quarters_of_the_sites_and_records_the_shares(tmp_path):
    run = Run(tmp_path, RSCFedWorkflow(groups=1), list(ANNOTATED), plain_answers(ANNOTATED), num_rounds=6)
    assert run.stopped == ""
    shares = [value for _, value in run.decisions("group_shares")]
    assert {sum(v > 0 for v in share.values()) for share in shares} == {4}  # a site outside the group has none
    assert all(sum(share.values()) == pytest.approx(1, abs=1e-3) for share in shares)
    assert len({tuple(share.values()) for share in shares}) > 1
