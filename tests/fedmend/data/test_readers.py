import gzip
import os
import struct

import nibabel
import numpy as np
import pytest
from factories import color_pixels, make_dicom, pixels, write_png
from PIL import Image

from fedmend.data import readers
from fedmend.data.card import WINDOWS
from fedmend.data.look import look_at
from fedmend.data.raw import UnreadableImage, apply_window
from fedmend.data.readers import nifti_volume, open_nifti, read_image, read_raw, resize

BRAIN = WINDOWS["brain"]  # centre 40, width 80: 0..80 HU → 0..255
HU = np.array([[-10, 0, 20], [40, 80, 100]])
SEEN = [[0, 0, 64], [128, 255, 255]]
VOLUME = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)  # right, front, up


def unreadable(sentence):
    return pytest.raises(UnreadableImage, match=f"^{sentence}$")


def write_nifti(path, volume=VOLUME, affine=None):
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4) if affine is None else affine), path)
    return path


def test_a_window_maps_its_range_to_a_byte_and_clips_the_rest():
    seen = apply_window(HU, 40, 80)
    assert seen.dtype == np.uint8
    assert seen.tolist() == SEEN


def test_dicom_values_are_rescaled_by_slope_and_intercept(tmp_path):
    make_dicom(tmp_path / "a.dcm", (HU + 1024) // 2, RescaleSlope=2, RescaleIntercept=-1024)
    assert read_image(tmp_path / "a.dcm", BRAIN).tolist() == SEEN


@pytest.mark.parametrize(
    ("window", "seen"),
    [(WINDOWS["brain"], 128), ("file", 64), ((20.0, 40.0), 255)],
    ids=["named", "own", "numbers"],
)
def test_dicom_is_seen_through_a_named_the_files_own_or_a_numbered_window(tmp_path, window, seen):
    make_dicom(tmp_path / "a.dcm", [[40]], WindowCenter=80, WindowWidth=160)
    assert read_image(tmp_path / "a.dcm", window).tolist() == [[seen]]


def test_a_picture_has_no_number_behind_it(tmp_path):
    write_png(tmp_path / "a.png")
    with unreadable("expected no number behind the '#' of a picture, got one"):
        read_image(tmp_path / "a.png#0", None)


def test_the_first_of_several_own_windows_is_taken(tmp_path):
    make_dicom(tmp_path / "a.dcm", [[40]], WindowCenter=[80, 600], WindowWidth=[160, 2800])
    assert read_image(tmp_path / "a.dcm", "file").tolist() == [[64]]


def test_monochrome1_is_inverted(tmp_path):
    make_dicom(tmp_path / "a.dcm", HU, PhotometricInterpretation="MONOCHROME1")
    assert read_image(tmp_path / "a.dcm", BRAIN).tolist() == (255 - np.array(SEEN)).tolist()


def test_a_name_without_known_suffix_is_read_as_dicom(tmp_path):
    make_dicom(tmp_path / "IM0001", HU)
    assert read_image(tmp_path / "IM0001", BRAIN).tolist() == SEEN


@pytest.mark.parametrize(
    ("fields", "window", "sentence"),
    [
        ({"NumberOfFrames": 2}, BRAIN, "expected 'file#frame' for a multi-frame DICOM file, got no frame of 2"),
        (
            {"SamplesPerPixel": 3},
            BRAIN,
            "expected RGB, YBR or a palette in a DICOM file in colour, got another interpretation",
        ),
        (
            {},
            "file",
            r"expected a window in the DICOM header \(site.json says window: file\), got none",
        ),
        (
            {},
            None,
            r"expected a window in site.json for DICOM \('file', a name or \[centre, width\] in HU\), got none",
        ),
        ({"BitsAllocated": None}, BRAIN, "expected BitsAllocated in the DICOM header, got none"),
    ],
)
def test_a_dicom_file_that_is_not_one_grey_slice_in_a_window_is_refused(tmp_path, fields, window, sentence):
    make_dicom(tmp_path / "a.dcm", np.zeros((2, 4, 4)), **fields)
    with unreadable(sentence):
        read_image(tmp_path / "a.dcm", window)


def test_a_file_that_is_not_dicom_is_refused(tmp_path):
    (tmp_path / "a.dcm").write_bytes(bytes(1000))
    with unreadable("expected a DICOM file, got something else"):
        read_image(tmp_path / "a.dcm", BRAIN)


@pytest.mark.parametrize("ending", [".TIF", ".bmp", ".nrrd", ".mha"])
def test_a_format_that_nobody_reads_is_named(tmp_path, ending):
    (tmp_path / f"a{ending}").write_bytes(b"other" * 99)
    sentence = f"expected DICOM, PNG, JPEG or NIfTI, got a file in {ending.lower()}"
    with unreadable(sentence):
        read_image(tmp_path / f"a{ending}", "brain")
    assert [*look_at(tmp_path, [f"a{ending}"]).unreadable] == [sentence]


def test_a_dicom_file_cut_anywhere_is_refused(tmp_path):
    make_dicom(tmp_path / "whole.dcm", pixels(0), WindowCenter=40, WindowWidth=80)
    whole = (tmp_path / "whole.dcm").read_bytes()
    for length in range(0, len(whole), 3):
        (tmp_path / "cut.dcm").write_bytes(whole[:length])
        with pytest.raises(UnreadableImage, match=r"^expected .*, got "):
            read_image(tmp_path / "cut.dcm", "file")


@pytest.mark.parametrize(("intact", "damaged"), [(b"40", b"4x"), (b"(\x00P\x10DS", b"(\x00P\x10Dp")])
def test_a_damaged_window_in_the_header_is_refused(tmp_path, intact, damaged):
    make_dicom(tmp_path / "a.dcm", pixels(0), WindowCenter=40, WindowWidth=80)
    content = (tmp_path / "a.dcm").read_bytes()
    assert intact in content
    (tmp_path / "a.dcm").write_bytes(content.replace(intact, damaged))
    with unreadable(r"expected readable DICOM pixels, got a corrupt or truncated file \(\w+\)"):
        read_image(tmp_path / "a.dcm", "file")


def test_png_is_taken_as_it_is(tmp_path):
    write_png(tmp_path / "a.PNG", 5)
    assert np.array_equal(read_image(tmp_path / "a.PNG", None), pixels(5))


def test_colour_is_turned_to_grey(tmp_path):
    Image.new("RGB", (3, 2), (255, 0, 0)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png", None).tolist() == [[76] * 3] * 2  # 0.299 * 255


def test_colour_is_kept_where_the_card_says_so(tmp_path):
    write_png(tmp_path / "a.png", 5, color=True)
    seen = read_image(tmp_path / "a.png", None, color=True)
    assert (seen.shape, seen.dtype) == ((8, 8, 3), np.uint8)
    assert np.array_equal(seen, color_pixels(5))


def test_a_grey_picture_in_colour_has_three_equal_channels(tmp_path):
    write_png(tmp_path / "a.png", 5)
    seen = read_image(tmp_path / "a.png", None, color=True)
    assert np.array_equal(seen, np.repeat(pixels(5)[:, :, None], 3, 2))


def test_palettes_become_plain_colour_and_that_is_said(tmp_path):
    Image.new("RGB", (2, 1), (255, 0, 0)).convert("P").save(tmp_path / "a.png")
    raw = read_raw(tmp_path / "a.png", None, color=True)
    assert raw.values.tolist() == [[[255, 0, 0]] * 2]
    assert raw.notes == ("the colours of a palette were taken",)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "RGB"])
def test_what_is_transparent_becomes_black_whatever_lies_beneath(tmp_path, mode):
    beneath, grey = 200, 90
    values = np.full((4, 4), grey, dtype=np.uint8)
    values[:, :2] = beneath
    picture = Image.fromarray(values)
    if mode in ("RGBA", "LA"):
        picture = picture.convert(mode)
        picture.putalpha(Image.fromarray(np.where(values == grey, 255, 0).astype(np.uint8)))
        picture.save(tmp_path / "a.png")
    else:  # one value, or colour, stands for transparent
        key = (beneath,) * 3 if mode == "RGB" else beneath
        palette = picture.convert("P")
        palette.putpalette(np.repeat(np.arange(256, dtype=np.uint8), 3).tobytes())
        (palette if mode == "P" else picture.convert(mode)).save(tmp_path / "a.png", transparency=key)
    raw = read_raw(tmp_path / "a.png", None)
    assert raw.values.tolist() == [[0, 0, grey, grey]] * 4
    assert "what is transparent became black" in raw.notes


def test_a_picture_with_an_opaque_channel_of_transparency_is_taken_as_it_is(tmp_path):
    Image.fromarray(pixels(3)).convert("RGBA").save(tmp_path / "a.png")
    raw = read_raw(tmp_path / "a.png", None)
    assert np.array_equal(raw.values, pixels(3))
    assert raw.notes == ()


@pytest.mark.parametrize("mode", ["CMYK", "LAB", "YCbCr", "F"])
def test_a_picture_of_a_mode_that_is_neither_grey_nor_rgb_is_refused(tmp_path, mode):
    Image.new(mode, (4, 4)).save(tmp_path / "a.png", "TIFF")
    with unreadable(f"expected a picture of 8 bits in grey or RGB, got mode {mode}"):
        read_image(tmp_path / "a.png", None)


def test_a_jpeg_in_colour_is_read_within_its_loss(tmp_path):
    Image.new("RGB", (16, 16), (200, 120, 40)).save(tmp_path / "a.jpg", quality=95)
    seen = read_image(tmp_path / "a.jpg", None, color=True).astype(int)
    assert np.abs(seen - [200, 120, 40]).max() <= 4


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("a.dcm", r"a DICOM file in colour \(site.json says color: true\), got a grey one"),
        ("IM0001", r"a DICOM file in colour \(site.json says color: true\), got a grey one"),
        ("v.nii.gz", r"a picture in colour \(site.json says color: true\), got a NIfTI volume"),
    ],
)
def test_only_pictures_have_colour(tmp_path, name, got):
    if name.endswith(".gz"):
        write_nifti(tmp_path / name, VOLUME[:, :, :1])
    else:
        make_dicom(tmp_path / name, HU)
    with unreadable(f"expected {got}"):
        read_image(tmp_path / name, BRAIN, color=True)


def test_a_16_bit_picture_is_refused_in_colour_too(tmp_path):
    Image.fromarray(np.full((4, 4), 1000, dtype=np.uint16)).save(tmp_path / "a.png")
    with unreadable("expected a picture of 8 bits in grey or RGB, got 16 bits"):
        read_image(tmp_path / "a.png", None, color=True)


def test_jpeg_is_read_within_its_loss(tmp_path):
    ramp = np.tile(np.arange(0, 256, 16, dtype=np.uint8), (16, 1))
    Image.fromarray(ramp).save(tmp_path / "a.jpg", quality=95)
    assert np.abs(read_image(tmp_path / "a.jpg", None).astype(int) - ramp).max() <= 4


def test_a_16_bit_picture_is_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 1000, dtype=np.uint16)).save(tmp_path / "a.png")
    with unreadable("expected a picture of 8 bits in grey or RGB, got 16 bits"):
        read_image(tmp_path / "a.png", None)


@pytest.mark.parametrize(("keep", "error"), [(0, "UnidentifiedImageError"), (80, "OSError")])
def test_a_damaged_picture_is_refused(tmp_path, keep, error):
    write_png(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:keep])
    with unreadable(rf"expected a PNG or JPEG picture, got a corrupt or truncated file \({error}\)"):
        read_image(tmp_path / "a.png", None)


def test_a_picture_for_whose_damage_pillow_has_no_word_is_refused(tmp_path):
    Image.fromarray(pixels(1)).save(tmp_path / "a.png", "TIFF")
    content = (tmp_path / "a.png").read_bytes()
    place = struct.pack("<HH", 273, 4)  # tag and type of StripOffsets, a number; type 2 is a text
    assert place in content
    (tmp_path / "a.png").write_bytes(content.replace(place, struct.pack("<HH", 273, 2)))
    with unreadable(r"expected a PNG or JPEG picture, got a corrupt or truncated file \(TypeError\)"):
        read_image(tmp_path / "a.png", None)


@pytest.mark.parametrize("slice_number", [0, 3])
def test_a_slice_of_a_nifti_volume_is_named_behind_a_hash(tmp_path, slice_number):
    write_nifti(tmp_path / "vol.nii.gz")
    plane = VOLUME[:, :, slice_number]
    expected = [[plane[x, y] for x in (1, 0)] for y in (2, 1, 0)]  # rows from front to back, columns from right to left
    seen = read_image(tmp_path / f"vol.nii.gz#{slice_number}", (127.5, 255.0))
    assert seen.tolist() == expected


def test_a_nifti_volume_in_another_orientation_gives_the_same_slice(tmp_path):
    write_nifti(tmp_path / "ras.nii.gz")
    write_nifti(tmp_path / "lpi.nii.gz", VOLUME[::-1, ::-1, ::-1], np.diag([-1.0, -1, -1, 1]))
    window = (12.0, 24.0)
    assert np.array_equal(read_image(tmp_path / "ras.nii.gz#1", window), read_image(tmp_path / "lpi.nii.gz#1", window))


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1)])
def test_a_nifti_file_with_one_slice_needs_no_number(tmp_path, shape):
    write_nifti(tmp_path / "slice.nii", np.zeros(shape, dtype=np.float32))
    assert read_image(tmp_path / "slice.nii", (0.0, 1.0)).tolist() == [[128] * 4] * 5


def test_slices_of_a_nifti_volume_without_window_share_the_percentiles_of_what_is_not_0_in_it(tmp_path):
    values = np.arange(1002, dtype=np.float32).reshape(3, 2, 167)  # 1..1001 are not 0: 6 is black, 996 white
    write_nifti(tmp_path / "v.nii", values)
    assert read_raw(tmp_path / "v.nii#0", None).window == pytest.approx((501, 990))
    assert read_raw(tmp_path / "v.nii#166", None).window == pytest.approx((501, 990))
    assert read_image(tmp_path / "v.nii#0", None).max() == round((835 - 6) / 990 * 255)


def test_a_nifti_volume_of_one_time_and_one_channel_is_a_volume(tmp_path):
    write_nifti(tmp_path / "v.nii", VOLUME[..., None, None])
    write_nifti(tmp_path / "w.nii")
    assert np.array_equal(read_image(tmp_path / "v.nii#1", (12, 24)), read_image(tmp_path / "w.nii#1", (12, 24)))


def orientation(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def test_a_picture_is_turned_as_its_camera_was(tmp_path):
    upright = np.zeros((8, 16), dtype=np.uint8)
    upright[0, :8] = 255  # the bar is at the top left
    Image.fromarray(upright.T[:, ::-1]).save(tmp_path / "a.png", exif=orientation(8))
    raw = read_raw(tmp_path / "a.png", None)
    assert np.array_equal(raw.values, upright)
    assert raw.notes == ("a picture was turned as its EXIF data say",)


def test_a_turned_picture_that_is_transparent_is_turned_too(tmp_path):
    upright = np.full((8, 16), 100, dtype=np.uint8)
    alpha = np.zeros((8, 16), dtype=np.uint8)
    alpha[0, :8] = 255  # the rest is transparent
    layers = Image.fromarray(np.stack([upright, alpha], axis=-1).transpose(1, 0, 2)[:, ::-1].copy(), "LA")
    layers.save(tmp_path / "a.png", exif=orientation(8))
    assert np.array_equal(read_image(tmp_path / "a.png", None), np.where(alpha, 100, 0))


@pytest.mark.parametrize("channels", [2, 3, 4])
def test_a_16_bit_picture_with_several_channels_is_refused(tmp_path, channels):
    """Pillow opens it in a mode of 8 bits and keeps the upper ones."""
    import struct
    import zlib

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    kind = {2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + np.full((4, channels), 4000, dtype=">u2").tobytes() for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 16, kind, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    with unreadable("expected a picture of 8 bits in grey or RGB, got 16 bits"):
        read_image(tmp_path / "a.png", None)


@pytest.mark.parametrize("form", ["TIFF", "GIF"])
def test_of_a_picture_with_several_pages_the_first_is_taken_and_that_is_said(tmp_path, form):
    pages = [Image.fromarray(pixels(i)) for i in (1, 2)]
    pages[0].save(tmp_path / "a.png", form, save_all=True, append_images=pages[1:])
    raw = read_raw(tmp_path / "a.png", None)
    assert raw.notes[0] == "the first page of a picture with several was taken"
    assert np.array_equal(raw.values, pixels(1))


@pytest.mark.parametrize("colors", [2, 16, 256])
def test_a_palette_of_any_width_gives_its_colours(tmp_path, colors):
    picture = Image.fromarray((np.arange(64).reshape(8, 8) % colors).astype(np.uint8), "P")
    palette = np.array([[i % 256, 255 - i % 256, 7] for i in range(colors)], dtype=np.uint8)
    picture.putpalette(palette.tobytes())
    picture.save(tmp_path / "a.png", bits={2: 1, 16: 4, 256: 8}[colors])
    seen = read_image(tmp_path / "a.png", None, color=True)
    assert np.array_equal(seen, palette[np.arange(64).reshape(8, 8) % colors])


@pytest.mark.parametrize(
    ("shape", "name", "sentence"),
    [
        ((2, 3, 4), "v.nii.gz", "expected 'file.nii.gz#slice' for a volume, got no slice number for 4 slices"),
        ((2, 3, 4), "v.nii.gz#4", "expected a slice number below 4 behind '#', got something else"),
        ((2, 3, 4), "v.nii.gz#-1", "expected a slice number below 4 behind '#', got something else"),
        ((2, 3, 4, 2), "v.nii.gz#0", "expected a slice or a 3-D NIfTI volume, got 4 dimensions"),
        ((2, 3, 4, 1, 2), "v.nii.gz#0", "expected a slice or a 3-D NIfTI volume, got 5 dimensions"),
    ],
)
def test_a_nifti_slice_that_is_not_there_is_refused(tmp_path, shape, name, sentence):
    write_nifti(tmp_path / "v.nii.gz", np.zeros(shape, dtype=np.float32))
    with unreadable(sentence):
        read_image(tmp_path / name, BRAIN)


@pytest.mark.parametrize("kind", ["c8", [("R", "u1"), ("G", "u1"), ("B", "u1")]])
def test_a_nifti_volume_of_colours_or_complex_numbers_is_refused(tmp_path, kind):
    """A conversion would keep the real part, or fail as if the file were damaged."""
    write_nifti(tmp_path / "v.nii", np.zeros((2, 3, 4), dtype=kind))
    with unreadable("expected one real number a voxel, got colours or complex numbers"):
        read_image(tmp_path / "v.nii#0", BRAIN)


def test_a_nifti_slice_with_nan_is_refused(tmp_path):
    write_nifti(tmp_path / "v.nii", np.array([[0, 1], [2, np.nan]], dtype=np.float32))
    with unreadable("expected finite voxels, got NaN or infinity"):
        read_image(tmp_path / "v.nii", None)


def test_a_nifti_file_whose_axes_fall_together_is_refused(tmp_path):
    flat = nibabel.Nifti1Image(VOLUME, None)
    flat.header.set_sform(np.diag([1.0, 1, 0, 1]), code=1)
    nibabel.save(flat, tmp_path / "v.nii")
    with unreadable("expected an affine matrix with three axes in the NIfTI header, got a degenerate one"):
        read_image(tmp_path / "v.nii#0", BRAIN)


def test_a_damaged_nifti_file_is_refused(tmp_path):
    path = write_nifti(tmp_path / "v.nii.gz")
    path.write_bytes(path.read_bytes()[:60])
    with unreadable(r"expected a NIfTI file, got a corrupt or truncated one \(\w+\)"):
        read_image(tmp_path / "v.nii.gz#0", BRAIN)


def test_a_packed_volume_with_one_wrong_byte_is_refused_by_its_checksum(tmp_path):
    write_nifti(tmp_path / "v.nii", np.zeros((64, 64, 16), np.uint8))  # more than is unpacked at once
    content = (tmp_path / "v.nii").read_bytes()
    packed = bytearray(gzip.compress(content, compresslevel=0))  # bytes as they are, so that any other one unpacks, too
    (tmp_path / "v.nii.gz").write_bytes(packed)
    assert not nifti_volume(tmp_path / "v.nii.gz", 0).any()
    packed[packed.index(content[:100]) + 352] = 7  # the first voxel
    (tmp_path / "v.nii.gz").write_bytes(packed)
    with unreadable(r"expected a NIfTI file, got a corrupt or truncated one \(BadGzipFile\)"):
        nifti_volume(tmp_path / "v.nii.gz", 1)


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_a_nifti_file_whose_voxels_would_begin_in_its_header_is_refused(tmp_path, name):
    content = bytearray(write_nifti(tmp_path / "good.nii").read_bytes())
    content[108:112] = struct.pack("<f", 0)  # vox_offset
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with unreadable("expected the voxels of a NIfTI file behind its header, got a vox_offset of 0"):
        nifti_volume(tmp_path / name, 0)


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_a_nifti_file_that_cannot_hold_what_its_header_says_is_refused_before_memory_is_taken(tmp_path, name):
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.uint8)
    header.set_data_shape((300, 300, 300))
    header["vox_offset"] = 352
    content = header.binaryblock + bytes(3000)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with unreadable(r"expected a NIfTI file, got a corrupt or truncated one \(too short for its header\)"):
        read_image(tmp_path / f"{name}#0", BRAIN)


def test_a_volume_of_more_voxels_than_anybody_has_is_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    write_nifti(tmp_path / "v.nii.gz")
    monkeypatch.setattr(readers, "MOST_VOXELS", VOLUME.size)
    assert nifti_volume(tmp_path / "v.nii.gz", 0).shape == VOLUME.shape
    monkeypatch.setattr(readers, "MOST_VOXELS", VOLUME.size - 1)
    with unreadable(f"expected a volume of at most {VOLUME.size - 1} voxels, got more"):
        nifti_volume(tmp_path / "v.nii.gz", 1)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Header, nibabel.Nifti2Header])
def test_a_nifti_file_with_gigabytes_before_its_voxels_is_refused_before_they_are_read(tmp_path, kind, order):
    header = kind(endianness=order)
    header.set_data_shape((2, 2, 2))
    header["vox_offset"], header["magic"] = 2**27, b"n+1" if kind is nibabel.Nifti1Header else header["magic"]
    (tmp_path / "v.nii.gz").write_bytes(gzip.compress(header.binaryblock + bytes(1000)))
    with unreadable("expected the voxels of a NIfTI file within 67108864 bytes, got none there"):
        nifti_volume(tmp_path / "v.nii.gz", 0)


@pytest.mark.parametrize("name", ["v.img", "v.hdr", "v.mgz", "v.nii.bz2"])
def test_other_forms_of_a_volume_are_measured_by_the_file_that_holds_the_voxels(tmp_path, name):
    kind = {"v.mgz": nibabel.MGHImage, "v.nii.bz2": nibabel.Nifti1Image}.get(name, nibabel.Nifti1Pair)
    nibabel.save(kind(np.zeros((80, 80, 20), np.uint8), np.eye(4)), tmp_path / name)
    assert open_nifti(tmp_path / name).shape == (80, 80, 20)


def test_an_empty_mask_that_is_compressed_as_far_as_can_be_is_read(tmp_path):
    image = nibabel.Nifti1Image(np.zeros((300, 300, 50), np.uint8), np.eye(4))
    (tmp_path / "v.nii.gz").write_bytes(gzip.compress(image.to_bytes(), 9))
    assert nifti_volume(tmp_path / "v.nii.gz", 0).shape == (300, 300, 50)


def test_a_volume_is_read_once_for_slices_in_a_row_and_again_when_it_changes(tmp_path, monkeypatch):
    path, loads, load = write_nifti(tmp_path / "v.nii"), [], nibabel.load
    monkeypatch.setattr(nibabel, "load", lambda path: loads.append(path) or load(path))
    first, second = (read_image(tmp_path / f"v.nii#{k}", (12.0, 24.0)) for k in (0, 1))
    assert loads == [path]
    assert not np.array_equal(first, second)
    write_nifti(path, VOLUME[..., ::-1])
    os.utime(path, ns=(0, 0))
    assert np.array_equal(read_image(tmp_path / "v.nii#3", (12.0, 24.0)), first)


@pytest.mark.parametrize("name", ["a.dcm", "a.png", "a.nii.gz#3", "folder"])
def test_a_missing_file_is_told_from_an_unreadable_one(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / name, BRAIN)


def test_resizing_averages_over_what_a_new_pixel_covers():
    halves = np.repeat(np.array([[0, 200]], dtype=np.uint8), 8, axis=1).repeat(16, axis=0)
    small = resize(halves, 4)
    assert (small.shape, small.dtype) == ((4, 4), np.uint8)
    assert small[:, 0].tolist() == [0] * 4
    assert small[:, 3].tolist() == [200] * 4
    noise = pixels(1, 64)
    assert abs(resize(noise, 8).mean() - noise.mean()) < 2  # picking single pixels would be off by far more
    assert resize(noise, 8).std() < noise.std() / 4


def test_an_image_of_the_right_size_is_not_touched():
    assert np.array_equal(resize(pixels(1), 8), pixels(1))
    assert np.array_equal(resize(color_pixels(1), 8), color_pixels(1))


def test_each_colour_is_resized_by_itself():
    image = color_pixels(1, 16)
    small = resize(image, 4)
    assert small.shape == (4, 4, 3)
    assert all(np.array_equal(small[..., c], resize(image[..., c], 4)) for c in range(3))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_picture_with_the_ending_of_something_else_is_called_a_picture(tmp_path, kind):
    Image.fromarray(pixels(1)).save(tmp_path / "a.jfif", format=kind)
    with pytest.raises(UnreadableImage, match=r"^expected the ending .png, .jpg or .jpeg for a picture, got another$"):
        read_image(tmp_path / "a.jfif", None)


def test_dicom_with_the_ending_of_a_picture_is_called_dicom(tmp_path):
    make_dicom(tmp_path / "a.png", pixels(1))
    with pytest.raises(UnreadableImage, match=r"^expected a PNG or JPEG picture, as its name says, got a DICOM file$"):
        read_image(tmp_path / "a.png", None)
