"""A federation in one process: no FLARE, no messages, the same numbers to the last digit.

Every site answers through the code that runs in FLARE's site process (:class:`fedmend.site.worker.SiteWorker`), and
what it answers loses the same rows to ``min_count``, and is written into the same register, as in the site's
ReportGuard. Sites run side by side in threads; each has its own model and its own random numbers, and models are
averaged in the order of site names, so the result depends on neither threads nor speed.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedmend.basics.files import write_atomically
from fedmend.basics.state import torch_bytes
from fedmend.errors import FedMendError, said_by
from fedmend.fields import counted, hold_back
from fedmend.learning.heads import HEAD_FIELDS
from fedmend.local.metering import Meter
from fedmend.messages import CENSUS, KEEP, Question, SiteResult
from fedmend.method import LocalMethod, Workflow
from fedmend.records.run_folder import BEST_MODEL, MODEL, MODELS, RUN_FOLDER
from fedmend.server.census import Census, read_census
from fedmend.server.federation import RunSettings
from fedmend.server.job import ServerJob
from fedmend.server.transport import Transport
from fedmend.site.config import SiteConfig
from fedmend.site.keeping import keep
from fedmend.site.register import note, told
from fedmend.site.worker import SiteSettings, SiteWorker


class LocalTransport(Transport):
    """Sites as function calls.

    Args:
        method: client half.
        settings: the job's settings of the sites.
        configs: site → its ``fedmend.json``.
        models: folder of the model files.
        threads: sites that run at the same time; 0: one per core.
        meter: counts what travels and what sites do.
        watch: gets the picture of the run, see :mod:`fedmend.records.progress`.
    """

    def __init__(
        self,
        method: LocalMethod,
        settings: SiteSettings,
        configs: Mapping[str, SiteConfig],
        *,
        models: Path,
        threads: int = 0,
        meter: Meter | None = None,
        watch: Callable[[Mapping], None] | None = None,
    ):
        self._meter, self._watch = meter, watch
        self._configs, self._models, self._threads = dict(configs), models, threads or os.cpu_count() or 1
        self._counted = counted({**method.FIELDS, **HEAD_FIELDS})
        self._stopped = threading.Event()
        self._workers = {name: SiteWorker(method, settings) for name in configs}

    def sites(self) -> list[str]:
        return sorted(self._configs)

    def exchange(
        self, question: Question, receive: Callable[[str, SiteResult | FedMendError], None], enough: Callable[[], bool]
    ) -> None:
        """See :class:`fedmend.server.transport.Transport`; every site answers, so nobody waits for ``enough``."""
        before = torch.get_num_threads()
        if self._meter:
            self._meter.asked(question)
        with ThreadPoolExecutor(self._threads) as pool:
            tasks = {pool.submit(self._answer, site, question): site for site in question.tasks}
            try:
                for task in as_completed(tasks):
                    receive(tasks[task], task.result())
            except BaseException:
                self._stopped.set()  # the other sites end with their batch
                raise
            finally:
                torch.set_num_threads(before)

    def _answer(self, site: str, question: Question) -> SiteResult | FedMendError:
        config = self._configs[site]
        with self._meter.working(site) if self._meter else contextlib.nullcontext():
            if question.name == KEEP:
                result = keep(site, question, config, None)
            else:
                result = self._workers[site].answer(site, question, config, stop=self._stopped.is_set)
        result.site = site
        try:
            result.report, _ = hold_back(result.report, self._counted, config.min_count)
            about = {"job": "", "run": question.run.run_name, "task": question.name, **told(result)}
            note(config.state_dir, site, about)
        except FedMendError as e:
            return FedMendError(said_by(site, e))
        if self._meter:
            self._meter.answered(site, result)
        return result

    def save_model(self, weights: Mapping[str, np.ndarray], *, best: bool = False) -> str:
        self._models.mkdir(parents=True, exist_ok=True)
        file = self._models / (BEST_MODEL if best else MODEL)
        tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
        with write_atomically(file) as temporary:
            temporary.write_bytes(torch_bytes({"model": tensors}))
        return str(file)

    def stream(self, tag: str, value: float, step: int) -> None:
        return  # nobody watches: the records have every number

    def show(self, picture: Mapping[str, object]) -> None:
        if self._watch:
            self._watch(picture)


def run_locally(
    *,
    workflow: Workflow,
    method: LocalMethod,
    run: Mapping[str, Any],
    site: Mapping[str, Any],
    sites: Sequence[str],
    workspace: Path,
    config_of: Callable[[str], SiteConfig],
    settings: Mapping[str, Any],
    threads: int = 0,
    app_dir: Path | None = None,
    meter: Meter | None = None,
    watch: Callable[[Mapping], None] | None = None,
) -> Path:
    """Runs a job in this process.

    Args:
        workflow: server half.
        method: client half.
        run: fields of :class:`fedmend.server.federation.RunSettings`.
        site: arguments of :meth:`fedmend.site.worker.SiteSettings.of`.
        sites: names.
        workspace: records and models go below it, laid out as by FLARE's simulator.
        config_of: site, or ``server`` → its ``fedmend.json``.
        settings: all settings of the job, for ``run.json``.
        threads: sites that run at the same time; 0: one per core.
        app_dir: the job's app folder, where a relative ``weights`` file starts; None: the workspace.
        meter: counts what travels and what sites do.
        watch: gets the picture of the run whenever it has changed, see :mod:`fedmend.records.progress`.

    Returns:
        The run folder.

    Raises:
        FedMendError: bad input, or a site's result was refused and too few are left.
    """
    records = workspace / RUN_FOLDER
    models, configs = records.with_name(MODELS), {name: config_of(name) for name in sites}
    chosen, transport = _set_up(run, method, site, configs, models=models, threads=threads, meter=meter, watch=watch)
    server = config_of("server")
    job = ServerJob(
        settings=chosen,
        workflow=workflow,
        transport=transport,
        state_dir=server.state_dir,
        folder=records,
        app_dir=app_dir or workspace,
        weights_dir=server.weights_dir,
        own_machine=True,
        described=settings,
        made_by={"method.class": f"{type(method).__module__}.{type(method).__qualname__}"},
    )
    job.run()
    return records


def census_locally(
    *,
    method: LocalMethod,
    run: Mapping[str, Any],
    site: Mapping[str, Any],
    sites: Sequence[str],
    workspace: Path,
    config_of: Callable[[str], SiteConfig],
) -> Census:
    """Asks all sites what they have, as a run does before its first round; arguments as of :func:`run_locally`.

    Raises:
        FedMendError: what a run would refuse at its census.
    """
    configs = {name: config_of(name) for name in sites}
    chosen, transport = _set_up(run, method, site, configs, models=workspace, threads=1)
    found: dict[str, SiteResult] = {}

    def receive(name: str, answer: SiteResult | FedMendError) -> None:
        if isinstance(answer, FedMendError) or answer.error:
            raise FedMendError(str(answer) if isinstance(answer, FedMendError) else answer.error)
        found[name] = answer

    question = Question(CENSUS, {}, dict.fromkeys(sorted(sites), chosen.census_task), chosen.spec)
    transport.exchange(question, receive, lambda: False)
    return read_census(dict(sorted(found.items())), question.run.classes, goes_on=False)


def _set_up(
    run: Mapping[str, Any],
    method: LocalMethod,
    site: Mapping[str, Any],
    configs: Mapping[str, SiteConfig],
    **how: Any,
) -> tuple[RunSettings, LocalTransport]:
    """The job's settings of the server, and its sites."""
    if unknown := sorted(set(run) - (known := {f.name for f in fields(RunSettings)})):
        raise FedMendError(f"job: expected the settings {sorted(known)} of a run, got also {unknown}")
    try:
        return RunSettings(**run), LocalTransport(method, SiteSettings.of(**site), configs, **how)
    except (TypeError, ValueError) as e:
        raise FedMendError(f"job: expected settings of a run, got others: {e}") from None
