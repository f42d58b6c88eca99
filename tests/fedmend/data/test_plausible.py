import nibabel
import numpy as np
import pytest
from factories import make_dicom, make_site_folder, pixels
from nifti_factories import make_volume_site, open_volumes, voxels, write_nifti
from PIL import Image
from pydicom import Dataset

from fedmend.data.card import SiteCard, load_card
from fedmend.data.plausible import contact_sheet, findings, marks_most, shares_of, training_pictures

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


# ---- a site ---------------------------------------------------------------------------------------------------------
def ct(path, values, **fields):
    make_dicom(path, np.asarray(values, dtype=np.int16), Modality="CT", **fields)


def card_of(root, window=None):
    return SiteCard("site-1", root, "multilabel", ("mass",), {"train": "train.csv"}, root, window=window)


def warned(root, names, window=None):
    return list(findings(card_of(root, window), names, np.stack([GREY] * 2)).warnings)


def test_ct_without_air_or_with_values_that_no_body_has_is_a_warning(tmp_path):
    plain = np.linspace(-1000, 1500, 64).reshape(8, 8)
    for name, values in {"a": plain, "b": plain + 400, "c": plain * 3}.items():
        ct(tmp_path / name, values)
    assert warned(tmp_path, ["a"], (40.0, 80.0)) == []
    assert warned(tmp_path, ["a", "b", "c"], (40.0, 80.0)) == [
        "1 of 3 images of CT have no air near -1000 HU",
        "1 of 3 images of CT have values beyond -1100 to 4000 HU",
    ]


def test_a_window_in_hu_says_that_volumes_are_ct(tmp_path):
    write_nifti(tmp_path / "v.nii", np.linspace(0, 400, 128).reshape(8, 8, 2))
    assert warned(tmp_path, ["v.nii#0"], (40.0, 400.0)) == ["1 of 1 images of CT have no air near -1000 HU"]
    assert warned(tmp_path, ["v.nii#0"]) == []


def test_volumes_in_hu_without_a_window_are_counted(tmp_path):
    write_nifti(tmp_path / "ct.nii", np.linspace(-1000, 1500, 128).reshape(8, 8, 2).astype(np.int16))
    write_nifti(tmp_path / "scaled.nii", np.linspace(0, 255, 128).reshape(8, 8, 2).astype(np.uint8))
    words = "images of NIfTI have values as CT in HU has, but site.json has no window"
    assert warned(tmp_path, ["ct.nii#0", "scaled.nii#0"]) == [f"1 of 2 {words}"]
    assert warned(tmp_path, ["scaled.nii#0"]) == []
    assert warned(tmp_path, ["ct.nii#0"], (40.0, 400.0)) == []


def test_several_modalities_are_a_warning(tmp_path):
    ct(tmp_path / "a", np.linspace(-1000, 1500, 64).reshape(8, 8))
    make_dicom(tmp_path / "b", np.linspace(-1000, 1500, 64).reshape(8, 8), Modality="MR")
    assert warned(tmp_path, ["a", "b"], (40.0, 80.0)) == ["images of several kinds of modality: CT (1), MR (1)"]


def test_several_planes_are_a_warning(tmp_path):
    values = np.linspace(-1000, 1500, 64).reshape(8, 8)
    turns = {"a": [1, 0, 0, 0, 1, 0], "b": [1, 0, 0, 0, 0.3, -0.95], "c": [0, 1, 0, 0, 0, -1]}
    turns["d"] = [1, 0, 0, 0, 0.9, 0.4]
    for name, turn in turns.items():
        ct(tmp_path / name, values, ImageOrientationPatient=turn)
    ct(tmp_path / "e", values)
    words = "images of several kinds of plane: axial (2), coronal (1), sagittal (1)"
    assert warned(tmp_path, [*turns, "e"], (40.0, 80.0)) == [words]
    assert warned(tmp_path, ["a", "d", "e"], (40.0, 80.0)) == []


def test_scouts_captures_and_other_quantities_among_the_images_are_a_warning(tmp_path):
    values = np.linspace(-1000, 1500, 64).reshape(8, 8)
    ct(tmp_path / "a", values)
    ct(tmp_path / "b", values, ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])
    ct(tmp_path / "c", values, SOPClassUID="1.2.840.10008.5.1.4.1.1.7")
    ct(tmp_path / "d", values, RescaleType="MGML")
    assert warned(tmp_path, ["a"], (40.0, 80.0)) == []
    assert warned(tmp_path, ["c"], (40.0, 80.0)) == []
    assert warned(tmp_path, ["a", "b", "b", "c", "d"], (40.0, 80.0)) == [
        "2 of 5 DICOM images are localizers or scouts",
        "1 of 5 DICOM images are secondary captures",
        "1 of 5 DICOM images are for processing, of MR phase, or of CT in another unit than HU",
    ]


def test_a_frame_that_is_a_scout_is_told_from_the_others_of_its_file(tmp_path):
    groups = [Dataset(), Dataset()]
    for group, word in zip(groups, ("LOCALIZER", "VOLUME"), strict=True):
        kind = Dataset()
        kind.FrameType = ["ORIGINAL", "PRIMARY", word, "NONE"]
        group.CTImageFrameTypeSequence = [kind]
    values = np.stack([np.linspace(-1000, 1500, 64).reshape(8, 8)] * 2)
    ct(tmp_path / "a", values, NumberOfFrames=2, PerFrameFunctionalGroupsSequence=groups)
    assert warned(tmp_path, ["a#0", "a#1"], (40.0, 80.0)) == ["1 of 2 DICOM images are localizers or scouts"]


def test_volumes_that_are_not_stored_from_the_feet_are_counted_by_files(tmp_path):
    volume = np.arange(64, dtype=np.int16).reshape(4, 4, 4)
    head_down, sagittal = np.diag([-1.0, -1, -1, 1]), np.eye(4)[[2, 0, 1, 3]]
    for name, affine in {"a": np.eye(4), "b": head_down, "c": sagittal, "d": np.diag([-1.0, -1, 1, 1])}.items():
        write_nifti(tmp_path / f"{name}.nii", volume, affine)
    names = [f"{name}.nii#{k}" for name in "abcd" for k in (0, 3)]
    assert warned(tmp_path, names) == [
        "2 of 4 volumes are stored from the head down or in another plane: '#k' and 'slices' count axial slices from"
        " the feet, not as the file does"
    ]


def test_headers_with_two_directions_or_none_are_counted(tmp_path):
    volume = np.arange(64, dtype=np.int16).reshape(4, 4, 4)
    image = nibabel.Nifti1Image(volume, np.eye(4))
    image.set_qform(np.diag([-1.0, 1, 1, 1]), 1)
    nibabel.save(image, tmp_path / "two.nii")
    nibabel.save(nibabel.Nifti1Image(volume, None), tmp_path / "none.nii")
    assert warned(tmp_path, ["two.nii#1", "none.nii#1"]) == [
        "1 of 2 volumes have an sform and a qform of other directions: the sform counts",
        "1 of 2 volumes have neither sform nor qform: which side is the left is a guess",
    ]


def test_what_the_reader_put_right_is_counted(tmp_path):
    clear = Image.fromarray(GREY).convert("LA")
    clear.putalpha(Image.fromarray(GREY))
    clear.save(tmp_path / "a.png")
    Image.fromarray(GREY).save(tmp_path / "b.png")
    found = findings(card_of(tmp_path), ["a.png", "b.png"], np.stack([GREY] * 2))
    assert found.lines[1:] == ("1 of 2 images: what is transparent became black",)
    assert found.warnings == ()


def test_images_that_are_all_the_same_grey_teach_nothing(tmp_path):
    white = np.full((3, 8, 8), 255, dtype=np.uint8)
    found = findings(card_of(tmp_path), [], white)
    assert found.impossible == "expected images that differ, got one grey value in all of them"
    white[2] = 254  # three flat images of two values are odd, and can be told apart
    assert findings(card_of(tmp_path), [], white).impossible == ""


def test_pictures_of_a_table_are_those_of_a_job_and_unreadable_ones_are_told_by_row(tmp_path):
    site = make_site_folder(tmp_path / "site-1")
    (site / "images" / "img2.png").write_text("no picture")
    (site / "images" / "img4.png").unlink()
    names, pictures, refused, _ = training_pictures(load_card(site, "site-1"), 8)
    assert len(names) == 6
    assert [picture.tolist() for picture in pictures] == [pixels(i).tolist() for i in (0, 1, 3, 5)]
    assert [sentence.split(":")[0] for sentence in refused] == ["train.csv row 4", "train.csv row 6"]


@pytest.mark.parametrize(
    ("mask", "odd"),
    [
        (lambda body, lesion: lesion, 0),
        (lambda body, lesion: ~lesion, 2),  # the background and all that is healthy
        (lambda body, lesion: body & ~lesion, 2),  # all that is healthy
        (lambda body, lesion: body * 1 + lesion, 2),  # two classes, one of them all around the other
        (lambda body, lesion: body & (np.arange(16) < 8)[:, None, None], 0),  # an organ, half of the body
    ],
)
def test_masks_of_the_background_are_a_warning(tmp_path, mask, odd):
    body, lesion = np.zeros((2, 16, 16, 4), dtype=bool)
    body[2:14, 2:14], lesion[5:8, 5:8, 1:3] = True, True
    site = make_volume_site(tmp_path / "site-1", [mask(body, lesion)] * 2, test=[], classes=("a", "b"))
    for number in (1, 2):
        image = np.where(body, voxels(number, body.shape), 0).astype(np.int16)
        write_nifti(site / "images" / f"case-{number}.nii.gz", image)
    words = "volumes more than two thirds of the body are marked as one class: are background and lesion exchanged?"
    assert training_pictures(load_card(site, "site-1"), 16)[3] == ([f"in {odd} of 2 {words}"] if odd else [])


def test_a_structure_that_is_all_that_a_window_shows_is_none_of_the_background():
    images = np.zeros((2, 20, 20), dtype=np.float16)
    images[:, 9:13, 9:13] = 0.5  # bones
    assert not marks_most(images, (images > 0).astype(np.uint8))
    assert not marks_most(images * 0, (images > 0).astype(np.uint8))


def test_pictures_of_volumes_are_those_of_a_job(tmp_path):
    site = make_volume_site(tmp_path / "site-1")
    _, pictures, refused, _ = training_pictures(load_card(site, "site-1"), 8)
    assert np.array_equal(pictures, open_volumes(site).train.images)
    assert refused == []
    (site / "images" / "case-1.nii.gz").unlink()
    names, pictures, refused, _ = training_pictures(load_card(site, "site-1"), 8)
    assert (len(names), len(pictures)) == (2, 4)
    assert refused == ["datalist.json, training item 1, image: expected a NIfTI file, not found"]
