"""Epsilon of the steps that a site has spent, by both accountants of opacus.

Both give an upper bound of the same epsilon, whatever the data are, so the smaller one holds. RDP (Mironov, 2017)
always gives one. PRV (Gopi et al., NeurIPS 2021) composes the privacy loss itself and is tighter; it computes
numerically, and what counts is its estimate plus its bound of the error. Its memory grows without limit where hardly
any noise meets many steps, so it is asked only where it takes a second or two at most.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

Spent = tuple[float, float, int]  # noise multiplier, sampling rate, steps
RELATIVE_ERROR, LARGEST_ERROR = 0.01, 0.1  # of PRV: as a share of RDP's epsilon, and at most
# Where PRV is asked: its numbers are float64, and its grid has at most some millions of points.
LARGEST_EPSILON = 100.0
SMALLEST_DELTA = 1e-9
MOST_STEPS = 20_000
MOST_PARTS = 10


@dataclass(frozen=True)
class Epsilon:
    """Epsilon with the accountant that it is from.

    Attributes:
        rdp: by RDP.
        prv: by PRV, with the bound of its error; infinite: not computed.
    """

    rdp: float
    prv: float = math.inf

    @property
    def value(self) -> float:
        """The smaller of both, which is the one that counts."""
        return min(self.rdp, self.prv)

    def __str__(self) -> str:
        return epsilon_text(self.value, self.rdp)


def epsilon_text(epsilon: float, rdp: float) -> str:
    """Epsilon in three digits, and whose it is: ``7.9 (PRV; RDP 9.03)``, or ``9.03 (RDP)``."""
    return f"{epsilon:.3g} (PRV; RDP {rdp:.3g})" if epsilon < rdp else f"{rdp:.3g} (RDP)"


def epsilon_of(spent: Sequence[Spent], delta: float) -> Epsilon:
    """What all these steps together cost; needs the package opacus."""
    import numpy as np
    from opacus.accountants import RDPAccountant

    history = [part for part in spent if part[2]]
    if not history:
        return Epsilon(0.0)
    accountant = RDPAccountant()
    accountant.history = history
    # A bound from the edge of the orders is still a bound, and the logarithm of 0 is where everybody is in a step.
    with warnings.catch_warnings(), np.errstate(divide="ignore"):
        warnings.simplefilter("ignore")
        rdp = float(accountant.get_epsilon(delta))
        few = len(history) <= MOST_PARTS and sum(steps for _, _, steps in history) <= MOST_STEPS
        known = few and rdp <= LARGEST_EPSILON and delta >= SMALLEST_DELTA
        return Epsilon(rdp, _prv(history, delta, min(RELATIVE_ERROR * rdp, LARGEST_ERROR)) if known else math.inf)


def _prv(history: list[Spent], delta: float, error: float) -> float:
    """The upper bound; infinite where opacus finds its own computation not exact enough."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = history
    try:
        epsilon = float(accountant.get_epsilon(delta, eps_error=error))
    except (ValueError, RuntimeError):
        return math.inf
    return epsilon if 0 < epsilon < math.inf else math.inf
