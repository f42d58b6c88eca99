"""Records what small runs of every job, baseline and ablation give, to compare two commits digit for digit.

``python benchmarks/golden.py record OUT.json`` runs each job in FLARE's simulator with a phantom that tests plumbing,
not learning, and writes, run by run, ``metrics.jsonl`` without seconds and single sites, ``repairs.jsonl``, a hash of
the final model and one of every ledger. ``--checkout DIR`` runs the code of another checkout, ``--local`` runs without
FLARE where the checkout can. About 45 minutes on two cores with FLARE, 15 without. ``python benchmarks/golden.py
compare ONE.json OTHER.json`` prints a line per run and exits with 1 when any differs or did not end.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
FEDMLP = "num_rounds=4 warmup_rounds=2 image_size=32 batch_size=8 ratio_negative=0.4 ratio_positive=0.4"
FEDNORO = "num_rounds=3 warmup_rounds=1 image_size=32 batch_size=8 local_epochs=1 phantom.noise=uniform phantom.sites=4"
FEDLSM = "num_rounds=3 image_size=32 batch_size=8 local_iterations=3 pairs=2 tau_negative=0.3"
FEDIA = "num_rounds=5 warmup_rounds=2 image_size=32 local_epochs=1 gap=0 threshold=0.5 min_component=1 phantom.images=6"
FEDIA += " phantom.sites=2 phantom.pixels=32 phantom.depth=12 phantom.test_share=0.33 phantom.m=1"
AUDIT = "phantom.images=300 phantom.sites=2 phantom.annotated_per_site=4"
CHEST = '["Effusion","Infiltration","Atelectasis"]'
FILMS = f"phantom.images=600 phantom.sites=3 phantom.pixels=32 classes={CHEST} phantom.classes={CHEST}"
ROWS = {  # method → its rows besides the job itself
    "fedmlp": "ablation_mld ablation_wpc ablation_cr fedavg fedavg_pl fedprox all_labels",
    "fednoro": "ablation_global_loss ablation_no_la ablation_raw_loss fedavg fedla fedprox all_labels",
    "fedlsm": "ablation_awpa ablation_ude ablation_ue fedavg fedavg_masked fedprox_masked fedrs fixmatch_masked"
    " moon_masked all_labels",
    "fedia": "aggregation_only correction_only fedavg mended_trigger nr_dice all_labels",
    "label": "",
}
RUNS = {  # job → number of sites, settings
    "fedmlp_ich": (2, f"{FEDMLP} {AUDIT} phantom.images=500"),  # findings of all classes at both sites
    "fedmlp_cxr14": (3, f"{FEDMLP} network=resnet_narrow {FILMS}"),
    "fednoro_ich": (4, f"{FEDNORO} phantom.images=800 phantom.pixels=32"),
    "fednoro_isic2019": (4, f"{FEDNORO} phantom.images=240 phantom.pixels=32"),
    "fedlsm_cxr14": (3, f"{FEDLSM} tau_positive=0.6 {FILMS} phantom.protocol=fedmlp"),
    "fedlsm_isic2018": (3, f"{FEDLSM} tau_positive=0.5 phantom.images=700 phantom.sites=3 phantom.pixels=32"),
    "fedia_ms": (2, f"{FEDIA} learning_rate_decay=0.975"),
    "fedia_lung": (2, FEDIA),
    "label_audit": (2, AUDIT),
}
# Settings of a method's own that its baselines do not have; the first edition had them in every job and read them.
OWN = {"warmup_rounds", "ratio_negative", "ratio_positive", "pairs", "tau_negative", "tau_positive"}
OWN |= {"gap", "threshold", "min_component"}


def settings(checkout: Path, job: str, row: str) -> list[str]:
    """What ``--set`` is given for a run."""
    given = RUNS[job][1].split()
    part = row.startswith("ablation") or (job.startswith("fedia") and row != "nr_dice")  # of the method itself
    replaced = row != "" and not part
    if (checkout / "jobs" / "variants").is_dir() and replaced:
        kept = ("tau_negative", "tau_positive") if row == "fixmatch_masked" else ()
        given = [word for word in given if word.split("=")[0] not in OWN - set(kept)]
    return given


def one_run(checkout: Path, job: str, row: str, *, local: bool, cache: Path) -> dict:
    """Runs a job of a checkout and says what it gave."""
    sites = RUNS[job][0]
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder) / "run"
        command = [sys.executable, "-m", "fl_components.cli", "simulate", str(checkout / "jobs" / job), "--quiet"]
        command += ["--workspace", str(workspace), "--sites", str(sites), "--threads", str(sites)]
        command += ["--local"] * local + (["--variant", row] if row else [])
        command += ["--site", f"cache_dir={cache}", "--set", *settings(checkout, job, row)]
        paths = os.pathsep.join([str(checkout / "custom"), str(checkout)])
        env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1]}
        records = workspace / "server" / "simulate_job" / "fedmend"
        if job == "label_audit":
            return {"results": json.loads((records / "results.json").read_text())}
        lines = [json.loads(line) for line in (records / "metrics.jsonl").read_text().splitlines()]
        ledgers = {file.parent.name: _ledger(file) for file in sorted(workspace.rglob("ledger.sqlite"))}
        return {
            "metrics": [{k: v for k, v in line.items() if k not in ("seconds", "sites")} for line in lines],
            "repairs": [json.loads(line) for line in (records / "repairs.jsonl").read_text().splitlines()],
            "model": _model(Path(json.loads((records / "results.json").read_text())["files"]["global model"])),
            "ledgers": ledgers,
        }


def _model(file: Path) -> str:
    weights = torch.load(file, map_location="cpu", weights_only=False)["model"]
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = torch.as_tensor(weights[name])
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _ledger(file: Path) -> str:
    with contextlib.closing(sqlite3.connect(file)) as db:
        rows = [
            *db.execute("SELECT sample, class, old, new, rule, round, confidence FROM entries ORDER BY entry"),
            *db.execute("SELECT rule, from_round, last_entry FROM retractions ORDER BY rowid"),
        ]
    return f"{len(rows)} rows {hashlib.sha256(repr(rows).encode()).hexdigest()}"


def record(args: argparse.Namespace) -> int:
    """Runs what is chosen, two at a time, and writes the results as they come."""
    names = [f"{job}/{row}".rstrip("/") for job in RUNS for row in ("", *ROWS[job.split("_")[0]].split())]
    chosen = [n for n in names if any(fnmatch.fnmatch(n, pattern) for pattern in args.only)]
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(args.processes) as pool:
        cache = args.cache or Path(home)

        def work(name: str) -> tuple[str, dict]:
            job, _, row = name.partition("/")
            local = args.local and job != "label_audit"
            return name, one_run(args.checkout.resolve(), job, row, local=local, cache=cache.resolve())

        for number, task in enumerate(as_completed([pool.submit(work, name) for name in chosen]), 1):
            name, result = task.result()
            found[name] = result
            args.out.write_text(json.dumps({n: found[n] for n in names if n in found}, indent=1) + "\n")
            print(f"{number} of {len(chosen)}: {name} {result.get('error', '')}", flush=True)
    return int(any("error" in result for result in found.values()))


def compare(args: argparse.Namespace) -> int:
    """Prints run by run what is equal and what is not."""
    one, other = (json.loads(file.read_text()) for file in (args.one, args.other))
    different = 0
    for name in [*one, *(n for n in other if n not in one)]:
        if name not in one or name not in other:
            print(f"{name:36s} only in {args.one if name in one else args.other}")
            continue
        parts = [part for part in {**one[name], **other[name]} if one[name].get(part) != other[name].get(part)]
        failed = "error" in {**one[name], **other[name]}
        different += bool(parts) or failed
        print(f"{name:36s} {'failed' if failed else 'differs in ' + ', '.join(parts) if parts else 'equal'}")
    print(f"{different} of {len(set(one) & set(other))} runs differ or failed")
    return int(different > 0)


def main() -> int:
    """Records or compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    new = commands.add_parser("record")
    new.add_argument("out", type=Path)
    new.add_argument("--checkout", type=Path, default=ROOT, help="default: the one that holds this script")
    new.add_argument("--only", nargs="+", default=["*"], help="patterns like fedia_ms/* or */fedavg")
    new.add_argument("--local", action="store_true", help="without FLARE")
    new.add_argument("--processes", type=int, default=2, help="runs at the same time")
    new.add_argument("--cache", type=Path, help="keeps phantoms between two calls")
    new.set_defaults(run=record)
    old = commands.add_parser("compare")
    old.add_argument("one", type=Path)
    old.add_argument("other", type=Path)
    old.set_defaults(run=compare)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
