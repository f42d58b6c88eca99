"""What can be known of the rows of a comparison before anything is trained: whether a method can learn from the data,
and about how long its runs take."""

import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from fedmend.data.inputs import Inputs
from fedmend.errors import FedMendError, not_installed
from fedmend.learning.networks import build_network
from fedmend.learning.weights import weights_file
from fedmend.local.local_federation import census_locally
from fedmend.method import LocalMethod
from fedmend.server.census import Census
from fedmend.server.refit import check_refit
from fedmend.server.run_log import BEST_SPLITS
from fedmend.site.gpu_settings import GB
from fedmend.site.limits import HALF, step_bytes
from fl_components.compare.runs import Case
from fl_components.console import silenced
from fl_components.job.folder import JobSettings, read_job
from fl_components.run.local import site_config
from fl_components.run.simulate import lay_policy

STEPS = 3  # that are measured, after one that warms up
FORWARD = 1 / 3  # of a training step, an evaluation without gradients
PROCESS = 1.0 * GB  # of a run, beside its training step


@dataclass(frozen=True)
class Step:
    """A training step, as far as it costs time and memory."""

    network: str
    num_classes: int
    images: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Trial:
    """What is known of a row.

    Attributes:
        steps: training steps of a run at all sites, evaluations counted as parts of one.
        step: one of them.
        metrics: keys of what its kind of labels is measured by, over all classes.
    """

    steps: float
    step: Step
    metrics: Sequence[str] = ()


def try_rows(
    cases: Sequence[Case], *, optional: bool, metric: str = "", say: Callable[[str], object] = lambda line: None
) -> tuple[dict[str, Trial], dict[str, str]]:
    """Opens the data, once for each way in which rows read them, and asks every row whether it can learn from them.

    Args:
        cases: of each row at least one, all of the first seed first; further seeds where data depend on them.
        optional: rows that cannot are left out, but for the first; otherwise they are refused.
        metric: key of the figure's metric, or "".
        say: is told when data are opened, which takes minutes where phantoms or image stores have to be made first.

    Returns:
        Row → trial, and row → why it is left out.

    Raises:
        FedMendError: one sentence about a row, or no such metric.
    """
    opened: dict[str, Census | FedMendError] = {}
    trials: dict[str, Trial] = {}
    without: dict[str, str] = {}
    for case in cases:
        first = case.seed == cases[0].seed
        try:
            trial = _try(case, opened, say)
            trials.setdefault(case.row, trial)
        except FedMendError as e:
            if not optional or case.row == cases[0].row:
                raise FedMendError(f"{case.row if first else case.name}: {e}") from None
            without.setdefault(case.row, str(e))
    if metric and metric not in (known := trials[cases[0].row].metrics):
        raise FedMendError(f"--metric: expected one of {sorted(known)}, got {metric!r}")
    return {row: trial for row, trial in trials.items() if row not in without}, without


def _try(case: Case, opened: dict[str, Census | FedMendError], say: Callable[[str], object]) -> Trial:
    settings = read_job(case.job, case.changes)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        workflow, method = settings.build(settings.workflow), settings.build(settings.method)
        for package, extra in method.PACKAGES.items():
            if find_spec(package) is None:
                raise FedMendError(not_installed(package, extra))
        workflow.check_rounds(settings.run["num_rounds"])
        workflow.check_sites(len(settings.sites))
        lay_policy(workspace, case.site_settings)
        app, server, run = settings.app, site_config(workspace, "server"), settings.run
        weights_file(run.get("weights", ""), run["network"], app, server.weights_dir, own_machine=True)
        asked = (sorted(method.KINDS), method.patients_apart, settings.site, settings.run["network"])
        key = json.dumps([*asked, case.site_settings], sort_keys=True)
        if key not in opened:
            say(f"{case.name}: opening the data")
            opened[key] = _census(settings, method, workspace)
    census = opened[key]
    if isinstance(census, FedMendError):
        raise census
    if run.get("refit"):
        check_refit(workflow, census)
    if not any(size for splits in census.sizes.values() for name, size in splits.items() if name in BEST_SPLITS):
        raise FedMendError(f"expected a site with one of the splits {' and '.join(BEST_SPLITS)}, got none")
    classes = len(run["classes"])
    nothing = np.zeros((classes, *census.kind.counts_shape(classes)), dtype=np.int64)
    measured = census.kind.metrics(nothing, nothing)["macro"]  # the names alone
    return Trial(run_steps(settings, census.sizes), _step(settings), tuple(measured))


def _census(settings: JobSettings, method: LocalMethod, workspace: Path) -> Census | FedMendError:
    with silenced("fedmend"):  # what a census says is in the log of each run
        try:
            return census_locally(
                method=method,
                run=settings.run,
                site=settings.site,
                sites=settings.sites,
                workspace=workspace,
                config_of=partial(site_config, workspace),
            )
        except FedMendError as e:
            return e


def run_steps(settings: JobSettings, sizes: Mapping[str, Mapping[str, int]]) -> float:
    """Training steps of a run of a job on sites of these sizes: site → split → samples."""
    images, run, total = settings.site["batch_size"], settings.run, 0.0
    for splits in sizes.values():
        epochs = math.ceil(splits["train"] / images) * settings.site.get("local_epochs", 1)
        total += run["num_rounds"] * settings.settings.get("local_iterations", epochs)
        evaluated = sum(math.ceil(size / images) for name, size in splits.items() if name != "train")
        total += FORWARD * evaluated * (run["num_rounds"] / run.get("eval_every", 1) + 1)
    return total


def _step(settings: JobSettings) -> Step:
    site, run = settings.site, settings.run
    return Step(run["network"], len(run["classes"]), *Inputs.of(site).step(site["batch_size"]))


def estimates(trials: Mapping[str, Trial]) -> dict[str, float]:
    """Row → about how many seconds a run takes, by a few steps of its network on random numbers."""
    measured = {step: step_seconds(step) for step in {trial.step for trial in trials.values()}}
    return {row: trial.steps * measured[trial.step] for row, trial in trials.items()}


def step_seconds(step: Step) -> float:
    """The fastest of a few training steps on random numbers, with one thread as in a run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = build_network(step.network, step.num_classes).to(device).train()
    optimizer = torch.optim.Adam(model.parameters())
    images = torch.rand(step.images, model.channels, *step.shape, device=device)
    before, seconds = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for _ in range(STEPS + 1):
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = model(images)[1].float().square().mean()
            loss.backward()
            optimizer.step()
            loss.item()  # waits for a GPU
            seconds.append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return min(seconds[1:])


def fitting_processes(trials: Mapping[str, Trial]) -> int:
    """Runs that cores and memory bear at the same time, at least one."""
    need = max(step_bytes(t.step.network, t.step.num_classes, t.step.images, t.step.shape) for t in trials.values())
    fitting = [len(os.sched_getaffinity(0)), psutil.virtual_memory().available / (PROCESS + need)]
    if torch.cuda.is_available():
        fitting.append(torch.cuda.mem_get_info()[0] / (PROCESS + HALF * need))
    return max(1, int(min(fitting)))
