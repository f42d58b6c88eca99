"""Which sites and samples stand apart: the local dimension of predictions, and two-component Gaussian mixtures.

The local intrinsic dimension (LID) of a sample says how fast the number of its neighbours grows with the distance from
it. Ma et al., "Dimensionality-Driven Learning with Noisy Labels", ICML 2018, found that it grows as a network begins to
memorise wrong labels. N samples, K sites.
"""

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field

MIN_SITES = 4  # a mixture of two components cannot be told from less
FULL_COVARIANCE_FROM = 20  # sites
AUTO = "auto"
MIXTURES = {"full": {}, "spherical": {"reg_covar": 0.02, "init_params": "random_from_data", "n_init": 10}}
NEIGHBOURS = 20
SMALLEST_DISTANCE = 1e-6
LARGEST_PER_COLUMN = 10.0
BLOCK = 512  # rows of distances at a time
LID = Field(
    (),
    "float32",
    0,
    UNBOUNDED,
    "mean local intrinsic dimension of the predictions for the training samples",
    "one mean over all samples, which tells how well labels and images agree at the site",
)
NOISE_LEVEL = Field(
    (), "float32", 0, 1, "share of the training samples whose loss stands out", "tells how many labels may be wrong"
)


def local_intrinsic_dimension(vectors: np.ndarray, *, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """LID of every sample: -k / sum_j log(v_j / v_k), v_1 <= ... <= v_k its distances to the k nearest others.

    Equal samples count as 1e-6 apart. Neighbours that are all equally far say nothing and would give a million: the
    largest value is ten times the number of columns.

    Args:
        vectors: (N, D), e.g. softmax outputs.
        neighbours: k, N - 1 where there are fewer others.

    Returns:
        (N,) float64 > 0; 0 for fewer than three samples.
    """
    points = torch.from_numpy(np.asarray(vectors, dtype=np.float64))
    k = min(neighbours, len(points) - 1)
    if k < 2:
        return np.zeros(len(points))
    parts = []
    for rows in points.split(BLOCK):
        # The squares of a matrix product would lose the small distances.
        distances = torch.cdist(rows, points, compute_mode="donot_use_mm_for_euclid_dist")
        nearest = distances.topk(k + 1, largest=False).values[:, 1:].clamp(min=SMALLEST_DISTANCE)  # [0]: itself
        parts.append(torch.log(nearest / (nearest[:, -1:] + SMALLEST_DISTANCE)).sum(1) + SMALLEST_DISTANCE)
    largest = LARGEST_PER_COLUMN * points.shape[1]
    return (k / (-torch.cat(parts)).clamp(min=k / largest)).numpy()


def stands_out(losses: np.ndarray) -> np.ndarray:
    """Samples of the component with the larger mean of a two-component Gaussian mixture on their losses.

    Args:
        losses: (N,) finite.

    Returns:
        (N,) bool; none where all losses are equal.
    """
    if len(losses) == 0 or (losses == losses[0]).all():
        return np.zeros(len(losses), dtype=bool)
    return _larger_component(np.asarray(losses, dtype=np.float64)[:, None], random_state=0)


def _larger_component(losses: np.ndarray, **options: Any) -> np.ndarray:
    """(K,) bool: the component with the larger mean of a two-component Gaussian mixture on (K, C) losses."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    mixture = GaussianMixture(2, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # few distinct points: the vote tells
        component = mixture.fit_predict(losses)
    return component == mixture.means_.sum(1).argmax()


def min_max(values: np.ndarray) -> np.ndarray:
    """(K,) numbers scaled to 0..1, 0 where all are equal; the mixtures over sites have floors made for such numbers."""
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else np.zeros(len(values))


@dataclass(frozen=True)
class Detection:
    """Which sites are noisy.

    Attributes:
        noisy: (K,) bool.
        vote_share: share of the mixtures that found exactly this set, the confidence of the detection.
        covariance: covariance type of the mixtures.
    """

    noisy: np.ndarray
    vote_share: float
    covariance: str


def detect_noisy_clients(losses: np.ndarray, *, votes: int = 9, covariance: str = AUTO) -> Detection:
    """Two-component Gaussian mixtures on the losses; the component with the larger mean is noisy.

    Args:
        losses: (K, C) normalised losses.
        votes: mixtures with random states 0, 1, ...; the set that most of them find wins, the first one on a tie.
        covariance: a key of ``MIXTURES``; ``auto``: full from 20 sites on, else spherical.

    Returns:
        The winning set; it may be empty or hold all sites.

    Raises:
        FedMendError: fewer than 4 sites.
    """
    if len(losses) < MIN_SITES:
        raise FedMendError(f"noisy-client detection: expected losses of at least {MIN_SITES} sites, got {len(losses)}")
    if covariance == AUTO:
        covariance = "full" if len(losses) >= FULL_COVARIANCE_FROM else "spherical"
    if (losses == losses[0]).all():
        return Detection(np.zeros(len(losses), dtype=bool), 1.0, covariance)
    found: Counter[tuple[bool, ...]] = Counter()
    for seed in range(votes):
        noisy = _larger_component(losses, covariance_type=covariance, random_state=seed, **MIXTURES[covariance])
        found[tuple(noisy.tolist())] += 1
    winner, count = found.most_common(1)[0]
    return Detection(np.array(winner), count / votes, covariance)
