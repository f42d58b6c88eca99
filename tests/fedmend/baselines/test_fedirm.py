"""FedIRM: two views and a teacher at the site, relations between classes that the server averages."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, failing, plain_answers, same_models
from torch_factories import Says, TinyNetwork, make_task
from torch_factories import make_site as make_picture_site

from fedmend.baselines.fedirm import (
    MATCH,
    RELATION,
    SUPERVISED,
    FedIRM,
    FedIRMWorkflow,
    mean_relations,
    pseudo_relations,
    relation_loss,
)
from fedmend.fields import hold_back
from fedmend.learning.training import LocalTrainer
from fedmend.messages import TRAIN
from fedmend.methods.baselines import FedAvgPL

LABELS = [[1, -1], [0, -1], [0, -1], [1, -1]]
ALL = torch.arange(4)
UNKNOWN = np.zeros((2, 2), dtype=np.float32)
KNOWN = np.array([[0.6, 0.3], [0, 0]], dtype=np.float32)


def logit(p):
    p = np.asarray(p)
    return np.log(p / (1 - p))


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z)))


def order(stage=MATCH, round_num=6, relation=KNOWN, total_rounds=100):
    knowledge = {"relation": relation} if stage == MATCH else {}
    return make_task(stage, round_num, total_rounds, **knowledge)


# ---- relations ------------------------------------------------------------------------------------------------------


def test_a_relation_is_made_of_the_mean_logits_of_the_positives_of_a_class():
    sums, counts = torch.tensor([[6.0, -3.0], [0.0, 0.0]]), torch.tensor([3.0, 0.0])
    expected = [*sigmoid([1.0, -0.5]), 0.5, 0.5]
    assert mean_relations(sums, counts).flatten().tolist() == pytest.approx(expected)


def test_only_images_that_are_sure_of_all_classes_make_pseudo_relations():
    z = torch.tensor(logit([[0.9, 0.1], [0.9, 0.5], [0.8, 0.05], [0.1, 0.1]]), requires_grad=True)
    found = pseudo_relations(z.float())
    expected = (logit([0.9, 0.1]) + logit([0.8, 0.05])) / 2 / 2
    assert found[0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert found[1].tolist() == [0, 0]  # no sure positive
    found[0, 1].backward()
    assert z.grad.tolist() == [[0, 0.25], [0, 0], [0, 0.25], [0, 0]]


def test_an_image_with_too_much_entropy_over_all_classes_is_not_sure():
    assert not pseudo_relations(torch.tensor(logit([[0.71] * 4])).float()).any()  # 4 * .6 > 2
    assert pseudo_relations(torch.tensor(logit([[0.71] * 3])).float()).all()


def test_the_divergence_of_relations_by_hand_and_not_of_unknown_rows():
    own = torch.tensor(logit([[0.5, 0.2], [0.9, 0.9]]), requires_grad=True)
    found = relation_loss(own, torch.tensor(KNOWN))
    found.backward()
    expected = 0.1 * math.log(0.6 / 0.5) + 0.1 * math.log(0.3 / 0.2)
    assert found.item() == pytest.approx(expected / 4, rel=1e-5)
    assert own.grad[0].abs().min() > 0
    assert not own.grad[1].any()


def test_extreme_relations_and_answers_give_finite_numbers():
    own = torch.tensor([[300.0, -300.0], [0.0, 0.0]], requires_grad=True)
    for relation in (torch.tensor([[0.0, 1.0], [1.0, 1.0]]), torch.zeros(2, 2)):
        found = relation_loss(own, relation)
        found.backward()
        assert found.isfinite()
        assert own.grad.isfinite().all()


# ---- the loss -------------------------------------------------------------------------------------------------------


class Turns(Says):
    """Gives the second of two views the opposite logits."""

    def forward(self, images):
        features, logits = super().forward(images)
        return features, logits * (-1) ** (len(self.calls) - 1)


def test_the_first_stage_adds_the_supervised_losses_of_both_views(site_of):
    table = logit([[0.6, 0.5]] * 4)
    loss = FedIRM().start(Turns(table), order(SUPERVISED), site_of(LABELS)).loss(ALL)
    site, task = site_of(LABELS, folder="plain"), order(SUPERVISED)
    plain = [FedAvgPL().start(Says(z), task, site).loss(ALL).item() for z in (table, -table)]
    assert loss.item() == pytest.approx(sum(plain), rel=1e-6)
    assert plain[0] != pytest.approx(plain[1], rel=1e-3)


def test_the_second_stage_adds_differences_to_the_teacher_and_to_the_relations(site_of):
    received, student = logit([[0.6, 0.1]] * 4), logit([[0.8, 0.2]] * 4)
    work = FedIRM().start(Says(received), order(), site_of(LABELS))
    work.model = Says(student)
    loss = work.loss(ALL).item()
    plain = FedAvgPL().start(Says(student), order(SUPERVISED), site_of(LABELS, folder="plain")).loss(ALL).item()
    q = sigmoid(logit([0.8, 0.2]) / 2)
    relation = ((KNOWN[0] - q) * (np.log(KNOWN[0]) - np.log(q))).sum() / 4
    assert loss == pytest.approx(2 * plain + 0.2**2 + 0.1**2 + relation, rel=1e-5)


@pytest.mark.parametrize(("round_num", "weight"), [(20, 0.57), (25, 0.87), (30, 1.0), (499, 1.0)])
def test_their_weight_rises_as_in_500_rounds_of_the_published_code(site_of, round_num, weight):
    received, student = logit([[0.6, 0.5]] * 4), logit([[0.8, 0.5]] * 4)  # nothing is sure: Q is .5

    def loss(method, relation=UNKNOWN):
        work = method.start(Says(received), order(round_num=round_num, relation=relation, total_rounds=500), site)
        work.model = Says(student)
        return work.loss(ALL).item()

    site = site_of(LABELS)
    assert loss(FedIRM()) - loss(FedIRM(maximum=0.0)) == pytest.approx(weight * 0.2**2, rel=0.02)


def test_student_and_teacher_see_the_second_view_both_in_train_mode(make_site, make_net):
    site, net, seen = make_site(LABELS), make_net(2), []
    work = FedIRM().start(net, order(), site)
    for model in (net, work._teacher.network):
        model.register_forward_pre_hook(lambda model, images: seen.append((model.training, images[0])))
    work.loss(ALL)
    first, second = (site.data.train.view(ALL, view) for view in site.views(work.task, 2))
    assert [training for training, _ in seen] == [True, True, True]
    assert [torch.equal(images, first) for _, images in seen] == [True, False, False]
    assert [torch.equal(images, second) for _, images in seen] == [False, True, True]


# ---- a round --------------------------------------------------------------------------------------------------------


def played(folder, tasks, method=None, labels=LABELS, epochs=1):
    """Report and weights after these rounds of one site, each in another process."""
    net = TinyNetwork(2)
    for task in tasks:
        site = make_picture_site(folder, labels)
        work = (method or FedIRM()).start(net, task, site)
        LocalTrainer(learning_rate=0.05, local_epochs=epochs).train(work)
        report = work.report()
        assert site.ledger.history() == []
    return report, net.state_dict()


def test_the_report_has_the_relations_of_the_last_epoch_of_annotated_classes(site_of):
    site, table = site_of(LABELS, batch_size=2), logit([[0.6, 0.1], [0.5, 0.5], [0.5, 0.5], [0.8, 0.4]])
    work = FedIRM().start(Says(table), order(RELATION), site)
    for epoch in range(2):
        for index in work.batches(epoch):
            work.loss(index)
    report = work.report()
    expected = sigmoid((logit([0.6, 0.1]) + logit([0.8, 0.4])) / 2 / 2)
    assert report["relation"][0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    assert report["relation"][1].tolist() == [0, 0]
    assert report["relation_count"].tolist() == [2, 0]


def test_relations_of_too_few_samples_stay_at_the_site(tmp_path):
    report, _ = played(tmp_path, [order(RELATION)])
    told, _ = hold_back(report, {"relation": "relation_count"}, 3)
    assert report["relation"].any()
    assert not told["relation"].any()
    assert not told["relation_count"].any()


@pytest.mark.parametrize(
    ("stage", "round_num", "told"), [(SUPERVISED, 1, False), (RELATION, 3, True), (MATCH, 50, True), (MATCH, 99, False)]
)
def test_relations_leave_from_the_end_of_the_first_stage_but_not_after_the_last_round(tmp_path, stage, round_num, told):
    report, _ = played(tmp_path, [order(stage, round_num)])
    assert set(report) == ({"relation", "relation_count"} if told else set())


def test_the_teacher_is_made_in_the_first_round_of_stage_2_and_kept(tmp_path):
    site, net = make_picture_site(tmp_path, LABELS), TinyNetwork(2)
    assert FedIRM().start(net, order(RELATION, 3), site)._teacher is None
    work = FedIRM().start(net, order(MATCH, 4), site)
    LocalTrainer(learning_rate=0.1).train(work)
    work.report()
    left = work._teacher.network.classifier.weight
    assert not torch.equal(left, TinyNetwork(2).classifier.weight)
    after = FedIRM().start(TinyNetwork(2, seed=5), order(MATCH, 5), site)._teacher.network.classifier.weight
    assert torch.equal(left, after)


def test_without_its_parts_stage_2_is_stage_1_digit_by_digit(tmp_path):
    _, first = played(tmp_path / "1", [order(SUPERVISED)], epochs=2)
    _, second = played(tmp_path / "2", [order(MATCH)], FedIRM(maximum=0.0), epochs=2)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_repeated_rounds_give_the_same_model_and_report(tmp_path):
    tasks = [order(MATCH, 4), order(MATCH, 5)]
    found = []
    for folder in ("one", "one", "other"):
        found.append(played(tmp_path / folder, tasks))
    for report, net in found[1:]:
        assert all(torch.equal(value, net[name]) for name, value in found[0][1].items())
        assert np.array_equal(report["relation"], found[0][0]["relation"])


@pytest.mark.parametrize("labels", [[[1, 0], [0, 1], [0, 0], [1, 1]], [[0, -1]] * 4], ids=["all known", "no positive"])
def test_a_site_that_knows_all_classes_or_no_positive_trains_on(tmp_path, labels):
    report, net = played(tmp_path, [order()], labels=labels)
    assert all(value.isfinite().all() for value in net.values())
    assert np.isfinite(report["relation"]).all()
    assert report["relation_count"].tolist() == np.maximum(np.sum(np.maximum(labels, 0), 0), 0).tolist()


# ---- the server -----------------------------------------------------------------------------------------------------

ANNOTATED = {"site-1": [1, 0], "site-2": [1, 1], "site-3": [0, 1]}
SAMPLES = {"site-1": 10, "site-2": 30, "site-3": 20}
TOLD = {
    "site-1": ([[0.2, 0.4], [0.9, 0.9]], [4, 7]),  # it does not annotate the second class
    "site-2": ([[0.6, 0.8], [0.0, 0.0]], [4, 0]),  # too few of the second class
    "site-3": ([[0.0, 0.0], [0.1, 0.3]], [0, 5]),
}


def answers(change=None):
    plain = plain_answers(ANNOTATED, samples=SAMPLES)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN and task.stage != SUPERVISED and task.round_num < 49:
            relation, count = TOLD[site]
            result.report = {"relation": np.float32(relation), "relation_count": np.int64(count)}
            result.report |= change or {} if site == "site-2" else {}
        return result

    return answer


def play(folder, answer=None, rounds=50):
    return Run(folder, FedIRMWorkflow(), list(ANNOTATED), answer or answers(), num_rounds=rounds, eval_every=50)


def test_stages_and_relations_follow_each_other(tmp_path):
    run = play(tmp_path)
    assert run.stopped == ""
    stages = [stage for question, _, stage in run.stages if question == TRAIN]
    assert stages == [SUPERVISED, RELATION, *[MATCH] * 48]  # .04 * 50 = 2
    sent = [task.knowledge for task, _ in run.transport.sent if task.stage in (SUPERVISED, RELATION, MATCH)]
    assert [set(k) for k in sent[:2]] == [set(), set()]
    expected = [[(0.2 + 3 * 0.6) / 4, (0.4 + 3 * 0.8) / 4], [0.1, 0.3]]
    for knowledge in sent[2:]:
        np.testing.assert_allclose(knowledge["relation"], expected, rtol=1e-5)


def test_a_short_run_has_one_supervised_round(tmp_path):
    run = play(tmp_path, rounds=3)
    assert [stage for question, _, stage in run.stages if question == TRAIN] == [RELATION, MATCH, MATCH]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"relation": np.full((2, 2), 1.5, np.float32)}, "relation: expected numbers from 0 to 1, got 1.5 to 1.5"),
        ({"relation_count": np.array([-1, 2])}, "relation_count: expected numbers from 0 to 1e+09, got -1 to 2"),
    ],
)
def test_a_forged_report_is_refused(tmp_path, change, sentence):
    run = play(tmp_path, answers(change))
    where = "train of round 1: expected valid results from 3 sites, got 2: site-2: result of round 1, report field"
    assert run.stopped == f"{where} {sentence}"


def test_a_part_of_a_report_is_refused():
    sentence = "report: expected ['relation', 'relation_count'], got none of ['relation_count']"
    with refused(sentence):
        FedIRMWorkflow().check(MATCH, {"relation": KNOWN})
    FedIRMWorkflow().check(MATCH, {})


def test_a_resumed_run_sends_the_relations_of_the_last_round(tmp_path):
    whole = play(tmp_path / "whole", rounds=4)
    fails = failing(answers(), site="site-1", when=lambda name, r: name == TRAIN and r == 2)
    assert play(tmp_path, fails, rounds=4).stopped
    run = play(tmp_path, rounds=4)
    assert run.stopped == ""
    assert same_models(run.knowledge(MATCH)[2], whole.knowledge(MATCH)[2])
    assert same_models(run.model, whole.model)


@pytest.mark.parametrize(("name", "value", "expected"), [("maximum", -1.0, ">= 0"), ("ema_decay", 1.0, "0 to below 1")])
def test_arguments_that_make_no_sense_are_refused(name, value, expected):
    with refused(f"job variable {name}: expected {expected}, got {value}"):
        FedIRM(**{name: value})
