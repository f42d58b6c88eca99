"""FedNoRo: sites whose labels are noisy are found by their class-wise losses and then learned from with care.

Wu, Yu, Jiang, Cheng, Yan, "FedNoRo: Towards Noise-Robust Federated Learning by Addressing Class Imbalance and Label Noise
Heterogeneity", IJCAI 2023. K sites, C classes, single-label.

Stage 1: FedAvg with logit-adjusted cross-entropy. Then every site sends the mean loss of each of its classes under the
aggregated model; the server normalises them (Eq. 3) and splits the sites with a two-component Gaussian mixture. Stage 2: noisy
sites distil the received model (Eqs. 4-5) beside their own labels, and the server weights them by their distance to the
nearest clean model (Eqs. 6-7). Labels are never changed.

Where paper and reference code (commit 6719ad7) differ, or both are silent:

- D1 weights to start from: the job's ``weights`` (a local file), random without it; the paper says ImageNet, the code's default
  is random.
- D2 distance: code, the sum over tensors of their L2 norms, BatchNorm statistics included (``distance=sum``,
  ``distance_buffers``); the paper's Eq. (6) is one norm over all (``distance=l2``).
- D3 the noisy component is the one with the larger sum of means (code); the paper says norm.
- D4 the set of noisy sites that most of 9 mixtures agree on wins (code; ``votes``); its share is recorded. Where all sites are alike
  the mixtures disagree: with less than ``min_vote_share`` of the votes no site is taken for noisy (neither paper nor code).
- D5 KL divergence with the teacher first (code; Eq. 5 is written the other way round), no temperature in the student.
- D6 logit adjustment in both terms of Eq. (5) (code; the paper's "introduced to both").
- D7 the ramp of lambda runs over absolute rounds; it starts at ``ramp_begin`` (default T1) and ends at ``ramp_end`` (default
  R/2 - 1), which for the paper's R=100 are the code's 10 and 49.
- D8 "Best" is the maximum over all rounds (paper). D9, D10: the noise protocols are in :mod:`fedmend.imperfections`.
- Class-wise losses are taken on plain images, where the code leaves the random augmentation on: less noise in Eq. (3).
- A class without a sample at a site has prior 0: it is never predicted there, and the teacher's mass on it is dropped from the
  divergence (code).
- Mixture: sklearn's defaults with full covariance from 20 sites on (code, whose K is 20). Few noisy sites lie apart from each
  other as far as from the clean ones, so that k-means, where the code's fit starts, splits off one of them, and a full matrix has
  more numbers than there are sites. Below 20 sites: one variance per component, of at least 0.02, so that no site is a component
  because it is alone, and the likeliest of 10 fits that start at random sites (``covariance=spherical``). The floor was
  chosen on the phantoms.
- A constant column of Eq. (3), where the code divides by zero, becomes 0. No noisy or no clean site, where the code fails:
  federated averaging goes on.
- A site that sent no usable losses is treated as noisy: nothing vouches for its labels.

Passes per training sample and round: E forward-backward; at noisy sites in stage 2 also E inferences of the teacher, as it sees
the student's augmented batch; one inference in all for the detection.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.losses import distillation
from fedmend.methods.base import Report, RoundTask, SingleLabelMethod, Site
from fedmend.training import infer

WARMUP, DETECT, ROBUST = "warmup", "detect", "robust"
CLEAN, NOISY = "clean", "noisy"
MIN_SITES = 4  # a mixture of two components cannot be told from less
FULL_COVARIANCE_FROM = 20  # sites
MIXTURES = {"full": {}, "spherical": {"reg_covar": 0.02, "init_params": "random_from_data", "n_init": 10}}
BUFFERS = ("running_mean", "running_var")
_BLOCK = 1 << 16  # numbers of one model that are looked at together: a block of all models stays in the cache


# ---- the site -------------------------------------------------------------------------------------------------------
class FedNoRo(SingleLabelMethod):
    """Client half of FedNoRo.

    Args:
        la: logit adjustment by the local class prior in all training losses.
        temperature: T of Eq. (4), > 0.
    """

    REPORT_FIELDS: ClassVar[Mapping[str, str]] = {
        "class_loss": "(C,) float32, mean cross-entropy of the samples with label c, 0 without any; a mean over at least"
        " min_count samples",
        "class_count": "(C,) int64, samples behind each mean; a count per class",
    }

    def __init__(self, *, la: bool = True, temperature: float = 0.8):
        super().__init__(la=la)
        if not temperature > 0:
            raise FedMendError(f"job variable temperature: expected > 0, got {temperature}")
        self.temperature = temperature

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Keeps the received model as teacher at a noisy site in stage 2."""
        super().prepare(model, task, site)
        if task.stage == ROBUST and task.role == NOISY:
            weight = task.knowledge.get("distillation_weight")
            if weight is None or np.shape(weight) != () or not 0 <= weight <= 1:
                raise FedMendError(
                    f"{site.name}: round {task.round_num}, distillation_weight from the server: expected 0 to 1, got another"
                )
            if weight > 0:
                site.memory["distillation_weight"] = float(weight)
                site.memory["teacher"] = copy.deepcopy(model).eval().requires_grad_(False)

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Logit-adjusted cross-entropy; at a noisy site in stage 2 Eq. (5)."""
        images, target = self.batch(index, site)
        logits = self.adjusted(model(images)[1], site)
        own = F.cross_entropy(logits, target)
        teacher = site.memory.get("teacher")
        if teacher is None:
            return own
        with torch.no_grad():
            soft = (teacher(images)[1].float() / self.temperature).softmax(1)  # Eq. (4)
        weight = site.memory["distillation_weight"]
        return weight * distillation(logits, soft) + (1 - weight) * own  # Eq. (5)

    def report(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Class-wise mean losses of the received model, eval mode, no logit adjustment."""
        if task.stage != DETECT:
            return {}
        logits = infer(model, site.data.train, site)[1].double()
        target = torch.from_numpy(self.target(site))
        loss = F.cross_entropy(logits, target, reduction="none").numpy()
        count = np.bincount(target.numpy(), minlength=logits.shape[1])
        total = np.bincount(target.numpy(), weights=loss, minlength=logits.shape[1])
        return {"class_loss": (total / np.maximum(count, 1)).astype(np.float32), "class_count": count.astype(np.int64)}


# ---- the server -----------------------------------------------------------------------------------------------------
def check_report(report: Report, *, num_classes: int) -> None:
    """Refuses a detection report that cannot be used.

    Args:
        report: finite numbers, see :class:`FedNoRo`.
        num_classes: C.

    Raises:
        FedMendError: a field is missing, has another shape or a negative number, or no class has a sample.
    """
    for name in FedNoRo.REPORT_FIELDS:
        shape = np.shape(report[name]) if name in report else "nothing"
        if shape != (num_classes,):
            raise FedMendError(
                f"report field {name}: expected one number for each of {num_classes} classes, got {shape}"
            )
        if (report[name] < 0).any():
            raise FedMendError(f"report field {name}: expected numbers >= 0, got negative ones")
    if not (report["class_count"] > 0).any():
        raise FedMendError("report field class_count: expected at least one class with enough samples, got none")


def loss_matrix(reports: Mapping[str, Report], *, per_class: bool = True) -> np.ndarray:
    """Mean losses of all sites.

    Args:
        reports: site → detection report.
        per_class: False gives one loss per site over all its samples (an ablation of the paper's Table 3).

    Returns:
        (K, C) float64, or (K, 1), sites in sorted order; NaN for a class without samples at a site.
    """
    loss = np.array([reports[s]["class_loss"] for s in sorted(reports)], dtype=np.float64)
    count = np.array([reports[s]["class_count"] for s in sorted(reports)])
    if not per_class:
        return (loss * count).sum(1, keepdims=True) / count.sum(1, keepdims=True)
    return np.where(count > 0, loss, np.nan)


def normalise_losses(losses: np.ndarray, *, normalise: bool = True) -> np.ndarray:
    """Fills missing classes with the smallest loss of the class and scales every class to 0..1, Eq. (3), Wu et al., IJCAI 2023.

    Args:
        losses: (K, C), NaN = missing.
        normalise: False only fills (an ablation of the paper's Table 3).

    Returns:
        (K, C) float64; a class that is constant over the sites, or nowhere, is 0.
    """
    known = ~np.isnan(losses).all(0)
    low, high = np.zeros(losses.shape[1]), np.zeros(losses.shape[1])
    low[known], high[known] = np.nanmin(losses[:, known], 0), np.nanmax(losses[:, known], 0)
    filled = np.where(np.isnan(losses), low, losses)
    if not normalise:
        return filled
    return np.where(high > low, (filled - low) / np.where(high > low, high - low, 1), 0)


@dataclass(frozen=True)
class Detection:
    """Which sites are noisy.

    Attributes:
        noisy: (K,) bool.
        vote_share: share of the mixtures that found exactly this set, the confidence of the detection.
        covariance: covariance type of the mixtures.
    """

    noisy: np.ndarray
    vote_share: float
    covariance: str


def detect_noisy_clients(losses: np.ndarray, *, votes: int = 9, covariance: str = "auto") -> Detection:
    """Two-component Gaussian mixtures on the losses; the component with the larger mean is noisy.

    Args:
        losses: (K, C) normalised losses.
        votes: mixtures with random states 0, 1, ...; the set that most of them find wins, the first one on a tie.
        covariance: a key of ``MIXTURES`` or ``auto`` (full from 20 sites on).

    Returns:
        The winning set; it may be empty or hold all sites.

    Raises:
        FedMendError: fewer than 4 sites.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    if len(losses) < MIN_SITES:
        raise FedMendError(f"noisy-client detection: expected losses of at least {MIN_SITES} sites, got {len(losses)}")
    if covariance == "auto":
        covariance = "full" if len(losses) >= FULL_COVARIANCE_FROM else "spherical"
    if (losses == losses[0]).all():
        return Detection(np.zeros(len(losses), dtype=bool), 1.0, covariance)
    found: Counter[tuple[bool, ...]] = Counter()
    for seed in range(votes):
        mixture = GaussianMixture(2, covariance_type=covariance, random_state=seed, **MIXTURES[covariance])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # few distinct points: the vote tells
            component = mixture.fit_predict(losses)
        found[tuple((component == mixture.means_.sum(1).argmax()).tolist())] += 1
    noisy, count = found.most_common(1)[0]
    return Detection(np.array(noisy), count / votes, covariance)


def distillation_weight(round_num: int, *, begin: int, end: int, maximum: float) -> float:
    """Gaussian ramp-up of lambda: maximum * exp(-5 (1 - t)^2), t = 0 at round ``begin`` and 1 from ``end`` on.

    Args:
        round_num: absolute round.
        begin: round of the start.
        end: round from which the maximum holds; not after ``begin``: the maximum holds at once.
        maximum: largest weight, in [0, 1].
    """
    t = 1.0 if end <= begin else (min(max(round_num, begin), end) - begin) / (end - begin)
    return float(maximum * np.exp(-5 * (1 - t) ** 2))


def model_distances(
    models: Sequence[Mapping[str, np.ndarray]], noisy: np.ndarray, *, distance: str = "sum", buffers: bool = True
) -> np.ndarray:
    """Distance of every noisy model to the nearest clean one, d of Eq. (6), Wu et al., IJCAI 2023.

    Squared distances come from inner products of differences to the first clean model, in one pass over all models. One thread,
    because a server that shares its cores would wait for the others, and because more would change the last digits.

    Args:
        models: K models, name → float array.
        noisy: (K,) bool; at least one True and one False.
        distance: ``sum`` of the L2 norms of all tensors, or ``l2`` for one norm over all.
        buffers: BatchNorm statistics count.

    Returns:
        (K,) float64; 0 for clean models.
    """
    far, near = np.flatnonzero(noisy), np.flatnonzero(~noisy)
    ordered = [models[k] for k in (*far, *near)]
    total = np.zeros((len(far), len(near)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in ordered[0]:
            if buffers or not name.endswith(BUFFERS):
                squared = _squared_distances([torch.from_numpy(m[name]).flatten() for m in ordered], len(far))
                total += np.sqrt(squared) if distance == "sum" else squared
    finally:
        torch.set_num_threads(threads)
    result = np.zeros(len(models))
    result[far] = (total if distance == "sum" else np.sqrt(total)).min(1)
    return result


def _squared_distances(tensors: Sequence[Tensor], num_far: int) -> np.ndarray:
    """(F, K - F) float64 between the first F and the other tensors."""
    squared = np.zeros((num_far, len(tensors) - num_far))
    for part in zip(*(t.split(_BLOCK) for t in tensors), strict=True):
        block = torch.stack(part).sub_(part[num_far])
        square = torch.linalg.vecdot(block, block).double()
        inner = block[:num_far] @ block[num_far:].T
        squared += (square[:num_far, None] + square[num_far:] - 2 * inner).numpy()
    return np.maximum(squared, 0)


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
