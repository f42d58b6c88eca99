"""FedCorr for masks: sites with poor marks are found by the dimension of their predictions, and corrected step by step.

Xu, Chen, Quek, Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022; code
Xu-Jingyi/FedCorr, commit d9c0d86. It is about the classification of images at 100 sites, some of them clean; FedIA's
comparison gives no details. This is our form for masks: a sample is a slice, and it is relabelled pixel by pixel. LID:
local intrinsic dimension, see :mod:`fedmend.methods.dimensions`; K sites, R rounds.

1. T1 rounds (``iterations``), in each of which the model goes from site to site in random order, each site starting
   from what the one before it left. In its turn a site trains with mixup and beta mu_k ||w - w_received||_2, mu_k its
   noise level of the round before, at first 0. It reports the mean LID of its local model's predictions and keeps the
   losses of its slices. After each of these rounds a mixture of two Gaussians on the LID, summed over the rounds so
   far, tells noisy sites, the larger mean, from clean ones. A noisy site fits a mixture to its losses: mu_k is the
   share of the larger component. Of the N mu_k pi slices with the largest losses, pixels of which the global model is
   surer than theta get the label that it gives them. A clean site has mu_k = 0.
2. T2 rounds of federated averaging over the sites with mu_k <= kappa. At the end the noisy sites relabel all slices by
   the same rule.
3. Federated averaging over all sites.

- D1 the LID is that of lesion probabilities averaged to 16 x 16 squares; the two numbers of one pixel have no dimension
  to speak of. Slices with no pixel above 0.05 are left out: blank maps are all alike and would pull the mean down.
- D2 theta is 0.8: of two classes one always has 0.5, the published value.
- D3 the loss of a slice is the mean cross-entropy of its pixels under the local model, on the plain slice, with the
  marks in force. The losses are those of one round (code; the paper says accumulated).
- D4 pixels become lesion or background; the ledger keeps signed changes.
- D5 the sums of LID are scaled to 0..1 and go into mixtures that vote, which are made for few sites too. Fewer than 4
  sites are refused. Where none or all are noisy, the site with the smallest sum is the clean one, as a run without a
  clean site has no stage 2 (the code fails).
- D6 T1 / T2 / T3 is 5 / 500 / 450 in the original: here ``iterations`` 5, which are rounds of the run, and of the
  others 52.7 % are stage 2, which gives 155 and 140 of 300.
- D7 beta 5, pi 0.5, kappa 0.1 and mixup with lam ~ Beta(1, 1) in all stages, as in the published commands. The code has
  five local epochs; here they are the job's.
- D8 the square root of the proximal term starts at 1e-12; the code leaves the first step out, whose gradient is not a
  number.
- D9 which base loss FedIA's authors took is unknown: cross-entropy as in the original, or ``dice``. With cross-entropy
  a network on marks of which few are there may find nothing at all, as the 0 in FedIA's table.
- D10 a site that does not answer in its turn stops the run. One that joins a resumed run in stage 1 counts as noisy;
  before its first turn its mu_k is 1 and it relabels nothing.

A network trained on incomplete marks predicts little, so the LID of an incomplete site need not be the higher one; on a
phantom it was not. The record ``noisy_sites`` shows it.

Cost of a sample and round, where federated averaging is 1: about 1, and one inference for each turn and each
relabelling; in stage 1 sites work one after the other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError, check_variables
from fedmend.fields import Field, Report
from fedmend.method import Federation, Round, RoundTask, Site, Workflow
from fedmend.methods.dimensions import (
    LID,
    MIN_SITES,
    NOISE_LEVEL,
    detect_noisy_clients,
    local_intrinsic_dimension,
    min_max,
    stands_out,
)
from fedmend.methods.slices import CE, Relabelling, SliceMethod, SliceRound, base_loss, check_base_loss
from fedmend.training import infer_masks

TURN, CORRECT, FINETUNE, RELABEL, USUAL = "turn", "correct", "finetune", "relabel", "usual"
CLEAN, NOISY = "clean", "noisy"
RULE = "fedcorr.correction"
LOSSES, LEVEL = "losses", "noise_level"  # in the site's state
SQUARES = 16  # along an edge
BLANK = 0.05
LOWEST = 1e-7  # probability
FIELDS: Mapping[str, Field] = {"lid": LID, "noise_level": NOISE_LEVEL}


# ---- the site -------------------------------------------------------------------------------------------------------
class FedCorrMasksRound(SliceRound):
    """Mixup; in a turn of stage 1 also the proximal term."""

    method: "FedCorrMasks"

    def __init__(self, method: "FedCorrMasks", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        before = site.state.last_turn(LEVEL, before=task.round_num) if task.stage == TURN else None
        self._pull = method.beta * before[1] if before else 0.0
        self._received = [p.detach().clone() for p in model.parameters()] if self._pull else []
        self._mixing = site.generator(task, "mixup")

    def loss(self, index: Tensor) -> Tensor:
        """Base loss of mixed slices plus the proximal term."""
        loss = self._mixed(index) if self.method.mixup else super().loss(index)
        return loss + self._pull * self._distance() if self._pull else loss

    def _mixed(self, index: Tensor) -> Tensor:
        images, marks = self.batch(index)
        share = torch.rand((), generator=self._mixing).item()  # Beta(1, 1)
        order = torch.randperm(len(index), generator=self._mixing)
        there = order.to(images.device)
        logits = self.model(share * images + (1 - share) * images[there])[1].float()
        other = self.mask_loss(logits, marks[there], index[order])
        return share * self.mask_loss(logits, marks, index) + (1 - share) * other

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        """Base loss."""
        return base_loss(self.method.base_loss, logits, marks)

    def _distance(self) -> Tensor:
        pairs = zip(self.model.parameters(), self._received, strict=True)
        return (sum((p - q).square().sum() for p, q in pairs) + 1e-12).sqrt()

    def report(self) -> Report:
        """After a turn: keeps the losses of the local model and reports its mean LID."""
        if self.task.stage != TURN:
            return {}
        site, target = self.site, self._target.numpy()
        losses, vectors = np.zeros(len(target), dtype=np.float32), []
        for index, lesion in infer_masks(self.model, site.data.train, site):
            losses[index] = slice_losses(lesion, target[index])
            vectors.append(squares(lesion[lesion.max((1, 2)) >= BLANK]))
        site.state.save_turn(LOSSES, self.task.round_num, torch.from_numpy(losses))
        dimensions = local_intrinsic_dimension(np.concatenate(vectors))
        return {"lid": np.float32(dimensions.mean() if len(dimensions) else 0)}


def slice_losses(lesion: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """(B,) mean cross-entropy of the pixels of each slice.

    Args:
        lesion: (B, H, W) probabilities.
        marks: (B, H, W) bool.
    """
    return -np.log(np.where(marks, lesion, 1 - lesion).clip(LOWEST, 1)).mean((1, 2))


def squares(lesion: np.ndarray) -> np.ndarray:
    """(B, 256): probabilities (B, H, W) averaged to 16 x 16 squares."""
    pooled = F.adaptive_avg_pool2d(torch.from_numpy(lesion).unsqueeze(1), SQUARES)
    return pooled.numpy().reshape(len(lesion), SQUARES**2)


class FedCorrMasks(SliceMethod):
    """Client half of FedCorr for masks.

    Args:
        beta: weight of the proximal term of stage 1, >= 0.
        mixup: train on mixed slices.
        relabel_ratio: pi, share of the slices in the larger component that may be relabelled in stage 1, 0 to 1.
        confidence: theta, the global model must be surer than this of a pixel's new label, 0.5 to 1.
        base_loss: ``ce`` or ``dice``.
        augment: change the grey values of training slices at random.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    ROUND: ClassVar[type[Round]] = FedCorrMasksRound

    def __init__(
        self,
        *,
        beta: float = 5.0,
        mixup: bool = True,
        relabel_ratio: float = 0.5,
        confidence: float = 0.8,
        base_loss: str = CE,
        augment: bool = True,
    ):
        super().__init__(augment=augment)
        check_variables(0 <= beta < math.inf, ">= 0", beta=beta)
        check_variables(0 <= relabel_ratio <= 1, "0 to 1", relabel_ratio=relabel_ratio)
        check_variables(0.5 <= confidence <= 1, "0.5 to 1", confidence=confidence)
        check_base_loss(base_loss)
        self.beta, self.mixup, self.relabel_ratio = beta, mixup, relabel_ratio
        self.confidence, self.base_loss = confidence, base_loss

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """A noisy site corrects its marks; after a round of stage 1 every site says its noise level."""
        site.ledger.undo(rule=RULE, from_round=task.ledger_round)  # the question may be asked again
        if task.stage == RELABEL:
            self._relabel(np.ones(len(site.data.train), dtype=bool), model, task, site)
            return {}
        level = self._correct(model, task, site) if task.role == NOISY else 0.0
        site.state.save_turn(LEVEL, task.ledger_round, level)
        return {"noise_level": np.float32(level)}

    def _correct(self, model: nn.Module, task: RoundTask, site: Site) -> float:
        """Relabels the slices with the largest losses; mu_k."""
        turn = site.state.last_turn(LOSSES, before=task.round_num)
        if turn is None:
            return 1.0  # D10
        losses = turn[1].numpy()
        level = float(stands_out(losses).mean())
        chosen = np.zeros(len(losses), dtype=bool)
        chosen[np.argsort(-losses, kind="stable")[: int(len(losses) * level * self.relabel_ratio)]] = True
        if chosen.any():
            self._relabel(chosen, model, task, site)
        return level

    def _relabel(self, chosen: np.ndarray, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Gives the pixels of the chosen slices (N,) the label that the model is sure of."""
        marks = Relabelling(site)
        for index, lesion in infer_masks(model, site.data.train, site):
            sure = np.maximum(lesion, 1 - lesion) > self.confidence
            here = chosen[index]
            after = np.where(sure, lesion > 0.5, marks.before[index])
            marks.put(index[here], after[here], lesion[here])
        marks.record(RULE, task)


# ---- the server -----------------------------------------------------------------------------------------------------
class FedCorrMasksWorkflow(Workflow):
    """Stage 1 from site to site, then federated averaging over the clean sites and over all.

    Args:
        iterations: T1, rounds of stage 1, >= 1.
        finetune_share: share of the other rounds that stage 2 has, 0 to 1.
        clean_threshold: kappa, largest noise level of a site that takes part in stage 2, 0 to 1.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    least_sites = MIN_SITES

    @dataclass
    class Memory:
        """What stage 1 found.

        Attributes:
            lids: site → mean LID of each of its turns.
            noisy: the noisy sites.
            levels: site → noise level.
        """

        lids: dict[str, list[float]] = field(default_factory=dict)
        noisy: list[str] = field(default_factory=list)
        levels: dict[str, float] = field(default_factory=dict)

    def __init__(self, *, iterations: int = 5, finetune_share: float = 0.527, clean_threshold: float = 0.1):
        check_variables(iterations >= 1, "at least 1", iterations=iterations)
        shares = {"finetune_share": finetune_share, "clean_threshold": clean_threshold}
        check_variables(all(0 <= share <= 1 for share in shares.values()), "0 to 1", **shares)
        self.warmup_rounds, self.finetune_share, self.clean_threshold = iterations, finetune_share, clean_threshold

    def run(self, fed: Federation) -> None:
        """R rounds, T1 of them stage 1."""
        usual = self.warmup_rounds + round(self.finetune_share * (fed.num_rounds - self.warmup_rounds))
        for r in fed.rounds():
            if 0 < r <= self.warmup_rounds:
                self._correct(fed, r)
            if r < self.warmup_rounds:
                self._from_site_to_site(fed)
            elif r < usual:
                fed.train(FINETUNE, sites=self._clean(fed))
            else:
                if r == usual:
                    self._relabel(fed)
                fed.train(USUAL)

    def check(self, stage: str, report: Report) -> None:
        """Refuses a report without the number of its stage."""
        needed = {TURN: "lid", CORRECT: "noise_level"}.get(stage)
        if needed and needed not in report:
            raise FedMendError(f"report: expected the field {needed}, got none")

    @staticmethod
    def _from_site_to_site(fed: Federation) -> None:
        sites = sorted(fed.sites)
        for i in fed.generator("order").permutation(len(sites)):
            answer = fed.train(TURN, sites=[sites[i]])[sites[i]]
            known = fed.memory.lids.get(sites[i], [])
            fed.memory.lids[sites[i]] = [*known, float(answer.report["lid"])]

    def _correct(self, fed: Federation, turns: int) -> None:
        """Tells noisy from clean sites and asks the noisy ones to correct their marks."""
        memory = fed.memory
        sums = {s: sum(lids) for s, lids in sorted(memory.lids.items()) if s in fed.sites and len(lids) == turns}
        if len(sums) < MIN_SITES:
            raise FedMendError(f"stage 1: expected LID of at least {MIN_SITES} sites, got {len(sums)}")
        found = detect_noisy_clients(min_max(np.array(list(sums.values())))[:, None])
        clean = {site for site, noisy in zip(sums, found.noisy, strict=True) if not noisy}
        if len(clean) in (0, len(sums)):
            clean = {min(sums, key=sums.get)}  # D5
        memory.noisy = sorted(set(fed.sites) - clean)
        answers = fed.collect(CORRECT, roles={s: CLEAN if s in clean else NOISY for s in fed.sites})
        memory.levels = {site: float(a.report["noise_level"]) for site, a in answers.items()}
        fed.record(
            "noisy_sites",
            {
                "lid": {site: round(value, 4) for site, value in sums.items()},
                "noisy": memory.noisy,
                "vote_share": round(found.vote_share, 4),
                "noise_level": {site: round(level, 4) for site, level in memory.levels.items()},
            },
        )
        if corrected := [site for site in memory.noisy if memory.levels.get(site)]:
            fed.record("corrected", corrected)

    def _clean(self, fed: Federation) -> list[str]:
        """The sites of stage 2; all where none of the clean ones is there."""
        clean = [site for site in fed.sites if fed.memory.levels.get(site, 1.0) <= self.clean_threshold]
        return clean or list(fed.sites)

    @staticmethod
    def _relabel(fed: Federation) -> None:
        noisy = [site for site in fed.memory.noisy if site in fed.sites]
        if noisy:
            answers = fed.collect(RELABEL, sites=noisy, roles=dict.fromkeys(noisy, NOISY))
            fed.record("corrected", list(answers))
