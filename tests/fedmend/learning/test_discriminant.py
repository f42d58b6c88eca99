"""Solved classifiers: the discriminant, and scores that are log-odds."""

import math

import numpy as np
import pytest
import torch
from torch_factories import in_several_threads

from fedmend.learning.discriminant import discriminant, log_odds, out_of_fold, solve_heads

# One feature, scaled: two samples without the class around -2, two with it around 2, each 1 away.
LINE = torch.tensor([[-3.0], [-1.0], [1.0], [3.0]], dtype=torch.float64)
SHARE = torch.tensor([0.0, 0, 1, 1], dtype=torch.float64)


def sklearns(features, labels, ridge):
    """Scores of sklearn's discriminant with this ridge on the covariance within, 0 half-way between the means."""
    from sklearn.base import BaseEstimator
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    within = np.concatenate([features[labels == c] - features[labels == c].mean(0) for c in (0, 1)])
    covariance = within.T @ within / len(features)

    class Fixed(BaseEstimator):
        def fit(self, x):
            self.covariance_ = covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
            return self

    model = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Fixed(), priors=[0.5, 0.5])
    return model.fit(features, labels).decision_function(features)


def test_the_row_is_the_ridge_discriminant_and_the_border_lies_half_way():
    row, border = discriminant(LINE + 5, SHARE, 1.0)
    assert row.tolist() == pytest.approx([4 / (1 + 1)])  # means 4 apart, variance within 1, as much again with lambda 1
    assert float(border) == pytest.approx(2 * 5)


@pytest.mark.parametrize("number", [3, 60])  # fewer features than samples, and more
def test_scores_are_those_of_sklearns_discriminant_with_the_same_covariance(number):
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1], [25, 15])
    features = random.normal(size=(40, number)) * random.uniform(0.5, 5, number) + labels[:, None]
    row, border = discriminant(torch.from_numpy(features), torch.from_numpy(labels.astype(float)), 0.5)
    assert features @ row.numpy() - float(border) == pytest.approx(sklearns(features, labels, 0.5), rel=1e-9)


@pytest.mark.parametrize("number", [1, 8])  # fewer features than rows of the scatter, and more
def test_a_guess_counts_on_both_sides_as_two_samples_of_its_shares_would(number):
    random = np.random.default_rng(1)
    x = torch.from_numpy(random.normal(size=(3, number)))
    guess = discriminant(x, torch.tensor([0.0, 1.0, 0.25], dtype=torch.float64), 1.0)
    fourfold = torch.cat([x[[0]].repeat(4, 1), x[[1]].repeat(4, 1), x[[2]].repeat(4, 1)])
    hard = discriminant(fourfold, torch.tensor([0] * 4 + [1] * 4 + [1, 0, 0, 0], dtype=torch.float64), 1.0)
    assert guess[0].numpy() == pytest.approx(hard[0].numpy(), rel=1e-9)
    assert float(guess[1]) == pytest.approx(float(hard[1]))


def test_samples_of_one_patient_are_scored_by_classifiers_that_never_saw_him():
    # Two patients with the class, two without. Without the first of each, the means are 2 and -1, without variance: w
    # is 3, as the penalty is 1 where nothing varies, and the border lies at 3 * .5.
    x = torch.tensor([[4.0], [4.0], [2.0], [-3.0], [-1.0], [-1.0]], dtype=torch.float64)
    scores = out_of_fold(x, np.array([1.0, 1, 1, 0, 0, 0]), 1.0, np.array(["a", "a", "b", "c", "d", "d"]))
    assert scores[[0, 1]] == pytest.approx([3 * 4 - 1.5] * 2)


def test_where_one_patient_has_a_side_to_himself_nobody_is_scored():
    groups = np.array(["a", "b", "c", "c"])
    scores = out_of_fold(LINE, SHARE.numpy(), 1.0, groups)
    assert np.isnan(scores).all()
    assert log_odds(scores, SHARE.numpy(), balanced=False) == (1.0, 0.0)


@pytest.mark.parametrize(("balanced", "prior"), [(False, math.log(1 / 3)), (True, 0.0)])
def test_where_nobody_is_scored_the_log_odds_half_way_are_those_of_the_class(balanced, prior):
    assert log_odds(np.full(4, np.nan), np.array([1.0, 0, 0, 0]), balanced=balanced) == pytest.approx((1.0, prior))


def test_guesses_below_one_half_are_scored_by_others_too():
    random = np.random.default_rng(5)
    likely = random.permutation(np.repeat([1, 0], [15, 285]))
    features = random.normal(size=(300, 60))
    features[:, 0] += 2 * likely
    for guess in (0.6, 0.45):
        share = np.where(likely, guess, 0.02)
        heads = solve_heads(torch.from_numpy(features), share[:, None], 1.0)
        probability = 1 / (1 + np.exp(-(features @ heads.weights[0] + heads.biases[0])))
        assert probability.mean() == pytest.approx(share.mean(), abs=0.02)


@pytest.mark.parametrize(("balanced", "prior"), [(False, math.log(1 / 3)), (True, 0.0)])
def test_scores_never_turn_round_where_samples_left_out_tell_nothing_or_the_contrary(balanced, prior):
    scores, share = np.array([-1.0, 1.0, 3.0, 5.0]), np.array([1.0, 0, 0, 0])  # mean 2, deviation sqrt(5)
    slope, bias = log_odds(scores, share, balanced=balanced)
    assert slope == pytest.approx(0.5 / math.sqrt(5))
    assert slope * 2 + bias == pytest.approx(prior)


@pytest.mark.parametrize("balanced", [False, True])
def test_log_odds_recover_a_slope_and_a_border_that_are_known(balanced):
    random = np.random.default_rng(2)
    scores = random.normal(size=20000) * 3
    share = (random.random(20000) < 1 / (1 + np.exp(-(0.5 * scores - 1)))).astype(float)
    slope, bias = log_odds(scores, share, balanced=balanced)
    odds = math.log(share.mean() / (1 - share.mean())) if balanced else 0.0  # of the class, which balance takes away
    assert slope == pytest.approx(0.5, rel=0.05)
    assert bias == pytest.approx(-1 - odds, abs=0.05)


def test_scores_that_tell_nothing_lie_about_the_frequency_of_the_class_or_one_half():
    scores, share = np.array([1.0, -1, 1, -1, 1, -1, 1, -1]), np.array([1.0, 1, 0, 0, 0, 0, 0, 0])
    assert log_odds(scores, share, balanced=False) == pytest.approx((0.5, math.log(2 / 6)))
    assert log_odds(scores, share, balanced=True) == pytest.approx((0.5, 0))


def test_a_classifier_with_fewer_samples_than_features_is_as_sure_as_it_is_right_on_others():
    random = np.random.default_rng(3)

    def drawn(count):
        labels = (random.random(count) < 0.4).astype(float)
        features = random.normal(size=(count, 300))
        features[:, 0] += 1.5 * labels
        return torch.from_numpy(features), labels

    features, labels = drawn(120)
    heads = solve_heads(features, labels[:, None], 1.0)
    others, truth = drawn(4000)
    scores = others.numpy() @ heads.weights[0] + heads.biases[0]
    expected = 1 / (1 + np.exp(-scores))
    assert abs(expected.mean() - truth.mean()) < 0.06
    sure = expected > 0.7
    assert abs(truth[sure].mean() - expected[sure].mean()) < 0.1
    row, border = discriminant(features, torch.from_numpy(labels), 1.0)  # as it is: several times too sure
    raw = 1 / (1 + np.exp(-(others @ row - border).numpy()))
    assert truth[raw > 0.7].mean() < raw[raw > 0.7].mean() - 0.15


def test_samples_without_a_label_of_a_class_take_no_part_in_its_head():
    random = np.random.default_rng(4)
    features = torch.from_numpy(random.normal(size=(40, 3)))
    features = features - features.mean(0)
    one = np.repeat([0, 1], 20)
    more = torch.cat([features, torch.zeros(10, 3, dtype=torch.float64)])  # at the mean: only the scaling changes
    heads = solve_heads(more, np.column_stack([np.append(one, [-1] * 10), np.append(one, [0] * 10)]), 1.0)
    alone = solve_heads(features, one[:, None], 1.0)
    assert heads.counts.tolist() == [20, 20]
    assert heads.weights[0] == pytest.approx(alone.weights[0], rel=1e-6)
    assert heads.weights[1] != pytest.approx(alone.weights[0], rel=1e-2)


def test_a_class_of_nobody_everybody_or_one_and_a_feature_without_change_are_harmless():
    features = torch.cat([LINE, torch.full((4, 1), 7.0)], 1)
    labels = np.array([[0, 1, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 1]])
    heads = solve_heads(features, labels, 1.0)
    assert heads.counts.tolist() == [2, 0, 0, 0]
    assert not heads.weights[1:].any()
    assert not heads.biases[1:].any()
    assert heads.weights[0, 0] > 0
    assert np.isfinite(heads.weights).all()


def test_the_number_of_threads_changes_no_digit_of_the_log_odds_of_many_samples():
    rng = np.random.default_rng(0)
    share = (rng.random(20_000) < 0.3).astype(float)
    scores = rng.normal(size=20_000) + share
    one, *others = in_several_threads(lambda: log_odds(scores, share, balanced=True))
    assert others == [one, one]


def test_a_feature_that_hardly_varies_is_scaled_by_a_hundredth_of_the_largest_deviation():
    x = torch.cat([LINE, torch.tensor([[0.0], [0], [0], [0.001]], dtype=torch.float64)], 1)
    scale = torch.tensor([math.sqrt(5), 0.01 * math.sqrt(5)], dtype=torch.float64)
    row, _ = discriminant((x - x.mean(0)) / scale, SHARE, 1.0)
    weights = solve_heads(x, SHARE.numpy()[:, None], 1.0).weights[0]
    assert weights[1] / weights[0] == pytest.approx(float(row[1] / row[0]) * 100)


def test_the_samples_of_a_patient_are_left_out_together_and_one_without_a_patient_stands_for_itself():
    labels = SHARE.numpy()[:, None]
    together = solve_heads(LINE, labels, 1.0, patients=["a", "a", "b", "b"])  # nobody is scored: slope 1
    assert together.weights[0] == pytest.approx([2 / math.sqrt(5) / (0.2 + 0.2) / math.sqrt(5) * 2])
    assert together.biases == pytest.approx([0])
    alone, unknown = solve_heads(LINE, labels, 1.0), solve_heads(LINE, labels, 1.0, patients=["", "", "", ""])
    assert alone.weights[0] != pytest.approx(together.weights[0], rel=1e-3)
    assert unknown.weights.tolist() == alone.weights.tolist()


def test_a_fifth_of_the_samples_is_left_out_at_a_time(monkeypatch):
    solved = []

    def counting(x, share, ridge):
        solved.append((len(x), share.sum().item()))
        return discriminant(x, share, ridge)

    monkeypatch.setattr("fedmend.learning.discriminant.discriminant", counting)
    features = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 2)))
    scores = out_of_fold(features, np.repeat([1.0, 0.0], 10), 1.0, np.arange(20))
    assert solved == [(16, 8.0)] * 5
    assert np.isfinite(scores).all()


def test_shares_that_add_up_to_two_but_for_rounding_are_enough_for_a_head():
    share = np.full(10, 0.8)
    assert (1 - share).sum() < 2
    features = torch.from_numpy(np.random.default_rng(6).normal(size=(10, 2)))
    assert solve_heads(features, share[:, None], 1.0).counts.tolist() == [2]


@pytest.mark.parametrize(
    ("share", "groups", "scored"),
    [
        ([0.5, 0.5, 0, 0], "abcd", True),  # one half is a side
        ([0.4] * 5 + [0.0] * 5, "aacdefghij", False),  # the likeliest two, which are of one patient
        ([0.4] * 5 + [0.3] * 2 + [0.0] * 3, "aacdefghij", True),  # 2.6: the likeliest three
    ],
)
def test_where_guesses_do_not_reach_one_half_the_likeliest_are_the_side_that_folds_share_out(share, groups, scored):
    x = torch.arange(len(share), dtype=torch.float64)[:, None]
    scores = out_of_fold(x, np.array(share), 1.0, np.array([*groups]))
    assert np.isfinite(scores).all() == scored
    assert np.isnan(scores).all() != scored


def test_where_half_has_the_class_balanced_log_odds_are_the_plain_ones():
    scores, share = np.array([-2.0, -1, 0.5, 1, 1.5, 2]), np.array([0.0, 0, 1, 0, 1, 1])
    assert log_odds(scores, share, balanced=True) == pytest.approx(log_odds(scores, share, balanced=False))


def test_a_slope_that_is_small_but_not_0_is_raised_to_the_least_too():
    scores, share = np.tile([1.0, -1], 10), np.array([1.0, 1, 1, 1, 1] + [0.0] * 15)  # 3 of 10 against 2 of 10
    assert log_odds(scores, share, balanced=False) == pytest.approx((0.5, math.log(5 / 15)))
