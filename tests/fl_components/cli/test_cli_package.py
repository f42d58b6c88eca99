import json
import logging

import numpy as np
import pytest
from factories import make_dicom, make_site_folder, write_png
from nifti_factories import with_card
from result_factories import PREPARED

from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights
from fedmend.records.package_files import write_package
from fl_components.cli import main


@pytest.fixture
def package(tmp_path):
    about = {
        "name": "run-1",
        "phantom": False,
        "kind": "multilabel",
        "classes": ["edema"],
        "network": {"name": "resnet_narrow"},
        "preprocessing": PREPARED.of_package("multilabel"),
        "thresholds": {},
    }
    weights = get_weights(initial_network("resnet_narrow", ["edema"], 3))
    write_package(tmp_path / "run-1.fedmend", about, {k: v.numpy() for k, v in weights.items()})
    return tmp_path / "run-1.fedmend"


def test_predictions_of_all_images_end_with_0_of_some_with_3_and_of_none_with_1(package, tmp_path, capsys):
    write_png(tmp_path / "in" / "1.png")
    assert main(["predict", str(package), str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    assert f"1 of 1 images predicted; results are in {tmp_path / 'out'}" in capsys.readouterr().out
    (tmp_path / "in" / "2.png").write_bytes(b"no picture")
    assert main(["predict", str(package), str(tmp_path / "in"), str(tmp_path / "out2")]) == 3
    assert "1 of 2 images could not be used; predictions.csv says why" in capsys.readouterr().out
    (tmp_path / "in" / "volume.nrrd").write_bytes(b"NRRD0004")
    main(["predict", str(package), str(tmp_path / "in"), str(tmp_path / "out5")])
    assert "not read: 1 file in .nrrd; expected DICOM, PNG, JPEG or NIfTI" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    assert main(["predict", str(package), str(tmp_path / "empty"), str(tmp_path / "out3")]) == 1
    make_dicom(tmp_path / "mr" / "1.dcm", np.zeros((8, 8)), Modality="MR")
    assert main(["predict", str(package), str(tmp_path / "mr"), str(tmp_path / "out4")]) == 1
    assert "expected images of modality CT, as the model was trained on, got MR in 1.dcm" in capsys.readouterr().err


def test_a_package_is_exported_once(package, tmp_path, capsys):
    words = ["export", str(package), "--monai", str(tmp_path / "bundle")]
    assert main([*words, "--onnx", str(tmp_path / "model.txt")]) == 1
    assert "expected the name of a file that ends with .onnx, got 'model.txt'" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()
    assert main(words) == 0
    assert f"written: {tmp_path / 'bundle'}" in capsys.readouterr().out
    assert main(words) == 1
    assert "expected the name of a new folder" in capsys.readouterr().err
    assert main(["export", str(package)]) == 1
    assert "expected one of --monai, --onnx and --torch with a place to write to, got none" in capsys.readouterr().err


def test_results_are_also_written_as_dicom(package, tmp_path, capsys, caplog):
    pytest.importorskip("highdicom")
    caplog.set_level(logging.INFO)
    about = {"Modality": "CT", "StudyInstanceUID": "1.2.4", "SeriesInstanceUID": "1.2.5"}
    make_dicom(tmp_path / "in" / "1.dcm", np.zeros((8, 8)), **about)
    write_png(tmp_path / "in" / "2.png")
    words = ["predict", str(package), str(tmp_path / "in"), str(tmp_path / "out"), "--dicom", str(tmp_path / "dicom")]
    assert main(words) == 0
    assert f"1 DICOM file is in {tmp_path / 'dicom'}; 1 study or volume has none" in capsys.readouterr().out
    assert len(list((tmp_path / "dicom").glob("SR-*.dcm"))) == 1
    assert [record.getMessage() for record in caplog.records if record.name.startswith("highdicom")] == []


def test_an_evaluation_says_what_it_found_and_where_the_page_is(package, tmp_path, capsys):
    folder = make_site_folder(tmp_path / "site-1", [[1], [0], [1], [0]], classes=["edema"], size=32)
    words = ["evaluate", str(package), str(folder), "--split", "train", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "site-1, train, 4 samples: AUC " in said
    assert f"page: {tmp_path / 'out' / 'evaluation.html'}" in said
    assert main([*words, "--by", "sex"]) == 1
    assert "expected a column 'sex' that site.json lists under columns" in capsys.readouterr().err
    with_card(folder, columns=["sex"])
    table = (folder / "train.csv").read_text().splitlines()
    (folder / "train.csv").write_text(
        "\n".join(f"{row},{sex}" for row, sex in zip(table, ["sex", *"FMFM"], strict=True))
    )
    assert main([*words, "--by", "sex:F,M", "--min-count", "1"]) == 0
    groups = json.loads((tmp_path / "out" / "evaluation.json").read_text())["groups"]
    assert {name: [*found] for name, found in groups.items()} == {"sex": ["F", "M"]}
