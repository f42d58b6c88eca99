"""Compares FedIA with federated averaging, with its two parts alone and with complete masks, at the paper's levels of completeness.

One command: ``python benchmarks/completeness.py`` (80 minutes on two cores without ``mended_trigger``). It trains the phantom,
the network and the settings of ``jobs/fedia_ms`` as the job does, but without FLARE, and the methods of a level and seed share
their warm-up; FedIA at m = 0 had the job's Dice to the last digit. Each seed draws its own phantom and initial weights, as with
``fedmend simulate --seeds``. Prints tables and writes ``benchmarks/results/completeness.json``.
"""

import argparse
import itertools
import json
import shutil
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper
from nvflare.fuel.utils.class_utils import instantiate_class

from fedmend.annotation import Annotation, annotation_of
from fedmend.data.manifest import load_card
from fedmend.datasets.phantom_sites import ensure_phantom, phantom_spec
from fedmend.evaluation import merged_metrics
from fedmend.methods.base import Report, RoundTask, Site
from fedmend.methods.fedia import (
    COMPLETENESS,
    CORRECTED,
    CORRECTION,
    DONE,
    EXEMPT,
    WARMUP,
    completeness,
    completeness_weights,
)
from fedmend.networks import get_weights, initial_network, set_weights
from fedmend.state import StateStore
from fedmend.training import LocalTrainer
from fl_components.simulate import configure_job, parse_assignments

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "jobs" / "fedia_ms"
METHODS = ("fedavg", "aggregation_only", "correction_only", "fedia", "mended_trigger")  # one warm-up serves them all
UPPER_BOUND = "all_labels"  # does not depend on the level
LAST = 10  # rounds that the paper averages
CPU = torch.device("cpu")


@dataclass
class Federation:
    """Where a federation stands: the global model, and what the server knows and has seen."""

    weights: dict[str, torch.Tensor]
    rounds: list[dict] = field(default_factory=list)  # correction and repairs; Dice in the last ones
    estimates: dict[str, float] = field(default_factory=dict)
    correction: dict[str, int] = field(default_factory=dict)


class Sites:
    """The sites of one federation and what they train with.

    Args:
        variables: of server and client configuration of the job, as configured.
        folder: state and ledgers.
        cache: phantoms and slices.
    """

    def __init__(self, variables: dict, folder: Path, cache: Path):
        self.variables = variables
        phantom = ensure_phantom(cache, phantom_spec({**variables["phantom"], "seed": 1037 + variables["seed"]}))
        self.model = initial_network(variables["network"], variables["classes"], variables["seed"])
        self.annotations: dict[str, Annotation] = {}
        self.sites: dict[str, Site] = {}
        for path in sorted(phantom.glob("site-*")):
            name = path.name
            self.annotations[name] = annotation = annotation_of(load_card(path, name))
            data = annotation.load(
                tuple(variables["classes"]),
                cache_dir=cache,
                image_size=variables["image_size"],
                device=CPU,
                max_unreadable=0,
                all_labels=variables["all_labels"],
            )
            ledger = annotation.open_ledger(folder / name / "ledger.sqlite", data)
            state = StateStore(folder / name)
            self.sites[name] = Site(name, CPU, data, ledger, state, variables["batch_size"])
        self.truth = {n: self.annotations[n].load_truth(s.data) for n, s in self.sites.items()}
        component = next(c for c in variables["components"] if c["id"] == variables["method"])
        given = {k: variables[v[1:-1]] if str(v).startswith("{") else v for k, v in component["args"].items()}
        self.method = instantiate_class(component["path"], given)
        self.trainer = LocalTrainer(
            **{
                k: variables[k]
                for k in ("learning_rate", "learning_rate_decay", "weight_decay", "second_momentum", "local_epochs")
            }
        )

    def evaluate(self, weights: dict) -> dict:
        """Metrics of a global model on the test splits of all sites."""
        set_weights(self.model, weights)
        counts = [
            self.annotations[name].evaluate(self.model, split, site)
            for name, site in self.sites.items()
            for split in site.data.evaluation.values()
        ]
        found = merged_metrics(sum(counts))["macro"]
        return {k: found[k] for k in ("dice", "volume_dice")}

    def report(self, weights: dict, task: RoundTask) -> dict[str, Report]:
        """What the sites say about a global model, without training."""
        set_weights(self.model, weights)
        return {name: self.method.report(self.model, task, site) for name, site in self.sites.items()}

    def train(self, weights: dict, task: RoundTask) -> tuple[dict[str, dict], dict[str, Report]]:
        """One round at every site: its model and its report."""
        models, reports = {}, {}
        for name, site in self.sites.items():
            set_weights(self.model, weights)
            site.memory.clear()
            self.method.prepare(self.model, task, site)
            self.trainer.train(self.model, self.method, task, site)
            reports[name] = self.method.report(self.model, task, site)
            models[name] = {k: v.numpy().copy() for k, v in get_weights(self.model).items()}
        return models, reports

    def repairs(self) -> dict[str, list[int]]:
        """Site → pixels added so far, how many of them are lesion, and lesion pixels that its own masks lack."""
        found = {n: self.annotations[n].repairs(s, self.truth[n]) for n, s in self.sites.items()}
        return {n: [int(v[k][0]) for k in ("positive", "correct_positive", "missing")] for n, v in found.items() if v}


def average(models: dict[str, dict], shares: dict[str, float]) -> dict[str, torch.Tensor]:
    """As the aggregators of the jobs do it, site by site in the order of names."""
    helper = WeightedAggregationHelper()
    for name in sorted(models):
        if shares[name] > 0:
            helper.add(models[name], shares[name], name, 0)
    return {k: torch.from_numpy(np.asarray(v)) for k, v in helper.get_result().items()}


def run_rounds(sites: Sites, state: Federation, *, first: int, last: int) -> None:
    """The rounds of ``FedIAController`` from ``first`` to before ``last``; 0 is the first."""
    given, samples = sites.variables, {n: float(len(s.data.train)) for n, s in sites.sites.items()}
    total, warmup = given["num_rounds"], given["warmup_rounds"]
    for r in range(first, last):
        if r == warmup:
            task = RoundTask(COMPLETENESS, r, total, seed=given["seed"])
            lesions = {n: report["lesions"] for n, report in sites.report(state.weights, task).items()}
            state.estimates = {n: completeness(counts, clip=given["clip"]) for n, counts in lesions.items()}
        stage, done = WARMUP, state.correction.values()
        if r >= warmup:
            late = 0 < given["max_stage2_rounds"] <= r - warmup
            stage = CORRECTED if late or (done and all(v in (DONE, EXEMPT) for v in done)) else CORRECTION
        knowledge = {
            "first_round": np.int64(warmup),
            "best_completeness": np.float64(max(state.estimates.values(), default=0.0)),
        }
        models, reports = sites.train(state.weights, RoundTask(stage, r, total, knowledge, seed=given["seed"]))
        shares = samples
        if stage == CORRECTION and given["completeness_aggregation"]:
            losses = {n: float(report["dice_loss"][0]) for n, report in reports.items()}
            shares = completeness_weights(state.estimates, losses)
        state.weights = average(models, shares)
        if r >= warmup:
            state.correction = {n: int(report["correction"][0]) for n, report in reports.items()}
        metrics = sites.evaluate(state.weights) if r >= total - LAST else {}
        state.rounds.append({**metrics, "correction": state.correction, "repairs": sites.repairs()})


def one_level(given: dict, m: int, seed: int, methods: list[str], cache: Path) -> list[dict]:
    """All methods at one level of completeness and with one seed, as rows of the results."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder, warm = Path(temporary), None
        for method in methods:
            variables = configured({**given, "phantom.m": m, "seed": seed}, method, folder / f"job-{method}")
            place, shared = folder / method, method != UPPER_BOUND
            if shared and warm:
                shutil.copytree(folder / "warm", place)
                sites = Sites(variables, place, cache)
                state = Federation(dict(warm.weights), list(warm.rounds))
            else:
                sites = Sites(variables, place, cache)
                state = Federation({k: v.clone() for k, v in get_weights(sites.model).items()})
                run_rounds(sites, state, first=0, last=variables["warmup_rounds"])
                if shared:
                    shutil.copytree(place, folder / "warm")
                    warm = Federation(dict(state.weights), list(state.rounds))
            run_rounds(sites, state, first=variables["warmup_rounds"], last=variables["num_rounds"])
            seen = {key: [row[key] for row in state.rounds if key in row] for key in state.rounds[-1]}
            what = {"m": m, "seed": seed, "method": method}
            rows.append({**what, "estimates": state.estimates, **seen})
    return rows


def configured(given: dict, method: str, out: Path) -> dict:
    """The variables of both configuration files of the job."""
    configure_job(JOB, out, given, variant="" if method == "fedia" else method)
    files = [
        json.loads((out / "app" / "config" / f"config_fed_{side}.json").read_text()) for side in ("server", "client")
    ]
    return {**files[0], **files[1]}


def print_tables(rows: list[dict]) -> None:
    """Dice by level and method; order of the estimates; corrections."""
    dice: dict[tuple, list[float]] = defaultdict(list)
    for row in rows:
        for key in ("dice", "volume_dice"):
            level = None if row["method"] == UPPER_BOUND else row["m"]
            dice[row["method"], level, key].append(100 * float(np.mean(row[key])))
    levels = sorted({row["m"] for row in rows if row["method"] != UPPER_BOUND})
    print(f"\nDice of the last {LAST} rounds, by slice (by volume), mean ± standard deviation over seeds")
    print("method".ljust(18), *(f"m = {m}".rjust(26) for m in levels))
    for method in (*METHODS, UPPER_BOUND):
        cells = []
        for m in levels:
            found, volume = (dice[method, None if method == UPPER_BOUND else m, key] for key in ("dice", "volume_dice"))
            deviation = np.std(found, ddof=1) if len(found) > 1 else 0.0
            cells.append(f"{np.mean(found):.1f} ± {deviation:.1f} ({np.mean(volume):.1f})" if found else "-")
        print(method.ljust(18), *(cell.rjust(26) for cell in cells))
    print("\nestimated completeness, correction")
    for row in sorted(rows, key=lambda row: (row["method"], row["m"], row["seed"])):
        if row["method"] not in ("fedia", "mended_trigger"):
            continue
        names = sorted(row["estimates"])  # sites are numbered from the least complete one
        right = all(row["estimates"][a] < row["estimates"][b] for a, b in itertools.pairwise(names))
        words = []
        for name in names:
            when = [r + 1 for r, now in enumerate(row["correction"]) if now.get(name) == DONE]
            added, correct, missing = row["repairs"][-1].get(name, (0, 0, 0))
            text = f"{row['estimates'][name]:.2f} "
            if not when:
                text += "never"
            else:
                text += f"round {when[0]}: {added} px"
                text += f", {100 * correct / added:.0f} % right" if added else ""
                text += f", {100 * correct / missing:.0f} % found" if missing else ""
            words.append(text)
        order = "right" if right else "WRONG"
        print(f"{row['method']:15s} m {row['m']} seed {row['seed']} order {order}: " + "; ".join(words))


def main() -> None:
    """Trains what is missing and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 2, 3], help="the paper's m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=[*METHODS, UPPER_BOUND], choices=[*METHODS, UPPER_BOUND])
    parser.add_argument("--set", nargs="*", default=[], metavar="VARIABLE=VALUE", help="other job variables")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "fedmend-benchmark")
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results" / "completeness.json"
    out.parent.mkdir(exist_ok=True)
    given = parse_assignments(args.set)
    cases, rows = [], []
    for seed, m in itertools.product(args.seeds, args.levels):
        wanted = [k for k in args.methods if k != UPPER_BOUND or m == min(args.levels)]
        if wanted:
            cases.append((m, seed, wanted))
    # spawn: the parent may hold threads, which a forked process does not survive reliably
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        done = [pool.submit(one_level, given, *case, args.cache) for case in cases]
        for number, task in enumerate(as_completed(done), start=1):
            rows += task.result()
            print(f"{number} of {len(cases)} federations", flush=True)
            out.write_text(json.dumps(rows) + "\n")
    print_tables(rows)


if __name__ == "__main__":
    main()
