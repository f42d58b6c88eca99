"""How the weight of a loss that needs a good model grows over the rounds."""

import math


def gaussian_ramp_up(round_num: int, *, begin: float, end: float, maximum: float) -> float:
    """maximum * exp(-5 (1 - t)^2), t = 0 at round ``begin`` and 1 from ``end`` on (Laine and Aila, ICLR 2017).

    Args:
        round_num: absolute round.
        begin: round of the start.
        end: round from which the maximum holds; not after ``begin``: the maximum holds at once.
        maximum: largest weight, >= 0.
    """
    t = 1.0 if end <= begin else (min(max(round_num, begin), end) - begin) / (end - begin)
    return maximum * math.exp(-5 * (1 - t) ** 2)
