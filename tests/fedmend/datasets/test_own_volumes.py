"""A datalist of volumes and masks that are paired by their names."""

import json

import pytest
from factories import refused
from nifti_factories import lesion, voxels
from test_own_datalist import CHOICES, cases, volume

from fedmend.datasets.own_datalist import prepare
from fedmend.datasets.own_volumes import write_datalist


def listed(tmp_path, names, images, masks, said=None):
    """Pairs as the datalist has them."""
    for name in names:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    progress = (lambda line: None) if said is None else said.append
    write_datalist(tmp_path / "data", tmp_path / "list.json", images=images, masks=masks, progress=progress)
    items = json.loads((tmp_path / "list.json").read_text())["training"]
    return [(item["image"], item["label"]) for item in items]


@pytest.mark.parametrize(
    ("images", "masks", "volume_of", "mask_of"),
    [
        ("imagesTr/*", "labelsTr/*", "imagesTr/{}.nii.gz", "labelsTr/{}.nii.gz"),
        ("imagesTr/*_0000.nii.gz", "labelsTr/*.nii.gz", "imagesTr/ms_{}_0000.nii.gz", "labelsTr/ms_{}.nii.gz"),
        ("volume-*.nii*", "segmentation-*.nii*", "volume-{}.nii", "segmentation-{}.nii.gz"),
        ("./*/flair", "*/lesions", "p {}/flair.nii.gz", "p {}/lesions.NII"),
        ("*/*_flair", "masks/*", "p{0}/p{0}_flair.nii.gz", "masks/p{0}.nii.gz"),
        ("in/ct (*)", "in/seg [*]", "in/ct ({}).nii.gz", "in/seg [{}].nii.gz"),
    ],
    ids=["folders", "nnU-Net", "LiTS", "patients", "both", "signs"],
)
def test_a_mask_is_that_of_the_volume_with_the_same_text_for_the_stars(tmp_path, images, masks, volume_of, mask_of):
    numbers = ["1", "10", "2"]
    names = [name.format(n) for n in numbers for name in (volume_of, mask_of)]
    found = listed(tmp_path, names, images, masks)
    assert sorted(found) == sorted((volume_of.format(n), mask_of.format(n)) for n in numbers)


def test_volumes_and_masks_without_the_other_are_counted_and_hidden_files_are_none(tmp_path):
    names = [f"images/{n}.nii" for n in ("1", "2", "3", ".4", "._1")] + [
        f"masks/{n}.nii" for n in ("1", "5", ".4", "._1")
    ]
    said = []
    assert listed(tmp_path, names, "images/*", "masks/*", said) == [("images/1.nii", "masks/1.nii")]
    assert said[:3] == [
        "1 volumes with masks",
        "WARNING: 2 volumes without a mask are left out",
        "WARNING: 1 masks without a volume are left out",
    ]
    out, folder = tmp_path / "list.json", tmp_path / "data"
    assert said[3:] == [f"next: fedmend prepare datalist {out} SITE --images {folder}"]


BOTH = "arguments images and masks: expected patterns "


@pytest.mark.parametrize(
    ("images", "masks", "sentence"),
    [
        (
            "a/*",
            "b/*_seg",
            f"{BOTH}in which * stands for the same text in a volume and its mask, got no pair among 2 volumes and 0"
            " masks with such names",
        ),
        ("a/*", "a/*", f"{BOTH}of different files, got 2 that fit both"),
        ("a/1", "*/1", "argument masks: expected a pattern in which * differs from file to file, got two alike"),
    ],
)
def test_patterns_that_pair_nothing_or_not_for_sure_are_refused(tmp_path, images, masks, sentence):
    if masks == "*/1":
        (tmp_path / "data" / "b").mkdir(parents=True)
        (tmp_path / "data" / "b" / "1.nii.gz").touch()
    with refused(sentence):
        listed(tmp_path, ["a/1.nii", "a/2.nii.gz", "b/1.nii"], images, masks)
    assert not (tmp_path / "list.json").exists()


def test_a_datalist_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "list.json").write_text("[]")
    with refused("argument out: expected a file that is not there, got one that is"):
        listed(tmp_path, ["a/1.nii", "b/1.nii"], "a/*", "b/*")


def test_the_datalist_becomes_a_site_folder(tmp_path):
    for n in range(4):
        volume(tmp_path / "data" / f"p{n}" / "flair.nii.gz", voxels(n))
        volume(tmp_path / "data" / f"p{n}" / "lesions.nii.gz", lesion().astype("uint8"))
    listed(tmp_path, [], "*/flair", "*/lesions")
    prepare(tmp_path / "list.json", tmp_path / "site", images=tmp_path / "data", choices=CHOICES)
    _, found = cases(tmp_path / "site")
    assert {split: len(items) for split, items in found.items()} == {"train": 3, "test": 1}
