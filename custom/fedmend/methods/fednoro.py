"""FedNoRo: sites whose labels are noisy are found by their class-wise losses and then learned from with care.

Wu, Yu, Jiang, Cheng, Yan, "FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label
Noise Heterogeneity", IJCAI 2023. K sites, C classes, single-label.

Stage 1: FedAvg with logit-adjusted cross-entropy. Then every site sends the mean loss of each of its classes under the
aggregated model; the server normalises them (Eq. 3) and splits the sites with a two-component Gaussian mixture. Stage
2: noisy sites distil the received model (Eqs. 4-5) beside their own labels, and the server weights them by their
distance to the nearest clean model (Eqs. 6-7). Labels are never changed.

Where paper and reference code (commit 6719ad7) differ, or both are silent:

- D1 weights to start from: the job's ``weights`` (a local file), random without it; the paper says ImageNet, the code's
  default is random.
- D2 distance: code, the sum over tensors of their L2 norms, BatchNorm statistics included; the paper's Eq. (6) is one
  norm over all.
- D3 the noisy component is the one with the larger sum of means (code); the paper says norm.
- D4 the set of noisy sites that most of 9 mixtures agree on wins (code; ``votes``); its share is recorded. Where all
  sites are alike the mixtures disagree: with less than ``min_vote_share`` of the votes no site is taken for noisy
  (neither paper nor code; 0 is the published rule).
- D5 KL divergence with the teacher first (code; Eq. 5 is written the other way round), no temperature in the student.
- D6 logit adjustment in both terms of Eq. (5) (code; the paper's "introduced to both").
- D7 the ramp of lambda runs over absolute rounds, from ``ramp_begin`` to ``ramp_end``. In the code these are 10 and 49
  for T1 = 10 and R = 100: 39 of the 90 rounds of stage 2. The defaults keep this share: T1 and T1 + 39/90 (R - T1),
  rounded. R/2 - 1, which is 49 too, would leave no ramp where the warm-up is long.
- D8 "Best" is the maximum over all rounds (paper). D9, D10: see :mod:`fedmend.datasets.imperfections`.
- Class-wise losses are taken on plain images, where the code leaves the random augmentation on: less noise in Eq. (3).
- A class without a sample at a site has prior 0: it is never predicted there, and the teacher's mass on it is dropped
  from the divergence (code).
- Mixture: sklearn's defaults with full covariance (code, whose K is 20; ``covariance`` = full). Few noisy sites lie
  apart from each other as far as from the clean ones, so that k-means, where the code's fit starts, splits off one of
  them, and a full matrix has more numbers than there are sites. ``auto`` therefore is full from 20 sites on, and below
  spherical: one variance per component, of at least 0.02, so that no site is a component because it is alone, and the
  likeliest of 10 fits that start at random sites. The floor was chosen on the phantoms.
- A constant column of Eq. (3), where the code divides by zero, becomes 0. No noisy or no clean site, where the code
  fails: federated averaging goes on.
- A site that sent no usable losses is treated as noisy: nothing vouches for its labels.

Judged sites (``JudgedFedNoRo``, not in the paper): the warm-up model may have learned errors of the noisy sites, which
makes their losses too small. Here each site solves heads on the features of the model that the job starts with, which
needs ``weights``, before anything is trained. What enters Eq. (3) are the losses of its labels under the heads of all
others (:mod:`fedmend.methods.shared.judging`). It costs one more exchange and inference, and a row of a classifier for
each class leaves the site.

Passes per training sample and round: E forward-backward; at noisy sites in stage 2 also E inferences of the teacher, as
it sees the student's augmented batch; one inference in all for the detection.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.averaging import Contributions, by_samples
from fedmend.fields import Field, Report
from fedmend.learning.heads import HEAD_FIELDS
from fedmend.learning.inference import infer
from fedmend.method import Federation, RoundTask, Site, Workflow
from fedmend.methods.shared.class_losses import (
    MIN_VOTE_SHARE,
    VOTES,
    check_counts,
    class_losses,
    find_noisy_sites,
)
from fedmend.methods.shared.dimensions import AUTO, MIN_SITES, MIXTURES
from fedmend.methods.shared.distances import model_distances
from fedmend.methods.shared.judging import HEADS, JUDGE, heads_to_judge_by, judged, judged_losses
from fedmend.methods.shared.judging import KNOWLEDGE as HEADS_OF_ALL
from fedmend.methods.shared.noisy_sites import CLEAN, DETECT, FIELDS, KNOWLEDGE, NOISY, ROBUST, WARMUP, TaughtRound
from fedmend.methods.shared.ramp_up import gaussian_ramp_up
from fedmend.methods.shared.settings import Count, Positive, Settings, Share, one_of
from fedmend.methods.shared.singlelabel import SingleLabelMethod, SingleLabelRound, class_numbers

RAMP_SHARE = 39 / 90  # of the rounds of stage 2 (D7)


# ---- the site -------------------------------------------------------------------------------------------------------
class FedNoRoRound(TaughtRound, SingleLabelRound):
    """One round at a site."""

    method: "FedNoRo"

    def own_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of (B, C) logits and (B,) classes."""
        return F.cross_entropy(logits, target)


@dataclass(kw_only=True, eq=False)
class FedNoRo(SingleLabelMethod):
    """Client half of FedNoRo.

    Args:
        la: logit adjustment by the local class prior in all training losses.
        temperature: T of Eq. (4), > 0.
    """

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    ROUND = FedNoRoRound
    la: bool = True
    temperature: Positive = 0.8

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Class-wise mean losses of the received model, eval mode, no logit adjustment."""
        logits = infer(model, site.data.train, site)[1]
        return class_losses(logits, class_numbers(site, site.labels()))


@dataclass(kw_only=True, eq=False)
class JudgedFedNoRo(FedNoRo):
    """Client half of FedNoRo with judged sites."""

    FIELDS: ClassVar[dict[str, Field]] = {**FIELDS, **HEAD_FIELDS}
    KNOWLEDGE: ClassVar[dict[str, Field]] = {**KNOWLEDGE, **HEADS_OF_ALL}

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """The site's heads, or how well its labels fit those of all others."""
        features = infer(model, site.data.train, site)[0]
        return judged(features, task, site) if task.stage == JUDGE else heads_to_judge_by(model, features, site)


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class FedNoRoWorkflow(Settings, Workflow):
    """Warm-up, detection of the noisy sites once, then robust training.

    Args:
        warmup_rounds: T1 >= 1.
        ramp_begin: round from which lambda rises; -1: the first round of stage 2.
        ramp_end: round from which lambda has its largest value; -1: after 39/90 of the rounds of stage 2. Not after
            ``ramp_begin``: lambda has its largest value at once.
        ramp_maximum: largest lambda, in [0, 1].
        votes: mixtures that vote on the set of noisy sites.
        covariance: of the mixtures: ``full`` (the released code), ``spherical``, or ``auto``: full from 20 sites on.
        min_vote_share: share of the mixtures that must agree on the noisy sites; with less, none is taken for noisy.
        aggregation: how stage 2 averages (rows of the paper's Table 4): ``distance`` (Eqs. 6-7), ``samples`` (Eq. 2) or
            ``clean`` (noisy sites do not take part).
        detection_per_class: losses per class (Eq. 3); False: one loss per site.
        detection_normalise: min-max normalisation of Eq. (3).
    """

    METHOD = FedNoRo
    judges: ClassVar[bool] = False  # sites are judged before the first round
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {DETECT: tuple(FIELDS)}
    least_sites = MIN_SITES

    @dataclass
    class Memory:
        """``roles``: site → noisy or clean, once they were told apart."""

        roles: dict[str, str] = field(default_factory=dict)

    warmup_rounds: Count = field()
    ramp_begin: int = -1
    ramp_end: int = -1
    ramp_maximum: Share = 0.8
    votes: Count = VOTES
    covariance: Annotated[str, one_of(AUTO, *MIXTURES)] = AUTO
    min_vote_share: Share = MIN_VOTE_SHARE
    aggregation: Annotated[str, one_of("distance", "samples", "clean")] = "distance"
    detection_per_class: bool = True
    detection_normalise: bool = True

    def run(self, fed: Federation) -> None:
        begin, end = self.ramp(fed.num_rounds)
        if end <= begin and max(self.ramp_begin, self.ramp_end) >= 0:
            fed.warn(f"ramp_end: expected a round after ramp_begin, {begin}, got {end}: lambda does not rise")
        for r in fed.rounds():
            first = 0 if self.judges else self.warmup_rounds
            if r == first or (r > first and not fed.memory.roles):  # a run may go on with a shorter warm-up
                fed.memory.roles = self._detect(fed)  # Eq. (3)
            if r < self.warmup_rounds:  # stage 1, Eq. (2)
                fed.train(WARMUP)
            else:
                self._robust_round(fed, r)  # stage 2, Eqs. (4)-(7)

    def ramp(self, num_rounds: int) -> tuple[int, int]:
        """Rounds between which lambda rises (D7), of a run of R rounds."""
        begin = self.warmup_rounds if self.ramp_begin < 0 else self.ramp_begin
        end = self.warmup_rounds + round(RAMP_SHARE * (num_rounds - self.warmup_rounds))
        return begin, end if self.ramp_end < 0 else self.ramp_end

    def trusted_sites(self, fed: Federation) -> Sequence[str] | None:
        """The clean ones, once they were told apart; a site that was not there then has shown nothing."""
        return [site for site in fed.sites if fed.memory.roles.get(site) == CLEAN] or None

    def check(self, stage: str, report: Report) -> None:
        """Also refuses a detection report without a class that has enough samples."""
        super().check(stage, report)
        if stage in (DETECT, JUDGE):
            check_counts(report)

    def told_losses(self, fed: Federation) -> dict[str, Report]:
        """Site → the class-wise losses that noisy sites are found by."""
        return {site: a.report for site, a in fed.collect(DETECT, at_least=MIN_SITES).items()}

    def _detect(self, fed: Federation) -> dict[str, str]:
        reports = self.told_losses(fed)
        noisy = find_noisy_sites(
            fed,
            reports,
            votes=self.votes,
            covariance=self.covariance,
            min_vote_share=self.min_vote_share,
            per_class=self.detection_per_class,
            normalise=self.detection_normalise,
        )
        distrusted = {*noisy, *(set(fed.sites) - set(reports))}
        if not distrusted or len(distrusted) == len(fed.sites):
            sentence = f"no {'clean' if distrusted else 'noisy'} site found: federated averaging goes on"
            fed.record("fallback", sentence)
            fed.warn(sentence)
            distrusted = set()
        return {site: NOISY if site in distrusted else CLEAN for site in fed.sites}

    def _robust_round(self, fed: Federation, round_num: int) -> None:
        begin, end = self.ramp(fed.num_rounds)
        weight = gaussian_ramp_up(round_num, begin=begin, end=end, maximum=self.ramp_maximum)
        # A site that was not there when an earlier job of this run told them apart has shown nothing.
        roles = {site: fed.memory.roles.get(site, NOISY) for site in fed.sites}
        noisy = [site for site, role in roles.items() if role == NOISY]
        clean = sorted(set(roles) - set(noisy))  # none where a run goes on without them
        answers = fed.train(
            ROBUST,
            sites=clean if self.aggregation == "clean" and noisy and clean else None,
            roles=roles,
            knowledge={"distillation_weight": np.array(weight, dtype=np.float32)},
            average=partial(distance_aware, noisy) if self.aggregation == "distance" and noisy else by_samples,
        )
        if noisy:
            fed.record("distillation_weight", round(weight, 4))
            fed.record("aggregation_weights", {site: round(a.share, 4) for site, a in answers.items()})


@dataclass(kw_only=True, eq=False)
class JudgedFedNoRoWorkflow(FedNoRoWorkflow):
    """FedNoRo whose noisy sites are found by the losses of their labels under the heads of all others."""

    METHOD = JudgedFedNoRo
    judges = True
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {HEADS: tuple(HEAD_FIELDS), JUDGE: tuple(FIELDS)}

    def told_losses(self, fed: Federation) -> dict[str, Report]:
        """Site → the class-wise losses of its labels under the heads of all others."""
        heads = {site: a.report for site, a in fed.collect(HEADS, at_least=MIN_SITES).items()}
        return judged_losses(fed, heads)


def distance_aware(noisy: Collection[str], contributions: Contributions) -> dict[str, float]:
    """DaAgg: weight N_k e^-D(k) of each model, Eqs. (6)-(7), Wu et al., IJCAI 2023.

    D of a noisy site is the distance of its model to the nearest clean one, divided by the largest of them; D of a
    clean site is 0. Without noisy or without clean models this is federated averaging.

    Args:
        noisy: names of the noisy sites.
        contributions: site → samples and model.
    """
    flags = np.array([site in noisy for site in contributions])
    distances = np.zeros(len(flags))
    if flags.any() and not flags.all():
        distances = model_distances([c.model for c in contributions.values()], flags)  # D2
    weights = distance_aware_weights([c.samples for c in contributions.values()], distances)
    return dict(zip(contributions, weights.tolist(), strict=True))


def distance_aware_weights(samples: Sequence[int], distances: np.ndarray) -> np.ndarray:
    """Weight of every model in the average, N_i e^-D(i), Eqs. (6)-(7), Wu et al., IJCAI 2023.

    Args:
        samples: K numbers of training samples.
        distances: (K,) d of Eq. (6), >= 0.

    Returns:
        (K,) float64; N_i where all distances are 0.
    """
    scaled = distances / distances.max() if distances.max() > 0 else distances
    return np.asarray(samples, dtype=np.float64) * np.exp(-scaled)
