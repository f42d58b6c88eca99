"""Who annotates what: label counts of a site, small ones held back; :mod:`fedmend.report.audit` shows them."""

from dataclasses import dataclass

import numpy as np

COUNTS = "annotated", "positive", "missing"
HELD_BACK = -1


@dataclass(frozen=True)
class SiteLabels:
    """What one site says.

    Attributes:
        samples: training samples; 0 at a site that could not be counted.
        counts: (3, C) int64 in the order of ``COUNTS``; ``HELD_BACK`` where the site does not tell.
        phantom: the data are synthetic.
        problem: why the site could not be counted, or empty.
    """

    samples: int
    counts: np.ndarray
    phantom: bool = False
    problem: str = ""


def hold_back(counts: np.ndarray, *, min_count: int, one_label: bool) -> np.ndarray:
    """Takes out every count below ``min_count``, and those that it could be computed from.

    A count of zero is passed on, because it describes no patient. Annotated and missing samples add up to all samples,
    so these two are told or held back together. Annotated samples minus the positive ones are the negative ones; where
    these are too few, the positive ones are held back. With one label per sample, the positive samples of all classes
    add up to the annotated ones, so where one number is held back, the smallest of the others is held back too.

    Args:
        counts: (3, C) in the order of ``COUNTS``.
        min_count: fewest samples that a number may describe.
        one_label: each sample has one class, see :class:`fedmend.kinds.base.Kind`.

    Returns:
        (3, C) int64 with ``HELD_BACK`` in place of numbers that stay at the site.
    """
    annotated, positive, missing = counts

    def few(number: np.ndarray) -> np.ndarray:
        return (number > 0) & (number < min_count)

    unknown = few(annotated) | few(missing)
    hidden = few(positive) | few(annotated - positive)
    others = np.flatnonzero(~hidden & (positive > 0))
    if one_label and len(others) and (hidden | unknown).any():
        hidden[others[positive[others].argmin()]] = True
    return np.where(np.stack([unknown, hidden, unknown]), HELD_BACK, counts).astype(np.int64)
