"""One job at the server: it opens the state of the run, asks for the census, and lets the workflow do its rounds."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmend.basics.files import failing_disk, locked, sweep
from fedmend.errors import FedMendError
from fedmend.learning.networks import initial_network
from fedmend.learning.weights import is_global_model, weights_file
from fedmend.messages import CENSUS, Question
from fedmend.method import Workflow
from fedmend.records.package_files import is_package
from fedmend.records.progress import Progress
from fedmend.server.census import Census, read_census
from fedmend.server.checkpoint import Checkpoint
from fedmend.server.evaluating import EvaluatingFederation, Evaluations
from fedmend.server.exchange import Exchange, valid_results
from fedmend.server.federation import RunningFederation, RunSettings
from fedmend.server.fingerprint import fingerprint, other_data
from fedmend.server.packing import Start, start_from_package
from fedmend.server.refit import check_refit, refit
from fedmend.server.run_log import RunLog
from fedmend.server.transport import Transport

LOG = logging.getLogger("fedmend.run")
PREDECESSOR = 30.0  # seconds until the process of a job whose server was killed has ended too


@dataclass(kw_only=True)
class ServerJob:
    """One job of a run, at the server.

    Attributes:
        settings: the job's settings of the server.
        workflow: the algorithm.
        transport: reaches the sites.
        state_dir: where the server's state is kept.
        folder: run folder for records and report.
        app_dir: where a relative ``weights`` file starts.
        weights_dir: the server's folder of weights.
        own_machine: whoever submits the job runs the server too; else ``weights`` is below ``weights_dir``.
        described: all settings of the job, for ``run.json``.
        made_by: what else a job that goes on must share: submitter, classes of components.
        job_id: FLARE's name of the job.
        prefix: what lines about a run on synthetic data begin with; empty on other data, and before the census.
        federation: what the workflow talks to, with the global model; None before the census.
    """

    settings: RunSettings
    workflow: Workflow
    transport: Transport
    state_dir: Path
    folder: Path
    app_dir: Path
    weights_dir: Path
    described: Mapping[str, object]
    made_by: Mapping[str, object] = field(default_factory=dict)
    job_id: str = ""
    own_machine: bool = False
    prefix: str = field(default="", init=False)
    federation: RunningFederation | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.workflow.check_rounds(self.settings.num_rounds)
        self._spec = self.settings.spec

    def run(self) -> None:
        """Census, the workflow's rounds, final evaluation and report.

        Raises:
            FedMendError: bad input or too few valid results, in one sentence.
        """
        state_dir = self.state_dir / self._spec.run_name / "server"
        progress, in_use = Progress(self.folder, self.transport.show), state_dir / "in_use"
        with progress, failing_disk("server"), locked(in_use, patience=PREDECESSOR) as alone:
            if not alone:
                run = f"run_name {self.settings.run_name!r}"
                raise FedMendError(f"{run}: expected no other job of this run, one still runs; abort it first")
            sweep(state_dir)
            self.federation = self._begun(state_dir, progress)
            self.workflow.run(self.federation)
            if self.settings.refit:
                refit(self.federation, self.workflow)
            self.federation.finish()

    def _begun(self, state_dir: Path, progress: Progress) -> RunningFederation:
        """Census of all sites, then the initial model or the checkpoint of an earlier job of this run."""
        chosen, workflow, spec = self.settings, self.workflow, self._spec
        start = self._start()
        components = {"workflow": type(workflow).__name__, **self.made_by}
        made_by = fingerprint(asdict(chosen), self.described, components, weights=start.file)
        checkpoint = Checkpoint(state_dir, chosen.run_name, made_by, chosen.allow_changes, job=self.job_id)
        saved = checkpoint.load()
        log = RunLog(self.folder, spec.classes, checkpoint, self.transport.stream, progress)
        LOG.info("census: every site opens and checks its data")
        there, without = self.transport.sites(), set(chosen.without)
        if unknown := sorted(without - set(there)):
            log.warn(f"job variable without: expected names of connected sites, got also {unknown}")
        task, marks = chosen.census_task, saved.marks if saved else {}
        chosen_sites = tuple(s for s in sorted(there) if s not in without)
        asked = {s: replace(task, ledger_mark=marks.get(s, ""), sites=chosen_sites) for s in chosen_sites}
        exchange = Exchange(self.transport, progress, workflow, max_update_factor=chosen.max_update_factor)
        question = Question(CENSUS, {}, asked, replace(spec, mark=checkpoint.mark))
        results = valid_results(exchange, log, question, chosen.needed(len(asked)))
        census = read_census(results, spec.classes, goes_on=saved is not None)
        start.check(spec, census)
        if chosen.refit:
            check_refit(workflow, census)
        log.counted(census, warm_start=start.trained)
        self.prefix = log.prefix
        workflow.check_sites(len(census.facts))
        network = initial_network(spec.network, spec.classes, spec.seed, start.file if saved is None else "")
        features: Any = network.num_features
        letters = {"C": len(spec.classes), "R": len(census.kind.row_names(spec.classes)), "F": features}
        if asked_for := workflow.evaluation:
            letters |= {"G": len(asked_for.groups), "K": int(np.prod(census.kind.counts_shape(len(spec.classes))))}
        if saved is not None:
            where = f"run_name {chosen.run_name!r}"
            log.resume(saved, other_data(saved.data, census.data, chosen.allow_changes, where))
        exchange = replace(exchange, census=census, letters=letters)
        given = (chosen, exchange, census, log, checkpoint, network, saved, self.described, start)
        return (
            self._evaluating(EvaluatingFederation(*given), census) if workflow.evaluation else RunningFederation(*given)
        )

    def _evaluating(self, federation: EvaluatingFederation, census: Census) -> EvaluatingFederation:
        """With the packages, all of which are read before anybody waits for one."""
        asked = self.workflow.evaluation
        federation.evaluations = Evaluations(self.weights_dir, self._spec, census, asked.groups, asked.split)
        for package in asked.names:
            federation.evaluations.read(package)
        return federation

    def _start(self) -> Start:
        """The initial weights that the job names."""
        weights, network, own = self.settings.weights, self.settings.network, self.own_machine
        weights = weights_file(weights, network, self.app_dir, self.weights_dir, own_machine=own)
        if weights and is_package(weights):
            return start_from_package(weights)
        return Start(weights, bool(weights) and is_global_model(weights))
