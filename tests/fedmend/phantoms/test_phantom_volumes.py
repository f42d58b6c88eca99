import nibabel as nib
import numpy as np
import pytest
from factories import refused
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


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize(
    ("argument", "value", "least"), [("cases", 0, 1), ("seed", -1, 0), ("size", 31, 32), ("depth", 11, 12)]
)
def test_an_argument_below_its_least_value_is_refused(tmp_path, kind, argument, value, least):
    with refused(f"phantom, argument {argument}: expected at least {least}, got {value}"):
        WRITERS[kind](tmp_path, **{"cases": 1, argument: value})
    assert not any(tmp_path.iterdir())


# ---- lesions ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "most"), [("ms", 40), ("lung", 25)])
def test_a_volume_has_many_lesions_of_at_least_four_voxels(voxels, kind, most):
    lesions = [sizes(mask) for _, mask in voxels[kind]]
    assert all(8 <= len(s) <= most for s in lesions)
    assert min(s.min() for s in lesions) == 4
    assert np.median(np.concatenate(lesions)) < 15 < max(s.max() for s in lesions)


def test_the_load_of_the_heads_spans_that_of_real_patients(voxels):
    millilitres = [mask.sum() * (182 / 64) ** 2 * (140 / 24) / 1000 for _, mask in voxels["ms"]]
    assert 1 < min(millilitres) < 6
    assert 20 < max(millilitres) < 60
    assert 5 < np.median(millilitres) < 25


def test_one_confluent_lesion_may_hold_most_of_a_patients_load(voxels):
    assert max(sizes(mask).max() / mask.sum() for _, mask in voxels["ms"]) > 0.5


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


def test_lesions_lie_along_the_wall():
    grid = phantom._grid(32, 12, 64, 36, (1, 1, 1))
    wall = np.abs(grid.place[0])  # mm
    number = phantom._lesions(np.random.default_rng(0), grid, np.array([60]), wall < 4, 10 * wall, 0.1)
    sheets = np.count_nonzero(number, axis=(1, 2))
    assert sheets.sum() == 60
    assert sheets[15:17].sum() >= 59  # all but the seed: the two sheets of voxels 1 mm from the wall


# ---- heads -----------------------------------------------------------------------------------------------------------
def test_a_head_is_brain_extracted_but_for_small_undershoots(voxels):
    for image, mask in voxels["ms"]:
        assert 0.15 < (image > 0).mean() < 0.4
        assert not image[[0, -1]].any()
        assert -20 <= image.min() < 0
        assert 0 < (image < 0).mean() < 0.02
        assert (image[mask] > 0).all()


def test_the_scale_of_a_head_is_the_patients_own(voxels):
    medians = [np.median(image[image > 0]) for image, _ in voxels["ms"]]
    assert max(medians) > 1.3 * min(medians)


def test_lesions_of_the_head_are_about_1_4_times_as_bright_as_tissue(voxels):
    ratios = [image[mask].mean() / image[(image > 0) & ~mask].mean() for image, mask in voxels["ms"]]
    assert 1.3 < np.mean(ratios) < 1.6
    assert min(ratios) > 1.15


def test_no_threshold_finds_the_lesions_of_the_head(voxels):
    found = []
    for image, mask in voxels["ms"]:
        levels = np.quantile(image[image > 0], np.linspace(0.8, 0.999, 30))
        found.append(max(2 * (mask & (image > t)).sum() / (mask.sum() + (image > t).sum()) for t in levels))
    assert np.median(found) < 0.7


def test_lesions_lie_in_white_matter_mostly_near_the_ventricles():
    grid = phantom._grid(64, 24, phantom.HEAD_FIELD, phantom.HEAD_HEIGHT, (-1, 1, 1))
    far, white = [], []
    for case in range(5):
        head = phantom._head(np.random.default_rng([3, 0, case]), grid)  # as drawn for this case
        mask = phantom._ms_case(case, 3, grid)[1]
        assert (head.likely[mask] > 0).all()
        far.append(np.median(head.ventricles[mask]))
        white.append(np.median(head.ventricles[head.likely > 0]))
    assert np.mean(far) < 0.6 * np.mean(white)


# ---- thoraxes --------------------------------------------------------------------------------------------------------
def test_a_thorax_has_the_hu_of_air_lung_soft_tissue_and_bone(voxels):
    for image, mask in voxels["lung"]:
        assert image.min() >= -1024
        assert abs(np.median(image[:, :2]) + 1000) < 30
        lung = image[(image > -940) & (image < -650) & ~mask]
        assert lung.size > 0.04 * image.size
        assert abs(np.median(lung) + 850) < 70
        assert ((image > -20) & (image < 120)).mean() > 0.1
        assert 0.005 < (image > 200).mean() < 0.1


def test_patches_are_ground_glass_and_some_are_partly_solid(voxels):
    patches = [image[mask] for image, mask in voxels["lung"]]
    assert all(-650 < np.median(p) < -350 for p in patches)
    assert all((p > -250).mean() < 0.4 for p in patches)
    assert max((p > -250).mean() for p in patches) > 0.05


def test_vessels_and_pressed_lung_are_as_dense_as_patches(voxels):
    for image, mask in voxels["lung"]:
        low, high = np.quantile(image[mask], (0.1, 0.9))
        assert (~mask & (image > low) & (image < high)).sum() > mask.sum()


@pytest.mark.parametrize("kind", WRITERS)
def test_centres_differ_in_noise(downloads, kind):
    centres = {"ms": 3, "lung": 4}[kind]
    rough = []
    for image, _ in pairs(downloads[kind], kind):
        data = np.asarray(image.dataobj).astype(np.float32)
        tissue = (data > np.median(data[data > 0])) if kind == "ms" else (np.abs(data - 50) < 100)
        tissue[-1] = False
        steps = np.diff(data, axis=0)[tissue[:-1] & tissue[1:]]
        rough.append(np.median(np.abs(steps)) / (np.median(data[data > 0]) if kind == "ms" else 1))
    means = [np.mean(rough[c::centres]) for c in range(centres)]
    assert max(means) > 1.2 * min(means)
