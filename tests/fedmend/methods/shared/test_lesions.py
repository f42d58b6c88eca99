"""Lesions counted on slices."""

import numpy as np

from fedmend.methods.shared.lesions import count_components


def planes(*marked):
    """A slice for each argument, a list of (row, column) of its lesion pixels."""
    masks = np.zeros((len(marked), 16, 16), dtype=bool)
    for mask, pixels in zip(masks, marked, strict=True):
        for row, column in pixels:
            mask[row, column] = True
    return masks


def test_components_are_counted_slice_by_slice_with_8_neighbours():
    masks = planes([(0, 0), (1, 1), (5, 5)], [(0, 0)])  # diagonal neighbours; the same place on the next slice
    assert count_components(masks) == 3


def test_components_below_the_smallest_size_do_not_count():
    masks = planes([(0, 0), (0, 1), (0, 2), (5, 5), (5, 6), (9, 9)])
    assert [count_components(masks, smallest=n) for n in (1, 2, 3, 4)] == [3, 2, 1, 0]


def test_slices_without_lesion_have_none():
    assert count_components(planes([], [])) == 0
