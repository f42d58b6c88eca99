"""Values of DICOM files that archives have and that readers get wrong without a word; all numbers by hand."""

import numpy as np
import pydicom
import pytest
from factories import make_dicom
from pydicom import uid
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from fedmend.data.dicom_files import open_dicom
from fedmend.data.dicom_values import NO_SLOPE, TAKEN_FOR_METAL, UNWRAPPED
from fedmend.data.raw import UnreadableImage
from fedmend.data.readers import read_image, read_raw

BRAIN = (40.0, 80.0)  # 0 HU is black, 80 HU white
CT = {"Modality": "CT"}
HU = np.array([[-1000, 0], [40, 80]])
GREY = [[0, 0], [128, 255]]  # of these through the window


def seen(path, window=BRAIN):
    return read_image(path, window).tolist()


def bits(number, *, signed=0):
    return {"BitsStored": number, "HighBit": number - 1, "PixelRepresentation": signed}


# ---- values that were stored modulo a power of two -------------------------------------------------------------------
@pytest.mark.parametrize("stored_bits", [12, 13, 16])
@pytest.mark.parametrize("intercept", [0, -1])
def test_air_that_was_stored_modulo_a_power_of_two_is_black_again_and_the_file_says_so(
    tmp_path, stored_bits, intercept
):
    stored = (HU - intercept) % 2**stored_bits
    make_dicom(tmp_path / "a", stored.astype("<u2"), **CT, **bits(stored_bits), RescaleIntercept=intercept)
    raw = read_raw(tmp_path / "a", BRAIN)
    assert raw.values.tolist() == HU.tolist()
    assert raw.notes == (UNWRAPPED,)
    assert seen(tmp_path / "a") == GREY


@pytest.mark.parametrize(
    "fields",
    [
        {**CT, **bits(12), "RescaleIntercept": -1024},  # room for air
        {**CT, **bits(16, signed=1), "RescaleIntercept": 0},
        {**CT, **bits(8), "RescaleIntercept": 0},  # no HU at all
        {"Modality": "MR", **bits(12), "RescaleIntercept": 0},
    ],
)
def test_large_values_stay_where_they_can_be_what_they_say(tmp_path, fields):
    top = 2 ** (fields["BitsStored"] - fields["PixelRepresentation"]) - 1
    make_dicom(tmp_path / "a", np.array([[0, 1], [2, top]]).astype("<u2").astype("<i2"), **fields)
    raw = read_raw(tmp_path / "a", BRAIN)
    assert raw.values.max() == top + fields["RescaleIntercept"]
    assert raw.notes == ()


def test_metal_just_below_what_air_can_wrap_to_stays_metal(tmp_path):
    make_dicom(tmp_path / "a", [[3071, 3072]], **CT, **bits(12))
    assert read_raw(tmp_path / "a", BRAIN).values.tolist() == [[3071, -1024]]


def head(*, air, inside, metal=0):
    """A slice of 20 x 20 with 16 x 16 of ``inside`` in ``air``, and so many pixels of metal in its middle."""
    stored = np.full((20, 20), air)
    stored[2:18, 2:18] = inside
    stored[10, 5 : 5 + metal] = 4095
    return stored.astype("<u2")


@pytest.mark.parametrize("air", [0, 40])
def test_a_filling_in_a_dental_image_that_is_cut_off_at_0_is_metal_and_the_file_says_so(tmp_path, air):
    make_dicom(tmp_path / "a", head(air=air, inside=1100, metal=8), **CT, **bits(12))
    raw = read_raw(tmp_path / "a", BRAIN)
    assert raw.values[10, 4:6].tolist() == [1100, 4095]
    assert raw.notes == (TAKEN_FOR_METAL,)


def test_much_metal_in_an_image_with_more_of_0_is_metal(tmp_path):
    stored = head(air=0, inside=1100)
    stored[4:10, 4:10] = 4095  # 36 of 400 pixels; 144 are 0
    make_dicom(tmp_path / "a", stored, **CT, **bits(12))
    assert read_raw(tmp_path / "a", BRAIN).values.max() == 4095


def test_little_air_on_the_border_of_a_slice_is_air(tmp_path):
    stored = head(air=40, inside=40)
    stored[0, :6] = 3096  # 1.5 % of the pixels, 8 % of the border
    make_dicom(tmp_path / "a", stored, **CT, **bits(12))
    raw = read_raw(tmp_path / "a", BRAIN)
    assert raw.values[0, 5:7].tolist() == [-1000, 40]
    assert raw.notes == (UNWRAPPED,)


def test_wrapped_air_inside_a_circle_of_0_is_air(tmp_path):
    stored = head(air=0, inside=3096)  # 144 pixels of 0, 256 of air
    make_dicom(tmp_path / "a", stored, **CT, **bits(12))
    assert read_raw(tmp_path / "a", BRAIN).values[10, 0:4:3].tolist() == [0, -1000]


# ---- rescale ---------------------------------------------------------------------------------------------------------
def test_a_slope_that_is_missing_is_1(tmp_path):
    make_dicom(tmp_path / "a", HU + 1024, **CT, RescaleSlope=None, RescaleIntercept=-1024)
    assert seen(tmp_path / "a") == GREY
    assert read_raw(tmp_path / "a", BRAIN).notes == (NO_SLOPE,)


def test_a_slope_of_0_that_makes_all_values_the_same_is_refused(tmp_path):
    make_dicom(tmp_path / "a", HU + 1024, **CT, RescaleSlope=0, RescaleIntercept=-1024)
    with pytest.raises(UnreadableImage, match=r"^expected a RescaleSlope other than 0 in the DICOM header, got 0$"):
        read_raw(tmp_path / "a", BRAIN)


def test_an_empty_slice_of_pet_may_have_a_slope_of_0(tmp_path):
    make_dicom(tmp_path / "a", np.zeros((2, 3)), Modality="PT", RescaleSlope=0, RescaleIntercept=0)
    assert not read_raw(tmp_path / "a", (5.0, 10.0)).values.any()


@pytest.mark.parametrize("modality", ["CT", "ct"])
def test_a_ct_image_without_a_rescale_is_refused_for_a_window_in_hu_and_read_through_its_own(tmp_path, modality):
    fields = {"RescaleSlope": None, "RescaleIntercept": None, "WindowCenter": 1064, "WindowWidth": 81}
    make_dicom(tmp_path / "a", HU + 1024, Modality=modality, **fields)
    with pytest.raises(UnreadableImage, match=r"^expected a rescale in the DICOM header for a window in HU, got none$"):
        read_image(tmp_path / "a", BRAIN)
    assert seen(tmp_path / "a", "file") == [[0, 2], [129, 255]]  # 1023.5 is black, 1103.5 white


def test_a_decimal_comma_in_the_rescale_is_a_decimal_comma(tmp_path):
    make_dicom(tmp_path / "a", HU + 1024, **CT)
    content = (tmp_path / "a").read_bytes()
    dataset = pydicom.dcmread(tmp_path / "a")
    dataset.RescaleIntercept = "-1024.0"
    dataset.save_as(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    assert content.count(b"-1024.0") == 1
    (tmp_path / "a").write_bytes(content.replace(b"-1024.0", b"-1024,0"))
    assert seen(tmp_path / "a") == GREY


# ---- bits ------------------------------------------------------------------------------------------------------------
def compressed_with_16_bits(path, stored, **fields):
    """A JPEG 2000 stream of 16 unsigned bits in a file whose header says fewer."""
    pytest.importorskip("openjpeg")  # which writes such files; others read them too
    make_dicom(path, np.tile(stored, (16, 16)), BitsStored=16, HighBit=15, PixelRepresentation=0)
    dataset = pydicom.dcmread(path)
    dataset.compress(uid.JPEG2000Lossless)
    for name, value in fields.items():
        setattr(dataset, name, value)
    dataset.save_as(path)


def test_bits_above_those_stored_are_no_part_of_a_value_in_a_compressed_file_either(tmp_path):
    with_text = (HU + 1024) | np.array([[0x8000, 0], [0x4000, 0x7000]])
    compressed_with_16_bits(tmp_path / "a", with_text.astype("<u2"), **CT, **bits(12), RescaleIntercept=-1024)
    assert read_raw(tmp_path / "a", BRAIN).values[:2, :2].tolist() == HU.tolist()


def test_a_sign_that_was_not_extended_is_extended(tmp_path):
    compressed_with_16_bits(tmp_path / "a", (HU % 4096).astype("<u2"), **CT, **bits(12, signed=1))
    assert read_raw(tmp_path / "a", BRAIN).values[:2, :2].tolist() == HU.tolist()


@pytest.mark.parametrize("signed", [0, 1])
def test_bits_above_those_stored_are_no_part_of_a_value_in_a_plain_file(tmp_path, signed):
    stored = np.array([[1, 2], [3, 4]]) | 0x7000
    make_dicom(tmp_path / "a", stored, **CT, **bits(12, signed=signed))
    assert read_raw(tmp_path / "a", BRAIN).values.tolist() == [[1, 2], [3, 4]]


def in_the_upper_bits(path, values, *, signed, rle=False, **fields):
    """Values of 12 bits in the upper ones of 16, as old archives keep them."""
    stored = (np.asarray(values) * 16).astype("<i2" if signed else "<u2")
    how = {**CT, "BitsStored": 12, "HighBit": 15, "PixelRepresentation": signed, **fields}
    make_dicom(path, stored.view("<i2"), **how)
    if rle:
        dataset = pydicom.dcmread(path)
        dataset.compress(uid.RLELossless)
        dataset.save_as(path)


@pytest.mark.parametrize("rle", [False, True])
@pytest.mark.parametrize("signed", [0, 1])
def test_values_in_the_upper_bits_are_taken_from_where_highbit_says(tmp_path, signed, rle):
    intercept = 0 if signed else -1024
    in_the_upper_bits(tmp_path / "a", HU - intercept, signed=signed, rle=rle, RescaleIntercept=intercept)
    assert read_raw(tmp_path / "a", BRAIN).values.tolist() == HU.tolist()
    assert seen(tmp_path / "a") == GREY


# ---- padding ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_padding_is_black_whatever_its_value_and_however_values_are_shown(tmp_path, photometric):
    stored = [[-2000, 40], [3000, 40]]
    fields = {"PhotometricInterpretation": photometric, "PixelPaddingValue": 3000}
    make_dicom(tmp_path / "a", stored, **CT, **fields)
    assert seen(tmp_path / "a") == [
        [0 if photometric == "MONOCHROME2" else 255, 128 - (photometric[-1] == "1")],
        [0, 128 - (photometric[-1] == "1")],
    ]


def test_padding_whose_value_has_bits_above_those_stored_is_padding(tmp_path):
    make_dicom(tmp_path / "a", np.array([[63536, 1064]]).astype("<u2"), **CT, **bits(12), PixelPaddingValue=63536)
    assert read_raw(tmp_path / "a", BRAIN).padding.tolist() == [[True, False]]


def test_padding_below_an_overlay_in_the_upper_bits_is_padding(tmp_path):
    fields = {**CT, **bits(12), "RescaleIntercept": -1024, "PixelPaddingValue": 0}
    make_dicom(tmp_path / "a", [[0, 0x4000, 1064]], **fields)
    assert read_raw(tmp_path / "a", BRAIN).padding.tolist() == [[True, True, False]]


def test_a_range_of_padding_is_padding_from_end_to_end(tmp_path):
    make_dicom(tmp_path / "a", [[100, 101], [102, 103]], **CT, PixelPaddingValue=102, PixelPaddingRangeLimit=101)
    assert read_raw(tmp_path / "a", BRAIN).padding.tolist() == [[False, True], [True, False]]


def test_padding_takes_no_part_in_the_window_of_a_series(tmp_path):
    fields = {"Modality": "MR", "PixelPaddingValue": -32768, "SeriesInstanceUID": "1.2.3.4"}
    values = np.arange(1, 1001).reshape(20, 50)
    make_dicom(tmp_path / "a", np.where(values <= 500, values, -32768), **fields)
    make_dicom(tmp_path / "b", np.where(values > 500, values, -32768), **fields)
    # 0.5 % and 99.5 % of 1..1000 by linear interpolation
    low, high = 1 + 0.005 * 999, 1 + 0.995 * 999
    for name in "ab":
        assert read_raw(tmp_path / name, None).window == pytest.approx(((low + high) / 2, high - low), rel=1e-6)


# ---- windows of series -----------------------------------------------------------------------------------------------
def test_each_series_without_a_unit_has_a_window_of_its_own_and_all_of_its_images_share_it(tmp_path):
    ramp = np.arange(1, 401).reshape(20, 20)
    for name, factor, series in (("a", 1, "1.2.1"), ("b", 0.5, "1.2.1"), ("c", 75, "1.2.2")):
        make_dicom(tmp_path / name, ramp * factor, Modality="MR", SeriesInstanceUID=series)
    a, b, c = (read_image(tmp_path / name, None) for name in "abc")
    assert a.max() == c.max() == 255
    assert 120 < b.max() < 130  # half as bright as its neighbour
    assert read_raw(tmp_path / "a", None).window == read_raw(tmp_path / "b", None).window


def test_phase_images_of_a_series_take_no_part_in_the_window_of_the_others(tmp_path):
    fields = {"Modality": "MR", "SeriesInstanceUID": "1.2", "RescaleIntercept": 0}
    make_dicom(tmp_path / "other" / "a", [[10, 20, 30, 40]], **fields)
    make_dicom(tmp_path / "both" / "a", [[10, 20, 30, 40]], ImageType=["ORIGINAL", "PRIMARY", "M"], **fields)
    make_dicom(tmp_path / "both" / "b", [[1, 1000, 2000, 4000]], ImageType=["ORIGINAL", "PRIMARY", "P"], **fields)
    assert seen(tmp_path / "both" / "a", None) == seen(tmp_path / "other" / "a", None)
    assert len({*seen(tmp_path / "both" / "b", None)[0]}) == 4


def test_ct_without_a_window_is_refused_because_it_has_a_unit(tmp_path):
    make_dicom(tmp_path / "a", HU, **CT)
    with pytest.raises(UnreadableImage, match=r"^expected a window in site.json for DICOM"):
        read_image(tmp_path / "a", None)


# ---- functions and tables of the header ------------------------------------------------------------------------------
@pytest.mark.parametrize("function", [None, "LINEAR_EXACT", "SIGMOID"])
def test_the_function_of_the_header_makes_the_grey_values(tmp_path, function):
    fields = {} if function is None else {"VOILUTFunction": function}
    make_dicom(tmp_path / "a", [[0, 25, 50, 100]], WindowCenter=50, WindowWidth=101, **fields)
    exact = {
        None: [(x - 49.5) / 100 + 0.5 for x in (0, 25, 50, 100)],
        "LINEAR_EXACT": [(x - 50) / 101 + 0.5 for x in (0, 25, 50, 100)],
        "SIGMOID": [1 / (1 + np.exp(-4 * (x - 50) / 101)) for x in (0, 25, 50, 100)],
    }[function]
    assert seen(tmp_path / "a", "file") == [[int(min(max(v, 0), 1) * 255 + 0.5) for v in exact]]


def test_a_function_that_nobody_knows_is_refused_where_the_header_makes_the_grey_values(tmp_path):
    make_dicom(tmp_path / "a", [[0, 25, 50, 100]], WindowCenter=50, WindowWidth=100, VOILUTFunction="GAMMA")
    with pytest.raises(UnreadableImage, match=r"^expected LINEAR, LINEAR_EXACT or SIGMOID as VOILUTFunction"):
        read_raw(tmp_path / "a", "file")
    assert seen(tmp_path / "a", [50, 100]) == [[0, 64, 128, 255]]


@pytest.mark.parametrize("depth", [8, 12])
def test_a_table_of_the_header_makes_the_grey_values_and_ends_hold_beyond_it(tmp_path, depth):
    item, top = Dataset(), 2**depth - 1
    item.LUTDescriptor, item.LUTData = [4, 10, depth], [0, top // 5, top // 5 * 2, top]
    item["LUTDescriptor"].VR, item["LUTData"].VR = "US", "US"
    make_dicom(tmp_path / "a", [[0, 10, 11, 12, 13, 900]], VOILUTSequence=Sequence([item]))
    fifth = top // 5 / top * 255
    expected = [0, 0, int(fifth + 0.5), int(2 * fifth + 0.5), 255, 255]
    assert seen(tmp_path / "a", "file") == [expected]


def test_a_table_of_values_below_0_is_one_also_where_its_first_value_has_lost_the_sign(tmp_path):
    item = Dataset()
    item.LUTDescriptor, item.LUTData = [8, 2**16 - 4, 8], [0, 30, 60, 90, 120, 150, 180, 255]
    item["LUTDescriptor"].VR, item["LUTData"].VR = "US", "US"
    make_dicom(tmp_path / "a", [[0, 6, 7, 9, 13, 900]], RescaleIntercept=-10, VOILUTSequence=Sequence([item]))
    assert seen(tmp_path / "a", "file") == [[0, 0, 30, 90, 255, 255]]


def test_a_table_in_words_is_read_in_the_byte_order_of_its_file(tmp_path):
    item = Dataset()
    item.LUTDescriptor, item.LUTData = [3, 10, 12], np.array([0, 819, 4095], dtype=">u2").tobytes()
    item["LUTDescriptor"].VR, item["LUTData"].VR = "US", "OW"
    make_dicom(tmp_path / "a", np.array([[10, 11, 12]], np.int16).byteswap(), VOILUTSequence=Sequence([item]))
    big, little = Dataset(), pydicom.dcmread(tmp_path / "a")
    big.file_meta = little.file_meta
    big.file_meta.TransferSyntaxUID = uid.ExplicitVRBigEndian
    for element in little:
        big.add(element)
    big.save_as(tmp_path / "a", implicit_vr=False, little_endian=False)
    assert seen(tmp_path / "a", "file") == [[0, 51, 255]]  # 819 / 4095 = 1 / 5


# ---- orientation -----------------------------------------------------------------------------------------------------
AXIAL, CORONAL, SAGITTAL = [1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, -1], [0, 1, 0, 0, 0, -1]


@pytest.mark.parametrize("usual", [AXIAL, CORONAL, SAGITTAL])
def test_a_frame_that_is_stored_as_usual_stays_and_any_other_is_turned_to_it(tmp_path, usual):
    stored = np.array([[1, 2, 3], [4, 5, 6]])
    right, down = usual[:3], usual[3:]
    minus = [-v for v in right], [-v for v in down]
    for number, (orientation, array) in enumerate(
        [
            ([*right, *down], stored),
            ([*minus[0], *down], stored[:, ::-1]),
            ([*right, *minus[1]], stored[::-1]),
            ([*minus[0], *minus[1]], stored[::-1, ::-1]),
            ([*down, *right], stored.T),
            ([*minus[1], *right], stored.T[:, ::-1]),
        ]
    ):
        make_dicom(tmp_path / str(number), array, ImageOrientationPatient=orientation)
        assert read_raw(tmp_path / str(number), BRAIN).values.tolist() == stored.tolist(), orientation


# ---- old archives ----------------------------------------------------------------------------------------------------
def test_a_file_without_preamble_or_transfer_syntax_is_read(tmp_path):
    make_dicom(tmp_path / "a", HU, **CT)
    dataset = pydicom.dcmread(tmp_path / "a")
    for name, implicit in (("implicit", True), ("explicit", False)):
        bare = Dataset()
        bare.update(dataset)
        bare.save_as(tmp_path / name, implicit_vr=implicit, little_endian=True, enforce_file_format=False)
        assert b"DICM" not in (tmp_path / name).read_bytes()[:200]
        assert seen(tmp_path / name) == GREY


def test_something_else_is_still_no_dicom_file(tmp_path):
    (tmp_path / "a").write_bytes(b"patient,label\n" * 50)
    with pytest.raises(UnreadableImage, match=r"^expected a DICOM file, got something else$"):
        read_image(tmp_path / "a", BRAIN)


def test_the_private_transfer_syntax_of_ge_has_big_endian_pixels(tmp_path):
    make_dicom(tmp_path / "a", np.array(HU).astype(">i2").view("<i2"), **CT)
    dataset = pydicom.dcmread(tmp_path / "a")
    dataset.file_meta.TransferSyntaxUID = "1.2.840.113619.5.2"
    dataset.save_as(tmp_path / "a", implicit_vr=True, little_endian=True)
    assert seen(tmp_path / "a") == GREY


def test_numbers_with_a_decimal_comma_turn_a_frame_too(tmp_path):
    make_dicom(tmp_path / "a", [[0, 80]], **CT, ImageOrientationPatient=[-1.5, 0, 0, 0, 1.5, 0])
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data.replace(b"1.5", b"1,0"))
    assert seen(tmp_path / "a") == [[255, 0]]  # columns run to the patient's right


def test_warnings_of_pydicom_that_quote_a_header_are_kept_off_the_log(tmp_path, caplog):
    make_dicom(tmp_path / "a", [[0, 80]], **CT, InstanceNumber=1)
    data = (tmp_path / "a").read_bytes()
    place = data.index(b"\x20\0\x13\0IS\x02\0")
    (tmp_path / "a").write_bytes(data[: place + 6] + b"\x06\0Jane99" + data[place + 10 :])
    assert open_dicom(tmp_path / "a").get("InstanceNumber") == "Jane99"
    assert not caplog.records


def test_a_private_transfer_syntax_is_named_as_what_is_in_the_way(tmp_path):
    make_dicom(tmp_path / "a", HU, **CT)
    dataset = pydicom.dcmread(tmp_path / "a")
    dataset.file_meta.TransferSyntaxUID = "1.2.840.113619.5.3"
    dataset.save_as(tmp_path / "a", implicit_vr=True, little_endian=True)
    with pytest.raises(UnreadableImage, match=r"^expected a transfer syntax of the standard, got a private one$"):
        read_image(tmp_path / "a", BRAIN)


def test_a_window_of_the_card_is_linear_although_the_header_has_the_same_one(tmp_path):
    make_dicom(tmp_path / "a", [[0, 20, 40, 80]], **CT, WindowCenter=40, WindowWidth=80, VOILUTFunction="SIGMOID")
    assert seen(tmp_path / "a") == [[0, 64, 128, 255]]
