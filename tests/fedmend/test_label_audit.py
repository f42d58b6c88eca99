import numpy as np
import pytest

from fedmend.label_audit import HELD_BACK, hold_back


def columns(*classes):
    """(3, C) counts from annotated, positive and missing of each class."""
    return np.array(classes).T


def told(*classes, min_count=5, one_label=False):
    """Annotated, positive and missing of each class after the small ones were held back; None is held back."""
    left = hold_back(columns(*classes), min_count=min_count, one_label=one_label)
    return [tuple(None if n == HELD_BACK else n for n in c) for c in left.T.tolist()]


@pytest.mark.parametrize(
    ("counts", "left"),
    [
        ((100, 40, 0), (100, 40, 0)),
        ((100, 5, 5), (100, 5, 5)),
        ((0, 0, 100), (0, 0, 100)),
        ((100, 0, 0), (100, 0, 0)),
        ((100, 4, 0), (100, None, 0)),
        ((100, 97, 0), (100, None, 0)),  # three negative ones
        ((100, 40, 3), (None, 40, None)),
        ((3, 2, 100), (None, None, None)),
        ((3, 0, 100), (None, None, None)),
    ],
)
def test_small_counts_and_what_tells_them_are_held_back(counts, left):
    assert told(counts) == [left]


@pytest.mark.parametrize("min_count", [0, 1])
def test_a_site_without_a_minimum_tells_everything(min_count):
    assert told((100, 1, 2), min_count=min_count) == [(100, 1, 2)]


def test_a_class_says_nothing_about_another_one_where_samples_have_several_labels():
    assert told((100, 4, 0), (100, 30, 0), (100, 20, 0)) == [(100, None, 0), (100, 30, 0), (100, 20, 0)]


@pytest.mark.parametrize(
    ("counts", "positive"),
    [
        ([(100, 4, 0), (100, 60, 0), (100, 36, 0), (100, 0, 0)], [None, 60, None, 0]),
        ([(100, 50, 3), (100, 30, 3), (100, 20, 3)], [50, 30, None]),
        ([(100, 50, 0), (100, 50, 0)], [50, 50]),
        ([(100, 97, 0), (100, 3, 0)], [None, None]),
    ],
)
def test_where_samples_have_one_label_a_sum_does_not_tell_what_was_held_back(counts, positive):
    assert [c[1] for c in told(*counts, one_label=True)] == positive
