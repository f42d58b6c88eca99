"""Closed-form heads: no training; each site solves a linear classifier on the features of a frozen network.

The classifier of a class at a site is the ridge discriminant of :mod:`fedmend.learning.discriminant`, scaled to
log-odds. The server's row of a class is the mean over the sites that annotate it, by the fewer of their samples with
and without it. One exchange, no epochs; what leaves a site is one row of a classifier for each of its classes.

Heads solved once from frozen features are in Fanì et al., "Accelerating Heterogeneous Federated Learning with
Closed-form Classifiers" (Fed3R, ICML 2024), AFL (arXiv 2405.16240), FedCGS (Guan et al., arXiv 2503.06962) and FedCOF
(Goswami et al., arXiv 2412.14326). They sum means and covariances over sites. Here sites send heads instead: a mean of
features of few patients, or a covariance of fewer samples than features, is close to the samples, and a head is what
any trained model has. What the mean of heads costs against one head from sums is not measured with this code.

Label sets: an image of single-label data without a label is of one of the classes that its site does not identify, as
in FedPU, so it counts as none of the others. Which one, each further round asks the heads of the round before: q is
their softmax over these candidates, and an image counts for candidate c with the share q_c (the E-step of an
expectation maximisation; the site's heads of all classes are its M-step). That is true where a site labels every image
of its classes; ``hidden`` = ``ignored`` leaves such images out, and then there is one round.

Noisy sites: with ``judge`` every site tells the mean loss of each of its classes under the heads that all others made
(:mod:`fedmend.methods.shared.judging`); sites whose losses stand out, by the rule of :mod:`fedmend.methods.fednoro`,
have no part in the mean.

The network is worth its images only if its weights are: ``stages/`` and the name of a network that has seen photographs
reads all of its stages (:mod:`fedmend.learning.stage_features`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from torch import nn

from fedmend.averaging import CLASSIFIER, average_heads
from fedmend.errors import FedMendError
from fedmend.fields import Field, Report
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL
from fedmend.learning.heads import HEAD_FIELDS, RIDGE, head_report
from fedmend.learning.inference import infer
from fedmend.method import Federation, LocalMethod, RoundTask, Site, Workflow
from fedmend.methods.shared.candidates import candidate_shares
from fedmend.methods.shared.class_losses import check_counts, find_noisy_sites
from fedmend.methods.shared.judging import HEADS, JUDGE, KNOWLEDGE, judged, judged_losses, keep_heads
from fedmend.methods.shared.noisy_sites import FIELDS as LOSSES
from fedmend.methods.shared.settings import Positive, Settings, one_of
from fedmend.methods.shared.without_training import NoRound

CANDIDATES = "candidates"  # a stage
NEGATIVE, IGNORED = "negative", "ignored"


# ---- the site -------------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class ClosedForm(Settings, LocalMethod):
    """Client half of closed-form heads.

    Args:
        ridge: lambda, > 0.
        la: log-odds of a population in which half has the class, as logit adjustment does for trained methods.
        hidden: what a single-label image without a label is for the site's own classes: ``negative`` or ``ignored``.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = {**HEAD_FIELDS, **LOSSES}
    KNOWLEDGE = KNOWLEDGE
    KINDS: ClassVar[tuple[str, ...]] = (MULTILABEL, SINGLELABEL)
    ROUND = NoRound
    ridge: Positive = RIDGE
    la: bool = False
    hidden: Annotated[str, one_of(NEGATIVE, IGNORED)] = NEGATIVE

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """The heads of the classes that the site annotates, with candidates of all; or how well others' heads fit.

        Raises:
            FedMendError: no class has two samples with and two without it.
        """
        features, logits = infer(model, site.data.train, site)
        if task.stage == JUDGE:
            return judged(features, task, site)
        labels = self.labels(site)
        if task.stage == CANDIDATES and self.hidden == NEGATIVE:
            labels = candidate_shares(site.labels(), logits, site.data.known)
        report = head_report(model, features, labels, site, balanced=self.la, ridge=self.ridge)
        keep_heads(report, site)
        return report

    def labels(self, site: Site) -> np.ndarray:
        """(N, C) int8 of 1, 0 or -1; a class that a single-label site does not identify is unknown there, and so is an
        image without a label where it identifies all."""
        labels = site.labels()
        if site.data.kind != SINGLELABEL:
            return labels
        known, unlabelled = site.data.known, (labels == NOT_ANNOTATED).all(1)
        entry = NOT_ANNOTATED if self.hidden == IGNORED or known.all() else 0
        return np.where(known, np.where(unlabelled[:, None], entry, labels), NOT_ANNOTATED).astype(np.int8)


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class ClosedFormWorkflow(Settings, Workflow):
    """Each round collects the heads, and takes their means as the classifier; label sets alone have further rounds.

    Args:
        judge: single-label sites whose labels do not fit the heads of all others, or that do not tell how well, have no
            part in the mean.
    """

    METHOD = ClosedForm
    trains: ClassVar[bool] = False
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {
        HEADS: tuple(HEAD_FIELDS),
        CANDIDATES: tuple(HEAD_FIELDS),
        JUDGE: tuple(LOSSES),
    }

    @dataclass
    class Memory:
        """``noisy``: sites without a part in the mean; ``judged``: all that were there when they were told apart."""

        noisy: list[str] = field(default_factory=list)
        judged: list[str] = field(default_factory=list)

    judge: bool = False

    def check(self, stage: str, report: Report) -> None:
        """Also refuses the report of a judged site that tells no loss."""
        super().check(stage, report)
        if stage == JUDGE:
            check_counts(report)

    def run(self, fed: Federation) -> None:
        """All exchanges.

        Raises:
            FedMendError: several rounds, or a judge, for labels of which an image may have several.
        """
        if fed.kind != SINGLELABEL and (self.judge or fed.num_rounds > 1):
            got = f"{'judge=true' if self.judge else f'num_rounds={fed.num_rounds}'} for labels of kind {fed.kind}"
            raise FedMendError(f"job variables: expected judge=false and num_rounds=1 but for single labels, got {got}")
        for r in fed.rounds():
            answers = fed.collect(CANDIDATES if r else HEADS)
            reports = {site: answer.report for site, answer in answers.items()}
            if self.judge and not r:
                losses = judged_losses(fed, reports)
                fed.memory.noisy = sorted({*find_noisy_sites(fed, losses), *(set(fed.sites) - set(losses))})
                fed.memory.judged = list(fed.sites)
            # A site that came later, when an earlier job of this run had told them apart, has shown nothing.
            distrusted = {*fed.memory.noisy, *(set(fed.sites) - set(fed.memory.judged) if fed.memory.judged else ())}
            trusted = {site: report for site, report in reports.items() if site not in distrusted}
            weights, biases = average_heads(trusted or reports)
            if nobody := [fed.classes[c] for c in np.flatnonzero(~weights.any(1))]:
                fed.record("no_head", nobody)
                fed.warn(f"no site has enough samples with and without {', '.join(nobody)}: no score tells it apart")
            fed.model |= {f"{CLASSIFIER}weight": weights, f"{CLASSIFIER}bias": biases}
