"""The converter of the COVID-19-20 challenge."""

import json
from pathlib import Path

import numpy as np
import pytest
from factories import refused
from nifti_factories import write_nifti

from fedmend.data.card import WINDOWS, load_card
from fedmend.datasets.lesion_sites import LesionProtocol
from fedmend.datasets.lung import prepare
from fl_components.cli import main


@pytest.fixture
def source(tmp_path):
    mask = np.zeros((4, 4, 4), dtype=np.uint8)
    mask[::2, ::2, 1] = 1
    for number in ("0003", "0011", "0014", "0016", "0025"):
        suffix = ".nii" if number == "0025" else ".nii.gz"
        stem = tmp_path / "source" / "COVID-19-20_v2" / "Train" / f"volume-covid19-A-{number}"
        write_nifti(Path(f"{stem}_ct{suffix}"), np.full((4, 4, 4), -700, dtype=np.int16))
        write_nifti(Path(f"{stem}_seg{suffix}"), mask)
    # The validation volumes of the challenge have no masks.
    write_nifti(tmp_path / "source/COVID-19-20_v2/Validation/volume-covid19-A-0698_ct.nii.gz", mask)
    return tmp_path / "source"


def test_the_training_volumes_become_sites_with_the_lung_window(source, tmp_path):
    words = ["prepare", "lung", source, tmp_path / "out", "--m", 2, "--sites", 3, "--seed", 4]
    assert main([str(word) for word in words]) == 0
    seen = {}
    for s, share in ((1, 0.1), (2, 0.2), (3, 0.3)):
        card = load_card(tmp_path / "out" / f"site-{s}", f"site-{s}")
        assert (card.modality, card.window, card.image_root) == ("CT", WINDOWS["lung"], source.resolve())
        assert card.provenance["site"]["completeness"] == share
        assert card.provenance["arguments"]["seed"] == 4
        for items in json.loads((card.folder / "datalist.json").read_text()).values():
            seen |= {item["label"]: item["image"] for item in items}
    train = "COVID-19-20_v2/Train/volume-covid19-A"
    images = {n: f"{train}-{n}_ct.nii.gz" for n in ("0003", "0011", "0014", "0016")}
    images["0025"] = f"{train}-0025_ct.nii"
    assert seen == {f"labels/volume-covid19-A-{n}.nii.gz": image for n, image in images.items()}


def test_the_completeness_of_each_site_may_be_given(source, tmp_path):
    prepare(source, tmp_path / "out", LesionProtocol(completeness=(0.5, 1.0)), source_name="SYNTHETIC")
    provenance = [load_card(tmp_path / "out" / f"site-{s}", f"site-{s}").provenance for s in (1, 2)]
    assert [p["source"] for p in provenance] == ["SYNTHETIC"] * 2
    counts = [(p["site"]["lesions"], p["site"]["kept_lesions"]) for p in provenance]
    assert counts == [(8, 4), (8, 8)]


def test_a_volume_without_mask_is_refused(source, tmp_path):
    next(source.rglob("*_seg.nii")).unlink()
    with refused("lung, argument source: expected a mask for each of 5 volumes, got none for 1"):
        prepare(source, tmp_path / "out", LesionProtocol(completeness=(0.5,)))
