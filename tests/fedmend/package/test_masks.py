"""Masks of DICOM series by a tiny package."""

import nibabel
import numpy as np
from factories import make_dicom
from package_factories import balance, make_package


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
