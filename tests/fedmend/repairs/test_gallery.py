import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from fedmend.data.slices import VolumeSplit
from fedmend.repairs.gallery import ADDED, ANNOTATED, COMPLETE, PICTURE, gallery_page

SIZE = 12
# Three volumes with two slices each: slices 5 and 6 of the first, and so on.
CASE, PLANE = np.array([0, 0, 1, 1, 2, 2]), np.array([5, 6, 7, 8, 9, 10])


def make_split():
    """Every slice is dark on the left and bright on the right, and has one annotated pixel at (2, 3)."""
    images = np.zeros((6, SIZE, SIZE), dtype=np.float16)
    images[:, :, SIZE // 2 :] = 1
    masks = np.zeros((6, SIZE, SIZE), dtype=np.uint8)
    masks[:, 2, 3] = 1
    return VolumeSplit("datalist.json", (), images, masks, CASE, PLANE, torch.device("cpu"))


def with_added(split, pixels):
    """The masks in force when ``pixels`` of row 9 are added to each slice."""
    target = split.masks > 0
    for row, number in enumerate(pixels):
        target[row, 9, :number] = True
    return target


def pictures(page):
    """The pictures in their order as (PICTURE, PICTURE, 3) uint8."""
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in found]


def names(page):
    return re.findall("<h2>(.*?)</h2>", page)


def has(picture, colour):
    return bool((picture == np.array(colour, dtype=np.uint8)).all(2).any())


def test_slices_with_the_most_added_pixels_are_shown_one_of_each_volume():
    split = make_split()
    page = gallery_page(split, with_added(split, [2, 3, 0, 5, 1, 1]), None, phantom=False)
    assert names(page) == ["Case 2, slice 8", "Case 1, slice 6", "Case 3, slice 9"]
    page = gallery_page(split, with_added(split, [2, 3, 0, 5, 1, 1]), None, phantom=False, cases=1)
    assert names(page) == ["Case 2, slice 8"]
    assert "Below: the slice with the most added pixels" in page


def test_a_volume_to_which_nothing_was_added_is_left_out():
    split = make_split()
    assert names(gallery_page(split, with_added(split, [0, 0, 0, 0, 0, 4]), None, phantom=False)) == [
        "Case 3, slice 10"
    ]


def test_where_nothing_was_added_the_largest_annotation_is_shown():
    split = make_split()
    split.masks[4, 5, 2:6] = 1
    page = gallery_page(split, split.masks > 0, None, phantom=False, cases=2)
    assert names(page) == ["Case 3, slice 9", "Case 1, slice 5"]
    assert "<h1>Masks without a correction</h1>" in page
    assert "10 pixels are annotated in 6 training slices; nothing has been added." in page
    assert "added by the correction" not in page
    assert not any(has(picture, ADDED) for picture in pictures(page))


def test_a_slice_is_shown_whole_and_its_part_without_and_with_the_marks():
    split = make_split()
    complete = with_added(split, [0, 0, 0, 2, 0, 0])
    whole, plain, marked = pictures(gallery_page(split, with_added(split, [0, 0, 0, 4, 0, 0]), complete, phantom=False))
    assert whole.shape == plain.shape == marked.shape == (PICTURE, PICTURE, 3)
    assert [has(marked, colour) for colour in (ANNOTATED, ADDED, COMPLETE)] == [True] * 3
    assert not any(has(plain, colour) for colour in (ANNOTATED, ADDED, COMPLETE))
    assert whole[240, 5].tolist() == [255, 255, 255]  # the right of the array, the patient's right, is on the left
    assert whole[240, -50].tolist() == [0, 0, 0]


def test_without_complete_masks_no_word_and_no_line_of_them_appears():
    split = make_split()
    page = gallery_page(split, with_added(split, [0, 0, 0, 4, 0, 0]), None, phantom=False)
    assert "complete annotation" not in page
    assert not has(pictures(page)[2], COMPLETE)


def test_added_pixels_are_counted_and_compared_with_the_complete_masks():
    split = make_split()
    complete = with_added(split, [0, 0, 0, 3, 5, 0])
    page = gallery_page(split, with_added(split, [0, 0, 0, 4, 0, 0]), complete, phantom=False)
    assert "6 pixels are annotated in 6 training slices; the correction added 4." in page
    assert "3 of them (75%) are so in the complete annotation, 38% of what was missing." in page  # 3 of 8
    assert "<p>1 pixels annotated, 4 added, 3 of them in the complete annotation; 0 still missing.</p>" in page
    page = gallery_page(split, with_added(split, [0, 0, 0, 4, 0, 0]), split.masks > 0, phantom=False)
    assert "0 of them (0%) are so in the complete annotation, where nothing was missing." in page


def test_a_pixel_added_to_the_wrong_structure_is_not_so_in_the_complete_annotation():
    split = make_split()
    target, complete = split.masks.copy(), split.masks.copy()
    target[0, 9, :4], complete[0, 9, :4] = 2, (2, 2, 2, 1)
    page = gallery_page(split, target, complete, phantom=True)
    assert "the correction added 4. 3 of them (75%) are so in the complete annotation, 75% of what was missing." in page
    assert "4 added, 3 of them in the complete annotation" in page


@pytest.mark.parametrize("phantom", [True, False])
def test_the_page_says_that_it_stays_at_the_site_and_only_a_phantom_says_phantom(phantom):
    split = make_split()
    page = gallery_page(split, with_added(split, [1, 0, 0, 0, 0, 0]), None, phantom=phantom)
    assert "<strong>This page stays at the site: it is no part of what the site sends.</strong>" in page
    assert ('<span class="badge">PHANTOM</span>' in page) is phantom
    assert ("PHANTOM" in page) is phantom
    assert ("It shows images of patients." in page) is not phantom


def test_the_page_is_the_same_each_time_and_asks_for_nothing_outside_itself():
    split = make_split()
    target = with_added(split, [1, 0, 0, 0, 0, 0])
    page = gallery_page(split, target, None, phantom=False)
    assert gallery_page(split, target, None, phantom=False) == page
    assert "://" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in page
    assert all(link.startswith("data:image/png;base64,") for link in re.findall(r'(?:src|href)="([^"]+)"', page))
