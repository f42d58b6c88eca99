"""CBAFed: thresholds of pseudo-labels for each class, from how many labels of it there are; averages by labels in use.

Our form of Li et al., "Class Balanced Adaptive Pseudo Labeling for Federated Semi-Supervised Learning", CVPR 2023, for
the row "CBAFed" of Sun et al., MICCAI 2024 (FedMLP), and of the code of the latter (commit 2ad28b8). C classes, N_k
samples of site k. The published code of CBAFed itself has single labels and one site that has all of them.

Warm-up: partial loss. Then a site also learns missing classes where its own answer is above tau_c or below 1 - tau_c.
Sites tell how many labels and pseudo-labels of each class they used; the server sets tau by their shares, averages by
their sums, and every few rounds blends the model with the one of some rounds ago (residual connection).

- D1 thresholds .45 + share - std(shares), within .55 and .95 (FedMLP's code); CBAFed has .84 and no lower bound.
- D2 the share of a class is its number of labels divided by all samples when the warm-up ends, later by all labels of
  all classes (FedMLP's code). So the thresholds fall to about .45 + 1/C after one round and stay low.
- D3 pseudo-labels come from the pass that is trained, in train mode; each missing class has the mean over its own
  pseudo-labels, and these means are added up, so that their part of the loss grows with their number (FedMLP's code).
- D4 positives weigh n / n_positive of the batch's pseudo-labels of the class, 1 without a positive (FedMLP's code).
- D5 residual connection every R/100 of R rounds, which are the code's 5 of 500, and none in runs of fewer than 51: the
  code's first blend keeps .8 of the first round's model. It starts anew when the warm-up ends.
- D6 the labels of an annotated class are those that there are; the code counts all samples. A site counts no more than
  its samples, whatever it tells.

Passes per training sample and round: E forward-backward.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.averaging import Contributions, by_samples
from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.method import Answer, Federation, RoundTask, Site, Workflow
from fedmend.methods.baselines import FedAvgPLRound, MultiLabelMethod
from fedmend.methods.shared.pseudo_labels import PseudoLabels
from fedmend.methods.shared.settings import Count, Settings

WARMUP, PSEUDO = "warmup", "pseudo"
RULE = "cbafed.pseudo_label"
BASE, LOWEST, HIGHEST = 0.45, 0.55, 0.95  # of tau
RESIDUAL_ROUNDS = 0.01  # share of all rounds between two blends
KEPT = {WARMUP: 0.8, PSEUDO: 0.5}  # share of the older model in a blend
FIELDS = {
    "label_counts": Field(
        ("C",),
        "int64",
        0,
        UNBOUNDED,
        "labels of each class that were trained on, pseudo-labels too",
        "counts per class",
    )
}
KNOWLEDGE = {
    "thresholds": Field(
        ("C",),
        "float32",
        0.5,
        1,
        "tau: probability above which a missing class is pseudo-labelled",
        "tells sites how many labels of each class the federation has",
    )
}


# ---- the site -------------------------------------------------------------------------------------------------------
class CBAFedRound(FedAvgPLRound):
    """Partial loss and, after the warm-up, pseudo-labels by the thresholds of the server."""

    def __init__(self, method: "CBAFed", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._pseudo = PseudoLabels(site, self.missing.cpu().numpy())
        self._tau: Tensor | None = None  # (M,)
        if task.stage == PSEUDO and len(self.missing):
            self._tau = torch.from_numpy(task.word("thresholds")).to(site.device)[self.missing]

    def loss(self, index: Tensor) -> Tensor:
        """Supervised loss, plus the sum over missing classes of the mean loss of their pseudo-labels."""
        logits = self.logits(index)
        loss = self.supervised(logits, index)
        if self._tau is None:
            return loss
        logits = logits[:, self.missing]
        p = logits.detach().sigmoid()
        rows, target = index.to(self.site.device, non_blocking=True), p > 0.5
        used = ((p > self._tau) | (p < 1 - self._tau)) & ~self._pseudo.closed(rows, target)
        self._pseudo.keep(rows, target, p, used)
        return loss + pseudo_loss(logits, used)

    def report(self) -> Report:
        """Numbers of labels in use; writes the pseudo-labels into the ledger."""
        self._pseudo.record(RULE, self.task, self.site)
        labels = (self.labels >= 0).sum(0)
        pseudo = (self._pseudo.labels >= 0).sum(0).cpu().numpy()
        return {"label_counts": (labels + pseudo).astype(np.int64)}


class CBAFed(MultiLabelMethod):
    """Client half of CBAFed."""

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    ROUND = CBAFedRound


def pseudo_loss(logits: Tensor, used: Tensor) -> Tensor:
    """Sum over classes of the mean binary cross-entropy of their pseudo-labels, 1 where the logit is positive; 0 for a
    class without one.

    Args:
        logits: (B, M) float32.
        used: (B, M) bool: the entries that have a pseudo-label.
    """
    target = (logits.detach() > 0).float()
    number = used.sum(0)
    positives = (used & (target > 0)).sum(0)
    weight = torch.where(positives > 0, number / positives.clamp(min=1), 1.0)
    terms = F.binary_cross_entropy_with_logits(logits, target, pos_weight=weight, reduction="none")
    return (torch.where(used, terms, 0).sum(0) / number.clamp(min=1)).sum()


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class CBAFedWorkflow(Settings, Workflow):
    """Warm-up by samples, then averages by labels in use, with residual connections in long runs.

    Args:
        warmup_rounds: >= 1.
    """

    METHOD = CBAFed
    NEEDS = dict.fromkeys((WARMUP, PSEUDO), tuple(FIELDS))

    @dataclass
    class Memory:
        """``knowledge``: thresholds for the next round; ``model``: the model of the last residual connection."""

        knowledge: dict[str, np.ndarray] = field(default_factory=dict)
        model: dict[str, np.ndarray] = field(default_factory=dict)

    warmup_rounds: Count = field()

    def run(self, fed: Federation) -> None:
        for r in fed.rounds():
            known = bool(fed.memory.knowledge)  # a run may go on with a shorter warm-up
            stage = PSEUDO if r >= self.warmup_rounds and known else WARMUP
            average = by_samples if stage == WARMUP else by_labels
            answers = fed.train(stage, knowledge=fed.memory.knowledge, average=average)
            self._connect(fed, r, stage)
            if r >= self.warmup_rounds - 1:
                self._set_thresholds(fed, stage, answers)

    def check(self, stage: str, report: Report) -> None:
        """Refuses a report without a label."""
        super().check(stage, report)
        if not report["label_counts"].any():
            raise FedMendError("report field label_counts: expected at least one label, got none")

    def _connect(self, fed: Federation, round_num: int, stage: str) -> None:
        """Residual connection (D5)."""
        period = round(RESIDUAL_ROUNDS * fed.num_rounds)
        began = 0 if stage == WARMUP else self.warmup_rounds
        if not period or (round_num - began) % period:
            return
        if round_num > began and fed.memory.model:  # a run may get so many rounds that it blends only now
            old = KEPT[stage]
            fed.model = {name: (1 - old) * new + old * fed.memory.model[name] for name, new in fed.model.items()}
        fed.memory.model = dict(fed.model)

    @staticmethod
    def _set_thresholds(fed: Federation, stage: str, answers: Mapping[str, Answer]) -> None:
        samples = {site: fed.sites[site].samples for site in answers}
        counts = np.sum([labels_in_use(a.report, samples[site]) for site, a in answers.items()], axis=0)
        whole = sum(samples.values()) if stage == WARMUP else counts.sum()
        tau = thresholds(counts / whole)
        fed.record("thresholds", {c: round(float(t), 4) for c, t in zip(fed.classes, tau, strict=True)})
        fed.memory.knowledge = {"thresholds": tau}


def labels_in_use(report: Report, samples: int) -> np.ndarray:
    """(C,) labels of each class that a site trained on; no more than it has samples."""
    return np.minimum(report["label_counts"], samples)


def by_labels(contributions: Contributions) -> dict[str, float]:
    """Weight of each model: its labels in use, of all classes."""
    return {site: float(labels_in_use(c.report, c.samples).sum()) for site, c in contributions.items()}


def thresholds(shares: np.ndarray) -> np.ndarray:
    """tau of each class, of the (C,) shares of its labels (D1): (C,) float32 in .55 to .95."""
    spread = shares.std(ddof=1) if len(shares) > 1 else 0.0
    return np.clip(BASE + shares - spread, LOWEST, HIGHEST).astype(np.float32)
