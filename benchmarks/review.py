"""Measures what a review is worth: how soon wrong repairs are found, and how much better the next model is.

One command: ``python benchmarks/review.py`` (seeds 0 to 4; six minutes on one core); of masks, on a phantom of its
own for each seed, ``python benchmarks/review.py --job jobs/fedia_ms --set phantom.seed={SEED}``. For each seed the job
runs on its phantom. Then every site's queue of repairs is put into each order, and the phantom's truth says which share
of the wrong ones are among the first 5, 10 and 20 %. For two of the orders a simulated reader, who knows the truth,
judges the first ``--checked`` repairs (of masks: slices) of each site, in copies of the sites' state: right ones are
accepted, wrong ones get the true label, wrong masks are rejected. A second run of the job, with the same seed, starts
from there; without a review it would be the first one again. Writes ``benchmarks/results/review_<job>.json`` and
``.svg`` and prints two tables, and how many repairs there were.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fedmend.comparison.paired import paired_difference
from fedmend.errors import FedMendError
from fedmend.repairs.mask_ledger import MaskLedger
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL
from fedmend.report.tables import markdown_table, mean_and_sd
from fedmend.review.desk import ORDERS, RANDOM, REPAIRS, VALUE, Choice, Desk, Item, reviewable
from fl_components.cli.common import seeds
from fl_components.compare.runs import SEED
from fl_components.job.folder import Changes
from fl_components.job.settings import parse_assignments
from fl_components.run.local import run_local

ROOT = Path(__file__).resolve().parents[1]
LOOKED = (0.05, 0.1, 0.2)  # shares of the queue
READERS = (VALUE, RANDOM)
FIRST = "first"
METRICS = ("auc", "dice")  # the first that the job has is shown


def is_right(desk: Desk, item: Item, truth: np.ndarray) -> bool:
    """Whether a repair is what the truth says; of a mask: most of the pixels that it changes."""
    if not isinstance(desk.ledger, MaskLedger):
        return int(truth[item.sample, item.label_class]) == item.new
    change, complete = desk.ledger.to_judge(item.sample, item.label_class), truth[item.sample] > 0
    right = ((change > 0) & complete).sum() + ((change < 0) & ~complete).sum()
    return bool(2 * right > (change != 0).sum())


def read(desk: Desk, order: str, checked: int) -> None:
    """A simulated reader judges the first repairs of a queue."""
    truth = truth_of(desk)
    for item in desk.queue(Choice(what=REPAIRS, order=order))[:checked]:
        if is_right(desk, item, truth):
            desk.judge(item, ACCEPT, reviewer="SIM")
        elif desk.masks:
            desk.judge(item, REJECT, reviewer="SIM")
        else:
            row = truth[item.sample]
            value = int(row.argmax()) if desk.kind.one_label else int(row[item.label_class])
            desk.judge(item, RELABEL, reviewer="SIM", value=value)


def truth_of(desk: Desk) -> np.ndarray:
    """Complete training labels or masks of a phantom.

    Raises:
        FedMendError: the site has none.
    """
    truth = desk.kind.load_truth(desk.card, desk.data)
    if truth is None:
        raise FedMendError(f"{desk.site}: expected complete labels to judge repairs by, got none")
    return truth


def one_seed(job: Path, words: Sequence[str], checked: int, out: Path, cache: Path, seed: int) -> dict:
    """All runs of a seed: metrics of each, and what each order finds."""
    home = out / f"seed-{seed}"
    settings = parse_assignments([word.replace(SEED, str(seed)) for word in words])
    shutil.rmtree(home, ignore_errors=True)

    def run(name: str) -> dict:
        where = {"state_dir": str(home / name / "state" / "{SITE_NAME}"), "cache_dir": str(cache)}
        variables = {**settings, "seed": seed, **({} if name == FIRST else {"run_name": "second"})}
        workspace, changes = home / f"{name}-workspace", Changes(variables)
        return run_local(job, workspace, changes, threads=1, site_settings=where, quiet=True)["final"]["test"]

    metrics, found = {FIRST: run(FIRST)}, {}
    folders = reviewable(home / FIRST / "state")
    for order in ORDERS:
        queues = []
        for folder in folders:
            desk = Desk(folder)
            truth = truth_of(desk)
            queue = desk.queue(Choice(what=REPAIRS, order=order))
            queues.append([is_right(desk, item, truth) for item in queue])
        found[order] = [pooled(queues, share) for share in LOOKED]
    wrong = sum(not right for queue in queues for right in queue)
    for order in READERS:
        shutil.copytree(home / FIRST / "state", home / order / "state")
        for folder in reviewable(home / order / "state"):
            read(Desk(folder), order, checked)
        metrics[order] = run(order)
    return {"seed": seed, "metrics": metrics, "found": found, "repairs": sum(map(len, queues)), "wrong": wrong}


def pooled(queues: Sequence[Sequence[bool]], share: float) -> float | None:
    """Share of the wrong repairs of all sites in the first part of each site's queue; None where none is wrong."""
    wrong = sum(not right for queue in queues for right in queue)
    first = sum(not right for queue in queues for right in queue[: int(np.ceil(share * len(queue)))])
    return first / wrong if wrong else None


def cell(values: Sequence[float]) -> str:
    """Mean ± sd in percent; of one seed the mean alone, of none n/a."""
    return " ± ".join(filter(None, mean_and_sd(values))) if values else "n/a"


def shares(rows: Sequence[dict], order: str) -> list[list[float]]:
    """For each part of the queue what an order finds in it, of the seeds in which anything was to be found."""
    return [[row["found"][order][i] for row in rows if row["wrong"]] for i in range(len(LOOKED))]


def print_tables(rows: Sequence[dict], metric: str = "") -> None:
    """What each order finds, and the final metric, AUC or Dice by default, after each review."""
    print("repairs, wrong ones:", *(f"{row['repairs']}, {row['wrong']};" for row in rows))
    metric = metric or next(name for name in METRICS if name in rows[0]["metrics"][FIRST])
    head = ["order", *(f"first {100 * share:.0f} %" for share in LOOKED)]
    print(markdown_table(head, [[order, *map(cell, shares(rows, order))] for order in rows[0]["found"]]))
    lines = []
    base = [row["metrics"][FIRST][metric] for row in rows]
    for name in (FIRST, *READERS):
        values = [row["metrics"][name][metric] for row in rows]
        difference = "" if name == FIRST else str(paired_difference(values, base) or "n/a")
        lines.append([{FIRST: "no review"}.get(name, name), cell(values), difference])
    print(markdown_table(["order of the review", metric, "more than without"], lines))


def figure(rows: Sequence[dict], file: Path) -> None:
    """Share of the wrong repairs found, over the share of the queue looked at."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for order in rows[0]["found"]:
        means = [float(np.mean(found)) for found in shares(rows, order)]
        axes.plot([0, *(100 * share for share in LOOKED)], [0, *(100 * m for m in means)], "o-", label=order)
    axes.set(xlabel="part of each site's queue looked at, %", ylabel="wrong repairs found, %", title="PHANTOM")
    axes.legend()
    drawing.savefig(file)


def main() -> None:
    """Runs all seeds and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", type=Path, default=ROOT / "jobs" / "fedmlp_ich")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--checked", type=int, default=50, help="repairs that a reader judges at each site")
    parser.add_argument("--metric", default="", help="default: AUC, or Dice of masks")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "review")
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="NAME=VALUE", help="{SEED}: the seed")
    args = parser.parse_args()
    given = (args.job, args.set, args.checked, args.out.resolve(), args.out.resolve() / "cache")
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(partial(one_seed, *given), seeds(args.seeds)))
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    name = f"review_{args.job.name}"
    (results / f"{name}.json").write_text(json.dumps(rows, indent=2) + "\n")
    print_tables(rows, args.metric)
    if any(row["wrong"] for row in rows):
        figure(rows, results / f"{name}.svg")


if __name__ == "__main__":
    main()
