"""The phantom of organs, and the sites that mark some of them."""

import json

import nibabel as nib
import numpy as np
import pytest

from fedmend.data.card import load_card
from fedmend.errors import FedMendError
from fedmend.phantoms.organs import ORGANS, write_organs
from fedmend.phantoms.specs.missing_organs import MissingOrganPhantom

SMALL = {"size": 32, "depth": 12}


def voxels(file):
    return np.asarray(nib.load(file).dataobj)


@pytest.fixture(scope="module")
def download(tmp_path_factory):
    write_organs(out := tmp_path_factory.mktemp("organs"), cases=3, seed=1, **SMALL)
    return out


def test_each_case_has_each_organ_once_or_in_a_pair(download):
    for file in sorted((download / "labelsTr").iterdir()):
        numbers = voxels(file)
        liver, spleen, kidneys = ((numbers == n).sum() for n in (1, 2, 3))
        assert liver > spleen > 20
        assert liver > kidneys > 20
        # The file runs to the patient's left: the liver lies on the right, the spleen on the left.
        centres = [np.argwhere(numbers == n)[:, 0].mean() for n in (1, 2)]
        assert centres[0] < 16 < centres[1]


def test_organs_are_brighter_than_fat_and_not_told_apart_by_brightness_alone(download):
    image, numbers = voxels(download / "imagesTr/case_001.nii.gz"), voxels(download / "labelsTr/case_001.nii.gz")
    assert image.dtype == np.int16
    means = [image[numbers == n].mean() for n in (1, 2, 3)]
    assert all(0 < mean < 250 for mean in means)
    assert (np.abs(image[numbers == 0] - means[0]) < 20).sum() > 100


def test_a_case_depends_on_seed_and_number_alone(download, tmp_path):
    write_organs(tmp_path, cases=1, seed=1, **SMALL)
    first = "imagesTr/case_001.nii.gz"
    assert (voxels(tmp_path / first) == voxels(download / first)).all()
    write_organs(tmp_path / "other", cases=1, seed=2, **SMALL)
    assert (voxels(tmp_path / "other" / first) != voxels(download / first)).any()


def test_a_site_marks_its_organs_and_is_tested_on_all(tmp_path):
    MissingOrganPhantom(images=12, sites=3, pixels=32, depth=12).write(tmp_path)
    for number, organ in enumerate(ORGANS, 1):
        folder = tmp_path / f"site-{number}"
        card = load_card(folder, folder.name)
        assert dict(card.annotated) == {"train": (organ,), "val": (organ,)}
        listed = json.loads((folder / "datalist.json").read_text())
        assert {name: len(items) for name, items in listed.items()} == {"test": 2, "validation": 1, "training": 1}
        (item,) = listed["training"]
        assert np.unique(voxels(folder / item["label"])).tolist() == [0, number]
        assert np.unique(voxels(folder / "truth" / item["image"])).tolist() == [0, 1, 2, 3]
        assert np.unique(voxels(folder / listed["test"][0]["label"])).tolist() == [0, 1, 2, 3]


def test_too_few_volumes_are_refused(tmp_path):
    with pytest.raises(FedMendError, match="site-1: expected at least 3 volumes, got 2"):
        MissingOrganPhantom(images=4, sites=2, pixels=32, depth=12, annotated_per_site=2).write(tmp_path)
