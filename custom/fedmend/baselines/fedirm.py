"""FedIRM: pseudo-labelled images shall relate classes to each other as labelled images do at other sites.

Our form of Liu et al., "Federated Semi-supervised Medical Image Classification via Inter-client Relation Matching",
MICCAI 2021, for the row "FedIRM" of Sun et al., MICCAI 2024 (FedMLP), and of the code of the latter (commit 2ad28b8). B
samples in a batch, C classes, R rounds. The published code of FedIRM itself has single labels and sites without any.

The relation of a class to all classes is sigmoid(mean logits of its positive samples / 2): C numbers. First rounds:
supervised loss of two views. From their last one on, sites send the relations of their annotated classes, and the
server averages them. Then a site adds, with a weight that rises, the mean squared difference to a teacher at the site
and the divergence between the relations of the server and those of its own confident pseudo-labels. Pseudo-labels
shape the relations only and are not in the ledger.

- D1 the first stage lasts .04 R rounds, at least 1, and the weight is 1 from round .06 R on: 20 and 30 of the code's
  500.
- D2 a relation is made of all positives of the last local epoch, as the network saw them while it learned. The code
  takes the mean over batches, also over those without a positive, which give .5: at 1.5 % positives most of them.
- D3 a row that no site sent, or that came from too few positives, is not matched; the sum is divided by 2C all the
  same. P is kept within 1e-6 of 0 and 1, where the code's logarithm is infinite.
- D4 confident is an image of whose classes all are above .7 or below .3, with a summed entropy below 2 (code).
- D5 the supervised losses of the two views are added, not averaged (code): twice the scale of the baselines.
- D6 the difference to the teacher is summed over all C classes, the annotated ones too (code).
- D7 the teacher starts as the received model of a site's first round of stage 2. Its parameters follow the student's,
  with decay min(1 - 1/(n + 1), .99) after n steps; BatchNorm has the statistics of the teacher's own batches (code).

Passes per training sample and round: 2 E forward-backward; in stage 2 also E inferences of the teacher.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.averaging import mean_over_sites
from fedmend.fields import OF_MEANS, UNBOUNDED, Field, Report
from fedmend.method import Answer, Federation, RoundTask, Site, Workflow
from fedmend.methods.baselines import FedAvgPLRound, MultiLabelMethod
from fedmend.methods.shared.mean_teacher import OWN, LastingTeacher
from fedmend.methods.shared.prototypes import tellable
from fedmend.methods.shared.ramp_up import gaussian_ramp_up
from fedmend.methods.shared.settings import PartialShare, Weight

SUPERVISED, RELATION, MATCH = "supervised", "relation", "match"
STATE = "fedirm"
FIRST_STAGE, RAMP_END = 0.04, 0.06  # shares of all rounds
TEMPERATURE = 2.0
SURE_POSITIVE, SURE_NEGATIVE, LARGEST_ENTROPY = 0.7, 0.3, 2.0
SMALLEST = 1e-6
RELATIONS = Field(
    ("C", "C"),
    "float32",
    0,
    1,
    "row c: mean answers for all classes on the samples with annotated class c, from the end of the first stage",
    OF_MEANS,
    counted_by="relation_count",
)
FIELDS = {
    "relation": RELATIONS,
    "relation_count": Field(
        ("C",), "int64", 0, UNBOUNDED, "samples behind each relation", "counts per class", of_samples=True
    ),
}
KNOWLEDGE = {
    "relation": replace(
        RELATIONS,
        meaning="average relations; a row of zeros: unknown",
        risk="a class that one site alone knows has that site's row",
        counted_by="",
    )
}


# ---- the site -------------------------------------------------------------------------------------------------------
class FedIRMRound(FedAvgPLRound):
    """One round at a site."""

    method: "FedIRM"
    VIEWS = 2

    def __init__(self, method: "FedIRM", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._teacher: LastingTeacher | None = None
        if task.stage == MATCH:
            self._teacher = LastingTeacher(STATE, model, task, site, decay=method.ema_decay, statistics=OWN)
            self._relation = torch.from_numpy(task.word("relation")).to(site.device)
            end = RAMP_END * task.total_rounds
            self._weight = gaussian_ramp_up(task.round_num, begin=0, end=end, maximum=method.maximum)
        classes = len(site.data.classes)
        self._sums = torch.zeros(classes, classes, device=site.device)
        self._counts = torch.zeros(classes, device=site.device)

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """See :class:`Round`; the relations are those of the last epoch."""
        self._sums.zero_()
        self._counts.zero_()
        return super().batches(epoch)

    def loss(self, index: Tensor) -> Tensor:
        """Supervised losses of both views; in stage 2 also the differences to the teacher and to the relations."""
        first, second = self.logits(index), self.logits(index, 1)
        loss = self.supervised(first, index) + self.supervised(second, index)
        self._count(first.detach(), index)
        if self._teacher is None:
            return loss
        with torch.no_grad():
            target = self._teacher.network(self.images(index, 1))[1].float().sigmoid()
        difference = (first.sigmoid() - target).square().sum() / len(index)
        return loss + self._weight * (difference + relation_loss(pseudo_relations(first), self._relation))

    def _count(self, logits: Tensor, index: Tensor) -> None:
        """Adds the logits of the batch to the sums of the classes that its samples have."""
        rows = index.to(self.site.device, non_blocking=True)
        positive = self._target[rows]
        with torch.autocast(logits.device.type, enabled=False):
            self._sums += positive.T @ logits
        self._counts += positive.sum(0)

    def after_step(self) -> None:
        if self._teacher is not None:
            self._teacher.follow(self.model)

    def report(self) -> Report:
        """The relations of annotated classes, where the next round needs them; keeps the teacher."""
        task = self.task
        if self._teacher is not None:
            self._teacher.save(task, self.site)
        if task.stage == SUPERVISED or (task.stage == MATCH and task.round_num == task.total_rounds - 1):
            return {}
        told = tellable(self._target.cpu().numpy() > 0, self.site.min_count)
        counts = self._counts * torch.from_numpy(told).to(self._counts.device)
        relation = mean_relations(self._sums, counts).masked_fill(counts[:, None] == 0, 0)
        return {"relation": relation.cpu().numpy(), "relation_count": counts.cpu().numpy().astype(np.int64)}


@dataclass(kw_only=True, eq=False)
class FedIRM(MultiLabelMethod):
    """Client half of FedIRM.

    Args:
        maximum: largest weight of the two differences, >= 0.
        ema_decay: largest decay of the teacher, in [0, 1).
    """

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    ROUND = FedIRMRound
    maximum: Weight = 1.0
    ema_decay: PartialShare = 0.99


def mean_relations(sums: Tensor, counts: Tensor) -> Tensor:
    """(C, C) relations of (C, C) sums of logits over the positive samples of each class, and their (C,) numbers; .5 for
    a class without any."""
    return (sums / counts.clamp(min=1)[:, None] / TEMPERATURE).sigmoid()


def pseudo_relations(logits: Tensor) -> Tensor:
    """Logits of the relations of a batch by its confident pseudo-labels (D4).

    Args:
        logits: (B, C) float32.

    Returns:
        (C, C) mean logits / temperature, with gradient; 0 for a class without a confident positive.
    """
    p = logits.detach().sigmoid()
    entropy = F.binary_cross_entropy_with_logits(logits.detach(), p, reduction="none").sum(1)
    sure = ((p > SURE_POSITIVE) | (p < SURE_NEGATIVE)).all(1) & (entropy < LARGEST_ENTROPY)
    positive = ((p > 0.5) & sure[:, None]).float()
    with torch.autocast(logits.device.type, enabled=False):
        return positive.T @ logits / positive.sum(0).clamp(min=1)[:, None] / TEMPERATURE


def relation_loss(own: Tensor, relation: Tensor) -> Tensor:
    """Half of the sum of (P - Q)(log P - log Q) over rows that are known, by C: both divergences of positive parts.

    Args:
        own: (C, C) logits of Q.
        relation: (C, C) P; a row of zeros is unknown.
    """
    known = relation.any(1)[:, None]
    p = relation.clamp(SMALLEST, 1 - SMALLEST)
    terms = (p - own.sigmoid()) * (p.log() - F.logsigmoid(own))
    return torch.where(known, terms, 0).sum() / (2 * len(relation))


# ---- the server -----------------------------------------------------------------------------------------------------
class FedIRMWorkflow(Workflow):
    """Supervised rounds, then rounds with the average relations of the round before."""

    METHOD = FedIRM
    NEEDS = dict.fromkeys((SUPERVISED, RELATION, MATCH), tuple(FIELDS))

    @dataclass
    class Memory:
        """``knowledge``: relations of the last round, for the next one."""

        knowledge: dict[str, np.ndarray] = field(default_factory=dict)

    def run(self, fed: Federation) -> None:
        first = max(1, round(FIRST_STAGE * fed.num_rounds))
        for r in fed.rounds():
            unknown = r < first or not fed.memory.knowledge  # a run may go on with fewer rounds in all
            stage = SUPERVISED if r < first - 1 else RELATION if unknown else MATCH
            answers = fed.train(stage, knowledge=fed.memory.knowledge)
            fed.memory.knowledge = merged_relations(fed, answers) or fed.memory.knowledge  # a run may get more rounds

    def check(self, stage: str, report: Report) -> None:
        """Refuses a part of a report; in the last round there is none."""
        if report:
            super().check(stage, report)


def merged_relations(fed: Federation, answers: Mapping[str, Answer]) -> dict[str, np.ndarray]:
    """Mean of each row over the sites that annotate its class and sent it, weighted by their samples.

    Returns:
        ``relation`` (C, C) float32, zeros for a row that nobody sent; empty where no site reported.
    """
    reports = {site: answer.report for site, answer in answers.items() if answer.report}
    if not reports:
        return {}
    weights = {
        s: fed.sites[s].samples * (fed.sites[s].annotated & (r["relation_count"] > 0)) for s, r in reports.items()
    }
    return {"relation": mean_over_sites({site: report["relation"] for site, report in reports.items()}, weights)}
