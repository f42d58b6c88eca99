"""A bundle is run by MONAI in a process that cannot import FedMend."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from factories import make_dicom, refused
from package_factories import CHOSEN, balance, make_package
from PIL import Image

from fedmend.errors import FedMendError
from fedmend.learning.bundles import as_library
from fedmend.learning.networks import initial_network
from fedmend.package.export_inference import inference
from fedmend.package.export_network import network_definition

REAL = Path(os.environ.get("FEDMEND_REAL_DATA", "/nowhere"))
ALONE = "import sys, runpy; sys.modules['fedmend'] = None; runpy.run_module('monai.bundle', run_name='__main__')"
MASKS = {"kind": "segmentation", "network": "unet_narrow", "classes": ["lesion"], "window": None, "modality": "MR"}
PLAIN = {"ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "ImagePositionPatient": [0, 0, 0], "PixelSpacing": [1, 1]}
SMALL = "monai/DynUNet(kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[4, 8, 8])"
NETWORKS = ["resnet_narrow_gn", "densenet121_gn", "unet_narrow_twin", "segresnet", "timm/convnext_atto", SMALL]
STAGES = [
    f"stages/{name}" for name in ("resnet_narrow_gn", "densenet121", "timm/tf_efficientnet_lite0", "monai/resnet10")
]
PROJECTED = ["projected/resnet_narrow_gn", "projected/timm/tf_efficientnet_lite0"]


def read_stages(network):
    """Gives the columns for stages, which begin as 0, numbers."""
    torch.nn.init.normal_(network.classifier.weight, std=0.1, generator=torch.Generator().manual_seed(0))


def monai(folder, *words):
    pytest.importorskip("fire")
    pytest.importorskip("ignite")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", ALONE, *map(str, words)], cwd=folder, env=env, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]


def run(bundle, images, out):
    inference = ("--config_file", bundle / "configs/inference.json")
    monai(bundle, "run", "--bundle_root", bundle, *inference, "--dataset_dir", images, "--output_dir", out)


def ours(made, images, out):
    made.predict(images, out)
    with open(out / "predictions.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def same_probabilities(tmp_path, made, images):
    """The rows of both are alike; gives their number."""
    made.export(monai=tmp_path / "bundle")
    run(tmp_path / "bundle", images, tmp_path / "theirs")
    with open(tmp_path / "theirs" / "predictions.csv", newline="") as stream:
        found = {name: list(map(float, scores)) for name, *scores in csv.reader(stream)}
    rows = ours(made, images, tmp_path / "ours")
    wanted = {row["image"]: [float(row[f"{c}_probability"]) for c in made.classes] for row in rows}
    assert set(found) == set(wanted)
    assert np.array(list(wanted.values())).std() > 0
    for name, scores in wanted.items():
        assert found[name] == pytest.approx(scores, abs=1e-5), name
    return len(found)


def same_masks(tmp_path, made, images):
    """The masks of both are alike, but for two voxels at most; gives the number of voxels."""
    made.export(monai=tmp_path / "bundle")
    run(tmp_path / "bundle", images, tmp_path / "theirs")
    voxels = 0
    for row in ours(made, images, tmp_path / "ours"):
        stem = row["image"].partition(".nii")[0]
        mine, theirs = (nibabel.load(f) for f in (tmp_path / "ours" / row["mask"], *tmp_path.glob(f"theirs/{stem}_*")))
        assert np.allclose(mine.affine, theirs.affine)
        mine, theirs = (np.asarray(image.dataobj).squeeze() for image in (mine, theirs))
        assert (mine != theirs).sum() <= 2  # scores of both networks may lie on both sides of one half
        assert set(np.unique(mine)) == {0, *range(1, len(made.classes) + 1)}
        voxels += (mine > 0).sum()
    return voxels


def pictures(folder, modes):
    folder.mkdir(parents=True, exist_ok=True)
    for number, mode in enumerate(modes):
        pixels = np.random.default_rng(number).integers(0, 255, (50, 40 + number, 4), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{number}.png")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multilabel", "singlelabel"])
def test_probabilities_of_pictures_volumes_and_dicom_are_those_of_predict(tmp_path, kind):
    images = tmp_path / "in"
    pictures(images, ["L", "RGB", "RGBA", "LA", "P"])
    (images / "sub").mkdir()
    values = (np.random.default_rng(9).random((30, 41, 3)) * 90).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([-1.0, 1, 2, 1])), images / "sub" / "v.nii.gz")
    stored = np.random.default_rng(8).integers(0, 1100, (40, 44))
    make_dicom(images / "x.dcm", stored, Modality="CT", RescaleIntercept=-1000.5, **PLAIN)
    more = {"thresholds": {**CHOSEN, "temperature": [1.5, 0.5]}}
    assert same_probabilities(tmp_path, make_package(tmp_path, kind, more=more), images) == 9


@pytest.mark.slow
def test_probabilities_of_colours_and_of_volumes_without_a_window_are_those_of_predict(tmp_path):
    pictures(tmp_path / "color", ["RGB", "RGBA", "L", "P"])
    made = make_package(tmp_path / "1", network="resnet_narrow_gn", color=True, window=None, modality="")
    assert same_probabilities(tmp_path / "1", made, tmp_path / "color") == 4
    values = (np.random.default_rng(9).random((30, 41, 3)) * 90).astype(np.float32)
    (tmp_path / "volumes").mkdir()
    nibabel.save(nibabel.Nifti1Image(values, np.diag([-1.0, 1, 2, 1])), tmp_path / "volumes" / "v.nii.gz")
    made = make_package(tmp_path / "2", window=None, modality="MR")
    assert same_probabilities(tmp_path / "2", made, tmp_path / "volumes") == 3
    made = make_package(tmp_path / "3", network="stages/timm/tf_efficientnet_lite0", color=True, change=read_stages)
    assert same_probabilities(tmp_path / "3", made, tmp_path / "color") == 4


@pytest.mark.slow
@pytest.mark.parametrize("classes", [["lesion"], ["liver", "spleen"]], ids=len)
def test_masks_are_those_of_predict_whatever_the_orientation(tmp_path, classes):
    values = np.random.default_rng(0).random((20, 24, 4)).astype(np.float32)
    values[:, :, 2] = 0
    upright = nibabel.Nifti1Image(values, np.diag([2.0, 2, 5, 1]))
    (tmp_path / "in" / "sub").mkdir(parents=True)
    nibabel.save(upright, tmp_path / "in" / "a.nii.gz")
    nibabel.save(upright.as_reoriented([[1, -1], [0, 1], [2, -1]]), tmp_path / "in" / "sub" / "b.nii")
    nibabel.save(nibabel.Nifti1Image(values[..., None], upright.affine), tmp_path / "in" / "of_one_time.nii")
    assert (
        same_masks(tmp_path, make_package(tmp_path, **{**MASKS, "classes": classes}, change=balance), tmp_path / "in")
        > 0
    )


@pytest.mark.slow
def test_metadata_are_verified_without_a_network(tmp_path):
    make_package(tmp_path).export(monai=tmp_path / "bundle")
    words = ("--meta_file", "configs/metadata.json", "--filepath", "configs/metadata.schema.json")
    monai(tmp_path / "bundle", "verify_metadata", *words)
    about = json.loads((tmp_path / "bundle" / "configs" / "metadata.json").read_text())
    assert about["network_data_format"]["outputs"]["pred"]["channel_def"] == {"0": "edema", "1": "nodule"}
    assert about["fedmend"]["thresholds"] == [0.5, 0.5]
    names = {str(f.relative_to(tmp_path / "bundle")) for f in (tmp_path / "bundle").rglob("*") if f.is_file()}
    configs = {f"configs/{name}" for name in ("inference.json", "metadata.json", "metadata.schema.json")}
    assert names == configs | {"LICENSE", "docs/README.md", "models/model.pt"}
    assert (tmp_path / "bundle" / "docs" / "README.md").read_text().startswith("# PHANTOM: run-1\n")


@pytest.mark.parametrize(("network", "needed"), [("resnet_narrow", "torchvision\n"), (STAGES[2], "torchvision timm\n")])
def test_a_bundle_says_what_is_installed_to_run_it(tmp_path, network, needed):
    if "timm" in needed:
        pytest.importorskip("timm", reason="needs fedmend[pretrained]")
    make_package(tmp_path, network=network).export(monai=tmp_path / "bundle")
    assert f'pydicom]" {needed}python -m monai.bundle run' in (tmp_path / "bundle" / "docs" / "README.md").read_text()


def test_a_bundle_starts_a_new_run(tmp_path):
    made = make_package(tmp_path)
    made.export(monai=tmp_path / "bundle")
    started = initial_network("resnet_narrow", made.classes, 9, str(tmp_path / "bundle"))
    assert all((v == made.network().state_dict()[k]).all() for k, v in started.state_dict().items())


def test_what_monai_cannot_do_is_refused(tmp_path):
    sentence = "expected a window in numbers, or none, for a MONAI bundle, got 'file'"
    with refused(f"package run-1: {sentence}: MONAI does not read the windows of DICOM headers"):
        make_package(tmp_path, window="file").export(monai=tmp_path / "bundle")
    (tmp_path / "there").mkdir()
    with refused(f"export: expected the name of a new folder, {tmp_path / 'there'} is there"):
        make_package(tmp_path).export(monai=tmp_path / "there")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"classes": ["edema", "$__import__('os').getcwd()"]},
        {"classes": ["edema", "@bundle_root"]},
        {"name": "%run-1"},
        {"classes": ["edema", "nodule@#"]},
        {"classes": ["edema", "nodule\x1b[2J"]},
        {"classes": ["edema", "_target_"]},
        {"thresholds": {"not_fitted": ["", "$1"]}},
    ],
)
def test_a_text_of_a_package_that_monai_would_run_or_that_cannot_be_printed_is_refused(tmp_path, more):
    package = make_package(tmp_path, more=more)
    with pytest.raises(FedMendError, match=r"^package run-1\.fedmend: expected for a MONAI bundle printable names"):
        package.export(monai=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_name_is_no_markup_of_the_readme(tmp_path):
    make_package(tmp_path, classes=("a<img src=x>", "50 % of_b")).export(monai=tmp_path / "bundle")
    text = (tmp_path / "bundle" / "docs" / "README.md").read_text(encoding="utf-8")
    assert "Classes: a\\<img src=x\\>, 50 % of\\_b." in text
    assert "<img" not in text.replace("\\<img", "")


@pytest.mark.slow
@pytest.mark.parametrize("network", [*NETWORKS, "resnet18", "monai/resnet10", *STAGES, *PROJECTED])
def test_every_network_is_built_by_its_library_to_the_last_digit(network):
    from monai.bundle import ConfigParser

    ours = initial_network(network, ["a", "b"], 5).eval()
    if network in STAGES:
        read_stages(ours)
    parser = ConfigParser({"imports": ["$import torch", "$import monai"], **network_definition(network, 2)})
    theirs = parser.get_parsed_content("network_def").eval()
    theirs.load_state_dict(as_library(ours, network))
    images = torch.rand(2, ours.channels, 32, 32, generator=torch.Generator().manual_seed(0))
    scaled = images * ours._scale + ours._shift if "timm/" in network else images
    with torch.no_grad():
        assert torch.allclose(theirs(scaled), ours(images)[1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"PhotometricInterpretation": "MONOCHROME1"},
        {"ImageOrientationPatient": [-1, 0, 0, 0, 1, 0]},
        {"RescaleSlope": None},
        {"PixelPaddingValue": 5},
        {"BitsStored": 12},  # in the upper bits
        {"RescaleIntercept": 0, "PixelRepresentation": 0},
    ],
)
def test_a_slice_that_monai_would_read_otherwise_is_refused(tmp_path, change):
    from monai.bundle import ConfigParser

    about = {"Modality": "CT", "RescaleIntercept": -1000, **PLAIN}
    make_dicom(tmp_path / "good.dcm", np.ones((40, 44)), **about)
    make_dicom(tmp_path / "bad.dcm", np.ones((40, 44)), **{**about, **change})
    parser = ConfigParser(inference(make_package(tmp_path)))
    read = parser.get_parsed_content("preprocessing")
    assert read({"image": str(tmp_path / "good.dcm")})["image"].shape == (1, 40, 44, 1)
    with pytest.raises(RuntimeError) as refusal:
        read({"image": str(tmp_path / "bad.dcm")})
    assert str(refusal.value.__cause__) == "expected a plain DICOM slice; fedmend predict takes others"


@pytest.mark.slow
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("about", [{"window": None}, {}, MASKS], ids=["labels", "in a window", "masks"])
def test_a_volume_with_voxels_that_are_no_numbers_is_refused_as_by_predict(tmp_path, about, value):
    from monai.bundle import ConfigParser

    voxels = np.random.default_rng(0).random((20, 24, 4)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / "good.nii")
    voxels[3, 4, 2] = value
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / "bad.nii")
    read = ConfigParser(inference(make_package(tmp_path, **about))).get_parsed_content("preprocessing")
    assert read({"image": str(tmp_path / "good.nii")})["image"].shape[0] == 1
    with pytest.raises(RuntimeError) as refusal:
        read({"image": str(tmp_path / "bad.nii")})
    assert str(refusal.value.__cause__) == "expected finite voxels, got NaN or infinity"


@pytest.mark.slow
@pytest.mark.parametrize("values", [[7, 7, 7, 7], [1, 2, 3, 4]], ids=["one value", "one in each slice"])
def test_a_volume_of_which_no_slice_shows_anything_is_refused_as_by_predict(tmp_path, values):
    from monai.bundle import ConfigParser

    made = make_package(tmp_path, **MASKS)
    nibabel.save(nibabel.Nifti1Image(np.tile(np.float32(values), (20, 24, 1)), np.eye(4)), tmp_path / "flat.nii")
    (row,) = ours(made, tmp_path / "flat.nii", tmp_path / "out")
    read = ConfigParser(inference(made)).get_parsed_content("preprocessing")
    with pytest.raises(RuntimeError) as refusal:
        read({"image": str(tmp_path / "flat.nii")})
    assert str(refusal.value.__cause__) == row["problem"] == "expected tissue, got voxels of one value"


@pytest.mark.slow
def test_a_folder_without_a_file_that_the_bundle_takes_is_refused(tmp_path):
    from monai.bundle import ConfigParser

    make_dicom(tmp_path / "IM000001", np.ones((40, 44)), Modality="CT", RescaleIntercept=-1000, **PLAIN)
    parser = ConfigParser({**inference(make_package(tmp_path)), "dataset_dir": str(tmp_path)})
    with pytest.raises(RuntimeError) as refusal:
        parser.get_parsed_content("files")
    wanted = ".png, .jpg, .jpeg, .nii, .nii.gz, .dcm"
    assert str(refusal.value.__cause__) == f"dataset_dir: expected files that end in {wanted}, got none"


@pytest.mark.slow
def test_a_folder_may_have_the_signs_of_patterns_in_its_name(tmp_path):
    from monai.bundle import ConfigParser

    pictures(tmp_path / "scan [2] *", ["L"])
    parser = ConfigParser({**inference(make_package(tmp_path)), "dataset_dir": str(tmp_path / "scan [2] *")})
    assert parser.get_parsed_content("files") == [str(tmp_path / "scan [2] *" / "0.png")]


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "brain_mri").is_dir(), reason="real images are not here")
def test_probabilities_of_real_images_are_those_of_predict(tmp_path):
    (tmp_path / "in").mkdir()
    for file in sorted((REAL / "brain_mri" / "images").iterdir())[:40]:
        (tmp_path / "in" / file.name).symlink_to(file)
    made = make_package(tmp_path, "singlelabel", "resnet18", window=None, modality="MR", image_size=64)
    assert same_probabilities(tmp_path, made, tmp_path / "in") == 40


@pytest.mark.slow
@pytest.mark.skipif(not (REAL / "ms_flair").is_dir(), reason="real images are not here")
def test_masks_of_a_real_volume_are_those_of_predict(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "p07.nii.gz").symlink_to(REAL / "ms_flair" / "p07_flair.nii.gz")
    made = make_package(tmp_path, **MASKS, change=balance, image_size=96)
    assert same_masks(tmp_path, made, tmp_path / "in") > 1000
