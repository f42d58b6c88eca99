import numpy as np
import pytest
from scipy import stats

from fedmend.learning.system_random import SystemRandom


def fixed(seed=0):
    return SystemRandom(np.random.default_rng(seed).bytes)


def test_uniform_numbers_are_the_middles_of_equal_parts_and_never_0_or_1():
    ends = SystemRandom(lambda size: bytes(size // 2) + b"\xff" * (size // 2)).uniform(2)
    assert ends.tolist() == [2.0**-53, 1 - 2.0**-53]
    assert stats.kstest(fixed().uniform(50_000), "uniform").pvalue > 0.01


def test_normal_numbers_have_the_standard_normal_distribution_out_to_its_tails():
    numbers = fixed().normal(400_000)
    assert stats.kstest(numbers, "norm").pvalue > 0.01
    beyond = (np.abs(numbers) > 4).mean()  # 6.3e-5
    assert beyond == pytest.approx(2 * stats.norm.sf(4), rel=0.5)


def test_the_largest_normal_number_is_finite_and_far_outside():
    largest = SystemRandom(lambda size: b"\xff" * size).normal(1)[0]
    assert 16 < largest < 17


def test_each_normal_number_takes_32_fresh_bytes():
    taken = []
    SystemRandom(lambda size: taken.append(size) or b"\x01" * size).normal(5)
    assert taken == [40, 40, 40, 40]


def test_a_choice_is_of_different_numbers_each_as_often_as_the_others():
    random = fixed()
    chosen = [sorted(random.choice(4, 2).tolist()) for _ in range(3000)]
    pairs, counts = np.unique(chosen, axis=0, return_counts=True)
    assert pairs.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert np.allclose(counts, 500, atol=100)


def test_the_numbers_are_the_systems_own_and_no_seed_repeats_them():
    np.random.seed(7)
    first = SystemRandom().normal(3)
    np.random.seed(7)
    assert not np.array_equal(first, SystemRandom().normal(3))
