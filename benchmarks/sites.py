"""Measures how the server's memory and the time of a round grow with the number of sites, in FLARE's simulator.

One command: ``python benchmarks/sites.py`` (3 and 9 sites). 100 sites: ``python benchmarks/sites.py --sites 100
--threads 6`` (14 minutes on two cores, two rounds). With fewer threads than sites the simulator starts a new process
for every task of every site, and that is nearly all of the time; with as many, each site needs 0.6 GB. All sites have
the same 120 phantom slices and average a narrow ResNet of 1.2 MB with FedAvg. Writes
``benchmarks/results/sites.json`` and prints a table.
"""

import argparse
import json
import platform
import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import psutil

from fedmend.datasets.rsna_ich import CLASSES
from fedmend.phantoms.sites import ensure_phantom
from fedmend.phantoms.specs.missing_classes import MissingClassPhantom

ROOT = Path(__file__).resolve().parents[1]
SPEC = MissingClassPhantom(images=120, sites=1, annotated_per_site=len(CLASSES), pixels=32, seed=7)
STAMP = re.compile(
    r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) .*?(?:(census: every site)|( annotates )|(round \d+)/\d+ )"
)
INTERVAL = 0.5  # seconds between two samples


def server_memory(simulator: psutil.Process) -> int:
    """Resident bytes of the simulator's largest process that is no site: the one with the server."""
    largest = 0
    for process in simulator.children(recursive=True):
        try:
            if not any("simulator_worker" in word for word in process.cmdline()):
                largest = max(largest, process.memory_info().rss)
        except psutil.NoSuchProcess:
            continue
    return largest


def measure(cache: Path, *, sites: int, rounds: int, threads: int) -> dict:
    """One run of FedAvg, which evaluates in the first round and after the last one.

    Returns:
        ``seconds`` of each phase and ``peak_memory_mb`` of the server in it: start, census, round 1 ..., end.
    """
    folder = ensure_phantom(cache, SPEC) / "site-1"
    with tempfile.TemporaryDirectory() as workspace:
        command = [sys.executable, "-m", "fl_components.cli", "simulate", str(ROOT / "jobs" / "fedmlp_ich")]
        command += ["--workspace", f"{workspace}/ws", "--threads", str(min(threads, sites)), "--sites", str(sites)]
        command += ["--quiet", "--variant", "fedavg"]
        command += ["--site", f"data_root={folder}", f"cache_dir={cache}", "threads=1"]
        command += ["--set", "network=resnet_narrow", "image_size=32", f"num_rounds={rounds}"]
        command += [f"eval_every={rounds}"]
        samples = [(time.time(), 0)]
        with psutil.Popen(command) as simulator:
            while simulator.poll() is None:
                samples.append((time.time(), server_memory(simulator)))
                time.sleep(INTERVAL)
        if simulator.returncode:
            raise SystemExit(f"{sites} sites: expected a complete run, got exit code {simulator.returncode}")
        log = (Path(workspace) / "ws" / "server" / "log.txt").read_text().splitlines()
    ends = {}  # phase → time of the last line of the server's log that belongs to it
    for found in filter(None, map(STAMP.match, log)):
        name = "start" if found[2] else "census" if found[3] else found[4]
        ends[name] = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
    ends["end"] = samples[-1][0]
    begins = [samples[0][0], *ends.values()][:-1]
    return {
        name: {
            "seconds": end - begin,
            "peak_memory_mb": max((m for t, m in samples if begin <= t <= end), default=0) / 1e6,
        }
        for begin, (name, end) in zip(begins, ends.items(), strict=True)
    }


def main() -> None:
    """Measures every number of sites and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 9])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/fedmend").expanduser())
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    runs: dict[int, dict] = {}
    results = {"machine": f"{platform.machine()}, {psutil.cpu_count()} cores", "threads": args.threads, "sites": runs}
    for sites in args.sites:
        runs[sites] = measure(args.cache, sites=sites, rounds=args.rounds, threads=args.threads)
        (out / "sites.json").write_text(json.dumps(results, indent=2) + "\n")
        words = "  ".join(f"{k} {v['seconds']:.0f} s {v['peak_memory_mb']:.0f} MB" for k, v in runs[sites].items())
        print(f"{sites:4d} sites  {words}", flush=True)


if __name__ == "__main__":
    main()
