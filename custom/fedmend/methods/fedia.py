"""FedIA: lesions that were only partly annotated, at each site to another degree.

Xiang, Wu, Yu, Yang, Cheng, Yan, "FedIA: Federated Medical Image Segmentation with Heterogeneous Annotation
Completeness", MICCAI 2024. theta_T is the global model after the T rounds of the warm-up; a_k the completeness of site
k, lesions annotated / lesions.

1. Warm-up, rounds 1..T: federated averaging (Eq. 1) with Dice loss (Eq. 2).
2. Then each site estimates its completeness once with theta_T (Eq. 3), and fits a line to its learning curve (Eq. 6).
   Models are averaged by exp(a_k / l_k), l_k the training loss (Eqs. 4-5). A site whose IoU falls behind its line has
   begun to learn unmarked lesions as background (Eq. 7); in the next round it marks what the global model is sure of.
3. When all sites have done so: federated averaging again.

Where paper and reference code (HUSTxyy/FedIA) differ, or the paper is silent:

- D1 completeness is the ratio of sums of Eq. (3), with 8-connected components of slices and one pass of theta_T in eval
  mode over plain images, predicted is what is above 0.5. The code averages ratios of shuffled batches during training,
  and divides by zero; no option brings that back. Where theta_T predicts no component there is no estimate: the site
  counts as 0, the least complete, since a count of one in the denominator would give it the whole average.
- D2 an estimate above 1 is kept, as an early model misses small lesions at all sites alike.
- D3 l_k is the mean training loss of the round's batches (code), at least 0.001; Eq. (5) would need a pass of its own.
- D4 IoU is (1 - l) / (1 + l), the Jaccard index of Dice 1 - l (code); that of masks would need a pass of its own.
- D5 T rounds of warm-up, the line through all T points, the estimate with theta_T.
- D6 the correction is done before the local training of the round after the trigger, by the received global model on
  plain images (paper); the code corrects the batch at hand, so that the round still trains on the old masks.
- D7 lesion is marked where the probability is above 0.8, and nothing is ever unmarked.
- D8 stage 3 begins when every site has corrected; the code does not wait for the corrections of the sites that were
  triggered last.
- D9 Adam as the job says (beta_2 .99 in the paper); weight decay from the code. The learning rate is constant in the
  code; the paper calls its own "initial" and does not say what follows, so the job has ``learning_rate_decay``.
- D10 one channel, where the code has two. D11 see :func:`fedmend.learning.losses.soft_dice_loss`; images are in 0..1,
  in the code grey values from 0 to 255.
- D12 a correction that would mark more than ``most_added`` times the pixels that the site has marked waits for a later
  model, as one that marks nearly everything ruins the run. The published rule, 0, has no limit. A twentieth of the
  lesion is marked at the limit of 19; where a site marks a tenth of its lesions, by number, it may lack more: the limit
  then is too low.

The published trigger has weaknesses. A line over the whole warm-up is too flat where the warm-up begins slowly, so that
sites correct late or never: ``line_share`` leaves its first rounds out. A site with few annotations has a flat curve,
which can never fall 0.03 below its line, and a fully annotated site that has a bad round is corrected too:
``relative``, ``patience`` and ``gate`` mend that. The curve is flat because a slice without a mark has Dice loss 1:
where a share q of the slices has marks, even a perfect model has no IoU above q / (2 - q). With ``marked_slices`` l and
IoU are of slices with marks alone, and lambda means the same at all sites. exp(a / l) soon gives one site the whole
average, and at once where one estimate is far too high: ``temperature``. What is marked may be whole lesions rather
than the pixels that are sure (``extent``), and as much as is missing by the estimate rather than what is above a fixed
threshold (``volume_prior``).
"""

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import by_samples
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.learning.inference import infer_masks
from fedmend.learning.losses import soft_dice_loss
from fedmend.method import Answer, Federation, RoundTask, Site, Workflow
from fedmend.methods.shared.completeness import completeness, completeness_aware
from fedmend.methods.shared.learning_curve import fit_line, soft_iou
from fedmend.methods.shared.lesions import count_components, threshold_for
from fedmend.methods.shared.settings import Count, MarkThreshold, Range, Settings, Share, SomeShare, Weight
from fedmend.methods.shared.slices import (
    CORRECTION_FLAG,
    DONE,
    EXEMPT,
    TRIGGERED,
    WAITS,
    SliceMethod,
    SliceRound,
    unmarked_lesions,
)

LOG = logging.getLogger("fedmend.fedia")
WARMUP, COMPLETENESS, CORRECTION, CORRECTED = "warmup", "completeness", "correction", "corrected"  # stages
RULE = "fedia.correction"
STATE = "fedia"
WHOLE_SITE = "numbers about the whole site"
FIELDS = {
    "lesions": Field((2,), "int64", 0, UNBOUNDED, "components in annotation and prediction, once (Eq. 3)", WHOLE_SITE),
    "dice_loss": Field((1,), "float32", 0, 1, "l of Eq. (4), mean over the batches of a round", WHOLE_SITE),
    "iou_line": Field(
        (2,), "float32", -UNBOUNDED, UNBOUNDED, "value and slope of the line of Eq. (6), once", WHOLE_SITE
    ),
    "correction": CORRECTION_FLAG,
}
KNOWLEDGE = {
    "first_round": Field((), "int64", 0, UNBOUNDED, "first round of stage 2", "none"),
    "best_completeness": Field(
        (), "float64", 0, UNBOUNDED, "largest estimate of Eq. (3)", "tells sites how complete the best one is"
    ),
}


# ---- the site -------------------------------------------------------------------------------------------------------
class FedIARound(SliceRound):
    """One round at a site: forgets an earlier attempt at it, and corrects the annotation if the last round said so."""

    method: "FedIA"

    def __init__(self, method: "FedIA", model: nn.Module, task: RoundTask, site: Site):
        self._progress = Progress.load(site).before(task.round_num)
        due = self._progress.triggered is not None and self._progress.corrected is None
        if due and method.correct_masks(model, task, site, self._progress.lesions):
            self._progress.corrected = task.round_num
        self._progress.save(site)
        super().__init__(method, model, task, site)
        self._losses: list[Tensor] = []
        self._marked: list[Tensor] = []  # share of slices with a mark, of each batch

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Dice loss of Eq. (2) on the annotation in force."""
        dice = soft_dice_loss(logits.softmax(1)[:, 1], marks)
        self._losses.append(dice.detach())
        self._marked.append(marks.flatten(1).any(1).float().mean())
        return dice

    def _mean_loss(self) -> float:
        """l of Eq. (4)."""
        loss = torch.stack(self._losses).mean()
        if self.method.marked_slices and (marked := torch.stack(self._marked).mean()) > 0:
            loss = (1 - (1 - loss) / marked).clamp(0, 1)  # without the slices whose loss is 1 because nothing is marked
        return float(loss)

    def report(self) -> Report:
        """The loss of the round, and how far the correction is."""
        task, progress = self.task, self._progress
        loss = self._mean_loss()
        progress.iou[task.round_num] = soft_iou(loss)
        if task.stage == CORRECTION and self.method.falls(progress, task):
            progress.triggered = task.round_num
            LOG.info("%s: the IoU has fallen behind its line; the annotation is corrected next round", self.site.name)
        progress.save(self.site)
        return {
            "dice_loss": np.array([loss], dtype=np.float32),
            "correction": np.array([self.method.how_far(progress, task)], dtype=np.int64),
        }


@dataclass
class Progress:
    """What a site must remember.

    Attributes:
        iou: round → IoU of the learning curve.
        line: value in round 0 and slope of its line, Eq. (6).
        lesions: the site's own two counts of Eq. (3).
        estimated: the first round behind the estimate, which line and lesions are of.
        triggered: round in which the IoU fell behind the line.
        corrected: round in which the masks were corrected.
    """

    iou: dict[int, float] = field(default_factory=dict)
    line: tuple[float, float] | None = None
    lesions: list[int] | None = None
    triggered: int | None = None
    corrected: int | None = None
    estimated: int | None = None

    @classmethod
    def load(cls, site: Site) -> "Progress":
        """What an earlier task left."""
        return cls(**site.state.load(STATE, {}))

    def save(self, site: Site) -> None:
        """Keeps it for the next task."""
        site.state.save(STATE, vars(self))

    def before(self, round_num: int) -> "Progress":
        """Without what an earlier attempt at this round, or at a later one, or an earlier run of this name left."""

        def earlier(found: int | None) -> int | None:
            return found if found is not None and found < round_num else None

        iou = {r: iou for r, iou in self.iou.items() if r < round_num}
        found = Progress(iou, triggered=earlier(self.triggered), corrected=earlier(self.corrected))
        if self.estimated is None or self.estimated <= round_num:
            found.line, found.lesions, found.estimated = self.line, self.lesions, self.estimated
        return found


@dataclass(kw_only=True, eq=False)
class FedIA(SliceMethod):
    """Client half of FedIA, and of FedAvg, which is FedIA without correction.

    Args:
        correct: mark what was left unmarked (section 2.4).
        line_share: share of the warm-up, its last rounds, that the line of Eq. (6) goes through, above 0 to 1; at least
            two rounds.
        gap: lambda, how far the IoU must fall behind the line, >= 0.
        relative: lambda is a share of the line's value.
        patience: rounds in a row that it must do so, >= 1.
        gate: a site with at least this share of the largest estimated completeness is not corrected; 0: none is spared.
        threshold: probability above which a pixel is marked.
        extent: a pixel above ``threshold`` brings along the pixels around it that are above this, 0 to 1; from
            ``threshold`` on: none.
        volume_prior: in place of ``threshold``, each site takes the one, from 0.5 on, above which are as many unmarked
            pixels as it lacks by its estimate a of Eq. (3), marked pixels times 1 / a - 1; without an estimate
            ``threshold``.
        marked_slices: l and IoU are of slices with a mark alone.
        most_added: most pixels that a correction adds, times the marked ones; 0: any number.
        min_component: smallest component in pixels that counts as a lesion, in annotation and prediction, >= 1.
    """

    FIELDS = FIELDS
    KNOWLEDGE = KNOWLEDGE
    VOLUMES = True
    ROUND = FedIARound
    correct: bool = True
    line_share: SomeShare = 1.0
    gap: Weight = 0.03
    relative: bool = False
    patience: Count = 1
    gate: Share = 0.0
    threshold: MarkThreshold = 0.8
    min_component: Count = 1
    extent: Share = 1.0
    volume_prior: bool = False
    marked_slices: bool = False
    most_added: Weight = 19.0

    def correct_masks(self, model: nn.Module, task: RoundTask, site: Site, lesions: Sequence[int] | None) -> bool:
        """Marks what the received model is sure of, section 2.4, Xiang et al., MICCAI 2024; Eq. (7) says when.

        Args:
            model: the received one.
            task: says under which round.
            site: data and ledger.
            lesions: the two counts of Eq. (3), if the site has them.

        Returns:
            True; False: nothing was marked, as it would have been too much (D12).
        """
        own, estimate = site.ledger.judged(site.data.train.masks) > 0, completeness(np.array(lesions or (0, 0)))
        threshold, marked = self.threshold, int(own.sum())
        if self.volume_prior and estimate:
            closed = own | site.ledger.refused()
            unmarked = (p[~closed[index]] for index, p in infer_masks(model, site.data.train, site))
            threshold = threshold_for(unmarked, marked * (1 / estimate - 1))
        added, confidence = unmarked_lesions(model, site, threshold, extent=min(self.extent, threshold))
        if (pixels := int((added & ~own).sum())) > self.most_added * marked > 0:
            LOG.warning("%s: %d pixels beside %d marked ones are too many; corrected later", site.name, pixels, marked)
            return False
        site.ledger.record(RULE, task.ledger_round, added, confidence)
        LOG.info("%s: %d pixels of %d slices marked as lesion", site.name, pixels, added.any((1, 2)).sum())
        return True

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Completeness by theta_T (Eq. 3) and the line of the learning curve (Eq. 6).

        Raises:
            FedMendError: the site took part in fewer than two rounds; it goes on as one that joined after the warm-up.
        """
        progress, split, predicted = Progress.load(site), site.data.train, 0
        own = site.ledger.judged(split.masks) > 0  # what people accepted in other runs is annotation, too
        first = task.round_num - max(2, math.ceil(self.line_share * task.round_num))
        progress.line = fit_line({r: iou for r, iou in progress.iou.items() if r < task.round_num}, first)
        for _, probability in infer_masks(model, split, site):
            predicted += count_components(probability > 0.5, smallest=self.min_component)
        progress.lesions = [count_components(own, smallest=self.min_component), predicted]
        progress.estimated = task.round_num
        progress.save(site)
        lesions, line = np.array(progress.lesions, dtype=np.int64), np.array(progress.line, dtype=np.float32)
        return {"lesions": lesions, "iou_line": line}

    def _exempt(self, progress: Progress, task: RoundTask) -> bool:
        own = completeness(np.array(progress.lesions)) if progress.lesions else 0.0
        # Without an estimate a site is the least complete one, also where no site has any.
        return self.gate > 0 and own > 0 and own >= self.gate * float(task.word("best_completeness"))

    def falls(self, progress: Progress, task: RoundTask) -> bool:
        """Whether the IoU fell behind its line in the last ``patience`` rounds of stage 2, trigger of Eq. (7)."""
        if not self.correct or progress.triggered is not None or progress.line is None:
            return False
        rounds = range(task.round_num - self.patience + 1, task.round_num + 1)
        known = rounds[0] >= int(task.word("first_round")) and set(rounds) <= set(progress.iou)
        if not known or self._exempt(progress, task):
            return False
        value, slope = progress.line
        expected = {r: value + slope * r for r in rounds}
        gaps = {r: self.gap * line if self.relative else self.gap for r, line in expected.items()}
        return all(expected[r] - progress.iou[r] > gaps[r] for r in rounds)

    def how_far(self, progress: Progress, task: RoundTask) -> int:
        """``WAITS``, ``TRIGGERED``, ``DONE`` or ``EXEMPT``."""
        if progress.corrected is not None:
            return DONE
        if progress.triggered is not None:
            return TRIGGERED
        return EXEMPT if task.stage != WARMUP and self.correct and self._exempt(progress, task) else WAITS


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class FedIAWorkflow(Settings, Workflow):
    """Warm-up, one estimate of the completeness, completeness-aware aggregation with correction, federated averaging.

    Args:
        warmup_rounds: T >= 2, which a line needs.
        completeness_aggregation: average by completeness and loss in stage 2 (Eq. 4); False: by samples.
        temperature: of the average by completeness, see
            :func:`fedmend.methods.shared.completeness.completeness_weights`; 0: as published.
    """

    METHOD = FedIA
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {
        COMPLETENESS: ("lesions", "iou_line"),
        **dict.fromkeys((WARMUP, CORRECTION, CORRECTED), ("dice_loss", "correction")),
    }

    @dataclass
    class Memory:
        """``completeness``: site → a of Eq. (3); ``correction``: site → how far it is."""

        completeness: dict[str, float] = field(default_factory=dict)
        correction: dict[str, int] = field(default_factory=dict)

    warmup_rounds: Annotated[int, Range(lambda value: value >= 2, "at least 2, which a line needs")] = field()
    completeness_aggregation: bool = True
    temperature: Weight = 0.0

    def run(self, fed: Federation) -> None:
        for r in fed.rounds():
            late = r > self.warmup_rounds and not fed.memory.completeness  # a run may go on with a shorter warm-up
            if r == self.warmup_rounds or late:
                fed.memory.completeness = self._estimate(fed)  # Eqs. (3) and (6)
            if r < self.warmup_rounds:  # stage 1, Eq. (1)
                self._train(fed, WARMUP)
            elif uncorrected(fed.memory, fed.sites):  # stage 2, Eqs. (4)-(7)
                self._train(fed, CORRECTION)
            else:  # stage 3, Eq. (1)
                self._train(fed, CORRECTED)
        if left := uncorrected(fed.memory, fed.sites):
            fed.record("not_corrected", left)
            words = "their IoU never fell behind its line, corrections were too large, or the job has none"
            fed.warn(f"not corrected by the end: {', '.join(left)}; {words}")

    @staticmethod
    def _estimate(fed: Federation) -> dict[str, float]:
        answers = fed.collect(COMPLETENESS)
        lesions = {site: answer.report["lesions"] for site, answer in answers.items()}
        estimates = {site: completeness(counts) for site, counts in lesions.items()}
        counts = {
            site: {"annotated": int(marked), "predicted": int(found)} for site, (marked, found) in lesions.items()
        }
        fed.record("completeness", {site: {**both, "estimate": estimates[site]} for site, both in counts.items()})
        for site, (marked, found) in lesions.items():
            where = f"{site}: completeness:"
            if not found:
                fed.warn(f"{where} the model finds no lesion there, so it counts as the least complete site")
            elif marked > found:
                told = f"more lesions are marked ({marked}) than the model finds ({found})"
                fed.warn(f"{where} {told}, so the estimate is above 1")
        lines = {site: [round(float(v), 6) for v in answer.report["iou_line"]] for site, answer in answers.items()}
        fed.record("iou_line", lines)
        return estimates

    def _train(self, fed: Federation, stage: str) -> None:
        memory, by_completeness = fed.memory, stage == CORRECTION and self.completeness_aggregation
        knowledge = {
            "first_round": np.array(self.warmup_rounds),
            "best_completeness": np.array(max(memory.completeness.values(), default=0.0)),
        }
        aware = partial(completeness_aware, memory.completeness, temperature=self.temperature)
        average = aware if by_completeness else by_samples
        answers = fed.train(stage, knowledge=knowledge, average=average)
        losses = {site: float(answer.report["dice_loss"][0]) for site, answer in answers.items()}
        fed.record("iou", {site: round(soft_iou(loss), 6) for site, loss in losses.items()})
        self._record_corrections(fed, answers)
        if by_completeness:
            fed.record("completeness_weights", {site: round(answer.share, 6) for site, answer in answers.items()})

    @staticmethod
    def _record_corrections(fed: Federation, answers: Mapping[str, Answer]) -> None:
        said = {site: int(answer.report["correction"][0]) for site, answer in answers.items()}
        for name, value in (("triggered", TRIGGERED), ("corrected", DONE), ("spared", EXEMPT)):
            new = [s for s, now in said.items() if now == value and fed.memory.correction.get(s) != value]
            if new:
                fed.record(name, sorted(new))
        fed.memory.correction |= said


def uncorrected(memory: FedIAWorkflow.Memory, sites: Collection[str]) -> list[str]:
    """Of these sites those that have not corrected and may yet: not those that are spared, nor those without a line to
    fall behind."""
    told = memory.correction
    return [site for site in sorted(memory.completeness) if site in sites and told.get(site) not in (DONE, EXEMPT)]
