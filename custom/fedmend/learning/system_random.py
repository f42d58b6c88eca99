"""Random numbers that nobody can guess, repeat or work out from earlier ones: the noise and draws of a private site.

opacus' ``secure_mode`` does this with torchcsprng, which has no release for today's PyTorch. A statistical generator
with a secret seed is not enough: a server whose weights make every gradient zero sees the noise itself, and could work
out the generator's state from it and with it all noise to come.
"""

import os
from collections.abc import Callable

import numpy as np

PARTS = 4  # normal numbers in the sum that makes one; opacus' n = 2 (Holohan & Braghin 2021, section 5.1)


class SystemRandom:
    """Numbers made of fresh bytes of the operating system's generator, which keeps no state in this process. So neither
    a copy of the process nor a run that goes on after it was killed repeats any of them.

    Args:
        source: gives so many random bytes; another than ``os.urandom`` is for tests.
    """

    def __init__(self, source: Callable[[int], bytes] = os.urandom):
        self._source = source

    def uniform(self, count: int) -> np.ndarray:
        """Numbers above 0 and below 1, (count,) float64: the middles of 2^52 equal parts."""
        whole = np.frombuffer(self._source(8 * count), np.uint64) >> np.uint64(12)
        return (whole + 0.5) * 2.0**-52

    def normal(self, count: int) -> np.ndarray:
        """Numbers of the standard normal distribution, (count,) float64. Each is a sum of four, halved, so that its
        last digits do not tell which numbers a computer can make and which it cannot."""
        from scipy.special import ndtri

        total = ndtri(self.uniform(count))
        for _ in range(PARTS - 1):
            total += ndtri(self.uniform(count))
        return total / PARTS**0.5

    def choice(self, length: int, count: int) -> np.ndarray:
        """So many different numbers below ``length``, (count,) int64, each set with the same chance."""
        return np.argsort(self.uniform(length))[:count]
