"""RSCFed: consistency with a teacher at the site, averages over random groups at the server."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, failing, plain_answers, same_models
from torch_factories import Says, TinyNetwork, make_task
from torch_factories import make_site as make_picture_site

from fedmend.baselines.rscfed import RSCFed, RSCFedWorkflow, group_weights
from fedmend.learning.training import LocalTrainer
from fedmend.method import Contribution
from fedmend.methods.baselines import FedAvgPL
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


def test_student_and_teacher_see_different_views_and_the_teacher_is_in_eval_mode(make_site, make_net):
    site, net, seen = make_site(LABELS), make_net(3), []
    work = RSCFed().start(net, make_task(), site)
    net.register_forward_pre_hook(lambda model, images: seen.append((model.training, images[0])))
    teacher = work._teacher.network
    teacher.register_forward_pre_hook(lambda model, images: seen.append((model.training, images[0])))
    work.loss(ALL)
    assert [training for training, _ in seen] == [True, False]
    for (_, images), view in zip(seen, site.views(work.task, 2), strict=True):
        assert torch.equal(images, site.data.train.view(ALL, view))


def test_a_step_moves_the_teacher_and_the_next_round_goes_on_with_it(tmp_path):
    site, net = make_picture_site(tmp_path, LABELS * 3), TinyNetwork(3)
    work = RSCFed().start(net, make_task(), site)
    LocalTrainer(learning_rate=0.1).train(work)
    assert work.report() == {}
    left = work._teacher.network.state_dict()
    assert not torch.equal(left["classifier.weight"], TinyNetwork(3).classifier.weight)
    assert not torch.equal(left["classifier.weight"], net.classifier.weight)
    after = RSCFed().start(net, make_task(round_num=1), site)._teacher.network.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in left.items() if v.is_floating_point())


@pytest.mark.parametrize("labels", [LABELS, [[1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0]]], ids=["weight 0", "M = 0"])
def test_without_consistency_it_is_the_partial_loss_digit_by_digit(tmp_path, labels):
    trained = []
    for method in (RSCFed(consistency_weight=0.0 if labels is LABELS else 1.0), FedAvgPL()):
        site, net = make_picture_site(tmp_path / type(method).__name__, labels), TinyNetwork(3)
        site.views(make_task(), 2)
        view = site.views(make_task(), 2)[:1]
        site._views[(0, 1)] = view  # both see the same pictures
        work = method.start(net, make_task(), site)
        LocalTrainer(learning_rate=0.1).train(work)
        work.report()
        trained.append(net.state_dict())
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())


def test_a_repeated_round_gives_the_same_model(tmp_path):
    trained = []
    for _ in range(2):
        net = TinyNetwork(3)
        for number in range(2):
            work = RSCFed().start(net, make_task(round_num=number), site := make_picture_site(tmp_path, LABELS))
            LocalTrainer(learning_rate=0.1).train(work)
            work.report()
        assert site.ledger.history() == []
        trained.append(net.state_dict())
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())


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


def test_a_resumed_run_draws_the_same_groups(tmp_path):
    steps = {site: float(i) for i, site in enumerate(ANNOTATED)}
    answer = plain_answers(ANNOTATED, step=steps)
    whole = Run(tmp_path / "whole", RSCFedWorkflow(groups=2), list(ANNOTATED), answer)
    fails = failing(answer, site="site-1", when=lambda name, r: name == "train" and r == 2)
    assert Run(tmp_path, RSCFedWorkflow(groups=2), list(ANNOTATED), fails).stopped
    run = Run(tmp_path, RSCFedWorkflow(groups=2), list(ANNOTATED), answer)
    assert run.stopped == ""
    assert same_models(run.model, whole.model)


@pytest.mark.parametrize(
    ("make", "name", "value", "expected"),
    [
        (RSCFed, "ema_decay", 1.0, "0 to below 1"),
        (RSCFed, "consistency_weight", -1.0, ">= 0"),
        (RSCFedWorkflow, "groups", 0, "at least 1"),
        (RSCFedWorkflow, "group_share", 0.0, "above 0 to 1"),
        (RSCFedWorkflow, "beta", -1.0, ">= 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make, name, value, expected):
    with refused(f"job variable {name}: expected {expected}, got {value}"):
        make(**{name: value})
