"""ADELE: masks are corrected when a site has stopped learning fast, by a network that answers alike at three scales.

Liu, Liu, Zhu, Shen, Fernandez-Granda, "Adaptive Early-Learning Correction for Segmentation from Noisy Annotations",
CVPR 2022; code Kangningthu/ADELE, commit 7195bd0, folder SegThor. The original is centralised; FedIA's comparison gives
no details. This is our form: each site watches and corrects for itself, and the server does federated averaging.

A network first learns what is right in the marks, and only then learns by heart what is wrong with them. Every step
sees the slices at scales s = 0.7, 1 and 1.5; z_s are the logits, brought back to the slice's size, p_s = softmax(z_s),
and p is the mean of the three (K pixels):

    L = 1/3 [sum_s CE(z_s, y) + lambda m 1/K sum_pixels sum_s KL(p_s || p)],   m = 1 where p is at least 0.8 anywhere.

The IoU of the training predictions with the marks, over rounds, is fitted by v(x) = a (1 - exp(-x^b / c)). When its
slope v' has fallen by 90 % since x = 1, pixels get the label that p gives them where it is surer than tau.

- D1 p of the correction is the received global model's, on plain slices in eval mode, before the training of a round;
  the code's SegTHOR branch keeps the outputs of the training.
- D2 cross-entropy of z_s; the code divides each z_s by 3 first, which is a temperature and no weight.
- D3 p is clamped to [0.001, 0.999] in the divergence and carries a gradient, m is one number per slice (code).
- D4 IoU of one class, the lesion: hits over union, pooled over a round's slices, argmax of the outputs at scale 1
  before each step; no pass of its own.
- D5 fit: x = 1, 2, ... for rounds; the code spreads n points evenly from 0 to n, and fires an epoch later. a, b in
  [0, 1], c > 0, from 1, 1, 1; points weigh more the later they are, sigma from 1 to 0.1 in geometric steps (code).
  Rounds before the first rise of 0.1 are cut off (code), but none where there is no such rise: the code then fits one
  point and fires early. At least 8 points; a fit that fails does not fire. A change of slope above 1 does not count
  (code).
- D6 all slices are corrected, in both directions: background becomes lesion and lesion background, which the ledger
  keeps as signed changes. The code's SegTHOR branch leaves slices without any mark alone (``skip_unmarked``), but many
  of the missing lesions lie on them. Its VOC branch spares an image that would lose more than half of its foreground
  and be more than 95 % background; so do we. tau is 0.7 (SegTHOR; 0.8 for VOC).
- D7 after the first correction one more every R / 10 rounds, R all rounds, on the marks in force (code: every 10 of 100
  epochs).
- D8 batches, Adam and learning rate are the job's; the code has SGD with momentum 0.99. Edges of scaled slices are
  multiples of 8, which every network takes.
- D9 which base loss FedIA's authors took is unknown: cross-entropy as in the original, or ``dice``. With cross-entropy
  a network on marks of which few are there may find nothing at all, as the 0 in FedIA's table.

Cost in time and in the memory of a step, where federated averaging is 1: 0.49 + 1 + 2.25 = 3.74, the areas of the three
scales. A correction adds 3.74 inferences. With ``consistency`` 0 the network sees one scale.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.fields import Report
from fedmend.learning.inference import infer_masks
from fedmend.method import Federation, RoundTask, Site, Workflow
from fedmend.methods.shared.settings import Range, Weight
from fedmend.methods.shared.slices import (
    CE,
    CORRECTION_FLAG,
    DONE,
    WAITS,
    BaseLoss,
    Relabelling,
    SliceMethod,
    SliceRound,
    base_loss,
)

RULE = "adele.correction"
CURVE = "adele"
SCALES = (0.7, 1.0, 1.5)
CERTAIN = 0.8  # of m
LOWEST = 1e-3  # of p in the divergence
FEWEST_POINTS = 8
JUMP = 0.1  # IoU
CHANGE = 0.9  # of the slope
KEPT_SHARE, EMPTY = 0.5, 0.95  # of the slices that are spared
REPEATS = 10  # in a run
FIELDS = {"correction": CORRECTION_FLAG}


# ---- three scales ---------------------------------------------------------------------------------------------------
def scaled_logits(model: nn.Module, images: Tensor, scales: Sequence[float] = SCALES) -> list[Tensor]:
    """z_s, (B, 2, H, W) float32 each, of slices (B, 1, H, W) at each scale."""
    edges, parts = images.shape[2:], []
    for scale in scales:
        seen = images if scale == 1 else _resized(images, [8 * round(scale * edge / 8) for edge in edges])
        logits = model(seen)[1].float()
        parts.append(logits if logits.shape[2:] == edges else _resized(logits, edges))
    return parts


def _resized(values: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(values, tuple(size), mode="bilinear", align_corners=True)


class MeanOfScales(nn.Module):
    """Answers with ln p, whose softmax is p."""

    def __init__(self, model: nn.Module, scales: Sequence[float]):
        super().__init__()
        self.model, self.scales = model, scales
        self.train(model.training)

    def forward(self, images: Tensor) -> tuple[None, Tensor]:
        """Slices (B, 1, H, W) → None and ln p, (B, 2, H, W)."""
        parts = scaled_logits(self.model, images, self.scales)
        return None, torch.stack([z.log_softmax(1) for z in parts]).logsumexp(0) - math.log(len(parts))


def disagreement(logits: Sequence[Tensor]) -> Tensor:
    """m 1/K sum_pixels sum_s KL(p_s || p) of each slice (B,), Liu et al., CVPR 2022.

    Args:
        logits: z_s, (B, 2, H, W) float32 each.
    """
    mean = torch.stack([z.softmax(1) for z in logits]).mean(0)
    sure = (mean.flatten(1).amax(1) >= CERTAIN).float()
    log_mean = mean.clamp(LOWEST, 1 - LOWEST).log()
    each = sum(((z.softmax(1) * (z.log_softmax(1) - log_mean)).sum(1) for z in logits), torch.zeros(()))
    return sure * each.mean((1, 2))


# ---- the learning curve ---------------------------------------------------------------------------------------------
def from_first_jump(curve: Sequence[float]) -> list[float]:
    """The curve without the rounds before its first rise of 0.1; all of it where it has none."""
    rises = np.flatnonzero(np.diff(curve) >= JUMP)
    return list(curve[rises[0] :]) if len(rises) else list(curve)


def turning_point(curve: Sequence[float], horizon: int) -> int | None:
    """First whole x at which the slope of a (1 - exp(-x^b / c)), fitted through a curve, differs by more than 90 % from
    that at x = 1.

    Args:
        curve: IoU at x = 1, 2, ...
        horizon: x ends before it.

    Returns:
        x; None where the fit fails or no x does so.
    """
    from scipy.optimize import curve_fit

    x, later = np.arange(1.0, len(curve) + 1), np.arange(1.0, horizon)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a curve that fits exactly has no covariance
        try:
            sigma = np.geomspace(1, 0.1, len(curve))
            (a, b, c), _ = curve_fit(_value, x, curve, p0=(1, 1, 1), sigma=sigma, bounds=([0, 0, 0], [1, 1, np.inf]))
        except RuntimeError:
            return None
        slope = a * b / c * np.exp(-(later**b) / c) * later ** (b - 1)
        change = np.abs(slope - slope[:1]) / slope[:1]
    fallen = np.flatnonzero((change > CHANGE) & (change <= 1))
    return int(fallen[0]) + 1 if len(fallen) else None


def _value(x: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
    return a * (1 - np.exp(-(x**b) / c))


def slowed(curve: Sequence[float], horizon: int) -> bool:
    """Whether a site has stopped learning fast.

    Args:
        curve: its IoU of successive rounds.
        horizon: R, all rounds.
    """
    kept = from_first_jump(curve)
    if len(kept) < FEWEST_POINTS:
        return False
    turn = turning_point(kept, horizon)
    return turn is not None and len(kept) >= turn


# ---- the site -------------------------------------------------------------------------------------------------------
@dataclass
class Progress:
    """What a site must remember.

    Attributes:
        iou: of each round that it took part in.
        corrected: rounds in which its masks were corrected.
    """

    iou: list[float] = field(default_factory=list)
    corrected: list[int] = field(default_factory=list)


class AdeleRound(SliceRound):
    """One round at a site, which corrects its masks first if it is time to."""

    method: "Adele"

    def __init__(self, method: "Adele", model: nn.Module, task: RoundTask, site: Site):
        before = site.state.last_turn(CURVE, before=task.round_num)
        self._progress = Progress(**before[1]) if before else Progress()
        if method.is_time(self._progress, task):
            method.correct_masks(model, task, site)
            self._progress.corrected.append(task.round_num)
        super().__init__(method, model, task, site)
        self._pixels = torch.zeros(2, dtype=torch.int64, device=site.device)  # hits, union

    def loss(self, index: Tensor) -> Tensor:
        """L above; without consistency, the base loss of one scale."""
        weight = self.method.consistency
        if not weight:
            return super().loss(index)
        images, marks = self.batch(index)
        logits = scaled_logits(self.model, images)
        fits = self.mask_loss(logits[SCALES.index(1.0)], marks, index)
        others = [z for z, s in zip(logits, SCALES, strict=True) if s != 1]
        fits = fits + sum(base_loss(self.method.base_loss, z, marks) for z in others)
        return (fits + weight * disagreement(logits).mean()) / len(SCALES)

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Base loss at scale 1; counts the pixels of the IoU."""
        found, marked = logits.detach()[:, 1] > logits.detach()[:, 0], marks > 0
        self._pixels += torch.stack([(found & marked).sum(), (found | marked).sum()])
        return base_loss(self.method.base_loss, logits, marks)

    def report(self) -> Report:
        """Whether the site has corrected."""
        hits, union = self._pixels.tolist()
        progress = self._progress
        progress.iou.append(hits / max(union, 1))
        self.site.state.save_turn(CURVE, self.task.round_num, vars(progress))
        return {"correction": np.array([DONE if progress.corrected else WAITS])}


@dataclass(kw_only=True, eq=False)
class Adele(SliceMethod):
    """Client half of ADELE.

    Args:
        consistency: lambda, >= 0; 0: one scale.
        threshold: tau, 0.5 to 1; 1: nothing is corrected.
        skip_unmarked: leave slices without a mark in the site's own annotation alone.
        base_loss: ``ce`` or ``dice``.
    """

    FIELDS = FIELDS
    ROUND = AdeleRound
    consistency: Weight = 1.0
    threshold: Annotated[float, Range(lambda value: 0.5 <= value <= 1, "0.5 to 1")] = 0.7
    skip_unmarked: bool = False
    base_loss: BaseLoss = CE

    def is_time(self, progress: Progress, task: RoundTask) -> bool:
        """Whether the masks are corrected in this round (D5, D7)."""
        if self.threshold == 1:
            return False
        if progress.corrected:
            return task.round_num - progress.corrected[-1] >= max(1, round(task.total_rounds / REPEATS))
        return slowed(progress.iou, task.total_rounds)

    def correct_masks(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Gives pixels the label that the received model is sure of (D1, D6)."""
        marks = Relabelling(site)
        predictor = MeanOfScales(model, SCALES if self.consistency else (1.0,))
        for index, lesion in infer_masks(predictor, site.data.train, site):
            now = marks.before[index]
            after = np.where(lesion > self.threshold, True, (1 - lesion <= self.threshold) & now)
            kept = spared(now, after) | (self.skip_unmarked & ~marks.own[index].any((1, 2)))
            after[kept] = now[kept]
            marks.put(index, after, lesion)
        marks.record(RULE, task)


def spared(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """(B,) bool: slices that would lose more than half of their lesion pixels and be more than 95 % background.

    Args:
        before: (B, H, W) bool, marks in force.
        after: (B, H, W) bool, marks after the correction.
    """
    lost = (before & after).sum((1, 2)) < KEPT_SHARE * before.sum((1, 2))
    return lost & (1 - after.mean((1, 2)) > EMPTY)


# ---- the server -----------------------------------------------------------------------------------------------------
class AdeleWorkflow(Workflow):
    """Federated averaging by samples; writes down which sites have corrected."""

    METHOD = Adele
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {"train": tuple(FIELDS)}

    @dataclass
    class Memory:
        """``corrected``: sites that have."""

        corrected: list[str] = field(default_factory=list)

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            answers = fed.train("train")
            done = [site for site, answer in answers.items() if answer.report["correction"][0] == DONE]
            if new := sorted(set(done) - set(fed.memory.corrected)):
                fed.record("corrected", new)
                fed.memory.corrected = sorted({*fed.memory.corrected, *new})

    def check(self, stage: str, report: Report) -> None:
        """Refuses a report without the flag, or with one that no site sends."""
        super().check(stage, report)
        if report["correction"][0] not in (WAITS, DONE):
            raise FedMendError(f"report field correction: expected {WAITS} or {DONE}, got {report['correction'][0]}")
