"""DICOM in colour, as dermatoscopes, cameras and ultrasound machines write it."""

import io

import numpy as np
import pydicom
import pytest
from factories import color_pixels, make_dicom
from PIL import Image
from pydicom import uid
from pydicom.encaps import encapsulate
from pydicom.pixels import convert_color_space

from fedmend.data.dicom_files import read_dicom
from fedmend.data.look import look_at
from fedmend.data.raw import UnreadableImage
from fedmend.data.readers import read_image, read_raw

SKIN = color_pixels(4, 16)
SMOOTH = np.stack(np.broadcast_arrays(np.arange(16)[:, None] * 9, np.arange(16) * 7, 90), axis=-1).astype(np.uint8)


def make_colored(path, stored, *, syntax=uid.ExplicitVRLittleEndian, stream=None, **fields):
    """A DICOM file of (H, W, samples) or (frames, H, W, samples) uint8, or of its compressed stream."""
    stored = np.asarray(stored)
    frames = stored.shape[0] if stored.ndim == 4 else None
    make_dicom(path, np.zeros(stored.shape[-3:-1]))
    dataset = pydicom.dcmread(path)
    about = {"Modality": "XC", "PhotometricInterpretation": "RGB", "SamplesPerPixel": stored.shape[-1]}
    bits = {"BitsAllocated": 8, "BitsStored": 8, "HighBit": 7, "PixelRepresentation": 0, "PlanarConfiguration": 0}
    for name, value in {**about, **bits, **({"NumberOfFrames": frames} if frames else {}), **fields}.items():
        setattr(dataset, name, value)
        if name.endswith("Descriptor"):
            dataset[name].VR = "US"
    del dataset.RescaleSlope, dataset.RescaleIntercept
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.PixelData = encapsulate([stream]) if stream else stored.tobytes()
    dataset["PixelData"].VR = "OB"
    dataset["PixelData"].is_undefined_length = stream is not None
    dataset.save_as(path)
    return path


def jpeg(picture, kind="jpeg", **options):
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("window", [None, "file", (40.0, 80.0)])
def test_colour_is_taken_as_it_is_whatever_the_window(tmp_path, window):
    make_colored(tmp_path / "a", SKIN)
    assert np.array_equal(read_image(tmp_path / "a", window, color=True), SKIN)
    assert read_raw(tmp_path / "a", window, color=True).window is None


def test_colour_is_turned_as_its_orientation_says(tmp_path):
    plain = read_image(make_colored(tmp_path / "a", SKIN), None, color=True)
    turned = make_colored(tmp_path / "b", SKIN[:, ::-1], ImageOrientationPatient=[-1, 0, 0, 0, 1, 0])
    assert (read_image(turned, None, color=True) == plain).all()
    assert (read_image(turned, (40.0, 80.0)) == read_image(tmp_path / "a", None)).all()


def test_colour_is_turned_to_grey_as_that_of_a_picture_is(tmp_path):
    make_colored(tmp_path / "a", SKIN)
    Image.fromarray(SKIN).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a", (40.0, 80.0)), read_image(tmp_path / "a.png", None))


def test_planes_of_colours_and_ybr_come_out_as_rgb(tmp_path):
    make_colored(tmp_path / "planes", SKIN.transpose(2, 0, 1).reshape(16, 16, 3), PlanarConfiguration=1)
    assert np.array_equal(read_image(tmp_path / "planes", None, color=True), SKIN)
    stored = convert_color_space(SKIN, "RGB", "YBR_FULL")
    make_colored(tmp_path / "ybr", stored, PhotometricInterpretation="YBR_FULL")
    seen = read_image(tmp_path / "ybr", None, color=True)
    assert np.abs(seen.astype(int) - SKIN).max() <= 2


@pytest.mark.parametrize(
    ("syntax", "kind", "options", "said"),
    [
        (uid.JPEGBaseline8Bit, "jpeg", {"quality": 95}, "YBR_FULL_422"),
        (uid.JPEG2000Lossless, "jpeg2000", {"irreversible": False, "mct": 1, "no_jp2": True}, "YBR_RCT"),
    ],
)
def test_compressed_colour_is_read(tmp_path, syntax, kind, options, said):
    stream = jpeg(SMOOTH, kind, **options)
    make_colored(tmp_path / "a", SMOOTH, syntax=syntax, stream=stream, PhotometricInterpretation=said)
    seen = read_image(tmp_path / "a", None, color=True).astype(int)
    assert np.abs(seen - SMOOTH).max() <= (0 if kind == "jpeg2000" else 8)


def test_a_frame_in_colour_is_named_behind_a_hash(tmp_path):
    make_colored(tmp_path / "a", np.stack([SKIN, SKIN[::-1]]))
    assert np.array_equal(read_image(tmp_path / "a#1", None, color=True), SKIN[::-1])
    with pytest.raises(UnreadableImage, match=r"^expected 'file#frame' for a multi-frame DICOM file"):
        read_image(tmp_path / "a", None, color=True)


@pytest.mark.parametrize("frames", ["", 0, 1])
def test_a_file_in_colour_with_more_frames_than_its_header_says_is_refused(tmp_path, frames):
    make_colored(tmp_path / "a", np.stack([SKIN, SKIN[::-1]]), NumberOfFrames=frames)
    with pytest.raises(UnreadableImage, match=r"^expected one frame, got 2$"):
        read_image(tmp_path / "a", None, color=True)


def palette(bits, *tables):
    """Header of pictures in numbers of colours, by the bytes of the three tables of two colours."""
    fields = {"PhotometricInterpretation": "PALETTE COLOR"}
    for name, table in zip(("Red", "Green", "Blue"), tables, strict=True):
        fields[f"{name}PaletteColorLookupTableDescriptor"] = [2, 0, bits]
        fields[f"{name}PaletteColorLookupTableData"] = table.tobytes()
    return fields


COLOURS = np.array([[10, 20, 30], [250, 120, 7]], dtype=np.uint8)
NUMBERS = np.arange(16 * 16).reshape(16, 16, 1).astype(np.uint8) % 2


@pytest.mark.parametrize("bits", [8, 16])
def test_numbers_of_a_palette_become_its_colours(tmp_path, bits):
    stored = COLOURS if bits == 8 else COLOURS.astype("<u2") * 257
    make_colored(tmp_path / "a", NUMBERS, **palette(bits, *stored.T))
    assert np.array_equal(read_image(tmp_path / "a", None, color=True), COLOURS[NUMBERS[..., 0]])


@pytest.mark.parametrize("bits", [8, 16])
def test_the_tables_of_colours_of_a_big_endian_file_are_read_in_its_byte_order(tmp_path, bits):
    # Two entries of 8 bits in one word, the first one in its lower half; of 16 bits the lower half is not shown.
    stored = COLOURS[::-1] if bits == 8 else (COLOURS.astype(np.uint16) * 256 + 77).astype(">u2")
    swapped = NUMBERS.reshape(-1, 2)[:, ::-1].reshape(16, 16, 1)
    make_colored(tmp_path / "a", swapped, **palette(bits, *stored.T))
    little = pydicom.dcmread(tmp_path / "a")
    big = pydicom.Dataset()
    big.file_meta = little.file_meta
    big.file_meta.TransferSyntaxUID = uid.ExplicitVRBigEndian
    for element in little:
        big.add(element)
    big["PixelData"].VR = "OW"
    big.save_as(tmp_path / "a", implicit_vr=False, little_endian=False)
    assert np.array_equal(read_image(tmp_path / "a", None, color=True), COLOURS[NUMBERS[..., 0]])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"BitsAllocated": 16, "BitsStored": 16, "HighBit": 15, "Columns": 8},
            "expected three channels of 8 bits in a DICOM file in colour, got others",
        ),
        (
            {"PhotometricInterpretation": "MONOCHROME2"},
            "expected RGB, YBR or a palette in a DICOM file in colour, got another interpretation",
        ),
    ],
)
def test_colour_that_cannot_be_shown_in_8_bits_is_refused(tmp_path, fields, sentence):
    make_colored(tmp_path / "a", SKIN, **fields)
    with pytest.raises(UnreadableImage, match=f"^{sentence}$"):
        read_dicom(tmp_path / "a", "", None, color=True)


def test_a_look_at_dicom_in_colour_proposes_colour_and_no_window(tmp_path):
    make_colored(tmp_path / "a", SKIN)
    seen = look_at(tmp_path, ["a"])
    assert seen.unreadable == {}
    assert seen.window() == (None, "pictures in 8 bits are taken as they are")
    assert seen.in_color() == (True, "1 of 1 pictures have channels that differ")
    assert "photometric: RGB (1)" in seen.lines()


def test_a_look_at_grey_slices_beside_a_photograph_proposes_a_window_and_grey(tmp_path):
    make_colored(tmp_path / "a", SKIN)
    for name in "bc":
        make_dicom(tmp_path / name, np.zeros((16, 16)), Modality="CT", BodyPartExamined="CHEST")
    seen = look_at(tmp_path, "abc")
    assert seen.window()[0] == "lung"
    assert seen.in_color() == (False, "not all images are pictures")
