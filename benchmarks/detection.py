"""Measures how often FedNoRo finds exactly the noisy sites, with the ablations of the paper's Table 3.

One command: ``python benchmarks/detection.py``. It deals the phantom slices of ``jobs/fednoro_ich`` to eight sites,
flips labels at 30 or 40 % of them with a rate of 0.3-0.5 or 0.5-0.7, trains a warm-up of three rounds of one local
epoch with the job's other settings, without FLARE, and detects. Every seed draws its own partition, noisy sites,
flips and initial weights. Partitions that leave a site fewer samples than a batch are passed over. Writes
``benchmarks/results/detection.json`` and prints a table.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fedmend.data.manifest import load_card
from fedmend.datasets import rsna_ich
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.errors import FedMendError
from fedmend.local_federation import run_locally
from fedmend.method import Federation, Workflow
from fedmend.methods.fednoro import (
    DETECT,
    FIELDS,
    WARMUP,
    FedNoRo,
    detect_noisy_clients,
    loss_matrix,
    normalise_losses,
)
from fedmend.phantoms import ct_head
from fedmend.phantoms.sites import SOURCE
from fedmend.site_config import SiteConfig
from fl_components.run.arguments import parse_assignments
from fl_components.run.jobs import JobSettings, configure_job, read_job

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "jobs" / "fednoro_ich"
SHARES, RATES = (0.3, 0.4), ((0.3, 0.5), (0.5, 0.7))
ROUNDS, LOCAL_EPOCHS = 3, 1  # of the warm-up
ATTEMPTS = 100  # partitions
REPORTS = "reports"
RULES = {  # of the detection, on the same losses
    "per class, normalised": (True, True),
    "one loss per site": (False, True),
    "not normalised": (True, False),
}


class WarmUp(Workflow):
    """Stage 1 of FedNoRo alone; writes down what the sites report for the detection."""

    FIELDS = FIELDS

    def run(self, fed: Federation) -> None:
        """Eq. (2), then the losses of Eq. (3)."""
        for _ in fed.rounds():
            fed.train(WARMUP)
        answers = fed.collect(DETECT)
        fed.record(REPORTS, {s: {k: v.tolist() for k, v in a.report.items()} for s, a in answers.items()})


def settings(given: Mapping[str, object]) -> JobSettings:
    """The job, with other settings where some are given."""
    with tempfile.TemporaryDirectory() as folder:
        configured = Path(folder) / JOB.name
        configure_job(JOB, configured, given)
        return read_job(configured)


def make_sites(out: Path, download: Path, job: JobSettings, seed: int, share: float, rates: tuple) -> Path:
    """Site folders of the first partition from ``seed`` on in which every site has a batch."""
    usual = {f.name: job.site["phantom"][f.name] for f in fields(NoiseProtocol) if f.name in job.site["phantom"]}
    for attempt in range(ATTEMPTS):
        drawn = {"partition_seed": 100 * (seed + 1) + attempt, "noise_seed": seed}
        noise = {"noisy_share": share, "noise_low": rates[0], "noise_high": rates[1]}
        folder = out / f"attempt-{attempt}"
        try:
            protocol = NoiseProtocol(**{**usual, **drawn, **noise})
            rsna_ich.prepare_single_label(download, folder, protocol=protocol, source_name=SOURCE, processes=1)
        except FedMendError:
            continue  # a site without samples or with one class
        if min(facts["sizes"]["train"] for facts in made(folder).values()) >= job.site["batch_size"]:
            return folder
    raise SystemExit(f"seed {seed}: expected a partition with a batch at every site, got none in {ATTEMPTS}")


def made(folder: Path) -> dict[str, dict]:
    """Site → what its card says about how it was made."""
    return {path.name: load_card(path, path.name).provenance["site"] for path in sorted(folder.glob("site-*"))}


def warm_up(sites: Path, workspace: Path, job: JobSettings, seed: int, la: bool) -> dict:
    """Class-wise losses of every site after the warm-up, as its reports."""

    def config_of(name: str) -> SiteConfig:
        # No class is too small to report: what a site holds back would hide how well the rules themselves do.
        return SiteConfig(sites / name, workspace / "cache", workspace / "state", min_count=0, threads=1)

    records = run_locally(
        workflow=WarmUp(),
        method=FedNoRo(**{**job.method.args, "la": la}),
        run={**job.run, "num_rounds": ROUNDS, "seed": seed, "eval_every": ROUNDS},
        site={**job.site, "local_epochs": LOCAL_EPOCHS, "phantom": None},
        sites=list(made(sites)),
        workspace=workspace,
        config_of=config_of,
        settings=job.settings,
        threads=1,
    )
    lines = map(json.loads, (records / "decisions.jsonl").read_text().splitlines())
    return next(line["value"] for line in lines if line["what"] == REPORTS)


def one_federation(job: JobSettings, download: Path, seed: int, share: float, rates: tuple) -> list[dict]:
    """What the sites of one federation report after the warm-up, with and without logit adjustment."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sites = make_sites(folder / "sites", download, job, seed, share, rates)
        noisy = [name for name, facts in made(sites).items() if facts["noisy"]]
        for la in (True, False):
            reports = warm_up(sites, folder / f"la-{la}", job, seed, la)
            what = {"seed": seed, "noisy_share": share, "rates": rates, "la": la}
            rows.append({**what, "noisy": noisy, "reports": reports})
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


def print_table(rows: list[dict]) -> None:
    """A line per setting and rule: means over seeds."""
    for share, rates, la, rule in itertools.product(SHARES, RATES, (True, False), RULES):
        chosen = [r for r in rows if (r["noisy_share"], tuple(r["rates"]), r["la"]) == (share, rates, la)]
        scores = [score(row, *RULES[rule]) for row in chosen]
        words = "  ".join(f"{k} {np.mean([s[k] for s in scores]):.3f}" for k in scores[0])
        print(f"rho {share} eta {rates[0]}-{rates[1]}  {'LA' if la else 'no LA':6s} {rule:22s} {words}")


def main() -> None:
    """Runs all federations and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings of the job")
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    job, rows = settings(parse_assignments(args.set)), []
    spec = job.site["phantom"]
    cases = list(itertools.product(range(args.seeds), SHARES, RATES))
    with tempfile.TemporaryDirectory() as cache:
        download = Path(cache) / "download"
        ct_head.write_ich(download, slices=spec["images"], seed=1037, size=spec["pixels"], scanners=spec["sites"])
        # spawn: the parent may hold threads, which a forked process does not survive reliably
        with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
            done = pool.map(
                one_federation, itertools.repeat(job), itertools.repeat(download), *zip(*cases, strict=True)
            )
            for number, found in enumerate(done, start=1):
                rows += found
                print(f"{number} of {len(cases)} federations", flush=True)
                (out / "detection.json").write_text(json.dumps(rows) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
