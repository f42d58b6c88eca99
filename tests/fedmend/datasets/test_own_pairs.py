"""Names of images and masks that say who belongs together."""

import json

import numpy as np
import pytest
from nifti_factories import lesion, voxels, write_nifti

from fedmend.datasets import own_datalist
from fedmend.datasets.own_pairs import mixed_up
from fedmend.datasets.own_site import SiteChoices


@pytest.mark.parametrize(
    ("image", "mask", "known"),
    [
        ("img/case_{:02d}.nii.gz", "lab/case_{:02d}.nii.gz", True),
        ("imagesTr/ms{:03d}_0000.nii.gz", "labelsTr/ms{:03d}.nii.gz", True),
        ("sub-{0}/ses-1/sub-{0}_FLAIR.nii", "derivatives/sub-{0}/ses-1/lesion.nii", True),
        ("p{}/flair.nii.gz", "p{:04d}/mask.nii.gz", True),
        ("{}img.nii", "{}seg.nii", True),
        ("case_{}.nii", "mask.nii", False),
        ("case_1{}.nii", "mask_9{}.nii", False),  # named after something else
    ],
)
def test_masks_with_the_names_of_other_images_are_found(image, mask, known):
    images, masks = [image.format(i) for i in range(8)], [mask.format(i) for i in range(8)]
    assert mixed_up(images, masks, [""] * 8) == []
    masks[2], masks[5] = masks[5], masks[2]
    assert mixed_up(images, masks, [""] * 8) == [2, 5] * known


def test_images_of_one_patient_may_share_a_mask():
    images = [f"{p}/{kind}.nii" for p in "ab" for kind in ("t1", "flair")]
    masks = [f"{p}/flair_lesions.nii" for p in "aabb"]
    assert mixed_up(images, masks, [*"1122"]) == []
    assert mixed_up(images, masks[::-1], [*"1122"]) == [0, 1, 2, 3]


def test_a_list_that_mixes_patients_up_is_told_by_its_items(tmp_path):
    items = [{"image": f"img/p{i}.nii", "label": f"lab/p{i ^ 1}.nii"} for i in range(4)]
    for i in range(4):
        write_nifti(tmp_path / f"img/p{i}.nii", voxels(i))
        write_nifti(tmp_path / f"lab/p{i}.nii", np.roll(lesion(), i, 0))
    said: list[str] = []
    choices = SiteChoices(test_share=0, val_share=0)
    for number, pairs in enumerate(({"training": items}, {"training": [{**i, "label": i["image"]} for i in items]})):
        for i in pairs["training"]:
            i["label"] = i["label"].replace("img", "lab")
        (tmp_path / "list.json").write_text(json.dumps(pairs))
        own_datalist.prepare(tmp_path / "list.json", tmp_path / f"out{number}", choices=choices, progress=said.append)
    words = "masks have names that fit another image of the list better than their own; are patients mixed up?"
    assert [line for line in said if "mixed up" in line] == [
        f"WARNING: 4 of 4 {words} The first: list.json, training item 1"
    ]
    notes = [json.loads((tmp_path / f"out{number}" / "site.json").read_text())["notes"] for number in range(2)]
    assert "pairs" in notes[0]
    assert "pairs" not in notes[1]
