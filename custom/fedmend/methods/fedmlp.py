"""FedMLP: federated multi-label learning with classes that are not annotated at some sites.

Sun, Wu et al., "FedMLP: Federated Multi-Label Medical Image Classification under Task Heterogeneity", MICCAI 2024.
C classes, N samples at a site, F features. Annotated classes are the paper's active classes AC_k, missing ones NC_k.

Warm-up: two augmented views, WPC loss (Eqs. 3-4) on annotated classes. From the last warm-up round on, sites send
prototypes (Eq. 5) and learning degrees (Eq. 10); the server averages them (Eqs. 6, 10). In stage 2 each site tags the
most certain samples of its missing classes (Eqs. 7-9) for good and trains on annotated and tagged labels with the WPC
loss and on the rest with consistency to the global model (section 2.4).

The published code (commit 2ad28b8) is an ablation snapshot that does not run, so the paper leads. Where they differ:

- D1 logit adjustment: paper, on in both stages (``la``).
- D2 self-adaptive threshold: paper, tau = d^G * T (``st``; off = fixed T as in the code).
- D3 consistency regularisation in stage 2: paper, on (``cr``); it gives no weight, 1 is that of a line that the code
  has commented out (``cr_weight``).
- D4 distillation from the global model in the warm-up: paper, none (``warmup_distillation`` = 1 is the code).
- D5 learning degree averaged over the sites that miss the class: code and the paper's text; its Eq. (10) says S_c.
- D6 prototypes weighted by N_k as in the code; Eq. (6) is a plain mean.
- D7 loss divided by B*|AC_k| in the warm-up (code) and B*C in stage 2 (Eq. 4; the code's commented line, while the
  active one divides by the number of supervised entries). B is the size of the batch at hand, also of a short last one,
  where the code divides by the nominal size.
- D8 learning rate: paper, 3e-5 in the paper preset of the job.
- D9 the data split is the converter's matter (:mod:`fedmend.datasets.rsna_ich`).
- D10 class prior of a missing class in stage 2: n1 / (n0 + n1) over tagged samples, smoothed by 1, because the code's
  n1 / N shifts logits too far while few samples are tagged.
- D11 the code drops positive tags when there are no negative ones: not reproduced.
- D12 quotas are shares of each side's residual samples, rounded down (both); ``quota_rounding=ceil`` for small sites.
- D13 two views in the warm-up, their losses averaged; one view in stage 2 (code).
- D14 concerns the FedAvg baseline: :mod:`fedmend.methods.baselines`.
- D15 the rows of the ablation without WPC weight the positive tags of a missing class by n0 / n1, 5 without any, as the
  code prepares and does not use.
- D16 coupled L2 is all of the gradient of a missing class in the warm-up, and Adam makes it steps of the full learning
  rate, so its row of the classifier is lost at all sites but those that annotate it. Paper and code leave it so; the
  jobs decouple the decay (``decay``, see :class:`fedmend.learning.training.LocalTrainer`), but for ``paper``.

Passes per training sample and round: warm-up 2 forward-backward; last warm-up round 1 inference more; stage 2 1
forward-backward and 2 inferences, because one scoring pass of the received model gives both the confidences of Eq. (7)
and the teacher of section 2.4: a sample has one augmented view per round, which all three passes share. The last round
needs no prototypes and saves its second inference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import mean_over_sites
from fedmend.errors import check_variables
from fedmend.fields import OF_MEANS, UNBOUNDED, Field, Report
from fedmend.labels import NOT_ANNOTATED
from fedmend.learning.inference import infer
from fedmend.learning.losses import masked_bce, positive_weight, prior_shift
from fedmend.method import Answer, Federation, LocalMethod, Round, RoundTask, Site, Workflow
from fedmend.methods.shared.prototypes import (
    classes_without_prototype,
    confidences,
    global_prototypes,
    local_prototypes,
    select_confident,
    whitened_confidences,
)
from fedmend.methods.shared.settings import Count, Settings, Share, Weight, one_of
from fedmend.repairs.label_ledger import Repairs

WARMUP, PROTOTYPE, DETECT = "warmup", "prototype", "detect"
WEIGHT_WITHOUT_POSITIVES = 5.0
RULE = "fedmlp.missing_label_detection"
SCORES = {"cosine": confidences, "whitened": whitened_confidences}  # of missing labels
AVERAGE = "a class that one site alone knows has that site's value"
DEGREE = Field(("C",), "float32", 0, 1, "share of samples of which the model is sure (Eq. 10)", "one number per class")
PROTOTYPES = Field(
    ("2C", "F"),
    "float32",
    -UNBOUNDED,
    UNBOUNDED,
    "row 2c+n: mean feature of the samples with label n of annotated class c (Eq. 5), from the end of the warm-up",
    OF_MEANS,
    counted_by="prototype_counts",
)
FIELDS = {
    "prototypes": PROTOTYPES,
    "prototype_counts": Field(
        ("2C",), "int64", 0, UNBOUNDED, "samples behind each prototype", "counts per class", of_samples=True
    ),
    "learning_degree": DEGREE,
}
KNOWLEDGE = {
    "prototypes": replace(PROTOTYPES, meaning="average prototypes (Eq. 6)", risk=AVERAGE, counted_by=""),
    "learning_degree": replace(DEGREE, meaning="average learning degrees (Eq. 10)", risk=AVERAGE),
}


# ---- the site -------------------------------------------------------------------------------------------------------
class FedMLPRound(Round):
    """One round at a site."""

    method: "FedMLP"

    def __init__(self, method: "FedMLP", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._detecting = task.stage == DETECT
        self._views = site.views(task, 1 if self._detecting else 2)  # (V, N, 2, 3)
        self._teacher = self._prepare_teacher()
        labels = site.ledger.apply(site.data.train.labels) if self._detecting else site.labels()
        known = labels != NOT_ANNOTATED
        self._target = torch.from_numpy((labels == 1).astype(np.float32)).to(site.device)
        self._known = torch.from_numpy(known).to(site.device)
        self._shift = torch.from_numpy(self._logit_shift(labels)).to(site.device)
        self._pos_weight = torch.from_numpy(self._positive_weight(labels)).to(site.device)

    def _prepare_teacher(self) -> Tensor:
        """(V, N, C) scores of the received model, where a loss needs them; tags missing labels by the same pass."""
        method, train = self.method, self.site.data.train
        if self._detecting and (method.mld or method.cr):
            features, logits = infer(self.model, train, self.site, self._views[0])
            if method.mld:
                self._tag(features.numpy())
            return logits.sigmoid().to(self.site.device)[None]
        if not self._detecting and method.warmup_distillation:
            passes = [infer(self.model, train, self.site, view)[1] for view in self._views]
            return torch.stack(passes).sigmoid().to(self.site.device)
        return torch.empty(0)

    def _logit_shift(self, labels: np.ndarray) -> np.ndarray:
        if not (self.method.wpc and self.method.la):
            return np.zeros(labels.shape[1], dtype=np.float32)
        return np.where(self.site.data.annotated, prior_shift(labels), prior_shift(labels, smoothing=1.0))

    def _positive_weight(self, labels: np.ndarray) -> np.ndarray:
        """The baselines' weights of Eq. (1); n0 / n1 of the tags where a class is missing (D15)."""
        negative, positive = (labels == 0).sum(0), (labels == 1).sum(0)
        # At least one negative: without any, the weight 0 would throw the positive tags away.
        tags = np.where(positive > 0, np.maximum(negative, 1) / np.maximum(positive, 1), WEIGHT_WITHOUT_POSITIVES)
        return np.where(self.site.data.annotated, positive_weight(np.maximum(labels, 0)), tags).astype(np.float32)

    def _tag(self, features: np.ndarray) -> None:
        """Missing-label detection, Eqs. (7)-(9); a tag that people have rejected takes no place in a quota."""
        method, site, task = self.method, self.site, self.task
        labels, tagged, banned = site.data.train.labels, site.ledger.repairs(), site.ledger.banned()
        degree = task.word("learning_degree") if method.st else np.ones(labels.shape[1])
        confidence = SCORES[method.score](features, task.word("prototypes"))
        rejected = np.where(confidence < 0, banned[..., 1], banned[..., 0])
        nothing = np.zeros(0, dtype=np.int64)
        found = [(nothing, nothing, nothing)]  # samples, their classes, their new labels
        for c in np.flatnonzero(~site.data.annotated):
            residual = (tagged[:, c] == NOT_ANNOTATED) & ~np.isnan(confidence[:, c]) & ~rejected[:, c]
            ratios = (degree[c] * method.ratio_negative, degree[c] * method.ratio_positive)
            negatives, positives = select_confident(confidence[:, c], residual, *ratios, rounding=method.quota_rounding)
            found += [(s, np.full(len(s), c), np.full(len(s), n)) for n, s in enumerate((negatives, positives))]
        sample, label_class, new = map(np.concatenate, zip(*found, strict=True))
        repairs = Repairs(sample, label_class, new, np.abs(confidence[sample, label_class]))
        site.ledger.record(RULE, task.ledger_round, labels, repairs)

    def loss(self, index: Tensor) -> Tensor:
        """Eq. (4) on known labels plus, in stage 2, the mean squared error of section 2.4 on the others."""
        if self._detecting:
            return self._view_loss(0, index)
        return (self._view_loss(0, index) + self._view_loss(1, index)) / 2

    def _view_loss(self, view: int, index: Tensor) -> Tensor:
        method, site = self.method, self.site
        teacher_weight = method.cr * method.cr_weight if self._detecting else method.warmup_distillation
        _, logits = self.model(site.data.train.view(index, self._views[view]))
        logits, rows = logits.float(), index.to(site.device, non_blocking=True)
        known, target = self._known[rows], self._target[rows]
        whole, annotated = known.numel(), len(index) * int(site.data.annotated.sum())
        if method.wpc:
            loss = masked_bce(logits + self._shift, target, known, whole if self._detecting else annotated)
        else:
            counted = known if teacher_weight else torch.ones_like(known)
            loss = masked_bce(logits, target, counted, whole, self._pos_weight)
        if teacher_weight:
            scale = whole if self._detecting else max(whole - annotated, len(index))
            error = (logits.sigmoid() - self._teacher[view][rows]).square()
            loss = loss + teacher_weight * torch.where(known, 0, error).sum() / scale
        return loss

    def report(self) -> Report:
        """Prototypes of annotated classes and learning degrees of all classes, by one pass of the local model."""
        method, task, train = self.method, self.task, self.site.data.train
        last = self._detecting and task.round_num == task.total_rounds - 1
        if not method.mld or task.stage == WARMUP or last:
            return {}
        features, logits = infer(self.model, train, self.site, self._views[0])
        labels = np.where(self.site.data.annotated, self.site.labels(), NOT_ANNOTATED)  # no tags
        prototypes, counts = local_prototypes(features.numpy(), labels, self.site.min_count)
        degree = learning_degree(logits.sigmoid().numpy(), method.low, method.high)
        return {"prototypes": prototypes, "prototype_counts": counts, "learning_degree": degree}


@dataclass(kw_only=True, eq=False)
class FedMLP(Settings, LocalMethod):
    """Client half of FedMLP.

    Args:
        mld: missing label detection (Eqs. 7-9); off: nothing is tagged.
        wpc: weighted partial-class loss (Eq. 4); off: Eq. (1), where a missing label counts as negative (unless ``cr``
            or ``warmup_distillation`` takes care of it), with the baselines' positive weights.
        cr: consistency regularisation of untagged missing classes (section 2.4).
        st: self-adaptive threshold (Eq. 10); off: the selection ratios are T_0 and T_1 themselves.
        ratio_negative: T_0, largest share of the residual negative side tagged per round, in [0, 1].
        ratio_positive: T_1, the same for the positive side.
        low: L of Eq. (10); probabilities below it count as learned.
        high: R of Eq. (10); probabilities above it count as learned.
        la: logit adjustment (Eq. 3) inside the WPC loss.
        cr_weight: weight of the consistency term, >= 0.
        warmup_distillation: weight of distillation from the global model in the warm-up, >= 0.
        quota_rounding: ``floor`` or ``ceil``, see D12.
        score: of a missing label: ``cosine`` (Eq. 7), or ``whitened``, a linear discriminant (not in the paper).
    """

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    ROUND = FedMLPRound
    mld: bool = True
    wpc: bool = True
    cr: bool = True
    st: bool = True
    ratio_negative: Share = 0.005
    ratio_positive: Share = 0.01
    low: float = 0.3
    high: float = 0.7
    la: bool = True
    cr_weight: Weight = 1.0
    warmup_distillation: Weight = 0.0
    quota_rounding: Annotated[str, one_of("floor", "ceil")] = "floor"
    score: Annotated[str, one_of(*SCORES)] = "cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_variables(0 <= self.low < self.high <= 1, "0 <= low < high <= 1", low=self.low, high=self.high)


def learning_degree(probabilities: np.ndarray, low: float, high: float) -> np.ndarray:
    """Local learning degree d_c^k, Eq. (10) left, Sun et al., MICCAI 2024: share of scores < L or > R.

    Args:
        probabilities: (N, C) raw sigmoid outputs.
        low: L.
        high: R.

    Returns:
        (C,) float32 in 0..1.
    """
    return ((probabilities < low) | (probabilities > high)).mean(0).astype(np.float32)


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class FedMLPWorkflow(Settings, Workflow):
    """Warm-up, prototypes in its last round, then missing-label detection with self-adaptive thresholds.

    Args:
        warmup_rounds: t1 >= 1.
    """

    METHOD = FedMLP
    NEEDS = dict.fromkeys((WARMUP, PROTOTYPE, DETECT), tuple(FIELDS))

    @dataclass
    class Memory:
        """``knowledge``: prototypes and learning degrees of the last round that had some, for the next one; ``stage``:
        of the last round."""

        knowledge: dict[str, np.ndarray] = field(default_factory=dict)
        stage: str = ""

    warmup_rounds: Count = field()

    def run(self, fed: Federation) -> None:
        for r in fed.rounds():
            stage = self._stage(r)
            if stage == DETECT and fed.memory.stage == WARMUP:  # a run may go on with a shorter warm-up
                stage = PROTOTYPE
            answers = fed.train(stage, knowledge=fed.memory.knowledge)
            fed.memory.stage = stage
            # Eqs. (6) and (10). A run may get more rounds when it is over: they begin with those of the round before.
            fed.memory.knowledge = self._merge_reports(fed, answers) or fed.memory.knowledge

    def _stage(self, round_num: int) -> str:
        if round_num >= self.warmup_rounds:
            return DETECT
        return PROTOTYPE if round_num == self.warmup_rounds - 1 else WARMUP

    def check(self, stage: str, report: Report) -> None:
        """Refuses a part of a report; without missing-label detection, and in the last round, there is none."""
        if report:
            super().check(stage, report)

    @staticmethod
    def _merge_reports(fed: Federation, answers: Mapping[str, Answer]) -> dict[str, np.ndarray]:
        reports = {site: answer.report for site, answer in answers.items() if answer.report}
        if not reports:
            return {}
        samples = {site: fed.sites[site].samples for site in reports}
        degree = global_learning_degree(reports, samples, {site: fed.sites[site].annotated for site in reports})
        fed.record("learning_degree", {c: round(float(d), 4) for c, d in zip(fed.classes, degree, strict=True)})
        prototypes = global_prototypes(reports, samples)
        if missing := classes_without_prototype(prototypes):
            fed.record("no_prototype", [fed.classes[c] for c in missing])
        return {"prototypes": prototypes, "learning_degree": degree}


def global_learning_degree(
    reports: Mapping[str, Report], samples: Mapping[str, int], annotated: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Global learning degree d_c^G, Eq. (10) right, Sun et al., MICCAI 2024: mean weighted by N_k over the sites that
    miss the class (D5).

    Args:
        reports: site → report with learning_degree (C,).
        samples: site → N_k.
        annotated: site → (C,) bool.

    Returns:
        (C,) float32; 1 for a class for which no site counts.
    """
    degrees = {site: report["learning_degree"] for site, report in reports.items()}
    return mean_over_sites(degrees, {site: ~annotated[site] * samples[site] for site in reports}, unknown=1.0)
