import nibabel as nib
import numpy as np
import pytest
from scipy.ndimage import label

from fedmend.phantoms import volumes as phantom
from fedmend.phantoms.volumes import write_lung, write_ms

CASES = 9
WRITERS = {"ms": write_ms, "lung": write_lung}
CONNECTED = np.ones((3, 3, 3))


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    folders = {name: tmp_path_factory.mktemp(name) for name in WRITERS}
    for name, write in WRITERS.items():
        write(folders[name], cases=CASES, seed=3)
    return folders


def pairs(folder, kind):
    """Image and mask of each case, as NIfTI."""
    if kind == "ms":
        masks = sorted(folder.glob("Training/*/*/Masks/Consensus.nii.gz"), key=lambda p: p.parts[-3])
        images = [p.parents[1] / "Preprocessed_Data" / "FLAIR_preprocessed.nii.gz" for p in masks]
    else:
        masks = sorted(folder.glob("Train/*_seg.nii.gz"))
        images = [p.with_name(p.name.replace("_seg", "_ct")) for p in masks]
    return [(nib.load(i), nib.load(m)) for i, m in zip(images, masks, strict=True)]


@pytest.fixture(scope="module")
def voxels(downloads):
    """For each kind a list of (image, bool mask)."""
    return {
        kind: [(np.asarray(i.dataobj), np.asarray(m.dataobj) > 0) for i, m in pairs(downloads[kind], kind)]
        for kind in WRITERS
    }


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def sizes(mask):
    """Voxels of each 26-connected lesion."""
    return np.bincount(label(mask, CONNECTED)[0].ravel())[1:]


def test_the_heads_lie_as_in_mssegs_download(downloads):
    patients = [("01", 1), ("07", 2), ("08", 3), ("01", 4), ("07", 5), ("08", 6), ("01", 7), ("07", 8), ("08", 9)]
    folders = [f"Training/Center_{c}/Patient_{p:02d}" for c, p in patients]
    files = ("Masks/Consensus.nii.gz", "Preprocessed_Data/FLAIR_preprocessed.nii.gz")
    assert sorted(content(downloads["ms"])) == sorted(f"{folder}/{file}" for folder in folders for file in files)


def test_the_thoraxes_lie_as_in_the_covid_download(downloads):
    names = [f"Train/volume-covid19-A-{case:04d}_{what}.nii.gz" for case in range(1, 10) for what in ("ct", "seg")]
    assert sorted(content(downloads["lung"])) == names


@pytest.mark.parametrize(
    ("kind", "field", "height", "axes", "dtype"),
    [("ms", 182, 140, "LAS", np.float32), ("lung", 360, 290, "LPS", np.int16)],
)
def test_a_mask_is_0_or_1_on_exactly_the_grid_of_its_image(downloads, kind, field, height, axes, dtype):
    for image, mask in pairs(downloads[kind], kind):
        assert image.shape == mask.shape == (64, 64, 24)
        assert (image.affine == mask.affine).all()
        assert "".join(nib.aff2axcodes(image.affine)) == axes
        assert np.allclose(image.header.get_zooms(), (field / 64, field / 64, height / 24))
        assert (image.get_data_dtype(), mask.get_data_dtype()) == (dtype, np.uint8)
        assert np.unique(np.asarray(mask.dataobj)).tolist() == [0, 1]


@pytest.mark.parametrize("write", WRITERS.values())
def test_a_case_depends_on_seed_and_number_alone(tmp_path, write):
    for name, cases, seed in (("one", 1, 5), ("two", 2, 5), ("other", 1, 6)):
        write(tmp_path / name, cases=cases, seed=seed, size=32, depth=12)
    one, two, other = (content(tmp_path / name) for name in ("one", "two", "other"))
    assert (len(one), len(two)) == (2, 4)
    assert one.items() <= two.items()
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())


@pytest.mark.parametrize(("kind", "most"), [("ms", 40), ("lung", 25)])
def test_a_volume_has_many_lesions_of_at_least_four_voxels(voxels, kind, most):
    lesions = [sizes(mask) for _, mask in voxels[kind]]
    assert all(8 <= len(s) <= most for s in lesions)
    assert min(s.min() for s in lesions) == 4
    assert np.median(np.concatenate(lesions)) < 15 < max(s.max() for s in lesions)


def test_lesions_get_their_size():
    grid = phantom._grid(32, 12, 64, 36, (1, 1, 1))
    room = np.ones(grid.shape)
    number = phantom._lesions(np.random.default_rng(0), grid, np.array([4, 5, 30, 9, 200]), room, 0 * room, 0.1)
    assert np.bincount(number.ravel())[1:].tolist() == [200, 30, 9, 5, 4]


def test_lesions_do_not_touch_where_they_are_crowded():
    grid = phantom._grid(32, 12, 64, 36, (1, 1, 1))
    room = np.ones(grid.shape)
    number = phantom._lesions(np.random.default_rng(0), grid, np.full(80, 20), room, 0 * room, 0.1)
    assert number.max() > 40
    assert sorted(sizes(number > 0)) == sorted(np.bincount(number.ravel())[1:])


def test_a_lesion_stays_in_its_room_or_is_left_out():
    grid = phantom._grid(32, 12, 64, 36, (1, 1, 1))
    room = np.zeros(grid.shape)
    room[4:6, 4:8, 3] = 1  # 8 voxels: no place for a second one
    number = phantom._lesions(np.random.default_rng(0), grid, np.array([20, 6]), room, 0 * room, 0.0)
    assert (number == room).all()


@pytest.mark.parametrize("kind", WRITERS)
def test_lesions_can_be_learnt_from_grey_levels(voxels, kind):
    """How often a voxel of its grey level is a lesion in the other volumes tells lesions apart."""
    ranks = [(image.argsort(axis=None).argsort() * 50 // image.size, mask.ravel()) for image, mask in voxels[kind]]
    level, mask = (np.concatenate(part) for part in zip(*ranks[1:], strict=True))
    share = np.bincount(level, mask, minlength=50) / np.bincount(level, minlength=50)
    found, lesion = share[ranks[0][0]], ranks[0][1]
    assert found[lesion].mean() > 3 * found[~lesion].mean()
