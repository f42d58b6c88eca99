"""Closed-form heads: the discriminant, what counts as negative, what leaves a site, and the server's mean."""

import math

import numpy as np
import pytest
import torch
from factories import refused
from federation_factories import Run, plain_answers
from torch_factories import TinyNetwork, make_single_site, make_site, make_task, one_hot

from fedmend.messages import COLLECT
from fedmend.methods.closed_form import ClosedForm, ClosedFormWorkflow, average_heads, solve_heads

# One feature: 0 and 2 without the class, 4 and 6 with it. Mean 3, deviation sqrt(5).
LINE = torch.tensor([[0.0], [2.0], [4.0], [6.0]])
LABELS = np.array([[0], [0], [1], [1]])


def sklearns(features, labels, ridge):
    """Scores of sklearn's discriminant with this ridge on the covariance within."""
    from sklearn.base import BaseEstimator
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.preprocessing import StandardScaler

    scaled = StandardScaler().fit_transform(features)
    within = np.concatenate([scaled[labels == c] - scaled[labels == c].mean(0) for c in (0, 1)])
    covariance = within.T @ within / len(scaled)

    class Fixed(BaseEstimator):
        def fit(self, x):
            self.covariance_ = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
            return self

    model = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Fixed())
    return model.fit(scaled, labels).decision_function(scaled)


def test_a_head_is_the_ridge_discriminant_of_scaled_features_for_features_as_they_are():
    heads = solve_heads(LINE, LABELS, 1.0)
    # Scaled by sqrt(5): means +-2 / sqrt(5), variance within 1 / 5, twice that with lambda 1: w = (4 / sqrt(5)) / .4 in
    # scaled features, 10 / sqrt(5) / sqrt(5) = 2 in those that came in; the border lies at 3.
    assert heads.weights == pytest.approx(np.array([[2.0]]))
    assert heads.biases == pytest.approx([-6.0])
    assert heads.counts.tolist() == [2]


def test_the_frequency_of_a_class_moves_the_border_unless_classes_are_balanced():
    features, labels = torch.cat([LINE, torch.tensor([[0.0], [2.0]])]), np.array([[0], [0], [1], [1], [0], [0]])
    with_prior, balanced = (solve_heads(features, labels, 1.0, la=la) for la in (False, True))
    assert np.array_equal(with_prior.weights, balanced.weights)
    assert with_prior.biases - balanced.biases == pytest.approx([math.log(2 / 4)])
    assert -balanced.biases / balanced.weights[:, 0] == pytest.approx([3.0])  # half-way between 1 and 5


@pytest.mark.parametrize("number", [3, 60])  # fewer features than samples, and more
def test_scores_are_those_of_sklearns_discriminant_with_the_same_covariance(number):
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], [25, 15])
    features = random.normal(size=(40, number)) * random.uniform(0.5, 5, number) + labels[:, None]
    heads = solve_heads(torch.from_numpy(features), labels[:, None], 0.5)
    scores = features @ heads.weights[0] + heads.biases[0]
    assert scores == pytest.approx(sklearns(features, labels, 0.5), rel=1e-9)


def test_samples_without_a_label_of_a_class_take_no_part_in_its_head():
    more = torch.cat([LINE, torch.tensor([[3.0]])])  # at the mean: the scaling changes, the head does not
    labels = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [-1, 1]])
    heads = solve_heads(more, labels, 1.0)
    assert heads.counts.tolist() == [2, 2]
    assert heads.weights[0] == pytest.approx(solve_heads(LINE, LABELS, 1.0).weights[0])


def test_a_class_that_nobody_or_everybody_has_and_a_feature_without_change_are_harmless():
    features = torch.cat([LINE, torch.full((4, 1), 7.0)], 1)
    heads = solve_heads(features, np.array([[0, 1, 0], [0, 1, 0], [1, 1, 0], [1, 1, 0]]), 1.0)
    assert heads.counts.tolist() == [2, 0, 0]
    assert not heads.weights[1:].any()
    assert not heads.biases[1:].any()
    assert heads.weights[0, 0] * 2 + heads.weights[0, 1] * 7 + heads.biases[0] < 0
    apart = solve_heads(torch.tensor([[0.0], [0.0], [1.0], [1.0]]), LABELS, 1.0)  # no variance within
    assert apart.weights[0, 0] > 0
    assert np.isfinite(apart.biases).all()


def test_single_label_images_without_a_label_are_none_of_the_sites_classes_unless_ignored(tmp_path):
    site = make_single_site(tmp_path, [0, 0, 1, -1])
    taken = ClosedForm().labels(site)
    assert taken.tolist() == [[1, 0, -1], [1, 0, -1], [0, 1, -1], [0, 0, -1]]
    ignored = ClosedForm(hidden="ignored").labels(site)
    assert ignored[:3].tolist() == taken[:3].tolist()
    assert ignored[3].tolist() == [-1, -1, -1]


def test_multi_label_blanks_stay_unknown(tmp_path):
    labels = [[1, -1], [0, -1], [-1, -1]]
    assert ClosedForm().labels(make_site(tmp_path, labels)).tolist() == labels


def test_a_site_sends_the_heads_of_its_features_and_nothing_else(tmp_path):
    site, model = make_site(tmp_path, [[1, -1], [0, -1], [1, -1], [0, -1], [1, -1]]), TinyNetwork(2).eval()
    report = ClosedForm().collect(model, make_task("heads", training=False), site)
    features = model(site.data.train.view(torch.arange(5)))[0].detach()
    expected = solve_heads(features, site.labels(), 1.0)
    assert sorted(report) == ["head_biases", "head_counts", "head_weights"]
    assert report["head_weights"] == pytest.approx(expected.weights, rel=1e-5)
    assert report["head_biases"] == pytest.approx(expected.biases, rel=1e-5)
    assert report["head_counts"].tolist() == [2, 0]


def test_a_site_with_one_kind_of_samples_alone_is_told_so(tmp_path):
    site = make_site(tmp_path, [[1, -1], [1, -1]])
    with refused("site-1: train.csv: expected samples with and without a class, got none"):
        ClosedForm().collect(TinyNetwork(2), make_task("heads", training=False), site)


def test_the_number_of_threads_changes_no_digit(tmp_path):
    random = torch.Generator().manual_seed(0)
    labels = one_hot(np.arange(300) % 2, 2)
    site = make_site(tmp_path, labels)
    features = torch.randn(300, 400, generator=random)
    found, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedmend.methods.closed_form.infer", lambda *given: (features, None))
            found.append(ClosedForm().collect(TinyNetwork(2), make_task("heads", training=False), site))
    torch.set_num_threads(before)
    assert found[0]["head_weights"].tobytes() == found[1]["head_weights"].tobytes()


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


def answers(heads):
    plain = plain_answers({site: [1, 1] for site in heads})

    def answer(site, question, weights, task, evaluate):
        result = plain(site, question, weights, task, evaluate)
        if question == COLLECT:
            result.report = heads[site]
        return result

    return answer


def play(folder, heads, **settings):
    return Run(folder, ClosedFormWorkflow(), [*heads], answers(heads), **{"num_rounds": 1, **settings})


def test_one_exchange_makes_the_classifier_and_leaves_the_backbone(tmp_path):
    heads = {"site-1": report(1.0, [10, 0]), "site-2": report(4.0, [20, 0])}
    run = play(tmp_path, heads)
    assert not run.stopped
    assert run.model["classifier.weight"].tolist() == [[3.0] * 12, [0.0] * 12]
    assert run.model["classifier.bias"].tolist() == [30.0, 0.0]
    assert run.model["norm.weight"].tolist() == [1.0] * 12
    assert run.decisions("no_head") == [(0, ["b"])]


def test_a_report_without_counts_is_refused(tmp_path):
    heads = {"site-1": report(1.0, [10, 5]), "site-2": {"head_weights": report(1.0, [10, 5])["head_weights"]}}
    assert "expected ['head_biases', 'head_counts', 'head_weights']" in play(tmp_path, heads).stopped


def test_more_than_one_round_is_refused(tmp_path):
    with refused("job variable num_rounds: expected 1 for closed-form heads, got 2"):
        play(tmp_path, {"site-1": report(1.0, [10, 5])}, num_rounds=2)
