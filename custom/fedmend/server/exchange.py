"""One question to many sites: every answer is checked as it comes, and counts or is refused."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedmend.errors import FedMendError, said_by
from fedmend.learning.heads import HEAD_FIELDS, REFIT
from fedmend.messages import CENSUS, COLLECT, KEEP, TRAIN, WAITS, Question, SiteResult
from fedmend.method import Workflow
from fedmend.records.progress import Progress
from fedmend.server.census import Census, lonely
from fedmend.server.checks import Expected, check_result
from fedmend.server.run_log import RunLog
from fedmend.server.safety_net import SafetyNet, head_outliers
from fedmend.server.transport import Transport

PAUSE = 5.0  # seconds until a site that waits for its people is asked again


@dataclass(frozen=True)
class Exchange:
    """Questions and checked answers.

    Attributes:
        transport: reaches the sites.
        progress: the picture of the run.
        workflow: knows what sites may report.
        census: of the sites; None: they are still asked for it.
        letters: sizes of the letters in the shapes of report fields.
        max_update_factor: see :func:`fedmend.server.safety_net.head_outliers`; 0: not compared.
    """

    transport: Transport
    progress: Progress
    workflow: Workflow
    census: Census | None = None
    letters: Mapping[str, int] = field(default_factory=dict)
    max_update_factor: float = 0.0

    def ask(
        self, question: Question, needed: int, net: SafetyNet | None = None
    ) -> tuple[dict[str, SiteResult], dict[str, str]]:
        """Asks at least one site; arguments as of :func:`valid_results`, after ``needed`` of which the transport need
        not wait for more. No result keeps a model that the ``net`` takes.

        Returns:
            site → valid result; site → why its answer does not count, or that none came; both in sorted order.

        Raises:
            FedMendError: no site to ask, or the job was aborted.
        """
        name, tasks = question.name, question.tasks
        if not tasks:
            raise FedMendError(f"{name}: expected at least one site to ask, got none")
        round_num, stage = question.round_num, next(iter(tasks.values())).stage
        results: dict[str, SiteResult] = {}
        refused: dict[str, str] = {}

        def receive(site: str, answer: SiteResult | FedMendError) -> None:
            if site in results or site in refused or site not in tasks:
                return
            self.progress.answered(site, name)
            try:
                if isinstance(answer, FedMendError):
                    raise answer
                self._check(question, site, answer)
                if net:
                    net.check(answer.weights, f"{site}: result of round {round_num}")
            except FedMendError as e:
                refused[site] = said_by(site, e)
                return
            if net:
                net.put(site, answer.weights)
            answer.weights = {}
            results[site] = answer

        self.progress.asked(name, stage, round_num, sorted(tasks))
        self.transport.exchange(question, receive, lambda: len(results) >= needed)
        large = net.outliers() if net else self._large_heads(results)
        for site, reason in large.items():
            refused[site] = f"{site}: result of round {round_num}, {reason}"
            del results[site]
        for site in set(tasks) - set(results) - set(refused):
            refused[site] = f"{site}: {name}: expected a result, got none"
        return dict(sorted(results.items())), dict(sorted(refused.items()))

    def _large_heads(self, results: Mapping[str, SiteResult]) -> dict[str, str]:
        heads = {site: r.report for site, r in results.items() if HEAD_FIELDS.keys() <= r.report.keys()}
        return head_outliers(heads, self.max_update_factor) if self.max_update_factor else {}

    def _check(self, question: Question, site: str, answer: SiteResult) -> None:
        name, task = question.name, question.tasks[site]
        if name == KEEP:  # says nothing but whether the site has kept it
            if answer.error:
                raise FedMendError(answer.error)
            return
        known: dict[str, Any] = {}
        if self.census:
            known = {
                "weights": question.weights if name == TRAIN else None,
                "sizes": self.census.sizes[site],
                "kind": self.census.kind,
                "evaluated": question.evaluate,
                "fields": HEAD_FIELDS if task.stage == REFIT else self.workflow.METHOD.FIELDS,
                "letters": {**self.letters, "N": self.census.sizes[site]["train"]},
            }
        check_result(answer, Expected(round_num=task.round_num, num_classes=len(question.run.classes), **known))
        if name in (TRAIN, COLLECT):
            try:
                if task.stage != REFIT:
                    self.workflow.check(task.stage, answer.report)
                elif missing := sorted(HEAD_FIELDS.keys() - answer.report.keys()):
                    raise FedMendError(f"report: expected {sorted(HEAD_FIELDS)}, got none of {missing}")
            except FedMendError as e:  # which knows no site: a word that begins it is never the name of one
                raise FedMendError(f"{site}: {e}") from None


def valid_results(
    exchange: Exchange,
    log: RunLog,
    question: Question,
    needed: int,
    net: SafetyNet | None = None,
    judge: Callable[[Mapping[str, str]], None] = lambda refused: None,
) -> dict[str, SiteResult]:
    """Asks, writes down who is refused, and goes on only with enough results. Sites at which a person has to approve
    the job first are asked for their census until somebody has.

    Args:
        exchange: asks the sites.
        log: where refusals are written down.
        question: what is asked.
        needed: fewest valid results.
        net: takes the trained models.
        judge: is told who is refused and why, before these are too many.

    Returns:
        site → valid result, in sorted site order.

    Raises:
        FedMendError: there are fewer, and why.
    """
    results, refused = exchange.ask(question, needed, net)
    told: set[str] = set()
    while waiting := [site for site, reason in refused.items() if question.name == CENSUS and reason.endswith(WAITS)]:
        for site in sorted(set(waiting) - told):
            log.warn(refused[site])
        told.update(waiting)
        time.sleep(PAUSE)
        more, refused_now = exchange.ask(replace(question, tasks={s: question.tasks[s] for s in waiting}), needed)
        results = dict(sorted({**results, **more}.items()))
        refused = {site: reason for site, reason in refused.items() if site not in waiting} | refused_now
    if question.name == CENSUS and len(results) >= needed:
        wanted = {site: result.census["min_federation"] for site, result in results.items()}
        for site, got in lonely(wanted).items():
            limit = f"at least {wanted[site]} sites (its min_federation)"
            refused[site] = f"{site}: census: expected to be among {limit}, got {got}"
            del results[site]
    for site, reason in refused.items():
        log.decision("refused", {"site": site, "reason": reason}, question.round_num)
        log.warn(reason)
    for site, channels in (net.raise_variances(results) if net else {}).items():
        log.decision("variances_raised", {"site": site, "channels": channels}, question.round_num)
        where = f"{site}: result of round {question.round_num}"
        log.warn(f"{where}: the variances of {channels} channels vanish there alone, and are raised for the average")
    judge(refused)
    if len(results) < needed:
        raise FedMendError(
            f"{question.name} of round {question.round_num}: expected valid results from {needed} sites, got"
            f" {len(results)}: {'; '.join(refused.values())}"
        )
    return results
