"""FedIA: lesions that were only partly annotated, at each site to another degree.

Xiang, Wu, Yu, Yang, Cheng, Yan, "FedIA: Federated Medical Image Segmentation with Heterogeneous Annotation Completeness", MICCAI
2024.
theta_T is the global model after the T rounds of the warm-up; a_k the completeness of site k, lesions annotated / lesions.

1. Warm-up, rounds 1..T: federated averaging (Eq. 1) with Dice loss (Eq. 2).
2. Then each site estimates its completeness once with theta_T (Eq. 3), and fits a line to its learning curve (Eq. 6). Models are
   averaged by exp(a_k / l_k), l_k the training loss (Eqs. 4-5). A site whose IoU falls behind its line has begun to learn what
   was left unmarked as background (Eq. 7); in the next round it marks what the global model is sure of.
3. When all sites have done so: federated averaging again.

Where paper and reference code (HUSTxyy/FedIA) differ, or the paper is silent:

- D1 completeness is the ratio of sums of Eq. (3), with 8-connected components of slices and one pass of theta_T in eval mode over
  plain images, predicted is what is above 0.5. The code averages ratios of shuffled batches during training, and divides by
  zero; no option brings that back. Where theta_T predicts no component there is no estimate: the site counts as 0, the least
  complete, since a count of one in the denominator would make it the most complete by far and give it the whole average.
- D2 an estimate above 1 is kept, as an early model misses small lesions at all sites alike; ``clip`` of the controller cuts it.
- D3 l_k is the mean training loss over the batches of the round (code), at least 0.001; Eq. (5) would need a pass of its own.
- D4 IoU is (1 - l) / (1 + l), the Jaccard index of Dice 1 - l (code); that of masks would need a pass of its own.
- D5 T rounds of warm-up, the line through all T points, the estimate with theta_T.
- D6 the correction is done before the local training of the round after the trigger, by the received global model on plain
  images (paper); in the code inside the training, with the batch at hand, so that the round still trains on the old masks.
- D7 lesion is marked where the probability is above 0.8, and nothing is ever unmarked.
- D8 stage 3 begins when every site has corrected, or after ``max_stage2_rounds``; the code does not wait for the corrections of
  the sites that were triggered last.
- D9 Adam as the job says (beta_2 .99 in the paper); weight decay from the code. The learning rate is constant in the code; the
  paper calls its own "initial" and does not say what follows, so the job has ``learning_rate_decay``.
- D10 one channel, where the code has two.
- D11 see :func:`fedmend.losses.soft_dice_loss`. The code feeds grey values from 0 to 255; here images are in 0..1.

The published trigger has weaknesses: a site with few annotations has a flat curve, which can never fall 0.03 below its line, and
a fully annotated site that has a bad round is corrected too. ``relative``, ``patience`` and ``gate`` mend that and are off by
default.
"""

import logging
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor, nn

from fedmend.data.intensity import augment_intensity
from fedmend.data.manifest import SEGMENTATION
from fedmend.errors import FedMendError
from fedmend.losses import noise_robust_dice_loss, soft_dice_loss
from fedmend.methods.base import LocalMethod, Report, RoundTask, Site
from fedmend.training import infer_masks

LOG = logging.getLogger("fedmend.fedia")
WARMUP, COMPLETENESS, CORRECTION, CORRECTED = "warmup", "completeness", "correction", "corrected"  # stages
WAITS, TRIGGERED, DONE, EXEMPT = range(4)  # what a site says about its correction
STATE = "fedia"
CONNECTIVITY = {4: 1, 8: 2}  # neighbours of a pixel → scipy's word for them
LOWEST_LOSS = 1e-3  # of Eq. (4): below it a model is perfect, and exp(a / l) is beyond all numbers


class FedIA(LocalMethod):
    """Client half of FedIA, and of its comparison rows: FedAvg is FedIA without correction, NR-Dice has another loss.

    Args:
        correct: mark what was left unmarked (Eq. 7).
        gap: lambda, how far the IoU must fall behind the line, >= 0.
        relative: lambda is a share of the line's value.
        patience: rounds in a row that it must do so, >= 1.
        gate: a site whose estimated completeness is at least this share of the largest is not corrected; 0: none is spared.
        threshold: probability above which a pixel is marked.
        connectivity: 8 or 4 neighbours make a component.
        min_component: smallest component in pixels that counts as a lesion, in annotation and prediction, >= 1.
        loss: ``dice``, or ``nr_dice`` for the noise-robust Dice loss.
        augment: change the grey values of training slices at random.
    """

    RULE: ClassVar[str] = "fedia.correction"
    TASKS: ClassVar[tuple[str, ...]] = (SEGMENTATION,)
    REPORT_FIELDS: ClassVar[Mapping[str, str]] = {
        "lesions": "(2,) int64, components in the annotation and in the prediction of theta_T; counts of the whole site",
        "dice_loss": "(1,) float32, l of Eq. (4), mean over the training batches",
        "iou_line": "(2,) float32, value in the first round and slope per round of the line of Eq. (6)",
        "correction": f"(1,) int64, {WAITS} waits, {TRIGGERED} triggered, {DONE} corrected, {EXEMPT} not to be corrected",
    }

    def __init__(
        self,
        *,
        correct: bool = True,
        gap: float = 0.03,
        relative: bool = False,
        patience: int = 1,
        gate: float = 0.0,
        threshold: float = 0.8,
        connectivity: int = 8,
        min_component: int = 1,
        loss: str = "dice",
        augment: bool = True,
    ):
        if not (gap >= 0 and patience >= 1 and 0 <= gate <= 1 and 0.5 <= threshold < 1):
            raise FedMendError(
                "job variables gap, patience, gate, threshold: expected >= 0, >= 1, 0 to 1 and 0.5 to below 1, got"
                f" {gap}, {patience}, {gate}, {threshold}"
            )
        if connectivity not in CONNECTIVITY or min_component < 1:
            raise FedMendError(
                f"job variables connectivity, min_component: expected 4 or 8 and at least 1, got {connectivity}, {min_component}"
            )
        if loss not in ("dice", "nr_dice"):
            raise FedMendError(f"job variable loss: expected 'dice' or 'nr_dice', got {loss!r}")
        self.correct, self.gap, self.relative, self.patience, self.gate = correct, gap, relative, patience, gate
        self.threshold, self.connectivity, self.min_component = threshold, connectivity, min_component
        self.loss_name, self.augment = loss, augment

    # ---- before the training ----------------------------------------------------------------------------------------
    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Forgets what an earlier attempt at this round left, and corrects the annotation if the round before triggered it."""
        state = _state(site)
        state["iou"] = {r: iou for r, iou in state["iou"].items() if r < task.round_num}
        state["triggered"] = _before(state["triggered"], task.round_num)
        state["corrected"] = _before(state["corrected"], task.round_num)
        if state["triggered"] is not None and state["corrected"] is None:
            self._correct(model, task, site)
            state["corrected"] = task.round_num
        site.state.save(STATE, state)
        site.memory["target"] = torch.from_numpy(site.ledger.apply(site.data.train.masks))
        site.memory["generator"] = site.generator(task, "augmentation")
        site.memory["losses"] = []

    def _correct(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        masks = site.data.train.masks
        added, confidence = np.zeros(masks.shape, dtype=bool), np.zeros(len(masks))
        for index, probability in infer_masks(model, site.data.train, site):
            new = (probability > self.threshold) & (masks[index] == 0)
            added[index] = new
            confidence[index] = (probability * new).sum((1, 2)) / np.maximum(new.sum((1, 2)), 1)
        site.ledger.record(self.RULE, task.round_num, added, confidence)
        LOG.info("%s: %d pixels of %d slices marked as lesion", site.name, added.sum(), added.any((1, 2)).sum())

    # ---- a step -----------------------------------------------------------------------------------------------------
    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Dice loss of Eq. (2) on the annotation in force."""
        images = site.data.train.pixels(index)
        if self.augment:
            images = augment_intensity(images, site.memory["generator"])
        target = site.memory["target"][index].to(site.device, non_blocking=True).float()
        probability = model(images)[1].float().softmax(1)[:, 1]
        dice = soft_dice_loss(probability, target)
        site.memory["losses"].append(dice.detach())
        return dice if self.loss_name == "dice" else noise_robust_dice_loss(probability, target)

    # ---- after the training -----------------------------------------------------------------------------------------
    def report(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Completeness and line at the end of the warm-up; otherwise the loss of the round, and how far the correction is."""
        state = _state(site)
        if task.stage == COMPLETENESS:
            report = self._completeness(model, task, site, state)
        else:
            loss = float(torch.stack(site.memory["losses"]).mean())
            state["iou"][task.round_num] = soft_iou(loss)
            if task.stage == CORRECTION and self._falls(state, task):
                state["triggered"] = task.round_num
                LOG.info("%s: the IoU has fallen behind its line; the annotation is corrected next round", site.name)
            report = {
                "dice_loss": np.array([loss], dtype=np.float32),
                "correction": np.array([self._progress(state, task)], dtype=np.int64),
            }
        site.state.save(STATE, state)
        return report

    def _completeness(self, model: nn.Module, task: RoundTask, site: Site, state: dict) -> Report:
        split, predicted = site.data.train, 0
        for _, probability in infer_masks(model, split, site):
            predicted += self._components(probability > 0.5)
        state["lesions"] = [self._components(split.masks > 0), predicted]
        state["line"] = fit_line({r: iou for r, iou in state["iou"].items() if r < task.round_num})
        return {
            "lesions": np.array(state["lesions"], dtype=np.int64),
            "iou_line": np.array(state["line"], dtype=np.float32),
        }

    def _components(self, masks: np.ndarray) -> int:
        return count_components(masks, connectivity=self.connectivity, smallest=self.min_component)

    def _exempt(self, state: dict, task: RoundTask) -> bool:
        own = completeness(np.array(state["lesions"])) if state["lesions"] else 0.0
        return self.gate > 0 and own >= self.gate * float(task.knowledge["best_completeness"])

    def _falls(self, state: dict, task: RoundTask) -> bool:
        """Eq. (7) in the last ``patience`` rounds of stage 2."""
        if not self.correct or state["triggered"] is not None or state["line"] is None or self._exempt(state, task):
            return False
        rounds = range(task.round_num - self.patience + 1, task.round_num + 1)
        if rounds[0] < int(task.knowledge["first_round"]) or not set(rounds) <= set(state["iou"]):
            return False
        value, slope = state["line"]
        expected = {r: value + slope * r for r in rounds}
        gaps = {r: self.gap * line if self.relative else self.gap for r, line in expected.items()}
        return all(expected[r] - state["iou"][r] > gaps[r] for r in rounds)

    def _progress(self, state: dict, task: RoundTask) -> int:
        if state["corrected"] is not None:
            return DONE
        if state["triggered"] is not None:
            return TRIGGERED
        return EXEMPT if task.stage != WARMUP and self.correct and self._exempt(state, task) else WAITS


def _state(site: Site) -> dict:
    """What outlives a task: learning curve, its line, the site's own counts, rounds of trigger and correction."""
    empty = {"iou": {}, "line": None, "lesions": None, "triggered": None, "corrected": None}
    return site.state.load(STATE, empty)


def _before(round_num: int | None, limit: int) -> int | None:
    return round_num if round_num is not None and round_num < limit else None


def soft_iou(dice_loss: float) -> float:
    """(1 - l) / (1 + l), the Jaccard index of a soft Dice 1 - l.

    Args:
        dice_loss: in 0..1.
    """
    return (1 - dice_loss) / (1 + dice_loss)


def fit_line(curve: Mapping[int, float]) -> tuple[float, float] | None:
    """Least squares through a learning curve, Eq. (6), Xiang et al., MICCAI 2024.

    Args:
        curve: round, from 0 → IoU.

    Returns:
        Value in round 0 and slope per round; slope 0 for one point, None without any.
    """
    if len(curve) < 2:
        return (next(iter(curve.values())), 0.0) if curve else None
    rounds = sorted(curve)
    value, slope = np.polynomial.polynomial.polyfit(rounds, [curve[r] for r in rounds], 1)
    return float(value), float(slope)


def count_components(masks: np.ndarray, *, connectivity: int = 8, smallest: int = 1) -> int:
    """Number of lesions on slices: connected components of each slice for itself.

    Args:
        masks: (N, H, W) bool.
        connectivity: 4 or 8 neighbours.
        smallest: pixels from which a component counts.
    """
    structure = np.zeros((3, 3, 3), dtype=bool)
    structure[1] = ndimage.generate_binary_structure(2, CONNECTIVITY[connectivity])  # nothing connects two slices
    labels, _ = ndimage.label(masks, structure)
    return int((np.bincount(labels.ravel())[1:] >= smallest).sum())


# ---- the server -----------------------------------------------------------------------------------------------------
def completeness(lesions: np.ndarray, *, clip: bool = False) -> float:
    """a of Eq. (3), Xiang et al., MICCAI 2024: lesions in the annotation / lesions that theta_T predicts.

    Args:
        lesions: (2,) counts; without a predicted lesion the completeness is 0.
        clip: at most 1.
    """
    value = float(lesions[0]) / float(lesions[1]) if lesions[1] else 0.0
    return min(value, 1.0) if clip else value


def completeness_weights(estimates: Mapping[str, float], losses: Mapping[str, float]) -> dict[str, float]:
    """Share of each site in the average, Eq. (4), Xiang et al., MICCAI 2024: exp(a / l), normalised.

    Computed from differences to the largest exponent, so that nothing overflows.

    Args:
        estimates: site → a; a site without an estimate counts as the least complete one.
        losses: site → l in 0..1.

    Returns:
        site → share; they sum to 1.
    """
    sites = sorted(losses)
    least = min(estimates.values(), default=0.0)
    exponent = np.array([estimates.get(site, least) / max(losses[site], LOWEST_LOSS) for site in sites])
    weight = np.exp(exponent - exponent.max())
    return dict(zip(sites, (weight / weight.sum()).tolist(), strict=True))


def check_report(report: Report) -> None:
    """Refuses a report of a training round that the aggregation cannot use.

    Raises:
        FedMendError: a field is missing, of another shape or out of its range.
    """
    _need(report, "dice_loss", 1, 0, 1)
    _need(report, "correction", 1, WAITS, EXEMPT)


def check_completeness(report: Report) -> None:
    """Refuses a report about completeness that is missing a field, of another shape or negative.

    Raises:
        FedMendError: names the field.
    """
    _need(report, "lesions", 2, 0, np.inf)
    _need(report, "iou_line", 2, -np.inf, np.inf)


def _need(report: Report, name: str, size: int, low: float, high: float) -> None:
    value = np.asarray(report.get(name, ()))
    if value.shape != (size,) or not ((low <= value) & (value <= high)).all():
        raise FedMendError(f"report field {name}: expected {size} numbers from {low} to {high}")
