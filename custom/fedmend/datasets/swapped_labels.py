"""Sites that miss classes and are noisy in those that they annotate: both imperfections at once.

No paper's protocol: noisy sites and their rates are drawn as FedNoRo's, and a noisy site confuses as many patients with
a finding as without it, so that neither its prevalences nor its label counts give it away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmend.datasets.checks import need
from fedmend.datasets.imperfections import draw_noisy_sites


@dataclass(frozen=True, kw_only=True)
class SwapNoise:
    """Which sites with missing classes are noisy besides, see :func:`missing_and_noisy`.

    Attributes:
        noisy_share: share of noisy sites, in 0..1; their number is rounded down.
        noise_low: smallest share of a class's positives that a noisy site misses.
        noise_high: largest share of them.
    """

    noisy_share: float = 0.0
    noise_low: float = 0.5
    noise_high: float = 0.7


NO_NOISE = SwapNoise()


def swap_labels(labels: np.ndarray, rate: float, *, seed: int | Sequence[int]) -> np.ndarray:
    """Misses positives of a class and takes as many negatives for positive, so that the class keeps its prevalence.

    round(rate * P) of the P positives change places with negatives, or with all of these where there are fewer.

    Args:
        labels: (N,) true labels, 0 or 1.
        rate: share of the positives that are missed, in 0..1.
        seed: 0 or more, or a sequence of such numbers.

    Returns:
        (N,) labels of the same type.

    Raises:
        FedMendError: a rate out of its range.
    """
    need(0 <= rate <= 1, "swapped labels", "a rate in 0..1", rate)
    rng = np.random.default_rng(seed)
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    count = min(round(rate * len(positives)), len(negatives))
    swapped = labels.copy()
    swapped[rng.permutation(positives)[:count]] = 0
    swapped[rng.permutation(negatives)[:count]] = 1
    return swapped


def missing_and_noisy(
    labels: np.ndarray, parts: Sequence[np.ndarray], annotated: np.ndarray, *, noise: SwapNoise, seed: int
) -> tuple[np.ndarray, list[float]]:
    """Labels as sites show them that miss classes and of which some are noisy in the classes that they annotate.

    Args:
        labels: (N, C) true labels, 0 or 1.
        parts: the samples of each site, each sample at one site.
        annotated: (S, C) bool, which site annotates which class.
        noise: how many sites are noisy, and how much.
        seed: 0 or more.

    Returns:
        (N, C) labels, changed in annotated classes of noisy sites alone, and each site's rate, 0 of a clean one.

    Raises:
        FedMendError: a share or rate out of its range.
    """
    _, rates = draw_noisy_sites(
        len(parts), noisy_share=noise.noisy_share, low=noise.noise_low, high=noise.noise_high, seed=seed
    )
    shown = labels.copy()
    for s in np.flatnonzero(rates).tolist():
        for c in np.flatnonzero(annotated[s]).tolist():
            shown[parts[s], c] = swap_labels(labels[parts[s], c], rates[s], seed=(seed, 2, s, c))
    return shown, rates.tolist()
