"""Lesions on slices."""

import numpy as np
import pytest

from fedmend.methods.shared.lesions import count_components, threshold_for, whole_components


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


def test_a_lesion_reaches_as_far_as_its_extent_and_not_to_the_next_slice():
    p = np.zeros((2, 4, 6))
    p[0, 1, :4], p[0, 3, 5], p[1, 1, 0] = (0.9, 0.6, 0.6, 0.4), 0.7, 0.6
    assert np.argwhere(whole_components(p, 0.8, extent=0.5)).tolist() == [[0, 1, 0], [0, 1, 1], [0, 1, 2]]
    assert np.argwhere(whole_components(p, 0.8, extent=0.8)).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize(("number", "threshold"), [(0, 0.901), (1, 0.801), (2.5, 0.601), (3, 0.5)])
def test_a_threshold_lets_at_most_a_number_of_pixels_through(number, threshold):
    parts = [np.array([0.9005, 0.2]), np.array([0.8005, 0.6005, 0.4])]
    assert threshold_for(parts, number) == pytest.approx(threshold)


def test_no_threshold_below_1_is_high_enough_for_pixels_that_are_certain():
    assert threshold_for([np.ones(3)], 2) == 1


def test_a_pixel_at_threshold_or_extent_itself_is_not_above_it():
    probability = np.array([[[0.5, 0.75, 0.0, 0.875, 0.5]]])
    assert whole_components(probability, 0.75, extent=0.5).astype(int).tolist() == [[[0, 0, 0, 1, 0]]]
