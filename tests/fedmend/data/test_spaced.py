"""Volumes at one spacing, and their patches."""

import nibabel
import numpy as np
import pytest
import torch
from factories import refused
from nifti_factories import lesion, make_volume_site

from fedmend.data.card import load_card
from fedmend.data.inputs import Inputs
from fedmend.data.slices import load_complete_masks, load_volumes, plane_of, planes_of
from fedmend.data.spaced import Grid, Patches, framed, resampled, slide, spaced_planes, unframed, upright
from fedmend.data.volumes import axial_planes
from fedmend.repairs.repaired_volumes import write_repaired

CPU = torch.device("cpu")
THICK = np.diag([1.0, 2.0, 4.0, 1.0])  # mm of a voxel
RNG = np.random.default_rng(0)


def opened(folder, spacing=(1.0, 2.0, 1.5), size=16, **how):
    inputs = Inputs(image_size=size, spacing=spacing, patch=(8, 8, 4))
    return load_volumes(load_card(folder, "site-1"), ("lesion",), inputs.opening(folder.parent / "cache", CPU, **how))


def test_a_grid_keeps_the_body_and_changes_the_voxels():
    grid = Grid(THICK, (8, 8, 5)).spaced((2.0, 2.0, 1.0))
    assert grid.shape == (4, 8, 17)  # MONAI's rule: from the middle of the first voxel to that of the last
    assert np.abs(grid.affine[:3, :3]).tolist() == np.diag([2.0, 2.0, 1.0]).tolist()


def test_a_grid_is_that_of_the_voxels_in_ras_whatever_the_order_of_the_file():
    affine = np.array([[0, -2.0, 0, 9], [0, 0, 3.0, 1], [-4.0, 0, 0, 5], [0, 0, 0, 1]])
    image = nibabel.as_closest_canonical(nibabel.Nifti1Image(np.zeros((5, 6, 7), np.uint8), affine))
    grid = Grid.oriented(affine, (5, 6, 7))
    assert grid.shape == image.shape == (6, 7, 5)
    assert np.allclose(grid.affine, image.affine)


def test_there_and_back_a_mask_is_what_it_was():
    grid, mask = Grid(THICK, (8, 8, 5)), (RNG.random((8, 8, 5)) > 0.5).astype(np.uint8) * 3
    fine = grid.spaced((0.5, 1.0, 1.0))
    larger = resampled(mask, grid, fine, nearest=True)
    assert larger.shape == fine.shape
    assert (resampled(larger, fine, grid, nearest=True) == mask).all()
    ramp = np.arange(5, dtype=np.float32) * np.ones((8, 8, 1), np.float32)
    assert np.allclose(resampled(ramp, grid, grid.spaced((1, 2, 2)), nearest=False)[4, 4], np.arange(9) / 2, atol=1e-4)


@pytest.mark.parametrize(("unit", "size"), [("meter", 0.001), ("micron", 1000.0), ("mm", 1.0), ("unknown", 1.0)])
def test_the_grid_of_a_file_is_in_mm_whatever_the_unit_of_its_header(tmp_path, unit, size):
    image = nibabel.Nifti1Image(np.zeros((8, 8, 5), np.uint8), np.diag([size, size, size, 1]) @ THICK)
    image.header.set_xyzt_units(unit)
    nibabel.save(image, tmp_path / "a.nii")
    assert np.allclose(Grid.of_file(tmp_path / "a.nii").affine, THICK)


def test_a_job_that_frames_a_volume_with_more_pixels_than_any_has_is_refused_before_memory_is_taken():
    sentence = "case, image: expected at most 536870912 pixels in a volume, got 541065216, 129 slices of 2048 x 2048"
    with refused(f"{sentence} (image_size)"):
        spaced_planes(
            RNG.random((8, 8, 129)), Grid(np.eye(4), (8, 8, 129)), "case", window=None, size=2048, spacing=(1, 1, 1)
        )
    with refused(f"{sentence} (image_size)"):
        planes_of(RNG.random((8, 8, 129)).astype(np.float32), "case", window=None, size=2048)


@pytest.mark.parametrize(
    ("affine", "sentence"),
    [
        (
            np.diag([1000, 2000, 4, 1]),
            "case, image: expected slices of at most 16 pixels (image_size) at this spacing, got 7001 x 7001",
        ),
        (np.diag([1, 2, 4e9, 1]), "case, image: expected a volume of at most 3000 mm, got a longer one"),
        (
            np.diag([1e-3, 2e-3, 4, 1]),
            "case, image: expected at least 2 pixels in each direction at this spacing, got a single one; is the unit"
            " in the header right?",
        ),
    ],
)
def test_a_volume_of_no_size_of_a_body_is_refused_before_memory_is_taken(affine, sentence):
    with refused(sentence):
        spaced_planes(
            RNG.random((8, 8, 5)), Grid(affine, (8, 8, 5)), "case", window=None, size=16, spacing=(1.0, 2.0, 4.0)
        )


@pytest.mark.parametrize(("unit", "size"), [("meter", 0.001), ("micron", 1000.0)])
def test_a_mask_that_lost_the_unit_of_its_image_lies_on_it(tmp_path, unit, size):
    folder, affine = make_volume_site(tmp_path / "site", affine=THICK), np.diag([size, size, size, 1]) @ THICK
    spacing = (1.0, 2.0, 1.25)  # no voxel lies half-way between two
    whole = opened(folder, spacing).train
    for file in [*folder.rglob("*.nii.gz")]:
        image = nibabel.Nifti1Image(np.asarray(nibabel.load(file).dataobj), affine)
        image.header.set_xyzt_units(unit if file.parent.name == "images" else "unknown")
        nibabel.save(image, file)
    train = opened(folder, spacing).train
    assert np.allclose(train.images, whole.images, atol=1e-3)  # a header holds the numbers in 32 bits
    assert (train.masks == whole.masks).all()
    assert [plane_of(train, n) for n in range(len(train))] == [plane_of(whole, n) for n in range(len(whole))]


def test_slices_stand_in_the_middle_of_their_frame():
    planes = RNG.random((2, 3, 5))
    seen = framed(planes, 8, "case")
    assert seen.shape == (2, 8, 8)
    assert (unframed(seen, (3, 5)) == planes).all()
    assert seen.sum() == pytest.approx(planes.sum())
    with refused("case: expected slices of at most 4 pixels (image_size) at this spacing, got 3 x 5"):
        framed(planes, 4, "case")
    volume = RNG.random((4, 3, 2))
    assert (upright(axial_planes(volume)) == volume).all()


def test_a_site_is_opened_at_one_spacing_whatever_slices_its_list_names(tmp_path):
    folder = make_volume_site(tmp_path / "site", affine=THICK, slices=[[1], [2]], complete=[lesion(), lesion()])
    train = opened(folder).train
    assert (train.spacing, train.patch) == ((1.0, 2.0, 1.5), (4, 8, 8))
    assert np.bincount(train.case).tolist() == [9, 9]  # 12 mm from the first of 4 slices to the last
    assert train.plane[:9].tolist() == [*range(9)]
    assert (train.masks[:9].any((1, 2)).nonzero()[0].tolist(), train.images.shape) == ([2, 3, 4, 5, 6], (18, 16, 16))
    assert [plane_of(train, n) for n in range(9)] == [0, 0, 1, 1, 2, 2, 2, 3, 3]
    truth = load_complete_masks(load_card(folder, "site-1"), train, ["lesion"])
    assert (truth[:9] == train.masks[:9]).all()
    other = opened(folder, spacing=(1.0, 2.0, 4.0)).train
    assert len(other) == 8  # a store of its own


def test_patches_lie_in_their_volume_and_half_of_them_around_a_mark():
    case = np.repeat([0, 1], [12, 3])
    marks, grey = np.zeros((15, 16, 16), np.uint8), 0.01 + RNG.random((15, 16, 16)).astype(np.float32)
    marks[6, 12, 3] = marks[13, 2, 2] = 1
    found = []
    for seed in range(20):
        patches = Patches(case, marks, grey, (4, 8, 8), torch.Generator().manual_seed(seed))
        assert len(patches) == 12 + 3
        index = torch.arange(len(patches))
        cut = patches.cut(lambda rows: torch.from_numpy(marks[rows]), index)
        seen = patches.cut(lambda rows: torch.from_numpy(grey[rows]), index)
        assert cut.shape == seen.shape == (15, 4, 8, 8)
        assert (seen[:12] > 0).all()  # nothing beside the volume
        assert (seen[12:, 3] == 0).all()  # which has three slices
        assert (seen[12:, :3] > 0).all()
        found.append(cut[:12].flatten(1).any(1).float().mean())
    assert 0.5 < np.mean(found) < 0.75  # around the mark, and some that meet it by chance
    again = Patches(case, marks, grey, (4, 8, 8), torch.Generator().manual_seed(19))
    assert torch.equal(again.cut(lambda rows: torch.from_numpy(grey[rows]), index), seen)


def test_a_small_structure_has_as_many_patches_as_a_large_one():
    marks = np.zeros((12, 16, 16), np.uint8)
    marks[:, :8] = 1
    marks[9, 14, 14] = 3  # no 2 in this volume
    found = []
    for seed in range(40):
        patches = Patches(np.zeros(12), marks, np.ones(marks.shape), (2, 2, 2), torch.Generator().manual_seed(seed))
        cut = patches.cut(lambda rows: torch.from_numpy(marks[rows]), torch.arange(96)).flatten(1)
        found.append([(cut == n).any(1).float().mean() for n in (1, 3)])
    large, small = np.mean(found, axis=0)
    assert 0.23 < small < 0.28  # a quarter, and few that meet it by chance
    assert 0.24 < large < 0.35  # a quarter, and those at its edge


def test_windows_slide_over_all_of_a_volume():
    volume = torch.rand((10, 20, 12), generator=torch.Generator().manual_seed(0))
    sizes = []

    def network(patches):
        sizes.append(tuple(patches.shape[1:]))
        return torch.cat([patches, -patches], 1)

    found = slide(network, volume, (4, 8, 8), 2)
    assert set(sizes) == {(1, 4, 8, 8)}
    assert torch.allclose(found, torch.stack([volume, -volume], 1), atol=1e-5)


def test_a_repair_comes_back_to_the_grid_of_the_file(tmp_path):
    train = opened(make_volume_site(tmp_path / "site", [lesion(((2, 4), (2, 4), (0, 2)))], affine=THICK)).train
    change = np.zeros(train.masks.shape, dtype=np.int8)
    fine, grid = Grid(THICK, (8, 8, 4)).spaced(train.spacing), Grid(THICK, (8, 8, 4))
    wanted = np.zeros((8, 8, 4), np.uint8)
    wanted[5:7, 3:6, 2] = 1
    change[:] = framed(axial_planes(resampled(wanted, grid, fine, nearest=True)), 16, "") > 0
    counts = write_repaired(train, change, tmp_path / "repaired")
    (file,) = (tmp_path / "repaired").iterdir()
    repaired = np.asarray(nibabel.load(file).dataobj)
    own = lesion(((2, 4), (2, 4), (0, 2)))
    assert (repaired == (wanted | own)).all()
    assert counts[change.any((1, 2)), 0].tolist() == [
        [n, n + 6] for n in (train.masks > 0).sum((1, 2))[change.any((1, 2))]
    ]
