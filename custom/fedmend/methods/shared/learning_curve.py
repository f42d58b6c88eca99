"""A site's learning curve in the segmentation of lesions, and the line that it is compared with."""

from collections.abc import Mapping

import numpy as np

from fedmend.errors import FedMendError


def soft_iou(dice_loss: float) -> float:
    """(1 - l) / (1 + l), the Jaccard index of a soft Dice 1 - l, for a Dice loss l in 0..1."""
    return (1 - dice_loss) / (1 + dice_loss)


def fit_line(curve: Mapping[int, float], first: int = 0) -> tuple[float, float]:
    """Least squares through a learning curve, Eq. (6), Xiang et al., MICCAI 2024.

    Args:
        curve: round, from 0 → IoU.
        first: rounds before it do not count, unless fewer than two are left without them.

    Returns:
        Value in round 0 and slope per round.

    Raises:
        FedMendError: fewer than two rounds in all.
    """
    if len(curve) < 2:
        raise FedMendError(f"learning curve: expected at least two rounds, which a line needs, got {len(curve)}")
    late = sorted(r for r in curve if r >= first)
    rounds = late if len(late) >= 2 else sorted(curve)
    value, slope = np.polynomial.polynomial.polyfit(rounds, [curve[r] for r in rounds], 1)
    return float(value), float(slope)
