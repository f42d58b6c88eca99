import io
import os
import subprocess
import sys
import time
from dataclasses import replace

import nibabel
import numpy as np
import pytest
from factories import CLASSES, color_pixels, make_dicom, pixels, refused, write_png
from nifti_factories import GREY, lesion, make_volume_site, voxels, write_nifti
from PIL import Image

from fedmend.data.card import WINDOWS, SiteCard, load_card
from fedmend.data.datalist import load_datalist
from fedmend.data.raw import MOST_PIXELS, UnreadableImage
from fedmend.data.readers import read_image
from fedmend.data.tables import LabelTable
from fedmend.labels import MULTILABEL
from fedmend.repairs.gallery import LINE
from fedmend.review.pictures import Neighbours, Slices, open_picture, open_slice, overlay_png, picture_problem, png

HU = np.array([[-10, 0, 20], [40, 80, 100]])
ORANGE = (230, 159, 0)
GONE = "expected a file below image_root, not found: it was moved or deleted, or its folder is not mounted"


def card_of(folder, **fields):
    return SiteCard("site-1", folder, MULTILABEL, CLASSES, {"train": "train.csv"}, folder, **fields)


def seen(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def unreadable(sentence):
    return pytest.raises(UnreadableImage, match=f"^{sentence}$")


# ---- images of samples ----------------------------------------------------------------------------------------------
def test_a_dicom_slice_keeps_its_values_and_is_seen_through_any_window(tmp_path):
    make_dicom(tmp_path / "a.dcm", (HU + 1024) // 2, RescaleSlope=2, RescaleIntercept=-1024)
    picture = open_picture(card_of(tmp_path, window=(40.0, 80.0)), "a.dcm")
    assert picture.image.values.tolist() == HU.tolist()
    assert picture.shape == (2, 3)
    assert seen(png(picture)).tolist() == [[0, 0, 64], [128, 255, 255]]
    assert seen(png(picture, 50, 100)).tolist() == [[0, 0, 51], [102, 204, 255]]
    assert seen(png(picture, centre=80)).tolist() == [[0, 0, 0], [0, 128, 191]]
    assert seen(png(picture, width=160)).tolist() == [[48, 64, 96], [128, 191, 223]]
    assert [path.name for path in tmp_path.iterdir()] == ["a.dcm"]


def test_a_dicom_slice_has_the_sites_the_named_and_its_own_windows(tmp_path):
    make_dicom(tmp_path / "own.dcm", HU, WindowCenter=[35, 600], WindowWidth=[70, 2800])
    make_dicom(tmp_path / "none.dcm", HU)
    card = card_of(tmp_path, window=(40.0, 80.0))
    windows = {"site": (40.0, 80.0), **WINDOWS}
    assert dict(open_picture(card, "own.dcm").windows) == {**windows, "file": (35.0, 70.0)}
    assert dict(open_picture(card, "none.dcm").windows) == windows
    assert open_picture(replace(card, window="file"), "own.dcm").windows["site"] == (35.0, 70.0)


@pytest.mark.parametrize("width", [b"0 ", b"-1", b"4x", b"1e"])
def test_a_damaged_window_in_the_header_is_not_offered(tmp_path, width):
    make_dicom(tmp_path / "a.dcm", HU, WindowCenter=35, WindowWidth=70)
    content = (tmp_path / "a.dcm").read_bytes()
    assert content.count(b"70") == 1
    (tmp_path / "a.dcm").write_bytes(content.replace(b"70", width))
    assert "file" not in open_picture(card_of(tmp_path, window=(40.0, 80.0)), "a.dcm").windows


def test_monochrome1_is_inverted_in_every_window(tmp_path):
    make_dicom(tmp_path / "a.dcm", HU, PhotometricInterpretation="MONOCHROME1")
    picture = open_picture(card_of(tmp_path, window=(40.0, 80.0)), "a.dcm")
    assert seen(png(picture)).tolist() == [[255, 255, 191], [127, 0, 0]]
    assert seen(png(picture, 50, 100)).tolist() == [[255, 255, 204], [153, 51, 0]]


@pytest.mark.parametrize(
    ("centre", "width"), [(40, 0), (40, -1), (float("nan"), 80), (40, float("nan")), (40, float("inf")), (2e9, 80)]
)
def test_a_window_that_shows_nothing_is_refused(tmp_path, centre, width):
    make_dicom(tmp_path / "a.dcm", HU)
    picture = open_picture(card_of(tmp_path, window=(40.0, 80.0)), "a.dcm")
    with unreadable(r"expected a window with a width above 0 and numbers up to 10\^9, got another"):
        png(picture, centre, width)


def test_a_slice_of_a_nifti_volume_is_shown_with_the_patients_right_at_the_left(tmp_path):
    volume = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)  # right, front, up
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), tmp_path / "v.nii.gz")
    card = card_of(tmp_path, window=(127.5, 255.0))
    picture = open_picture(card, "v.nii.gz#1")
    expected = [[volume[x, y, 1] for x in (1, 0)] for y in (2, 1, 0)]
    assert seen(png(picture)).tolist() == expected
    assert np.array_equal(read_image(tmp_path / "v.nii.gz#1", card.window), seen(png(picture)))
    assert set(picture.windows) == {"site", *WINDOWS}


def test_values_without_a_unit_have_no_named_windows(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.arange(1001, dtype=np.float32)[:, None], np.eye(4)), tmp_path / "v.nii")
    assert dict(open_picture(card_of(tmp_path), "v.nii").windows) == {"site": pytest.approx((500.5, 989.01))}


def test_a_picture_has_its_own_colours_and_no_window(tmp_path):
    write_png(tmp_path / "color.png", 5, color=True)
    write_png(tmp_path / "grey.PNG", 5)
    picture = open_picture(card_of(tmp_path), "color.png")
    assert np.array_equal(seen(png(picture, 40, 80)), color_pixels(5))
    assert dict(picture.windows) == {}
    assert np.array_equal(seen(png(open_picture(card_of(tmp_path), "grey.PNG")))[..., 0], pixels(5))


# ---- images that cannot be shown ------------------------------------------------------------------------------------
def problem_of(card, image):
    with pytest.raises((UnreadableImage, OSError)) as caught:
        open_picture(card, image)
    return picture_problem(caught.value)


@pytest.mark.parametrize(
    "image", ["../a.png", "b/../../a.png", "/etc/hostname", "/a.png", "v.nii#../../a.png", "a\0.png"]
)
def test_a_path_that_leaves_the_image_root_is_refused(tmp_path, image):
    write_png(tmp_path / "a.png")
    (tmp_path / "root" / "b").mkdir(parents=True)
    assert problem_of(card_of(tmp_path / "root"), image) == "expected a path below image_root, got another"


@pytest.mark.parametrize("image", ["gone.png", ".", "folder"])
def test_an_image_that_vanished_is_one_sentence(tmp_path, image):
    (tmp_path / "folder").mkdir()
    assert problem_of(card_of(tmp_path), image) == GONE


def test_a_name_that_no_file_can_have_is_one_sentence(tmp_path):
    assert problem_of(card_of(tmp_path), "a" * 5000) == "expected a file that can be opened, got an error (OSError)"


def test_a_file_that_is_cut_is_one_sentence_without_its_name(tmp_path):
    make_dicom(tmp_path / "secret.dcm", pixels(0), WindowCenter=40, WindowWidth=80)
    whole = (tmp_path / "secret.dcm").read_bytes()
    for length in range(0, len(whole), 29):
        (tmp_path / "secret.dcm").write_bytes(whole[:length])
        sentence = problem_of(card_of(tmp_path, window="file"), "secret.dcm")
        assert sentence.startswith("expected ")
        assert "secret" not in sentence


def test_a_dicom_header_that_asks_for_too_much_memory_is_refused_at_once(tmp_path):
    make_dicom(tmp_path / "a.dcm", HU)
    content = (tmp_path / "a.dcm").read_bytes()
    rows, columns = (b"\x28\0" + tag + b"\0US\2\0" for tag in (b"\x10", b"\x11"))
    assert rows + b"\2\0" in content
    (tmp_path / "a.dcm").write_bytes(
        content.replace(rows + b"\2\0", rows + b"\xff\xff").replace(columns + b"\3\0", columns + b"\xff\xff")
    )
    sentence = problem_of(card_of(tmp_path, window=(40.0, 80.0)), "a.dcm")
    assert sentence == f"expected at most {MOST_PIXELS} pixels, got more"


def test_voxels_that_are_no_numbers_are_one_sentence(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.array([[0, np.nan]], dtype=np.float32), np.eye(4)), tmp_path / "v.nii")
    assert problem_of(card_of(tmp_path), "v.nii") == "expected finite voxels, got NaN or infinity"


def test_a_site_with_colour_shows_pictures_alone(tmp_path):
    make_dicom(tmp_path / "a.dcm", HU)
    sentence = "expected a DICOM file in colour (site.json says color: true), got a grey one"
    assert problem_of(card_of(tmp_path, window=(40.0, 80.0), color=True), "a.dcm") == sentence


def test_a_file_that_may_not_be_opened_is_one_sentence():
    assert picture_problem(PermissionError(13, "no", "/secret")) == (
        "expected a file that can be opened, got an error (PermissionError)"
    )


# ---- slices of volumes ----------------------------------------------------------------------------------------------
def volume_card(folder, **options):
    card = load_card(make_volume_site(folder, [lesion()], test=(), **options), "site-1")
    return card, load_datalist(card, "datalist.json", "train")[0]


def test_a_slice_of_a_volume_is_shown_with_its_mask_and_the_number_of_slices(tmp_path):
    card, item = volume_card(tmp_path, window=GREY)
    picture = open_slice(card, item, 2)
    assert picture.planes == 4
    assert np.argwhere(picture.mask).tolist() == [[r, c] for r in (2, 3, 4) for c in (2, 3)]  # x 2..3, y 3..5
    grey = voxels(0)[:, :, 2]
    image = seen(png(picture))
    for row, column in ((0, 0), (2, 5), (7, 7)):  # both axes run backwards
        assert image[row, column] == int(grey[7 - column, 7 - row] / 1000 * 255 + 0.5)
    assert set(picture.windows) == {"site", *WINDOWS}


def test_mr_is_seen_through_the_percentiles_of_its_volume(tmp_path):
    card, item = volume_card(tmp_path)
    values = np.zeros((8, 8, 4), dtype=np.int16)
    values.ravel()[:201] = np.arange(1, 202)  # percentiles 2 and 200
    write_nifti(item.image, values)
    picture = open_slice(card, item, 0)
    assert dict(picture.windows) == {"site": pytest.approx((101, 198))}
    assert seen(png(picture))[7, 7] == 0  # the voxel x 0, y 0 is 1
    assert seen(png(picture, 1, 2))[7, 7] == 128


def test_a_volume_is_read_once_for_its_slices_and_again_when_it_changes(tmp_path, monkeypatch):
    card, item = volume_card(tmp_path, window=GREY)
    loads, load = [], nibabel.load
    monkeypatch.setattr(nibabel, "load", lambda path: loads.append(path) or load(path))
    assert not open_slice(card, item, 0).mask.any()
    assert open_slice(card, item, 1).mask.any()
    assert loads == [item.image, item.label]
    write_nifti(item.label, lesion(((0, 1), (0, 1), (0, 1))))
    os.utime(item.label, ns=(0, 0))
    assert open_slice(card, item, 0).mask.sum() == 1


@pytest.mark.parametrize("plane", [-1, 4])
def test_a_slice_that_the_volume_lacks_is_refused(tmp_path, plane):
    card, item = volume_card(tmp_path, window=GREY)
    with unreadable("expected a slice number below 4, got another"):
        open_slice(card, item, plane)


@pytest.mark.parametrize("file", ["image", "label"])
def test_a_volume_that_vanished_or_was_cut_is_one_sentence(tmp_path, file):
    card, item = volume_card(tmp_path, window=GREY)
    path = getattr(item, file)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(Exception, match=f"^this case, {file}: expected a NIfTI file, got a corrupt or truncated one"):
        open_slice(card, item, 0)
    path.unlink()
    with refused(f"this case, {file}: expected a NIfTI file, not found"):
        open_slice(card, item, 0)


# ---- outlines -------------------------------------------------------------------------------------------------------
def test_an_outline_lies_along_the_inside_and_all_else_is_transparent():
    mask = np.zeros((8, 16), dtype=bool)
    mask[2:4, 1:5] = True
    pixels = seen(overlay_png(mask, ORANGE))
    assert pixels.shape == (8 * 64, 16 * 64, 4)
    marked = pixels[..., 3] > 0
    rows, columns = np.flatnonzero(marked.any(1)), np.flatnonzero(marked.any(0))
    assert (rows[0], rows[-1]) == (2 * 64, 4 * 64 - 1)
    assert (columns[0], columns[-1]) == (11 * 64, 15 * 64 - 1)  # columns run backwards, as in the picture
    high, wide = 2 * 64, 4 * 64
    assert marked.sum() == high * wide - (high - 2 * LINE) * (wide - 2 * LINE)
    assert np.unique(pixels[marked], axis=0).tolist() == [[*ORANGE, 255]]


def test_what_is_inside_can_be_tinted():
    pixels = seen(overlay_png(np.ones((1000, 1000), dtype=bool), ORANGE, filled=True))
    assert pixels.shape == (1000, 1000, 4)
    assert pixels[500, 500].tolist() == [*ORANGE, 115]  # 45 %


def test_an_empty_mask_has_no_outline():
    assert not seen(overlay_png(np.zeros((4, 4), dtype=bool), ORANGE, filled=True)).any()


# ---- neighbours -----------------------------------------------------------------------------------------------------
def table_of(images, patients):
    number = len(images)
    labels, rows = np.zeros((number, 3), dtype=np.int8), np.arange(number) + 2
    return LabelTable("train.csv", rows, tuple(images), tuple(patients), labels, np.ones(3, dtype=bool), CLASSES)


def test_neighbours_are_the_samples_of_the_patient_in_the_order_of_their_numbers():
    images = ["a/slice10.dcm", "b/slice1.dcm", "a/slice2.dcm", "a/slice1.dcm", "v.nii#10", "v.nii#9"]
    neighbours = Neighbours(table_of(images, ["P", "Q", "P", "P", "R", "R"]))
    assert [neighbours.of(sample) for sample in (0, 3)] == [([3, 2, 0], 2), ([3, 2, 0], 0)]
    assert neighbours.of(1) == ([1], 0)
    assert neighbours.of(4) == ([5, 4], 1)
    assert (neighbours.count, neighbours.path(3)) == (6, "a/slice1.dcm")


def test_the_pictures_of_studies_are_numbered_through_and_begin_in_the_middle():
    table = replace(table_of(["s1", "s2"], ["", ""]), slices=(("a.dcm", "b.dcm", "c.dcm"), ("d.dcm", "e.dcm")))
    slices = Slices(table)
    assert [slices.of(sample) for sample in (0, 1)] == [([0, 1, 2], 1), ([3, 4], 1)]
    assert (slices.count, slices.path(2), slices.path(4)) == (5, "c.dcm", "e.dcm")


def test_a_sample_without_a_patient_has_no_neighbours():
    neighbours = Neighbours(table_of(["1.png", "2.png"], ["", ""]))
    assert [neighbours.of(sample) for sample in (0, 1)] == [([0], 0), ([1], 0)]


def test_names_of_any_kind_can_be_put_in_order():
    images = ["7", "a", "007b", "a1", "9" * 5000, "٣", "", "1a1"]
    order, _ = Neighbours(table_of(images, ["P"] * 8)).of(0)
    assert [images[sample][:6] for sample in order] == ["", "1a1", "7", "007b", "999999", "a", "a1", "٣"]


def test_neighbours_of_a_hundred_thousand_samples_are_quick():
    images = [f"s{i}.dcm" for i in range(100_000)]
    started = time.process_time()
    neighbours = Neighbours(table_of(images, [f"P{i % 2500}" for i in range(100_000)]))
    for sample in range(100):
        assert len(neighbours.of(sample)[0]) == 40
    assert time.process_time() - started < 2


# ---- time -----------------------------------------------------------------------------------------------------------
def test_images_of_samples_are_shown_without_torch():
    code = "import sys, fedmend.review.pictures, fedmend.repairs.gallery; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
