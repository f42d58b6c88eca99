"""AUC against epsilon: federated averaging, or closed-form heads, with differential privacy on the phantom of
``jobs/fednoro_isic2019``, or on site folders.

``python benchmarks/privacy.py`` and ``python benchmarks/privacy.py --heads``. All labels are right and all sites keep
differential privacy with the same noise. Their evaluation stays with them, so the final model is scored on their test
splits afterwards, as somebody would who has test data of their own. Prints a table and writes
``benchmarks/results/privacy.json``.
"""

import argparse
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from fedmend.errors import FedMendError
from fedmend.kinds import kind_of
from fedmend.messages import EVALUATE, Question, RunSpec
from fedmend.method import RoundTask
from fedmend.methods.baselines import SingleLabelFedAvg
from fedmend.report.tables import mean_and_sd
from fedmend.site.config import SiteConfig
from fedmend.site.worker import SiteSettings, SiteWorker
from fl_components.job.folder import Changes, JobSettings, read_job
from fl_components.job.settings import parse_assignments
from fl_components.run.local import run_local, site_config

ROOT = Path(__file__).resolve().parents[1]
JOB, VARIANT = ROOT / "jobs" / "fednoro_isic2019", "fedavg_private"
HEADS = ROOT / "jobs" / "closed_form"
SETTINGS = "network=resnet_narrow_gn image_size=32 batch_size=128 learning_rate=0.002 weight_decay=0.0 local_epochs=1"
SETTINGS += " num_rounds=8 eval_every=100 phantom.images=3000 phantom.pixels=48 phantom.sites=2 phantom.noisy_share=0.0"
SETTINGS += " phantom.alpha=100.0 phantom.presence=1.0"


def changes_of(given: Mapping[str, Any], data: str, noise: float, seed: int, *, heads: bool) -> Changes:
    """The job of a row. Heads without privacy are those that sites solve, in the network that private ones have."""
    made: dict[str, Any] = {**parse_assignments(SETTINGS.split()), "phantom.seed": 2019 + seed}
    if not heads:
        return Changes({**made, **given, "seed": seed}, [VARIANT], int(made["phantom.sites"]))
    of_training = read_job(JOB, Changes(made, [VARIANT]))
    about: dict[str, Any] = {"classes": of_training.run["classes"], "phantom": of_training.site["phantom"]}
    about |= {"network": "projected/timm/tf_efficientnet_lite0"}
    if data:
        folders = sorted(Path(data.replace("{SEED}", str(seed))).parent.glob("site-*"))
        card = json.loads((folders[0] / "site.json").read_text())
        about |= {"classes": card["classes"], "phantom": None, "all_labels": "truth" in card}
    sites = len(folders) if data else int(made["phantom.sites"])
    return Changes({**about, **given, "seed": seed}, ["private"] if noise else [], sites)


def one_run(
    given: Mapping[str, Any], data: str, noise: float, clip: float, seed: int, cache: Path, *, heads: bool
) -> dict:
    """One noise multiplier, 0 for no privacy, and one seed, as a row of the results.

    Args:
        given: settings of the job, in the place of those above.
        data: site folders of a repetition, such as ``/data/mri-{SEED}/{SITE_NAME}``; empty: the phantom.
        noise: noise multiplier.
        clip: of gradients.
        seed: of run and phantom.
        cache: folder for decoded images.
        heads: closed-form heads instead of a training.
    """
    job, changes = HEADS if heads else JOB, changes_of(given, data, noise, seed, heads=heads)
    policy: dict[str, Any] = {"cache_dir": str(cache.resolve()), "threads": 1}
    policy |= {"data_root": data.replace("{SEED}", str(seed))} if data else {}
    if noise:
        policy["privacy"] = {"clip": clip, "noise_multiplier": noise}
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "run"
        results = run_local(job, workspace, changes, threads=1, site_settings=policy, quiet=True)
        records = Path(results["files"]["records"])
        lines = [json.loads(line) for line in (records / "decisions.jsonl").read_text().splitlines()]
        told = [line["value"] for line in lines if line["what"] == "privacy"]
        row = {"noise": noise, "seed": seed, "told": told[-1] if told else {}}
        settings = read_job(job, changes)
        return row | score(Path(results["files"]["global model"]), settings, partial(site_config, workspace))


def score(model: Path, job: JobSettings, config_of: Callable[[str], SiteConfig]) -> dict:
    """AUC and balanced accuracy of a model file on the test splits of all sites."""
    run = RunSpec("score", tuple(job.run["classes"]), job.run["network"], 0)
    weights = {k: v.numpy() for k, v in torch.load(model, weights_only=True)["model"].items()}
    counts, kind, method = [], kind_of("singlelabel"), SingleLabelFedAvg()
    for site in job.sites:
        worker = SiteWorker(method, SiteSettings.of(**job.site))
        config = dataclasses.replace(config_of(site), privacy=None)
        task = RoundTask(EVALUATE, 0, 1, training=False)
        result = worker.answer(site, Question(EVALUATE, weights, {site: task}, run, evaluate=True), config)
        if result.error:
            raise FedMendError(result.error)
        counts.append(result.counts["test"])
    macro = kind.metrics(np.sum(counts, axis=0))["macro"]
    return {"auc": macro["auc"], "bacc": macro["bacc"]}


def print_table(rows: Sequence[Mapping]) -> None:
    """Epsilon and metrics in points by noise, mean ± standard deviation over seeds, and the difference in AUC to the
    same seeds without privacy, with its 95 % interval."""
    plain = {row["seed"]: row["auc"] for row in rows if not row["noise"]}
    print("| noise multiplier | epsilon | by RDP alone | AUC | AUC, difference | balanced accuracy |")
    for noise in sorted({row["noise"] for row in rows}):
        own = [row for row in rows if row["noise"] == noise]
        told = [t for row in own for t in row["told"].values()]
        spent = [f"{max(t[name] for t in told):.1f}" if told else "no privacy" for name in ("epsilon", "epsilon_rdp")]
        auc, bacc = (mean_and_sd([row[name] for row in own]) for name in ("auc", "bacc"))
        paired = [row["auc"] - plain[row["seed"]] for row in own if noise and row["seed"] in plain]
        shown = [" ± ".join(filter(None, auc)), _with_interval(paired), " ± ".join(filter(None, bacc))]
        print("| " + " | ".join([f"{noise:g}", *spent, *shown]) + " |")


def _with_interval(differences: Sequence[float]) -> str:
    if len(differences) < 2:
        return ""
    points = 100 * np.array(differences)
    low, high = stats.t.interval(0.95, len(points) - 1, points.mean(), stats.sem(points))
    return f"{points.mean():+.1f} ({low:+.1f} to {high:+.1f})"


def main() -> None:
    """Trains and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 0.5, 1.0, 2.0], help="0: no privacy")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--heads", action="store_true", help="closed-form heads; default: federated averaging")
    parser.add_argument("--data", default="", help="site folders for the heads, /data/mri-{SEED}/{SITE_NAME}")
    parser.add_argument("--set", action="extend", nargs="*", default=[], metavar="NAME=VALUE", help="of the job")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "fedmend-benchmark")
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results" / "privacy.json"
    out.parent.mkdir(exist_ok=True)
    given, rows = parse_assignments(args.set), []
    # spawn: the parent may hold threads, which a forked process does not survive reliably
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        cases = list(itertools.product(args.seeds, args.noise))
        same = partial(one_run, given, args.data, clip=args.clip, cache=args.cache, heads=args.heads)
        tasks = [pool.submit(same, noise=noise, seed=seed) for seed, noise in cases]
        for number, task in enumerate(as_completed(tasks), start=1):
            rows.append(task.result())
            print(f"{number} of {len(cases)} runs: {json.dumps(rows[-1])}", flush=True)
            out.write_text(json.dumps(rows) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
