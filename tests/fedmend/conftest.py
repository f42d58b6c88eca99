"""Tiny sites and a stand-in network whose features can be computed by hand."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch_factories import one_hot

from fedmend.basics.state import StateStore
from fedmend.data.site import SiteData, Split
from fedmend.data.tables import LabelTable
from fedmend.labels import SINGLELABEL
from fedmend.learning.training import LocalTrainer
from fedmend.method import Site
from fedmend.repairs.label_ledger import LabelLedger


class PixelNet(nn.Module):
    """Features (v, 1 - v) of the centre pixel v in 0..1, which weak augmentation of a plain grey image leaves alone.

    ``calls`` notes (training mode, batch size) of every forward call.
    """

    def __init__(self, num_classes: int, seed: int = 0):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.classifier = nn.Linear(2, num_classes)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(seed)
            self.classifier.weight.copy_(torch.randn(num_classes, 2, generator=generator))
            self.classifier.bias.copy_(torch.randn(num_classes, generator=generator))
        self.calls: list[tuple[bool, int]] = []

    def forward(self, images):
        self.calls.append((self.training, len(images)))
        v = images[:, 0, images.shape[2] // 2, images.shape[3] // 2] * 0.229 + 0.485
        features = torch.stack([v, 1 - v], 1) * self.scale
        return features, self.classifier(features)

    def samples(self, *, training: bool) -> int:
        return sum(size for mode, size in self.calls if mode == training)


@pytest.fixture
def make_net():
    return PixelNet


@pytest.fixture
def make_site(tmp_path):
    """A site from labels (N, C) and grey values (N,); ``annotated`` defaults to the columns with a label."""

    def build(labels, values=None, *, annotated=None, name="site-1", batch_size=4, folder="disk", single=False):
        labels = np.array(labels, dtype=np.int8)
        labels.setflags(write=False)
        samples, number = labels.shape
        annotated = (labels >= 0).any(0) if annotated is None else np.array(annotated, dtype=bool)
        values = np.linspace(250, 5, samples).astype(np.uint8) if values is None else np.array(values, dtype=np.uint8)
        classes = tuple(f"class {c}" for c in range(number))
        names = tuple(f"{i}.png" for i in range(samples))
        table = LabelTable("train.csv", np.arange(samples) + 2, names, ("",) * samples, labels, annotated, classes)
        images = np.broadcast_to(values[:, None, None], (samples, 5, 5))
        train = Split(images, table, torch.device("cpu"))
        home = tmp_path / folder / name
        about = {"fingerprint": table.fingerprint(), "images": names, "classes": classes}
        ledger = LabelLedger(home / "ledger.sqlite", **about, site=name, one_label=single)
        data = SiteData(classes, annotated, train, {})
        return Site(name, torch.device("cpu"), data, ledger, StateStore(home), batch_size)

    return build


@pytest.fixture
def site_of(make_site):
    """A site of plain grey images; single-label where ``labels`` are class numbers."""

    def build(labels, *, classes=3, **options):
        labels = np.asarray(labels)
        single = labels.ndim == 1
        labels = one_hot(labels, classes) if single else labels
        site = make_site(labels, 10 * np.arange(len(labels)), single=single, **options)
        if single:
            site.data = dataclasses.replace(site.data, kind=SINGLELABEL, annotated=np.ones(classes, dtype=bool))
        return site

    return build


@pytest.fixture
def play():
    """One task as a site runs it; returns the report."""

    def run(method, model, task, site, learning_rate=0.01):
        site.ledger.undo(from_round=task.round_num)
        work = method.start(model, task, site)
        LocalTrainer(learning_rate=learning_rate).train(work)
        return work.report()

    return run
