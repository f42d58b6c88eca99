import numpy as np
import pytest

from fedmend.errors import FedMendError
from fedmend.imperfections import annotated_classes


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
