import nibabel
import numpy as np
import pytest
from nifti_factories import RAS, ZYX, as_zyx, lesion, make_volume_site, open_volumes, save_scaled, voxels, write_nifti

from fedmend.repairs.repaired_volumes import repaired_plane, write_repaired


def header_of(label):
    return {name: label.header[name].tolist() for name in label.header if not name.startswith("scl_")}


@pytest.mark.parametrize(("turn", "affine"), [(lambda a: a, RAS), (as_zyx, ZYX)], ids=["RAS", "other axes"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.float32])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_a_repaired_volume_has_the_geometry_of_its_label_file(tmp_path, turn, affine, dtype, kind):
    shape = (8, 8, 4)
    mask = lesion(shape=shape)
    folder = make_volume_site(tmp_path / "site", [mask], test=(), foreground=5)
    affine = affine.copy()
    affine[0, 3] = 7 if affine[0, 3] else 0  # x = 7 - k
    write_nifti(folder / "images" / "case-1.nii.gz", turn(voxels(0)), affine)
    label_file = folder / "labels" / "case-1.nii.gz"
    label = kind(turn(mask * 5).astype(dtype), affine)
    label.header["descrip"] = b"drawn by hand"
    label.set_qform(affine, 1)
    nibabel.save(label, label_file)
    before = label_file.read_bytes()

    train = open_volumes(folder).train
    added = np.zeros(train.masks.shape, dtype=bool)
    added[0, 0, 1] = added[3, 6, 2] = True  # row r, column c, slice k is the voxel (c, 7 - r, k)
    added[1] = train.masks[1] > 0  # is lesion already
    counts = write_repaired(train, added, tmp_path / "repaired", {5: 1})

    expected = mask.copy()
    expected[1, 7, 0] = expected[2, 1, 3] = True
    original, (file,) = nibabel.load(label_file), (tmp_path / "repaired").iterdir()
    repaired = nibabel.load(file)
    assert file.name == "001-case-1.nii.gz"
    assert np.array_equal(np.asarray(repaired.dataobj), turn(expected) * 5)
    assert np.array_equal(repaired.affine, original.affine)
    assert header_of(repaired) == header_of(original)
    assert repaired.get_data_dtype() == dtype
    assert counts[:, 0].tolist() == [[0, 1], [6, 6], [0, 0], [0, 1]]
    assert label_file.read_bytes() == before


def test_voxels_of_a_repaired_volume_are_counted_at_its_own_resolution(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(((0, 2), (6, 8), (1, 2))), lesion()], test=())
    train = open_volumes(folder, size=4).train
    added = np.zeros(train.masks.shape, dtype=bool)
    added[1, 0, 0] = True  # x 0..1, y 6..7: all lesion already
    added[1, 3, 2] = True  # x 4..5, y 0..1
    assert write_repaired(train, added, tmp_path / "out")[:4, 0].tolist() == [[0, 0], [4, 8], [0, 0], [0, 0]]
    (file,) = (tmp_path / "out").iterdir()  # the second volume is as it was
    expected = lesion(((0, 2), (6, 8), (1, 2)), ((4, 6), (0, 2), (1, 2)))
    assert np.array_equal(np.asarray(nibabel.load(file).dataobj), expected)


def test_a_repaired_volume_of_a_scaled_mask_holds_whole_numbers(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion()], test=())
    save_scaled(folder / "labels" / "case-1.nii.gz", lesion())
    train = open_volumes(folder).train
    write_repaired(train, np.arange(4)[:, None, None] * np.ones((8, 8)) == 3, tmp_path / "out")
    repaired = np.asarray(nibabel.load(tmp_path / "out" / "001-case-1.nii.gz").dataobj)
    assert np.array_equal(repaired, lesion() | lesion(((0, 8), (0, 8), (3, 4))))


def test_a_repair_may_remove_voxels_at_the_volumes_own_resolution(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(((0, 4), (4, 8), (1, 2)))], test=(), foreground=3)
    train = open_volumes(folder, size=4).train
    change = np.zeros(train.masks.shape, dtype=np.int8)
    change[1, 0, 0] = -1  # x 0..1, y 6..7: lesion
    change[1, 3, 3] = -1  # x 6..7, y 0..1: background already
    change[1, 3, 2] = 1  # x 4..5, y 0..1
    assert write_repaired(train, change, tmp_path / "out", {3: 1})[:, 0].tolist() == [[0, 0], [16, 16], [0, 0], [0, 0]]
    (file,) = (tmp_path / "out").iterdir()
    expected = lesion(((0, 4), (4, 6), (1, 2)), ((2, 4), (6, 8), (1, 2)), ((4, 6), (0, 2), (1, 2)))
    assert np.array_equal(np.asarray(nibabel.load(file).dataobj), 3 * expected)


def test_a_label_file_of_one_time_is_repaired_in_its_own_shape(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion()], test=())
    write_nifti(folder / "labels" / "case-1.nii.gz", lesion().astype(np.uint8)[..., None])
    train = open_volumes(folder).train
    write_repaired(train, np.arange(4)[:, None, None] * np.ones((8, 8)) == 3, tmp_path / "out")
    repaired = np.asarray(nibabel.load(tmp_path / "out" / "001-case-1.nii.gz").dataobj)
    assert np.array_equal(repaired, (lesion() | lesion(((0, 8), (0, 8), (3, 4))))[..., None])


def test_a_structure_whose_value_the_file_could_not_hold_is_written_all_the_same(tmp_path):
    train = open_volumes(make_volume_site(tmp_path / "site", [lesion()], test=())).train
    change = np.zeros(train.masks.shape, dtype=np.int8)
    change[0, 0, 0] = 2
    counts = write_repaired(train, change, tmp_path / "out", {1: 1, 300: 2})
    repaired = nibabel.load(tmp_path / "out" / "001-case-1.nii.gz")
    assert np.unique(np.asarray(repaired.dataobj)).tolist() == [0, 1, 300]
    assert counts.tolist()[0] == [[0, 0], [0, 1]]


def test_a_repair_is_brought_to_the_resolution_of_the_slice(tmp_path):
    mask = np.zeros((4, 8), dtype=bool)
    mask[3, 6:] = True
    change = np.array([[1, 0], [0, -1]], dtype=np.int8)  # each pixel covers 2 x 4
    repaired = repaired_plane(mask, change)
    assert np.argwhere(repaired).tolist() == [[r, c] for r in (0, 1) for c in range(4)]
    assert mask.sum() == 2
