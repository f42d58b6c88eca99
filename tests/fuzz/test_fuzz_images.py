"""DICOM headers, pictures and volumes: read as an 8-bit image, or refused in one sentence."""

import io
import warnings
import zlib

import nibabel
import numpy as np
import pydicom
import pytest
from factories import make_dicom, pixels
from fuzzing import CHOICES, NASTY, damaged_bytes, number_of_cases, try_all
from PIL import Image

from fedmend.data.raw import UnreadableImage
from fedmend.data.readers import read_image

HEADER = {
    "Rows": [0, 1, 9, 65535],
    "Columns": [0, 7, 65535],
    "BitsAllocated": [0, 1, 8, 12, 32, 64],
    "BitsStored": [0, 1, 33],
    "HighBit": [0, 99],
    "PixelRepresentation": [0, 7],
    "SamplesPerPixel": [0, 3, 65535],
    "NumberOfFrames": [0, 2, -1, 2**31 - 1],
    "PhotometricInterpretation": ["MONOCHROME1", "RGB", "PALETTE COLOR", "YBR_FULL", ""],
    "PlanarConfiguration": [0, 1, 5],
    "RescaleSlope": [0, -1, 1e308, "nan", "inf", "1e999"],
    "RescaleIntercept": [1e308, "-inf", "x", ""],
    "WindowCenter": [40, [40, 80], "nan", "inf", [], "x"],
    "WindowWidth": [0, -1, 80, [80, 200], "inf", "nan", 1e-300, []],
    "NumberOfSlices": [1],
    "LargestImagePixelValue": [0],
    "PixelData": [b"", b"\0", b"\xff" * 127, b"\0" * 4096],
}
SYNTAXES = [
    *("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.1.99"),
    *("1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.90", "1.2.3.4", ""),
]


def read(path, content, window, *, shape=(8, 8)):
    """Nothing that numpy warns about may reach a network either."""
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=RuntimeWarning)
        warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
        image = read_image(path, window)
    assert image.dtype == np.uint8
    assert image.ndim == 2
    assert image.size


def with_header(dataset, choose):
    """The file with up to three other header fields."""
    for _ in range(1 + choose.below(3)):
        name = choose.of(list(HEADER))
        value = choose.of([*HEADER[name], None, choose.of(NASTY)])
        try:
            if value is None and name in dataset:
                delattr(dataset, name)
            else:
                setattr(dataset, name, value)
        except (ValueError, TypeError, OverflowError):  # pydicom does not write what is no value of this field
            continue
    if choose.below(4) == 0:
        dataset.file_meta.TransferSyntaxUID = choose.of(SYNTAXES)
    stream = io.BytesIO()
    try:
        dataset.save_as(stream, enforce_file_format=False)
    except Exception:  # nor a header that contradicts itself
        return b""
    return stream.getvalue()


@pytest.fixture
def slice_of_ct(tmp_path):
    path = tmp_path / "good.dcm"
    make_dicom(path, pixels(1).astype(np.int16), WindowCenter=40, WindowWidth=80)
    return path.read_bytes()


@number_of_cases
@pytest.mark.filterwarnings("ignore")
def test_any_dicom_header_is_read_or_refused_in_one_sentence(tmp_path, slice_of_ct, cases):
    def act(choose):
        pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
        content = with_header(pydicom.dcmread(io.BytesIO(slice_of_ct)), choose)
        read(tmp_path / "x.dcm", content, choose.of(["file", (40.0, 80.0), None]))

    try_all(CHOICES, act, cases, UnreadableImage)


@number_of_cases
@pytest.mark.filterwarnings("ignore")
def test_any_bytes_of_a_dicom_file_are_read_or_refused_in_one_sentence(tmp_path, slice_of_ct, cases):
    def act(content):
        read(tmp_path / "x.dcm", content, "file")

    try_all(damaged_bytes(slice_of_ct), act, cases, UnreadableImage)


def picture(kind, size=8):
    stream = io.BytesIO()
    Image.fromarray(pixels(1, size)).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["png", "jpeg"])
@number_of_cases
def test_any_picture_is_read_or_refused_in_one_sentence(tmp_path, kind, cases):
    def act(content):
        read(tmp_path / f"x.{kind.replace('jpeg', 'jpg')}", content, None)

    try_all(damaged_bytes(picture(kind)), act, cases, UnreadableImage)


@number_of_cases
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_volume_is_read_or_refused_in_one_sentence(tmp_path, cases):
    good = nibabel.Nifti1Image(pixels(1)[..., None].astype(np.int16), np.eye(4)).to_bytes()

    def act(content):
        read(tmp_path / "x.nii", content, None)

    try_all(damaged_bytes(good), act, cases, UnreadableImage)


def test_a_picture_that_would_fill_the_memory_is_refused_in_one_sentence(tmp_path):
    def chunk(name, data):
        return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")

    header = (60_000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10**7)) + chunk(b"IEND", b"")
    bomb = b"\x89PNG\r\n\x1a\n" + content
    (tmp_path / "x.png").write_bytes(bomb)
    with pytest.raises(UnreadableImage, match=r"^expected at most 50000000 pixels, got more$"):
        read_image(tmp_path / "x.png", None)
