"""A federation at work: rounds, checkpoint and records, whatever carries the messages.

:class:`RunningFederation` is what a workflow talks to. A :class:`fedmend.server.transport.Transport` brings questions
to sites: FLARE's in :mod:`fl_components.controller`, function calls in :mod:`fedmend.local.local_federation`.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedmend.averaging import MAJORITY, Average, Fold, RowAverage, capped
from fedmend.basics.checked import accepted, check_types, one_of
from fedmend.basics.words import printable, rounds_text
from fedmend.errors import FedMendError
from fedmend.fields import check_fields
from fedmend.learning.inference import NOT_FINITE
from fedmend.learning.weights import get_weights
from fedmend.messages import CENSUS, COLLECT, EVALUATE, KEEP, TRAIN, Question, RunSpec, SiteResult
from fedmend.method import Answer, Federation, RoundTask
from fedmend.server.census import Census
from fedmend.server.checkpoint import NOBODY, Checkpoint, Saved
from fedmend.server.exchange import Exchange, valid_results
from fedmend.server.handing import NONE, hand_over
from fedmend.server.packing import BEST, FINAL, Start, pack
from fedmend.server.run_log import RunLog
from fedmend.server.safety_net import EDGE, SafetyNet


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
        round_timeout: seconds that a question waits for sites, the census too, which is given
            :data:`fedmend.messages.HOLD` more for the people of a site that approve the job; 0 = no limit.
        grace_period: seconds that a round goes on waiting for the others when ``min_sites`` sites have answered; 0 = as
            long as for the first.
        eval_every: the global model is evaluated in every n-th round and at the end.
        allow_changes: names of what the job changes on purpose in the run that it goes on with.
        without: names of connected sites that the job leaves out, e.g. one whose results are refused.
        max_update_factor: a site whose update or heads are above this many times the median is refused; 0 = none.
        clip_update: largest L2 norm of a site's update, a larger one is scaled down; 0 = any.
        max_site_share: largest share of a site's samples in those of a round of three sites or more, 0.5 to 1; more
            do not count in the average, see :func:`fedmend.averaging.capped`; 1 = any.
        refit: ends with classifiers that sites solve, see :mod:`fedmend.learning.heads`.
        share_model: the model that sites may keep which want one, ``final``, ``best`` or ``none``.
        method: name of the method for report and log.
    """

    run_name: str
    classes: Sequence[str]
    network: str
    num_rounds: int
    seed: int = 0
    weights: str = ""
    min_sites: int = 0
    round_timeout: int = 12 * 3600
    grace_period: int = 0
    eval_every: int = 1
    allow_changes: Sequence[str] = ()
    without: Sequence[str] = ()
    max_update_factor: float = 10.0
    clip_update: float = 0.0
    max_site_share: float = 0.5
    share_model: str = FINAL
    refit: bool = False
    method: str = ""

    def __post_init__(self) -> None:
        check_types(self)
        shown = [*map(printable, self.classes)]  # they stand in the log and in every record
        if not shown or len({*shown}) < len(shown) or shown != [*self.classes]:
            raise ValueError(f"expected different class names that can be printed, got {self.classes!r:.200}")
        if min(self.num_rounds, self.eval_every) < 1:
            raise ValueError(f"expected num_rounds and eval_every >= 1, got {self.num_rounds} and {self.eval_every}")
        if min(self.min_sites, self.round_timeout, self.grace_period, self.seed) < 0:
            raise ValueError("expected min_sites, round_timeout, grace_period and seed >= 0")
        if not (self.max_update_factor == 0 or self.max_update_factor >= 1) or not self.clip_update >= 0:
            raise ValueError("expected max_update_factor 0 or >= 1 and clip_update >= 0")
        if not 0.5 <= self.max_site_share <= 1:
            raise ValueError(f"expected max_site_share from 0.5 to 1, got {self.max_site_share}")
        accepted(self.share_model, [one_of((NONE, FINAL, BEST))], "job variable share_model", "{!r:.40}".format)

    @property
    def spec(self) -> RunSpec:
        """What all tasks of the run share.

        Raises:
            FedMendError: the run_name cannot be one.
        """
        return RunSpec(self.run_name, tuple(self.classes), self.network, self.seed)

    @property
    def census_task(self) -> RoundTask:
        """What all sites are asked first."""
        return RoundTask(CENSUS, 0, self.num_rounds, seed=self.seed, training=False)

    def needed(self, asked: int) -> int:
        """Fewest valid results, at least one, where ``asked`` sites are asked."""
        return max(min(self.min_sites or asked, asked), 1)


class RunningFederation(Federation):
    """See :class:`fedmend.method.Federation`; made by :class:`fedmend.server.job.ServerJob`.

    Args:
        settings: the job's settings of the server.
        exchange: asks the sites, and checks answers by their census.
        census: what the sites have.
        log: writes down what happens.
        checkpoint: keeps what the next job of the run needs.
        network: of the run, with its initial weights.
        saved: what an earlier job of the run left; None: this is the first.
        described: all settings of the job, for ``run.json``.
        start: what the run starts from.
    """

    def __init__(
        self,
        settings: RunSettings,
        exchange: Exchange,
        census: Census,
        log: RunLog,
        checkpoint: Checkpoint,
        network: nn.Module,
        saved: Saved | None,
        described: Mapping[str, object],
        start: Start,
    ):
        self._start, self._began = start, time.strftime("%Y-%m-%dT%H:%M:%S")
        self._settings, self._spec, self._described = settings, replace(settings.spec, mark=checkpoint.mark), described
        self._workflow = exchange.workflow
        self._exchange, self._log, self._checkpoint, self._network = exchange, log, checkpoint, network
        self.census, self.classes = census, self._spec.classes
        self.num_rounds, self.seed, self.sites = settings.num_rounds, settings.seed, census.facts
        self.kind, self.rows = census.kind.name, census.kind.row_names(self.classes)
        if saved is None:
            self.model, self._first = {k: v.numpy().copy() for k, v in get_weights(network).items()}, 0
            self.memory = self._workflow.Memory()
        else:
            self.model, self._first, self.memory = saved.model, saved.done, self._workflow.Memory(**saved.memory)
        self._round = self._first  # the round at work
        self._packages: dict[str, Path] = {}  # final and best, when the run is over
        self._done: int | None = None  # rounds done; None before the first
        self._evaluated = -1  # last round in which the model was evaluated
        self._trained: set[str] = set()  # sites that have trained in this round
        self._job, self._suspect = (saved.job, saved.suspect) if saved else ("", NOBODY)
        self._capped = log.latest("capped", {"site": ""})["site"]  # of which it was said last that it counts for less
        self._marks = dict(saved.marks) if saved else {}  # site → latest mark of its ledger
        self._data = {**(saved.data if saved else {}), **census.data}
        log.start(self._about())

    # ---- the words that a workflow is written in --------------------------------------------------------------------
    def rounds(self, total: int | None = None) -> Iterator[int]:
        if total is not None and total != self.num_rounds:
            self._workflow.check_rounds(total)
            self.num_rounds = total
            self._log.start(self._about())
        self._checkpoint.check_rounds(self._first, self.num_rounds)
        if self._first == self.num_rounds:
            self._log.done_before(self._settings.run_name, self._first, self._job)
        for r in range(self._first, self.num_rounds):
            self._round, self._done = r, r
            self._trained.clear()
            if r == self._log.best_round and not self._workflow.trains:  # as :meth:`train` does where sites train
                self._evaluate()
            yield r
            self._save(r + 1)
            if not self._trained:  # training has told of itself
                self._log.passed(r, self.num_rounds)
        self._round = self._done = self.num_rounds

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
        """See :class:`fedmend.method.Federation`. Sites evaluate the received model first, where a round evaluates or
        an earlier job ended with it as the best; where only some are asked to train, all are asked before."""
        started, r = time.monotonic(), self._round
        asked = sorted(self.sites if sites is None else sites)
        if wrong := sorted((set(asked) - set(self.sites)) | (set(asked) & self._trained)):
            raise FedMendError(f"round {r}: expected known sites that have not trained in it yet, got {wrong}")
        self._trained.update(asked)
        due = self._evaluated < r and (r % self._settings.eval_every == 0 or r == self._log.best_round)
        apart = due and asked != sorted(self.sites)
        metrics = self._evaluate() if apart else {}
        tasks, fold = self._tasks(stage, asked, roles, knowledge), Fold(average, rows)
        with self._safety_net() as net:
            needed = self.census.fewest(asked, self._settings.needed(len(asked)))
            results = self._ask(TRAIN, tasks, evaluate=due and not apart, net=net, needed=needed)
            counted = self._counted({site: result.samples for site, result in results.items()})
            for site, result in results.items():
                fold.take(site, counted[site], result.report, net.take(site))
        if sites is None:
            self._log.annotators(results, r)
        metrics |= self._log.results(results, r, stage, self.model, time.monotonic() - started)
        if due:
            self._evaluated = r
        model, shares = fold.result()
        net.check(model, f"round {r}, average of {', '.join(results)}")
        self._suspect = max(self._suspect, net.suspect(shares))
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
        asked = sorted(self.sites if sites is None else sites)
        needed = self.census.fewest(asked, at_least or self._settings.needed(len(asked)))
        results = self._ask(COLLECT, self._tasks(stage, asked, roles, knowledge, training=False), needed=needed)
        self._log.spent(results, self._round + 1)
        return {site: Answer(result.report) for site, result in results.items()}

    def record(self, what: str, value: object) -> None:
        self._log.decision(what, value, self._done)

    def warn(self, text: str) -> None:
        self._log.warn(text)

    def generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence([self.seed, self._round, *purpose.encode()]))

    def finish(self) -> None:
        """Evaluates and saves the final model, saves the best one, writes the report and says where everything is."""
        save_model = self._exchange.transport.save_model
        files = {"global model": save_model(self.model)}  # first: the evaluation may fail
        self._round = self.num_rounds
        self._evaluate()
        models = {FINAL: self.model}
        if (best := self._checkpoint.best_model()) is not None:
            files["best model"] = save_model(best, best=True)
            models[BEST] = best
        self._log.finish(files, self.num_rounds, partial(self._packed, models))
        self._hand_over()

    # ---- behind them ------------------------------------------------------------------------------------------------
    def _about(self) -> dict:
        return {
            "run_name": self._spec.run_name,
            "method": self._settings.method or type(self._workflow).__name__,
            "phantom": self.census.phantom,
            "task": self.kind,
            "classes": list(self.classes),
            "num_rounds": self.num_rounds,
            "warmup_rounds": self._workflow.warmup_rounds,
            "seed": self.seed,
            "started": self._began,
            "sites": self.census.described,
            "warm_start": self._start.trained,
            "trains": self._workflow.trains,
            "parent": self._start.as_parent,
            "settings": dict(self._described),
        }

    def _packed(
        self, models: Mapping[str, Mapping[str, np.ndarray]], outcomes: Mapping[str, Mapping]
    ) -> dict[str, str]:
        """Writes the packages of the models; what → where it is."""
        about: dict[str, Any] = {
            "info": self._about(),
            "network": self._spec.network,
            "census": self.census,
            "start": self._start,
            "sign": self._exchange.transport.sign,
        }
        self._packages = {
            name: pack(self._log.folder, name, w, outcome=outcomes[name], **about) for name, w in models.items()
        }
        return {f"{name} package": str(place) for name, place in self._packages.items()}

    def _hand_over(self) -> None:
        """Sends the model that the job shares to the sites that want it."""
        wanted, keepers = self._settings.share_model, self.census.keepers
        if wanted == NONE or not keepers:
            return
        if wanted not in self._packages:
            self._log.warn(f"no site keeps a model: expected a {wanted} one (share_model), there is none")
            return
        tasks, needed = self._tasks(KEEP, keepers, training=False), self._settings.needed(len(keepers))
        hand_over(self._packages[wanted], tasks, self._spec, exchange=self._exchange, log=self._log, needed=needed)

    def _evaluate(self) -> dict:
        """All sites evaluate the global model; split → metrics."""
        started = time.monotonic()
        results = self._ask(EVALUATE, self._tasks(EVALUATE, self.sites, training=False), evaluate=True)
        return self._log.results(results, self._round, EVALUATE, self.model, time.monotonic() - started)

    def _save(self, done: int) -> None:
        marks, suspect, records = self._marks, self._suspect, self._log.dump()
        self._checkpoint.save(done, self.model, self.memory, records, marks=marks, data=self._data, suspect=suspect)

    def _counted(self, samples: Mapping[str, int]) -> dict[str, int]:
        """The samples of each site as they count in the average; says which site counts for less."""
        counted = capped(samples, self._settings.max_site_share)
        for site, own in samples.items():
            if (now := counted[site]) < own and self._capped != site:
                self._capped = site
                self._log.decision("capped", {"site": site, "samples": own, "counted": now}, self._round)
                self._log.warn(
                    f"{site}: {own} samples count as {now} in the average, at most"
                    f" {self._settings.max_site_share:g} of all (max_site_share)"
                )
        return counted

    def _safety_net(self) -> SafetyNet:
        limits = {"factor": self._settings.max_update_factor, "clip": self._settings.clip_update}
        size, patch = self._described.get("image_size"), self._described.get("patch")
        shape = [size if isinstance(size, int) else EDGE] * 2
        if patch and isinstance(patch, Sequence):  # rows, columns and slices
            shape = [patch[-1], *patch[:-1]]
        return SafetyNet(self.model, self._network, self._checkpoint.folder / "round", shape=shape, **limits)

    def _tasks(
        self,
        stage: str,
        sites: Collection[str],
        roles: Mapping[str, str] | None = None,
        knowledge: Mapping[str, np.ndarray] | None = None,
        *,
        training: bool = True,
    ) -> dict[str, RoundTask]:
        known, fields = {k: np.asarray(v) for k, v in (knowledge or {}).items()}, self._workflow.METHOD.KNOWLEDGE
        check_fields(known, fields, self._exchange.letters, f"{stage}: knowledge for the sites,")
        asked, rounds = tuple(sorted(sites)), self.num_rounds
        task = RoundTask(stage, self._round, rounds, known, seed=self.seed, training=training, sites=asked)
        roles, marks = roles or {}, self._marks
        return {s: replace(task, role=roles.get(s, ""), ledger_mark=marks.get(s, "")) for s in asked}

    def _ask(
        self,
        name: str,
        tasks: Mapping[str, RoundTask],
        *,
        evaluate: bool = False,
        net: SafetyNet | None = None,
        needed: int = 0,
    ) -> dict[str, SiteResult]:
        """The valid results in sorted site order; trained models are in the ``net``."""
        question = Question(name, self.model, tasks, self._spec, evaluate)
        needed = needed or self._settings.needed(len(tasks))

        def judge(refused: Mapping[str, str]) -> None:
            if evaluate:
                self._judge(tasks, refused)

        results = valid_results(self._exchange, self._log, question, needed, net, judge)
        self._marks |= {site: result.ledger_mark for site, result in results.items() if result.ledger_mark}
        return results

    def _judge(self, asked: Collection[str], refused: Mapping[str, str]) -> None:
        """Notes that most sites could evaluate the global model; where most could not, the run goes back.

        Raises:
            FedMendError: says to which round, and which site's result stands out since then.
        """
        able = [site for site in asked if set(self.census.sizes[site]) - {"train"}]
        blind = [site for site in able if NOT_FINITE in refused.get(site, "")]
        if 2 * len([site for site in able if site not in refused]) > len(able):
            self._checkpoint.confirm()
            self._suspect = NOBODY
        elif 2 * len(blind) > len(able) and self._suspect != NOBODY:
            times, site = self._suspect
            done = self._checkpoint.go_back()
            value = {"cannot_evaluate": blind, "back_to": done, "suspect": site, "times": round(times, 3)}
            self._log.decision("went_back", value, self._round)
            measure = "the median of the sites" if len(self.sites) >= MAJORITY else "the numbers that it was sent"
            raise FedMendError(
                f"round {self._round}: expected a global model that most sites can evaluate, got NaN or infinity at"
                f" {', '.join(blind)}; the run has gone back to the model after {rounds_text(done)}. Since then the"
                f" result of {site} stands out, which changed a tensor {times:.3g} times as much as {measure}:"
                f' submit again with without=["{site}"]'
            )
