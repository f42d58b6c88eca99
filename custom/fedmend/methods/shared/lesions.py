"""Lesions on slices, counted as connected components."""

import numpy as np
from scipy import ndimage

NEIGHBOURS = np.zeros((3, 3, 3), dtype=bool)  # of a pixel: the 8 on its slice; nothing connects two slices
NEIGHBOURS[1] = True


def count_components(masks: np.ndarray, *, smallest: int = 1) -> int:
    """Number of lesions on slices: 8-connected components of each slice for itself.

    Args:
        masks: (N, H, W) bool.
        smallest: pixels from which a component counts.
    """
    labels, _ = ndimage.label(masks, NEIGHBOURS)
    return int((np.bincount(labels.ravel())[1:] >= smallest).sum())
