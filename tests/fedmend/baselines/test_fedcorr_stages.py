"""FedCorr whatever is labelled: mixup, the proximal term and corrections at a site; turns and stages at the server."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federation_factories import Run, confusion, dice_counts, failing, plain_answers
from torch_factories import Says, TinyNetwork, make_single_site, make_task

from fedmend.baselines.fedcorr import FedCorr
from fedmend.baselines.fedcorr_stages import (
    CLEAN,
    CORRECT,
    FINETUNE,
    LEVEL,
    LOSSES,
    NOISY,
    RELABEL,
    RULE,
    TURN,
    USUAL,
    FedCorrWorkflow,
    keep,
    kept,
)
from fedmend.messages import CENSUS, COLLECT, EVALUATE, TRAIN

# Ten samples; the model is sure of class 1 for 0 to 4, not sure for 5, of class 0 for 6 to 9.
SURE, UNSURE = math.log(8), math.log(1.5)
TABLE = [[0, SURE, 0]] * 5 + [[0, UNSURE, 0]] + [[SURE, 0, 0]] * 4
CLASSES = [0, 0, 1, 1, 0, 0, 0, 1, 0, 0]  # wrong: 0, 1, 4, 7, and 5 of which the model is not sure
HIGH = [9.0, 9.1, 0.1, 0.2, 9.2, 9.3, 0.3, 9.4, 0.1, 0.2]  # losses: 0, 1, 4, 5, 7 stand out
ALL = torch.arange(10)


def collecting(stage=CORRECT, role=NOISY, round_num=4):
    return dataclasses.replace(make_task(stage, round_num, 20, role=role), training=False)


def keep_losses(site, losses=HIGH, round_num=2):
    keep(LOSSES, np.float32(losses), round_num, make_task(), site)


def keep_level(site, round_num, level):
    keep(LEVEL, np.float64(level), round_num, make_task(), site)


def level_of(site, task):
    return kept(LEVEL, task, site).item()


def labels_of(site):
    return site.ledger.apply(site.data.train.labels).argmax(1).tolist()


# ---- training -------------------------------------------------------------------------------------------------------


def mixed_loss(work, generator):
    """The loss of one batch of all samples, with the share and the partners that are drawn for it."""
    share = torch.rand((), generator=generator).item()
    order = torch.randperm(len(ALL), generator=generator)
    images, target = work.batch(ALL)
    logits = work.model(share * images + (1 - share) * images[order])[1]
    return share * F.cross_entropy(logits, target) + (1 - share) * F.cross_entropy(logits, target[order])


@pytest.mark.parametrize("stage", [TURN, FINETUNE, USUAL])
def test_all_stages_train_with_mixup_whose_draws_go_on_through_the_epochs(tmp_path, stage):
    site = make_single_site(tmp_path, CLASSES)
    work = FedCorr().start(TinyNetwork(3), make_task(stage), site)
    generator = site.generator(work.task, "mixup")
    for epoch in range(2):
        list(work.batches(epoch))
        loss = work.loss(ALL).item()
        assert loss == pytest.approx(mixed_loss(work, generator).item(), rel=1e-5)
        plain = F.cross_entropy(work.model(work.batch(ALL)[0])[1], work.target)
        assert loss != pytest.approx(plain.item(), rel=1e-3)


def moved_loss(site, stage=TURN, round_num=4, **changes):
    """What the proximal term adds when one weight has moved by 3 and another by 4."""
    losses, task = [], dataclasses.replace(make_task(stage, round_num), **changes)
    for beta in (0.0, 5.0):
        model = TinyNetwork(3)
        work = FedCorr(beta=beta).start(model, task, site)
        with torch.no_grad():
            model.classifier.bias[0] += 3
            model.norm.weight[1] -= 4
        list(work.batches(0))
        losses.append(work.loss(ALL))
    return (losses[1] - losses[0]).item()


def test_in_a_turn_a_noisy_site_is_pulled_to_the_received_model_by_its_noise_level(tmp_path):
    site = make_single_site(tmp_path, CLASSES)
    assert moved_loss(site) == 0  # no level yet
    keep_level(site, 3, 0.4)
    assert moved_loss(site) == pytest.approx(5 * 0.4 * 5, rel=1e-5)
    assert moved_loss(site, USUAL) == moved_loss(site, FINETUNE) == 0
    assert moved_loss(site, round_num=3) == 0  # of a later round than this one
    assert moved_loss(site, seed=8) == 0  # of another run


def test_the_pull_has_a_finite_gradient_where_nothing_has_moved(tmp_path):
    site, model = make_single_site(tmp_path, CLASSES), TinyNetwork(3)
    keep_level(site, 0, 1.0)
    work = FedCorr().start(model, make_task(TURN, 1), site)
    list(work.batches(0))
    work.loss(ALL).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


# ---- correction -----------------------------------------------------------------------------------------------------


def test_a_noisy_site_relabels_the_largest_losses_of_which_the_model_is_sure(site_of):
    site = site_of(CLASSES)
    keep_losses(site)
    report = FedCorr().collect(Says(TABLE), collecting(), site)
    assert (report["noise_level"], report["noise_level"].dtype) == (0.5, np.float32)
    assert labels_of(site) == [0, 0, 1, 1, 0, 0, 0, 0, 0, 0]  # int(10 * 0.5 * 0.5) = 2 largest: 7, and 5 is not sure
    row = site.ledger.history()[0]
    assert (row["rule"], row["round"], row["confidence"]) == (RULE, 3, pytest.approx(0.8))
    assert level_of(site, make_task(round_num=4)) == 0.5
    assert kept(LEVEL, make_task(round_num=3), site) is None  # of the round before the next one


def test_ratio_and_confidence_can_be_set(site_of):
    site = site_of(CLASSES)
    keep_losses(site)
    FedCorr(relabel_ratio=1.0, confidence=0.4).collect(Says(TABLE), collecting(), site)
    assert labels_of(site) == [1, 1, 1, 1, 1, 1, 0, 0, 0, 0]


def test_a_clean_site_has_level_0_and_keeps_its_labels(site_of):
    site, model = site_of(CLASSES), Says(TABLE)
    keep_losses(site)
    assert FedCorr().collect(model, collecting(role=CLEAN), site) == {"noise_level": np.float32(0)}
    assert level_of(site, make_task(round_num=4)) == 0
    assert (labels_of(site), model.calls) == (CLASSES, [])


@pytest.mark.parametrize(("losses", "level"), [([0.5] * 10, 0.0), (None, 1.0)], ids=["all equal", "none"])
def test_without_losses_that_stand_out_no_label_changes(site_of, losses, level):
    site = site_of(CLASSES)
    if losses:
        keep_losses(site, losses)
    assert FedCorr().collect(Says(TABLE), collecting(), site)["noise_level"] == level
    assert labels_of(site) == CLASSES


def test_a_question_that_is_asked_again_leaves_the_labels_as_after_the_first(site_of):
    site = site_of(CLASSES)
    for _ in range(2):
        assert FedCorr().collect(Says(TABLE), collecting(RELABEL), site) == {}
    assert sum(row["in_force"] for row in site.ledger.history()) == 2 * 4  # 0, 1, 4, 7
    site.ledger.undo(from_round=4)  # the round that follows the question
    assert labels_of(site) == [1, 1, 1, 1, 1, 0, 0, 0, 0, 0]
    site.ledger.undo(from_round=3)
    assert labels_of(site) == CLASSES


# ---- the server -----------------------------------------------------------------------------------------------------
SITES = [f"site-{i}" for i in range(1, 6)]
LIDS = {"site-1": 1.0, "site-2": 5.0, "site-3": 1.2, "site-4": 5.5, "site-5": 1.1, "site-6": 1.0}
STEP = {"site-1": 0.1, "site-2": 0.2, "site-3": 0.4, "site-4": 0.8, "site-5": 1.6, "site-6": 3.2}
SAMPLES = {site: 10 * i for i, site in enumerate(STEP, 1)}
HIGH_LID = ["site-2", "site-4"]
LEVELS = {"site-2": 0.6, "site-4": 0.05, "site-6": 1.0}  # site-4 is noisy, but hardly; site-6 comes later


def answers(lids=LIDS, levels=LEVELS, *, kind="singlelabel"):
    """Sites that report these numbers; a clean one has level 0."""
    masks = kind == "segmentation"
    counts = dice_counts if masks else lambda round_num: {"test": confusion(0.5, 1)}
    annotated = {site: [1] if masks else [1, 1] for site in STEP}
    plain = plain_answers(annotated, samples=SAMPLES, step=STEP, counts=counts, kind=kind)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if task.stage == TURN:
            result.report = {"lid": np.float32(lids[site])}
        if task.stage == CORRECT:
            result.report = {"noise_level": np.float32(levels.get(site, 0) if task.role == NOISY else 0)}
        return result

    return answer


def play(folder, answer=None, *, sites=SITES, rounds=4, iterations=2, arguments=None, **settings):
    workflow = FedCorrWorkflow(iterations=iterations, **(arguments or {}))
    options = {"num_rounds": rounds, "max_update_factor": 0, "eval_every": 100, **settings}
    return Run(folder, workflow, sites, answer or answers(), **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run."""
    return play(tmp_path_factory.mktemp("fedcorr"))


def asked(run, stage):
    """(round, sites) of every question of a stage."""
    return [(r, sites) for _, r, name, sites in run.asked if name == stage]


def crashing(when, site="site-4", **options):
    return failing(answers(**options), site=site, when=lambda *now: now == when, error="")


def noisy_sites(run):
    return run.decisions("noisy_sites")[-1][1]["noisy"]


def test_turns_come_before_the_rounds_of_the_job_which_the_two_later_stages_share(run):
    assert run.stopped == ""
    assert [(question, r, stage) for question, r, stage in run.stages if question != EVALUATE] == [
        (CENSUS, 0, "census"),
        *[(TRAIN, 0, TURN)] * 5,
        (COLLECT, 1, CORRECT),
        *[(TRAIN, 1, TURN)] * 5,
        (COLLECT, 2, CORRECT),
        (TRAIN, 2, FINETUNE),
        (TRAIN, 3, FINETUNE),
        (COLLECT, 4, RELABEL),
        (TRAIN, 4, USUAL),
        (TRAIN, 5, USUAL),
    ]
    assert {task.total_rounds for task, _ in run.transport.sent if task.stage != "census"} == {6}
    assert (run.content("run.json")["num_rounds"], run.content("run.json")["warmup_rounds"]) == (6, 2)


def test_in_each_iteration_every_site_has_one_turn_in_a_random_order(run):
    turns = asked(run, TURN)
    first, second = ([site for r, (site,) in turns if r == number] for number in (0, 1))
    assert sorted(first) == sorted(second) == SITES
    assert first != second


def test_each_site_of_stage_1_starts_from_what_the_one_before_it_left(run):
    clean = (10 * 0.1 + 30 * 0.4 + 40 * 0.8 + 50 * 1.6) / 130
    every = (10 * 0.1 + 20 * 0.2 + 30 * 0.4 + 40 * 0.8 + 50 * 1.6) / 150
    in_turns = 0.1 + 0.2 + 0.4 + 0.8 + 1.6
    assert run.moved()[0] == pytest.approx(2 * in_turns + 2 * clean + 2 * every, rel=1e-5)


def test_the_sites_with_the_larger_lid_are_noisy_and_learn_their_own_role_alone(run):
    assert run.roles(CORRECT) == {site: {NOISY if site in HIGH_LID else CLEAN} for site in SITES}
    assert run.roles(RELABEL) == {site: {NOISY} for site in HIGH_LID}
    assert set.union(*(roles for stage in (TURN, FINETUNE, USUAL) for roles in run.roles(stage).values())) == {""}
    (before, first), (after, value) = run.decisions("noisy_sites")
    assert (before, after) == (1, 2)
    assert first["lid"] == {site: pytest.approx(LIDS[site], abs=1e-4) for site in SITES}
    assert value["lid"] == {site: pytest.approx(2 * LIDS[site], abs=1e-4) for site in SITES}
    assert (value["noisy"], value["vote_share"]) == (HIGH_LID, 1.0)
    assert value["noise_level"] == {site: pytest.approx(LEVELS.get(site, 0)) for site in SITES}


def test_the_sum_over_iterations_decides_not_the_last_one(tmp_path):
    first, alike = answers(), answers(dict.fromkeys(SITES, 2.0))

    def answer(site, question, weights, task, evaluate):
        return (alike if task.round_num else first)(site, question, weights, task, evaluate)

    assert noisy_sites(play(tmp_path, answer)) == HIGH_LID


def test_stage_2_is_over_sites_of_a_low_level_and_at_its_end_noisy_sites_relabel(run):
    clean = ["site-1", "site-3", "site-4", "site-5"]
    assert asked(run, FINETUNE) == [(2, clean), (3, clean)]
    assert asked(run, RELABEL) == [(4, HIGH_LID)]
    assert asked(run, USUAL) == [(4, SITES), (5, SITES)]
    assert run.decisions("fallback") == []


def test_without_a_clean_site_all_take_part_in_stage_2_and_the_records_say_so(tmp_path, caplog):
    plain = answers()

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if task.stage == CORRECT:
            result.report = {"noise_level": np.float32(0.3)}
        return result

    run = play(tmp_path, answer)
    assert asked(run, FINETUNE) == [(2, SITES), (3, SITES)]
    sentence = "no clean site found: all sites take part in stage 2"
    assert run.decisions("fallback") == [(2, sentence)]  # once
    assert sentence in caplog.text


@pytest.mark.parametrize(("share", "rounds", "finetune"), [(0.5, 5, 2), (0.01, 3, 1)])
def test_stage_2_has_its_share_of_the_rounds_and_at_least_one(tmp_path, share, rounds, finetune):
    run = play(tmp_path, rounds=rounds, iterations=1, arguments={"finetune_share": share})
    assert run.stopped == ""
    assert len(asked(run, FINETUNE)) == finetune
    assert len(asked(run, USUAL)) == rounds - finetune


def test_sites_that_correct_masks_are_recorded(tmp_path, run):
    masks = answers(levels={"site-2": 0.4}, kind="segmentation")  # site-4 has level 0
    corrected = play(tmp_path, masks, classes=["lesion"]).decisions("corrected")
    assert corrected == [(1, ["site-2"]), (2, ["site-2"]), (4, HIGH_LID)]
    assert run.decisions("corrected") == []  # of labels the repairs of each class say more


# ---- sites that are not there ---------------------------------------------------------------------------------------


def test_a_site_that_is_silent_in_its_turn_stops_the_run_which_may_go_on_without_it(tmp_path):
    run = play(tmp_path, crashing((TRAIN, 1)))
    assert run.stopped == (
        "train of round 1: expected valid results from 1 sites, got 0: site-4: train: expected a result, got none"
    )
    left = [site for site in SITES if site != "site-4"]
    resumed = play(tmp_path, sites=left)
    assert resumed.stopped == ""
    assert noisy_sites(resumed) == ["site-2"]
    assert asked(resumed, USUAL)[-1] == (5, left)
