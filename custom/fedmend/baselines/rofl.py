"""RoFL: sites exchange class centroids, and a sample whose features lie nearer to another class is labelled anew.

Yang, Park, Byun, Kim, "Robust Federated Learning with Noisy Labels", IEEE Intelligent Systems 37(2), 2022
(arXiv:2012.01700). C classes, features z of length F, round r, y the given label, T the length of the early phase:

- Of every batch of B samples the int((1 - f) B) with the smallest CE(l, y) are kept, f = 0.2 min(r, T - 1) / (T - 1).
- A kept sample agrees where y is the class whose centroid f_c has the largest cosine with z. Its target t is y if it
  agrees or r < T, else the class that the received model gives it.
- loss = mean of CE(l, t) + 0.8 times the mean entropy of softmax(l), over the kept samples.
- After the batch each centroid moves: f_c <- (1 - a^2) f_c + a^2 g_c, with g_c the mean feature of the kept samples of
  label c and a = cos(f_c, g_c).
- The server merges the sites' centroids, each weighed by its cosine with the centroid of the round before.

This is our form of RoFL: how FedNoRo's authors adapted it was not published.

- D1 T = 10 (appendix of FedNoRo; 100 in the code) both for the forget rate, as in the code, and for the pseudo-labels;
  a run of less than 100 rounds takes a tenth of them.
- D2 features are detached in all code that could be read, so that the paper's third term, the squared distance to the
  centroid of y, has no gradient: it is left out. ``centroid_gradient`` adds min(r / T, 1) times its sum over the kept
  samples that agree, with a gradient.
- D3 what is sent: the mean feature of the kept samples of each class in the last epoch, with their number. The code
  sends the f_c that moves in every batch: with a near 1 it is nearly the mean of the last one or two samples of a rare
  class, which no count of samples can guard. f_c stays inside the round.
- D4 the code starts from random centroids, so that its first average divides by a sum of tiny cosines of either sign.
  Here a site without centroids of the server, or for a class of which it has none, takes the mean feature of its own
  samples of the class under the received model; the first average is a plain mean, and negative cosines count as 0.
- D5 models are averaged by samples, as all rows here; the code takes the plain mean.
- D6 the pass of the received model is on plain images.

A class whose centroid nobody knows is nobody's nearest. Labels are not written over: the last target of a round that is
not y is in the ledger. A label that people have fixed, and one in whose place they have rejected the received model's,
stays. Passes per training sample and round: E forward-backward and 1 inference.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.averaging import mean_over_sites
from fedmend.fields import OF_MEANS, UNBOUNDED, Field, Report
from fedmend.learning.inference import infer
from fedmend.method import Federation, RoundTask, Site, Workflow
from fedmend.methods.shared.settings import Count
from fedmend.methods.shared.singlelabel import SingleLabelMethod, SingleLabelRound, class_changes, settled

RULE = "rofl.pseudo_label"
FORGET, ENTROPY = 0.2, 0.8
CENTROIDS = Field(
    ("C", "F"),
    "float32",
    -UNBOUNDED,
    UNBOUNDED,
    "mean feature of the samples of each class that the last epoch of a round kept",
    OF_MEANS,
    counted_by="centroid_counts",
)
FIELDS = {
    "centroids": CENTROIDS,
    "centroid_counts": Field(
        ("C",), "int64", 0, UNBOUNDED, "samples behind each centroid", "counts per class", of_samples=True
    ),
}
KNOWLEDGE = {
    "centroids": replace(
        CENTROIDS,
        meaning="merged centroids",
        risk="a class that one site alone knows has that site's value",
        counted_by="",
    )
}


# ---- the site -------------------------------------------------------------------------------------------------------
class RoFLRound(SingleLabelRound):
    """One round at a site."""

    method: "RoFL"

    def __init__(self, method: "RoFL", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        features, logits = infer(model, site.data.train, site)
        probability, pseudo = logits.softmax(1).max(1)
        closed = torch.from_numpy(settled(site, pseudo.cpu().numpy()))
        self._pseudo = torch.where(closed.to(site.device), self.target, pseudo.to(site.device))
        self._confidence = probability.numpy()
        self._centroids = self._received(features.to(site.device))
        self._used = self.target.clone()  # last target of each sample
        early = method.early(task.total_rounds)
        self._forget = FORGET * (min(task.round_num / (early - 1), 1) if early > 1 else 1)
        self._trusting, self._pull = task.round_num < early, min(task.round_num / early, 1)

    def _received(self, features: Tensor) -> Tensor:
        """(C, F) centroids that the round starts with (D4)."""
        own, _ = class_means(features, self.target, len(self.site.data.classes))
        if "centroids" not in self.task.knowledge:
            return own
        received = torch.from_numpy(np.array(self.task.word("centroids"))).to(self.site.device)
        return torch.where(received.any(1, keepdim=True), received, own)

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """See :class:`SingleLabelRound`; the means of what is kept start anew."""
        self._sums = torch.zeros_like(self._centroids)
        self._counts = torch.zeros(len(self._centroids), dtype=torch.int64, device=self.site.device)
        return super().batches(epoch)

    def loss(self, index: Tensor) -> Tensor:
        """Loss of the kept samples; moves the centroids."""
        images, given = self.batch(index)
        features, logits = self.model(images)
        features, logits = features.float(), logits.float()
        kept = smallest(F.cross_entropy(logits.detach(), given, reduction="none"), 1 - self._forget)
        rows, features, logits, given = index.to(self.site.device)[kept], features[kept], logits[kept], given[kept]
        agree = nearest(self._centroids, features.detach()) == given
        target = given if self._trusting else torch.where(agree, given, self._pseudo[rows])
        self._used[rows] = target
        log_p = logits.log_softmax(1)
        loss = F.nll_loss(log_p, target) - ENTROPY * (log_p.exp() * log_p).sum(1).mean()
        if self.method.centroid_gradient:
            loss = loss + self._pull * (features - self._centroids[given]).square().sum(1)[agree].sum()
        self._move(features.detach(), given)
        return loss

    def _move(self, features: Tensor, given: Tensor) -> None:
        means, counts = class_means(features, given, len(self._centroids))
        self._centroids = moved(self._centroids, means)
        self._sums += means * counts[:, None]
        self._counts += counts

    def report(self) -> Report:
        """Writes the labels that the round changed into the ledger; centroids and their counts leave."""
        site, labels = self.site, self.labels()
        site.ledger.undo(rule=RULE)  # a sample may be back at its own label
        repairs = class_changes(labels, self._used.cpu().numpy(), self._confidence)
        site.ledger.record(RULE, self.task.ledger_round, labels, repairs)
        centroids = self._sums / self._counts.clamp(min=1)[:, None]
        return {"centroids": centroids.cpu().numpy(), "centroid_counts": self._counts.cpu().numpy()}


@dataclass(kw_only=True, eq=False)
class RoFL(SingleLabelMethod):
    """Client half of RoFL.

    Args:
        early_rounds: T, rounds until labels may change, at most a tenth of all rounds; >= 1.
        centroid_gradient: adds the squared distance to the centroids (D2).
    """

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    ROUND = RoFLRound
    early_rounds: Count = 10
    centroid_gradient: bool = False

    def early(self, total_rounds: int) -> int:
        """T of a run with so many rounds."""
        return min(self.early_rounds, max(round(0.1 * total_rounds), 1))


def class_means(features: Tensor, classes: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Mean feature of the samples of each class.

    Args:
        features: (N, F) float32.
        classes: (N,) class numbers.
        number: C.

    Returns:
        (C, F), zero for a class without a sample, and (C,) int64 samples of each class.
    """
    member = F.one_hot(classes, number)
    counts = member.sum(0)
    with torch.autocast(features.device.type, enabled=False):  # 16 bits are too few for sums
        return member.T.to(features.dtype) @ features / counts.clamp(min=1)[:, None], counts


def smallest(losses: Tensor, share: float) -> Tensor:
    """Places of the int(share * B) smallest of (B,) losses, at least one."""
    number = max(int(share * len(losses) + 1e-6), 1)
    return losses.argsort(stable=True)[:number]


def nearest(centroids: Tensor, features: Tensor) -> Tensor:
    """Class of the centroid with the largest cosine.

    Args:
        centroids: (C, F); a zero row, which nobody knows, is the nearest of none.
        features: (B, F).

    Returns:
        (B,) class numbers.
    """
    with torch.autocast(features.device.type, enabled=False):
        cosine = F.normalize(features, dim=1) @ F.normalize(centroids, dim=1).T
    return cosine.masked_fill(~centroids.any(1), -torch.inf).argmax(1)


def moved(centroids: Tensor, means: Tensor) -> Tensor:
    """(1 - a^2) f + a^2 g, a = cos(f, g), row by row; a row of ``means`` (C, F) that is 0 moves nothing."""
    weight = F.cosine_similarity(centroids, means).square()[:, None]
    return (1 - weight) * centroids + weight * means


# ---- the server -----------------------------------------------------------------------------------------------------
class RoFLWorkflow(Workflow):
    """Federated averaging, and centroids merged by similarity."""

    METHOD = RoFL
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {"train": tuple(FIELDS)}

    @dataclass
    class Memory:
        """``knowledge``: the merged centroids, once there are any."""

        knowledge: dict[str, np.ndarray] = field(default_factory=dict)

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            answers = fed.train("train", knowledge=fed.memory.knowledge)
            reports = {site: a.report for site, a in answers.items()}
            fed.memory.knowledge = {"centroids": merged_centroids(fed.memory.knowledge.get("centroids"), reports)}


def merged_centroids(before: np.ndarray | None, reports: Mapping[str, Report]) -> np.ndarray:
    """sum_k a_k f_k / sum_k a_k with a_k = max(cos(f, f_k), 0) per class, f the centroid before.

    Args:
        before: (C, F), zero rows where there was none; None in the first round.
        reports: site → centroids (C, F) and centroid_counts (C,).

    Returns:
        (C, F) float32. Where there was no centroid before: the plain mean of the sites that have one. Where no site has
        one like it: as before.
    """
    centroids = {site: report["centroids"].astype(np.float64) for site, report in reports.items()}
    before = np.zeros_like(next(iter(centroids.values()))) if before is None else before.astype(np.float64)
    weights = {}
    for site, own in centroids.items():
        length = np.linalg.norm(before, axis=1) * np.linalg.norm(own, axis=1)
        cosine = (before * own).sum(1) / np.maximum(length, 1e-12)
        weight = np.where(before.any(1), np.maximum(cosine, 0), 1.0)
        weights[site] = weight * (reports[site]["centroid_counts"] > 0)
    return mean_over_sites(centroids, weights, unknown=before)
