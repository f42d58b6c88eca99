"""Masks of volumes, measured by hand."""

import dataclasses
import tracemalloc

import nibabel
import numpy as np
import pytest
import torch
from monai.metrics import compute_panoptic_quality
from nifti_factories import lesion, make_volume_site, open_volumes

from fedmend.evaluation.masks import OVERLAP, _lesions, _numbered, _volume, measure_masks
from fedmend.method import Site


class Says(torch.nn.Module):
    """Gives these masks, slice by slice."""

    def __init__(self, masks):
        super().__init__()
        self.masks, self.done = torch.from_numpy(masks.astype(np.float32)), 0

    def forward(self, images):
        found = self.masks[self.done : self.done + len(images)]
        self.done += len(images)
        return images, torch.stack([-found, found - 0.5], 1)


def measured(folder, test, change, affine):
    split = open_volumes(make_volume_site(folder / "site", test=test, affine=affine)).evaluation["test"]
    said = split.masks.astype(bool).copy()
    change(said)
    return measure_masks(Says(said), split, Site("site-1", torch.device("cpu"), None, None, None, 3))


def test_surfaces_are_measured_in_millimetres_and_lesions_one_by_one(tmp_path):
    mask = lesion(((1, 3), (1, 3), (0, 2)), ((5, 7), (5, 7), (3, 4)))

    def change(said):
        said[3] = False  # misses the second lesion
        said[:2, 0, 7] = True  # and finds one in a corner

    found = measured(tmp_path, [mask, lesion()], change, np.diag([1.0, 2.0, 5.0, 1.0]))
    assert found.lesions[:, 0].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert found.dice[0, 0] == pytest.approx(2 * 8 / (12 + 10))
    assert found.dice[1, 0] == 1
    assert found.hd95[1, 0] == 0
    assert found.hd95[0, 0] > 5
    assert found.pixels[:, 0].sum(0).tolist() == [8 + 12, 10 + 12, 12 + 12]


def test_a_shift_by_one_row_is_the_height_of_a_row(tmp_path):
    def change(said):
        said[:] = np.roll(said, 1, axis=1)

    found = measured(tmp_path, [lesion(((2, 5), (2, 5), (1, 3)))], change, np.diag([1.0, 2.0, 5.0, 1.0]))
    assert found.hd95.tolist() == [[2.0]]


TURNED = np.array([[0, 2.0, 0, 0], [1, 0, 0, 0], [0, 0, 5, 0], [0, 0, 0, 1]])  # axes of the file: to the front, right


@pytest.mark.parametrize(
    ("affine", "edges", "millimetres"),
    [
        (np.diag([1.0, 2.0, 5.0, 1.0]), (8, 8), (5, 2, 1)),
        (np.diag([1.0, 2.0, 5.0, 1.0]), (8, 16), (5, 4, 1)),  # 16 rows become 8
        (TURNED, (8, 8), (5, 1, 2)),
        (TURNED, (16, 8), (5, 2, 2)),
    ],
)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_shift_by_one_slice_row_or_column_is_its_size(tmp_path, affine, edges, millimetres, axis):
    def change(said):
        said[:] = np.roll(said, 1, axis=axis)

    mask = np.zeros((*edges, 4), bool)
    mask[tuple(slice(edge // 4, edge * 5 // 8) for edge in edges)] = True
    mask[:, :, [0, 3]] = False
    assert measured(tmp_path, [mask], change, affine).hd95.tolist() == [[millimetres[axis]]]


def test_classes_are_measured_apart_and_a_single_pixel_far_off_is_beyond_the_percentile(tmp_path):
    split = open_volumes(make_volume_site(tmp_path / "site", test=[lesion()], affine=np.eye(4))).evaluation["test"]
    masks = np.zeros(split.masks.shape, dtype=np.uint8)
    masks[0, 1:6, 1:6], masks[1, 2, 2] = 1, 2
    found = np.where(masks == 1, masks, 0)
    found[0, 7, 7], found[1, 7, 0] = 1, 2
    annotated = (True, True, False)
    split = dataclasses.replace(split, masks=masks, plane=split.plane + 2, annotated=annotated)  # begins higher up
    assert _volume(split, 0, found, 1) == (pytest.approx(2 * 25 / 51), 0, [1, 1, 0])
    dice, far, lesions = _volume(split, 0, found, 2)
    assert (dice, far, lesions) == (0, pytest.approx(29**0.5), [0, 1, 1])
    dice, far, lesions = _volume(split, 0, found, 3)
    assert np.isnan([dice, far]).all()
    assert lesions == [0, 0, 0]


@pytest.mark.parametrize("unit", ["micron", "unknown"])
def test_surfaces_of_a_volume_in_micrometres_are_measured_in_millimetres(tmp_path, unit):
    def change(said):
        said[:] = np.roll(said, 1, axis=1)
        for file in (tmp_path / "site").rglob("*.nii.gz"):
            image = nibabel.load(file)
            image.header.set_xyzt_units("micron" if file.parent.name == "images" else unit)  # masks may lose it
            nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine, image.header), file)

    found = measured(tmp_path, [lesion(((2, 5), (2, 5), (1, 3)))], change, np.diag([1000.0, 2000.0, 5000.0, 1.0]))
    assert found.hd95.tolist() == [[2.0]]


@pytest.mark.parametrize(("size", "counts"), [(10, [1, 0, 0]), (11, [0, 1, 1])])
def test_a_lesion_of_which_a_tenth_is_found_is_found(tmp_path, size, counts):
    def change(said):
        said[0] &= np.cumsum(said[0]).reshape(8, 8) <= 1

    mask = np.zeros((8, 8, 4), bool)
    mask[:, 3, 0], mask[: size - 8, 4, 0] = True, True
    assert measured(tmp_path, [mask], change, np.eye(4)).lesions.tolist() == [[counts]]


def test_a_volume_without_lesion_has_no_surface_and_no_dice(tmp_path):
    found = measured(tmp_path, [np.zeros((8, 8, 4), bool)], lambda said: None, np.eye(4))
    assert np.isnan([found.dice[0, 0], found.hd95[0, 0]]).all()
    assert found.lesions.tolist() == [[[0, 0, 0]]]


def test_lesions_that_touch_at_a_corner_are_one():
    mask = np.zeros((3, 3, 3), dtype=bool)
    mask[0, 0, 0] = mask[1, 1, 1] = mask[2, 0, 2] = True
    assert int(_numbered(mask).max()) == 1


def test_a_prediction_over_two_lesions_finds_one_of_them():
    true, said = np.zeros((2, 1, 1, 9), dtype=np.int32)
    true[..., :3], true[..., 4:8], said[..., :8] = 1, 2, 1
    assert _lesions(said, true) == [1, 0, 1]
    assert _lesions(true, said) == [1, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_lesions_are_counted_as_by_monai(seed):
    drawn = np.random.default_rng(seed).random((2, 4, 12, 12)) < 0.06
    said, true = _numbered(drawn[0] | (drawn[1] & (drawn[0].cumsum(2) % 2 > 0))), _numbered(drawn[1])
    how = {"match_iou_threshold": OVERLAP - 1e-6, "output_confusion_matrix": True}
    wanted = compute_panoptic_quality(torch.from_numpy(said), torch.from_numpy(true), **how)[:3]
    assert _lesions(said, true) == wanted.tolist()


def test_memory_for_lesions_does_not_grow_with_their_number():
    many = np.zeros((16, 64, 64), dtype=np.int32)
    many[::4, ::8, ::8] = np.arange(1, 257).reshape(4, 8, 8)
    tracemalloc.start()
    try:
        assert _lesions(many, many) == [256, 0, 0]
        assert tracemalloc.get_traced_memory()[1] < 20 * many.nbytes
    finally:
        tracemalloc.stop()
