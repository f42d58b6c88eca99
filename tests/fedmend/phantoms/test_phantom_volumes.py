import json

import nibabel as nib
import numpy as np
import pytest
from scipy.ndimage import label

from fedmend.errors import FedMendError
from fedmend.phantoms import volumes as phantom
from fedmend.phantoms.specs import partial_masks
from fedmend.phantoms.volume_drawing import make_grid
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
    grid = make_grid(32, 12, 64, 36, (1, 1, 1))
    room = np.ones(grid.shape)
    number = phantom._lesions(np.random.default_rng(0), grid, np.array([4, 5, 30, 9, 200]), room, 0 * room, 0.1)
    assert np.bincount(number.ravel())[1:].tolist() == [200, 30, 9, 5, 4]


def test_lesions_do_not_touch_where_they_are_crowded():
    grid = make_grid(32, 12, 64, 36, (1, 1, 1))
    room = np.ones(grid.shape)
    number = phantom._lesions(np.random.default_rng(0), grid, np.full(80, 20), room, 0 * room, 0.1)
    assert number.max() > 40
    assert sorted(sizes(number > 0)) == sorted(np.bincount(number.ravel())[1:])


def test_a_lesion_stays_in_its_room_or_is_left_out():
    grid = make_grid(32, 12, 64, 36, (1, 1, 1))
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


# ---- lesions of patients ---------------------------------------------------------------------------------------------
MNI = np.array([[-1.0, 0, 0, 90], [0, 1, 0, -126], [0, 0, 1, -72], [0, 0, 0, 1]])  # of the masks that are published


def mni_mask(path, *boxes, affine=MNI, value=1):
    """A mask with boxes: the first corner (voxels) and edges."""
    voxels = np.zeros((182, 218, 182), dtype=np.uint8)
    for corner, edges in boxes:
        voxels[tuple(slice(c, c + e) for c, e in zip(corner, edges, strict=True))] = value
    path.parent.mkdir(exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, affine), path)
    return path


LARGE, SMALL = ((60, 120, 80), (12, 12, 12)), ((120, 100, 100), (1, 1, 1))


def test_a_given_mask_gives_a_head_its_lesions(tmp_path):
    masks = [mni_mask(tmp_path / "masks" / "a.nii.gz", LARGE, SMALL)]
    write_ms(tmp_path / "out", cases=1, seed=0, size=64, depth=48, masks=masks)
    ((image, mask),) = pairs(tmp_path / "out", "ms")
    lesion, grey = np.asarray(mask.dataobj) > 0, np.asarray(image.dataobj)
    # 12 mm in each direction at 2.84 x 2.84 x 2.92 mm: four or five voxels; one voxel of 1 mm³ covers no half of 23.6
    (size,) = sizes(lesion)
    assert 4 * 4 * 4 - 4 <= size <= 5 * 5 * 4  # less the corners, of which the mask covers less than half
    # the middle of the box: (90 - 65.5, -126 + 125.5, -72 + 85.5) mm in MNI space, moved to the head's own
    middle = nib.affines.apply_affine(mask.affine, np.argwhere(lesion)).mean(axis=0)
    assert middle == pytest.approx([24.5, -0.5 + 18, 13.5 - 6], abs=1.5)
    assert np.median(grey[lesion]) > 1.15 * np.median(grey[grey > 0])


def test_a_mask_too_small_for_the_grid_stays_as_the_voxel_that_it_covers_most(tmp_path):
    masks = [mni_mask(tmp_path / "masks" / "a.nii", ((60, 120, 80), (2, 2, 2)))]
    write_ms(tmp_path / "out", cases=1, seed=0, size=48, depth=24, masks=masks)  # 8 mm³ in voxels of 82 mm³
    ((_, mask),) = pairs(tmp_path / "out", "ms")
    assert 1 <= np.asarray(mask.dataobj).sum() <= 2


def test_a_lesion_is_bright_where_this_head_has_a_ventricle(tmp_path):
    masks = [mni_mask(tmp_path / "masks" / "a.nii", ((75, 108, 91), (8, 8, 8)))]
    write_ms(tmp_path / "out", cases=1, seed=0, size=64, depth=48, masks=masks)
    ((image, mask),) = pairs(tmp_path / "out", "ms")
    lesion, grey = np.asarray(mask.dataobj) > 0, np.asarray(image.dataobj)
    assert np.median(grey[lesion]) > 1.15 * np.median(grey[grey > 0])


def test_each_mask_is_drawn_once_and_dealt_anew_with_another_seed(tmp_path):
    edges = (8, 12, 16)
    masks = [mni_mask(tmp_path / "masks" / f"{e}.nii", ((60, 120, 80), (e, e, e))) for e in edges]

    def volumes_of(seed):
        write_ms(tmp_path / f"{seed}", cases=3, seed=seed, size=48, depth=24, masks=masks)
        return [int(np.asarray(m.dataobj).sum()) for _, m in pairs(tmp_path / f"{seed}", "ms")]

    dealt = [volumes_of(seed) for seed in range(3)]
    small, middle, large = sorted(dealt[0])
    assert 0 < small < middle < large
    assert [sorted(d) for d in dealt] == [sorted(dealt[0])] * 3
    assert len({tuple(d) for d in dealt}) > 1


def test_a_lesion_outside_of_the_brain_is_left_out(tmp_path):
    masks = [mni_mask(tmp_path / "masks" / "a.nii", LARGE, ((85, 19, 140), (8, 6, 8)))]
    write_ms(tmp_path / "out", cases=1, size=48, masks=masks)
    ((_, mask),) = pairs(tmp_path / "out", "ms")
    assert len(sizes(np.asarray(mask.dataobj) > 0)) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"affine": MNI + np.eye(4, k=3) * 900},
            r"expected lesions in a head in MNI space \(mm\)",
        ),
        ({"affine": MNI * np.array([9, 9, 9, 1])}, r"expected voxels of at most 3\.79 mm, got 9 x 9 x 9 mm"),
        ({"value": 2}, r"expected voxels 0 and 1, some of each, got \[0\.0, 2\.0\]"),
        ({"value": 0}, r"expected voxels 0 and 1, some of each, got \[0\.0\]"),
    ],
    ids=["another space", "coarse", "other values", "empty"],
)
def test_a_mask_that_cannot_be_drawn_is_refused(tmp_path, change, said):
    mask = mni_mask(tmp_path / "masks" / "b.nii", LARGE, **change)
    with pytest.raises(FedMendError, match=rf"^argument masks, file b\.nii: {said}"):
        write_ms(tmp_path / "out", cases=1, size=48, masks=[mask])


def test_there_are_as_many_masks_as_volumes(tmp_path):
    with pytest.raises(FedMendError, match="argument masks: expected at least 2, one for each volume, got 1"):
        write_ms(tmp_path / "out", cases=2, masks=[mni_mask(tmp_path / "masks" / "a.nii", LARGE)])
    spec = partial_masks.RealLesionsPhantom(masks=tmp_path / "none")
    with pytest.raises(FedMendError, match="argument masks: expected a folder with NIfTI files, got none"):
        spec.write(tmp_path / "out")


def test_sites_of_real_lesions_say_whose_they_are(tmp_path):
    for name in "abcdefgh":
        mni_mask(tmp_path / "masks" / f"{name}.nii.gz", LARGE, ((100, 110, 70), (9, 9, 9)))
    spec = partial_masks.RealLesionsPhantom(masks=tmp_path / "masks", images=8, sites=2, pixels=32, depth=12)
    spec.write(tmp_path / "out")
    card = json.loads((tmp_path / "out" / "site-1" / "site.json").read_text())
    assert card["provenance"]["source"] == "PHANTOM: synthetic heads with the lesion masks of patients"
