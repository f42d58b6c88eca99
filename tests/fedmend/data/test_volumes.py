import errno
import gzip
import json
import logging
import shutil
import struct

import nibabel
import numpy as np
import pytest
import torch
from factories import refused
from nifti_factories import IDENTITY, lesion, make_volume_site, read_datalist, voxels, write_datalist, write_nifti

from fedmend.data import volumes
from fedmend.data.manifest import load_card
from fedmend.data.volumes import (
    load_complete_masks,
    load_datalist,
    load_volumes,
    resize_image,
    resize_masks,
    scale,
    write_repaired,
)

CPU = torch.device("cpu")
GREY = (500.0, 1000.0)  # window in which a voxel v becomes v / 1000
SHAPE = (6, 8, 4)
RAS = np.diag([1.0, 1.0, 2.0, 1.0])
# The same grid stored from superior to anterior to left: axes z, y, x; y and x run backwards.
ZYX = np.array([[0.0, 0, -1, 5], [0, -1, 0, 7], [2, 0, 0, 0], [0, 0, 0, 1]])


def as_zyx(array):
    return array[::-1, ::-1].transpose(2, 1, 0)


def opened(folder, *, size=8, **options):
    return load_volumes(
        folder, "site-1", ["lesion"], cache_dir=folder.parent / "cache", image_size=size, device=CPU, **options
    )


def stores(folder):
    return [p.name for p in (folder.parent / "cache" / "stores").iterdir() if p.suffix != ".lock"]


def with_card(folder, **fields):
    card = json.loads((folder / "site.json").read_text())
    (folder / "site.json").write_text(json.dumps(card | fields))
    return folder


def with_item(folder, *, number=0, section="training", **fields):
    """Changes one item of the datalist."""
    sections = read_datalist(folder)
    sections[section][number] |= fields
    write_datalist(folder, sections)
    return folder


# ---- what a split holds ---------------------------------------------------------------------------------------------
def test_a_site_is_opened_as_axial_slices_with_masks(tmp_path):
    data = opened(make_volume_site(tmp_path / "site"))
    assert (data.classes, data.task, data.annotated.tolist()) == (("lesion",), "segmentation", [True])
    train = data.train
    assert (len(train), len(train.items), train.file) == (8, 2, "datalist.json")
    assert (train.images.shape, train.images.dtype) == ((8, 8, 8), np.float16)
    assert (train.masks.shape, train.masks.dtype) == ((8, 8, 8), np.uint8)
    assert train.case.tolist() == [0] * 4 + [1] * 4
    assert train.plane.tolist() == [0, 1, 2, 3] * 2
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]
    assert train.names[5] == "case-2.nii.gz#1"
    assert {name: len(split) for name, split in data.evaluation.items()} == {"test": 4}


def test_a_slice_shows_anterior_above_and_left_at_the_left(tmp_path):
    train = opened(make_volume_site(tmp_path / "site", [lesion()], window=GREY)).train
    grey = voxels(0) / 1000
    for k in range(4):
        for row, column in ((0, 0), (2, 5), (7, 7)):
            assert train.images[k, row, column] == pytest.approx(grey[column, 7 - row, k], abs=1e-3)
    assert np.argwhere(train.masks[1]).tolist() == [[r, c] for r in (2, 3, 4) for c in (2, 3)]  # x 2..3, y 3..5


def test_a_volume_stored_in_other_axes_gives_the_same_slices(tmp_path):
    mask = lesion(((1, 3), (5, 8), (1, 3)), shape=SHAPE)
    plain = opened(make_volume_site(tmp_path / "plain", [mask], test=(), affine=RAS)).train
    other = make_volume_site(tmp_path / "other", [mask], test=(), affine=RAS)
    write_nifti(other / "images" / "case-1.nii.gz", as_zyx(voxels(0, SHAPE)), ZYX)
    write_nifti(other / "labels" / "case-1.nii.gz", as_zyx(mask), ZYX)
    turned = opened(other).train
    assert np.array_equal(turned.images, plain.images)
    assert np.array_equal(turned.masks, plain.masks)
    assert turned.plane.tolist() == [0, 1, 2, 3]


def test_pixels_are_what_a_network_takes(tmp_path):
    train = opened(make_volume_site(tmp_path / "site", window=GREY)).train
    pixels = train.pixels(torch.tensor([5, 0]))
    assert (pixels.shape, pixels.dtype) == ((2, 1, 8, 8), torch.float32)
    assert np.array_equal(pixels[0, 0].numpy(), train.images[5].astype(np.float32))
    assert 0 <= pixels.min() < pixels.max() <= 1


def test_slices_and_masks_cannot_be_written(tmp_path):
    train = opened(make_volume_site(tmp_path / "site")).train
    for array in (train.images, train.masks):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0, 0] = 1


def test_slices_without_tissue_are_left_out(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    image = voxels(0)
    image[:, :, 0], image[:, :, 3] = 0, 7
    write_nifti(folder / "images" / "case-1.nii.gz", image)
    assert opened(folder).train.plane.tolist() == [1, 2, 0, 1, 2, 3]


def test_listed_slices_are_used_with_or_without_tissue(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[2, 0], [3]])
    image = voxels(0)
    image[:, :, 0] = 0
    write_nifti(folder / "images" / "case-1.nii.gz", image)
    train = opened(folder).train
    assert list(zip(train.case.tolist(), train.plane.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 3)]
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 4]


def test_slices_are_resized_and_other_sizes_have_other_stores(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(((2, 4), (4, 6), (1, 2)))])
    assert opened(folder).train.masks.sum() == 4
    half = opened(folder, size=4).train
    assert (half.images.shape, half.masks.shape) == ((4, 4, 4), (4, 4, 4))
    assert np.argwhere(half.masks).tolist() == [[1, 1, 1]]
    assert len(stores(folder)) == 4  # train and test of both sizes


def test_the_validation_section_is_the_val_split(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    sections = read_datalist(folder)
    write_datalist(folder, sections | {"validation": sections["test"], "test": []})
    with_card(folder, splits=dict.fromkeys(("train", "val", "test"), "datalist.json"))
    assert {name: len(split) for name, split in opened(folder).evaluation.items()} == {"val": 4}


def test_the_lesion_may_have_another_value(tmp_path):
    train = opened(make_volume_site(tmp_path / "site", foreground=3)).train
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]
    assert train.masks.max() == 1


def save_scaled(path, mask):
    """A mask of floating numbers saved as whole ones, which nibabel scales to the whole range of the data type."""
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    nibabel.save(nibabel.Nifti1Image(mask.astype(np.float64), IDENTITY, header), path)


def test_a_mask_that_was_scaled_when_it_was_saved_is_read(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    label = folder / "labels" / "case-1.nii.gz"
    save_scaled(label, lesion())
    assert set(np.unique(np.asarray(nibabel.load(label).dataobj))) != {0, 1}  # such a file is off by rounding
    assert opened(folder).train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]


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


# ---- the store ------------------------------------------------------------------------------------------------------
def test_a_store_is_built_once(tmp_path, monkeypatch):
    folder = make_volume_site(tmp_path / "site")
    first = opened(folder).train
    monkeypatch.setattr(volumes, "read_pair", None)
    again = opened(folder).train
    assert np.array_equal(again.images, first.images)
    assert np.array_equal(again.masks, first.masks)
    assert again.names == first.names


def test_a_changed_mask_makes_another_store_and_fingerprint(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    before = opened(folder).train
    write_nifti(folder / "labels" / "case-1.nii.gz", lesion(((0, 8), (0, 8), (0, 1))))
    after = opened(folder).train
    assert after.masks.sum((1, 2)).tolist() == [64, 0, 0, 0, 0, 0, 4, 4]
    assert before.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]
    assert before.fingerprint() != after.fingerprint()
    assert opened(folder).train.fingerprint() == after.fingerprint()


@pytest.mark.parametrize("change", [{"window": [0, 100]}, {"image_root": "copy"}])
def test_another_window_or_image_root_makes_another_store(tmp_path, change):
    folder = make_volume_site(tmp_path / "site", test=())
    shutil.copytree(folder / "images", folder / "copy")
    opened(folder)
    opened(with_card(folder, **change))
    assert len(stores(folder)) == 2


def test_other_listed_slices_make_another_store(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[1], [2]], test=())
    opened(folder)
    assert opened(with_item(folder, slices=[2, 3])).train.plane.tolist() == [2, 3, 2]


def test_a_store_that_was_not_finished_is_never_seen(tmp_path, monkeypatch):
    folder = make_volume_site(tmp_path / "site")
    label = folder / "labels" / "case-2.nii.gz"
    whole = label.read_bytes()
    label.write_bytes(b"")
    with refused(
        "site-1: datalist.json, training item 2, label: expected a NIfTI file, got a corrupt or truncated one (ImageFileError)"
    ):
        opened(folder)
    assert stores(folder) == []
    label.write_bytes(whole)
    assert len(opened(folder).train) == 8


@pytest.mark.parametrize("file", ["images.f16", "masks.u8", "slices.json"])
def test_a_damaged_store_is_built_again(tmp_path, file):
    folder = make_volume_site(tmp_path / "site", test=())
    expected = np.array(opened(folder).train.images)
    damaged = folder.parent / "cache" / "stores" / stores(folder)[0] / file
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert np.array_equal(opened(folder).train.images, expected)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "expected 1 MB of free space, got a full disk"),
        (errno.EROFS, "expected a folder that can be written, got one that is read-only"),
    ],
)
def test_a_disk_that_cannot_take_the_store_is_one_sentence(tmp_path, monkeypatch, code, sentence):
    def fail(*_):
        raise OSError(code, "x")

    folder = make_volume_site(tmp_path / "site")
    monkeypatch.setattr(volumes.os, "fsync", fail)
    with refused(f"site-1: datalist.json: cache_dir: {sentence}"):
        opened(folder)
    assert stores(folder) == []


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
        (both_of(np.ones((8, 8), np.int16)), ", image: expected a 3-D volume, got 2 dimensions"),
        (both_of(np.ones((8, 0, 4), np.int16)), ", image: expected a 3-D volume, got an empty one"),
        (image_of(np.full((8, 8, 4), 7, np.int16)), ", image: expected tissue, got voxels of one value"),
        (image_of(np.zeros((8, 8, 4), np.int16)), ", image: expected tissue, got voxels of one value"),
        (truncated, f", image: {DAMAGED} (EOFError)"),
        (raw("images/case-2.nii.gz", b""), f", image: {DAMAGED} (ImageFileError)"),
        (raw("labels/case-2.nii.gz", b"no volume"), f", label: {DAMAGED} (ImageFileError)"),
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
        opened(folder)


def test_labels_with_another_lesion_value_than_the_card_says_are_refused(tmp_path):
    folder = with_card(make_volume_site(tmp_path / "site"), foreground=2)
    with refused("site-1: datalist.json, training item 1, label: expected the values 0 and 2, got others"):
        opened(folder)


PATHS = "expected a path below its folder, got another"
NO_SLICES = ", field slices: expected different slice numbers from 0, got something else"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"image": "../images/case-2.nii.gz"}, f", field image: {PATHS}"),
        ({"image": "/etc/passwd"}, f", field image: {PATHS}"),
        ({"label": "labels/../../case-2.nii.gz"}, f", field label: {PATHS}"),
        ({"label": "/labels/case-2.nii.gz"}, f", field label: {PATHS}"),
        ({"label": None}, ", field label: expected a path, got none"),
        ({"image": ["case-2.nii.gz"]}, ", field image: expected a path, got none"),
        ({"image": "case-1.nii.gz"}, ": expected each image once, got that of item 1"),
        ({"image": "./case-1.nii.gz"}, ": expected each image once, got that of item 1"),
        ({"slices": []}, NO_SLICES),
        ({"slices": [1, 1]}, NO_SLICES),
        ({"slices": [-1]}, NO_SLICES),
        ({"slices": [True]}, NO_SLICES),
        ({"slices": "all"}, NO_SLICES),
        ({"slices": [0, 4]}, ", field slices: expected numbers below 4, got a larger one"),
    ],
)
def test_an_item_that_breaks_a_field_is_one_sentence(tmp_path, fields, sentence):
    folder = with_item(make_volume_site(tmp_path / "site"), number=1, **fields)
    with refused(ITEM + sentence):
        opened(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "expected below the folder of site.json, not found"),
        (b"{", "expected JSON, got a file that does not parse"),
        (b"\xff", "expected JSON, got a file that does not parse"),
        (b"[]", "expected a list under 'training', got none"),
        (b'{"test": []}', "expected a list under 'training', got none"),
        (b'{"training": {}}', "expected a list under 'training', got none"),
        (b'{"training": []}', "expected annotated training volumes, got no volumes"),
    ],
)
def test_a_datalist_that_cannot_be_used_is_one_sentence(tmp_path, content, sentence):
    folder = make_volume_site(tmp_path / "site")
    (folder / "datalist.json").unlink()
    if content is not None:
        (folder / "datalist.json").write_bytes(content)
    with refused(f"site-1: datalist.json: {sentence}"):
        opened(folder)


def test_an_item_must_name_image_and_label(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    write_datalist(folder, {"training": ["case-1.nii.gz"]})
    with refused(
        "site-1: datalist.json, training item 1: expected image and label, got another kind of entry",
    ):
        opened(folder)


def test_a_section_that_the_card_promises_must_be_there(tmp_path):
    folder = with_card(make_volume_site(tmp_path / "site"), splits={"train": "datalist.json", "val": "datalist.json"})
    with refused("site-1: datalist.json: expected a list under 'validation', got none"):
        opened(folder)


def test_a_volume_without_a_lesion_is_warned_of_and_a_site_without_any_is_refused(tmp_path, caplog):
    nothing = np.zeros((8, 8, 4), dtype=bool)
    with caplog.at_level(logging.WARNING, logger="fedmend.volumes"):
        opened(make_volume_site(tmp_path / "whole"))
        assert caplog.messages == []
        opened(make_volume_site(tmp_path / "part", [lesion(), nothing, nothing]))
    assert caplog.messages == ["site-1: datalist.json: 2 of 3 training volumes have no annotated lesion"]
    with refused("site-1: datalist.json: expected annotated training volumes, got no lesion in any volume"):
        opened(make_volume_site(tmp_path / "none", [nothing]))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"window": "file"},
            "site-1: site.json, field window: expected null or [centre, width] for volumes, got text",
        ),
        (
            {"classes": ["edema"]},
            "site-1: site.json, field classes: expected the job's ['lesion'], got ['edema'] (missing here: ['lesion'],"
            " unknown to the job: ['edema'])",
        ),
    ],
)
def test_a_card_that_does_not_fit_volumes_is_one_sentence(tmp_path, fields, sentence):
    folder = with_card(make_volume_site(tmp_path / "site"), **fields)
    with refused(sentence):
        opened(folder)


def test_only_one_class_of_lesions_can_be_annotated(tmp_path):
    folder = with_card(make_volume_site(tmp_path / "site"), classes=["a", "b"])
    with refused("site-1: site.json, field classes: expected one class of lesions, got 2"):
        load_volumes(folder, "site-1", ["a", "b"], cache_dir=tmp_path, image_size=8, device=CPU)


# ---- complete masks -------------------------------------------------------------------------------------------------
BOTH = lesion(((2, 4), (3, 6), (1, 3)), ((0, 1), (0, 1), (0, 4)))


def test_complete_masks_are_those_of_the_training_slices(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[0, 1], [3]], complete=[BOTH, lesion()])
    truth = read_datalist(folder, "truth/datalist.json")
    write_datalist(folder, {"training": truth["training"][::-1]}, "truth/datalist.json")  # the order is free
    train = opened(folder).train
    complete = load_complete_masks(folder, "site-1", train)
    assert (complete.shape, complete.dtype) == (train.masks.shape, bool)
    assert complete.sum((1, 2)).tolist() == [1, 7, 0]
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 4]


def test_complete_masks_may_be_unknown(tmp_path):
    folder = make_volume_site(tmp_path / "without")
    assert load_complete_masks(folder, "site-1", opened(folder).train) is None
    folder = make_volume_site(tmp_path / "part", complete=[BOTH])
    assert load_complete_masks(folder, "site-1", opened(folder).train) is None


def test_a_bad_complete_mask_is_one_sentence(tmp_path):
    folder = make_volume_site(tmp_path / "site", complete=[BOTH, BOTH])
    train = opened(folder).train
    write_nifti(folder / "truth" / "labels" / "case-2.nii.gz", BOTH * np.uint8(3))
    with refused("site-1: truth/datalist.json, training item 2, label: expected the values 0 and 1, got others"):
        load_complete_masks(folder, "site-1", train)


def test_a_site_can_train_on_complete_masks(tmp_path):
    folder = make_volume_site(tmp_path / "site", complete=[BOTH, BOTH])
    assert opened(folder, all_labels=True).train.masks.sum((1, 2)).tolist() == [1, 7, 7, 1] * 2
    assert opened(folder).train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]


def test_training_on_complete_masks_needs_them(tmp_path):
    with refused("site-1: site.json, field truth: expected complete masks for all_labels, got none"):
        opened(make_volume_site(tmp_path / "site"), all_labels=True)


# ---- repaired volumes -----------------------------------------------------------------------------------------------
def header_of(label):
    return {name: label.header[name].tolist() for name in label.header if not name.startswith("scl_")}


@pytest.mark.parametrize(("turn", "affine"), [(lambda a: a, RAS), (as_zyx, ZYX)], ids=["RAS", "other axes"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
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

    train = opened(folder).train
    added = np.zeros(train.masks.shape, dtype=bool)
    added[0, 0, 1] = added[3, 6, 2] = True  # row r, column c, slice k is the voxel (c, 7 - r, k)
    added[1] = train.masks[1] > 0  # is lesion already
    counts = write_repaired(train, added, tmp_path / "repaired", foreground=5)

    expected = mask.copy()
    expected[1, 7, 0] = expected[2, 1, 3] = True
    original, (file,) = nibabel.load(label_file), (tmp_path / "repaired").iterdir()
    repaired = nibabel.load(file)
    assert file.name == "001-case-1.nii.gz"
    assert np.array_equal(np.asarray(repaired.dataobj), turn(expected) * 5)
    assert np.array_equal(repaired.affine, original.affine)
    assert header_of(repaired) == header_of(original)
    assert repaired.get_data_dtype() == dtype
    assert counts.tolist() == [[0, 1], [6, 6], [0, 0], [0, 1]]
    assert label_file.read_bytes() == before


def test_voxels_of_a_repaired_volume_are_counted_at_its_own_resolution(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(((0, 2), (6, 8), (1, 2))), lesion()], test=())
    train = opened(folder, size=4).train
    added = np.zeros(train.masks.shape, dtype=bool)
    added[1, 0, 0] = True  # x 0..1, y 6..7: all lesion already
    added[1, 3, 2] = True  # x 4..5, y 0..1
    assert write_repaired(train, added, tmp_path / "out")[:4].tolist() == [[0, 0], [4, 8], [0, 0], [0, 0]]
    (file,) = (tmp_path / "out").iterdir()  # the second volume is as it was
    expected = lesion(((0, 2), (6, 8), (1, 2)), ((4, 6), (0, 2), (1, 2)))
    assert np.array_equal(np.asarray(nibabel.load(file).dataobj), expected)


def test_a_repaired_volume_of_a_scaled_mask_holds_whole_numbers(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion()], test=())
    save_scaled(folder / "labels" / "case-1.nii.gz", lesion())
    train = opened(folder).train
    write_repaired(train, np.arange(4)[:, None, None] * np.ones((8, 8)) == 3, tmp_path / "out")
    repaired = np.asarray(nibabel.load(tmp_path / "out" / "001-case-1.nii.gz").dataobj)
    assert np.array_equal(repaired, lesion() | lesion(((0, 8), (0, 8), (3, 4))))


def test_a_datalist_is_read_in_its_order(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[3, 1], [0]])
    items = load_datalist(load_card(folder, "site-1"), "datalist.json", "train")
    assert [(item.name, item.slices) for item in items] == [("case-1.nii.gz", (1, 3)), ("case-2.nii.gz", (0,))]
    assert items[0].image == (folder / "images" / "case-1.nii.gz").resolve()
    assert items[0].label == folder / "labels" / "case-1.nii.gz"
