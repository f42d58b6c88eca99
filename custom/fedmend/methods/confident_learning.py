"""Confident learning at each site alone: what a hospital that doubts its own labels would do with the package cleanlab.

Northcutt, Jiang, Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels", JAIR 70, 2021. Only the
package's ``find_label_issues`` is used, with its defaults (``prune_by_noise_rate``).

The first ``folds`` x ``rounds_per_fold`` rounds are a cross-validation at each site: for fold f a copy of the received
model, the initial weights all that time, trains on all samples but those of fold f, and after the last of the fold's
rounds gives their out-of-sample probabilities. The last round of all finds the samples whose label is an issue. In the
rounds that are left, federated averaging goes on without them, weighted by the samples that are kept. So a run has no
more epochs than one of another method with as many rounds. A site that missed rounds keeps the samples that it could
not judge, and every site those whose label a person has confirmed or corrected. Original labels are never changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import Contributions
from fedmend.errors import FedMendError, not_installed
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.learning.inference import infer
from fedmend.method import Federation, RoundTask, Site, Workflow
from fedmend.methods.baselines import SingleLabelFedAvgRound, keep_model, own_model
from fedmend.methods.shared.settings import Range, Settings
from fedmend.methods.shared.singlelabel import SingleLabelMethod, fixed_by_people

VALIDATE, CLEANED = "validate", "cleaned"
PROBABILITIES, KEPT = "probabilities", "kept"  # arrays in the site's state
FOLD_MODEL = "fold_model"  # in the site's state, between two rounds of one fold
FIELDS = {"kept": Field((), "int64", 1, UNBOUNDED, "training samples whose label is no issue", "how many are")}
KNOWLEDGE = {
    "folds": Field((), "int64", 2, 100, "parts of the cross-validation", "none: a setting of the job"),
    "rounds_per_fold": Field((), "int64", 1, 1000, "rounds that a part's model trains", "none: a setting of the job"),
}


class ConfidentLearningRound(SingleLabelFedAvgRound):
    """One fold of the cross-validation, or training on the samples that are kept."""

    def __init__(self, method: "ConfidentLearning", model: nn.Module, task: RoundTask, site: Site):
        self._validating, self.goes_on = task.stage == VALIDATE, task.stage != VALIDATE
        if self._validating and find_spec("cleanlab") is None:
            raise FedMendError(f"label issues: {not_installed('cleanlab', 'cleanlab')}")
        self._folds, self._per_fold = int(task.word("folds")), int(task.word("rounds_per_fold"))
        self._number = task.round_num // self._per_fold  # of the fold
        if self._validating:
            model = own_model(FOLD_MODEL, model, task, site, first=self._number * self._per_fold)
        super().__init__(method, model, task, site)

    @cached_property
    def _fold(self) -> Tensor:
        """(N,) fold of each sample."""
        generator = self.site.generator(replace(self.task, round_num=0), "folds")
        # By the labels of the data set: what people say between two folds must not move a sample to another one.
        labels = torch.from_numpy(self.site.data.train.labels.argmax(1))
        return stratified_folds(labels, self._folds, generator)

    @cached_property
    def _samples(self) -> Tensor:
        if self._validating:
            return torch.nonzero(self._fold != self._number)[:, 0]
        kept = self._last(KEPT)
        if kept is None:
            raise FedMendError("label issues: expected what the cross-validation left in the site's state, not found")
        return torch.from_numpy(np.flatnonzero(kept | fixed_by_people(self.site)))

    def samples(self) -> Tensor:
        """Those of the other folds, or those that are kept."""
        return self._samples

    def report(self) -> Report:
        """How many samples are kept; in the last round of a fold, first judges the fold."""
        if not self._validating:
            return {"kept": np.array(len(self.samples()))}
        if (self.task.round_num + 1) % self._per_fold == 0:
            return {"kept": np.array(self._validate().sum())}
        keep_model(FOLD_MODEL, self.model, self.task, self.site)
        return {"kept": np.array(len(self._fold))}

    def _validate(self) -> np.ndarray:
        """Probabilities of the fold's samples; after the last fold, finds the issues. (N,) bool, samples kept."""
        site = self.site
        logits = infer(self.model, site.data.train, site)[1].to(site.device)
        found = self.adjusted(logits).softmax(1).cpu().numpy()
        before = self._last(PROBABILITIES)
        fold = self._fold.numpy()
        probabilities = np.where((fold == self._number)[:, None], found, 0 if before is None else before)
        self._save(PROBABILITIES, probabilities)
        kept = np.ones(len(fold), dtype=bool)
        if self._number + 1 == self._folds:
            kept = ~label_issues(self.target.cpu().numpy(), probabilities) | fixed_by_people(self.site)
        self._save(KEPT, kept)  # after every fold, so that a site that misses the last one can go on
        return kept

    def _last(self, name: str) -> np.ndarray | None:
        return self.site.state.last_array(name, before=self.task.round_num, fingerprint=self._fingerprint)

    def _save(self, name: str, array: np.ndarray) -> None:
        self.site.state.save_array(name, self.task.round_num, array, fingerprint=self._fingerprint)

    @property
    def _fingerprint(self) -> str:
        """Of the samples and of the folds: those of an earlier run of this name with other ones do not count."""
        return f"{self.site.data.train.table.fingerprint()} {self.task.seed} {self._folds} {self._per_fold}"


@dataclass(kw_only=True, eq=False)
class ConfidentLearning(SingleLabelMethod):
    """Finds label issues in a cross-validation at the site, then trains without them.

    Args:
        la: logit adjustment, in the cross-validation too.
    """

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    PACKAGES: ClassVar[Mapping[str, str]] = {"cleanlab": "cleanlab"}
    ROUND = ConfidentLearningRound
    la: bool = False


@dataclass(kw_only=True, eq=False)
class ConfidentLearningWorkflow(Settings, Workflow):
    """Cross-validation at each site, then federated averaging without the label issues.

    Args:
        folds: parts of the cross-validation, 2 to 100.
        rounds_per_fold: rounds that the model of one fold trains, 1 to 1,000; ``folds`` times as many are the
            cross-validation.
    """

    METHOD = ConfidentLearning
    NEEDS = dict.fromkeys((VALIDATE, CLEANED), tuple(FIELDS))
    folds: Annotated[int, Range(lambda value: 2 <= value <= 100, "2 to 100")] = 3
    rounds_per_fold: Annotated[int, Range(lambda value: 1 <= value <= 1000, "1 to 1000")] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._knowledge = {"folds": np.array(self.folds), "rounds_per_fold": np.array(self.rounds_per_fold)}
        self.warmup_rounds = self.folds * self.rounds_per_fold

    def run(self, fed: Federation) -> None:
        for r in fed.rounds():
            if r >= self.warmup_rounds:
                fed.train(CLEANED, knowledge=self._knowledge, average=by_kept)
                continue
            answers = fed.train(VALIDATE, knowledge=self._knowledge)
            if r + 1 == self.warmup_rounds:
                kept = {site: kept_of(a.report, fed.sites[site].samples) for site, a in answers.items()}
                fed.record("label_issues", {site: fed.sites[site].samples - n for site, n in kept.items()})


def by_kept(contributions: Contributions) -> dict[str, float]:
    """FedAvg by the samples that are kept."""
    return {site: float(kept_of(c.report, c.samples)) for site, c in contributions.items()}


def kept_of(report: Report, samples: int) -> int:
    """The samples that a site says it keeps, at most those that it has: no site weighs more than in FedAvg."""
    return min(int(report["kept"]), samples)


def stratified_folds(labels: Tensor, folds: int, generator: torch.Generator) -> Tensor:
    """Deals the samples of each class evenly to folds.

    Args:
        labels: (N,) class numbers.
        folds: number of folds.
        generator: of the order in which the samples of a class are dealt.

    Returns:
        (N,) int64, 0 to ``folds`` - 1.
    """
    order = torch.randperm(len(labels), generator=generator)
    order = order[torch.argsort(labels[order], stable=True)]
    fold = torch.empty_like(order)
    fold[order] = torch.arange(len(order)) % folds
    return fold


def label_issues(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Samples whose label cleanlab takes for an issue.

    Args:
        labels: (N,) class numbers.
        probabilities: (N, C) out-of-sample probabilities, 0 in the rows of samples that were not judged; those of
            classes that no judged sample has are left out.

    Returns:
        (N,) bool; a sample that was not judged is none.
    """
    from cleanlab.filter import find_label_issues

    judged = np.flatnonzero(probabilities.any(1))
    present, numbers = np.unique(labels[judged], return_inverse=True)
    own = probabilities[np.ix_(judged, present)].astype(np.float64)
    issues = np.zeros(len(labels), dtype=bool)
    # One process: the rows are few, and a site has its own number of threads.
    issues[judged] = find_label_issues(numbers, own / own.sum(1, keepdims=True), n_jobs=1)
    return issues
