"""Rules that tell sites with noisy labels from the others, all tried on the same warm-up: rows of FedNoRo's Table 3.

Wu, Yu, Jiang, Cheng, Yan, "FedNoRo", IJCAI 2023. The warm-up is federated averaging with logit adjustment (``la``),
as in FedNoRo. Then every site tells of its training samples, on plain images and without logit adjustment:

- the mean loss of each class, which is FedNoRo's indicator, Eq. (3);
- the mean local intrinsic dimension of the predictions, larger at noisy sites (FedCorr: Xu et al., CVPR 2022);
- the mean of the largest softmax probability, smaller at noisy sites (FedNoiL: Wang et al., 2022);
- a head for each class, and then the mean loss of each class under the heads of all others (ours,
  :mod:`fedmend.methods.shared.judging`).

Nothing is done about the sites that are found. Decisions:

- D1 the paper counts how often single mixtures are right, over 10,000 of them; here ``votes`` mixtures vote, as in the
  method, and the share of federations in which the winner is right takes the place of that count.
- D2 dimension and confidence are scaled to 0..1, for which the floor under the variance of the spherical mixtures is
  made; a mixture with full covariance does not notice.
- D3 only the rule of the job asks for ``min_vote_share``, so that no other rule is silent where it is unsure.

Cost: the warm-up, and four inferences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from torch import nn

from fedmend.fields import Field, Report
from fedmend.learning.heads import HEAD_FIELDS
from fedmend.learning.inference import infer
from fedmend.method import Federation, RoundTask, Site, Workflow
from fedmend.methods.baselines import SingleLabelFedAvg
from fedmend.methods.shared.class_losses import (
    MIN_VOTE_SHARE,
    VOTES,
    check_counts,
    class_losses,
    loss_matrix,
    normalise_losses,
)
from fedmend.methods.shared.dimensions import (
    AUTO,
    LID,
    MIN_SITES,
    MIXTURES,
    detect_noisy_clients,
    local_intrinsic_dimension,
    min_max,
)
from fedmend.methods.shared.judging import HEADS, JUDGE, KNOWLEDGE, heads_to_judge_by, judged, judged_losses
from fedmend.methods.shared.noisy_sites import DETECT, WARMUP
from fedmend.methods.shared.noisy_sites import FIELDS as LOSSES
from fedmend.methods.shared.settings import Count, Settings, Share, one_of
from fedmend.methods.shared.singlelabel import class_numbers

LOSS, DIMENSION, CONFIDENCE, JUDGED = "loss", "lid", "mean_confidence", "judged"
RECORD = "detection_rules"  # of the decision, which fedmend.comparison.detection_table reads


@dataclass(frozen=True)
class Rule:
    """How noisy sites are told from the others.

    Attributes:
        indicator: what sites are told apart by.
        per_class: losses per class; False: one per site.
        normalise: min-max normalisation of Eq. (3).
        covariance: of the mixtures; "": that of the job.
        sure: with less than ``min_vote_share`` of the votes no site is taken for noisy.
    """

    indicator: str = LOSS
    per_class: bool = True
    normalise: bool = True
    covariance: str = ""
    sure: bool = False


RULES = {
    "rule of the job": Rule(sure=True),
    "without a least vote share": Rule(),
    "full covariance, as released": Rule(covariance="full"),
    "losses not normalised": Rule(normalise=False),
    "one loss per site": Rule(per_class=False),
    "mean LID": Rule(DIMENSION),
    "mean confidence": Rule(CONFIDENCE),
    "losses under the others' heads": Rule(JUDGED),
}


# ---- the site -------------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class DetectionRules(SingleLabelFedAvg):
    """Client half of the comparison of detections."""

    FIELDS: ClassVar[Mapping[str, Field]] = {
        **LOSSES,
        **HEAD_FIELDS,
        DIMENSION: LID,
        CONFIDENCE: Field(
            (), "float32", 0, 1,
            "mean of the largest probability that the model gives a training sample",
            "one mean over all samples, which tells how easy the site's images are",
        ),
    }  # fmt: skip
    KNOWLEDGE = KNOWLEDGE
    la: bool = True

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Every indicator of the received model, in eval mode; or heads, or losses under those of all others."""
        features, logits = infer(model, site.data.train, site)
        if task.stage == HEADS:
            return heads_to_judge_by(model, features, site)
        if task.stage == JUDGE:
            return judged(features, task, site)
        probabilities = logits.double().softmax(1).numpy()
        return {
            **class_losses(logits, class_numbers(site, site.labels())),
            DIMENSION: np.array(local_intrinsic_dimension(probabilities).mean(), dtype=np.float32),
            CONFIDENCE: np.array(probabilities.max(1).mean(), dtype=np.float32),
        }


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class DetectionRulesWorkflow(Settings, Workflow):
    """The warm-up, then every rule on the same reports.

    Args:
        warmup_rounds: T1, all rounds that there are.
        votes: mixtures that vote on the set of noisy sites.
        covariance: of the mixtures of the job's rule: ``full``, ``spherical``, or ``auto``.
        min_vote_share: share of the mixtures that must agree, in the job's rule.
    """

    METHOD = DetectionRules
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {
        DETECT: (*LOSSES, DIMENSION, CONFIDENCE),
        HEADS: tuple(HEAD_FIELDS),
        JUDGE: tuple(LOSSES),
    }
    least_sites = MIN_SITES

    warmup_rounds: Count = 1
    votes: Count = VOTES
    covariance: Annotated[str, one_of(AUTO, *MIXTURES)] = AUTO
    min_vote_share: Share = MIN_VOTE_SHARE

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds(self.warmup_rounds):
            fed.train(WARMUP)
        reports = {site: a.report for site, a in fed.collect(DETECT, at_least=MIN_SITES).items()}
        heads = {site: a.report for site, a in fed.collect(HEADS, at_least=MIN_SITES).items()}
        told = {JUDGED: judged_losses(fed, heads)}
        fed.record(RECORD, {n: self._found(rule, told.get(rule.indicator, reports)) for n, rule in RULES.items()})

    def check(self, stage: str, report: Report) -> None:
        """Also refuses a report without a class that has enough samples."""
        super().check(stage, report)
        if stage in (DETECT, JUDGE):
            check_counts(report)

    def _found(self, rule: Rule, reports: Mapping[str, Report]) -> dict[str, object]:
        covariance = rule.covariance or self.covariance
        detection = detect_noisy_clients(indicators(rule, reports), votes=self.votes, covariance=covariance)
        agreed = not rule.sure or detection.vote_share >= self.min_vote_share
        noisy = [site for site, flag in zip(sorted(reports), detection.noisy, strict=True) if flag and agreed]
        return {"noisy": noisy, "vote_share": round(detection.vote_share, 4)}


def indicators(rule: Rule, reports: Mapping[str, Report]) -> np.ndarray:
    """(K, C) or (K, 1) float64, larger at noisy sites; K sites in sorted order.

    Args:
        rule: which indicator, and how it is scaled.
        reports: site → report.
    """
    if rule.indicator in (LOSS, JUDGED):
        return normalise_losses(loss_matrix(reports, per_class=rule.per_class), normalise=rule.normalise)
    values = np.array([float(reports[site][rule.indicator]) for site in sorted(reports)])
    return min_max(-values if rule.indicator == CONFIDENCE else values)[:, None]
