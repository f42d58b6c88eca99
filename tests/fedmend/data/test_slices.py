import errno
import logging
import os
import shutil

import nibabel
import numpy as np
import pytest
import torch
from factories import refused
from nifti_factories import (
    GREY,
    lesion,
    make_volume_site,
    open_volumes,
    read_datalist,
    voxels,
    with_card,
    with_item,
    write_datalist,
    write_nifti,
)

from fedmend.data import slices
from fedmend.data.card import load_card
from fedmend.data.slices import LesionsLeft, lesions_left, load_complete_masks
from fedmend.repairs.repaired_volumes import write_repaired


def stores(folder):
    return [p.name for p in (folder.parent / "cache" / "stores").iterdir() if p.suffix != ".lock"]


# ---- what a split holds ---------------------------------------------------------------------------------------------
def test_a_site_is_opened_as_axial_slices_with_masks(tmp_path):
    data = open_volumes(make_volume_site(tmp_path / "site"))
    assert (data.classes, data.kind, data.annotated.tolist()) == (("lesion",), "segmentation", [True])
    train = data.train
    assert (len(train), len(train.items), train.file) == (8, 2, "datalist.json")
    assert (train.images.shape, train.images.dtype) == ((8, 8, 8), np.float16)
    assert (train.masks.shape, train.masks.dtype) == ((8, 8, 8), np.uint8)
    assert train.case.tolist() == [0] * 4 + [1] * 4
    assert train.plane.tolist() == [0, 1, 2, 3] * 2
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]
    assert train.names[5] == "case-2.nii.gz#1"
    assert {name: len(split) for name, split in data.evaluation.items()} == {"test": 4}


def test_pixels_are_what_a_network_takes(tmp_path):
    train = open_volumes(make_volume_site(tmp_path / "site", window=GREY)).train
    pixels = train.pixels(torch.tensor([5, 0]))
    assert (pixels.shape, pixels.dtype) == ((2, 1, 8, 8), torch.float32)
    assert np.array_equal(pixels[0, 0].numpy(), train.images[5].astype(np.float32))
    assert 0 <= pixels.min() < pixels.max() <= 1


def test_slices_and_masks_cannot_be_written(tmp_path):
    train = open_volumes(make_volume_site(tmp_path / "site")).train
    for array in (train.images, train.masks):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0, 0] = 1


def test_slices_without_tissue_are_left_out(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    image = voxels(0)
    image[:, :, 0], image[:, :, 3] = 0, 7
    write_nifti(folder / "images" / "case-1.nii.gz", image)
    assert open_volumes(folder).train.plane.tolist() == [1, 2, 0, 1, 2, 3]


def test_listed_slices_are_used_with_or_without_tissue(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[2, 0], [3]])
    image = voxels(0)
    image[:, :, 0] = 0
    write_nifti(folder / "images" / "case-1.nii.gz", image)
    train = open_volumes(folder).train
    assert list(zip(train.case.tolist(), train.plane.tolist(), strict=True)) == [(0, 0), (0, 2), (1, 3)]
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 4]


def test_slices_are_resized_and_other_sizes_have_other_stores(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(((2, 4), (4, 6), (1, 2)))])
    assert open_volumes(folder).train.masks.sum() == 4
    half = open_volumes(folder, size=4).train
    assert (half.images.shape, half.masks.shape) == ((4, 4, 4), (4, 4, 4))
    assert np.argwhere(half.masks).tolist() == [[1, 1, 1]]
    assert len(stores(folder)) == 4  # train and test of both sizes


def test_the_validation_section_is_the_val_split(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    sections = read_datalist(folder)
    write_datalist(folder, sections | {"validation": sections["test"], "test": []})
    with_card(folder, splits=dict.fromkeys(("train", "val", "test"), "datalist.json"))
    assert {name: len(split) for name, split in open_volumes(folder).evaluation.items()} == {"val": 4}


# ---- the store ------------------------------------------------------------------------------------------------------
def test_a_store_is_built_once(tmp_path, monkeypatch):
    folder = make_volume_site(tmp_path / "site")
    first = open_volumes(folder).train
    monkeypatch.setattr(slices, "read_pair", None)
    again = open_volumes(folder).train
    assert np.array_equal(again.images, first.images)
    assert np.array_equal(again.masks, first.masks)
    assert again.names == first.names


def test_a_changed_mask_makes_another_store_and_fingerprint(tmp_path):
    folder = make_volume_site(tmp_path / "site")
    before = open_volumes(folder).train
    write_nifti(folder / "labels" / "case-1.nii.gz", lesion(((0, 8), (0, 8), (0, 1))))
    after = open_volumes(folder).train
    assert after.masks.sum((1, 2)).tolist() == [64, 0, 0, 0, 0, 0, 4, 4]
    assert before.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]
    assert before.fingerprint() != after.fingerprint()
    assert open_volumes(folder).train.fingerprint() == after.fingerprint()


@pytest.mark.parametrize("change", [{"window": [0, 100]}, {"image_root": "copy"}])
def test_another_window_or_image_root_makes_another_store(tmp_path, change):
    folder = make_volume_site(tmp_path / "site", test=())
    shutil.copytree(folder / "images", folder / "copy")
    open_volumes(folder)
    open_volumes(with_card(folder, **change))
    assert len(stores(folder)) == 2


def test_other_listed_slices_make_another_store(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[1], [2]], test=())
    open_volumes(folder)
    assert open_volumes(with_item(folder, slices=[2, 3])).train.plane.tolist() == [2, 3, 2]


def test_a_store_that_was_not_finished_is_never_seen(tmp_path, monkeypatch):
    folder = make_volume_site(tmp_path / "site")
    label = folder / "labels" / "case-2.nii.gz"
    whole = label.read_bytes()
    label.write_bytes(b"")
    with refused(
        "site-1: datalist.json, training item 2, label: expected a NIfTI file, got a corrupt or truncated one"
        " (ImageFileError)"
    ):
        open_volumes(folder)
    assert stores(folder) == []
    label.write_bytes(whole)
    assert len(open_volumes(folder).train) == 8


@pytest.mark.parametrize("file", ["images.f16", "masks.u8", "slices.json"])
def test_a_damaged_store_is_built_again(tmp_path, file):
    folder = make_volume_site(tmp_path / "site", test=())
    expected = np.array(open_volumes(folder).train.images)
    damaged = folder.parent / "cache" / "stores" / stores(folder)[0] / file
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert np.array_equal(open_volumes(folder).train.images, expected)


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
    monkeypatch.setattr(os, "fsync", fail)
    with refused(f"site-1: datalist.json: cache_dir: {sentence}"):
        open_volumes(folder)
    assert stores(folder) == []


def test_volumes_deeper_than_expected_take_no_more_than_half_of_the_free_space_either(tmp_path, monkeypatch):
    deep = np.zeros((8, 8, 250), dtype=bool)  # of which 100 slices are expected
    deep[3, 3, 3] = True
    folder = make_volume_site(tmp_path / "site", [deep], test=())
    free = 40_000  # more than twice 100 * 8 * 8 * 3 bytes, less than 250 * 8 * 8 * 3
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2 * free, free, free))
    with refused("site-1: datalist.json: cache_dir: expected 1 MB of free space, got a full disk"):
        open_volumes(folder)
    assert stores(folder) == []
    free = 48_000
    assert len(open_volumes(folder).train) == 250


def test_a_volume_without_a_lesion_is_warned_of_and_a_site_without_any_is_refused(tmp_path, caplog):
    nothing = np.zeros((8, 8, 4), dtype=bool)
    with caplog.at_level(logging.WARNING, logger="fedmend.volumes"):
        open_volumes(make_volume_site(tmp_path / "whole"))
        assert caplog.messages == []
        open_volumes(make_volume_site(tmp_path / "part", [lesion(), nothing, nothing]))
    assert caplog.messages == ["site-1: datalist.json: 2 of 3 training volumes have no annotated lesion"]
    with refused(
        "site-1: datalist.json: expected annotated training volumes, got no lesion or structure in any volume"
    ):
        open_volumes(make_volume_site(tmp_path / "none", [nothing]))


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
        open_volumes(folder)


# ---- complete masks -------------------------------------------------------------------------------------------------
BOTH = lesion(((2, 4), (3, 6), (1, 3)), ((0, 1), (0, 1), (0, 4)))


def test_complete_masks_are_those_of_the_training_slices(tmp_path):
    folder = make_volume_site(tmp_path / "site", slices=[[0, 1], [3]], complete=[BOTH, lesion()])
    truth = read_datalist(folder, "truth/datalist.json")
    write_datalist(folder, {"training": truth["training"][::-1]}, "truth/datalist.json")  # the order is free
    train = open_volumes(folder).train
    complete = load_complete_masks(load_card(folder, "site-1"), train, ["lesion"])
    assert (complete.shape, complete.dtype) == (train.masks.shape, np.uint8)
    assert complete.sum((1, 2)).tolist() == [1, 7, 0]
    assert train.masks.sum((1, 2)).tolist() == [0, 6, 4]


def test_a_mask_at_45_degrees_is_turned_as_its_volume(tmp_path):
    mask = lesion(shape=(8, 8, 8))
    folder = make_volume_site(tmp_path / "site", [mask], complete=[mask], test=(), window=GREY)
    for name, angle, array in (
        ("images/case-1.nii.gz", 45.001, np.where(mask, 1000, 1 + np.arange(8)).astype(np.int16)),
        ("labels/case-1.nii.gz", 44.999, mask),  # written by another program
        ("truth/labels/case-1.nii.gz", 45.001, mask),
    ):
        c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
        write_nifti(folder / name, array, np.array([[1, 0, 0, 0], [0, c, -s, 0], [0, s, c, 0], [0, 0, 0, 1]]))
    train = open_volumes(folder).train
    assert np.array_equal(train.masks > 0, train.images == 1)
    card = load_card(folder, "site-1")
    assert np.array_equal(load_complete_masks(card, train, ["lesion"]), train.masks)
    left = lesions_left(card, "train", train)
    assert (left.slices, left.slices_left) == (3, 3)

    change = -(train.masks > 0).astype(np.int8)
    write_repaired(train, change, tmp_path / "repaired")
    assert not np.asarray(nibabel.load(tmp_path / "repaired" / "001-case-1.nii.gz").dataobj).any()


def test_complete_masks_may_be_unknown(tmp_path):
    folder = make_volume_site(tmp_path / "without")
    assert load_complete_masks(load_card(folder, "site-1"), open_volumes(folder).train, ["lesion"]) is None
    folder = make_volume_site(tmp_path / "part", complete=[BOTH])
    assert load_complete_masks(load_card(folder, "site-1"), open_volumes(folder).train, ["lesion"]) is None


def test_a_bad_complete_mask_is_one_sentence(tmp_path):
    folder = make_volume_site(tmp_path / "site", complete=[BOTH, BOTH])
    train = open_volumes(folder).train
    write_nifti(folder / "truth" / "labels" / "case-2.nii.gz", BOTH * np.uint8(3))
    with refused("site-1: truth/datalist.json, training item 2, label: expected the values 0 and 1, got others"):
        load_complete_masks(load_card(folder, "site-1"), train, ["lesion"])


def test_a_site_can_train_on_complete_masks(tmp_path):
    folder = make_volume_site(tmp_path / "site", complete=[BOTH, BOTH])
    assert open_volumes(folder, all_labels=True).train.masks.sum((1, 2)).tolist() == [1, 7, 7, 1] * 2
    assert open_volumes(folder).train.masks.sum((1, 2)).tolist() == [0, 6, 6, 0, 0, 0, 4, 4]


def test_training_on_complete_masks_needs_them(tmp_path):
    with refused("site-1: site.json, field truth: expected complete masks for all_labels, got none"):
        open_volumes(make_volume_site(tmp_path / "site"), all_labels=True)


# ---- lesions at the size of a job -----------------------------------------------------------------------------------
def test_lesions_and_slices_that_vanish_at_the_size_of_a_job_are_counted(tmp_path):
    """From 16 to 4 pixels rows 2, 6, 10, 14 are left, and the columns of these numbers."""
    shape = (16, 16, 4)
    large = ((1, 8), (1, 8), (0, 2))  # two slices
    corner = ((8, 9), (8, 9), (2, 3))  # touches the large one by a corner: one lesion
    lost = ((11, 13), (11, 13), (3, 4))
    hit = ((14, 15), (9, 10), (3, 4))  # row 15 - 9 = 6, column 14
    masks = [lesion(large, corner, shape=shape), lesion(lost, shape=shape), lesion(lost, hit, shape=shape)]
    folder = make_volume_site(tmp_path / "site", masks, test=())
    card = load_card(folder, "site-1")
    whole, small = (open_volumes(folder, size=size).train for size in (16, 4))
    assert lesions_left(card, "train", whole) == LesionsLeft(4, 4, 5, 5)
    assert lesions_left(card, "train", small) == LesionsLeft(4, 2, 5, 3)


def test_lesions_on_slices_that_are_not_used_do_not_count(tmp_path):
    masks = [lesion(((1, 3), (1, 3), (0, 1)), ((1, 3), (1, 3), (3, 4)))]
    folder = make_volume_site(tmp_path / "site", masks, test=(), slices=[[0, 1]])
    split = open_volumes(folder).train
    assert lesions_left(load_card(folder, "site-1"), "train", split) == LesionsLeft(1, 1, 1, 1)
