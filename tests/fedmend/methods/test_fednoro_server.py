"""The server half of FedNoRo: loss matrix, detection, ramp, distances, weights."""

import math
import warnings

import numpy as np
import pytest
from factories import refused

from fedmend.methods import fednoro
from fedmend.methods.fednoro import (
    check_report,
    detect_noisy_clients,
    distance_aware_weights,
    distillation_weight,
    loss_matrix,
    model_distances,
    normalise_losses,
)

NAN = math.nan


def report(loss, count=None):
    count = [5] * len(loss) if count is None else count
    return {"class_loss": np.array(loss, dtype=np.float32), "class_count": np.array(count, dtype=np.int64)}


# ---- reports --------------------------------------------------------------------------------------------------------


def test_a_report_with_one_number_per_class_is_taken():
    check_report(report([0.5, 0.0], [4, 0]), num_classes=2)


SHAPE = "expected one number for each of 2 classes"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"class_loss": np.ones(3)}, f"class_loss: {SHAPE}, got (3,)"),
        ({"class_loss": np.ones((2, 2))}, f"class_loss: {SHAPE}, got (2, 2)"),
        ({"class_count": np.array(4)}, f"class_count: {SHAPE}, got ()"),
        ({"class_loss": None}, f"class_loss: {SHAPE}, got nothing"),
        ({"class_count": None}, f"class_count: {SHAPE}, got nothing"),
        (
            {"class_count": np.zeros(2, dtype=int)},
            "class_count: expected at least one class with enough samples, got none",
        ),
    ],
)
def test_a_report_that_cannot_be_used_is_refused(changes, sentence):
    content = {k: v for k, v in (report([1, 2]) | changes).items() if v is not None}
    with refused(f"report field {sentence}"):
        check_report(content, num_classes=2)


@pytest.mark.parametrize("name", ["class_loss", "class_count"])
def test_a_report_with_numbers_below_zero_is_refused(name):
    content = report([1, 2]) | {name: np.array([5, -5])}
    with refused(f"report field {name}: expected numbers >= 0, got negative ones"):
        check_report(content, num_classes=2)


# ---- Eq. (3) --------------------------------------------------------------------------------------------------------


def test_the_loss_matrix_has_sites_in_sorted_order_and_nan_for_classes_without_samples():
    losses = loss_matrix({"site-2": report([3, 4]), "site-10": report([1, 0], [7, 0])})
    assert losses.dtype == np.float64
    np.testing.assert_array_equal(losses, [[1, NAN], [3, 4]])  # site-10 sorts before site-2


def test_one_loss_per_site_is_the_mean_over_its_samples():
    reports = {"a": report([1, 4], [3, 1]), "b": report([2, 0], [5, 0])}
    np.testing.assert_allclose(loss_matrix(reports, per_class=False), [[7 / 4], [2]])


def test_each_class_is_scaled_to_0_to_1_after_missing_ones_got_the_smallest_loss():
    losses = np.array([[1.0, 10], [3, NAN], [2, 30], [NAN, 20]])
    np.testing.assert_allclose(normalise_losses(losses), [[0, 0], [1, 0], [0.5, 1], [0, 0.5]])


def test_without_normalisation_missing_classes_are_filled_only():
    losses = np.array([[1.0, 10], [3, NAN], [NAN, 20]])
    np.testing.assert_array_equal(normalise_losses(losses, normalise=False), [[1, 10], [3, 10], [1, 20]])


def test_a_constant_class_and_one_that_is_nowhere_become_0_without_a_warning():
    losses = np.array([[2.0, NAN, 1, NAN], [2, NAN, 3, 7], [2, NAN, 2, NAN]])  # the last one at a single site
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(normalise_losses(losses), [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0]])
        np.testing.assert_array_equal(
            normalise_losses(losses, normalise=False), [[2, 0, 1, 7], [2, 0, 3, 7], [2, 0, 2, 7]]
        )


def test_the_matrix_that_is_normalised_is_not_changed():
    losses = np.array([[1.0, NAN], [3, 2]])
    before = losses.copy()
    normalise_losses(losses)
    np.testing.assert_array_equal(losses, before)


# ---- detection ------------------------------------------------------------------------------------------------------


def groups(sites, noisy, *, classes=3, seed=0):
    """(K, C) losses in 0..1 of two clear groups."""
    flags = np.isin(np.arange(sites), list(noisy))
    jitter = np.random.default_rng(seed).uniform(-0.05, 0.05, (sites, classes))
    return np.where(flags[:, None], 0.85, 0.15) + jitter, flags


@pytest.mark.parametrize(
    ("sites", "noisy"), [(4, {1}), (8, {0, 5}), (8, {0, 1, 2, 4, 5, 7}), (20, {1, 6, 8, 9, 10, 13, 16, 17}), (5, {4})]
)
def test_the_sites_with_the_larger_losses_are_noisy_few_or_many(sites, noisy):
    losses, flags = groups(sites, noisy)
    found = detect_noisy_clients(losses)
    assert np.flatnonzero(found.noisy).tolist() == sorted(noisy)
    assert found.noisy.dtype == bool
    assert found.noisy.shape == flags.shape
    assert found.vote_share == 1.0


def test_one_loss_per_site_can_be_split_too():
    losses, flags = groups(8, {2, 3}, classes=1)
    assert (detect_noisy_clients(losses).noisy == flags).all()


def test_the_order_of_the_sites_does_not_matter_to_clear_groups():
    losses, flags = groups(10, {0, 1, 2})
    order = np.random.default_rng(3).permutation(10)
    assert (detect_noisy_clients(losses[order]).noisy == flags[order]).all()


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_no_site_is_noisy_where_all_are_equal(value):
    found = detect_noisy_clients(np.full((6, 3), value))
    assert found.noisy.tolist() == [False] * 6
    assert found.vote_share == 1.0


def test_few_noisy_sites_are_found_although_they_differ_more_from_each_other_than_from_the_clean_ones():
    losses = np.array(
        [
            [0.24, 0.00, 0.05, 0.02, 0.04],
            [0.21, 0.00, 0.00, 0.11, 0.00],
            [0.19, 0.01, 0.03, 0.04, 0.00],
            [0.17, 0.01, 0.02, 0.00, 0.00],
            [0.00, 0.02, 0.13, 0.02, 0.05],
            [0.13, 0.00, 0.94, 1.00, 0.23],  # has no sample of the second class
            [1.00, 1.00, 1.00, 0.28, 1.00],
            [0.00, 0.02, 0.03, 0.00, 0.03],
        ]
    )
    found = detect_noisy_clients(losses)
    assert np.flatnonzero(found.noisy).tolist() == [5, 6]
    assert found.vote_share == 1.0


@pytest.mark.parametrize("sites", [0, 1, 3])
def test_fewer_than_four_sites_are_refused(sites):
    with refused(f"noisy-client detection: expected losses of at least 4 sites, got {sites}"):
        detect_noisy_clients(np.random.default_rng(0).random((sites, 2)))


@pytest.mark.parametrize(
    ("sites", "choice", "used"),
    [
        (19, "auto", "spherical"),
        (20, "auto", "full"),
        (4, "auto", "spherical"),
        (4, "full", "full"),
        (20, "spherical", "spherical"),
    ],
)
def test_the_covariance_is_full_from_20_sites_on_or_as_chosen(sites, choice, used, mixtures):
    made = mixtures(lambda seed: [0] * sites)
    losses = np.random.default_rng(1).random((sites, 2))
    assert detect_noisy_clients(losses, covariance=choice).covariance == used
    assert {m["covariance_type"] for m in made} == {used}


@pytest.fixture
def mixtures(monkeypatch):
    """Puts mixtures of given assignments in the place of sklearn's; component 0 has the larger mean."""

    def install(assigned, means=((2.0, 2.0), (1.0, 1.0))):
        made = []

        class Fake:
            def __init__(self, components, **options):
                assert components == 2
                self.means_, self.seed = np.array(means), options["random_state"]
                made.append(options)

            def fit_predict(self, losses):
                return np.array(assigned(self.seed))

        monkeypatch.setattr("sklearn.mixture.GaussianMixture", Fake)
        return made

    return install


LOSSES = np.random.default_rng(0).random((4, 2))


def test_nine_mixtures_of_seeds_0_to_8_vote_and_the_most_frequent_exact_set_wins(mixtures):
    noisy_2, noisy_2_3 = [1, 1, 0, 1], [1, 1, 0, 0]
    made = mixtures(lambda seed: noisy_2 if seed in (2, 3, 5, 7, 8) else noisy_2_3)
    found = detect_noisy_clients(LOSSES)
    assert [m["random_state"] for m in made] == list(range(9))
    assert found.noisy.tolist() == [False, False, True, False]
    assert found.vote_share == 5 / 9


def test_whole_sets_are_voted_on_not_single_sites(mixtures):
    sets = [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    mixtures(lambda seed: sets[seed])
    found = detect_noisy_clients(LOSSES, votes=6)
    assert (found.noisy.tolist(), found.vote_share) == ([True, True, False, False], 0.5)


def test_the_first_set_wins_a_tie(mixtures):
    mixtures(lambda seed: [0, 1, 1, 1] if seed % 2 else [1, 0, 1, 1])
    found = detect_noisy_clients(LOSSES, votes=4)
    assert (found.noisy.tolist(), found.vote_share) == ([False, True, False, False], 0.5)


@pytest.mark.parametrize(
    ("means", "noisy"),
    [
        (((1.0, 1.0), (0.0, 3.0)), [False, True, False, True]),  # sums 2 and 3
        (((1.0, 1.2), (0.0, 2.0)), [True, False, True, False]),  # sums 2.2 and 2, though the second has the larger norm
    ],
)
def test_the_component_with_the_larger_sum_of_means_is_noisy(mixtures, means, noisy):
    mixtures(lambda seed: [0, 1, 0, 1], means)
    assert detect_noisy_clients(LOSSES).noisy.tolist() == noisy


def test_a_split_that_leaves_one_component_empty_is_handed_on(mixtures):
    mixtures(lambda seed: [0, 0, 0, 0])
    assert detect_noisy_clients(LOSSES).noisy.all()


def test_the_detection_gives_the_same_set_and_share_every_time():
    losses = np.random.default_rng(5).random((20, 5))  # no clear groups
    np.random.seed(1)
    first = detect_noisy_clients(losses)
    np.random.seed(2)
    second = detect_noisy_clients(losses)
    assert (first.noisy == second.noisy).all()
    assert first.vote_share == second.vote_share < 1


def test_few_distinct_losses_are_no_error_and_no_warning():
    losses = np.zeros((6, 3))
    losses[2] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.flatnonzero(detect_noisy_clients(losses).noisy).tolist() == [2]


# ---- ramp of lambda -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round_num", "weight"),
    [(0, 0.0054), (10, 0.0054), (20, 0.050), (30, 0.244), (40, 0.613), (49, 0.8), (50, 0.8), (99, 0.8)],
)
def test_lambda_rises_as_in_the_published_code(round_num, weight):
    assert distillation_weight(round_num, begin=10, end=49, maximum=0.8) == pytest.approx(weight, abs=5e-4)


def test_lambda_by_hand():
    assert distillation_weight(5, begin=0, end=10, maximum=0.6) == pytest.approx(0.6 * math.exp(-5 / 4))
    assert distillation_weight(49, begin=10, end=49, maximum=0.8) == 0.8


@pytest.mark.parametrize(("begin", "end"), [(10, 10), (10, 3)])
@pytest.mark.parametrize("round_num", [10, 11, 50])
def test_a_ramp_without_length_holds_the_maximum_at_once(begin, end, round_num):
    assert distillation_weight(round_num, begin=begin, end=end, maximum=0.8) == 0.8


# ---- Eqs. (6)-(7) ---------------------------------------------------------------------------------------------------

NOISY = np.array([False, True, True, False])


def model(a, b, mean=0.0, var=0.0):
    values = {"a": [[a, 0], [0, 0]], "b": [b], "bn.running_mean": [mean], "bn.running_var": [var]}
    return {k: np.array(v, dtype=np.float32) for k, v in values.items()}


# From model 1 to the clean models 0 and 3: (3, 4, 12, 0) and (0, 7, 0, 5); from model 2: (1, 1, 0, 0) and (4, 12, 12, 5).
MODELS = [model(0, 0), model(3, 4, 12), model(1, -1), model(3, 11, 12, 5)]


@pytest.mark.parametrize(
    ("distance", "buffers", "expected"),
    [
        ("sum", True, [min(19, 12), min(2, 33)]),
        ("sum", False, [min(7, 7), min(2, 14 + 2)]),
        ("l2", True, [min(13, 74**0.5), min(2**0.5, 18)]),
        ("l2", False, [min(5, 7), min(2**0.5, (4 + 144) ** 0.5)]),
    ],
)
def test_a_noisy_model_is_as_far_away_as_its_nearest_clean_one(distance, buffers, expected):
    found = model_distances(MODELS, NOISY, distance=distance, buffers=buffers)
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx([0, expected[0], expected[1], 0], abs=1e-5)


def test_the_nearest_clean_model_is_one_for_all_tensors():
    clean = [{"a": np.float32([0]), "b": np.float32([9])}, {"a": np.float32([9]), "b": np.float32([0])}]
    noisy = {"a": np.float32([0]), "b": np.float32([0])}
    found = model_distances([*clean, noisy], np.array([False, False, True]))
    assert found.tolist() == pytest.approx([0, 0, 9])  # not 0 by the nearest of each tensor


def test_distances_are_those_of_the_code_by_default():
    assert model_distances(MODELS, NOISY).tolist() == pytest.approx([0, 12, 2, 0], abs=1e-5)


def random_models(count, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    shapes = {"conv": (5, 3, 3, 3), "bias": (7,), "bn.running_mean": (4,), "bn.running_var": (4,), "scalar": ()}
    base = {k: rng.normal(size=s) for k, s in shapes.items()}
    return [
        {
            k: np.array(v + spread * rng.normal(size=s), dtype=np.float32)
            for (k, v), s in zip(base.items(), shapes.values(), strict=True)
        }
        for _ in range(count)
    ]


def naive(models, noisy, distance, buffers):
    """Every pair, every tensor, in double precision."""
    result = np.zeros(len(models))
    for i in np.flatnonzero(noisy):
        pairs = []
        for j in np.flatnonzero(~noisy):
            squared = [
                float(((v.astype(np.float64) - models[j][k].astype(np.float64)) ** 2).sum())
                for k, v in models[i].items()
                if buffers or not k.startswith("bn.")
            ]
            pairs.append(sum(map(math.sqrt, squared)) if distance == "sum" else math.sqrt(sum(squared)))
        result[i] = min(pairs)
    return result


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 16])
@pytest.mark.parametrize("buffers", [True, False])
@pytest.mark.parametrize("distance", ["sum", "l2"])
def test_distances_equal_the_plain_computation_whatever_the_block(monkeypatch, distance, buffers, block):
    monkeypatch.setattr(fednoro, "_BLOCK", block)
    models, noisy = random_models(7), np.array([1, 0, 0, 1, 1, 0, 1], dtype=bool)
    found = model_distances(models, noisy, distance=distance, buffers=buffers)
    np.testing.assert_allclose(found, naive(models, noisy, distance, buffers), rtol=1e-5)


@pytest.mark.parametrize("spread", [1e-4, 1e4])
def test_distances_of_models_close_to_each_other_or_far_apart_keep_their_digits(spread):
    models, noisy = random_models(6, spread=spread), np.array([0, 1, 0, 1, 1, 0], dtype=bool)
    np.testing.assert_allclose(model_distances(models, noisy), naive(models, noisy, "sum", True), rtol=1e-3)


def test_a_noisy_model_beside_the_second_clean_one_is_close_though_the_first_is_far_away():
    far, near = ({"a": np.full(1000, v, dtype=np.float32)} for v in (0.2, 0.0))
    noisy = {"a": np.full(1000, 0.01, dtype=np.float32)}
    found = model_distances([far, near, noisy], np.array([False, False, True]))
    assert found[2] == pytest.approx(0.01 * 1000**0.5, rel=1e-2)


def test_equal_models_have_distance_0():
    models = random_models(1) * 4
    assert model_distances(models, NOISY).tolist() == [0.0] * 4


def test_models_are_not_changed():
    models, before = random_models(4), random_models(4)
    model_distances(models, NOISY)
    assert all(np.array_equal(m[k], b[k]) for m, b in zip(models, before, strict=True) for k in m)


def test_a_noisy_model_weighs_its_samples_times_e_to_its_scaled_distance():
    weights = distance_aware_weights([10, 20, 30, 40], np.array([0, 2.0, 0, 4.0]))
    np.testing.assert_allclose(weights, [10, 20 * math.exp(-0.5), 30, 40 * math.exp(-1)], rtol=1e-12)


@pytest.mark.parametrize("distance", [1e-9, 0.3, 1e9])
def test_a_single_noisy_site_always_has_e_to_minus_1_of_its_weight(distance):
    weights = distance_aware_weights([10, 10], np.array([0, distance]))
    assert weights[1] / weights[0] == pytest.approx(math.exp(-1), rel=1e-12)


def test_without_distances_models_weigh_their_samples():
    np.testing.assert_array_equal(distance_aware_weights([10, 30], np.zeros(2)), [10, 30])
