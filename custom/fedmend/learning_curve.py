"""A site's learning curve in the segmentation of lesions, and the line that it is compared with."""

from collections.abc import Mapping

import numpy as np


def soft_iou(dice_loss: float) -> float:
    """(1 - l) / (1 + l), the Jaccard index of a soft Dice 1 - l, for a Dice loss l in 0..1."""
    return (1 - dice_loss) / (1 + dice_loss)


def fit_line(curve: Mapping[int, float]) -> tuple[float, float] | None:
    """Least squares through a learning curve, Eq. (6), Xiang et al., MICCAI 2024.

    Args:
        curve: round, from 0 → IoU.

    Returns:
        Value in round 0 and slope per round; slope 0 for one point, None without any.
    """
    if len(curve) < 2:
        return (next(iter(curve.values())), 0.0) if curve else None
    rounds = sorted(curve)
    value, slope = np.polynomial.polynomial.polyfit(rounds, [curve[r] for r in rounds], 1)
    return float(value), float(slope)
