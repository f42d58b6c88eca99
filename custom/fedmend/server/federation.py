"""A federation at work: census, rounds, checkpoint and records, whatever carries the messages.

:class:`RunningFederation` is what a workflow talks to. A :class:`fedmend.server.transport.Transport` brings questions
to sites: FLARE's in :mod:`fl_components.controller`, function calls in :mod:`fedmend.local.local_federation`.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from fedmend.averaging import Fold
from fedmend.basics.files import failing_disk, locked
from fedmend.errors import FedMendError, said_by
from fedmend.fields import check_fields
from fedmend.learning.networks import initial_network
from fedmend.learning.weights import get_weights, weights_file
from fedmend.messages import CENSUS, COLLECT, EVALUATE, TRAIN, Question, RunSpec, SiteResult
from fedmend.method import Answer, Average, Federation, RoundTask, RowAverage, Workflow
from fedmend.records.progress import Progress
from fedmend.server.census import Census, read_census
from fedmend.server.checkpoint import Checkpoint
from fedmend.server.checks import Expected, check_result
from fedmend.server.fingerprint import fingerprint
from fedmend.server.run_log import RunLog
from fedmend.server.safety_net import SafetyNet
from fedmend.server.transport import Transport

LOG = logging.getLogger("fedmend.run")
PREDECESSOR = 30.0  # seconds until the process of a job whose server was killed has ended too


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The job's settings of the server.

    Attributes:
        run_name: names state and ledgers; a job submitted again under it goes on where it stopped.
        classes: C class names; they fix the order of all label columns.
        network: backbone name, see :mod:`fedmend.learning.networks`.
        num_rounds: R communication rounds.
        seed: initial weights, shuffling and augmentation.
        weights: initial weights at the server, see :func:`fedmend.learning.weights.weights_file`; empty: random.
        min_sites: fewest valid results of a round; 0 = all that are asked.
        round_timeout: seconds that a round waits for sites; 0 = no limit.
        grace_period: seconds that a round goes on waiting for the others when ``min_sites`` sites have answered; 0 = as
            long as for the first.
        eval_every: the global model is evaluated in every n-th round and at the end.
        allow_changes: names of what the job changes on purpose in the run that it goes on with.
        without: names of connected sites that the job leaves out, e.g. one whose results are refused.
        max_update_factor: a site whose update is larger than this many times the median of the round is refused, see
            :func:`fedmend.server.safety_net.outliers`; 0 = none is.
        clip_update: largest L2 norm of a site's update, a larger one is scaled down; 0 = any.
        method: name of the method for report and log.
    """

    run_name: str
    classes: Sequence[str]
    network: str
    num_rounds: int
    seed: int = 0
    weights: str = ""
    min_sites: int = 0
    round_timeout: int = 0
    grace_period: int = 0
    eval_every: int = 1
    allow_changes: Sequence[str] = ()
    without: Sequence[str] = ()
    max_update_factor: float = 10.0
    clip_update: float = 0.0
    method: str = ""

    def __post_init__(self):
        if self.num_rounds < 1:
            raise ValueError(f"expected num_rounds >= 1, got {self.num_rounds}")
        if not self.classes or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"expected different class names, got {self.classes!r:.200}")
        if self.eval_every < 1 or min(self.min_sites, self.round_timeout, self.grace_period) < 0:
            raise ValueError("expected eval_every >= 1, min_sites >= 0, round_timeout >= 0, grace_period >= 0")
        if not (self.max_update_factor == 0 or self.max_update_factor >= 1) or not self.clip_update >= 0:
            raise ValueError("expected max_update_factor 0 or >= 1 and clip_update >= 0")


class RunningFederation(Federation):
    """See :class:`fedmend.method.Federation`.

    Args:
        settings: the job's settings of the server.
        workflow: the algorithm.
        transport: reaches the sites.
        state_dir: where the server's state is kept.
        folder: run folder for records and report.
        app_dir: where a relative ``weights`` file starts.
        weights_dir: the server's folder of ImageNet weights.
        described: all settings of the job, for ``run.json``.
        made_by: what else a job that goes on must share: submitter, classes of components.
    """

    def __init__(
        self,
        settings: RunSettings,
        workflow: Workflow,
        transport: Transport,
        *,
        state_dir: Path,
        folder: Path,
        app_dir: Path,
        weights_dir: Path,
        described: Mapping[str, object],
        made_by: Mapping[str, object] | None = None,
    ):
        workflow.check_rounds(settings.num_rounds)
        self._settings, self._workflow, self._transport = settings, workflow, transport
        self._folder, self._described = folder, described
        self._weights_dirs = app_dir, weights_dir
        self._progress = Progress(folder, transport.show)
        self._made_by = {"workflow": type(workflow).__name__, **(made_by or {})}
        self._spec = RunSpec(settings.run_name, tuple(settings.classes), settings.network, settings.seed)
        self._state_dir = state_dir / settings.run_name / "server"
        self.classes, self.num_rounds, self.seed = self._spec.classes, settings.num_rounds, settings.seed
        self.sites, self.model, self.memory = {}, {}, workflow.Memory()
        self._census: Census | None = None
        self._round, self._done = 0, None  # the round at work; rounds done, None before the first
        self._evaluated = -1  # last round in which the model was evaluated
        self._trained: set[str] = set()  # sites that have trained in this round
        self._marks: dict[str, str] = {}  # site → latest mark of its ledger
        self._letters: dict[str, int] = {}  # sizes of the letters in the shapes of fields

    @property
    def kind(self) -> str:
        """Kind of labels of all sites, by the census."""
        return self._census.kind.name

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows of labels."""
        return self._census.kind.row_names(self.classes)

    def run(self) -> None:
        """Census, the workflow's rounds, final evaluation and report.

        Raises:
            FedMendError: bad input or too few valid results, in one sentence.
        """
        in_use = self._state_dir / "in_use"
        with self._progress, failing_disk("server"), locked(in_use, patience=PREDECESSOR) as alone:
            if not alone:
                raise FedMendError(
                    f"run_name {self._spec.run_name!r}: expected no other job of this run, one still runs; abort it"
                    " first"
                )
            self._start()
            self._workflow.run(self)
            self._finish()

    # ---- the words that a workflow is written in --------------------------------------------------------------------
    def rounds(self, total: int | None = None) -> Iterator[int]:
        """See :class:`fedmend.method.Federation`."""
        if total is not None and total != self.num_rounds:
            self._workflow.check_rounds(total)
            self.num_rounds = total
            self._log.start(self._describe())
        self._checkpoint.check_rounds(self._first, self.num_rounds)
        for r in range(self._first, self.num_rounds):
            self._round, self._done = r, r
            self._trained.clear()
            yield r
            self._save(r + 1)
        self._done = self.num_rounds

    def train(
        self,
        stage: str,
        *,
        sites: Sequence[str] | None = None,
        roles: Mapping[str, str] | None = None,
        knowledge: Mapping[str, np.ndarray] | None = None,
        average: Average | None = None,
        rows: RowAverage | None = None,
    ) -> dict[str, Answer]:
        """See :class:`fedmend.method.Federation`. Sites evaluate the received model first, where a round evaluates;
        where only some are asked to train, all are asked to evaluate before."""
        started, r = time.monotonic(), self._round
        asked = sorted(self.sites if sites is None else sites)
        if wrong := sorted((set(asked) - set(self.sites)) | (set(asked) & self._trained)):
            raise FedMendError(f"round {r}: expected known sites that have not trained in it yet, got {wrong}")
        self._trained.update(asked)
        due = r % self._settings.eval_every == 0 and self._evaluated < r
        apart = due and asked != sorted(self.sites)
        metrics = self._evaluate() if apart else {}
        tasks, fold = self._tasks(stage, asked, roles, knowledge), Fold(average, rows)
        with self._safety_net() as net:
            results = self._ask(TRAIN, tasks, evaluate=due and not apart, net=net)
            for site, result in results.items():
                fold.take(site, result.samples, result.report, net.take(site))
        if sites is None:
            self._log.annotators(results, r)
        metrics |= self._log.results(results, r, stage, self.model, time.monotonic() - started)
        if due:
            self._evaluated = r
        model, shares = fold.result()
        net.check(model, f"round {r}, average of {', '.join(results)}")
        self.model = {name: model[name] for name in self.model}
        self._done = r + 1
        self._log.moved(net.moved(results), r)
        self._log.progress(r, self.num_rounds, stage, metrics, len(results), time.monotonic() - started)
        return {site: Answer(result.report, shares[site]) for site, result in results.items()}

    def collect(
        self,
        stage: str,
        *,
        sites: Sequence[str] | None = None,
        roles: Mapping[str, str] | None = None,
        knowledge: Mapping[str, np.ndarray] | None = None,
        at_least: int = 0,
    ) -> dict[str, Answer]:
        """See :class:`fedmend.method.Federation`."""
        asked = sorted(self.sites if sites is None else sites)
        tasks = self._tasks(stage, asked, roles, knowledge, training=False)
        results = self._ask(COLLECT, tasks, needed=at_least)
        return {site: Answer(result.report) for site, result in results.items()}

    def record(self, what: str, value: object) -> None:
        """See :class:`fedmend.method.Federation`."""
        self._log.decision(what, value, self._done)

    def warn(self, text: str) -> None:
        """See :class:`fedmend.method.Federation`."""
        self._log.warn(text)

    def generator(self, purpose: str) -> np.random.Generator:
        """See :class:`fedmend.method.Federation`."""
        return np.random.default_rng(np.random.SeedSequence([self.seed, self._round, *purpose.encode()]))

    @property
    def mark(self) -> str:
        """What every line about synthetic data begins with."""
        return "PHANTOM " if self._census and self._census.phantom else ""

    # ---- behind them ------------------------------------------------------------------------------------------------
    def _start(self) -> None:
        """Census of all sites, then the initial model or the checkpoint of an earlier job of this run."""
        chosen = self._settings
        weights = weights_file(chosen.weights, chosen.network, *self._weights_dirs)
        made_by = fingerprint(asdict(chosen), self._described, self._made_by, weights=weights)
        self._checkpoint = Checkpoint(self._state_dir, chosen.run_name, made_by, chosen.allow_changes)
        self._log = RunLog(self._folder, self.classes, self._checkpoint, self._transport.stream, self._progress)
        saved = self._checkpoint.load()
        LOG.info("census: every site opens and checks its data")
        self._marks = saved.marks if saved else {}
        there, without = self._transport.sites(), set(chosen.without)
        if unknown := sorted(without - set(there)):
            self.warn(f"job variable without: expected names of connected sites, got also {unknown}")
        asked = self._tasks(CENSUS, [site for site in there if site not in without], training=False)
        self._census = read_census(self._ask(CENSUS, asked), self.classes, goes_on=saved is not None)
        self._log.census = self._census
        self.sites = self._census.facts
        self._workflow.check_sites(len(self.sites))
        self._network = initial_network(self._spec.network, self.classes, self.seed, weights if saved is None else "")
        self._letters = {"C": len(self.classes), "R": len(self.rows), "F": self._network.num_features}
        if saved is None:
            self.model, self._first = {k: v.numpy().copy() for k, v in get_weights(self._network).items()}, 0
        else:
            self.model, self._first = saved.model, saved.done
            self.memory = self._workflow.Memory(**saved.memory)
            self._log.resume(saved)
        self._round = self._first
        self._log.start(self._describe())

    def _describe(self) -> dict:
        return {
            "run_name": self._spec.run_name,
            "method": self._settings.method or type(self._workflow).__name__,
            "phantom": self._census.phantom,
            "task": self.kind,
            "classes": list(self.classes),
            "num_rounds": self.num_rounds,
            "warmup_rounds": self._workflow.warmup_rounds,
            "seed": self.seed,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "sites": self._census.described,
            "settings": dict(self._described),
        }

    def _finish(self) -> None:
        """Evaluates and saves the final model, saves the best one, writes the report and says where everything is."""
        files = {"global model": self._transport.save_model(self.model)}  # first: the evaluation may fail
        self._round = self.num_rounds
        self._evaluate()
        if (best := self._checkpoint.best_model()) is not None:
            files["best model"] = self._transport.save_model(best, best=True)
        self._log.finish(files)
        self._save(self.num_rounds, finished=True)

    def _evaluate(self) -> dict:
        """All sites evaluate the global model; split → metrics."""
        started = time.monotonic()
        results = self._ask(EVALUATE, self._tasks(EVALUATE, self.sites, training=False), evaluate=True)
        return self._log.results(results, self._round, EVALUATE, self.model, time.monotonic() - started)

    def _save(self, done: int, *, finished: bool = False) -> None:
        self._checkpoint.save(done, self.model, self.memory, self._log.dump(), finished=finished, marks=self._marks)

    def _safety_net(self) -> SafetyNet:
        chosen = self._settings
        limits = {"factor": chosen.max_update_factor, "clip": chosen.clip_update}
        return SafetyNet(self.model, self._network, self._state_dir / "round", **limits)

    def _tasks(
        self,
        stage: str,
        sites: Collection[str],
        roles: Mapping[str, str] | None = None,
        knowledge: Mapping[str, np.ndarray] | None = None,
        *,
        training: bool = True,
    ) -> dict[str, RoundTask]:
        known = {name: np.asarray(value) for name, value in (knowledge or {}).items()}
        check_fields(known, self._workflow.KNOWLEDGE, self._letters, f"{stage}: knowledge for the sites,")
        task = RoundTask(stage, self._round, self.num_rounds, known, seed=self.seed, training=training)
        roles, marks = roles or {}, self._marks
        return {s: replace(task, role=roles.get(s, ""), ledger_mark=marks.get(s, "")) for s in sorted(sites)}

    def _ask(
        self,
        name: str,
        tasks: Mapping[str, RoundTask],
        *,
        evaluate: bool = False,
        net: SafetyNet | None = None,
        needed: int = 0,
    ) -> dict[str, SiteResult]:
        """Asks the sites and returns the valid results in sorted site order; trained models are in the ``net``."""
        if not tasks:
            raise FedMendError(f"{name}: expected at least one site to ask, got none")
        sites, round_num = sorted(tasks), next(iter(tasks.values())).round_num
        needed = needed or max(min(self._settings.min_sites or len(sites), len(sites)), 1)
        results: dict[str, SiteResult] = {}
        refused: dict[str, str] = {}

        def receive(site: str, answer: SiteResult | FedMendError) -> None:
            if site in results or site in refused or site not in tasks:
                return
            self._progress.answered(site, name)
            try:
                self._check(name, tasks[site], answer)
                if net:
                    net.check(answer.weights, f"{site}: result of round {round_num}")
            except FedMendError as e:
                refused[site] = said_by(site, e)
                return
            if net:
                net.put(site, answer.weights)
            answer.weights = {}
            results[site] = answer

        self._progress.asked(name, next(iter(tasks.values())).stage, round_num, sites)
        question = Question(name, {} if name == CENSUS else self.model, tasks, self._spec, evaluate)
        self._transport.exchange(question, receive, lambda: len(results) >= needed)
        for site, reason in net.outliers().items() if net else ():
            refused[site] = f"{site}: result of round {round_num}, {reason}"
            del results[site]
        for site in sorted(set(sites) - set(results) - set(refused)):
            refused[site] = f"{site}: {name}: expected a result, got none"
        for site, reason in sorted(refused.items()):
            self._log.decision("refused", {"site": site, "reason": reason}, round_num)
            self.warn(reason)
        if len(results) < needed:
            raise FedMendError(
                f"{name} of round {round_num}: expected valid results from {needed} sites, got {len(results)}: "
                + "; ".join(refused[site] for site in sorted(refused))
            )
        self._marks |= {site: result.ledger_mark for site, result in results.items() if result.ledger_mark}
        return {site: results[site] for site in sorted(results)}

    def _check(self, name: str, task: RoundTask, answer: SiteResult | FedMendError) -> None:
        if isinstance(answer, FedMendError):
            raise answer
        expected = Expected(round_num=task.round_num, num_classes=len(self.classes))
        if name != CENSUS:
            expected = replace(
                expected,
                weights=self.model if name == TRAIN else None,
                sizes=self._census.sizes[answer.site],
                kind=self._census.kind,
                fields=self._workflow.FIELDS,
                letters=self._letters,
            )
        check_result(answer, expected)
        if name in (TRAIN, COLLECT):
            try:
                self._workflow.check(task.stage, answer.report)
            except FedMendError as e:  # which knows no site: a word that begins it is never the name of one
                raise FedMendError(f"{answer.site}: {e}") from None
