import csv
import os
from pathlib import Path

import numpy as np
import pytest
from factories import refused

from fedmend.datasets.imperfections import (
    annotated_classes,
    bernoulli_dirichlet_partition,
    draw_noisy_sites,
    identified_classes,
    instance_dependent_noise,
    uniform_noise,
)
from fedmend.errors import FedMendError

# Training slices per class in FedNoRo's ICH experiment, and the client sizes of its partition (seed 100).
ICH_COUNTS = [1046, 9776, 6198, 10275, 20283]
ICH_SIZES = [1509, 1723, 3402, 1671, 3789, 3059, 4543, 1496, 3871, 2488]
ICH_SIZES += [2617, 529, 1583, 1642, 1867, 1876, 2405, 3345, 3425, 738]


def test_one_each_with_one_class_per_site_gives_site_i_class_i():
    assert np.array_equal(annotated_classes(5, 5, 1, rule="one_each", seed=0), np.eye(5, dtype=bool))


def test_one_each_runs_on_cyclically():
    expected = [[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]
    annotated = annotated_classes(4, 3, 2, rule="one_each", seed=0)
    assert annotated.dtype == bool
    assert annotated.astype(int).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_covers_every_class_and_gives_each_site_its_number(seed):
    annotated = annotated_classes(5, 8, 2, rule="random", seed=seed)
    assert annotated.shape == (5, 8)
    assert annotated.dtype == bool
    assert (annotated.sum(axis=1) == 2).all()
    assert annotated.any(axis=0).all()


def test_random_is_decided_by_the_seed_alone():
    first, again, other = (annotated_classes(6, 6, 3, rule="random", seed=s) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_random_draws_every_class_equally_often():
    draws = sum(annotated_classes(6, 4, 2, rule="random", seed=s).astype(int) for s in range(2000))
    assert np.abs(draws / 2000 - 0.5).max() < 0.06


@pytest.mark.parametrize(
    ("sites", "classes", "per_site", "rule", "seed", "message"),
    [
        (0, 5, 1, "one_each", 0, "num_sites >= 1"),
        (5, 5, 0, "one_each", 0, "1..5"),
        (5, 5, 6, "one_each", 0, "1..5"),
        (5, 5, 1, "random", -1, "seed >= 0"),
        (2, 5, 2, "random", 0, r"2 \* 2"),
        (5, 5, 1, "all", 0, "got 'all'"),
        (2, 6, 3, "one_each", 0, "all 6 classes, got 4"),
        (30, 30, 1, "random", 0, "within"),
    ],
)
def test_an_impossible_protocol_is_refused(sites, classes, per_site, rule, seed, message):
    with pytest.raises(FedMendError, match=message):
        annotated_classes(sites, classes, per_site, rule=rule, seed=seed)


def assert_the_published_partition(labels):
    site_of = bernoulli_dirichlet_partition(labels, 20, alpha=2.0, presence=0.9, seed=100)
    cells = np.zeros((20, 5), dtype=int)
    np.add.at(cells, (site_of, labels), 1)
    assert (site_of.dtype, site_of.shape) == (np.int64, labels.shape)
    assert cells.sum(axis=0).tolist() == ICH_COUNTS
    assert cells.sum(axis=1).tolist() == ICH_SIZES
    assert (cells == 0).sum() == 9
    assert cells[[0, 3, 14]].tolist() == [[88, 325, 440, 179, 477], [0, 130, 183, 1044, 314], [21, 1357, 489, 0, 0]]


def test_the_class_counts_of_the_ich_experiment_give_its_published_partition():
    assert_the_published_partition(np.repeat(np.arange(5), ICH_COUNTS))


@pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA")
def test_the_published_label_table_gives_the_published_partition():
    table = Path(os.environ["FEDMEND_REAL_DATA"]) / "ich_labels" / "train_ICH.csv"
    with open(table, newline="", encoding="utf-8") as stream:
        rows = [[float(v) for v in row[1:]] for row in list(csv.reader(stream))[1:]]
    assert_the_published_partition(np.argmax(rows, axis=1))


@pytest.mark.parametrize(("seed", "site_of_class"), [(29, [0, 1]), (16, [1, 0])])
def test_a_class_with_one_owner_goes_there_whole(seed, site_of_class):
    owned = np.random.RandomState(seed).binomial(1, 0.5, size=(2, 2))
    assert np.array_equal(owned, np.eye(2)[site_of_class])
    labels = np.array([0, 1, 1, 0, 1])
    site_of = bernoulli_dirichlet_partition(labels, 2, alpha=2.0, presence=0.5, seed=seed)
    assert site_of.tolist() == [site_of_class[c] for c in labels]


def test_a_site_that_drew_no_class_draws_again():
    owned = np.random.RandomState(23).binomial(1, 0.5, size=(6, 2))
    assert not owned.any(axis=1).all()
    site_of = bernoulli_dirichlet_partition(np.repeat([0, 1], 200), 6, alpha=2.0, presence=0.5, seed=23)
    assert set(site_of) == set(range(6))


def test_a_large_alpha_deals_evenly_and_a_small_one_does_not():
    labels = np.zeros(9000, dtype=int)
    even, uneven = (
        np.bincount(bernoulli_dirichlet_partition(labels, 3, alpha=a, presence=1.0, seed=1)) for a in (1e6, 0.3)
    )
    assert np.abs(even - 3000).max() < 150
    assert np.ptp(uneven) > 2000


def test_the_legacy_draws_leave_the_global_random_state_alone():
    before = np.random.get_state()[1].tolist()
    bernoulli_dirichlet_partition(np.zeros(9, dtype=int), 1, alpha=1.0, presence=1.0, seed=3)
    draw_noisy_sites(4, noisy_share=0.5, low=0.1, high=0.2, seed=3)
    assert np.random.get_state()[1].tolist() == before


def test_a_class_without_a_site_is_refused():
    with refused(
        "partition: expected every class at one site or more, got class 0 at none of 2 with presence 0.5 and seed 5"
    ):
        bernoulli_dirichlet_partition(np.array([0, 1, 1]), 2, alpha=2.0, presence=0.5, seed=5)


def test_an_empty_site_is_refused():
    with refused(
        "partition: expected a sample at each of 2 sites, got an empty site, site-1, from 2 samples with alpha 2.0,"
        " presence 0.5 and seed 29"
    ):
        bernoulli_dirichlet_partition(np.array([1, 1]), 2, alpha=2.0, presence=0.5, seed=29)


def test_no_samples_at_all_are_refused_as_an_empty_site():
    with pytest.raises(FedMendError, match="empty site, site-1, from 0 samples"):
        bernoulli_dirichlet_partition(np.zeros(0, dtype=int), 2, alpha=1.0, presence=1.0, seed=0)


@pytest.mark.parametrize(
    ("sites", "change"),
    [
        (0, {}),
        (2, {"alpha": 0.0}),
        (2, {"alpha": float("nan")}),
        (2, {"presence": 0.0}),
        (2, {"presence": 1.1}),
        (2, {"seed": -1}),
        (2, {"seed": 2**32}),
    ],
)
def test_numbers_that_make_no_partition_are_refused(sites, change):
    numbers = {"alpha": 1.0, "presence": 1.0, "seed": 0} | change
    with refused(
        "partition: expected num_sites >= 1, alpha > 0, presence above 0 and at most 1, and seed in 0..4294967295, got"
        f" {sites}, {numbers['alpha']}, {numbers['presence']} and {numbers['seed']}"
    ):
        bernoulli_dirichlet_partition(np.zeros(9, dtype=int), sites, **numbers)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([0, 3], "expected class numbers in 0..2, got 0 to 3"),
        ([-1, 2], "expected class numbers in 0..2, got -1 to 2"),
        ([0.5, 1.0], "expected a vector of class numbers, got 1 dimensions of float64"),
        ([[0, 1]], "expected a vector of class numbers, got 2 dimensions of int64"),
    ],
)
def test_labels_that_are_no_class_numbers_are_refused(labels, sentence):
    with refused(f"partition: {sentence}"):
        bernoulli_dirichlet_partition(np.array(labels), 1, alpha=1.0, presence=1.0, seed=0, num_classes=3)
    if np.ndim(labels) == 1:
        with refused(f"instance-dependent noise: {sentence}"):
            instance_dependent_noise(np.array(labels), np.full((2, 3), 1 / 3), 0.5, seed=0)
    with refused(f"uniform noise: {sentence}"):
        uniform_noise(np.array(labels), 0.5, num_classes=3, seed=0)


@pytest.mark.parametrize(
    ("share", "noisy"),
    [
        (0.2, [1, 9, 16, 17]),
        (0.3, [1, 8, 9, 10, 16, 17]),
        (0.4, [1, 6, 8, 9, 10, 13, 16, 17]),
        (0.6, [1, 3, 4, 6, 8, 9, 10, 12, 13, 15, 16, 17]),
    ],
)
def test_the_noisy_sites_are_the_published_ones(share, noisy):
    flags, rates = draw_noisy_sites(20, noisy_share=share, low=0.5, high=0.7, seed=0)
    assert (flags.dtype, rates.dtype) == (bool, np.float64)
    assert np.flatnonzero(flags).tolist() == noisy
    assert np.array_equal(rates > 0, flags)
    if share == 0.4:
        assert rates[flags].round(3).tolist() == [0.606, 0.504, 0.656, 0.674, 0.696, 0.656, 0.529, 0.689]


def test_the_number_of_noisy_sites_is_rounded_down():
    assert [draw_noisy_sites(5, noisy_share=s, low=0, high=1, seed=0)[0].sum() for s in (0, 0.39, 0.4, 1)] == [
        0,
        1,
        2,
        5,
    ]


@pytest.mark.parametrize(
    ("sites", "change"),
    [
        (0, {}),
        (5, {"noisy_share": 1.1}),
        (5, {"noisy_share": -0.1}),
        (5, {"low": 0.8}),
        (5, {"low": -0.1}),
        (5, {"high": 1.1}),
        (5, {"seed": -1}),
    ],
)
def test_numbers_that_make_no_noisy_sites_are_refused(sites, change):
    numbers = {"noisy_share": 0.4, "low": 0.5, "high": 0.7, "seed": 0} | change
    got = f"{sites}, {numbers['noisy_share']}, {numbers['low']}, {numbers['high']} and {numbers['seed']}"
    with refused(
        "noisy sites: expected num_sites >= 1, noisy_share in 0..1, 0 <= low <= high <= 1 and seed in 0..4294967295,"
        f" got {got}"
    ):
        draw_noisy_sites(sites, **numbers)


@pytest.mark.parametrize(("rate", "wrong"), [(0.0, 0), (0.009, 0), (0.658, 65), (1.0, 100)])
def test_exactly_the_noise_rate_is_flipped(rate, wrong):
    labels = np.arange(100) % 4
    probabilities = np.random.default_rng(0).dirichlet(np.ones(4), size=100)
    noisy = instance_dependent_noise(labels, probabilities, rate, seed=1)
    assert noisy.dtype == np.int64
    assert (noisy != labels).sum() == wrong
    assert noisy.min() >= 0
    assert noisy.max() < 4


def test_samples_that_the_annotator_is_sure_of_are_flipped_last():
    labels = np.zeros(10, dtype=int)
    probabilities = np.tile([1.0, 0.0], (10, 1))
    probabilities[[3, 7]] = 0.5
    flipped = set()
    for seed in range(20):
        first, more = (instance_dependent_noise(labels, probabilities, r, seed=seed) for r in (0.2, 0.5))
        assert np.flatnonzero(first).tolist() == [3, 7]
        assert more[[3, 7]].tolist() == [1, 1]
        assert more.sum() == 5
        flipped |= set(np.flatnonzero(more).tolist())
    assert flipped == set(range(10))


def test_a_sample_is_chosen_in_proportion_to_its_misclassification_probability():
    probabilities = np.array([[0.2, 0.8], [0.8, 0.2]])  # weights 0.8 and 0.2 for label 0
    flipped = sum(instance_dependent_noise(np.array([0, 0]), probabilities, 0.5, seed=s) for s in range(2000))
    assert abs(flipped[0] / 2000 - 0.8) < 0.04


def test_the_new_label_follows_the_annotator_over_the_other_classes():
    labels = np.full(4000, 1)
    noisy = instance_dependent_noise(labels, np.tile([0.1, 0.6, 0.3, 0.0], (4000, 1)), 1.0, seed=2)
    shares = np.bincount(noisy, minlength=4) / 4000
    assert shares[[1, 3]].tolist() == [0, 0]
    assert abs(shares[0] - 0.25) < 0.03


def test_an_annotator_that_sees_no_other_class_gives_each_an_equal_chance():
    noisy = instance_dependent_noise(np.full(3000, 2), np.tile([0.0, 0.0, 1.0], (3000, 1)), 1.0, seed=3)
    shares = np.bincount(noisy, minlength=3) / 3000
    assert shares[2] == 0
    assert abs(shares[0] - 0.5) < 0.04


def test_the_seed_alone_decides_the_noise_and_the_labels_are_kept():
    labels = np.arange(50) % 3
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), size=50)
    kept = labels.copy(), probabilities.copy()
    for noise in (
        lambda seed: instance_dependent_noise(labels, probabilities, 0.5, seed=seed),
        lambda seed: uniform_noise(labels, 0.5, num_classes=3, seed=seed),
    ):
        assert np.array_equal(noise(1), noise(1))
        assert not np.array_equal(noise(1), noise(2))
    assert np.array_equal(labels, kept[0])
    assert np.array_equal(probabilities, kept[1])


@pytest.mark.parametrize("shape", [(2, 1), (3, 2), (2,)])
def test_probabilities_between_which_no_label_can_flip_are_refused(shape):
    with refused(
        "instance-dependent noise: expected probabilities of 2 samples for at least 2 classes, between which a label"
        f" can be flipped, got shape {shape}"
    ):
        instance_dependent_noise(np.array([0, 0]), np.ones(shape), 0.5, seed=0)


@pytest.mark.parametrize("row", [[0.5, 0.6], [-0.5, 1.5], [float("nan"), 1.0]])
def test_numbers_that_are_no_probabilities_are_refused(row):
    with refused("instance-dependent noise: expected probabilities >= 0 that sum to 1 for each sample, got others"):
        instance_dependent_noise(np.array([0, 0]), np.array([[0.5, 0.5], row]), 0.5, seed=0)


@pytest.mark.parametrize(("rate", "seed"), [(-0.1, 0), (1.1, 0), (float("nan"), 0), (0.5, -1)])
def test_a_noise_rate_or_seed_out_of_range_is_refused(rate, seed):
    with refused(f"instance-dependent noise: expected rate in 0..1 and seed >= 0, got {rate} and {seed}"):
        instance_dependent_noise(np.array([0, 0]), np.full((2, 2), 0.5), rate, seed=seed)
    with refused(f"uniform noise: expected rate in 0..1 and seed >= 0, got {rate} and {seed}"):
        uniform_noise(np.array([0, 0]), rate, num_classes=2, seed=seed)


def test_uniform_noise_draws_from_all_classes():
    labels = np.zeros(8000, dtype=np.int8)
    assert uniform_noise(labels, 0.0, num_classes=4, seed=0).tolist() == [0] * 8000
    shares = np.bincount(uniform_noise(labels, 0.6, num_classes=4, seed=0)) / 8000
    assert np.abs(shares - [0.55, 0.15, 0.15, 0.15]).max() < 0.02  # 0.4 untouched and a quarter of 0.6
    assert uniform_noise(labels, 1.0, num_classes=4, seed=0).dtype == np.int64


@pytest.mark.parametrize(
    ("sites", "classes", "per_site"), [(8, 14, 3), (5, 7, 3), (4, 4, 2), (8, 8, 1), (2, 3, 3), (9, 4, 2)]
)
def test_each_site_identifies_its_number_of_classes_and_each_class_is_identified_somewhere(sites, classes, per_site):
    for seed in range(20):
        identified = identified_classes(sites, classes, per_site, seed=seed)
        assert (identified.shape, identified.dtype) == ((sites, classes), bool)
        assert identified.sum(axis=1).tolist() == [per_site] * sites
        assert identified.any(axis=0).all()


def test_the_classes_are_dealt_in_turn_before_the_sites_draw_the_rest():
    """With 2 sites of 1 class and 2 classes nothing is left to draw: each class has one site."""
    draws = {tuple(identified_classes(2, 2, 1, seed=seed).argmax(axis=1).tolist()) for seed in range(20)}
    assert draws == {(0, 1), (1, 0)}
    owners = np.mean([identified_classes(4, 8, 4, seed=seed) for seed in range(400)], axis=0)
    assert np.abs(owners - 0.5).max() < 0.1


def test_the_seed_alone_decides_who_identifies_what():
    assert np.array_equal(identified_classes(8, 14, 3, seed=4), identified_classes(8, 14, 3, seed=4))
    assert not np.array_equal(identified_classes(8, 14, 3, seed=4), identified_classes(8, 14, 3, seed=5))


@pytest.mark.parametrize(("sites", "per_site", "seed"), [(0, 1, 0), (3, 0, 0), (3, 5, 0), (3, 1, 0), (4, 1, -1)])
def test_numbers_that_leave_a_class_unidentified_or_are_out_of_range_are_refused(sites, per_site, seed):
    with refused(
        "identified classes: expected num_sites >= 1, per_site in 1..4, num_sites * per_site >= 4, the number of"
        f" classes, and seed >= 0, got {sites}, {per_site}, {sites * per_site} and {seed}"
    ):
        identified_classes(sites, 4, per_site, seed=seed)
