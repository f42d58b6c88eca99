import json
import re
import shutil
from collections import namedtuple

import numpy as np
import pytest
from factories import CLASSES, LABELS, make_dicom, make_site_folder, pixels, write_png
from nifti_factories import lesion, make_volume_site, voxels, write_nifti
from PIL import Image
from sitecheck_factories import change_settings, found, make_job, shown

from fedmend.data.store import open_store
from fedmend.data.tables import write_table
from fedmend.site.config import read_site_config
from fedmend.site.privacy import Account, Privacy

FEDIA = "fedmend.methods.fedia.FedIA"
UNREADABLE = "expected a PNG or JPEG picture, got a corrupt or truncated file (UnidentifiedImageError)"


def test_a_card_of_another_task_than_the_method_learns_from_is_refused(site, job, tmp_path):
    assert found("site card", site, job=job) == ["ok    site card: multilabel, 3 classes, splits train"]
    other = make_job(tmp_path / "ms", method=FEDIA)
    assert found("site card", site, job=other) == [
        "fail  site card: site.json, field task: expected 'segmentation' for the method of the job, got 'multilabel'"
    ]
    (site / "site.json").unlink()
    assert found("site card", site) == [
        "fail  site card: site.json: expected in the folder that data_root names, not found"
    ]


def test_class_names_are_compared_with_the_job_and_the_rest_is_checked_all_the_same(site, job):
    passed = ["ok    class names: the 3 classes of the job"]
    assert found("class names", site, job=job) == passed
    assert found("class names", site, classes=CLASSES[::-1]) == passed
    assert found("class names", site) == ["skip  class names: needs the site card, and --job or --classes"]
    assert found("class names", site, classes=("edema", "nodule")) == [
        "fail  class names: site.json, field classes: expected the job's ['edema', 'nodule'], got"
        " ['edema', 'fracture', 'nodule'] (missing here: [], unknown to the job: ['fracture'])"
    ]
    assert found("images", site, classes=("edema", "nodule")) == ["ok    images: all 6 read"]


def test_tables_are_read_the_complete_one_too(tmp_path):
    site = make_site_folder(tmp_path / "site-1", splits=("val",), truth=np.zeros((6, 3), dtype=np.int8))
    assert found("tables", site) == ["ok    tables: train 6, val 6, truth 6 images"]
    (site / "truth.csv").write_text((site / "truth.csv").read_text().replace("img1.png,0,0,0", "img1.png,0,0,maybe"))
    assert found("tables", site) == [
        "fail  tables: truth.csv row 3, column nodule: expected 1, 0 or blank, got text of 5 characters"
    ]


def test_every_unreadable_row_is_listed(tmp_path):
    site = make_site_folder(tmp_path / "site-1", splits=("test",))
    assert found("images", site) == ["ok    images: all 12 read"]
    (site / "images" / "img1.png").unlink()
    for number in (3, 4):
        (site / "images" / f"img{number}.png").write_text("no picture")
    rows = [(3, "expected a file below image_root, not found"), (5, UNREADABLE), (6, UNREADABLE)]
    assert found("images", site) == [
        "fail  images: expected no missing image and at most 0 unreadable ones per split, got 6 in all",
        *(f"        {file} row {row}: {reason}" for file in ("train.csv", "test.csv") for row, reason in rows),
    ]


def test_at_most_ten_unreadable_rows_are_listed(tmp_path):
    site = make_site_folder(tmp_path / "site-1", np.tile(LABELS, (2, 1)))
    shutil.rmtree(site / "images")
    line, *rows = found("images", site)
    assert line == "fail  images: expected no missing image and at most 0 unreadable ones per split, got 12 in all"
    assert rows[0] == "        train.csv row 2: expected a file below image_root, not found"
    assert rows[9:] == [
        "        train.csv row 11: expected a file below image_root, not found",
        "        and 2 more",
    ]


def test_tolerated_unreadable_images_are_a_warning(site, kit):
    (site / "images" / "img2.png").write_text("no picture")
    expected = [
        "warn  images: expected every image readable, got 1 that are left out, as max_unreadable allows",
        f"        train.csv row 4: {UNREADABLE}",
    ]
    assert found("images", site, max_unreadable=1) == expected
    assert found("images", kit=kit)[0].startswith("fail  images: ")
    change_settings(kit, max_unreadable=1)
    assert found("images", kit=kit) == expected
    assert found("images", kit=kit, max_unreadable=0)[0].startswith("fail  images: ")


def test_labels_that_no_training_can_use_are_refused(tmp_path):
    site = make_site_folder(tmp_path / "site-1", [[1, 0, 0], [1, 1, 1]])
    assert found("images", site) == [
        "fail  images: train.csv, column edema: expected both 0 and 1 (a class prior between 0 and 1), got only 1;"
        " leave the column out if the class is not annotated here"
    ]


def test_a_dicom_file_that_cannot_be_used_is_listed_with_its_reason(tmp_path):
    site = make_site_folder(tmp_path / "site-1", suffix=".dcm", window=(40, 80))
    make_dicom(site / "images" / "img0.dcm", pixels(0).astype(np.int16), NumberOfFrames=2)
    assert found("images", site)[1:] == [
        "        train.csv row 2: expected 'file#frame' for a multi-frame DICOM file, got no frame of 2"
    ]


def test_every_volume_that_cannot_be_read_is_listed(tmp_path):
    site = make_volume_site(tmp_path / "site-1")
    assert found("images", site) == ["ok    images: all 3 read"]
    (site / "images" / "case-1.nii.gz").unlink()
    write_nifti(site / "labels" / "case-3.nii.gz", np.full((8, 8, 4), 7, dtype=np.uint8))
    assert found("images", site) == [
        "fail  images: expected no missing image and at most 0 unreadable ones per split, got 2 in all",
        "        datalist.json, training item 1, image: expected a NIfTI file, not found",
        "        datalist.json, test item 1, label: expected the values 0 and 1, got others",
    ]


def test_labels_are_counted_by_split_and_class(tmp_path):
    site = make_site_folder(tmp_path / "site-1", splits=("test",))
    assert found("counts", site) == [
        "ok    counts: train 6, test 6 samples",
        "        train, edema: 2 positive, 3 negative, 1 blank",
        "        train, fracture: not annotated here",
        "        train, nodule: 2 positive, 3 negative, 1 blank",
        "        test, edema: 2 positive, 4 negative, 0 blank",
        "        test, fracture: 0 positive, 6 negative, 0 blank",
        "        test, nodule: 2 positive, 4 negative, 0 blank",
    ]


def test_too_few_samples_for_a_batch_are_refused_and_few_positives_a_warning(kit, tmp_path):
    assert found("counts", kit=kit)[0] == "ok    counts: train 6 samples"
    change_settings(kit, min_count=3)
    assert found("counts", kit=kit)[0] == (
        "warn  counts: expected at least min_count 3 positive training samples of each annotated class, got fewer of 2;"
        " train 6 samples"
    )
    big = make_job(tmp_path / "big", batch_size=7)
    line, *details = found("counts", kit=kit, job=big)
    assert line == "fail  counts: expected at least 7 training samples (batch_size of the job), got 6"
    assert len(details) == 3


def test_images_and_patients_in_two_splits_are_a_warning(tmp_path, site):
    assert found("overlap", site) == ["ok    overlap: expected nothing in two splits, got 0 images and 0 patients"]
    write_png(site / "images" / "new.png", 9)
    card = json.loads((site / "site.json").read_text())
    (site / "site.json").write_text(json.dumps({**card, "splits": {"train": "train.csv", "test": "test.csv"}}))
    images, patients = ["img0.png", "img1.png", "new.png"], ["p0", "", "p5"]
    write_table(site / "test.csv", images, LABELS[[0, 1, 5]], CLASSES, patients=patients)
    lines = [line for line in shown(site) if "overlap" in line]
    assert lines == ["warn  overlap: expected nothing in two splits, got 2 images and 2 patients"]


def with_test_split(site, images, patients, labels=LABELS):
    """Adds a test split to a site folder."""
    card = json.loads((site / "site.json").read_text())
    (site / "site.json").write_text(json.dumps({**card, "splits": {"train": "train.csv", "test": "test.csv"}}))
    write_table(site / "test.csv", images, labels[: len(images)], CLASSES, patients=patients)


@pytest.mark.parametrize("name", ["./img1.png", "link.png"])
def test_an_image_in_two_splits_is_found_under_any_name(site, name):
    (site / "images" / "link.png").symlink_to("img1.png")
    with_test_split(site, [name], ["p9"])
    assert found("overlap", site) == ["warn  overlap: expected nothing in two splits, got 1 images and 0 patients"]


@pytest.mark.parametrize("patient", ["P0", "p0 ", "\uff500"])
def test_a_patient_in_two_splits_is_found_in_any_writing(site, patient):
    write_png(site / "images" / "new.png", 9)
    with_test_split(site, ["new.png"], [patient])
    assert found("overlap", site) == ["warn  overlap: expected nothing in two splits, got 0 images and 1 patients"]


def test_the_same_pixels_under_two_names_are_found(site):
    for source, name in ((1, "a.png"), (2, "b.png"), (2, "c.png")):
        shutil.copyfile(site / "images" / f"img{source}.png", site / "images" / name)
    Image.open(site / "images" / "img3.png").save(site / "images" / "d.png", compress_level=1)
    with_test_split(site, ["a.png", "b.png", "c.png", "d.png"], ["q1", "q2", "q3", "q4"])
    other = ", 1 of them with other labels" if (LABELS[1] != LABELS[2]).any() else ""
    assert found("overlap", site) == [
        "warn  overlap: expected nothing in two splits, got 0 images and 0 patients",
        "        3 images are in two splits under different names, with the same pixels",
        f"        test: 1 images have the pixels of another one{other}",
    ]


def test_slices_of_a_volume_in_two_splits_are_a_warning(site):
    write_nifti(site / "images" / "v.nii", voxels(1))
    write_table(site / "train.csv", ["v.nii#0", "img1.png"], LABELS[:2], CLASSES, patients=["p0", "p1"])
    with_test_split(site, ["v.nii#1", "img2.png"], ["p8", "p9"])
    assert found("overlap", site) == [
        "warn  overlap: expected nothing in two splits, got 0 images and 0 patients",
        "        slices or frames of 1 files are in two splits",
    ]


def test_air_is_no_image_in_two_splits(site):
    for name in ("img1", "img2", "new"):
        Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(site / "images" / f"{name}.png")
    with_test_split(site, ["new.png"], ["p9"])
    assert found("overlap", site) == ["ok    overlap: expected nothing in two splits, got 0 images and 0 patients"]


def test_images_that_name_no_patient_are_counted(site):
    for number in (1, 2):
        write_png(site / "images" / f"new{number}.png", 8 + number)
    with_test_split(site, ["new1.png", "new2.png"], ["p9", "nan"])
    assert found("overlap", site) == [
        "warn  overlap: expected nothing in two splits, got 0 images and 0 patients",
        "        1 of 8 images name no patient, who may be in two splits",
    ]


def test_patients_and_pixels_of_volumes_are_compared(tmp_path):
    site = make_volume_site(tmp_path / "site-1")
    listed = json.loads((site / "datalist.json").read_text())
    for item, patient in zip([*listed["training"], *listed["test"]], [7, "p2", "7.0"], strict=True):
        item["patient"] = patient
    (site / "datalist.json").write_text(json.dumps(listed))
    shutil.copyfile(site / "images" / "case-2.nii.gz", site / "images" / "case-3.nii.gz")
    assert found("overlap", site) == [
        "warn  overlap: expected nothing in two splits, got 0 images and 1 patients",
        "        1 images are in two splits under different names, with the same pixels",
    ]


def test_class_names_that_are_none_are_a_warning(site):
    card = json.loads((site / "site.json").read_text())
    (site / "site.json").write_text(json.dumps({**card, "classes": [*card["classes"], "Edema", "nan"]}))
    assert found("site card", site) == [
        "warn  site card: multilabel, 5 classes, splits train",
        "        2 class names are words for a missing value, or differ from another one in case or blanks only",
    ]


def test_a_split_that_no_job_opens_is_a_warning(tmp_path):
    site = make_site_folder(tmp_path / "site-1", splits=("validation",))
    assert found("site card", site) == [
        "warn  site card: multilabel, 3 classes, splits train, validation",
        "        splits that no job opens, as they are not called train, val or test: 1",
    ]


def test_splits_without_patients_are_a_warning_that_they_may_leak(tmp_path):
    volumes = make_volume_site(tmp_path / "site-1")
    assert found("overlap", volumes) == [
        "warn  overlap: expected nothing in two splits, got 0 images; no patients are named, so that one may be in two"
        " of them"
    ]


def test_images_are_looked_at_as_the_network_of_the_job_will_see_them(site, job, tmp_path):
    for number in range(3):
        Image.fromarray(np.full((8, 8), 255, dtype=np.uint8)).save(site / "images" / f"img{number}.png")
    sheet = tmp_path / "sheet.png"
    line, *details = found("looks", site, job=job, sheet=sheet)
    assert re.fullmatch(r"warn  looks: grey values in use \d+ \(median of 6 images\), black 0% .*, white \d+%", line)
    assert details == [
        "        3 of 6 images have one grey value",
        "        3 of 6 images are white in more than 50% of their pixels",
    ]
    assert Image.open(sheet).size == (6 * 164 + 4, 164 + 4)


def test_images_are_opened_at_the_size_of_the_job(site, job, monkeypatch):
    sizes = []

    def noted(*args, size, **how):
        sizes.append(size)
        return open_store(*args, size=size, **how)

    monkeypatch.setattr("fedmend.data.site.open_store", noted)
    found("images", site, job=job)
    found("images", site)
    assert sizes == [48, 32]


def test_lesions_that_vanish_at_the_size_of_the_job_are_a_warning(tmp_path, site):
    small, seen = ((11, 13), (11, 13), (1, 2)), ((1, 8), (1, 8), (2, 3))
    volumes = make_volume_site(
        tmp_path / "volumes",
        [lesion(seen, small, shape=(16, 16, 4)), lesion(seen, shape=(16, 16, 4))],
        test=[lesion(small, shape=(16, 16, 4))],
    )
    assert found("lesions", volumes)[0] == "ok    lesions: 4 of 4 lesions are left at 256 pixels"
    job = make_job(tmp_path / "small", classes=["lesion"], method=FEDIA, network="unet", image_size=4)
    assert found("lesions", volumes, job=job) == [
        "warn  lesions: 2 of 4 lesions are left at 4 pixels",
        "        train: 2 of 3 lesions, 2 of 3 slices with lesion",
        "        test: 0 of 1 lesions, 0 of 1 slices with lesion",
    ]
    assert found("lesions", site) == ["skip  lesions: the site has no masks"]


def test_masks_that_mark_the_background_are_a_warning(tmp_path):
    words = "volumes more than two thirds of the body are marked as one class: are background and lesion exchanged?"
    site = make_volume_site(tmp_path / "site-1", [lesion(), ~lesion()], test=[~lesion()])
    line, *details = found("lesions", site)
    assert line.startswith("warn  lesions: 3 of 3 lesions are left")
    assert details[2:] == [f"        train: in 1 of 2 {words}", f"        test: in 1 of 1 {words}"]


def test_a_job_of_sums_costs_one_step_on_all_patients_for_each_round(kit, tmp_path):
    pytest.importorskip("opacus")
    change_settings(kit, privacy={"clip": 1, "noise_multiplier": 4})
    sums = {"method": "fedmend.methods.closed_form_sums.ClosedFormSums", "method_args": {}}
    job = make_job(tmp_path / "sums", network="projected/resnet_narrow", **sums)  # three rounds
    state = read_site_config(kit / "local" / "fedmend.json", kit, "site-1").state_dir
    after = Account(state, "site-1", Privacy(clip=1.0, noise_multiplier=4.0), patients=6).epsilon(1.0, 3)
    (line,) = found("privacy", kit=kit, job=job)
    assert line.startswith(f"ok    privacy: epsilon 0 (RDP), after this job {after} (delta 1e-05")
    assert found("limits", kit=kit, job=job)[0].startswith("ok ")


def test_a_site_with_privacy_is_told_what_it_has_spent_what_the_job_costs_and_by_which_accountant(kit, tmp_path, site):
    pytest.importorskip("opacus")
    policy = Privacy(clip=1.0, noise_multiplier=4.0)
    change_settings(kit, privacy={"clip": 1, "noise_multiplier": 4})
    private = {"method": "fedmend.methods.baselines.FedAvg", "method_args": {"weighted": False}}
    job = make_job(tmp_path / "private", network="resnet_narrow_gn", **private)
    state = read_site_config(kit / "local" / "fedmend.json", kit, "site-1").state_dir
    account = Account(state, "site-1", policy, patients=6)
    now = account.spend(1.0, 2)
    after = account.epsilon(4 / 6, 2 * 3)  # batches of 4 out of 6 images, three rounds
    (line,) = found("privacy", kit=kit, job=job)
    text = f"epsilon {now}, after this job {after} (delta 1e-05, the unit is one patient, all jobs of this site so far)"
    assert line == f"ok    privacy: {text}"
    assert "(PRV; RDP " in line
    change_settings(kit, privacy={"clip": 1, "noise_multiplier": 4, "max_epsilon": now.value})
    assert found("privacy", kit=kit, job=job)[0].startswith("fail  privacy: privacy: expected to stay within max_eps")
    assert found("privacy", kit=kit) == ["skip  privacy: needs the images, and --job with one that trains"]
    assert found("privacy", site) == ["skip  privacy: needs fedmend.json with privacy"]


def test_images_that_teach_nothing_are_refused(site):
    for file in (site / "images").iterdir():
        Image.fromarray(np.full((8, 8), 255, dtype=np.uint8)).save(file)
    assert found("looks", site)[0] == ("fail  looks: expected images that differ, got one grey value in all of them")


Usage = namedtuple("Usage", "free")


def test_disk_space_is_compared_with_what_the_stores_of_a_site_take(kit, job, tmp_path, monkeypatch, site):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0.6e9))
    expected = "expected 0.0 GB in cache_dir and 0.5 GB in state_dir (6 images of {} pixels), got 0.6 GB"
    assert found("disk", kit=kit, job=job) == [f"ok    disk: {expected.format(48)}"]
    assert found("disk", kit=kit) == [f"ok    disk: {expected.format(224)}"]
    assert found("disk", site) == ["skip  disk: needs fedmend.json and the images"]
    big = make_job(tmp_path / "big", image_size=6000)
    assert found("disk", kit=kit, job=big) == [
        "fail  disk: expected 0.2 GB in cache_dir and 0.5 GB in state_dir (6 images of 6000 pixels), got 0.6 GB"
    ]


def test_volumes_take_three_bytes_a_pixel(kit, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0.5012e9))  # two bytes a pixel would fit
    volumes = make_volume_site(tmp_path / "volumes")
    job = make_job(tmp_path / "big", classes=["lesion"], method=FEDIA, network="unet", image_size=200)
    assert found("disk", volumes, kit=kit, job=job) == [
        "fail  disk: expected 0.0 GB in cache_dir and 0.5 GB in state_dir (12 images of 200 pixels), got 0.5 GB"
    ]


# ---- studies --------------------------------------------------------------------------------------------------------
OF_STUDIES, STUDIES = [[1, 0, 0]] * 3 + [[0, 1, 1]] * 2 + [[0, 1, 0], [1, 0, 1], [0, 0, 1]], list("aaabbcde")


def test_studies_are_counted_with_their_slices_and_checked_as_the_job_sees_them(tmp_path):
    folder = make_site_folder(tmp_path / "site", OF_STUDIES, studies=STUDIES, size=48)
    assert found("tables", folder) == ["ok    tables: train 5 studies of 1 to 3 slices"]
    assert found("images", folder) == ["ok    images: all 5 read"]
    job = make_job(tmp_path / "job", network="study/resnet_narrow", study_slices=2)
    few = "        the job looks at 2 of up to 3 slices, evenly spread"
    assert found("tables", folder, job=job) == ["ok    tables: train 5 studies of 1 to 3 slices", few]
    assert found("images", folder, job=job) == ["ok    images: all 5 read"]


def test_a_job_for_images_and_one_whose_network_sees_one_image_are_refused_for_studies(tmp_path):
    folder = make_site_folder(tmp_path / "site", OF_STUDIES, studies=STUDIES, size=48)
    words = "site.json, field sample: expected 'image' for a job without study_slices, got 'study'"
    assert found("images", folder, job=make_job(tmp_path / "images")) == [f"fail  images: {words}"]
    words = "job variables network, study_slices: expected slices for a network behind study/ and for no other"
    job = make_job(tmp_path / "network", study_slices=2)
    assert found("images", folder, job=job) == [f"fail  images: {words}, got resnet_narrow and 2"]


def test_every_unreadable_slice_of_a_study_is_listed(tmp_path):
    folder = make_site_folder(tmp_path / "site", OF_STUDIES, studies=STUDIES, size=48)
    for number in (1, 2):
        (folder / "images" / f"img{number}.png").write_bytes(b"no image")
    _, *rows = found("images", folder)
    assert rows == [f"        train.csv study that begins in row 2: {UNREADABLE}"] * 2
