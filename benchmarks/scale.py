"""Measures what a round costs the server alone, from 10 sites to thousands, for every way of averaging.

One command: ``python benchmarks/scale.py`` (10, 100 and 1,000 sites; ``--sites 10 100 1000 10000 --averages samples``
needs 13 GB of disk). The sites are stand-ins that answer at once with the narrow ResNet of 1.2 MB that they
were sent, changed a little; the time that they take is not counted. All else is the server half that runs in FLARE,
too: checks, the wait on disk, outliers, the average, checkpoint and records. Every case has a process of its own. A
line through the seconds, over the number of sites, is fitted to all cases of an average; that of the distances has a
square in it. Writes ``benchmarks/results/scale.json`` and prints a table.
"""

import argparse
import json
import multiprocessing
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from fedmend.averaging import Average, RowAverage, by_samples
from fedmend.datasets.rsna_ich import CLASSES
from fedmend.messages import CENSUS, Question, SiteResult
from fedmend.method import Federation, Workflow
from fedmend.methods.fedia import FedIA, completeness_aware
from fedmend.methods.fedlsm import FedLSM, FedLSMWorkflow
from fedmend.methods.fednoro import distance_aware
from fedmend.preprocessing import Preprocessing
from fedmend.server.federation import RunSettings
from fedmend.server.job import ServerJob
from fedmend.server.transport import Transport

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = 500  # of every site
NOISY_SHARE = 0.4
ROUNDS = 2  # the second one is measured: the first loads libraries
AVERAGES = ("samples", "distance", "class-wise", "completeness")


def site_name(number: int) -> str:
    """Names in the order of numbers."""
    return f"site-{number:05d}"


class StandIns(Transport):
    """Sites that answer at once, each with the same report; ``seconds`` were spent on making answers."""

    def __init__(self, count: int, report: dict[str, np.ndarray]):
        self._names, self._report, self.seconds = [site_name(i) for i in range(count)], report, 0.0

    def sites(self) -> list[str]:
        return self._names

    def exchange(self, question: Question, receive: Callable, enough: Callable[[], bool]) -> None:
        """Answers a census with annotated classes, and a training with the weights sent plus noise."""
        for number, site in enumerate(question.tasks):
            started = time.perf_counter()
            answer = self._answer(number, site, question)
            self.seconds += time.perf_counter() - started
            receive(site, answer)

    def _answer(self, number: int, site: str, question: Question) -> SiteResult:
        annotated = np.arange(len(CLASSES)) == number % len(CLASSES)
        result = SiteResult(site, question.tasks[site].round_num, SAMPLES)
        if question.name == CENSUS:
            result.census = {
                **{"annotated": annotated, "positives": annotated * 50, "kind": "multilabel"},
                **{"sizes": {"train": SAMPLES}, "data": {"train": "0" * 32}, "min_federation": 1, "phantom": True},
                "preprocessing": Preprocessing(None, False, 32, (0.5,) * 3, (0.25,) * 3).told(),
            }
        elif question.tasks[site].training:
            noise = np.random.default_rng(number).standard_normal(4096).astype(np.float32)
            result.weights = {k: v + np.resize(noise, v.shape) * 1e-3 for k, v in question.weights.items()}
            result.report = dict(self._report)
        return result

    def save_model(self, weights: Mapping[str, np.ndarray], *, best: bool = False) -> str:
        return "nowhere"

    def stream(self, tag: str, value: float, step: int) -> None:
        return


class Rounds(Workflow):
    """Rounds with one average, each of them measured, less the seconds of the stand-ins themselves."""

    _rows: RowAverage | None = None

    def __init__(self, average: Average, transport: StandIns):
        self._average, self.transport = average, transport
        self.seconds: list[float] = []

    def run(self, fed: Federation) -> None:
        begun, own = time.perf_counter(), self.transport.seconds
        for _ in fed.rounds():
            fed.train("train", average=self._average, rows=self._rows)
            now = time.perf_counter()
            self.seconds.append(now - begun - (self.transport.seconds - own))
            begun, own = now, self.transport.seconds


class ClassWiseRounds(Rounds):
    """The same with FedLSM's rows of the classifier."""

    METHOD = FedLSM

    def run(self, fed: Federation) -> None:
        known = {site: facts.positives > 0 for site, facts in fed.sites.items()}
        self._rows = partial(FedLSMWorkflow().row_weights, known)
        super().run(fed)


class CompletenessRounds(Rounds):
    """The same with the reports of FedIA."""

    METHOD = FedIA


def workflow_of(average: str, count: int) -> Rounds:
    """The rounds of one way of averaging."""
    if average == "class-wise":
        knowledge = {"class_knowledge": np.full(len(CLASSES), 50, dtype=np.float32)}
        return ClassWiseRounds(by_samples, StandIns(count, knowledge))
    if average == "completeness":
        estimates = {site_name(i): (i % 10 + 1) / 10 for i in range(count)}
        report = {"dice_loss": np.array([0.5], dtype=np.float32)}
        return CompletenessRounds(partial(completeness_aware, estimates), StandIns(count, report))
    noisy = {site_name(i) for i in range(int(NOISY_SHARE * count))}
    chosen = by_samples if average == "samples" else partial(distance_aware, noisy)
    return Rounds(chosen, StandIns(count, {}))


def measure(average: str, count: int) -> dict[str, float]:
    """One case, in a process of its own: seconds of the second round, peak memory, bytes to and from all sites."""
    workflow = workflow_of(average, count)
    with tempfile.TemporaryDirectory() as folder:
        settings = RunSettings(
            run_name="scale", classes=CLASSES, network="resnet_narrow", num_rounds=ROUNDS, eval_every=ROUNDS + 1
        )
        place = Path(folder)
        make = partial(ServerJob, state_dir=place / "state", folder=place / "run", app_dir=place, weights_dir=place)
        job = make(settings=settings, workflow=workflow, transport=workflow.transport, described={})
        job.run()
        assert job.federation  # since the census
        size = sum(value.nbytes for value in job.federation.model.values())
    return {
        "seconds": workflow.seconds[-1],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "sent_mb": 2 * count * size / 1e6,
    }


def fitted(counts: list[int], seconds: list[float], degree: int) -> list[float]:
    """Coefficients of seconds over sites, lowest power first, least squares of the relative error."""
    powers = np.vander(np.array(counts, dtype=float), degree + 1, increasing=True)
    scaled = powers / np.array(seconds)[:, None]
    return np.linalg.lstsq(scaled, np.ones(len(counts)), rcond=None)[0].tolist()


def main() -> None:
    """Measures every case and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--averages", nargs="+", default=AVERAGES, choices=AVERAGES)
    args = parser.parse_args()
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    cases: dict[str, dict] = {}
    for average in args.averages:
        cases[average] = {"sites": {}}
        for count in args.sites:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                cases[average]["sites"][count] = case = process.submit(measure, average, count).result()
            print(
                f"{average:12s} {count:6d} sites  {case['seconds']:8.2f} s  {case['peak_memory_mb']:7.0f} MB"
                f"  {case['sent_mb']:9.0f} MB sent",
                flush=True,
            )
        seconds = [case["seconds"] for case in cases[average]["sites"].values()]
        if len(seconds) > 2:
            cases[average]["fit"] = fitted(args.sites, seconds, 2 if average == "distance" else 1)
        machine = f"{platform.machine()}, {psutil.cpu_count()} cores"
        (out / "scale.json").write_text(json.dumps({"machine": machine, "averages": cases}, indent=2) + "\n")


if __name__ == "__main__":
    main()
