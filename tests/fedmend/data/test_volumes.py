import gzip
import struct

import nibabel
import numpy as np
import pytest
from factories import refused
from nifti_factories import (
    GREY,
    IDENTITY,
    RAS,
    SHAPE,
    ZYX,
    as_zyx,
    lesion,
    make_volume_site,
    open_volumes,
    save_scaled,
    voxels,
    with_card,
    with_item,
    write_nifti,
)

from fedmend.data.volumes import resize_image, resize_masks, scale


def test_a_slice_shows_anterior_above_and_left_at_the_left(tmp_path):
    train = open_volumes(make_volume_site(tmp_path / "site", [lesion()], window=GREY)).train
    grey = voxels(0) / 1000
    for k in range(4):
        for row, column in ((0, 0), (2, 5), (7, 7)):
            assert train.images[k, row, column] == pytest.approx(grey[column, 7 - row, k], abs=1e-3)
    assert np.argwhere(train.masks[1]).tolist() == [[r, c] for r in (2, 3, 4) for c in (2, 3)]  # x 2..3, y 3..5


def test_a_volume_stored_in_other_axes_gives_the_same_slices(tmp_path):
    mask = lesion(((1, 3), (5, 8), (1, 3)), shape=SHAPE)
    plain = open_volumes(make_volume_site(tmp_path / "plain", [mask], test=(), affine=RAS)).train
    other = make_volume_site(tmp_path / "other", [mask], test=(), affine=RAS)
    write_nifti(other / "images" / "case-1.nii.gz", as_zyx(voxels(0, SHAPE)), ZYX)
    write_nifti(other / "labels" / "case-1.nii.gz", as_zyx(mask), ZYX)
    turned = open_volumes(other).train
    assert np.array_equal(turned.images, plain.images)
    assert np.array_equal(turned.masks, plain.masks)
    assert turned.plane.tolist() == [0, 1, 2, 3]


def test_the_lesion_may_have_another_value(tmp_path):
    train = open_volumes(make_volume_site(tmp_path / "site", foreground=3)).train
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]
    assert train.masks.max() == 1


def test_a_mask_that_was_scaled_when_it_was_saved_is_read(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    label = folder / "labels" / "case-1.nii.gz"
    save_scaled(label, lesion())
    assert set(np.unique(np.asarray(nibabel.load(label).dataobj))) != {0, 1}  # such a file is off by rounding
    assert open_volumes(folder).train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]


# ---- grey values and sizes ------------------------------------------------------------------------------------------
def test_mr_is_scaled_by_percentiles_of_its_non_zero_voxels():
    volume = np.concatenate([np.zeros(1000), np.arange(1, 202)]).astype(np.float32)  # percentiles 2 and 200
    scaled = dict(zip(volume.tolist(), scale(volume, None).tolist(), strict=True))
    assert [scaled[v] for v in (0, 1, 2, 101, 200, 201)] == pytest.approx([0, 0, 0, 0.5, 1, 1])


def test_mr_in_another_unit_looks_the_same(tmp_path):
    volume = voxels(0).astype(np.float32)
    assert np.allclose(scale(volume * 1000, None), scale(volume, None), atol=1e-5)


def test_ct_is_scaled_by_its_window():
    volume = np.array([-2000, -1350, -600, 150, 1000], dtype=np.float32)
    scaled = scale(volume, (-600, 1500))
    assert scaled.dtype == np.float32
    assert scaled.tolist() == pytest.approx([0, 0, 0.5, 1, 1])


def test_images_are_resized_with_antialiasing_and_masks_to_the_nearest_pixel():
    ramp = np.broadcast_to(np.arange(8, dtype=np.float32), (1, 8, 8))
    assert resize_image(ramp.copy(), 4)[0, 2, 1:3].tolist() == pytest.approx([2.5, 4.5])
    line = np.zeros((1, 8, 8), dtype=np.float32)
    line[0, :, 0] = 1
    assert (resize_image(line, 2)[0, :, 0] > 0.05).all()  # lies between the samples, but is seen
    mask = np.zeros((1, 4, 4), dtype=bool)
    mask[0, 1, 2] = True
    large = resize_masks(mask, (8, 12))
    assert (large.shape, large.dtype) == ((1, 8, 12), np.uint8)
    assert np.argwhere(large[0]).tolist() == [[r, c] for r in (2, 3) for c in (6, 7, 8)]
    assert np.array_equal(resize_masks(large, (4, 4)), mask)
    small = np.arange(16).reshape(1, 4, 4)
    assert resize_masks(small, (2, 2)).tolist() == [[[5, 7], [13, 15]]]  # half-way: the pixel below, to the right


@pytest.mark.parametrize("which", ["image", "label", "both"])
def test_volumes_of_one_time_and_one_channel_are_volumes(tmp_path, which):
    plain = open_volumes(make_volume_site(tmp_path / "plain", [lesion()], test=())).train
    folder = make_volume_site(tmp_path / "site", [lesion()], test=())
    if which != "label":
        write_nifti(folder / "images" / "case-1.nii.gz", voxels(0)[..., None])
    if which != "image":
        write_nifti(folder / "labels" / "case-1.nii.gz", lesion()[..., None, None])
    found = open_volumes(folder).train
    assert np.array_equal(found.images, plain.images)
    assert np.array_equal(found.masks, plain.masks)


# ---- bad input ------------------------------------------------------------------------------------------------------
ITEM = "site-1: datalist.json, training item 2"
DAMAGED = "expected a NIfTI file, got a corrupt or truncated one"


def image_of(array, affine=IDENTITY):
    return lambda folder: write_nifti(folder / "images" / "case-2.nii.gz", array, affine)


def label_of(array, affine=IDENTITY):
    return lambda folder: write_nifti(folder / "labels" / "case-2.nii.gz", array, affine)


def both_of(array):
    return lambda folder: (image_of(array)(folder), label_of(np.zeros(array.shape, np.uint8))(folder))


def one_voxel(value):
    image = voxels(1).astype(np.float32)
    image[3, 3, 3] = value
    return image


def raw(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def truncated(folder):
    file = folder / "images" / "case-2.nii.gz"
    write_nifti(file, voxels(1, (32, 32, 8)))
    file.write_bytes(file.read_bytes()[:-1000])


def patched(rows):
    """Writes the rows of the affine matrix into both headers: nibabel itself would refuse them."""

    def change(folder):
        for file in (folder / "images" / "case-2.nii.gz", folder / "labels" / "case-2.nii.gz"):
            content = bytearray(gzip.decompress(file.read_bytes()))
            content[280:328] = struct.pack("<12f", *rows)
            file.write_bytes(gzip.compress(bytes(content)))

    return change


@pytest.mark.parametrize(
    ("break_it", "sentence"),
    [
        (label_of(lesion(shape=(8, 8, 5))), ": expected a label of the image's shape (8, 8, 4), got (8, 8, 5)"),
        (label_of(lesion(), RAS), ": expected a label with the image's affine matrix, got another one"),
        (label_of(lesion() * np.uint8(2)), ", label: expected the values 0 and 1, got others"),
        (label_of(lesion() * np.float32(0.5)), ", label: expected the values 0 and 1, got others"),
        (label_of(lesion() * np.float32(np.nan)), ", label: expected finite voxels, got NaN or infinity"),
        (image_of(one_voxel(np.nan)), ", image: expected finite voxels, got NaN or infinity"),
        (image_of(one_voxel(-np.inf)), ", image: expected finite voxels, got NaN or infinity"),
        (both_of(np.ones((8, 8, 4, 2), np.int16)), ", image: expected a 3-D volume, got 4 dimensions"),
        (
            image_of(np.ones((8, 8, 4), np.complex64)),
            ", image: expected one real number a voxel, got colours or complex numbers",
        ),
        (both_of(np.ones((8, 8), np.int16)), ", image: expected a 3-D volume, got 2 dimensions"),
        (both_of(np.ones((8, 0, 4), np.int16)), ", image: expected a 3-D volume, got an empty one"),
        (image_of(np.full((8, 8, 4), 7, np.int16)), ", image: expected tissue, got voxels of one value"),
        (image_of(np.zeros((8, 8, 4), np.int16)), ", image: expected tissue, got voxels of one value"),
        (truncated, f", image: {DAMAGED} (EOFError)"),
        (raw("images/case-2.nii.gz", b""), f", image: {DAMAGED} (ImageFileError)"),
        (raw("labels/case-2.nii.gz", b"no volume"), f", label: {DAMAGED} (BadGzipFile)"),
        (lambda f: (f / "images" / "case-2.nii.gz").unlink(), ", image: expected a NIfTI file, not found"),
        (lambda f: (f / "labels" / "case-2.nii.gz").unlink(), ", label: expected a NIfTI file, not found"),
        (
            patched([np.nan] * 12),
            ", image: expected an affine matrix with three axes, got a degenerate one",
        ),
        (
            patched([0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]),
            ", image: expected an affine matrix with three axes, got a degenerate one",
        ),
    ],
)
def test_a_case_that_cannot_be_used_is_one_sentence_without_its_name(tmp_path, break_it, sentence):
    folder = make_volume_site(tmp_path / "site")
    break_it(folder)
    with refused(ITEM + sentence):
        open_volumes(folder)


@pytest.mark.parametrize(("size", "unit"), [(1.0, "mm"), (1000.0, "unknown")])
def test_a_label_in_mm_or_without_a_unit_fits_an_image_in_micrometres(tmp_path, size, unit):
    folder = make_volume_site(tmp_path / "site", affine=RAS)
    for name, array, edge, word in (
        ("images", voxels(1), 1000.0, "micron"),
        ("labels", lesion().astype(np.uint8), size, unit),
    ):
        image = nibabel.Nifti1Image(array, np.diag([edge, edge, edge, 1]) @ RAS)
        image.header.set_xyzt_units(word)
        nibabel.save(image, folder / name / "case-2.nii.gz")
    assert open_volumes(folder).train.masks.any()


@pytest.mark.parametrize("kinds", [("mgz", "nii"), ("nii", "mgz"), ("mgz", "mgz")])
def test_files_of_freesurfer_on_different_grids_are_one_sentence(tmp_path, kinds):
    folder, of = make_volume_site(tmp_path / "site"), {"mgz": nibabel.MGHImage, "nii": nibabel.Nifti1Image}
    image, label = (f"case-2-again.{kind}" for kind in kinds)
    nibabel.save(of[kinds[0]](voxels(1), RAS), folder / "images" / image)
    nibabel.save(of[kinds[1]](lesion().astype(np.uint8), IDENTITY), folder / "labels" / label)
    with_item(folder, number=1, image=image, label=f"labels/{label}")
    with refused(f"{ITEM}: expected a label with the image's affine matrix, got another one"):
        open_volumes(folder)


@pytest.mark.parametrize("label", [np.diag([1.0, 1.0, 2.5, 1.0]), RAS + 0.5 * np.eye(4, k=3)], ids=["spacing", "place"])
def test_a_label_in_metres_on_another_grid_is_refused_as_one_in_mm_is(tmp_path, label):
    folder = make_volume_site(tmp_path / "site")
    for name, array, affine in (("images", voxels(1), RAS), ("labels", lesion().astype(np.uint8), label)):
        image = nibabel.Nifti1Image(array, np.diag([0.001, 0.001, 0.001, 1]) @ affine)
        image.header.set_xyzt_units("meter")
        nibabel.save(image, folder / name / "case-2.nii.gz")
    with refused(f"{ITEM}: expected a label with the image's affine matrix, got another one"):
        open_volumes(folder)


SFORM, QFORM = RAS, np.diag([-1.0, 1.0, 2.0, 1.0])  # left and right swapped


def with_matrices(folder, name, array, *, sform=None, qform=None):
    file = folder / name
    image = nibabel.Nifti1Image(array, SFORM)
    image.set_sform(sform, 0 if sform is None else 1)
    image.set_qform(qform, 0 if qform is None else 1)
    nibabel.save(image, file)


@pytest.mark.parametrize(
    ("image", "label", "got"),
    [
        ({"sform": SFORM, "qform": QFORM}, {"qform": QFORM}, "that of the image's qform, while its sform counts"),
        ({"qform": QFORM}, {"sform": SFORM, "qform": QFORM}, "that of the label's sform, while its qform would fit"),
    ],
)
def test_a_label_on_the_matrix_that_does_not_count_is_told_so(tmp_path, image, label, got):
    folder = make_volume_site(tmp_path / "site")
    with_matrices(folder, "images/case-2.nii.gz", voxels(1), **image)
    with_matrices(folder, "labels/case-2.nii.gz", lesion().astype(np.uint8), **label)
    advice = "write the same one as sform and qform into both files"
    with refused(f"{ITEM}: expected a label with the image's affine matrix, got {got}; {advice}"):
        open_volumes(folder)


def test_labels_with_another_lesion_value_than_the_card_says_are_refused(tmp_path):
    folder = with_card(make_volume_site(tmp_path / "site"), foreground=2)
    with refused("site-1: datalist.json, training item 1, label: expected the values 0 and 2, got others"):
        open_volumes(folder)
