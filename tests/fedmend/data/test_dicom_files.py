"""DICOM as scanners and archives write it: transfer syntaxes, frames, groups of fields; the encoders are those of the
packages that decode."""

import io

import numpy as np
import pydicom
import pytest
from factories import make_dicom
from PIL import Image
from pydicom import uid
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate

from fedmend.data.dicom_copies import copies_in
from fedmend.data.dicom_files import coded_size, open_dicom
from fedmend.data.dicom_series import slices_of, voxels_of_series
from fedmend.data.raw import UnreadableImage
from fedmend.data.readers import read_image, read_raw
from fedmend.datasets.own_dicom_files import find_images
from fedmend.errors import FedMendError

HU = np.random.default_rng(3).integers(-1024, 3000, (48, 64)).astype(np.int16)
WIDE = (1000.0, 4000.0)
WRITTEN_BY = {uid.JPEGLSLossless: "jpeg_ls", uid.JPEG2000Lossless: "openjpeg", uid.JPEGLosslessSV1: "gdcm"}
LOSSLESS = [uid.RLELossless, *WRITTEN_BY]


def compressed(path, syntax, stored=HU, **fields):
    """The file in a lossless transfer syntax, for which pydicom may need a package."""
    if syntax in WRITTEN_BY:
        pytest.importorskip(WRITTEN_BY[syntax])
    make_dicom(path, stored, **fields)
    if syntax == uid.JPEGLosslessSV1:
        _by_gdcm(path)
    else:
        dataset = pydicom.dcmread(path)
        dataset.compress(syntax)
        dataset.save_as(path)
    return path


def _by_gdcm(path):
    import gdcm

    reader, change, writer = gdcm.ImageReader(), gdcm.ImageChangeTransferSyntax(), gdcm.ImageWriter()
    reader.SetFileName(str(path))
    assert reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer.SetFileName(str(path))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()


def _encapsulated(path, stream, syntax, **fields):
    dataset = pydicom.dcmread(path)
    dataset.PixelData = encapsulate([stream])
    dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = syntax
    for name, value in fields.items():
        setattr(dataset, name, value)
    dataset.save_as(path)


@pytest.mark.parametrize("syntax", LOSSLESS, ids=lambda syntax: syntax.keyword)
def test_signed_16_bits_come_out_of_every_lossless_transfer_syntax_as_they_went_in(tmp_path, syntax):
    compressed(tmp_path / "a", syntax, RescaleSlope=2, RescaleIntercept=-5)
    assert pydicom.dcmread(tmp_path / "a").file_meta.TransferSyntaxUID == syntax
    assert np.array_equal(read_raw(tmp_path / "a", WIDE).values, 2.0 * HU - 5)


def test_a_lossy_jpeg_in_8_bits_is_read_within_its_loss_and_inverted_for_monochrome1(tmp_path):
    ramp = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    stream = io.BytesIO()
    Image.fromarray(ramp).save(stream, "jpeg", quality=95)
    make_dicom(tmp_path / "a", ramp)
    fields = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7, "PixelRepresentation": 0}
    _encapsulated(
        tmp_path / "a", stream.getvalue(), uid.JPEGBaseline8Bit, PhotometricInterpretation="MONOCHROME1", **fields
    )
    seen = read_image(tmp_path / "a", (127.5, 255.0)).astype(int)
    assert np.abs(255 - seen - ramp).max() <= 4


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, uid.RLELossless], ids=lambda syntax: syntax.keyword)
def test_a_frame_of_a_multi_frame_file_is_named_behind_a_hash(tmp_path, syntax):
    stored = np.stack([HU, HU + 1, HU + 2])
    make_dicom(tmp_path / "a", stored, NumberOfFrames=3)
    if syntax.is_encapsulated:
        dataset = pydicom.dcmread(tmp_path / "a")
        dataset.compress(syntax)
        dataset.save_as(tmp_path / "a")
    for frame in (2, 0, 1):
        assert np.array_equal(read_raw(tmp_path / f"a#{frame}", WIDE).values, stored[frame])


@pytest.mark.filterwarnings("error")
def test_no_warning_quotes_a_field_that_is_looked_at_after_the_file_was_opened(tmp_path):
    make_dicom(tmp_path / "1.dcm", HU, SeriesInstanceUID="1.2.3456789")
    content = (tmp_path / "1.dcm").read_bytes()
    (tmp_path / "1.dcm").write_bytes(content.replace(b"1.2.3456789", b"Miller^John"))
    assert open_dicom(tmp_path / "1.dcm").SeriesInstanceUID == "Miller^John"


@pytest.mark.filterwarnings("error")
def test_no_warning_quotes_the_header_of_a_series(tmp_path):
    fields = {"Modality": "MR", "ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "PixelSpacing": [1, 1]}
    for n in range(2):
        place = {"ImagePositionPatient": [0, 0, n], "SeriesInstanceUID": "1.2.3456789"}
        make_dicom(tmp_path / str(n), HU, **fields, **place)
        content = (tmp_path / str(n)).read_bytes()
        (tmp_path / str(n)).write_bytes(content.replace(b"1.2.3456789", b"Miller^John"))  # no UID: pydicom warns
    read_image(tmp_path / "0", None)
    voxels_of_series(slices_of([tmp_path / "0", tmp_path / "1"], "volume"), "volume", window=None)
    assert copies_in([("1.2.3", "0"), ("1.2.3", "1")], tmp_path) == ({1}, 0)


@pytest.mark.parametrize("frame", ["3", "-1", "x", "1.0"])
def test_a_frame_that_is_not_there_is_refused(tmp_path, frame):
    make_dicom(tmp_path / "a", np.stack([HU] * 3), NumberOfFrames=3)
    with pytest.raises(UnreadableImage, match=r"^expected a frame number below 3 behind '#', got something else$"):
        read_raw(tmp_path / f"a#{frame}", WIDE)


def test_a_multi_frame_file_that_changes_is_read_again(tmp_path):
    make_dicom(tmp_path / "a", np.stack([HU, HU]), NumberOfFrames=2)
    read_raw(tmp_path / "a#1", WIDE)
    make_dicom(tmp_path / "a", np.stack([HU, HU + 9]), NumberOfFrames=2)
    assert np.array_equal(read_raw(tmp_path / "a#1", WIDE).values, HU + 9)


def item(**fields):
    found = Dataset()
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def test_an_enhanced_file_has_its_rescale_shared_and_its_window_frame_by_frame(tmp_path):
    values = item(RescaleSlope=1, RescaleIntercept=-1000)
    windows = [item(WindowCenter=centre, WindowWidth=100) for centre in (40, 60)]
    make_dicom(
        tmp_path / "a",
        np.stack([HU, HU]),
        NumberOfFrames=2,
        RescaleSlope=None,
        RescaleIntercept=None,
        SharedFunctionalGroupsSequence=[item(PixelValueTransformationSequence=[values])],
        PerFrameFunctionalGroupsSequence=[item(FrameVOILUTSequence=[window]) for window in windows],
    )
    for frame, centre in ((0, 40), (1, 60)):
        raw = read_raw(tmp_path / f"a#{frame}", "file")
        assert raw.window == (centre, 100)
        assert np.array_equal(raw.values, HU - 1000.0)


def test_a_transfer_syntax_without_decoder_is_named_with_the_packages_that_bring_one(tmp_path, monkeypatch):
    compressed(tmp_path / "a", uid.JPEGLSLossless)
    decoder = pydicom.pixels.get_decoder(uid.JPEGLSLossless)
    monkeypatch.setattr(decoder, "_available", {})
    sentence = (
        r"^expected a decoder for the transfer syntax JPEG-LS Lossless Image Compression \(pip install"
        r" 'fedmend\[dicom\]'\), got none installed$"
    )
    with pytest.raises(UnreadableImage, match=sentence):
        read_raw(tmp_path / "a", WIDE)


@pytest.mark.parametrize("found", [{}, {"gdcm": None, "pillow": None}])
def test_lossy_jpeg_in_12_bits_needs_another_package_than_all_other_kinds(tmp_path, monkeypatch, found):
    make_dicom(tmp_path / "a", HU, BitsStored=12, HighBit=11, PixelRepresentation=0)
    _encapsulated(tmp_path / "a", b"1234", uid.JPEGExtended12Bit)
    monkeypatch.setattr(pydicom.pixels.get_decoder(uid.JPEGExtended12Bit), "_available", found)
    sentence = (
        r"^expected a decoder for the transfer syntax JPEG Extended \(Process 2 and 4\) \(pip install pylibjpeg"
        r" pylibjpeg-libjpeg\), got none installed$"
    )
    with pytest.raises(UnreadableImage, match=sentence):
        read_raw(tmp_path / "a", WIDE)
    with pytest.raises(FedMendError, match=r"here \(pip install pylibjpeg pylibjpeg-libjpeg\), got also JPEG Extended"):
        find_images(tmp_path)


def test_a_film_is_no_transfer_syntax_of_images(tmp_path):
    make_dicom(tmp_path / "a", HU)
    _encapsulated(tmp_path / "a", b"1234", uid.MPEG2MPML)
    with pytest.raises(UnreadableImage, match=r"^expected a transfer syntax for still images, got another$"):
        read_raw(tmp_path / "a", WIDE)


@pytest.mark.parametrize("syntax", WRITTEN_BY, ids=lambda syntax: syntax.keyword)
def test_compressed_pixels_of_another_size_than_the_header_says_are_refused_before_they_are_decoded(
    tmp_path, syntax, monkeypatch
):
    compressed(tmp_path / "a", syntax)
    dataset = pydicom.dcmread(tmp_path / "a")
    dataset.Rows = 8
    dataset.save_as(tmp_path / "a")
    monkeypatch.setattr(type(pydicom.pixels.get_decoder(syntax)), "as_array", None)
    with pytest.raises(
        UnreadableImage, match=r"^expected compressed pixels of the size in the DICOM header, got others$"
    ):
        read_raw(tmp_path / "a", WIDE)


@pytest.mark.parametrize("kind", ["jpeg", "jpeg2000"])
@pytest.mark.parametrize("fill", [b"", b"\xff\xff"])
def test_the_size_of_a_stream_is_read_from_its_first_bytes(kind, fill):
    stream = io.BytesIO()
    Image.new("L", (24, 16)).save(stream, kind)
    content = stream.getvalue()
    if kind == "jpeg":
        content = content[:2] + fill + content[2:]
    assert coded_size(content) == (16, 24)


def test_a_stream_cut_before_its_size_and_one_of_another_kind_have_none():
    assert coded_size(b"\xff\xd8\xff\xe0\0\x10JFIF") is None
    assert coded_size(b"\xff\xd8" + b"\xff\xe0\0\0" * 3) is None
    assert coded_size(bytes(64)) is None


@pytest.mark.parametrize(
    "field",
    [
        *("Rows", "Columns", "BitsAllocated", "SamplesPerPixel", "PhotometricInterpretation", "BitsStored"),
        "PixelRepresentation",
    ],
)
def test_a_field_that_a_header_lacks_is_named(tmp_path, field):
    make_dicom(tmp_path / "a", HU)
    dataset = pydicom.dcmread(tmp_path / "a")
    delattr(dataset, field)
    dataset.save_as(tmp_path / "a")
    with pytest.raises(UnreadableImage, match=f"^expected {field} in the DICOM header, got none$"):
        read_image(tmp_path / "a", WIDE)


@pytest.mark.parametrize("syntax", [uid.ExplicitVRLittleEndian, uid.RLELossless], ids=lambda syntax: syntax.keyword)
def test_a_header_without_pixels_is_called_so(tmp_path, syntax):
    make_dicom(tmp_path / "a", HU)
    dataset = pydicom.dcmread(tmp_path / "a")
    dataset.file_meta.TransferSyntaxUID = syntax
    del dataset.PixelData
    dataset.save_as(tmp_path / "a")
    with pytest.raises(UnreadableImage, match=r"^expected pixels in the DICOM file, got none$"):
        read_image(tmp_path / "a", WIDE)


@pytest.mark.parametrize("word", ["monochrome1", " MONOCHROME1"])
def test_a_photometric_interpretation_counts_in_whatever_letters(tmp_path, word):
    make_dicom(tmp_path / "a", HU, PhotometricInterpretation="MONOCHROME1")
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(content.replace(b"MONOCHROME1 ", word.ljust(12).encode()))
    assert np.array_equal(read_image(tmp_path / "b", WIDE), read_image(tmp_path / "a", WIDE))
