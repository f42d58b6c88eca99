"""Measures what it is worth to train on studies, where hospitals label studies: ``python benchmarks/studies.py``.

On phantom CT heads of 24 slices with a label per study, each federation drawn anew, two ways. Either the network sees
twelve slices of a study at once, with log-sum-exp pooling (``jobs/fedmlp_ich --variant studies``). Or the label of a
study is copied to its slices, the same network sees them one by one, in batches of as many slices and for as many
steps, and a study has the mean, or the highest, of its slices' logits. All classes are annotated everywhere unless
``--set`` says otherwise. Both ways are measured on the same test studies. Writes
``benchmarks/results/studies_METHOD.json`` and prints means, paired differences and 95 % t-intervals over federations.

With ``--costs`` it measures slices per second and memory of a site's epochs instead, beside a bare PyTorch loop without
augmentation over the same slices, network, loss and optimiser, each in a process of its own.
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import fedmend
from fedmend.basics.state import StateStore
from fedmend.comparison.paired import paired_difference
from fedmend.data.card import STUDY, load_card
from fedmend.data.site import Opening, load_split
from fedmend.kinds import kind_of
from fedmend.learning.inference import infer
from fedmend.learning.networks import build_network
from fedmend.learning.training import LocalTrainer
from fedmend.method import RoundTask, Site
from fedmend.methods.baselines import FedAvgPL
from fedmend.package import Package
from fedmend.phantoms.sites import ensure_phantom, phantom_spec
from fl_components.job.settings import parse_assignments

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "benchmarks" / "results"
ALL, SLICES, STUDIES, EPOCHS = 24, 12, 8, 6  # slices of a study; that the network sees; studies of a batch
PHANTOM = {"dataset": "ich", "pixels": 64, "slices_per_patient": ALL, "labels_of": "study", "annotated_per_site": 5}
COPIED = {"network": "resnet_narrow", "study_slices": 0, "batch_size": SLICES * STUDIES, "phantom.labels_of": "copied"}
COPIED |= {"local_epochs": EPOCHS * SLICES // ALL}  # of all slices: as many steps
MEASURES = {"auc": roc_auc_score, "map": average_precision_score}


def job_of(seed: int, method: str, changes: dict[str, Any], given: dict[str, Any]) -> fedmend.Job:
    """The job of one way and federation."""
    variants = ["studies"] + [method] * (method != "fedmlp")
    fixed: dict[str, Any] = {f"phantom.{name}": value for name, value in PHANTOM.items() if name != "dataset"}
    fixed |= {"study_slices": SLICES, "batch_size": STUDIES, "local_epochs": EPOCHS, "seed": seed, "phantom.seed": seed}
    return fedmend.Job(ROOT / "jobs" / "fedmlp_ich", variants=variants, **fixed | given | changes)


def logits_of_studies(
    job: fedmend.Job, run: fedmend.Run, cache: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Study → logits (n, C) of what the model saw of it, one of the study or one of each slice; and its labels (C,)."""
    package = Package(run.folder)
    network, prepared = package.network(), package.preprocessing
    opening = Opening(cache, prepared.image_size, torch.device("cpu"), study_slices=prepared.study_slices)
    logits: dict[str, list[np.ndarray]] = {}
    labels: dict[str, np.ndarray] = {}
    folder = ensure_phantom(Path("~/.cache/fedmend").expanduser(), phantom_spec(job.variables["phantom"]))
    for number, name in enumerate(job.sites):
        card = load_card(folder / name, name)
        split = load_split(card, card.splits["test"], package.classes, opening)
        site = Site(name, opening.device, None, None, StateStore(cache / name))
        for i, row in enumerate(infer(network, split, site)[1].numpy()):
            study = f"{number}-{split.table.about[STUDY][i]}"
            logits.setdefault(study, []).append(row)
            labels[study] = split.labels[i]
    return {study: np.stack(rows) for study, rows in logits.items()}, labels


def measured(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Means over classes, of (N, C) scores and labels of studies."""
    return {
        name: float(np.mean([measure(labels[:, c], scores[:, c]) for c in range(labels.shape[1])]))
        for name, measure in MEASURES.items()
    }


def federation(seed: int, method: str, given: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Row → measures of one federation."""
    found = {}
    for way, changes in (("study", {}), ("copied", COPIED)):
        job = job_of(seed, method, changes, given)
        with tempfile.TemporaryDirectory() as place:
            run = job.run(workspace=Path(place) / "run", threads=1, progress=False)
            logits, labels = logits_of_studies(job, run, Path(place) / "cache")
        names = sorted(logits)
        truth = np.stack([labels[name] for name in names])
        rows: dict[str, Callable[..., np.ndarray]] = {"slices of a study at once": np.mean}
        if way == "copied":
            rows = {"copied labels, mean of slices": np.mean, "copied labels, highest slice": np.max}
        for row, pool in rows.items():
            found[row] = measured(np.stack([pool(logits[name], axis=0) for name in names]), truth)
    return found


def bare_epochs(model: torch.nn.Module, data: Any, epochs: int) -> None:
    """Plain training on a site's studies."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(data.train)).split(STUDIES):
            pixels = torch.from_numpy(data.train.images[index.numpy()]).float().div(255)
            labels = torch.from_numpy(data.train.labels[index.numpy()]).float()
            optimizer.zero_grad(set_to_none=True)
            logits = model(pixels.repeat_interleave(3, 1))[1]
            torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
            optimizer.step()


def cost(bare: bool, cache: Path) -> None:
    """Prints slices per second of some epochs at a site, after one to warm up, and the peak memory of the process."""
    torch.set_num_threads(1)
    spec = phantom_spec({**PHANTOM, "images": 4800, "sites": 2})
    card = load_card(ensure_phantom(cache, spec) / "site-1", "site-1")
    opening = Opening(cache, 32, torch.device("cpu"), study_slices=SLICES)
    kind = kind_of(card.kind)
    data = kind.load(card, card.classes, opening)
    model = build_network("study/resnet_narrow", len(card.classes)).train()
    started = 0.0
    with tempfile.TemporaryDirectory() as state:
        ledger = kind.open_ledger(Path(state) / "l.sqlite", card, data)
        site = Site("site-1", opening.device, data, ledger, StateStore(Path(state)), STUDIES)
        for epochs in (1, EPOCHS):
            started = time.monotonic()
            if bare:
                bare_epochs(model, data, epochs)
            else:
                work = FedAvgPL().start(model, RoundTask("train", 0, 1), site)
                LocalTrainer(learning_rate=1e-3, local_epochs=epochs).train(work)
    speed = EPOCHS * len(data.train) * SLICES / (time.monotonic() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'bare loop' if bare else 'site'}: {speed:.0f} slices per second, peak memory {peak:.0f} MB", flush=True)


def costs() -> None:
    """Measures a site and a bare loop three times in turns."""
    context = multiprocessing.get_context("spawn")
    for _ in range(3):
        for bare in (False, True):
            worker = context.Process(target=cost, args=(bare, Path("~/.cache/fedmend").expanduser()))
            worker.start()
            worker.join()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, writes and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedavg_pl", help="fedmlp, or one of its variants (default fedavg_pl)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of the federations")
    parser.add_argument("--set", action="extend", nargs="*", default=[], metavar="NAME=VALUE", help="of both ways")
    parser.add_argument("--costs", action="store_true", help="measure speed and memory instead")
    args = parser.parse_args(arguments)
    if args.costs:
        costs()
        return
    given = parse_assignments(args.set)
    found: dict[str, list[dict[str, float]]] = {}
    for seed in args.seeds:
        for row, values in federation(seed, args.method, given).items():
            found.setdefault(row, []).append(values)
            print(f"seed {seed}, {row}: " + ", ".join(f"{name} {v:.3f}" for name, v in values.items()), flush=True)
    OUT.mkdir(exist_ok=True)
    about = {"method": args.method, "seeds": args.seeds, "settings": given, "rows": found}
    (OUT / f"studies_{args.method}.json").write_text(json.dumps(about, indent=2) + "\n")
    first, *others = found
    for name in MEASURES:
        for row in found:
            points = 100 * np.array([v[name] for v in found[row]])
            print(f"{name}, {row}: {points.mean():.1f} ± {points.std(ddof=1):.1f}" if len(points) > 1 else row)
        for row in others if len(args.seeds) > 1 else ():
            pairs = [[v[name] for v in found[way]] for way in (first, row)]
            print(f"{name}, {first} minus {row}: {paired_difference(*pairs)}")


if __name__ == "__main__":
    main()
