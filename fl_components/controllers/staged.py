"""StagedController: what all stage-wise controllers share. A subclass's ``rounds()`` reads like its paper's algorithm."""

import datetime
import json
import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.utils.analytix_utils import create_analytic_dxo, send_analytic_dxo
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.workflows.model_controller import ModelController
from nvflare.fuel.utils.memory_utils import cleanup_memory

from fedmend.data.manifest import MULTILABEL, SEGMENTATION, SINGLELABEL
from fedmend.errors import FedMendError
from fedmend.evaluation import merged_metrics
from fedmend.files import locked
from fedmend.methods.base import Report, RoundTask
from fedmend.networks import get_weights, initial_network
from fedmend.records import RunRecords
from fedmend.reporting import summary_text, write_report
from fedmend.state import StateStore
from fl_components.aggregators import SampleWeightedAggregator
from fl_components.console import quiet_console
from fl_components.payload import (
    CENSUS,
    COLLECT,
    EVALUATE,
    TRAIN,
    RunCard,
    SiteResult,
    check_result,
    pack_task,
    unpack_result,
)
from fl_components.simulate import STRUCTURE
from fl_components.site_config import load_site_config

LOG = logging.getLogger("fedmend.run")
RESULTS_FOLDER = "fedmend"
BEST_SPLITS = ("val", "test")  # the first that there is
BEST_METRIC = {MULTILABEL: "auc", SINGLELABEL: "bacc", SEGMENTATION: "dice"}
Knowledge = Mapping[str, np.ndarray]
POLL = 0.1  # seconds
PREDECESSOR = 30.0  # seconds until the process of a job whose server was killed has ended too


class StagedController(ModelController):
    """Rounds with validation of every result, records, checkpoint and best model.

    Args:
        run_name: names state and ledgers; a job submitted again under it goes on where it stopped.
        classes: C class names; they fix the order of all label columns.
        network: backbone name, see :mod:`fedmend.networks`.
        num_rounds: R communication rounds.
        warmup_rounds: rounds of the first stage, 1 <= t1 <= R.
        seed: initial weights, shuffling and augmentation.
        weights: local file with initial weights at the server, or empty.
        min_sites: fewest valid results of a round; 0 = all sites that passed the census.
        round_timeout: seconds that a round waits for sites; 0 = no limit.
        grace_period: seconds that a round goes on waiting for the others when ``min_sites`` sites have answered; 0 = as long as
            for the first.
        eval_every: the global model is evaluated in every n-th round and at the end.
        method: name of the method for report and log.
    """

    def __init__(
        self,
        *,
        run_name: str,
        classes: list[str],
        network: str,
        num_rounds: int,
        warmup_rounds: int = 1,
        seed: int = 0,
        weights: str = "",
        min_sites: int = 0,
        round_timeout: int = 0,
        grace_period: int = 0,
        eval_every: int = 1,
        method: str = "",
    ):
        super().__init__(ignore_result_error=True, task_check_period=0.1)
        if not 1 <= warmup_rounds <= num_rounds:
            raise ValueError(f"expected 1 <= warmup_rounds <= num_rounds, got {warmup_rounds} and {num_rounds}")
        if not classes or len(set(classes)) != len(classes):
            raise ValueError(f"expected different class names, got {classes}")
        if eval_every < 1 or min_sites < 0 or round_timeout < 0 or grace_period < 0:
            raise ValueError("expected eval_every >= 1, min_sites >= 0, round_timeout >= 0, grace_period >= 0")
        self.card = RunCard(run_name, tuple(classes), network, seed)
        self.num_rounds, self.warmup_rounds = num_rounds, warmup_rounds
        self._weights_file, self._min_sites, self._round_timeout = weights, min_sites, round_timeout
        self._eval_every, self._method, self._grace_period = eval_every, method, grace_period
        self.annotated: dict[str, np.ndarray] = {}  # site → (C,) bool, from the census
        self.positives: dict[str, np.ndarray] = {}  # site → (C,) positive training samples, from the census
        self.samples: dict[str, int] = {}  # site → training samples, from the census
        self.roles: dict[str, str] = {}  # site → role; each site learns only its own
        self._without_annotator: list[str] = []  # classes of which every annotator was absent in the last round
        self.task = MULTILABEL  # what the census says
        self._phantom = False

    def run(self) -> None:
        """Does the rounds; bad input ends the job with its sentence alone."""
        quiet_console(self.fl_ctx)
        try:
            folder = load_site_config(self.fl_ctx).state_dir / self.card.run_name / "server"
            self._state = StateStore(folder)
            with locked(folder / "in_use", patience=PREDECESSOR) as alone:
                if not alone:
                    raise FedMendError(
                        f"run_name {self.card.run_name!r}: expected no other job of this run, one still runs; abort it first"
                    )
                self.rounds()
        except FedMendError as e:
            LOG.error("%srun stopped: %s", self._mark, e)
            self.panic(str(e))

    @abstractmethod
    def rounds(self) -> None:
        """The paper's algorithm."""

    # ---- the words that rounds() is written in -------------------------------------------------------------------------

    def start_run(self) -> tuple[FLModel, Knowledge, int]:
        """Census of all sites, then the initial model or the checkpoint of an earlier job of this run.

        Returns:
            Global model, knowledge of the last round, first round to do.
        """
        self._started = time.monotonic()
        self.records = RunRecords(Path(self.get_run_dir()) / RESULTS_FOLDER)
        checkpoint = self._state.load("checkpoint")
        self._census(goes_on=checkpoint is not None)
        best = self._state.load("best")
        self._best = None if best is None else (best["value"], best["round"])
        if checkpoint is None:
            weights_file = str(Path(self.get_app_dir()) / self._weights_file) if self._weights_file else ""
            network = initial_network(self.card.network, self.card.classes, self.card.seed, weights_file)
            weights, knowledge, self._first_round = get_weights(network), {}, 0
        else:
            self._check_checkpoint(checkpoint)
            weights, knowledge, self._first_round = checkpoint["weights"], checkpoint["knowledge"], checkpoint["round"]
            self.roles = checkpoint["roles"]
            self.records.restore(checkpoint["records"])
            self.record("resumed", {"at_round": self._first_round})
        self.records.start(self._describe())
        model = FLModel(params={k: v.numpy() for k, v in weights.items()}, params_type=ParamsType.FULL)
        return model, {k: v.numpy() for k, v in knowledge.items()}, self._first_round

    def train_round(
        self,
        model: FLModel,
        stage: str,
        round_num: int,
        knowledge: Knowledge | None = None,
        aggregator: ModelAggregator | None = None,
        check_report: Callable[[Report], None] = lambda report: None,
    ) -> tuple[FLModel, dict[str, SiteResult]]:
        """One communication round: sites evaluate the received model, train it, and their models are aggregated.

        Args:
            model: global model.
            stage: the paper's word.
            round_num: 0 … R-1.
            knowledge: arrays for the sites; None: nothing.
            aggregator: default: weights N_k.
            check_report: raises FedMendError for a report that the method cannot use; that site's result is refused.

        Returns:
            The aggregated model, and the valid results by site in sorted order, without their weights.
        """
        started = time.monotonic()
        task = RoundTask(stage, round_num, self.num_rounds, knowledge or {}, seed=self.card.seed)
        evaluate = round_num % self._eval_every == 0
        aggregator = aggregator or SampleWeightedAggregator()
        results = self._ask(
            TRAIN, model, task, evaluate=evaluate, check_report=check_report, take=aggregator.accept_model
        )
        self._check_annotators(results, round_num)
        metrics = self._record_results(results, round_num, stage, model, time.monotonic() - started)
        merged = aggregator.aggregate_model()
        cleanup_memory()  # FLARE leaves models in reference cycles, and its threads would keep what was freed
        self._progress(round_num, stage, metrics, len(results), time.monotonic() - started)
        return merged, results

    def collect(
        self, model: FLModel, stage: str, round_num: int, *, at_least: int, check_report: Callable[[Report], None]
    ) -> dict[str, SiteResult]:
        """Reports about the global model, without training.

        Args:
            model: global model.
            stage: the paper's word.
            round_num: the round that comes next.
            at_least: sites that must answer; the others may be missing, whatever ``min_sites`` says.
            check_report: as in :meth:`train_round`.

        Returns:
            The valid results by site in sorted order.
        """
        task = RoundTask(stage, round_num, self.num_rounds, seed=self.card.seed)
        return self._ask(COLLECT, model, task, check_report=check_report, needed=at_least)

    def save_progress(
        self, model: FLModel, done_rounds: int, knowledge: Knowledge | None = None, *, finished: bool = False
    ) -> None:
        """Checkpoint after a round; a job of the same run_name continues behind it."""
        self._state.save(
            "checkpoint",
            {
                "round": done_rounds,
                "weights": {k: torch.from_numpy(v) for k, v in model.params.items()},
                "knowledge": {k: torch.from_numpy(np.asarray(v)) for k, v in (knowledge or {}).items()},
                "roles": self.roles,
                "records": self.records.dump(),
                "made_by": self._made_by(),
                "finished": finished,
            },
        )

    def _made_by(self) -> dict:
        return {
            "controller": type(self).__name__,
            "method": self._method,
            "classes": list(self.card.classes),
            "network": self.card.network,
            "seed": self.card.seed,
        }

    def _check_checkpoint(self, checkpoint: dict) -> None:
        where = f"run_name {self.card.run_name!r}"
        if checkpoint["finished"]:
            raise FedMendError(
                f"{where}: expected a new or an unfinished run, got a finished one; choose another run_name"
            )
        if different := [k for k, v in self._made_by().items() if checkpoint["made_by"][k] != v]:
            raise FedMendError(
                f"{where}: expected to go on with the same {', '.join(different)} as before, got others; choose another run_name"
            )

    def finish(self, model: FLModel) -> None:
        """Evaluates and saves the final model, saves the best one, writes the report and says where everything is."""
        self.save_model(model)  # first: an evaluation that fails must not cost the model
        started = time.monotonic()
        task = RoundTask(EVALUATE, self.num_rounds, self.num_rounds, seed=self.card.seed)
        results = self._ask(EVALUATE, model, task, evaluate=True)
        self._record_results(results, self.num_rounds, EVALUATE, model, time.monotonic() - started)
        files = {"global model": self._saved_file("global_model_file_name")}
        best = self._state.load("best")
        if best is not None:
            learnable = make_model_learnable({k: v.numpy() for k, v in best["weights"].items()}, {})
            self.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=True)
            self.event(AppEventType.GLOBAL_BEST_MODEL_AVAILABLE)
            files["best model"] = self._saved_file("best_global_model_file_name")
        folder = self.records.folder
        files["records"] = str(folder)
        self.records.finish(files, time.monotonic() - self._started)
        write_report(folder)
        self.save_progress(model, self.num_rounds, finished=True)
        for line in summary_text(folder).splitlines():
            LOG.info("%s%s", "" if line.startswith("PHANTOM") else self._mark, line)

    def record(self, what: str, value, round_num: int | None = None) -> None:
        """Adds a line to ``decisions.jsonl``."""
        self.records.decision(what, value, round_num)

    # ---- behind them ------------------------------------------------------------------------------------------------

    @property
    def _mark(self) -> str:
        return "PHANTOM " if self._phantom else ""

    def _ask(
        self,
        task_name: str,
        model: FLModel | None,
        task: RoundTask,
        *,
        evaluate: bool = False,
        check_report: Callable[[Report], None] = lambda report: None,
        take: Callable[[FLModel], None] = lambda reply: None,
        needed: int = 0,
    ) -> dict[str, SiteResult]:
        """Sends a task to the sites of the run and returns the valid results in sorted site order, without their weights.

        ``take`` is given every valid reply, in that order, as soon as all sites before it have answered: what depends on the
        order then does not depend on who is faster, and the server keeps only the models that came before their turn.
        """
        sites = sorted(self.annotated) or sorted(client.name for client in self.engine.get_clients())
        weights = {} if model is None else model.params
        needed = needed or max(min(self._min_sites or len(sites), len(sites)), 1)
        results, refused = {}, {}
        turn, early = deque(sites), {}  # early: site → valid reply that waits for its turn

        def receive(reply: FLModel) -> None:
            site = reply.meta["client_name"]
            if site in results or site in refused:
                return
            try:
                result = unpack_result(reply, site)
                check_result(
                    result,
                    round_num=task.round_num,
                    num_classes=len(self.card.classes),
                    weights=weights if task_name == TRAIN else None,
                    sizes=None if task_name == CENSUS else self._sizes[site],
                    task=self.task,
                )
                check_report(result.report)
            except FedMendError as e:
                refused[site] = str(e) if str(e).startswith(site) else f"{site}: {e}"
            else:
                result.weights = {}
                results[site], early[site] = result, reply
            while turn and (turn[0] in results or turn[0] in refused):
                if ready := early.pop(turn.popleft(), None):
                    take(ready)

        handlers = {"receive": receive, "enough": lambda: len(results) >= needed}
        self._send(task_name, weights, task, sites, evaluate=evaluate, **handlers)
        for site in turn:  # the first of them has not answered
            if site in early:
                take(early.pop(site))
        for site in sorted(set(sites) - set(results) - set(refused)):
            refused[site] = f"{site}: {task_name}: expected a result, got none"
        for site, reason in sorted(refused.items()):
            self.record("refused", {"site": site, "reason": reason}, task.round_num)
            LOG.warning("%s%s", self._mark, reason)
        if len(results) < needed:
            raise FedMendError(
                f"{task_name} of round {task.round_num}: expected valid results from {needed} sites, got {len(results)}: "
                + "; ".join(refused[site] for site in sorted(refused))
            )
        return {site: results[site] for site in sorted(results)}

    def _send(
        self,
        task_name: str,
        weights: dict,
        task: RoundTask,
        sites: list[str],
        *,
        evaluate: bool,
        receive: Callable[[FLModel], None],
        enough: Callable[[], bool],
    ) -> None:
        """One message per role, all at the same time, as no site may learn the role of another; hands over what comes back."""
        replies: deque[FLModel] = deque()  # filled by FLARE's threads
        roles = {site: self.roles.get(site, "") for site in sites}
        for role in sorted(set(roles.values())):
            self.broadcast_model(
                task_name=task_name,
                data=pack_task(weights, replace(task, role=role), self.card, evaluate=evaluate),
                targets=[site for site in sites if roles[site] == role],
                timeout=self._round_timeout,
                blocking=False,
                callback=replies.append,
            )
        # Who is cut off from the census is out of the whole job.
        grace = 0 if task_name == CENSUS else self._grace_period
        enough_since = None
        while self.get_num_standing_tasks() and not self.abort_signal.triggered:
            while replies:
                receive(replies.popleft())
            now = time.monotonic()
            if enough_since is None and enough():
                enough_since = now
            if grace and enough_since is not None and now - enough_since >= grace:
                self.cancel_all_tasks()
            time.sleep(POLL)
        if self.abort_signal.triggered:
            raise FedMendError(f"{task_name}: the job was aborted")
        while replies:
            receive(replies.popleft())

    def _census(self, *, goes_on: bool) -> None:
        """Asks every site what it annotates; opens, and so checks, all data before anybody trains.

        A run that goes on has learnt every class once; each of its rounds names the classes whose annotators are gone.
        """
        LOG.info("census: every site opens and checks its data")
        results = self._ask(CENSUS, None, RoundTask(CENSUS, 0, self.num_rounds))
        self._sites, self._sizes, found, kinds = {}, {}, {}, {}
        for site, result in results.items():
            census = result.census
            self.annotated[site] = np.asarray(census["annotated"], dtype=bool)
            self._phantom = self._phantom or bool(census["phantom"])
            self._sizes[site] = dict(census["sizes"])
            known = [c for c, flag in zip(self.card.classes, self.annotated[site], strict=True) if flag]
            self.positives[site], self.samples[site] = np.asarray(census["positives"]), result.samples
            positives = dict(zip(self.card.classes, self.positives[site].tolist(), strict=True))
            # A single-label column is annotated everywhere; a class that no sample of a site has is not known there.
            named = [c for c in known if positives[c]] if census["task"] == SINGLELABEL else known
            self._sites[site] = {"annotated": named, **census["sizes"], "positives": {c: positives[c] for c in known}}
            if "lesions" in census:
                self._sites[site]["lesions"] = census["lesions"].tolist()
            LOG.info("%s%s annotates %s, %s samples", self._mark, site, ", ".join(named), census["sizes"]["train"])
            kinds.setdefault(census["task"], []).append(site)
            found[site] = self.annotated[site] & (self.positives[site] > 0)
        if len(kinds) > 1:
            got = ", ".join(f"{kind} at {', '.join(named)}" for kind, named in sorted(kinds.items()))
            raise FedMendError(f"census: expected one kind of labels at all sites, got {got}")
        (self.task,) = kinds
        nowhere = [c for i, c in enumerate(self.card.classes) if not any(f[i] for f in found.values())]
        if nowhere and not goes_on:
            raise FedMendError(
                f"census: expected every class of the job to be annotated at a site, got none for {nowhere}"
            )

    def _check_annotators(self, present: Collection[str], round_num: int) -> None:
        """Names the classes of which no annotator took part in a round; the model forgets them while that lasts."""
        known = [self.annotated[site] & (self.positives[site] > 0) for site in present]
        missing = [c for c, found in zip(self.card.classes, np.any(known, axis=0), strict=True) if not found]
        if missing != self._without_annotator:
            self._without_annotator = missing
            self.record("classes_without_annotator", missing, round_num)
            words = (
                f"no site that annotates {', '.join(missing)} took part"
                if missing
                else "every class has an annotator again"
            )
            LOG.warning("%sround %d: %s", self._mark, round_num + 1, words)

    def _describe(self) -> dict:
        settings = {}
        for file in sorted(Path(self.get_app_dir()).glob("config/config_fed_*.json")):
            content = json.loads(file.read_text())
            settings |= {k: v for k, v in content.items() if k not in STRUCTURE}
        return {
            "run_name": self.card.run_name,
            "method": self._method or type(self).__name__,
            "phantom": self._phantom,
            "task": self.task,
            "classes": list(self.card.classes),
            "num_rounds": self.num_rounds,
            "warmup_rounds": self.warmup_rounds,
            "seed": self.card.seed,
            "started": datetime.datetime.now().isoformat(timespec="seconds"),
            "sites": self._sites,
            "settings": settings,
        }

    def _record_results(
        self, results: dict[str, SiteResult], round_num: int, stage: str, model: FLModel, seconds: float
    ) -> dict:
        """Merges counts into metrics, keeps the best model and writes everything down; returns split → metrics."""
        metrics = {}
        for split in sorted({s for r in results.values() for s in r.counts}):
            merged = merged_metrics(sum(r.counts[split] for r in results.values() if split in r.counts))
            metrics[split] = merged
            self.records.metrics(round_num, stage, split, merged, seconds)
            for name, value in merged["macro"].items():
                if value is not None:
                    self._stream(f"{split}/{name}", value, round_num)
        for site, result in results.items():
            if result.repairs:
                done = round_num if stage == EVALUATE else round_num + 1  # a round repairs before it trains
                known = self.annotated[site]
                if (
                    self.task == SINGLELABEL
                ):  # a column is annotated everywhere; what a site does not know has no label there
                    known = self.positives[site] > 0
                if self.task == SEGMENTATION:  # what is annotated is repaired
                    known = np.zeros(len(known), dtype=bool)
                self.records.repairs(done, site, self.card.classes, known, result.repairs)
            if stage != EVALUATE:
                self._stream(f"loss/{site}", result.loss, round_num)
        # A split in which no class has both labels cannot choose; that does not change from round to round.
        metric = BEST_METRIC[self.task]
        measured = ((k, metrics[k]["macro"][metric]) for k in BEST_SPLITS if k in metrics)
        split, value = next((found for found in measured if found[1] is not None), (None, None))
        # A repeated round replaces its own.
        better = split is not None and (self._best is None or value > self._best[0] or round_num <= self._best[1])
        if better:
            self._best = (value, round_num)
            weights = {k: torch.from_numpy(v) for k, v in model.params.items()}
            self._state.save("best", {"value": value, "round": round_num, "weights": weights})
            self.record("best_model", {metric: value, "split": split}, round_num)
        self.records.write()
        return metrics

    def _progress(self, round_num: int, stage: str, metrics: dict, sites: int, seconds: float) -> None:
        elapsed = time.monotonic() - self._started
        done = round_num + 1 - self._first_round
        remaining = elapsed / done * (self.num_rounds - round_num - 1)
        split = "test" if "test" in metrics else next(iter(metrics), None)
        values = metrics[split]["macro"] if split else {}
        shown = " ".join(f"{k.upper() if k != 'map' else 'mAP'} {v:.3f}" for k, v in values.items() if v is not None)
        LOG.info(
            "%sround %d/%d %s | received model: %s | %d sites | %.0f s, elapsed %s, remaining %s",
            self._mark,
            round_num + 1,
            self.num_rounds,
            stage,
            f"{split} {shown}" if shown else "not evaluated",
            sites,
            seconds,
            _clock(elapsed),
            _clock(remaining),
        )

    def _stream(self, tag: str, value: float, step: int) -> None:
        """One number for TensorBoard, by FLARE's own analytics event."""
        dxo = create_analytic_dxo(tag=tag, value=float(value), data_type=AnalyticsDataType.SCALAR, global_step=step)
        with self.engine.new_context() as fl_ctx:
            send_analytic_dxo(self, dxo, fl_ctx)

    def _saved_file(self, attribute: str) -> str:
        return str(Path(self.persistor.log_dir or self.get_app_dir()) / getattr(self.persistor, attribute))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
