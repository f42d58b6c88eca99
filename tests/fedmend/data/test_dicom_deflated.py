"""A DICOM file whose whole data set is deflated: read as any other, unless it would fill the memory."""

import numpy as np
import pydicom
import pytest
from factories import make_dicom, pixels
from pydicom.uid import DeflatedExplicitVRLittleEndian

from fedmend.data import dicom_deflated
from fedmend.data.raw import UnreadableImage
from fedmend.data.readers import read_raw

ZEROS = 100_000  # bytes, of which the file keeps about 100


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A deflated file, and where its limit is set."""
    path = tmp_path / "small.dcm"
    make_dicom(path, pixels(1).astype(np.int16))
    image = pydicom.dcmread(path)
    image.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    image.add_new(0x00420011, "OB", bytes(ZEROS))
    image.save_as(path, enforce_file_format=True)
    return path, lambda most: monkeypatch.setattr(dicom_deflated, "MOST_BYTES", most)


def test_a_small_file_that_would_fill_the_memory_when_it_is_inflated_is_refused(packed):
    path, limit = packed
    assert path.stat().st_size < 2000
    limit(ZEROS)
    with pytest.raises(UnreadableImage, match=f"^expected at most {ZEROS} bytes in a deflated DICOM file, got more$"):
        read_raw(path, (128.0, 256.0))


@pytest.mark.parametrize("most", [2 * ZEROS, 2**29], ids=["looked at", "too small to be looked at"])
def test_a_deflated_file_is_read(packed, most):
    path, limit = packed
    limit(most)
    assert np.array_equal(read_raw(path, (128.0, 256.0)).values, pixels(1))


def test_a_file_that_is_not_deflated_may_be_larger(tmp_path, monkeypatch):
    monkeypatch.setattr(dicom_deflated, "MOST_BYTES", 10)
    make_dicom(tmp_path / "plain.dcm", pixels(1).astype(np.int16))
    assert np.array_equal(read_raw(tmp_path / "plain.dcm", (128.0, 256.0)).values, pixels(1))
