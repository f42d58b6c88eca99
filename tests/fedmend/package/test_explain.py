"""Maps of what a package found, as files."""

import numpy as np
import pytest
import torch
from factories import make_dicom, refused
from result_factories import PREPARED
from torch import nn

from fedmend import Package
from fedmend.learning.networks import Network, initial_network
from fedmend.learning.stage_features import StageClassifier
from fedmend.learning.weights import get_weights
from fedmend.package.explain import Explainer, _findings, explain, heat_png, overlay_png
from fedmend.records.package_files import write_package
from fl_components.cli import main

CLASSES = ["edema", "nodule"]


def make_package(folder, kind="multilabel", network="resnet_narrow", classes=CLASSES):
    about = {
        "name": "run-1",
        "phantom": True,
        "kind": kind,
        "classes": classes,
        "network": {"name": network, "arguments": {"num_classes": 2}},
        "preprocessing": PREPARED.of_package(kind),
        "thresholds": {"threshold": [0.0, 1.0]} if kind == "multilabel" else {},  # edema always, nodule never
    }
    weights = {k: v.numpy() for k, v in get_weights(initial_network(network, classes, 3)).items()}
    write_package(folder / "run-1.fedmend", about, weights)
    return Package(folder / "run-1.fedmend")


class Corner(nn.Module):
    """The first class is as strong as the upper left quarter is bright."""

    channels = 3

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1, bias=False)
        self.head = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.conv.weight.fill_(1)
            self.head.weight.copy_(torch.eye(2))

    def forward(self, images):
        mask = torch.zeros_like(images)
        mask[..., :8, :8] = 1
        features = self.conv(images * mask).mean((2, 3))
        return features, self.head(features)


def test_pictures_have_the_image_below_and_the_map_above():
    heat, image = np.zeros((8, 8), np.float32), np.full((8, 8), 100, np.uint8)
    heat[0, 0] = 1
    from io import BytesIO

    from PIL import Image

    shown = np.asarray(Image.open(BytesIO(overlay_png(image, heat))))
    assert shown.shape == (512, 512, 3)
    assert shown[0, 0].tolist() == [178, 76, 40]  # 0.4 * 100 + 0.6 * (230, 60, 0)
    assert shown[-1, -1].tolist() == [100, 100, 100]
    laid = np.asarray(Image.open(BytesIO(heat_png(heat))))
    assert (laid[0, 0, 3], laid[-1, -1, 3]) == (153, 0)


def test_findings_are_the_positive_decisions_the_most_probable_first(tmp_path):
    file = tmp_path / "predictions.csv"
    file.write_text(
        "image,study,edema_probability,nodule_probability,edema_decision,nodule_decision\n"
        "a.png,a,0.6,0.9,1,0\nb.png,b,0.7,0.8,0,1\nc.png,c,,,,\n"
    )
    assert _findings(file, make_package(tmp_path)) == [("b.png", 1), ("a.png", 0)]
    file.write_text("image,study,edema_probability,nodule_probability,decision\na.png,a,0.6,0.4,edema\n")
    assert _findings(file, make_package(tmp_path, "singlelabel")) == [("a.png", 0)]


def test_a_model_of_masks_has_no_maps(tmp_path):
    with refused("--explain: expected a model of labels, got one of masks, which says itself what it marks"):
        explain(make_package(tmp_path, "segmentation"), tmp_path, tmp_path, most=1)


def test_maps_that_a_model_cannot_have_are_refused_before_anything_is_predicted(tmp_path, capsys):
    package = make_package(tmp_path, "segmentation")
    words = [str(package.folder), str(tmp_path / "none"), str(tmp_path / "out"), "--explain", "3"]
    assert main(["predict", *words]) == 1
    assert "--explain: expected a model of labels, got one of masks" in capsys.readouterr().err


class SolvedCorner(Network):
    """The first class is as strong as a stage is bright on average; no column for the backbone's output counts."""

    def __init__(self):
        super().__init__()
        stage = nn.Conv2d(3, 2, 1, bias=False)
        self.backbone, self.stages = nn.Sequential(stage, nn.AdaptiveAvgPool2d(1), nn.Flatten()), [stage]
        self.classifier = StageClassifier(2, 4, 2)
        with torch.no_grad():
            stage.weight.fill_(1)
            self.classifier.weight.zero_()
            self.classifier.weight[0, 2:4] = 1


@pytest.mark.slow
def test_the_map_of_a_solved_classifier_shows_what_its_stages_saw():
    image = torch.zeros(1, 3, 16, 16)
    image[..., :8, :8] = 1
    heat = Explainer(SolvedCorner(), 16).map(image, 0)
    assert heat[:7, :7].min() > 0.9
    assert heat[9:, 9:].max() == 0


@pytest.mark.slow
def test_a_frozen_backbone_behind_projected_has_maps_too():
    model = initial_network("projected/resnet_narrow", ("a", "b"), 1)
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    explainer = Explainer(model, 32)
    assert max(explainer.map(image, c).max() for c in (0, 1)) == 1
    assert not any(parameter.requires_grad for parameter in model.backbone.parameters())


@pytest.mark.slow
def test_a_map_is_where_the_score_comes_from_and_the_network_stays_as_it_is():
    model = Corner()
    heat = Explainer(model, 16).map(torch.ones(1, 3, 16, 16), 0)
    assert heat[:8, :8].min() > 0.9
    assert heat[8:, 8:].max() < 0.1
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_the_most_probable_findings_get_a_picture_each_and_no_more_than_were_asked_for(tmp_path):
    for n in range(3):
        make_dicom(tmp_path / "in" / f"{n}.dcm", np.random.default_rng(n).integers(0, 80, (40, 40)), Modality="CT")
    package = make_package(tmp_path, classes=["edema 50%/whole", "nodule"])
    package.predict(tmp_path / "in", tmp_path / "out", device="cpu")
    assert explain(package, tmp_path / "in", tmp_path / "out", most=2, device="cpu") == 2
    names = [file.name for file in (tmp_path / "out" / "maps").iterdir()]
    assert len(names) == 2
    assert {name.partition(".dcm-")[2] for name in names} == {"edema 50%25%2Fwhole.png"}
    words = [str(package.folder), str(tmp_path / "in"), str(tmp_path / "out"), "--explain", "3", "--device", "cpu"]
    assert main(["predict", *words]) == 0
    assert len(list((tmp_path / "out" / "maps").iterdir())) == 3
