"""Measures how often FedNoRo finds exactly the noisy sites, with the ablations of the paper's Table 3.

``fedmend compare noisy-sites --table detection`` makes such a table on the data of the job, with more rules. This
script has what it does not: the class shares of the real slices, and both warm-ups, with logit adjustment and without.
Three sources of images, each dealt to as many sites as asked for::

    python benchmarks/detection.py                              # phantom of jobs/fednoro_ich
    python benchmarks/detection.py --sites 20 --real-balance    # with the class shares of the real slices
    python benchmarks/detection.py --brain-mri SOURCE           # real slices, as prepared by brain-mri-single

It flips labels at 30 or 40 % of the sites with a rate of 0.3-0.5 or 0.5-0.7, trains a warm-up of three rounds of one
local epoch with the job's other settings, without FLARE, and detects. Every seed draws its own partition, noisy sites,
flips and initial weights. Partitions that leave a site fewer samples than a batch are passed over; where sites are
small, ``--set batch_size=8`` helps. Writes ``benchmarks/results/detection_NAME.json`` and prints a table: every rule on
the same losses. "agreed" is the rule of the job, which takes no site for noisy without ``min_vote_share`` of the votes.
"""

import argparse
import csv
import itertools
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fedmend.data.card import load_card
from fedmend.datasets import brain_mri, rsna_ich
from fedmend.datasets.noisy_sites import NoiseProtocol
from fedmend.datasets.rsna_ich_download import CLASSES, TABLE
from fedmend.errors import FedMendError
from fedmend.local.local_federation import run_locally
from fedmend.method import Federation, Workflow
from fedmend.methods.fednoro import DETECT, WARMUP, FedNoRo
from fedmend.methods.shared.class_losses import loss_matrix, normalise_losses
from fedmend.methods.shared.dimensions import AUTO, detect_noisy_clients
from fedmend.phantoms import ct_head
from fedmend.phantoms.sites import SOURCE
from fedmend.site.config import SiteConfig
from fl_components.job.folder import Changes, JobSettings, read_job
from fl_components.job.settings import parse_assignments

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "jobs" / "fednoro_ich"
SHARES, RATES = (0.3, 0.4), ((0.3, 0.5), (0.5, 0.7))
ROUNDS, LOCAL_EPOCHS = 3, 1  # of the warm-up
ATTEMPTS = 100  # partitions
REPORTS = "reports"
REAL = (1497, 13932, 8914, 14717, 28909)  # slices with one type in the lists of the released code, by class
RULES = {  # per class, normalised, covariance, least share of votes
    "agreed": (True, True, AUTO, 0.67),
    "any majority": (True, True, AUTO, 0.0),
    "full covariance": (True, True, "full", 0.0),
    "spherical": (True, True, "spherical", 0.0),
    "one loss per site": (False, True, AUTO, 0.0),
    "not normalised": (True, False, AUTO, 0.0),
}
Prepare = Callable[..., None]  # out, protocol=...: writes site folders


class WarmUp(Workflow):
    """Stage 1 of FedNoRo alone; writes down what the sites report for the detection."""

    METHOD = FedNoRo

    def run(self, fed: Federation) -> None:
        """Eq. (2), then the losses of Eq. (3)."""
        for _ in fed.rounds():
            fed.train(WARMUP)
        answers = fed.collect(DETECT)
        fed.record(REPORTS, {s: {k: v.tolist() for k, v in a.report.items()} for s, a in answers.items()})


def phantom_slices(job: JobSettings, folder: Path, *, sites: int, real_balance: bool) -> Prepare:
    """Draws the phantom's download below ``folder``; with ``real_balance`` with fewer slices of its frequent classes.

    It lifts every class to 5 % or more of the slices; the real shares are those of :data:`REAL`.
    """
    spec, download = job.site["phantom"], folder / "download"
    ct_head.write_ich(download, slices=spec["images"], seed=1037, size=spec["pixels"], scanners=sites)
    if real_balance:
        table = download / TABLE
        with open(table, newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        kept = balanced(rows)
        with open(table, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, ["ID", "Label"])
            writer.writeheader()
            writer.writerows(row for row in rows if row["ID"].rpartition("_")[0] in kept)
    return partial(rsna_ich.prepare_single_label, download, source_name=SOURCE, processes=1)


def balanced(rows: list[dict]) -> set[str]:
    """As many slices with one type as can be had with the shares of :data:`REAL`, from rows ID, Label."""
    types = defaultdict(list)
    for row in rows:
        slice_, _, name = row["ID"].rpartition("_")
        if row["Label"] == "1" and name in CLASSES:
            types[slice_].append(name)
    single = [[s for s, names in types.items() if names == [c]] for c in CLASSES]
    scale = min(len(found) / real for found, real in zip(single, REAL, strict=True))
    return {s for found, real in zip(single, REAL, strict=True) for s in found[: round(scale * real)]}


def make_sites(out: Path, prepare: Prepare, job: JobSettings, seed: int, share: float, rates: tuple) -> Path:
    """Site folders of the first partition from ``seed`` on in which every site has a batch."""
    usual = {f.name: job.site["phantom"][f.name] for f in fields(NoiseProtocol) if f.name in job.site["phantom"]}
    for attempt in range(ATTEMPTS):
        drawn = {"partition_seed": 100 * (seed + 1) + attempt, "noise_seed": seed}
        noise = {"noisy_share": share, "noise_low": rates[0], "noise_high": rates[1]}
        folder = out / f"attempt-{attempt}"
        try:
            prepare(folder, protocol=NoiseProtocol(**{**usual, **drawn, **noise}))
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


def one_federation(
    job: JobSettings, prepare: Prepare, warm_ups: tuple, seed: int, share: float, rates: tuple
) -> list[dict]:
    """What the sites of one federation report after each warm-up, with or without logit adjustment."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sites = make_sites(folder / "sites", prepare, job, seed, share, rates)
        noisy = [name for name, facts in made(sites).items() if facts["noisy"]]
        for la in warm_ups:
            reports = warm_up(sites, folder / f"la-{la}", job, seed, la)
            what = {"seed": seed, "noisy_share": share, "rates": rates, "la": la}
            rows.append({**what, "noisy": noisy, "reports": reports})
    return rows


def score(row: dict, rule: str) -> dict:
    """How well a rule finds the noisy sites of one federation."""
    per_class, normalise, covariance, least = RULES[rule]
    reports = {n: {k: np.array(v) for k, v in report.items()} for n, report in sorted(row["reports"].items())}
    losses = normalise_losses(loss_matrix(reports, per_class=per_class), normalise=normalise)
    detection = detect_noisy_clients(losses, covariance=covariance)
    agreed = detection.vote_share >= least
    found = {name for name, flag in zip(reports, detection.noisy, strict=True) if flag and agreed}
    truth = set(row["noisy"])
    return {
        "exact": found == truth,
        "recall": len(found & truth) / len(truth),
        "precision": len(found & truth) / len(found) if found else np.nan,
        "vote share": detection.vote_share,
    }


def print_table(rows: list[dict]) -> None:
    """A line per setting and rule, and per rule over all settings: means over federations."""
    cases = sorted({(r["noisy_share"], tuple(r["rates"]), r["la"]) for r in rows})
    for rule, la in itertools.product(RULES, sorted({r["la"] for r in rows}, reverse=True)):
        told, name = [], f"{'LA' if la else 'no LA':6s} {rule:18s}"
        for share, rates, adjusted in cases:
            chosen = [r for r in rows if (r["noisy_share"], tuple(r["rates"]), r["la"]) == (share, rates, la)]
            if adjusted == la:
                told += (scores := [score(row, rule) for row in chosen])
                exact = sum(s["exact"] for s in scores)
                print(f"{name} rho {share} eta {rates}  exact {exact} of {len(scores)}")
        words = "  ".join(f"{k} {100 * np.nanmean([s[k] for s in told]):.1f}" for k in told[0])
        print(f"{name} all: {words}")


def main() -> None:
    """Runs all federations and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sites", type=int, default=8)
    parser.add_argument("--brain-mri", type=Path, metavar="SOURCE", help="folder with labels.csv and the slices")
    parser.add_argument("--real-balance", action="store_true", help="the phantom with the class shares of real slices")
    parser.add_argument("--with-la-only", action="store_true", help="without the warm-up that has no logit adjustment")
    parser.add_argument("--set", action="extend", nargs="*", default=[], metavar="NAME=VALUE", help="of the job")
    args = parser.parse_args()
    name = ("brain_mri" if args.brain_mri else "phantom") + "_real_balance" * args.real_balance + f"_{args.sites}"
    out = ROOT / "benchmarks" / "results" / f"detection_{name}.json"
    out.parent.mkdir(exist_ok=True)
    given = {"phantom.sites": args.sites, **parse_assignments(args.set)}
    if args.brain_mri:
        given["classes"] = list(brain_mri.DIAGNOSES)
    job, rows = read_job(JOB, Changes(given)), []
    warm_ups = (True,) if args.with_la_only else (True, False)
    cases = list(itertools.product(range(args.seeds), SHARES, RATES))
    with tempfile.TemporaryDirectory() as folder:
        if args.brain_mri:
            prepare: Prepare = partial(brain_mri.prepare_single_label, args.brain_mri)
        else:
            prepare = phantom_slices(job, Path(folder), sites=args.sites, real_balance=args.real_balance)
        common = (itertools.repeat(value) for value in (job, prepare, warm_ups))
        # spawn: the parent may hold threads, which a forked process does not survive reliably
        with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
            done = pool.map(one_federation, *common, *zip(*cases, strict=True))
            for number, found in enumerate(done, start=1):
                rows += found
                print(f"{number} of {len(cases)} federations", flush=True)
                out.write_text(json.dumps(rows) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
