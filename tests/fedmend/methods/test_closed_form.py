"""Closed-form heads: what counts as negative, candidates, judges, what leaves a site, and the server's mean."""

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, collected_answers
from torch_factories import TinyNetwork, in_several_threads, make_single_site, make_site, make_task, one_hot

from fedmend.averaging import average_heads
from fedmend.learning import heads
from fedmend.learning.discriminant import solve_heads
from fedmend.messages import SiteResult
from fedmend.methods.candidate_sets import CandidateSets
from fedmend.methods.closed_form import ClosedForm, ClosedFormWorkflow
from fedmend.repairs.verdicts import RELABEL, Verdict


def test_single_label_images_without_a_label_are_none_of_the_sites_classes_unless_ignored(tmp_path):
    site = make_single_site(tmp_path, [0, 0, 1, -1])
    taken = ClosedForm().labels(site)
    assert taken.tolist() == [[1, 0, -1], [1, 0, -1], [0, 1, -1], [0, 0, -1]]
    ignored = ClosedForm(hidden="ignored").labels(site)
    assert ignored[:3].tolist() == taken[:3].tolist()
    assert ignored[3].tolist() == [-1, -1, -1]


def test_an_image_without_a_label_is_unknown_where_the_site_identifies_all_classes(tmp_path):
    assert ClosedForm().labels(make_single_site(tmp_path, [0, 1, 2, -1]))[3].tolist() == [-1, -1, -1]


def test_a_verdict_about_one_image_leaves_the_classes_of_the_others_as_they_are(tmp_path):
    site = make_single_site(tmp_path, [0, 1, -1, -1], 4)
    site.ledger.judged = lambda labels: one_hot([0, 1, 2, -1], 4)
    assert ClosedForm().labels(site)[2:].tolist() == [[0, 0, -1, -1], [0, 0, -1, -1]]
    for method in (ClosedForm(), CandidateSets(local_iterations=1)):
        shares = shares_of(method, site, torch.log(torch.tensor([[0.1, 0.1, 0.6, 0.2]] * 4)))
        assert shares[2].tolist() == [0, 0, 1, 0]
        assert shares[3] == pytest.approx([0, 0, 0.75, 0.25])


def test_ignored_images_tell_nothing_in_any_round(tmp_path):
    shares = shares_of(ClosedForm(hidden="ignored"), make_single_site(tmp_path, [0, 1, -1]), torch.zeros(3, 3))
    assert shares[2].tolist() == [-1, -1, -1]


def test_the_first_exchange_asks_no_head_which_class_an_image_without_a_label_is(tmp_path):
    site = make_single_site(tmp_path, [0, 1, -1, -1], 4)
    shares = shares_of(ClosedForm(), site, torch.zeros(4, 4), stage="heads")
    assert shares[2].tolist() == [0, 0, -1, -1]


def shares_of(method, site, logits, *, stage="candidates"):
    """What heads are solved from in an exchange of a closed form, or at the end of a job that trains."""
    if not isinstance(method, ClosedForm):
        return method.solved_from(logits, site)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmend.methods.closed_form.infer", lambda *given: (None, logits))
        patch.setattr("fedmend.methods.closed_form.keep_heads", lambda *given: None)
        patch.setattr(
            "fedmend.methods.closed_form.head_report", lambda model, x, labels, *rest, **kw: found.append(labels)
        )
        method.collect(None, make_task(stage, training=False), site)
    return found[0]


def test_multi_label_blanks_stay_unknown(tmp_path):
    labels = [[1, -1], [0, -1], [-1, -1]]
    assert ClosedForm().labels(make_site(tmp_path, labels)).tolist() == labels


def test_a_label_of_several_that_a_person_gives_counts(tmp_path):
    site = make_site(tmp_path, [[1, -1], [0, -1]])
    site.ledger.judge(Verdict(1, 0, RELABEL, 0, 1, reviewer="AB"))
    assert ClosedForm().labels(site).tolist() == [[1, -1], [1, -1]]


def test_a_site_keeps_the_heads_that_it_sends_to_take_them_out_when_it_is_judged(tmp_path):
    site = make_single_site(tmp_path, [0, 0, 1, 1])
    report = ClosedForm().collect(TinyNetwork(3).eval(), make_task("heads", training=False), site)
    kept = site.state.load("own_heads")
    assert {name: value.tolist() for name, value in kept.items()} == {n: v.tolist() for n, v in report.items()}


def test_a_site_sends_the_heads_of_its_features_and_nothing_else(tmp_path):
    site, model = make_site(tmp_path, [[1, -1], [0, -1], [1, -1], [0, -1], [1, -1]]), TinyNetwork(2).eval()
    report = ClosedForm().collect(model, make_task("heads", training=False), site)
    features = model(site.data.train.view(torch.arange(5)))[0].detach()
    expected = solve_heads(features, site.labels(), 1.0)
    assert sorted(report) == ["head_biases", "head_counts", "head_weights"]
    assert report["head_weights"] == pytest.approx(expected.weights, rel=1e-5)
    assert report["head_biases"] == pytest.approx(expected.biases, rel=1e-5)
    assert report["head_counts"].tolist() == [2, 0]


def test_the_settings_of_the_heads_reach_them(tmp_path):
    site, model = make_site(tmp_path, [[1], [0], [1], [0], [1]]), TinyNetwork(1).eval()
    report = ClosedForm(la=True, ridge=3.0).collect(model, make_task("heads", training=False), site)
    features = model(site.data.train.view(torch.arange(5)))[0].detach()
    expected = solve_heads(features, site.labels(), 3.0, balanced=True)
    assert report["head_weights"] == pytest.approx(expected.weights, rel=1e-5)
    assert report["head_biases"] == pytest.approx(expected.biases, rel=1e-5)
    for other in (solve_heads(features, site.labels(), 3.0), solve_heads(features, site.labels(), 1.0, balanced=True)):
        assert other.biases != pytest.approx(expected.biases, rel=1e-3)


def test_a_site_with_one_kind_of_samples_alone_is_told_so(tmp_path):
    site = make_site(tmp_path, [[1, -1], [1, -1]])
    with refused("site-1: train.csv: expected at least two samples with and two without a class, got none"):
        ClosedForm().collect(TinyNetwork(2), make_task("heads", training=False), site)


def test_the_number_of_threads_changes_no_digit(tmp_path, monkeypatch):
    site, solved = make_site(tmp_path, (np.arange(200) % 2)[:, None]), []
    features = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("fedmend.methods.closed_form.infer", lambda *given: (features, None))
    # What is sent is rounded, which hides most of what threads change.
    monkeypatch.setattr(heads, "solve_heads", lambda *a, **k: solved.append(solve_heads(*a, **k)) or solved[-1])

    def collect():
        ClosedForm().collect(TinyNetwork(1), make_task("heads", training=False), site)
        return solved[-1].weights, solved[-1].biases

    one, *others = in_several_threads(collect)
    assert others == [one, one]


# ---- the server -----------------------------------------------------------------------------------------------------
def report(value, counts, number=12):
    """Heads whose rows are ``value``, for each class with a count."""
    known = np.array(counts) > 0
    return {
        "head_weights": np.outer(known, np.full(number, value)).astype(np.float32),
        "head_biases": (known * value * 10).astype(np.float32),
        "head_counts": np.array(counts),
    }


def test_rows_are_averaged_by_counts_over_the_sites_that_have_the_class():
    weights, biases = average_heads({"site-1": report(1.0, [10, 0], 2), "site-2": report(4.0, [20, 5], 2)})
    assert weights.tolist() == [[3.0, 3.0], [4.0, 4.0]]
    assert biases.tolist() == [30.0, 40.0]


def test_no_site_has_more_than_half_of_a_row_where_three_know_the_class():
    told = {"site-1": report(1.0, [10], 1), "site-2": report(1.0, [10], 1), "site-3": report(5.0, [10**8], 1)}
    assert average_heads(told)[0].tolist() == [[3.0]]


SINGLE = {"kind": "singlelabel", "counts": lambda round_num: {}}  # no evaluation


def play(folder, heads, **settings):
    return Run(folder, ClosedFormWorkflow(), [*heads], collected_answers(heads), **{"num_rounds": 1, **settings})


def test_one_exchange_makes_the_classifier_and_leaves_the_backbone(tmp_path):
    heads = {"site-1": report(1.0, [10, 0]), "site-2": report(4.0, [20, 0])}
    for told in heads.values():
        told["head_weights"][:, 0] = 0  # of a feature that is not read, as where a classifier reads stages
    run = play(tmp_path, heads)
    assert not run.stopped
    assert run.model["classifier.weight"].tolist() == [[0.0, *[3.0] * 11], [0.0] * 12]
    assert run.model["classifier.bias"].tolist() == [30.0, 0.0]
    assert run.model["norm.weight"].tolist() == [1.0] * 12
    assert run.decisions("no_head") == [(0, ["b"])]
    assert run.content("progress.json")["done"] == 1
    assert run.content("run.json")["trains"] is False


def test_a_report_without_counts_is_refused(tmp_path):
    heads = {"site-1": report(1.0, [10, 5]), "site-2": {"head_weights": report(1.0, [10, 5])["head_weights"]}}
    assert "expected ['head_biases', 'head_counts', 'head_weights']" in play(tmp_path, heads).stopped


def test_more_than_one_round_and_a_judge_are_for_single_labels_alone(tmp_path):
    told = {"site-1": report(1.0, [10, 5])}
    words = "job variables: expected judge=false and num_rounds=1 but for single labels, got"
    assert f"{words} num_rounds=2 for labels of kind multilabel" in play(tmp_path, told, num_rounds=2).stopped
    judged = Run(tmp_path / "b", ClosedFormWorkflow(judge=True), [*told], collected_answers(told), num_rounds=1)
    assert f"{words} judge=true for labels of kind multilabel" in judged.stopped


def test_label_sets_ask_for_candidates_from_the_second_round_on(tmp_path):
    told = {"site-1": report(1.0, [10, 5]), "site-2": report(4.0, [20, 0])}
    run = Run(tmp_path, ClosedFormWorkflow(), [*told], collected_answers(told, **SINGLE), num_rounds=3)
    assert not run.stopped
    assert [stage for _, _, stage, _ in run.transport.asked if stage in ("heads", "candidates")] == [
        "heads",
        "candidates",
        "candidates",
    ]


# ---- judges ---------------------------------------------------------------------------------------------------------
NAMES = [f"site-{i}" for i in range(1, 9)]
TOLD = {name: report(5.0 if name == "site-8" else 1.0, [10, 10]) for name in NAMES}
LOSSES = {name: [0.1 + 0.01 * i, 0.1 + 0.01 * (7 - i)] for i, name in enumerate(NAMES)}


def judging(losses):
    """Sites of which the last has heads of its own kind, that tell these losses; None: an error."""
    plain = collected_answers(TOLD, **SINGLE)

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if task.stage == "judge":
            assert task.knowledge["all_counts"].tolist() == [80, 80]
            assert task.knowledge["mean_weights"][0, 0] == 1.5
            if losses[site] is None:
                return SiteResult(error=f"{site}: no loss")
            count = 9 * (np.array(losses[site]) > 0)
            result.report = {"class_loss": np.array(losses[site], dtype=np.float32), "class_count": count}
        return result

    return answer


def judged(folder, told):
    return Run(folder, ClosedFormWorkflow(judge=True), NAMES, judging(LOSSES | {"site-8": told}), num_rounds=1)


def test_heads_of_a_site_that_stands_out_have_no_part_in_the_mean(tmp_path):
    run = judged(tmp_path, [2.0, 2.0])
    assert not run.stopped
    assert run.decisions("noisy_client_detection")[0][1]["noisy"] == ["site-8"]
    assert run.model["classifier.weight"].tolist() == [[1.0] * 12, [1.0] * 12]


def test_where_every_site_stands_out_the_heads_of_all_are_averaged(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmend.methods.closed_form.find_noisy_sites", lambda fed, losses: [*losses])
    run = judged(tmp_path, [2.0, 2.0])
    assert not run.stopped
    assert run.model["classifier.weight"].tolist() == [[1.5] * 12, [1.5] * 12]


@pytest.mark.parametrize("told", [[0.0, 0.0], None])
def test_a_site_that_does_not_tell_how_well_its_labels_fit_has_no_part_in_the_mean(tmp_path, told):
    run = judged(tmp_path, told)
    assert not run.stopped
    [(_, refusal)] = run.decisions("refused")
    assert refusal["site"] == "site-8"
    assert run.model["classifier.weight"].tolist() == [[1.0] * 12, [1.0] * 12]


def test_a_site_that_nobody_judged_has_no_part_in_later_rounds_either(tmp_path):
    plain = collected_answers(TOLD, **SINGLE)

    def answer(site, question, weights, task, evaluate):
        if site == "site-8" and task.stage == "heads":
            return SiteResult(error="site-8: busy")
        result = plain(site, question, weights, task, evaluate)
        if task.stage == "judge":
            told = np.array(LOSSES[site], dtype=np.float32)
            result.report = {"class_loss": told, "class_count": np.array([9, 9])}
        return result

    run = Run(tmp_path, ClosedFormWorkflow(judge=True), NAMES, answer, num_rounds=2, min_sites=7)
    assert not run.stopped
    assert run.decisions("noisy_client_detection")[0][1]["noisy"] == []
    assert run.model["classifier.weight"].tolist() == [[1.0] * 12, [1.0] * 12]


def test_a_site_that_came_after_the_judgement_has_no_part_in_the_mean(tmp_path):
    def answer(site, question, weights, task, evaluate):
        result = collected_answers(TOLD, **SINGLE)(site, question, weights, task, evaluate)
        if task.stage == "judge":
            told = np.array(LOSSES[site], dtype=np.float32)
            result.report = {"class_loss": told, "class_count": np.array([9, 9])}
        return result

    first = Run(tmp_path, ClosedFormWorkflow(judge=True), NAMES[:7], answer, num_rounds=1)
    more = {"num_rounds": 2, "job": "job-2", "allow_changes": ["num_rounds"]}
    again = Run(tmp_path, ClosedFormWorkflow(judge=True), NAMES, answer, **more)
    assert (first.stopped, again.stopped) == ("", "")
    assert again.model["classifier.weight"].tolist() == [[1.0] * 12, [1.0] * 12]
