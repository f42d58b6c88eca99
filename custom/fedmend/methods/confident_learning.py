"""Confident learning at each site alone: what a hospital that doubts its own labels would do with the package cleanlab.

Northcutt, Jiang, Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels", JAIR 70, 2021. Only the
package's ``find_label_issues`` is used, with its defaults (``prune_by_noise_rate``).

The first ``folds`` rounds are a cross-validation at each site: in round f a copy of the received model, the initial
weights all that time, trains on all samples but those of fold f and gives their out-of-sample probabilities. The last
of these rounds finds the samples whose label is an issue. In the rounds that are left, federated averaging goes on
without them, weighted by the samples that are kept. So a run has no more epochs than one of another method with as many
rounds. Original labels are never changed.
"""

import copy
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError, check_variables
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.method import Contributions, Federation, Round, RoundTask, Site, Workflow
from fedmend.methods.singlelabel import SingleLabelMethod, SingleLabelRound, class_numbers
from fedmend.training import infer

VALIDATE, CLEANED = "validate", "cleaned"
PROBABILITIES, KEPT = "probabilities", "kept"  # arrays in the site's state
FIELDS = {"kept": Field((), "int64", 1, UNBOUNDED, "training samples whose label is no issue", "how many are")}
KNOWLEDGE = {"folds": Field((), "int64", 2, 100, "parts of the cross-validation", "none: a setting of the job")}


class ConfidentLearningRound(SingleLabelRound):
    """One fold of the cross-validation, or training on the samples that are kept."""

    def __init__(self, method: "ConfidentLearning", model: nn.Module, task: RoundTask, site: Site):
        self._validating = task.stage == VALIDATE
        if self._validating and find_spec("cleanlab") is None:
            raise FedMendError("label issues: expected the package cleanlab (pip install fedmend[cleanlab]), not found")
        super().__init__(method, copy.deepcopy(model) if self._validating else model, task, site)

    @cached_property
    def _fold(self) -> Tensor:
        """(N,) fold of each sample."""
        generator = self.site.generator(replace(self.task, round_num=0), "folds")
        labels = torch.from_numpy(class_numbers(self.site, self.labels()))
        return stratified_folds(labels, int(self.task.word("folds")), generator)

    @cached_property
    def _samples(self) -> Tensor:
        if self._validating:
            return torch.nonzero(self._fold != self.task.round_num)[:, 0]
        kept = self._last(KEPT)
        if kept is None:
            raise FedMendError("label issues: expected what the cross-validation left in the site's state, not found")
        return torch.from_numpy(np.flatnonzero(kept))

    def samples(self) -> Tensor:
        """Those of the other folds, or those that are kept."""
        return self._samples

    def loss(self, index: Tensor) -> Tensor:
        """Mean cross-entropy."""
        images, target = self.batch(index)
        return F.cross_entropy(self.adjusted(self.model(images)[1]), target)

    def report(self) -> Report:
        """How many samples are kept; in the cross-validation, first judges the fold."""
        if not self._validating:
            return {"kept": np.int64(len(self.samples()))}
        return {"kept": np.int64(self._validate().sum())}

    def _validate(self) -> np.ndarray:
        """Probabilities of the fold's samples; after the last fold, finds the issues. (N,) bool, samples kept."""
        site, number = self.site, self.task.round_num
        logits = infer(self.model, site.data.train, site)[1].to(site.device)
        found = self.adjusted(logits).softmax(1).cpu().numpy()
        before = self._last(PROBABILITIES)
        fold = self._fold.numpy()
        probabilities = np.where((fold == number)[:, None], found, 0 if before is None else before)
        self._save(PROBABILITIES, probabilities)
        kept = np.ones(len(fold), dtype=bool)
        if number + 1 == int(self.task.word("folds")):
            kept = ~label_issues(self.target.cpu().numpy(), probabilities)
            self._save(KEPT, kept)
        return kept

    def _last(self, name: str) -> np.ndarray | None:
        fingerprint = self.site.data.train.table.fingerprint()
        return self.site.state.last_array(name, before=self.task.round_num, fingerprint=fingerprint)

    def _save(self, name: str, array: np.ndarray) -> None:
        fingerprint = self.site.data.train.table.fingerprint()
        self.site.state.save_array(name, self.task.round_num, array, fingerprint=fingerprint)


class ConfidentLearning(SingleLabelMethod):
    """Finds label issues in a cross-validation at the site, then trains without them.

    Args:
        la: logit adjustment, in the cross-validation too.
    """

    FIELDS: ClassVar = FIELDS
    KNOWLEDGE: ClassVar = KNOWLEDGE
    ROUND: ClassVar[type[Round]] = ConfidentLearningRound

    def __init__(self, *, la: bool = False):
        super().__init__(la=la)


class ConfidentLearningWorkflow(Workflow):
    """Cross-validation at each site, then federated averaging without the label issues.

    Args:
        folds: of the cross-validation, and its rounds; 2 to 100.
    """

    FIELDS: ClassVar = FIELDS
    KNOWLEDGE: ClassVar = KNOWLEDGE

    def __init__(self, *, folds: int = 3):
        check_variables(2 <= folds <= 100, "2 to 100", folds=folds)
        self.warmup_rounds = folds

    def run(self, fed: Federation) -> None:
        """All rounds."""
        folds = {"folds": np.int64(self.warmup_rounds)}
        for r in fed.rounds():
            if r >= self.warmup_rounds:
                fed.train(CLEANED, average=by_kept)
                continue
            answers = fed.train(VALIDATE, knowledge=folds)
            if r + 1 == self.warmup_rounds:
                kept = {site: int(a.report["kept"]) for site, a in answers.items()}
                fed.record("label_issues", {site: fed.sites[site].samples - n for site, n in kept.items()})

    def check(self, stage: str, report: Report) -> None:
        """Refuses a report without its number."""
        if "kept" not in report:
            raise FedMendError("report: expected the field kept, got none")


def by_kept(contributions: Contributions) -> dict[str, float]:
    """FedAvg by the samples that are kept."""
    return {site: float(c.report["kept"]) for site, c in contributions.items()}


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
        probabilities: (N, C) out-of-sample probabilities; those of classes that no sample has are left out.

    Returns:
        (N,) bool.
    """
    from cleanlab.filter import find_label_issues

    present, numbers = np.unique(labels, return_inverse=True)
    own = probabilities[:, present].astype(np.float64)
    # One process: the rows are few, and a site has its own number of threads.
    return find_label_issues(numbers, own / own.sum(1, keepdims=True), n_jobs=1)
