"""Compares FedIA with federated averaging, with its two parts alone and with complete masks.

One command: ``python benchmarks/completeness.py``. Each of the paper's levels of completeness, each seed and each
method is a run of ``jobs/fedia_ms`` without FLARE, several of them side by side. Each seed draws its own phantom and
initial weights. The global model is evaluated in every round; ``--set eval_every=N`` saves time, and the mean is then
over fewer rounds. Prints tables and writes ``benchmarks/results/completeness.json``.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fl_components.run.arguments import parse_assignments
from fl_components.run.local import run_local

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "jobs" / "fedia_ms"
UPPER_BOUND = "all_labels"  # does not depend on the level
METHODS = ("fedavg", "aggregation_only", "correction_only", "fedia", "mended_trigger", UPPER_BOUND)
WITH_ESTIMATES = ("fedia", "mended_trigger")  # whose estimates and corrections are listed
LAST = 10  # rounds that the paper averages


def one_run(given: Mapping[str, object], m: int, seed: int, method: str, cache: Path) -> dict:
    """One method at one level of completeness and with one seed, as a row of the results."""
    with tempfile.TemporaryDirectory() as folder:
        results = run_local(
            JOB,
            Path(folder) / "run",
            threads=1,
            variables={**given, "phantom.m": m, "phantom.seed": 1037 + seed, "seed": seed},
            variants=[] if method == "fedia" else [method],
            sites=given.get("phantom.sites", 0),
            site_settings={"cache_dir": str(cache.resolve()), "threads": 1},
            quiet=True,
        )
        return {"m": m, "seed": seed, "method": method, **read_records(Path(results["files"]["records"]))}


def read_records(folder: Path) -> dict:
    """What the tables need of a run folder.

    Returns:
        ``dice`` and ``volume_dice`` of the models of the last rounds, as far as they were evaluated; ``estimates``:
        site → completeness; ``corrected``: site → round in which it corrected; ``repairs``: site → pixels added, how
        many of them are lesion, and lesion pixels that its own masks lack.
    """
    metrics, repairs, decisions = (_lines(folder / f"{name}.jsonl") for name in ("metrics", "repairs", "decisions"))
    first = max(max(line["round"] for line in metrics) - LAST, 0) + 1  # round 0 is the model before any training
    dice = [line["macro"] for line in metrics if line["round"] >= first]
    found = [line["value"] for line in decisions if line["what"] == "completeness"]
    corrected = {site: line["round"] for line in decisions if line["what"] == "corrected" for site in line["value"]}
    return {
        **{key: [line[key] for line in dice] for key in ("dice", "volume_dice")},
        "estimates": {site: counts["estimate"] for site, counts in found[-1].items()} if found else {},
        "corrected": corrected,
        "repairs": {line["site"]: [line[k] for k in ("positive", "correct_positive", "missing")] for line in repairs},
    }


def _lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def print_tables(rows: Sequence[Mapping]) -> None:
    """Dice by level and method; order of the estimates; corrections."""
    levels = sorted({row["m"] for row in rows})
    print(f"\nDice of the last {LAST} rounds, by slice (by volume), mean ± standard deviation over seeds")
    print("method".ljust(18), *(f"m = {m}".rjust(26) for m in levels))
    for method in METHODS:
        cells = [dice_cell([row for row in rows if belongs(row, method, m)]) for m in levels]
        print(method.ljust(18), *(cell.rjust(26) for cell in cells))
    print("\nestimated completeness, correction")
    for row in sorted(rows, key=lambda row: (row["method"], row["m"], row["seed"])):
        if row["method"] in WITH_ESTIMATES:
            print(correction_line(row))


def belongs(row: Mapping, method: str, m: int) -> bool:
    """Whether a row counts for a method at a level; the upper bound counts for all levels."""
    return row["method"] == method and (method == UPPER_BOUND or row["m"] == m)


def dice_cell(rows: Sequence[Mapping]) -> str:
    """Mean and standard deviation of the rows of a cell, one per seed."""
    if not rows:
        return "-"
    by_slice, by_volume = ([100 * float(np.mean(row[key])) for row in rows] for key in ("dice", "volume_dice"))
    deviation = np.std(by_slice, ddof=1) if len(rows) > 1 else 0.0
    return f"{np.mean(by_slice):.1f} ± {deviation:.1f} ({np.mean(by_volume):.1f})"


def correction_line(row: Mapping) -> str:
    """What a run estimated, and what it added to the masks of each site."""
    names = sorted(row["estimates"])  # sites are numbered from the least complete one
    right = all(row["estimates"][a] < row["estimates"][b] for a, b in itertools.pairwise(names))
    words = []
    for name in names:
        text = f"{row['estimates'][name]:.2f} "
        if name not in row["corrected"]:
            text += "never"
        else:
            added, correct, missing = row["repairs"].get(name, (0, 0, 0))
            text += f"round {row['corrected'][name]}: {added} px"
            text += f", {100 * correct / added:.0f} % right" if added else ""
            text += f", {100 * correct / missing:.0f} % found" if missing else ""
        words.append(text)
    order = "right" if right else "WRONG"
    return f"{row['method']:15s} m {row['m']} seed {row['seed']} order {order}: " + "; ".join(words)


def main() -> None:
    """Trains and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 2, 3], help="the paper's m")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings of the job")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "fedmend-benchmark")
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results" / "completeness.json"
    out.parent.mkdir(exist_ok=True)
    given, rows = parse_assignments(args.set), []
    cases = [
        (m, seed, method)
        for seed, m, method in itertools.product(args.seeds, args.levels, args.methods)
        if method != UPPER_BOUND or m == min(args.levels)
    ]
    # spawn: the parent may hold threads, which a forked process does not survive reliably
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(one_run, given, *case, args.cache) for case in cases]
        for number, task in enumerate(as_completed(tasks), start=1):
            rows.append(task.result())
            print(f"{number} of {len(cases)} runs", flush=True)
            out.write_text(json.dumps(rows) + "\n")
    print_tables(rows)


if __name__ == "__main__":
    main()
