"""Lesions on slices as connected components."""

from collections.abc import Iterable

import numpy as np
from scipy import ndimage

NEIGHBOURS = np.zeros((3, 3, 3), dtype=bool)  # of a pixel: the 8 on its slice; nothing connects two slices
NEIGHBOURS[1] = True
STEPS = 500  # of a threshold between 0.5 and 1


def count_components(masks: np.ndarray, *, smallest: int = 1) -> int:
    """Number of lesions on slices: 8-connected components of each slice for itself.

    Args:
        masks: (N, H, W) bool.
        smallest: pixels from which a component counts.
    """
    labels, _ = ndimage.label(masks, NEIGHBOURS)
    return int((np.bincount(labels.ravel())[1:] >= smallest).sum())


def whole_components(probability: np.ndarray, threshold: float, *, extent: float) -> np.ndarray:
    """Lesions on slices, each as far as it may reach (hysteresis).

    Args:
        probability: (N, H, W) in 0..1.
        threshold: a lesion has a pixel above it.
        extent: and reaches as far as 8-connected pixels above this, at most ``threshold``; ``threshold`` itself: no
            farther.

    Returns:
        (N, H, W) bool.
    """
    labels, number = ndimage.label(probability > extent, NEIGHBOURS)
    kept = np.zeros(number + 1, dtype=bool)
    kept[labels[probability > threshold]] = True
    return kept[labels]


def threshold_for(probabilities: Iterable[np.ndarray], number: float) -> float:
    """The lowest threshold from 0.5 on, in steps of 0.001, above which are at most so many pixels; 1: there is none.

    Args:
        probabilities: (P,) of pixels, in 0..1, in parts.
        number: of pixels.
    """
    counts = np.zeros(STEPS)
    for values in probabilities:
        counts += np.histogram(values, STEPS, (0.5, 1))[0]
    fitting = int((np.cumsum(counts[::-1]) <= number).sum())
    return float(np.linspace(0.5, 1, STEPS + 1)[STEPS - fitting])
