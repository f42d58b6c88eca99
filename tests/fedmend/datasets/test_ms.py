"""The converter of MS lesions."""

import json
import os
from pathlib import Path

import nibabel
import numpy as np
import pytest
from factories import refused
from nifti_factories import write_nifti

from fedmend.data.card import load_card
from fedmend.datasets.imperfections import completeness_settings
from fedmend.datasets.lesion_sites import LesionProtocol
from fedmend.datasets.ms import prepare
from fl_components.cli import main

MASK = np.zeros((4, 4, 4), dtype=np.uint8)
MASK[::2, ::2, 1] = 1
IMAGE = np.arange(64, dtype=np.float32).reshape(4, 4, 4)


def pair(image, mask):
    write_nifti(image, IMAGE)
    write_nifti(mask, MASK)


def msseg(source, center="01", patients=("01", "02"), suffix=".nii.gz"):
    for number in patients:
        folder = source / "Training" / f"Center_{center}" / f"Patient_{number}"
        pair(folder / f"Preprocessed_Data/FLAIR_preprocessed{suffix}", folder / f"Masks/Consensus{suffix}")


def lesjak(source, patients=("01", "02", "03"), variant="coregistered"):
    for number in patients:
        folder = source / "cross_sectional" / variant / f"patient{number}"
        pair(folder / "FLAIR.nii.gz", folder / "consensus_gt.nii.gz")


def flat(source, patients=("07", "19", "26")):
    for number in patients:
        pair(source / f"p{number}_flair.nii.gz", source / "masks" / f"p{number}.nii.gz")


def labels(out):
    """Label name → image, over sites and splits."""
    lists = [json.loads(f.read_text()) for f in sorted(out.glob("site-*/datalist.json"))]
    return {Path(i["label"]).name: i["image"] for sections in lists for items in sections.values() for i in items}


def test_both_downloads_below_one_folder_become_four_sites(tmp_path):
    source = tmp_path / "source"
    msseg(source / "MSSEG-Training")
    msseg(source / "MSSEG-Training", center="08", patients=("01",), suffix=".nii")
    lesjak(source / "open_ms_data")
    protocol = LesionProtocol(completeness=completeness_settings("ms", 1), seed=3)
    prepare(source, tmp_path / "out", protocol, source_name="SYNTHETIC")
    root = "MSSEG-Training/Training"
    assert labels(tmp_path / "out") == {
        "msseg_Center_01_Patient_01.nii.gz": f"{root}/Center_01/Patient_01/Preprocessed_Data/FLAIR_preprocessed.nii.gz",
        "msseg_Center_01_Patient_02.nii.gz": f"{root}/Center_01/Patient_02/Preprocessed_Data/FLAIR_preprocessed.nii.gz",
        "msseg_Center_08_Patient_01.nii.gz": f"{root}/Center_08/Patient_01/Preprocessed_Data/FLAIR_preprocessed.nii",
        **{
            f"lesjak_{n}.nii.gz": f"open_ms_data/cross_sectional/coregistered/patient{n}/FLAIR.nii.gz"
            for n in ("01", "02", "03")
        },
    }
    cards = [load_card(tmp_path / "out" / f"site-{s}", f"site-{s}") for s in (1, 2, 3, 4)]
    assert [card.provenance["site"]["completeness"] for card in cards] == [0.3, 0.5, 0.7, 0.9]
    for card in cards:
        assert (card.modality, card.window, card.image_root) == ("MR", None, source.resolve())
        assert card.provenance["source"] == "SYNTHETIC"
        arguments = {"completeness": [0.3, 0.5, 0.7, 0.9], "test_share": 0.2, "val_share": 0.0, "seed": 3}
        assert card.provenance["arguments"] == arguments


def test_masks_of_a_flat_copy_that_have_no_volume_are_left_out_and_counted(tmp_path):
    flat(tmp_path / "source")
    for number in ("01", "02"):
        write_nifti(tmp_path / "source" / "masks" / f"p{number}.nii.gz", MASK)
    lines = []
    prepare(tmp_path / "source", tmp_path / "out", LesionProtocol(completeness=(0.5,)), progress=lines.append)
    assert lines[0] == "2 masks without a volume are left out"
    assert labels(tmp_path / "out") == {f"lesjak_{n}.nii.gz": f"p{n}_flair.nii.gz" for n in ("07", "19", "26")}


def test_a_volume_without_mask_is_refused(tmp_path):
    msseg(tmp_path)
    lesjak(tmp_path)
    (tmp_path / "Training/Center_01/Patient_02/Masks/Consensus.nii.gz").unlink()
    (tmp_path / "cross_sectional/coregistered/patient03/consensus_gt.nii.gz").unlink()
    with refused("ms, argument source: expected a mask for each of 5 volumes, got none for 2"):
        prepare(tmp_path, tmp_path / "out", LesionProtocol(completeness=(0.5,)))


def test_two_variants_or_copies_of_a_patient_are_refused(tmp_path):
    lesjak(tmp_path)
    lesjak(tmp_path, variant="raw", patients=("02",))
    flat(tmp_path, patients=("03", "07"))
    with refused("ms, argument source: expected one copy of each case, got 2 more"):
        prepare(tmp_path, tmp_path / "out", LesionProtocol(completeness=(0.5,)))


def test_a_folder_without_a_download_is_refused(tmp_path):
    with refused("ms, argument source: expected volumes in the layout of the download, got none"):
        prepare(tmp_path, tmp_path / "out", LesionProtocol(completeness=(0.5,)))


def test_the_command_takes_the_papers_setting_or_the_completeness_of_each_site(tmp_path, capsys):
    flat(tmp_path / "source")
    words = ["prepare", "ms", str(tmp_path / "source")]
    for out, given in (("a", "--sites 2 --m 3"), ("b", "--completeness 0.1,0.3"), ("c", "")):
        code = main([*words, str(tmp_path / out), *given.split(), "--test-share", "0.4", "--seed", "7"])
        assert code == (1 if out == "c" else 0)  # three patients are too few for four sites
    a, b = (load_card(tmp_path / out / "site-2", "site-2").provenance for out in "ab")
    assert a == b
    assert a["arguments"] == {"completeness": [0.1, 0.3], "test_share": 0.4, "val_share": 0.0, "seed": 7}
    captured = capsys.readouterr()
    assert "3 of 3 volumes\n2 site folders written, 2 training and 1 test volumes\n" in captured.out
    assert captured.err == "fedmend: ms: expected at least 4 training patients, one for each site, got 2\n"
    assert main([*words, str(tmp_path / "d"), "--completeness", "0.1,0.3", "--m", "0"]) == 1
    assert capsys.readouterr().err == "fedmend: prepare ms: expected --completeness or --sites and --m, got both\n"


def test_the_command_takes_test_patients_and_a_validation_share(tmp_path, capsys):
    flat(tmp_path / "source")
    words = ["prepare", "ms", str(tmp_path / "source"), str(tmp_path / "out"), "--completeness", "0.5"]
    assert main([*words, "--test-patients", "lesjak_19", "--val-share", "0.5"]) == 0
    lists = json.loads((tmp_path / "out" / "site-1" / "datalist.json").read_text())
    assert {name: len(items) for name, items in lists.items()} == {"training": 1, "validation": 1, "test": 1}
    assert lists["test"][0]["image"] == "p19_flair.nii.gz"
    assert capsys.readouterr().out.endswith("1 site folders written, 1 training, 1 validation and 1 test volumes\n")
    words[3] = str(tmp_path / "other")
    assert main([*words, "--test-patients", "lesjak_19", "--test-share", "0.2"]) == 1
    assert capsys.readouterr().err == "fedmend: prepare ms: expected --test-share or --test-patients, got both\n"


def test_a_completeness_that_is_no_number_ends_with_usage_and_exit_code_2(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["prepare", "ms", "a", "b", "--completeness", "0.3;0.7"])
    assert stop.value.code == 2
    expected = "error: argument --completeness: expected numbers like 0.3,0.7, got '0.3;0.7'"
    assert capsys.readouterr().err.splitlines()[-1].endswith(expected)


@pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA")
def test_the_three_real_patients_become_two_sites_and_a_test_volume(tmp_path):
    source = Path(os.environ["FEDMEND_REAL_DATA"]) / "ms_flair"
    assert main(["prepare", "ms", str(source), str(tmp_path / "out"), "--completeness", "0.3,0.7"]) == 0
    known = {"07": (37, 74), "19": (98, 87), "26": (19, 54)}  # lesions and axial slices that carry one
    tests = []
    for s, share in ((1, 0.3), (2, 0.7)):
        site = tmp_path / "out" / f"site-{s}"
        lists, counts = json.loads((site / "datalist.json").read_text()), load_card(site, "s").provenance["site"]
        tests += lists.get("test", [])
        (item,) = lists["training"]
        lesions, slices = known[item["image"][1:3]]
        assert len(item["slices"]) == slices
        assert (counts["completeness"], counts["lesions"]) == (share, lesions)
        assert counts["kept_lesions"] == int(share * lesions + 0.5)
        label = nibabel.load(site / item["label"])
        assert np.asarray(label.dataobj).sum() == counts["kept_voxels"] < counts["voxels"]
        np.testing.assert_array_equal(label.affine, nibabel.load(source / item["image"]).affine)
    assert len(tests) == 1
