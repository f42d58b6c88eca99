"""Tiny networks and sites in memory."""

import dataclasses

import numpy as np
import torch
from nifti_factories import write_nifti
from threadpoolctl import threadpool_limits
from torch import nn

from fedmend.basics.state import StateStore
from fedmend.data.datalist import VolumeItem
from fedmend.data.site import SiteData, Split
from fedmend.data.slices import VolumeSplit
from fedmend.data.tables import LabelTable
from fedmend.labels import SEGMENTATION, SINGLELABEL
from fedmend.learning.system_random import SystemRandom
from fedmend.learning.twin_network import TwinNetwork
from fedmend.method import LocalMethod, Round, RoundTask, Site
from fedmend.repairs.label_ledger import LabelLedger
from fedmend.repairs.mask_ledger import MaskLedger

CPU = torch.device("cpu")


def in_several_threads(compute):
    """The bytes of the arrays that ``compute()`` returns in 1, 2 and 3 threads of PyTorch and of NumPy's BLAS."""
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with threadpool_limits(threads, user_api="blas"):
                found.append([np.asarray(array).tobytes() for array in compute()])
    finally:
        torch.set_num_threads(before)
    return found


class TinyNetwork(nn.Module):
    """Stand-in for a backbone: mean colour of four quarters → BatchNorm → features (B, 12) and logits (B, C)."""

    channels, num_features = 3, 12
    library_heads = ()

    def __init__(self, num_classes, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm = nn.BatchNorm1d(self.num_features)
            self.classifier = nn.Linear(self.num_features, num_classes)

    def forward(self, images):
        features = self.norm(nn.functional.adaptive_avg_pool2d(images, 2).flatten(1))
        return features, self.classifier(features)


class GroupNetwork(nn.Module):
    """:class:`TinyNetwork` with GroupNorm: images do not change each other."""

    channels, num_features = 3, 12

    def __init__(self, num_classes, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.norm = nn.GroupNorm(1, self.num_features)
            self.classifier = nn.Linear(self.num_features, num_classes)

    def forward(self, images):
        features = self.norm(nn.functional.adaptive_avg_pool2d(images, 2).flatten(1))
        return features, self.classifier(features)


class Says(nn.Module):
    """Gives sample i, whose grey value is 10 i, row i of a table of logits, which can be trained.

    ``calls`` notes (training mode, grey values / 10) of every forward call.
    """

    def __init__(self, table):
        super().__init__()
        self.table = nn.Parameter(torch.tensor(np.asarray(table), dtype=torch.float32))
        self.calls = []

    def forward(self, images):
        number = (images[:, 0, 2, 2] * 0.229 + 0.485) * 25.5
        self.calls.append((self.training, [round(v, 2) for v in number.tolist()]))
        logits = self.table[number.round().long()]
        return logits, logits


class SaysStructures(nn.Module):
    """Two features, and the same probabilities (1 + C, H, W) of background and C structures for every slice."""

    def __init__(self, probabilities):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(probabilities).log())

    def forward(self, x):
        return torch.zeros(len(x), 2), self.logits.expand(len(x), *self.logits.shape).clone()


class SaysMasks(nn.Module):
    """Gives slice i of :func:`make_mask_site` the lesion probabilities i of a table (N, H, W), whose logits can be
    trained.

    ``calls`` notes (training mode, slice numbers) of every forward call.
    """

    def __init__(self, probabilities):
        super().__init__()
        probabilities = torch.tensor(np.asarray(probabilities), dtype=torch.float32)
        self.table = nn.Parameter(probabilities.logit(eps=1e-6))
        self.calls = []

    def forward(self, images):
        number = (images.mean((1, 2, 3)) * 100).round().long()
        self.calls.append((self.training, number.tolist()))
        lesion = self.table[number]
        logits = torch.stack([torch.zeros_like(lesion), lesion], 1)
        return logits, logits


def seeded(seed):
    """Noise and draws of a private site that a test can repeat."""
    return SystemRandom(np.random.default_rng(seed).bytes)


def sure_of(masks, *, lesion=(), background=()):
    """:class:`SaysMasks` for slices like ``masks``, sure of these (slice, row, column) and of nothing else."""
    table = np.full(masks.shape, 0.5)
    for place in lesion:
        table[place] = 0.9
    for place in background:
        table[place] = 0.1
    return SaysMasks(table)


class HalfMasks(SaysMasks):
    """:class:`SaysMasks` as a half of a twin."""

    channels, num_features = 1, 2

    @property
    def encoder(self):
        return [nn.Identity() for _ in range(5)]


def make_twin(first, second):
    """Two :class:`HalfMasks` with tables of their own."""
    tables = iter((first, second))
    return TwinNetwork(lambda num_classes: HalfMasks(next(tables)), 1)


class PlainRound(Round):
    """Binary cross-entropy on all labels, blanks as negatives."""

    def loss(self, index):
        train = self.site.data.train
        target = torch.from_numpy(np.maximum(train.labels, 0)).float()[index]
        return nn.functional.binary_cross_entropy_with_logits(self.model(train.view(index))[1], target)


class PlainMethod(LocalMethod):
    """Trains with :class:`PlainRound`."""

    ROUND = PlainRound


def make_split(labels, size=8, seed=0, file="train.csv", color=False):
    labels = np.asarray(labels, dtype=np.int8)
    n, c = labels.shape
    shape = (n, size, size, 3) if color else (n, size, size)
    images = np.random.default_rng((seed, n)).integers(0, 256, shape, dtype=np.uint8)
    names = tuple(f"img{i}.png" for i in range(n))
    table = LabelTable(
        file, np.arange(2, n + 2), names, ("",) * n, labels, (labels >= 0).any(0), tuple(f"class{i}" for i in range(c))
    )
    return Split(images, table, CPU)


def one_hot(classes, num_classes):
    """(N, C) int8 of N class numbers; a row of -1 for -1."""
    classes = np.asarray(classes)
    labels = (classes[:, None] == np.arange(num_classes)).astype(np.int8)
    labels[classes < 0] = -1
    return labels


def make_single_site(folder, classes, num_classes=3, **options):
    """A single-label site with these class numbers."""
    site = make_site(folder, one_hot(classes, num_classes), **options)
    site.data = dataclasses.replace(site.data, kind=SINGLELABEL, annotated=np.ones(num_classes, dtype=bool))
    return site


def make_site(folder, labels, *, name="site-1", batch_size=4, seed=0):
    train = make_split(labels, seed=seed)
    data = SiteData(train.table.classes, train.table.annotated, train, {})
    ledger = LabelLedger(
        folder / "ledger.sqlite",
        fingerprint=train.table.fingerprint(),
        images=train.table.images,
        classes=data.classes,
        site=name,
    )
    return Site(name, CPU, data, ledger, StateStore(folder / "state"), batch_size)


def make_mask_split(folder, masks, *, volumes=1, file="datalist.json"):
    """Slices of constant grey value i / 100, which augmentation leaves alone, with masks (N, H, W) of 0 and 1.

    N / ``volumes`` successive slices make a volume; its label file, below ``folder``, stands in for its image.
    """
    masks = np.asarray(masks, dtype=np.uint8)
    n, size = len(masks), masks.shape[1]
    depth, items = n // volumes, []
    for v, planes in enumerate(masks.reshape(volumes, depth, size, size)):
        label = folder / "labels" / f"{file}-{v}.nii.gz"
        write_nifti(label, np.stack([np.rot90(plane, -1) for plane in planes], -1))
        items.append(VolumeItem(label, label, f"case-{v}.nii.gz"))
    images = np.broadcast_to((np.arange(n)[:, None, None] / 100).astype(np.float16), masks.shape).copy()
    case, plane = np.divmod(np.arange(n), depth)
    return VolumeSplit(file, tuple(items), images, masks, case, plane, CPU)


def make_mask_site(folder, masks, *, volumes=1, test=None, name="site-1", batch_size=4):
    """A segmentation site of :func:`make_mask_split` slices.

    Args:
        folder: for ledger, state and label files.
        masks: (N, H, W) of 0 and 1, the training annotation.
        volumes: number of training volumes.
        test: (N, H, W) masks of the test split, one volume; its slices too are numbered from 0.
        name: site name.
        batch_size: of the local training and of inference.
    """
    train = make_mask_split(folder, masks, volumes=volumes)
    evaluation = {} if test is None else {"test": make_mask_split(folder, test, file="test.json")}
    data = SiteData(("lesion",), np.ones(1, dtype=bool), train, evaluation, SEGMENTATION)
    ledger = MaskLedger(folder / "ledger.sqlite", split=train, classes=data.classes, site=name)
    return Site(name, CPU, data, ledger, StateStore(folder / "state"), batch_size)


def make_task(stage="train", round_num=0, total_rounds=3, seed=7, role="", **knowledge):
    return RoundTask(stage, round_num, total_rounds, knowledge=knowledge, role=role, seed=seed)
