"""cleanlab at each site alone, then federated averaging."""

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, confusion, plain_answers
from torch_factories import TinyNetwork, make_single_site, make_task

from fedmend.averaging import Contribution
from fedmend.learning.training import LocalTrainer
from fedmend.messages import EVALUATE, TRAIN
from fedmend.methods import confident_learning
from fedmend.methods.confident_learning import (
    CLEANED,
    VALIDATE,
    ConfidentLearning,
    ConfidentLearningWorkflow,
    by_kept,
    label_issues,
    stratified_folds,
)
from fedmend.repairs.verdicts import ACCEPT, RELABEL, Verdict

CLASSES = [0, 1, 0, 0, 1, 0, 1, 0]
SETTINGS = {"folds": np.int64(2), "rounds_per_fold": np.int64(1)}


@pytest.fixture
def cleanlab(monkeypatch):
    """A stand-in for the package, for which the last sample is an issue; returns what it was given."""
    given = []

    def find_label_issues(labels, probabilities, **options):
        given.append((labels, probabilities, options))
        return np.arange(len(labels)) == len(labels) - 1

    package, module = ModuleType("cleanlab"), ModuleType("cleanlab.filter")
    module.find_label_issues = find_label_issues
    package.filter = module
    monkeypatch.setitem(sys.modules, "cleanlab", package)
    monkeypatch.setitem(sys.modules, "cleanlab.filter", module)
    monkeypatch.setattr(confident_learning, "find_spec", lambda name: package)
    return given


def play(method, model, site, number, stage=VALIDATE, *, keep_moments=False, seed=7, **settings):
    """One round of training; returns the round and its report."""
    work = method.start(model, make_task(stage, number, seed=seed, **{**SETTINGS, **settings}), site)
    LocalTrainer(learning_rate=0.1, keep_moments=keep_moments).train(work)
    return work, work.report()


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_the_samples_of_each_class_are_dealt_evenly_to_folds():
    labels = torch.tensor([0] * 6 + [1] * 3)
    fold = stratified_folds(labels, 3, torch.Generator().manual_seed(0))
    assert fold[:6].bincount().tolist() == [2, 2, 2]
    assert fold[6:].bincount().tolist() == [1, 1, 1]
    other = stratified_folds(labels, 3, torch.Generator().manual_seed(1))
    assert fold.tolist() != other.tolist()


def test_each_fold_is_judged_by_a_model_that_never_saw_it(tmp_path, cleanlab):
    site, model, method = make_single_site(tmp_path, CLASSES), TinyNetwork(3), ConfidentLearning()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    works = [play(method, model, site, number)[0] for number in range(2)]
    trained = [set(work.samples().tolist()) for work in works]
    assert trained[0] | trained[1] == set(range(8))
    assert not trained[0] & trained[1]  # with two folds
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    ((labels, probabilities, options),) = cleanlab
    assert labels.tolist() == CLASSES
    assert options == {"n_jobs": 1}
    for number, work in enumerate(works):
        held = sorted(set(range(8)) - trained[number])
        own = work.model.eval()(site.data.train.view(torch.tensor(held)))[1].softmax(1)[:, :2].detach().numpy()
        np.testing.assert_allclose(probabilities[held], own / own.sum(1, keepdims=True), rtol=1e-5)


def test_later_rounds_train_without_the_issues_and_leave_the_labels_alone(tmp_path, cleanlab):
    site, model, method = make_single_site(tmp_path, CLASSES), TinyNetwork(3), ConfidentLearning(la=True)
    labels = site.data.train.labels.tobytes()
    kept = [int(play(method, model, site, number)[1]["kept"]) for number in range(2)]
    work, report = play(method, model, site, 2, CLEANED)
    assert (kept, int(report["kept"])) == ([8, 7], 7)
    assert sorted(torch.cat(list(work.batches(0))).tolist()) == list(range(7))
    assert work.model is model
    prior = work.adjusted(torch.zeros(1, 3))[0].exp().tolist()
    assert prior == pytest.approx([4 / 7, 3 / 7, 0])  # the issue was of class 0
    assert site.data.train.labels.tobytes() == labels
    assert (site.ledger.repairs() == -1).all()


def test_what_is_judged_by_is_adjusted_by_the_classes_of_the_samples_that_the_model_saw(tmp_path, cleanlab):
    site, method = make_single_site(tmp_path, [0, 0, 0, 0, 1, 1]), ConfidentLearning(la=True)
    for number in range(2):
        work, _ = play(method, TinyNetwork(3), site, number)
    held = sorted(set(range(6)) - set(work.samples().tolist()))
    logits = work.model.eval()(site.data.train.view(torch.tensor(held)))[1][:, :2].detach().numpy()
    odds = np.exp(logits) * [2 / 3, 1 / 3]
    np.testing.assert_allclose(cleanlab[0][1][held], odds / odds.sum(1, keepdims=True), rtol=1e-5)


def test_without_the_package_the_first_round_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(confident_learning, "find_spec", lambda name: None)
    with refused("label issues: expected the package cleanlab (pip install 'fedmend[cleanlab]'), not found"):
        ConfidentLearning().start(TinyNetwork(3), make_task(VALIDATE, **SETTINGS), make_single_site(tmp_path, CLASSES))


def test_training_without_a_cross_validation_before_it_is_refused(tmp_path):
    with refused("label issues: expected what the cross-validation left in the site's state, not found"):
        play(ConfidentLearning(), TinyNetwork(3), make_single_site(tmp_path, CLASSES), 2, CLEANED)


def test_a_site_that_missed_a_fold_keeps_the_samples_that_it_could_not_judge(tmp_path, cleanlab):
    site, model, method = make_single_site(tmp_path, CLASSES), TinyNetwork(3), ConfidentLearning()
    work, report = play(method, model, site, 1)
    judged = sorted(set(range(8)) - set(work.samples().tolist()))
    ((labels, probabilities, _),) = cleanlab
    assert labels.tolist() == [CLASSES[i] for i in judged]
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    cleaned, _ = play(method, model, site, 2, CLEANED)
    assert int(report["kept"]) == 7
    assert cleaned.samples().tolist() == [i for i in range(8) if i != judged[-1]]  # the stand-in's issue is the last


def test_a_site_that_missed_the_last_fold_goes_on_with_all_samples(tmp_path, cleanlab):
    site, model, method = make_single_site(tmp_path, CLASSES), TinyNetwork(3), ConfidentLearning()
    play(method, model, site, 0)
    assert int(play(method, model, site, 2, CLEANED)[1]["kept"]) == 8
    assert cleanlab == []


@pytest.mark.parametrize("other", [{"seed": 8}, {"folds": np.int64(3)}])
def test_what_an_earlier_run_with_other_folds_left_does_not_count(tmp_path, cleanlab, other):
    site, model, method = make_single_site(tmp_path, CLASSES), TinyNetwork(3), ConfidentLearning()
    play(method, model, site, 0, **other)
    play(method, model, site, 1)
    assert len(cleanlab[0][0]) == 4  # the fold of this run alone


def test_a_fold_does_not_go_on_with_the_model_of_an_earlier_run_with_another_seed(tmp_path, cleanlab):
    site, model, method = make_single_site(tmp_path, CLASSES), TinyNetwork(3), ConfidentLearning()
    options = {**SETTINGS, "rounds_per_fold": np.int64(2)}
    play(method, model, site, 0, seed=8, **options)
    assert same(state_of(method.start(model, make_task(VALIDATE, 1, **options), site).model), state_of(model))


def test_the_model_of_a_fold_trains_in_all_rounds_of_the_fold_and_is_judged_after_the_last(tmp_path, cleanlab):
    site, model, method = make_single_site(tmp_path, CLASSES), TinyNetwork(3), ConfidentLearning()
    options, initial = {"rounds_per_fold": np.int64(2)}, state_of(model)
    works, reports = zip(*(play(method, model, site, number, **options) for number in range(4)), strict=True)
    assert same(state_of(model), initial)
    assert [int(report["kept"]) for report in reports] == [8, 8, 8, 7]
    assert works[0].samples().tolist() == works[1].samples().tolist()
    assert set(works[1].samples().tolist()) | set(works[2].samples().tolist()) == set(range(8))
    assert not set(works[1].samples().tolist()) & set(works[2].samples().tolist())
    starts = [
        state_of(method.start(model, make_task(VALIDATE, number, **{**SETTINGS, **options}), site).model)
        for number in range(4)
    ]
    assert same(starts[1], state_of(works[0].model))
    assert same(starts[2], initial)  # the next fold's model has seen no sample
    assert same(starts[3], state_of(works[2].model))
    play(method, model, site, 1, **options)
    assert len(cleanlab) == 1


def test_folds_know_nothing_of_each_other_by_the_moments_of_adam(tmp_path, cleanlab):
    weights = []
    for keep in (False, True):
        site, method = make_single_site(tmp_path / str(keep), CLASSES), ConfidentLearning()
        works = [play(method, TinyNetwork(3), site, number, keep_moments=keep)[0] for number in range(2)]
        weights.append(state_of(works[1].model))
    assert same(*weights)


def fixed(site, sample, label_class, word=RELABEL):
    site.ledger.judge(Verdict(sample, label_class, word, -1, 1, reviewer="AB"))


def test_what_people_say_between_two_folds_moves_no_sample_to_another_fold(site_of, cleanlab):
    site, model, method = site_of(CLASSES), TinyNetwork(3), ConfidentLearning()
    first = play(method, model, site, 0)[0].samples().tolist()
    fixed(site, 0, 1)
    second = play(method, model, site, 1)[0].samples().tolist()
    assert sorted(first + second) == list(range(8))
    assert cleanlab[0][0].tolist() == [1, *CLASSES[1:]]


@pytest.mark.parametrize("word", [ACCEPT, RELABEL])
@pytest.mark.parametrize("number", [0, 2])
def test_a_sample_whose_label_a_person_has_fixed_is_kept(site_of, cleanlab, number, word):
    site, model, method = site_of(CLASSES), TinyNetwork(3), ConfidentLearning()
    reports = []
    for r in range(3):
        if r == number:
            fixed(site, 7, 0 if word == ACCEPT else 1, word)  # the stand-in's issue
        work, report = play(method, model, site, r, CLEANED if r == 2 else VALIDATE)
        reports.append(int(report["kept"]))
    assert work.samples().tolist() == list(range(8))
    assert reports == [8, 8 if number == 0 else 7, 8]


@pytest.mark.skipif(importlib.util.find_spec("cleanlab") is None, reason="needs the extra cleanlab")
def test_cleanlab_finds_the_label_that_contradicts_sure_probabilities():
    labels = np.array([0] * 10 + [2] * 10)
    probabilities = np.where(labels[:, None] == [0, 1, 2], 0.9, 0.05)
    labels[3] = 2
    assert np.flatnonzero(label_issues(labels, probabilities)).tolist() == [3]


def test_folds_come_first_and_later_models_weigh_by_the_samples_kept(tmp_path):
    sites, kept = ["site-1", "site-2"], {"site-1": 2, "site-2": 18}
    plain = plain_answers(
        {site: [1, 1] for site in sites},
        samples=dict.fromkeys(sites, 20),
        step={"site-1": 1.0, "site-2": 0.0},
        counts=lambda round_num: {"test": confusion(0.5, 1)},
        kind="singlelabel",
    )

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == TRAIN:
            result.report = {"kept": np.int64(20 if task.round_num == 0 else kept[site])}
        return result

    workflow = ConfidentLearningWorkflow(folds=2)
    run = Run(tmp_path, workflow, sites, answer, classes=["a", "b"], num_rounds=4, max_update_factor=0)
    assert run.stopped == ""
    stages = [VALIDATE, VALIDATE, CLEANED, CLEANED]
    assert run.stages[1:] == [*((TRAIN, r, s) for r, s in enumerate(stages)), (EVALUATE, 4, "evaluate")]
    assert run.knowledge(VALIDATE)[0] == run.knowledge(CLEANED)[2] == {"folds": 2, "rounds_per_fold": 1}
    assert run.decisions("label_issues") == [(2, {"site-1": 18, "site-2": 2})]
    assert run.moved()[0] == pytest.approx(2 * 10 / 20 + 2 * 2 / 20, rel=1e-5)


def test_a_site_that_says_it_keeps_more_than_it_has_weighs_no_more_than_all_its_samples(tmp_path):
    contributions = {"site-1": Contribution(20, {"kept": np.int64(10**9)}), "site-2": Contribution(20, {"kept": 15})}
    assert by_kept(contributions) == {"site-1": 20.0, "site-2": 15.0}
    sites = ["site-1", "site-2"]
    plain = plain_answers({s: [1, 1] for s in sites}, counts=lambda r: {"test": confusion(0.5, 1)}, kind="singlelabel")

    def answer(site, question, *rest):
        result = plain(site, question, *rest)
        result.report = {"kept": np.int64(10**9 if site == "site-1" else 8)} if question == TRAIN else {}
        return result

    run = Run(tmp_path, ConfidentLearningWorkflow(folds=2), sites, answer)
    assert run.decisions("label_issues") == [(2, {"site-1": 0, "site-2": 2})]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"folds": 1}, "folds: expected 2 to 100, got 1"),
        ({"folds": 101}, "folds: expected 2 to 100, got 101"),
        ({"rounds_per_fold": 0}, "rounds_per_fold: expected 1 to 1000, got 0"),
    ],
)
def test_folds_that_are_none_are_refused(settings, sentence):
    with refused(f"job variable {sentence}"):
        ConfidentLearningWorkflow(**settings)
