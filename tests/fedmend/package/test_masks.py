"""Masks of DICOM series by a tiny package."""

import csv

import nibabel
import numpy as np
import pytest
from factories import make_dicom
from package_factories import balance, make_package

from fedmend.package import masks
from fedmend.package.rows import Rows


def mr_package(folder):
    return make_package(folder, "segmentation", "unet_narrow", ("lesion",), balance, window=None, modality="MR")


def series(folder, planes, uid="1.2.3", **fields):
    where = {"ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "PixelSpacing": [1, 1]}
    for n, plane in enumerate(planes):
        place = {"SeriesInstanceUID": uid, "ImagePositionPatient": [0, 0, 3 * n], **where}
        make_dicom(folder / f"{n}.dcm", plane, Modality="MR", StudyInstanceUID="1.2", **place, **fields)


def test_padding_of_a_series_is_background_to_the_network(tmp_path):
    made, masks = mr_package(tmp_path), []
    planes = np.random.default_rng(0).integers(100, 200, (3, 32, 32))
    for name, value in (("plain", 0), ("padded", 32767)):
        planes[:, :, :8] = value
        series(tmp_path / name, planes, **({"PixelPaddingValue": value} if value else {}))
        made.predict(tmp_path / name, tmp_path / f"{name}_out")
        masks.append(np.asarray(nibabel.load(tmp_path / f"{name}_out" / "masks" / "1.2.3.nii.gz").dataobj))
    assert 0 < masks[0].sum() < masks[0].size
    assert (masks[0] == masks[1]).all()


def test_millilitres_of_a_volume_whose_header_is_in_micrometres_are_millilitres(tmp_path):
    made = mr_package(tmp_path)
    values = np.random.default_rng(0).random((32, 32, 3)).astype(np.float32)
    (tmp_path / "in").mkdir()
    for name, edge, unit in (("a", 2.0, "mm"), ("b", 2000.0, "micron")):
        image = nibabel.Nifti1Image(values, np.diag([edge, edge, edge, 1.0]))
        image.header.set_xyzt_units(unit)
        nibabel.save(image, tmp_path / "in" / f"{name}.nii")
    made.predict(tmp_path / "in", tmp_path / "out")
    with open(tmp_path / "out" / "predictions.csv", newline="") as stream:
        found = [row["lesion_ml"] for row in csv.DictReader(stream)]
    assert found[0] == found[1] != "0"


@pytest.mark.parametrize("uid", ["../other/patient7.nii.gz", "1." + "9" * 300, "a\0b", "\x1b[2J1.2"])
def test_a_series_whose_uid_is_none_is_read_from_its_own_files_and_named_by_a_hash(tmp_path, uid):
    made = mr_package(tmp_path)
    (tmp_path / "other").mkdir()
    nibabel.save(nibabel.Nifti1Image(np.ones((50, 30, 7)), np.eye(4)), tmp_path / "other" / "patient7.nii.gz")
    series(tmp_path / "in", np.random.default_rng(0).integers(100, 200, (3, 32, 32)), uid)
    made.predict(tmp_path / "in", tmp_path / "out")
    with open(tmp_path / "out" / "predictions.csv", newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["problem"] == ""
    assert row["image"].removeprefix("series-").isalnum()
    assert row["mask"] == f"masks/{row['image']}.nii.gz"
    assert nibabel.load(tmp_path / "out" / row["mask"]).shape == (32, 32, 3)


def test_volumes_deep_in_folders_have_masks_with_names_of_their_own(tmp_path):
    made, values = mr_package(tmp_path), np.random.default_rng(0).random((32, 32, 3)).astype(np.float32)
    for first in "ab":
        folder = tmp_path / "in" / first / ("Schädel " * 20) / ("Müller " * 20)
        folder.mkdir(parents=True)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), folder / "FLAIR ü.nii.gz")
    made.predict(tmp_path / "in", tmp_path / "out")
    with open(tmp_path / "out" / "predictions.csv", newline="") as stream:
        masks = [row["mask"] for row in csv.DictReader(stream) if not row["problem"]]
    assert len({*masks}) == 2
    assert all(mask.endswith("-FLAIR ü.nii.gz") and (tmp_path / "out" / mask).is_file() for mask in masks)


def test_a_mask_and_its_name_are_on_the_disk_before_the_table_says_so(tmp_path, monkeypatch):
    made, order = mr_package(tmp_path), []
    values = np.random.default_rng(0).random((32, 32, 3)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "a.nii.gz")
    monkeypatch.setattr(masks, "sync", lambda path: order.append(path.name))
    grown = Rows.add
    monkeypatch.setattr(Rows, "add", lambda *given: (order.append("row"), grown(*given))[1])
    made.predict(tmp_path / "a.nii.gz", tmp_path / "out")
    assert order == ["a.nii.gz", "masks", "row"]
