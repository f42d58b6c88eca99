"""Measures how often FedNoRo finds exactly the noisy sites, with the ablations of the paper's Table 3.

One command: ``python benchmarks/detection.py`` (40 to 60 minutes on two cores). It deals the phantom slices of
``jobs/fednoro_ich`` to eight sites, flips labels at 30 or 40 % of them with a rate of 0.3-0.5 or 0.5-0.7, trains a warm-up of
three rounds of one local epoch with the job's other settings, without FLARE, and detects. Every seed draws its own partition,
noisy sites, flips and initial weights. Partitions that leave a site fewer samples than a batch are passed over. Writes ``benchmarks/results/detection.json`` and prints a table.
"""

import argparse
import itertools
import json
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

from fedmend.data.manifest import load_card
from fedmend.data.site import load_site
from fedmend.datasets import phantoms, rsna_ich
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.errors import FedMendError
from fedmend.ledger import LabelLedger
from fedmend.methods.base import RoundTask, Site
from fedmend.methods.fednoro import (
    DETECT,
    WARMUP,
    FedNoRo,
    detect_noisy_clients,
    loss_matrix,
    normalise_losses,
)
from fedmend.networks import get_weights, initial_network, set_weights
from fedmend.state import StateStore
from fedmend.training import LocalTrainer

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "jobs" / "fednoro_ich" / "app" / "config"
CPU = torch.device("cpu")
SHARES, RATES = (0.3, 0.4), ((0.3, 0.5), (0.5, 0.7))
ROUNDS, LOCAL_EPOCHS = 3, 1  # of the warm-up
RULES = {  # of the detection, on the same losses
    "per class, normalised": (True, True),
    "one loss per site": (False, True),
    "not normalised": (True, False),
}


def settings() -> dict:
    """The variables of the job's default preset."""
    files = (json.loads((JOB / f"config_fed_{side}.json").read_text()) for side in ("server", "client"))
    return {k: v for content in files for k, v in content.items()}


def open_sites(folder: Path, cache: Path, preset: dict, seed: int, share: float, rates: tuple) -> list[Site]:
    """Sites of the first partition from ``seed`` on in which every site has a batch."""
    spec = preset["phantom"]
    for attempt in range(100):
        protocol = NoiseProtocol(
            sites=spec["sites"],
            alpha=spec["alpha"],
            presence=spec["presence"],
            partition_seed=100 * (seed + 1) + attempt,
            noisy_share=share,
            noise_low=rates[0],
            noise_high=rates[1],
            noise_seed=seed,
        )
        out = folder / f"attempt-{attempt}"
        try:
            rsna_ich.prepare_single_label(cache / "download", out, protocol=protocol, processes=1)
        except FedMendError:
            continue  # a site without samples or with one class
        sites = []
        for path in sorted(out.iterdir()):
            data = load_site(
                path,
                path.name,
                rsna_ich.CLASSES,
                cache_dir=folder,
                image_size=preset["image_size"],
                device=CPU,
            )
            table = data.train.table
            ledger = LabelLedger(
                folder / f"{path.name}-{attempt}.sqlite",
                fingerprint=table.fingerprint(),
                images=table.images,
                classes=rsna_ich.CLASSES,
                site=path.name,
            )
            site = Site(path.name, CPU, data, ledger, StateStore(folder / path.name), preset["batch_size"])
            site.memory["noisy"] = load_card(path, path.name).provenance["site"]["noisy"]
            sites.append(site)
        if min(len(s.data.train) for s in sites) >= preset["batch_size"]:
            return sites
    raise SystemExit(f"seed {seed}: expected a partition with a batch at every site, got none in 100")


def warm_up(sites: list[Site], preset: dict, seed: int, la: bool) -> dict:
    """Class-wise losses of every site after the warm-up, as its reports."""
    method = FedNoRo(la=la)
    trainer = LocalTrainer(
        learning_rate=preset["learning_rate"],
        weight_decay=preset["weight_decay"],
        local_epochs=LOCAL_EPOCHS,
    )
    model = initial_network("resnet18", rsna_ich.CLASSES, seed)
    weights = get_weights(model)
    for r in range(ROUNDS):
        helper = WeightedAggregationHelper()
        for site in sites:
            site.memory.clear()
            set_weights(model, weights)
            task = RoundTask(WARMUP, r, ROUNDS, seed=seed)
            method.prepare(model, task, site)
            trainer.train(model, method, task, site)
            local = {k: v.numpy().copy() for k, v in get_weights(model).items()}
            helper.add(local, float(len(site.data.train)), site.name, r)
        weights = {k: torch.from_numpy(v) for k, v in helper.get_result().items()}
    set_weights(model, weights)
    return {site.name: method.report(model, RoundTask(DETECT, ROUNDS, ROUNDS, seed=seed), site) for site in sites}


def one_federation(cache: Path, seed: int, share: float, rates: tuple) -> list[dict]:
    """What the sites of one federation report after the warm-up, with and without logit adjustment."""
    torch.set_num_threads(1)
    preset, rows = settings(), []
    with tempfile.TemporaryDirectory() as folder:
        sites = open_sites(Path(folder), cache, preset, seed, share, rates)
        truth = {site.name for site in sites if site.memory["noisy"]}
        for la in (True, False):
            reports = {
                name: {field: values.tolist() for field, values in report.items()}
                for name, report in warm_up(sites, preset, seed, la).items()
            }
            rows.append(
                {
                    "seed": seed,
                    "noisy_share": share,
                    "rates": rates,
                    "la": la,
                    "noisy": sorted(truth),
                    "reports": reports,
                }
            )
    return rows


def score(row: dict, per_class: bool, normalise: bool) -> dict:
    """How well a rule finds the noisy sites of one federation."""
    reports = {n: {k: np.array(v) for k, v in report.items()} for n, report in sorted(row["reports"].items())}
    losses = normalise_losses(loss_matrix(reports, per_class=per_class), normalise=normalise)
    detection = detect_noisy_clients(losses)
    found, truth = {name for name, flag in zip(reports, detection.noisy, strict=True) if flag}, {*row["noisy"]}
    return {
        "recall": len(found & truth) / len(truth),
        "precision": len(found & truth) / max(len(found), 1),
        "exact": found == truth,
        "vote share": detection.vote_share,
    }


def main() -> None:
    """Runs all federations and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    spec, rows = settings()["phantom"], []
    cases = list(itertools.product(range(args.seeds), SHARES, RATES))
    with tempfile.TemporaryDirectory() as cache:
        phantoms.write_ich(
            Path(cache) / "download", slices=spec["images"], seed=1037, size=spec["pixels"], scanners=spec["sites"]
        )
        # spawn: the parent may hold threads, which a forked process does not survive reliably
        with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
            done = pool.map(one_federation, itertools.repeat(Path(cache)), *zip(*cases, strict=True))
            for number, found in enumerate(done, start=1):
                rows += found
                print(f"{number} of {len(cases)} federations", flush=True)
                (out / "detection.json").write_text(json.dumps(rows) + "\n")
    for share, rates, la, rule in itertools.product(SHARES, RATES, (True, False), RULES):
        chosen = [r for r in rows if (r["noisy_share"], tuple(r["rates"]), r["la"]) == (share, rates, la)]
        scores = [score(row, *RULES[rule]) for row in chosen]
        words = "  ".join(f"{k} {np.mean([s[k] for s in scores]):.3f}" for k in scores[0])
        print(f"rho {share} eta {rates[0]}-{rates[1]}  {'LA' if la else 'no LA':6s} {rule:22s} {words}")


if __name__ == "__main__":
    main()
