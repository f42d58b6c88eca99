"""How long the runs of a comparison take: estimates before the first one, measured seconds afterwards, and a limit."""

import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

from fedmend.basics.page import duration
from fedmend.errors import FedMendError

UNITS = {"h": 3600, "m": 60, "s": 1}


def parse_duration(text: str) -> float:
    """Seconds of ``2h``, ``90m`` or ``300s``.

    Raises:
        ValueError: anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hms])", text)
    if not found or not float(found[1]):
        raise ValueError(f"expected a time like 2h, 90m or 300s, got {text!r}")
    return float(found[1]) * UNITS[found[2]]


def shares(seconds: float, count: int) -> Iterator[float]:
    """The time of a call for ``count`` comparisons, one after the other: each may take an equal part of what is left.

    Args:
        seconds: of all together, from the first question on.
        count: comparisons.
    """
    began = time.monotonic()
    for left in range(count, 0, -1):
        yield max(seconds - (time.monotonic() - began), 0.0) / left


class Budget:
    """The time for a comparison; it begins when it is made.

    Args:
        seconds: no run is begun that would end after them.
        estimates: row → seconds of a run, before any was measured.
    """

    def __init__(self, seconds: float = math.inf, estimates: Mapping[str, float] | None = None):
        self._seconds, self._estimates = seconds, dict(estimates or {})
        self._seen: dict[str, list[float]] = {}
        self._began = time.monotonic()

    def note(self, row: str, seconds: float) -> None:
        """A run of the row took so long."""
        self._seen.setdefault(row, []).append(seconds)

    def expected(self, row: str) -> float:
        """Seconds of a run of this row: the mean of those that ran; before, the estimate, as far as estimates of other
        rows were right; 0 where nothing is known."""
        if row in self._seen:
            return statistics.fmean(self._seen[row])
        means = {r: statistics.fmean(seen) for r, seen in self._seen.items()}
        ratios = [mean / self._estimates[r] for r, mean in means.items() if self._estimates.get(r)]
        if row in self._estimates:
            return self._estimates[row] * (statistics.fmean(ratios) if ratios else 1.0)
        return statistics.fmean(means.values()) if means else 0.0

    def together(self, rows: Sequence[str], width: int) -> float:
        """Seconds of a run of each of these rows, ``width`` of them side by side."""
        each = [self.expected(row) for row in rows]
        return max([sum(each) / width, *each], default=0.0)

    def check(self, rows: Sequence[str], width: int) -> None:
        """Refuses a budget in which not one run of each row fits.

        Raises:
            FedMendError: says what they would need.
        """
        need = self.together(rows, width)
        if need > self._seconds:
            raise FedMendError(
                f"--budget: expected time for one run of each of {len(rows)} rows, about {duration(need)} by an"
                f" estimate, got {duration(self._seconds)}"
            )

    def fits(self, row: str) -> bool:
        """Whether a run that begins now ends in time."""
        return time.monotonic() - self._began + self.expected(row) <= self._seconds
