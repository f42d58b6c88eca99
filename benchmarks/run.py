"""Measures what FedMend costs. One command: ``python benchmarks/run.py``.

(a) seconds per round, seconds in all and peak memory of a job without FLARE and in FLARE's simulator, against a bare
    PyTorch loop that does the same passes,
(b) images per second of the data path, cold and warm, against decoding in every epoch,
(c) seconds of detection, prototypes and ledger as samples grow from 1,000 to 100,000,
(d) seconds and server memory of FedAvg and of distance-aware aggregation with the ResNet-18 models of 20 and 50 sites,
(e) seconds until a site's new process has loaded what a round needs, against PyTorch alone,
(f) images per second of a package's ``predict``, against a bare loop that reads and asks the same network.

Writes ``benchmarks/results/results.json`` and prints a table.
"""

import argparse
import contextlib
import json
import multiprocessing
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import numpy as np
import psutil
import torch

from fedmend.averaging import Fold
from fedmend.basics.state import StateStore
from fedmend.data.card import load_card
from fedmend.data.readers import read_image, resize
from fedmend.data.site import Opening, load_site
from fedmend.data.store import open_store
from fedmend.datasets.rsna_ich import CLASSES
from fedmend.kinds import kind_of
from fedmend.labels import MULTILABEL
from fedmend.learning.networks import build_network, initial_network
from fedmend.learning.training import LocalTrainer
from fedmend.learning.weights import get_weights, set_weights
from fedmend.method import RoundTask, Site
from fedmend.methods.fedlsm import FedLSMWorkflow
from fedmend.methods.fedmlp import WARMUP, FedMLP
from fedmend.methods.fednoro import distance_aware
from fedmend.methods.shared.prototypes import confidences, local_prototypes, select_confident
from fedmend.package import Package
from fedmend.phantoms.sites import ensure_phantom
from fedmend.phantoms.specs.missing_classes import MissingClassPhantom
from fedmend.preprocessing import Preprocessing
from fedmend.records.package_files import write_package
from fedmend.records.run_folder import RUN_FOLDER
from fedmend.repairs.label_ledger import LabelLedger, Repairs

ROOT = Path(__file__).resolve().parents[1]
SITES, ROUNDS, IMAGE_SIZE, BATCH = 2, 3, 64, 16
BARE, LOCAL, FLARE = "bare loop", "--local", "simulator"
SPEC = MissingClassPhantom(images=1600, sites=SITES, annotated_per_site=4, seed=7)


def _tree_memory(process: psutil.Process) -> int:
    total = 0
    for p in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += p.memory_info().rss
    return total


class PeakMemory:
    """Samples the resident memory of this process's children while a block runs."""

    def __enter__(self) -> Self:
        self.peak, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.2):
            self.peak = max(self.peak, _tree_memory(me) - me.memory_info().rss)

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


class PeakOfThisProcess(PeakMemory):
    """Samples the resident memory of this process itself."""

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.peak = max(self.peak, psutil.Process().memory_info().rss)


def _bare_site(connection: Connection, name: str, folder: Path, cache: Path) -> None:
    """One site of the bare loop: the passes of a warm-up round of FedMLP, evaluation included."""
    torch.set_num_threads(1)
    card = load_card(folder / name, name)
    kind = kind_of(card.kind)
    data = kind.load(card, CLASSES, Opening(cache, IMAGE_SIZE, torch.device("cpu")))
    with tempfile.TemporaryDirectory() as state:
        ledger = kind.open_ledger(Path(state) / "l.sqlite", card, data)
        site = Site(name, torch.device("cpu"), data, ledger, StateStore(Path(state)), BATCH)
        model, method, trainer = build_network("resnet18", len(CLASSES)), FedMLP(), LocalTrainer(learning_rate=3e-4)
        for r in range(ROUNDS):
            set_weights(model, {k: torch.from_numpy(v) for k, v in connection.recv().items()})
            for split in data.evaluation.values():
                kind.evaluate(model, split, site)
            trainer.train(method.start(model, RoundTask(WARMUP, r, ROUNDS), site))
            connection.send((len(data.train), {k: v.numpy() for k, v in get_weights(model).items()}))


def bare_loop(cache: Path) -> dict:
    """What the rounds cost without FedMend's federations, one process per site."""
    folder = ensure_phantom(cache, SPEC)
    context = multiprocessing.get_context("spawn")
    ends, workers, begun = [], [], time.monotonic()
    with PeakMemory() as memory:
        for i in range(SITES):
            mine, theirs = context.Pipe()
            worker = context.Process(target=_bare_site, args=(theirs, f"site-{i + 1}", folder, cache))
            worker.start()
            ends.append(mine)
            workers.append(worker)
        weights = {k: v.numpy() for k, v in get_weights(initial_network("resnet18", CLASSES, 0)).items()}
        seconds = []
        for _ in range(ROUNDS):
            started = time.monotonic()
            for end in ends:
                end.send(weights)
            answers = [end.recv() for end in ends]
            total = sum(n for n, _ in answers)
            weights = {k: sum(w[k] * np.float32(n / total) for n, w in answers) for k in weights}
            seconds.append(time.monotonic() - started)
        for worker in workers:
            worker.join()
    return _costs(seconds, time.monotonic() - begun, memory)


def _costs(rounds: Sequence[float], total: float, memory: PeakMemory) -> dict:
    """The first round also opens data; it counts in the total alone."""
    per_round = float(np.median(rounds[1:]))
    return {"seconds_per_round": per_round, "total_seconds": total, "peak_memory_mb": memory.peak / 1e6}


def job_run(cache: Path, *options: str) -> dict:
    """The same rounds by ``fedmend simulate``, all sites at once; rounds are timed by the server half."""
    with tempfile.TemporaryDirectory() as workspace:
        given = [
            *(f"num_rounds={ROUNDS}", f"warmup_rounds={ROUNDS}", f"image_size={IMAGE_SIZE}"),
            *(f"batch_size={BATCH}", "learning_rate=0.0003", "mld=false"),
            *(f"phantom.{k}={getattr(SPEC, k)}" for k in ("images", "sites", "annotated_per_site", "seed")),
        ]
        command = [sys.executable, "-m", "fl_components.cli", "simulate", str(ROOT / "jobs" / "fedmlp_ich"), *options]
        command += ["--workspace", f"{workspace}/ws", "--threads", str(SITES), "--sites", str(SITES), "--quiet"]
        command += ["--site", f"cache_dir={cache}", "threads=1", "--set", *given]
        started = time.monotonic()
        with PeakMemory() as memory:
            subprocess.run(command, check=True)
        total = time.monotonic() - started
        lines = (Path(workspace) / "ws" / RUN_FOLDER / "metrics.jsonl").read_text().splitlines()
    rounds = {m["round"]: m["seconds"] for m in map(json.loads, lines) if m["stage"] != "evaluate"}
    return _costs([rounds[r] for r in sorted(rounds)], total, memory)


def federations(cache: Path) -> dict:
    """(a)"""
    ensure_phantom(cache, SPEC)
    return {BARE: bare_loop(cache), LOCAL: job_run(cache, "--local"), FLARE: job_run(cache)}


def data_path(cache: Path) -> dict:
    """(b) on the DICOM slices of the phantom."""
    folder = ensure_phantom(cache, SPEC)
    images = sorted(p.name for p in (folder / "download" / "stage_2_train").iterdir())
    root, window = folder / "download" / "stage_2_train", (40.0, 80.0)
    started = time.monotonic()
    for name in images[:400]:
        resize(read_image(root / name, window), IMAGE_SIZE)
    decoding = 400 / (time.monotonic() - started)
    with tempfile.TemporaryDirectory() as fresh:
        started = time.monotonic()
        store = open_store(Path(fresh), root, images, window=window, size=IMAGE_SIZE, where=str)
        cold = len(images) / (time.monotonic() - started)
    torch.set_num_threads(1)
    card = load_card(folder / "site-1", "site-1")
    data = load_site(card, CLASSES, Opening(cache, IMAGE_SIZE, torch.device("cpu")))
    site = Site("site-1", torch.device("cpu"), data, None, StateStore(cache), BATCH)
    views, repeats = site.views(RoundTask(WARMUP, 0, 1), 1)[0], 5
    started = time.monotonic()
    for _ in range(repeats):
        for index in site.batches(torch.randperm(len(data.train))):
            data.train.view(index, views)
    warm = repeats * len(data.train) / (time.monotonic() - started)
    return {
        "decode per epoch, images/s (1 process, without augmentation)": decoding,
        f"store built cold, images/s ({len(store.images)} images)": cold,
        "store warm with augmentation, images/s (1 thread)": warm,
    }


@contextlib.contextmanager
def _clock(timed: dict[str, float], name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    timed[name] = time.monotonic() - started


def growth(features: int = 512, classes: int = 5) -> dict:
    """(c) seconds per step; 90 % of the entries are unlabelled, 10 % of the residual are tagged."""
    rows = {}
    for n in (1_000, 10_000, 100_000):
        rng = np.random.default_rng(n)
        x = rng.standard_normal((n, features), dtype=np.float32)
        labels = np.full((n, classes), -1, dtype=np.int8)
        labels[:, 0] = rng.random(n) < 0.2
        timed: dict[str, float] = {}
        with _clock(timed, "prototypes (Eq. 5)"):
            prototypes = local_prototypes(x, labels)[0]
        prototypes = prototypes + rng.standard_normal(prototypes.shape).astype(np.float32)
        with _clock(timed, "confidences (Eq. 7)"):
            z = confidences(x, prototypes)
        residual = np.ones(n, dtype=bool)
        with _clock(timed, "selection (Eqs. 8-9)"):
            found = [select_confident(z[:, c], residual, 0.1, 0.1) for c in range(1, classes)]
        sample = np.concatenate([s for pair in found for s in pair])
        label_class = np.concatenate([np.full(len(s), c + 1) for c, pair in enumerate(found) for s in pair])
        new = np.concatenate([np.full(len(s), k) for pair in found for k, s in enumerate(pair)])
        with tempfile.TemporaryDirectory() as folder:
            images, names = ([str(i) for i in range(count)] for count in (n, classes))
            file = Path(folder) / "l.sqlite"
            ledger = LabelLedger(file, fingerprint="x", site="bench", images=images, classes=names)
            repairs = Repairs(sample, label_class, new, np.abs(z[sample, label_class]))
            with _clock(timed, "ledger record"):
                ledger.record("rule", 0, labels, repairs)
            with _clock(timed, "ledger apply"):
                ledger.apply(labels)
        rows[n] = timed
    return rows


def aggregation() -> dict:
    """(d) median seconds of three averages, and the memory that it took at most, models included.

    FedAvg and DaAgg with 40 % of the sites noisy on ResNet-18; FedAvg and AWPA on DenseNet-121.
    """
    rows = {}
    rng = np.random.default_rng(0)
    for network, sites in (("resnet18", 20), ("resnet18", 50), ("densenet121", 8)):
        start = {k: v.numpy() for k, v in get_weights(initial_network(network, CLASSES, 0)).items()}
        names = sorted(f"site-{i + 1}" for i in range(sites))
        known = {name: np.arange(len(CLASSES)) == i % len(CLASSES) for i, name in enumerate(names)}
        other: dict[str, tuple[str, dict[str, Callable]]] = {
            "resnet18": ("DaAgg", {"average": partial(distance_aware, names[: int(0.4 * len(names))])}),
            "densenet121": ("AWPA", {"rows": partial(FedLSMWorkflow().row_weights, known)}),
        }
        before = psutil.Process().memory_info().rss
        results = {}
        for i, name in enumerate(names):
            weights = {k: v + 0.01 * rng.standard_normal(v.shape, dtype=np.float32) for k, v in start.items()}
            results[name] = (100 + i, {"class_knowledge": rng.integers(1, 100, len(CLASSES))}, weights)
        row = {"models_mb": (psutil.Process().memory_info().rss - before) / 1e6}
        for name, averages in (("FedAvg", {}), other[network]):
            seconds, peak = [], PeakOfThisProcess()
            with peak:
                for _ in range(3):
                    seconds.append(_fold(results, averages))
            row[name] = {"seconds": sorted(seconds)[1], "peak_memory_mb": (peak.peak - before) / 1e6}
        rows[f"{sites} {network}"] = row
    return rows


def _fold(results: Mapping[str, tuple], averages: Mapping[str, Callable]) -> float:
    """Seconds of one average over the results of all sites."""
    started, fold = time.monotonic(), Fold(**averages)
    for name, result in results.items():
        fold.take(name, *result)
    fold.result()
    return time.monotonic() - started


def start() -> dict:
    """(e) the fastest of five, in a process of its own each."""
    loads = {
        "torch": "import torch",
        "a site's process": (
            "import nvflare.private.fed.app.simulator.simulator_worker, fl_components.executor, fedmend.methods.fedmlp;"
            " from fedmend.learning.networks import build_network; from fedmend.learning.training import EagerAdam;"
            " EagerAdam(build_network('resnet_narrow', 5).parameters(), fused=True)"
        ),
    }
    seconds = {}
    for name, script in loads.items():
        taken = []
        for _ in range(5):
            started = time.monotonic()
            subprocess.run([sys.executable, "-c", script], check=True)
            taken.append(time.monotonic() - started)
        seconds[name] = min(taken)
    return seconds


def predictions(cache: Path) -> dict:
    """(f) of 256 slices of the phantom, of two networks in images/s: by a bare loop and by ``predict``, on one and
    on all cores."""
    files = sorted((ensure_phantom(cache, SPEC) / "download" / "stage_2_train").iterdir())[:256]
    rows: dict[str, float] = {}
    for network, size in (("resnet_narrow", 32), ("resnet18", 224)):
        grey = partial(Preprocessing, window=(40.0, 80.0), color=False, image_size=size, modality="CT")
        prepared = grey(pixel_mean=(0.485, 0.456, 0.406), pixel_deviation=(0.229, 0.224, 0.225))
        about = {"name": network, "phantom": True, "kind": MULTILABEL, "classes": list(CLASSES), "thresholds": {}}
        about |= {"network": {"name": network}, "preprocessing": prepared.of_package(MULTILABEL)}
        weights = get_weights(initial_network(network, CLASSES, 0))
        with tempfile.TemporaryDirectory() as folder:
            write_package(Path(folder) / "p.fedmend", about, {k: v.numpy() for k, v in weights.items()})
            package, seconds = Package(Path(folder) / "p.fedmend"), {}
            root = Path(folder) / "in"
            root.mkdir()
            for file in files:
                shutil.copy(file, root)
            started = time.monotonic()
            bare = _asked(package, files)
            seconds["bare loop"] = time.monotonic() - started
            for processes in dict.fromkeys((1, psutil.cpu_count())):
                out, started = Path(folder) / f"out{processes}", time.monotonic()
                package.predict(root, out, device="cpu", processes=processes)
                seconds[f"predict, {processes} processes that read"] = time.monotonic() - started
            table = np.genfromtxt(out / "predictions.csv", delimiter=",", skip_header=1, usecols=range(2, 7))
            np.testing.assert_allclose(table, bare, atol=1e-5)
        rows |= {f"{network}, {size} x {size}, {name}": len(files) / s for name, s in seconds.items()}
    return rows


@torch.no_grad()
def _asked(package: Package, files: Sequence[Path], batch: int = 64) -> np.ndarray:
    """(N, C) probabilities, by nothing but the reader and the network."""
    about, network, found = package.preprocessing, package.network(), []
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in (about.pixel_mean, about.pixel_deviation))
    for i in range(0, len(files), batch):
        images = np.stack([resize(read_image(f, about.window), about.image_size) for f in files[i : i + batch]])
        grey = torch.from_numpy(images)[:, None].float() / 255
        found.append(torch.sigmoid(network((grey - mean) / deviation)[1]).numpy())
    return np.concatenate(found)


def print_results(results: Mapping[str, Mapping]) -> None:
    """One line per row of each part."""
    costs = results.get("a", {})
    for name, r in costs.items():
        print(
            f"{name:12s} {r['seconds_per_round']:8.2f} s per round {r['total_seconds']:8.1f} s in all"
            f" {r['peak_memory_mb']:8.0f} MB at most"
            f" {100 * (r['seconds_per_round'] / costs[BARE]['seconds_per_round'] - 1):+8.1f} % per round"
        )
    for name, rate in results.get("b", {}).items():
        print(f"{name:66s} {rate:10.0f}")
    for n, steps in results.get("c", {}).items():
        print(f"{n:7d} samples  " + "  ".join(f"{name} {s:.3f} s" for name, s in steps.items()))
    for models, row in results.get("d", {}).items():
        for name in sorted(row.keys() - {"models_mb"}):
            r = row[name]
            print(f"{models:14s} {name:8s} {r['seconds']:6.2f} s  {r['peak_memory_mb']:8.0f} MB at most")
    for name, seconds in results.get("e", {}).items():
        print(f"{name:20s} {seconds:6.2f} s until it is loaded")
    for name, rate in results.get("f", {}).items():
        print(f"{name:66s} {rate:10.0f} images/s")


def main() -> None:
    """Runs the chosen parts and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="abcdef", help="which of a, b, c, d, e, f to run (default: all)")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/fedmend").expanduser())
    args = parser.parse_args()
    parts = {"a": lambda: federations(args.cache), "b": lambda: data_path(args.cache), "c": growth}
    parts |= {"d": aggregation, "e": start, "f": lambda: predictions(args.cache)}
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, torch {torch.__version__}"
    results = {p: parts[p]() for p in args.parts}
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "results.json").write_text(json.dumps({"machine": machine, **results}, indent=2) + "\n")
    print(machine)
    print_results(results)


if __name__ == "__main__":
    main()
