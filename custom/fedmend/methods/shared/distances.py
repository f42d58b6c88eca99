"""Distances between models; those between the models of many sites in one pass over all of them."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learning.threads import one_thread

_BLOCK = 1 << 16  # numbers of one model that are looked at together: a block of all models stays in the cache


def model_distances(models: Sequence[Mapping[str, np.ndarray]], noisy: np.ndarray) -> np.ndarray:
    """Distance of every noisy model to the nearest clean one, d of Eq. (6), Wu et al., IJCAI 2023, as its code takes
    it: the sum over all tensors of their L2 norms.

    Squared distances come from inner products of differences to the first clean model, in one pass over all models. One
    thread, because a server that shares its cores would wait for the others, and because more would change the last
    digits.

    Args:
        models: K models, name → float array.
        noisy: (K,) bool; at least one True and one False.

    Returns:
        (K,) float64; 0 for clean models.
    """
    far, near = np.flatnonzero(noisy), np.flatnonzero(~noisy)
    ordered = [models[k] for k in (*far, *near)]
    total = np.zeros((len(far), len(near)))
    with one_thread():
        for name in ordered[0]:
            total += np.sqrt(_squared_distances([torch.from_numpy(m[name]).flatten() for m in ordered], len(far)))
    result = np.zeros(len(models))
    result[far] = total.min(1)
    return result


def _squared_distances(tensors: Sequence[Tensor], num_far: int) -> np.ndarray:
    """(F, K - F) float64 between the first F and the other tensors."""
    squared = np.zeros((num_far, len(tensors) - num_far))
    for part in zip(*(t.split(_BLOCK) for t in tensors), strict=True):
        block = torch.stack(part).sub_(part[num_far])
        square = torch.linalg.vecdot(block, block).double()
        inner = block[:num_far] @ block[num_far:].T
        squared += (square[:num_far, None] + square[num_far:] - 2 * inner).numpy()
    return np.maximum(squared, 0)


def pairwise_distances(models: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """Squared L2 distances between all models, in one pass and one thread as :func:`model_distances`.

    Args:
        models: K models, name → float array.

    Returns:
        (T, K, K) float64, >= 0, one matrix for each of T tensors.
    """
    with one_thread():
        return np.stack([_pairs([torch.from_numpy(m[name]).flatten() for m in models]) for name in models[0]])


def _pairs(tensors: Sequence[Tensor]) -> np.ndarray:
    """(K, K) float64 between all tensors."""
    squared = np.zeros((len(tensors), len(tensors)))
    for part in zip(*(t.split(_BLOCK) for t in tensors), strict=True):
        block = torch.stack(part).sub_(part[0])
        inner = (block @ block.T).double().numpy()
        length = np.diag(inner)
        squared += length[:, None] + length - 2 * inner
    return np.maximum(squared, 0)


def squared_distance(model: nn.Module, received: Sequence[Tensor]) -> Tensor:
    """||w - w_received||^2 over the parameters w of a model, with gradient; ``received`` are of any shape."""
    pairs = zip(model.parameters(), received, strict=True)
    return sum(((p - q).square().sum() for p, q in pairs), torch.zeros(()))
