"""Local intrinsic dimension, and the mixtures that tell sites and samples apart."""

import math
import warnings

import numpy as np
import pytest
from factories import refused

from fedmend.methods.shared import dimensions
from fedmend.methods.shared.dimensions import (
    MIXTURES,
    detect_noisy_clients,
    local_intrinsic_dimension,
    min_max,
    stands_out,
)

# ---- local intrinsic dimension --------------------------------------------------------------------------------------


def test_the_dimension_of_four_points_on_a_line_is_that_of_the_formula():
    points = np.array([[0.0], [1], [3], [7]])  # distances of the first: 1, 3, 7
    found = local_intrinsic_dimension(points, neighbours=3)
    tiny = 1e-6
    first = -3 / (math.log(1 / (7 + tiny)) + math.log(3 / (7 + tiny)) + math.log(7 / (7 + tiny)) + tiny)
    assert found[0] == pytest.approx(first, rel=1e-12)
    assert found[0] == pytest.approx(3 / math.log(49 / 3), rel=1e-6)
    assert found[2] == pytest.approx(3 / math.log(4 / 2 * 4 / 3), rel=1e-5)  # distances 2, 3, 4


def test_only_the_nearest_count():
    points = np.array([[0.0], [1], [3], [7]])
    assert local_intrinsic_dimension(points, neighbours=2)[0] == pytest.approx(2 / math.log(3), rel=1e-5)


def test_with_few_samples_all_others_are_the_neighbours():
    points = np.array([[0.0], [1], [3], [7]])
    np.testing.assert_array_equal(local_intrinsic_dimension(points), local_intrinsic_dimension(points, neighbours=3))


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_points_that_fill_a_cube_have_about_its_dimension(dimension):
    points = np.zeros((2000, 5))
    points[:, :dimension] = np.random.default_rng(0).random((2000, dimension))
    found = local_intrinsic_dimension(points).mean()
    assert found == pytest.approx(dimension, rel=0.15)  # seen: 1.05, 2.04, 3.76


def test_blocks_do_not_change_the_dimension(monkeypatch):
    points = np.random.default_rng(1).random((50, 3))
    whole = local_intrinsic_dimension(points)
    monkeypatch.setattr(dimensions, "BLOCK", 7)
    np.testing.assert_array_equal(local_intrinsic_dimension(points), whole)


def test_equal_samples_give_a_finite_dimension():
    found = local_intrinsic_dimension(np.ones((30, 4)))
    np.testing.assert_allclose(found, 1 / math.log(2), rtol=1e-6)  # all 1e-6 apart: -k / (k log 1/2)


def test_neighbours_that_are_all_equally_far_give_ten_times_the_columns_at_most():
    points = np.vstack([np.zeros((25, 4)), [[1, 0, 0, 0]]])
    assert local_intrinsic_dimension(points)[-1] == 40


@pytest.mark.parametrize("samples", [0, 1, 2])
def test_fewer_than_three_samples_have_no_dimension(samples):
    assert local_intrinsic_dimension(np.zeros((samples, 2))).tolist() == [0] * samples


def test_three_samples_have_one():
    found = local_intrinsic_dimension(np.array([[0.0], [1], [3]]))
    assert found[0] == pytest.approx(2 / math.log(3), rel=1e-5)


# ---- samples --------------------------------------------------------------------------------------------------------


def test_the_samples_of_the_higher_component_stand_out():
    low, high = np.random.default_rng(0).normal(0.2, 0.05, 80), np.random.default_rng(1).normal(2, 0.2, 20)
    found = stands_out(np.concatenate([high[:7], low, high[7:]]))
    assert found.dtype == bool
    assert np.flatnonzero(found).tolist() == [*range(7), *range(87, 100)]


@pytest.mark.parametrize("losses", [[], [0.3], [0.3, 0.3, 0.3]])
def test_none_stands_out_where_all_losses_are_equal(losses):
    assert stands_out(np.array(losses)).tolist() == [False] * len(losses)


def test_two_different_losses_are_no_error_and_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stands_out(np.float32([0.1, 0.1, 0.1, 0.9])).tolist() == [False, False, False, True]


def test_the_samples_that_stand_out_are_the_same_every_time():
    losses = np.random.default_rng(5).random(60)  # no clear groups
    np.random.seed(1)
    first = stands_out(losses)
    np.random.seed(2)
    assert (stands_out(losses) == first).all()


# ---- noisy sites -----------------------------------------------------------------------------------------------------


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


def test_a_site_is_no_component_because_it_is_alone():
    found = detect_noisy_clients(np.array([[0.0], [0.1], [0.2], [0.3], [0.6], [0.601], [1.0]]))
    assert found.noisy[4:].all()  # without a floor under the variance the last one alone


@pytest.mark.parametrize("sites", [0, 1, 3])
def test_fewer_than_four_sites_are_refused(sites):
    with refused(f"noisy-client detection: expected losses of at least 4 sites, got {sites}"):
        detect_noisy_clients(np.random.default_rng(0).random((sites, 2)))


@pytest.mark.parametrize(("sites", "used"), [(19, "spherical"), (20, "full"), (4, "spherical")])
def test_the_covariance_is_full_from_20_sites_on_unless_it_is_named(sites, used, mixtures):
    made = mixtures(lambda seed: [0] * sites)
    losses = np.random.default_rng(1).random((sites, 2))
    assert detect_noisy_clients(losses).covariance == used
    assert {m["covariance_type"] for m in made} == {used}
    assert [detect_noisy_clients(losses, covariance=kind).covariance for kind in MIXTURES] == list(MIXTURES)


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


def test_few_sites_have_the_likeliest_of_10_fits_from_random_sites_with_a_floor_of_0_02(mixtures):
    made = mixtures(lambda seed: [0] * 4)
    for kind in MIXTURES:
        detect_noisy_clients(LOSSES, votes=1, covariance=kind)
    floor = {"reg_covar": 0.02, "init_params": "random_from_data", "n_init": 10}
    options = [
        {**more, "covariance_type": kind, "random_state": 0} for kind, more in (("full", {}), ("spherical", floor))
    ]
    assert made == options


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


def test_numbers_are_scaled_to_0_to_1_for_the_mixtures():
    assert min_max(np.array([2.0, 6, 3])).tolist() == [0, 1, 0.25]
    assert min_max(np.array([2.0, 2])).tolist() == [0, 0]
