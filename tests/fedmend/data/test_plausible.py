import numpy as np
import pytest
from PIL import Image

from fedmend.data.plausible import contact_sheet, shares_of

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


def test_shares_are_counted_image_by_image():
    black, white = np.zeros((16, 16), dtype=np.uint8), np.full((16, 16), 255, dtype=np.uint8)
    white[0] = GREY[0]
    found = shares_of(np.stack([GREY, black, white]))
    assert found.levels.tolist() == [256, 1, 17]
    assert found.black.tolist() == pytest.approx([1 / 256, 1, 1 / 256])
    assert found.white.tolist() == pytest.approx([1 / 256, 0, 240 / 256])
    assert found.line() == ("grey values in use 17 (median of 3 images), black 34% of the pixels, white 31%")
    assert found.warnings() == [
        "1 of 3 images have one grey value",
        "1 of 3 images are white in more than 50% of their pixels",
    ]


def test_few_grey_values_are_said_and_plausible_images_are_not_warned_of():
    assert shares_of(np.stack([GREY // 64, GREY])).warnings() == ["1 of 2 images have fewer than 8 grey values"]
    assert shares_of(GREY[None] / np.float32(255)).warnings() == []


def test_a_contact_sheet_shows_at_most_24_images_side_by_side(tmp_path):
    images = [np.full((8, 8), number, dtype=np.uint8) for number in range(100)]
    contact_sheet(images, tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (4 * 164 + 4, 6 * 164 + 4, 3)
    assert [int(sheet[80, 80 + 164 * i, 0]) for i in range(6)] == [0, 4, 8, 12, 17, 21]  # 0..99 in 23 steps


def test_a_contact_sheet_keeps_colours_and_takes_half_precision(tmp_path):
    color = np.zeros((8, 8, 3), dtype=np.uint8)
    color[..., 0] = 200
    contact_sheet([color, np.full((8, 8), 0.5, dtype=np.float16)], tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet[80, 80].tolist() == [200, 0, 0]
    assert sheet[80, 244].tolist() == [128, 128, 128]
