"""FedIRM: two views and a teacher at the site, relations between classes that the server averages."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federation_factories import Run, failing, plain_answers
from torch_factories import Says, make_task

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


@pytest.mark.parametrize(
    ("p", "sure"),
    [
        ([0.71, 0.29], True),
        ([0.69, 0.1], False),
        ([0.9, 0.31], False),
        ([0.71, 0.71, 0.71, 0.09], False),  # entropies .602, .602, .602 and .303
    ],
)
def test_where_an_image_begins_to_be_sure(p, sure):
    assert bool(pseudo_relations(torch.tensor(logit([p])).float()).any()) == sure


def test_relations_of_0_and_1_count_as_a_millionth_from_them():
    found = relation_loss(torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [0, 0]]))
    small, large = math.log(1e-6) - math.log(0.5), math.log(1 - 1e-6) - math.log(0.5)
    assert found.item() == pytest.approx((-0.5 * small + 0.5 * large) / 4, rel=1e-5)


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


def test_the_first_view_is_compared_with_a_teacher_that_sees_the_second(site_of):
    received, student = logit([[0.6, 0.1]] * 4), logit([[0.8, 0.2]] * 4)
    work = FedIRM().start(Says(received), order(), site_of(LABELS))
    work.model, seen, images = Turns(student), [], work.images
    work.images = lambda index, view=0: seen.append(view) or images(index, view)
    loss = work.loss(ALL).item()
    site, task = site_of(LABELS, folder="plain"), order(SUPERVISED)
    plain = sum(FedAvgPL().start(Says(z), task, site).loss(ALL).item() for z in (student, -student))
    q = sigmoid(logit([0.8, 0.2]) / 2)
    relation = ((KNOWN[0] - q) * (np.log(KNOWN[0]) - np.log(q))).sum() / 4
    assert loss == pytest.approx(plain + 0.2**2 + 0.1**2 + relation, rel=1e-5)
    assert seen == [0, 1, 1]


def test_relations_of_a_missing_class_move_the_network(site_of):
    net = Says(logit([[0.8, 0.2]] * 4))  # as the teacher
    FedIRM().start(net, order(), site_of(LABELS)).loss(ALL).backward()
    assert (net.table.grad[:4, 1].abs() > 1e-3).all()


def test_the_teacher_is_a_moving_mean_in_train_mode_that_goes_on_in_the_next_round(site_of):
    site, method, net = site_of(LABELS), FedIRM(ema_decay=0.75), Says(np.zeros((4, 2)))
    work = method.start(net, order(), site)
    for value in (1.0, 3, 5, 7, 9):  # weights of the old: 0, 1/2, 2/3, 3/4 and 3/4
        torch.nn.init.constant_(net.table, value)
        work.after_step()
    work.report()
    teacher = method.start(Says(np.ones((4, 2))), order(round_num=7), site)._teacher
    assert teacher.network.table.detach().numpy() == pytest.approx(5.25)
    assert teacher.network.training
    assert teacher.alpha() == 0.75
    other = FedIRM().start(net, order(round_num=7), site)._teacher
    other._steps = 1000
    assert other.alpha() == 0.99


@pytest.mark.parametrize(("round_num", "weight"), [(20, 0.57), (25, 0.87), (30, 1.0), (499, 1.0)])
def test_their_weight_rises_as_in_500_rounds_of_the_published_code(site_of, round_num, weight):
    received, student = logit([[0.6, 0.5]] * 4), logit([[0.8, 0.5]] * 4)  # nothing is sure: Q is .5

    def loss(method, relation=UNKNOWN):
        work = method.start(Says(received), order(round_num=round_num, relation=relation, total_rounds=500), site)
        work.model = Says(student)
        return work.loss(ALL).item()

    site = site_of(LABELS)
    assert loss(FedIRM()) - loss(FedIRM(maximum=0.0)) == pytest.approx(weight * 0.2**2, rel=0.02)


# ---- a round --------------------------------------------------------------------------------------------------------


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


def test_all_batches_of_an_epoch_and_the_first_view_make_the_relations(site_of):
    work = FedIRM().start(
        Turns(logit([[0.6, 0.1], [0.5, 0.5], [0.5, 0.5], [0.8, 0.4]])), order(RELATION), site_of(LABELS)
    )
    for part in ([0, 1], [2, 3]):
        work.loss(torch.tensor(part))
    assert work._sums[0].tolist() == pytest.approx((logit([0.6, 0.1]) + logit([0.8, 0.4])).tolist(), rel=1e-5)
    assert work._counts.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("stage", "round_num", "told"),
    [(MATCH, 98, True), (MATCH, 99, False), (RELATION, 99, True), (SUPERVISED, 0, False)],
)
def test_the_last_round_reports_no_relations_that_nobody_would_use(site_of, stage, round_num, told):
    work = FedIRM().start(Says(logit([[0.5, 0.5]] * 4)), order(stage, round_num), site_of(LABELS))
    assert bool(work.report()) == told


@pytest.mark.parametrize(("fewest", "counts"), [(1, [3, 4]), (2, [0, 4])])
def test_a_relation_that_differs_by_a_single_sample_from_another_stays_at_the_site(site_of, fewest, counts):
    site = site_of([[1, 1], [1, 1], [1, 1], [0, 1]])
    site.min_count = fewest
    work = FedIRM().start(Says(logit([[0.6, 0.1]] * 4)), order(RELATION), site)
    work.loss(ALL)
    report = work.report()
    assert report["relation_count"].tolist() == counts
    assert (report["relation"].any(1) == (np.array(counts) > 0)).all()


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


def play(folder, answer=None, rounds=50, **options):
    answer = answer or answers()
    return Run(folder, FedIRMWorkflow(), list(ANNOTATED), answer, num_rounds=rounds, eval_every=50, **options)


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


def test_a_run_that_goes_on_with_fewer_rounds_asks_for_relations_before_it_uses_them(tmp_path):
    crash = failing(answers(), site="site-1", when=lambda name, r: (name, r) == (TRAIN, 5))
    assert play(tmp_path, crash, rounds=500).stopped  # the first stage lasts 20 rounds
    again = play(tmp_path, allow_changes=["num_rounds"])
    assert again.stopped == ""
    stages = [stage for question, _, stage in again.stages if question == TRAIN]
    assert stages == [RELATION, *[MATCH] * 44]


@pytest.mark.parametrize(("rounds", "supervised"), [(20, 0), (40, 1), (70, 2)])
def test_the_first_stage_lasts_a_twenty_fifth_of_the_rounds(rounds, supervised):
    asked, memory = [], FedIRMWorkflow.Memory({"relation": KNOWN})
    train = lambda stage, knowledge: asked.append(stage) or {}  # noqa: E731
    fed = SimpleNamespace(num_rounds=rounds, rounds=lambda: range(rounds), memory=memory, train=train)
    FedIRMWorkflow().run(fed)
    assert asked == [*[SUPERVISED] * supervised, RELATION, *[MATCH] * (rounds - supervised - 1)]
    assert memory.knowledge == {"relation": KNOWN}
