"""DICOM series as volumes; all numbers by hand."""

import numpy as np
import pytest
from factories import make_dicom, refused

from fedmend.data.dicom_series import slices_of, voxels_of_series
from fedmend.data.volumes import scale

PADDING = 32767


def series(folder, planes, **fields):
    """Files of one series, 3 mm apart, in order."""
    fields = {"Modality": "MR", "ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "PixelSpacing": [1, 1], **fields}
    files = [folder / f"{n}.dcm" for n in range(len(planes))]
    for n, (file, plane) in enumerate(zip(files, planes, strict=True)):
        make_dicom(file, plane, SeriesInstanceUID="1.2.3", ImagePositionPatient=[0, 0, 3 * n], **fields)
    return files


@pytest.mark.parametrize(
    ("fields", "asked", "expected"),
    [
        # 0.5 % and 99.5 % of 101 to 300 by linear interpolation: 101.995 and 299.005
        ({"Modality": "MR"}, None, (200.5, 197.01)),
        ({"Modality": "CT", "RescaleIntercept": -100}, (40.0, 80.0), (40.0, 80.0)),
    ],
)
def test_padding_of_a_series_is_black_and_no_part_of_its_window(tmp_path, fields, asked, expected):
    measured = np.arange(101, 301).reshape(2, 20, 5)
    planes = np.concatenate([np.full((2, 20, 5), PADDING), measured], axis=2)
    files = series(tmp_path, planes, PixelPaddingValue=PADDING, **fields)
    voxels, window = voxels_of_series(slices_of(files, "volume"), "volume", window=asked)
    assert window == pytest.approx(expected, rel=1e-6)
    grey = scale(voxels, window)
    assert (grey[:5] == 0).all()
    assert (voxels[5:] == measured.transpose(2, 1, 0) + fields.get("RescaleIntercept", 0)).all()


def test_a_series_without_padding_keeps_the_window_that_was_asked_for(tmp_path):
    files = series(tmp_path, np.arange(40).reshape(2, 4, 5))
    assert voxels_of_series(slices_of(files, "volume"), "volume", window=None)[1] is None


def test_a_series_whose_header_says_more_frames_than_the_file_holds_is_refused(tmp_path):
    files = series(tmp_path, np.zeros((1, 4, 5)), NumberOfFrames=100_000)
    with refused("volume: expected as many DICOM frames as the file can hold, got another number in its header"):
        slices_of(files, "volume")
