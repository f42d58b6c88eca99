"""A network in three dimensions, trained by FedMend's federated averaging and by MONAI alone on all volumes in one
place.

Both have the same volumes of the phantom ``organs``, with all organs marked, the same network, spacing, patches,
optimiser and as many steps in all; MONAI's side is a plain loop of its own transforms, loss, inferer and metric.

    python benchmarks/volumes.py [--seeds 2-4] [--rounds 120] [--epochs 1]

With ``--costs`` it measures slices and patches per second and memory of a site's epochs instead, without augmentation,
beside a bare PyTorch loop over the same slices, or as many patches, each in a process of its own.
"""

import argparse
import math
import multiprocessing
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedmend
from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.datalist import load_datalist
from fedmend.data.inputs import Inputs
from fedmend.data.spaced import Patches
from fedmend.kinds import kind_of
from fedmend.labels import SEGMENTATION
from fedmend.learning.networks import build_network
from fedmend.learning.training import LocalTrainer
from fedmend.method import RoundTask, Site
from fedmend.methods.condist import ConDist
from fedmend.phantoms.organs import ORGANS
from fedmend.phantoms.sites import ensure_phantom, phantom_spec

ROOT = Path(__file__).resolve().parents[1]
SPACING, PATCH, SIZE = [8.0, 8.0, 8.0], [24, 24, 12], 48  # mm; voxels
NETWORK = "volume/monai/SegResNet(init_filters=8, blocks_down=[1, 2, 2], blocks_up=[1, 1])"
RATE, DECAY, BATCH = 5e-4, 0.98, 2  # the rate falls with each round, or as many epochs
EPOCHS = 4  # whose speed is measured
WINDOW = (50.0, 350.0)  # of the phantom's cards


def job_of(seed: int, rounds: int, epochs: int) -> fedmend.Job:
    """Federated averaging of one federation, on Dice and cross-entropy."""
    settings: dict[str, Any] = {"network": NETWORK, "spacing": SPACING, "patch": PATCH, "image_size": SIZE}
    settings |= {"num_rounds": rounds, "local_epochs": epochs, "eval_every": rounds, "learning_rate": RATE}
    settings |= {"batch_size": BATCH, "learning_rate_decay": DECAY}
    settings |= {"weight_decay": 0.0, "second_momentum": 0.999, "keep_moments": True, "augment": False}
    settings |= {"seed": seed, "phantom.seed": seed, "phantom.annotated_per_site": len(ORGANS)}
    return fedmend.Job(ROOT / "jobs" / "condist_organs", variants=["fedavg"], **settings)


def federated(job: fedmend.Job, place: Path) -> list[float]:
    """Dice per volume of each organ, over the test volumes of all sites."""
    run = job.run(workspace=place, threads=1, progress=False)
    package = fedmend.Package(run.folder)
    counts = [package.evaluate(folder_of(job) / name, device="cpu").counts for name in job.sites]
    return kind_of(SEGMENTATION).metrics(np.sum(counts, axis=0))["per_class"]["volume_dice"]


def folder_of(job: fedmend.Job) -> Path:
    """The site folders of a job's phantom."""
    return ensure_phantom(Path("~/.cache/fedmend").expanduser(), phantom_spec(job.variables["phantom"]))


def items_of(job: fedmend.Job, split: str) -> list[dict[str, str]]:
    """Image and label of all sites' volumes of a split."""
    cards = [load_card(folder_of(job) / name, name) for name in job.sites]
    listed = [item for card in cards for item in load_datalist(card, card.splits[split], split)]
    return [{"image": str(item.image), "label": str(item.label)} for item in listed]


def central(job: fedmend.Job, seed: int, rounds: int, epochs: int) -> list[float]:
    """The same by MONAI, on the training volumes of all sites in one place."""
    from monai import transforms as T
    from monai.data import CacheDataset, DataLoader
    from monai.inferers import sliding_window_inference
    from monai.losses import DiceCELoss
    from monai.metrics import DiceMetric
    from monai.networks.nets import SegResNet
    from monai.utils import set_determinism
    from torch.utils.data import Subset

    set_determinism(seed)
    low, high = WINDOW[0] - WINDOW[1] / 2, WINDOW[0] + WINDOW[1] / 2
    keys = ["image", "label"]
    read: list[Any] = [
        T.LoadImaged(keys, ensure_channel_first=True),
        T.Orientationd(keys, axcodes="RAS"),
        T.ScaleIntensityRanged("image", low, high, 0, 1, clip=True),
        T.Spacingd(keys, SPACING, mode=("bilinear", "nearest")),
    ]
    ratios: list[float | int] = [len(ORGANS), *[1] * len(ORGANS)]  # half of the patches around an organ
    crop: list[Any] = [
        T.SpatialPadd(keys, PATCH),
        T.RandCropByLabelClassesd(keys, "label", PATCH, ratios, num_classes=1 + len(ORGANS), image_key="image"),
        T.SelectItemsd(keys),
    ]
    cases = items_of(job, "train")
    tissue = [int(np.count_nonzero(T.Compose(read)(case)["image"])) for case in cases]
    times = [max(1, math.ceil(voxels / math.prod(PATCH))) for voxels in tissue]  # patches of a volume in an epoch
    train = Subset(
        CacheDataset(cases, T.Compose([*read, *crop]), progress=False), np.repeat(range(len(cases)), times).tolist()
    )
    test = CacheDataset(items_of(job, "test"), T.Compose(read), progress=False)
    model = SegResNet(3, 8, 1, 1 + len(ORGANS), blocks_down=(1, 2, 2), blocks_up=(1, 1))
    optimizer, loss = torch.optim.Adam(model.parameters(), RATE), DiceCELoss(to_onehot_y=True, softmax=True, batch=True)
    for epoch in range(rounds * epochs):
        optimizer.param_groups[0]["lr"] = RATE * DECAY ** (epoch // epochs)
        for batch in DataLoader(train, batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            loss(model(batch["image"].as_tensor()), batch["label"].as_tensor()).backward()
            optimizer.step()
    model.eval()
    dice = DiceMetric(include_background=False, reduction="mean_batch", num_classes=1 + len(ORGANS))
    with torch.no_grad():
        for case in DataLoader(test, batch_size=1):
            found = sliding_window_inference(case["image"].as_tensor(), PATCH, 1, model, mode="gaussian")
            assert isinstance(found, torch.Tensor)  # as the network's output
            dice(found.argmax(1, keepdim=True), case["label"].as_tensor())
    means = dice.aggregate()
    assert isinstance(means, torch.Tensor)  # it was not asked for numbers of cases too
    return means.tolist()


def samples_of(train: Any) -> int:
    """Slices of an epoch, or patches."""
    if not train.patch:
        return len(train)
    return len(Patches(train.case, train.masks, train.images, train.patch, torch.Generator()))


def bare_epochs(model: torch.nn.Module, train: Any, epochs: int, batch: int, samples: int) -> None:
    """Plain training with MONAI's loss on slices, or on as many patches of volumes, all from their first corner."""
    from monai.losses import DiceCELoss

    optimizer, loss = torch.optim.Adam(model.parameters(), RATE), DiceCELoss(to_onehot_y=True, softmax=True, batch=True)
    for _ in range(epochs):
        for index in torch.randperm(samples).split(batch):
            rows = index.numpy()
            height, width = train.patch[1:] or train.images.shape[1:]
            if train.patch:
                rows = np.stack([np.flatnonzero(train.case == n % len(train.items))[: train.patch[0]] for n in rows])
            images = torch.from_numpy(train.images[rows][..., :height, :width]).float().unsqueeze(1)
            masks = torch.from_numpy(train.masks[rows][..., :height, :width]).unsqueeze(1)
            optimizer.zero_grad(set_to_none=True)
            loss(model(images)[1], masks).backward()
            optimizer.step()


def cost(deep: bool, bare: bool, weight: float) -> None:
    """Prints samples per second of some epochs at a site, after one to warm up, and the peak memory of the process."""
    torch.set_num_threads(1)
    job = job_of(0, 1, 1)
    card = load_card(folder_of(job) / "site-1", "site-1")
    inputs = Inputs(image_size=SIZE, spacing=SPACING, patch=PATCH) if deep else Inputs(image_size=SIZE)
    kind, batch = kind_of(SEGMENTATION), BATCH if deep else 8
    model = build_network(NETWORK if deep else "unet_narrow", len(ORGANS)).train()
    with tempfile.TemporaryDirectory() as place:
        data = kind.load(card, card.classes, inputs.opening(Path(place) / "cache", torch.device("cpu")))
        if weight:
            data = replace(data, train=replace(data.train, annotated=(True, False, False)))
        ledger = kind.open_ledger(Path(place) / "l.sqlite", card, data)
        site = Site("site-1", torch.device("cpu"), data, ledger, StateStore(Path(place)), batch)
        samples, seconds = samples_of(data.train), 0.0
        for epochs in (1, EPOCHS):
            began = time.monotonic()
            if bare:
                bare_epochs(model, data.train, epochs, batch, samples)
            else:
                method = ConDist(first_weight=weight, last_weight=weight, augment=False)
                work = method.start(model, RoundTask("train", 0, 1), site)
                LocalTrainer(learning_rate=RATE, local_epochs=epochs).train(work)
            seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    who = "bare loop" if bare else f"site, distillation {'on' if weight else 'off'}"
    what = "patches" if deep else "slices"
    print(f"{who}: {EPOCHS * samples / seconds:.1f} {what} per second, peak {peak:.0f} MB", flush=True)


def costs() -> None:
    """Measures sites and bare loops three times in turns."""
    context = multiprocessing.get_context("spawn")
    for _ in range(3):
        for deep in (False, True):
            for bare, weight in ((False, 0.0), (False, 1.0), (True, 0.0)):
                worker = context.Process(target=cost, args=(deep, bare, weight))
                worker.start()
                worker.join()


def main() -> None:
    """Prints a row for each seed and the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="2-4")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--epochs", type=int, default=1, help="local epochs of a round")
    parser.add_argument("--costs", action="store_true", help="measure speed and memory instead")
    args = parser.parse_args()
    if args.costs:
        costs()
        return
    first, _, last = args.seeds.partition("-")
    differences = []
    for seed in range(int(first), int(last or first) + 1):
        job, began = job_of(seed, args.rounds, args.epochs), time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            ours = federated(job, Path(place) / "run")
        middle = time.monotonic()
        theirs = central(job, seed, args.rounds, args.epochs)
        differences.append(np.subtract(ours, theirs))
        times = middle - began, time.monotonic() - middle
        for name, values, seconds in zip(("FedMend, federated", "MONAI, central"), (ours, theirs), times, strict=True):
            told = ", ".join(f"{organ} {100 * value:.1f}" for organ, value in zip(ORGANS, values, strict=True))
            print(f"seed {seed}, {name}: Dice per volume {told} ({seconds:.0f} s)", flush=True)
    means = ", ".join(f"{o} {100 * d:+.1f}" for o, d in zip(ORGANS, np.mean(differences, axis=0), strict=True))
    print(f"federated minus central, mean of {len(differences)}: {means} points")


if __name__ == "__main__":
    main()
