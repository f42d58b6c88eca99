import json
import sys

import pytest
import torch
from factories import ROOT, refused
from full_disk import full_disk
from package_factories import CHOSEN, make_package

from fedmend.package import export_graph
from fedmend.package.probabilities import Asked, probabilities

MASKS = {"kind": "segmentation", "network": "unet_narrow", "classes": ["lesion"], "window": None}
MODELS = {"multilabel": {}, "singlelabel": {"kind": "singlelabel", "classes": ["a", "b", "c"]}, "segmentation": MASKS}
MODELS["structures"] = {**MASKS, "classes": ["liver", "spleen"]}
MODELS["stages"] = {
    "network": "stages/resnet_narrow",
    "change": lambda network: torch.nn.init.normal_(
        network.classifier.weight, std=0.1, generator=torch.Generator().manual_seed(0)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_program_gives_the_probabilities_for_any_batch(tmp_path, model):
    made = make_package(tmp_path, **MODELS[model])
    made.export(torch=tmp_path / "out" / "model.pt2")
    content = {"fedmend.json": ""}
    program = torch.export.load(tmp_path / "out" / "model.pt2", extra_files=content).module()
    asked = Asked(made).eval()
    for batch in (1, 7):
        pixels = asked.example(batch)
        with torch.no_grad():
            assert torch.allclose(program(pixels), asked(pixels), atol=1e-6)
    assert json.loads(json.loads(content["fedmend.json"])["classes"]) == list(made.classes)
    assert str(ROOT).encode() not in (tmp_path / "out" / "model.pt2").read_bytes()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["model.pt2"]


def test_a_full_disk_is_an_error_of_the_system_and_no_end_of_the_process(tmp_path, monkeypatch):
    made = make_package(tmp_path)
    monkeypatch.setattr(export_graph, "_program", lambda package: None)
    monkeypatch.setattr(torch.export, "save", lambda program, content, **_: content.write(bytes(9_999)))  # 2 s
    with pytest.raises(OSError, match="File too large"), full_disk(5_000):
        made.export(torch=tmp_path / "model.pt2")
    with pytest.raises(OSError, match="File too large"), full_disk(50_000):
        made.export(monai=tmp_path / "bundle")
    assert [file.name for file in tmp_path.iterdir()] == ["run-1.fedmend"]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_onnx_gives_the_probabilities_for_any_batch(tmp_path, model):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    made = make_package(tmp_path, **MODELS[model])
    made.export(onnx=tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    asked = Asked(made).eval()
    for batch in (1, 7):
        pixels = asked.example(batch)
        with torch.no_grad():
            wanted = asked(pixels).numpy()
        assert session.run(None, {"pixels": pixels.numpy()})[0] == pytest.approx(wanted, abs=1e-4)
    props = {p.key: p.value for p in onnx.load(tmp_path / "model.onnx").metadata_props}
    assert json.loads(props["classes"]) == list(made.classes)
    assert json.loads(props["preprocessing"]) == made.info["preprocessing"]
    assert json.loads(props["thresholds"]) == list(made.thresholds)
    assert session.get_inputs()[0].shape[0] == "batch"
    assert str(ROOT).encode() not in (tmp_path / "model.onnx").read_bytes()


def test_temperatures_divide_the_logits_of_their_classes(tmp_path):
    logits = torch.tensor([[2.0, -3.0]])
    assert torch.equal(probabilities(make_package(tmp_path / "1"), logits), logits.sigmoid())
    tempered = make_package(tmp_path / "2", more={"thresholds": {**CHOSEN, "temperature": [2.0, 1.5]}})
    assert torch.allclose(probabilities(tempered, logits), torch.tensor([[1.0, -2.0]]).sigmoid())


def test_bad_wishes_are_refused_in_one_sentence(tmp_path, monkeypatch):
    made = make_package(tmp_path)
    (tmp_path / "there.pt2").touch()
    with refused("export: expected one of --monai, --onnx and --torch with a place to write to, got none"):
        made.export()
    with refused(f"export: expected the name of a new file, {tmp_path / 'there.pt2'} is there"):
        made.export(torch=tmp_path / "there.pt2")
    with refused("export: expected the name of a file that ends with .pt2, got 'model.pt'"):
        made.export(torch=tmp_path / "model.pt")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Exception, match=r"^export: .*onnx"):
        made.export(onnx=tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
