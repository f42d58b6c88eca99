"""Distances between models; those between the models of many sites in one pass over all of them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learning.threads import one_thread

_BLOCK = 1 << 14  # numbers of one model that are looked at together: a block of all models stays in the cache


def model_distances(models: Sequence[Mapping[str, np.ndarray]], noisy: np.ndarray) -> np.ndarray:
    """Distance of every noisy model to the nearest clean one, d of Eq. (6), Wu et al., IJCAI 2023, as its code takes
    it: the sum over all tensors of their L2 norms.

    The models of every pair are subtracted in double precision, because inner products would lose the distance of two
    models that are much closer to each other than to the rest. One thread, because a server that shares its cores would
    wait for the others, and because more would change the last digits. With 20 models of 3 million weights, 8 of them
    noisy, it takes 0.2 s, and all pairs take 0.75 s; inner products took 0.1 s.

    Args:
        models: K models, name → float array.
        noisy: (K,) bool; at least one True and one False.

    Returns:
        (K,) float64; 0 for clean models.
    """
    far, near = ([m for m, flag in zip(models, noisy, strict=True) if flag == which] for which in (True, False))
    total = np.zeros((len(far), len(near)))
    with one_thread():
        for name in models[0]:
            total += np.sqrt(_squared_distances([m[name] for m in far], [m[name] for m in near]))
    result = np.zeros(len(models))
    result[noisy] = total.min(1)
    return result


def pairwise_distances(models: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Squared L2 distances between all models, in one pass and one thread as :func:`model_distances`.

    Args:
        models: K models, name → float array.

    Returns:
        (T, K, K) float64, >= 0, one matrix for each of T tensors.
    """
    with one_thread():
        tensors = [[model[name] for model in models] for name in models[0]]
        return np.stack([_squared_distances(each, each) for each in tensors])


def _squared_distances(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> np.ndarray:
    """(F, N) float64 between F and N arrays of one shape."""
    squared = np.zeros((len(one), len(other)))
    blocks = (zip(*(torch.from_numpy(v).flatten().split(_BLOCK) for v in each), strict=True) for each in (one, other))
    for x, y in zip(*blocks, strict=True):
        exact = "donot_use_mm_for_euclid_dist"  # the default takes inner products
        squared += torch.cdist(torch.stack(x).double(), torch.stack(y).double(), compute_mode=exact).square().numpy()
    return squared


def squared_distance(model: nn.Module, received: Sequence[Tensor]) -> Tensor:
    """||w - w_received||^2 over the parameters w of a model, with gradient; ``received`` are of any shape."""
    pairs = zip(model.parameters(), received, strict=True)
    return sum(((p - q).square().sum() for p, q in pairs), torch.zeros(()))
