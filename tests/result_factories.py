"""A site's results, right until a test changes something."""

import numpy as np

from fedmend.kinds.multilabel import BINS
from fedmend.messages import SiteResult
from fedmend.preprocessing import Preprocessing

WEIGHTS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, dtype=np.float32)}

PREPARED = Preprocessing((40.0, 80.0), False, 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), "CT")


def good_result(**changes):
    given = {"site": "site-1", "round_num": 4, "samples": 7, "weights": WEIGHTS, "loss": 0.25}
    return SiteResult(**{**given, **changes})


def single_label_counts(matrix):
    """(C, C + 2 * BINS) counts of this confusion matrix; samples of a class score higher for it than the others."""
    matrix = np.array(matrix)
    histograms = np.zeros((len(matrix), 2, BINS), dtype=np.int64)
    histograms[:, 1, 600] = matrix.sum(1)
    histograms[:, 0, 400] = matrix.sum() - matrix.sum(1)
    return np.hstack([matrix, histograms.reshape(len(matrix), -1)])


def good_census(**changes):
    given = {
        "annotated": np.array([True, False]),
        "positives": np.array([4, 0]),
        "sizes": {"train": 7, "val": 2},
        "data": {"train": "0" * 32, "val": "1" * 32},
        "kind": "multilabel",
        "phantom": True,
        "preprocessing": PREPARED.told(),
        "min_federation": 1,
    }
    return {**given, **changes}


def good_repairs(**changes):
    return {**{name: np.array([0, 2]) for name in ("positive", "negative", "untagged")}, **changes}
