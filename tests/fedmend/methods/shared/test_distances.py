"""Distances between the models of noisy and clean sites."""

import math

import numpy as np
import pytest

from fedmend.methods.shared import distances
from fedmend.methods.shared.distances import model_distances, pairwise_distances

NOISY = np.array([False, True, True, False])


def model(a, b, mean=0.0, var=0.0):
    values = {"a": [[a, 0], [0, 0]], "b": [b], "bn.running_mean": [mean], "bn.running_var": [var]}
    return {k: np.array(v, dtype=np.float32) for k, v in values.items()}


# From model 1 to the clean models 0 and 3: (3, 4, 12, 0) and (0, 7, 0, 5); from 2: (1, 1, 0, 0) and (4, 12, 12, 5).
MODELS = [model(0, 0), model(3, 4, 12), model(1, -1), model(3, 11, 12, 5)]


def test_the_nearest_clean_model_is_one_for_all_tensors():
    clean = [{"a": np.float32([0]), "b": np.float32([9])}, {"a": np.float32([9]), "b": np.float32([0])}]
    noisy = {"a": np.float32([0]), "b": np.float32([0])}
    found = model_distances([*clean, noisy], np.array([False, False, True]))
    assert found.tolist() == pytest.approx([0, 0, 9])  # not 0 by the nearest of each tensor


def test_a_noisy_model_is_as_far_away_as_its_nearest_clean_one_by_the_sum_over_tensors():
    found = model_distances(MODELS, NOISY)
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx([0, min(19, 12), min(2, 33), 0], abs=1e-5)


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


def naive(models, noisy):
    """Every pair, every tensor, in double precision."""
    result = np.zeros(len(models))
    for i in np.flatnonzero(noisy):
        pairs = []
        for j in np.flatnonzero(~noisy):
            squared = [
                float(((v.astype(np.float64) - models[j][k].astype(np.float64)) ** 2).sum())
                for k, v in models[i].items()
            ]
            pairs.append(sum(map(math.sqrt, squared)))
        result[i] = min(pairs)
    return result


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 16])
def test_distances_equal_the_plain_computation_whatever_the_block(monkeypatch, block):
    monkeypatch.setattr(distances, "_BLOCK", block)
    models, noisy = random_models(7), np.array([1, 0, 0, 1, 1, 0, 1], dtype=bool)
    np.testing.assert_allclose(model_distances(models, noisy), naive(models, noisy), rtol=1e-5)


@pytest.mark.parametrize("spread", [1e-4, 1e4])
def test_distances_of_models_close_to_each_other_or_far_apart_keep_their_digits(spread):
    models, noisy = random_models(6, spread=spread), np.array([0, 1, 0, 1, 1, 0], dtype=bool)
    np.testing.assert_allclose(model_distances(models, noisy), naive(models, noisy), rtol=1e-3)


def test_a_noisy_model_beside_the_second_clean_one_is_close_though_the_first_is_far_away():
    far, near = ({"a": np.full(1000, v, dtype=np.float32)} for v in (0.2, 0.0))
    noisy = {"a": np.full(1000, 0.01, dtype=np.float32)}
    found = model_distances([far, near, noisy], np.array([False, False, True]))
    assert found[2] == pytest.approx(0.01 * 1000**0.5, rel=1e-2)


@pytest.mark.parametrize("step", [1e-2, 1e-3, 1e-4, 1e-6])
def test_a_near_copy_of_a_clean_model_keeps_its_distance_beside_clean_models_far_apart(step):
    """10,000 weights that are all ``step`` away: 100 ``step``, where inner products in float32 gave .60 for .10."""
    values = 0.0, 1.0, 1.0 + step, step
    models = [{"a": np.full(10_000, v, dtype=np.float32)} for v in values]
    found = model_distances(models, np.array([False, False, True, True]))
    assert found[2:] == pytest.approx(100 * np.array([float(np.float32(1 + step)) - 1, step]), rel=1e-5)
    squared = pairwise_distances(models)[0]
    assert squared[0] == pytest.approx([0, 1e4, (100 * float(np.float32(1 + step))) ** 2, 1e4 * step**2], rel=1e-5)
    assert squared[2, 1] == pytest.approx(found[2] ** 2)


def test_the_average_by_distance_counts_a_near_copy_like_the_clean_model():
    """d is 2e-4 and 2: Eq. (7) gives e^-0.0001 and e^-1. In float32 around the first model both were 0."""
    models = [{"a": np.full(4, v, dtype=np.float32)} for v in (1000.0, 0.0, 1e-4, 1.0)]
    found = model_distances(models, np.array([False, False, True, True]))
    assert found.tolist() == pytest.approx([0, 0, 2e-4, 2.0], rel=1e-6)


def test_equal_models_have_distance_0():
    models = random_models(1) * 4
    assert model_distances(models, NOISY).tolist() == [0.0] * 4


def test_models_are_not_changed():
    models, before = random_models(4), random_models(4)
    model_distances(models, NOISY)
    assert all(np.array_equal(m[k], b[k]) for m, b in zip(models, before, strict=True) for k in m)


def test_pairwise_distances_are_those_of_each_tensor(monkeypatch):
    monkeypatch.setattr(distances, "_BLOCK", 8)  # so that a tensor has several blocks
    models = random_models(4)
    found = pairwise_distances(models)
    assert found.shape == (5, 4, 4)
    for matrix, name in zip(found, models[0], strict=True):
        exact = [[float(((a[name] - b[name]).astype(np.float64) ** 2).sum()) for a in models] for b in models]
        np.testing.assert_allclose(matrix, exact, rtol=1e-4, atol=1e-5)


def test_pairwise_distances_of_equal_models_are_0():
    assert not pairwise_distances([MODELS[1]] * 3).any()
