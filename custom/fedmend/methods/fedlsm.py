"""FedLSM: sites whose label sets do not match, multi-label or single-label.

Deng, Luo, Chen, "Scale Federated Learning for Label Set Mismatch in Medical Image Classification", MICCAI 2023. N samples at a
site, M classes; I_k are the classes that site k identifies, U_k the others.

Every round a site measures the uncertainty of its images under the received model (Eq. 3) and sorts them into D_h (uncertain),
D_l (confident) and the rest. A teacher, the moving average of the student, gives pseudo-labels on unknown classes of D_l and the
rest (Eqs. 4-5); pairs of D_l and D_h are mixed (uncertain data enhancement, Eq. 6). The server averages each classifier row by
what the sites know about its class (adaptive weighted proxy aggregation, Eq. 7). What is not FedLSM's alone is in
:mod:`fedmend.methods.labelsets`: the pseudo-labels, L_I and L_U, and the baselines.

Where paper and reference code (dzp2095/FedLSM) differ, or the paper is silent:

- D1 multi-label uncertainty: binary entropy / ln 2, mean over U_k, in [0, 1]; the code drops one half and averages over all M.
- D2 the uncertainty pass is in eval mode and leaves BatchNorm alone; in the code it runs in train mode.
- D3 the loss is element-wise, divided by B*M; the code multiplies a scalar mean by the weights, so that its mask masks nothing.
  The weight N_neg / N_pos, counted over the sites that identify the class and capped, is on the positive term alone.
- D4 images of the mixed pairs get pseudo-labels in single-label data too; a pair in which one image has no label is dropped.
- D5 a single-label pseudo-label is a class of U_k (Eq. 4); the code takes any class.
- D6 thresholds of the uncertain image: ``ude_tau_positive``, ``ude_tau_negative`` (.7 and .005 as released); an entry counts where
  it is known or valid in both images.
- D7 q of Eq. (7) counts samples: positive labels for a class of I_k, and for one of U_k the samples whose last pseudo-label of the
  round is positive, among the samples that were drawn. The code counts draws. The ledger keeps the last pseudo-label of a sample
  also after the teacher has become unsure.
- D8 Adam's beta_2 is the paper's .99 in the job (``second_momentum``); its moments go on over rounds (code).
- D9 every round draws another order of samples; the code repeats one. No sample is twice in a batch: a pass over the samples ends
  with its last whole batch.
- D10, D11 split and identified classes are the converters' matter. D12 all sites start from the server's weights.
- D13 augmentation as in the code, vertical flips by ``vertical_flip``.
- The known classes of a single-label site are those of which it has a label.
- The teacher starts each round as the received model (code).

Passes per round: one inference of each sample; per step the teacher sees the main batch and the pairs, the student the main
batch and the mixed pairs.
"""

import copy
import logging
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.augment import strong, to_network, weak
from fedmend.data.manifest import SINGLELABEL
from fedmend.errors import FedMendError
from fedmend.losses import masked_bce
from fedmend.methods.base import Report, RoundTask, Site
from fedmend.methods.labelsets import PseudoLabelMethod, check_thresholds, probabilities, pseudo_labels
from fedmend.training import infer

LOG = logging.getLogger("fedmend.fedlsm")
UNCERTAINTY_BINS = 20


class FedLSM(PseudoLabelMethod):
    """Client half of FedLSM.

    Args:
        local_iterations: optimiser steps per round, >= 1.
        high: D_h, the uncertain samples: a number, or a share of the samples when below 1.
        low: D_l, the confident ones, likewise.
        pairs: pairs of D_l and D_h that are mixed per step.
        tau_positive: probability from which an unknown class is pseudo-labelled positive; of the largest class in single-label
            data.
        tau_negative: probability up to which it is negative (multi-label).
        ude_tau_positive: tau_positive of the uncertain image of a pair.
        ude_tau_negative: tau_negative of the uncertain image of a pair.
        ude_weight: lambda, weight of the mixed pairs, >= 0; 0 switches uncertain data enhancement off.
        mixup_alpha: of the Beta distribution of the mixing weight, > 0.
        ema_decay: of the teacher, in [0, 1).
        ue: sort samples by uncertainty; off: D_h and D_l are drawn at random.
        vertical_flip: part of the strong augmentation.
    """

    RULE: ClassVar[str] = "fedlsm.pseudo_label"
    REPORT_FIELDS: ClassVar[Mapping[str, str]] = {
        "class_knowledge": "(M,) float32, q of Eq. (7): positive labels or positive pseudo-labels of each class; a count per"
        " class",
        "uncertainty": f"({UNCERTAINTY_BINS},) int64, samples by uncertainty, equal bins from 0 to 1; counts; only where it was"
        " measured",
    }

    def __init__(
        self,
        *,
        local_iterations: int,
        high: float = 0.05,
        low: float = 0.2,
        pairs: int = 4,
        tau_positive: float = 0.85,
        tau_negative: float = 0.01,
        ude_tau_positive: float = 0.7,
        ude_tau_negative: float = 0.005,
        ude_weight: float = 0.1,
        mixup_alpha: float = 0.2,
        ema_decay: float = 0.999,
        ue: bool = True,
        vertical_flip: bool = False,
    ):
        check_thresholds(ude_tau_positive, ude_tau_negative, "ude_")
        if local_iterations < 1 or pairs < 1 or not high > 0 or not low > 0:
            raise FedMendError(
                "job variables local_iterations, pairs, high, low: expected at least 1, 1 and more than 0, got"
                f" {local_iterations}, {pairs}, {high}, {low}"
            )
        if not (0 <= ude_weight < math.inf and 0 < mixup_alpha < math.inf and 0 <= ema_decay < 1):
            raise FedMendError(
                "job variables ude_weight, mixup_alpha, ema_decay: expected >= 0, > 0 and 0 to below 1, got"
                f" {ude_weight}, {mixup_alpha}, {ema_decay}"
            )
        super().__init__(
            local_iterations=local_iterations,
            vertical_flip=vertical_flip,
            tau_positive=tau_positive,
            tau_negative=tau_negative,
        )
        self.high, self.low, self.pairs, self.ue = high, low, pairs, ue
        self.ude_tau_positive, self.ude_tau_negative = ude_tau_positive, ude_tau_negative
        self.ude_weight, self.mixup_alpha, self.ema_decay = ude_weight, mixup_alpha, ema_decay

    # ---- before the training ----------------------------------------------------------------------------------------
    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Measures uncertainty with the received model, sorts the samples into pools, and makes the teacher."""
        super().prepare(model, task, site)
        memory, samples = site.memory, len(site.data.train)
        known = memory["known"].cpu().numpy()
        memory["mixing"] = np.random.default_rng(site.generator(task, "mixup").initial_seed())
        # Without unknown classes there is nothing to be uncertain about: every sample is in the main pool.
        enhance = not known.all()
        if not enhance:
            LOG.info("%s: every class is known here: no uncertainty estimation, no pseudo-labels", site.name)
        logits = infer(model, site.data.train, site)[1] if enhance and self.ue else None
        memory["entropy"] = None if logits is None else uncertainty(logits.numpy(), known, site.data.task)
        if enhance:
            order = memory["entropy"]
            if order is None:
                order = torch.rand(samples, generator=site.generator(task, "pools")).numpy()
            memory["pools"] = split_pools(order, *self._pool_sizes(samples, site))
        else:
            memory["pools"] = (np.arange(0), np.arange(0), np.arange(samples))
        memory["pairs"] = min(self.pairs, *map(len, memory["pools"][:2])) if self.ude_weight else 0
        if (least := samples - len(memory["pools"][0]) + memory["pairs"]) < 2:
            raise FedMendError(
                f"{site.name}: {site.data.train.table.file}: expected at least 2 samples besides high, got {least}"
            )
        memory["teacher"] = copy.deepcopy(model).eval().requires_grad_(False)

    def _pool_sizes(self, samples: int, site: Site) -> tuple[int, int]:
        high, low = (max(1, round(v * samples)) if v < 1 else round(v) for v in (self.high, self.low))
        if high + low > samples:
            raise FedMendError(
                f"{site.name}: {site.data.train.table.file}: expected at least high + low = {high} + {low} samples,"
                f" got {samples}"
            )
        return high, low

    def parts(self, site: Site) -> list[tuple[np.ndarray, int]]:
        """B samples of D_l and the rest, then ``pairs`` of D_h and ``pairs`` of D_l."""
        (high, low, _), pairs = site.memory["pools"], site.memory["pairs"]
        main = np.setdiff1d(np.arange(len(site.data.train)), high)
        return [(pool, count) for pool, count in ((main, site.batch_size), (high, pairs), (low, pairs)) if count]

    # ---- a step -----------------------------------------------------------------------------------------------------
    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """L_I + L_U + lambda * L_UDE, Eqs. (4)-(6)."""
        memory, data = site.memory, site.data.train
        size, pixels = len(index) - 2 * memory["pairs"], data.pixels(index)
        main, paired = pixels[:size], pixels[size:]
        generator = memory["generator"]
        with torch.no_grad():
            seen = torch.cat([weak(main, generator), paired])
            teacher = probabilities(memory["teacher"](to_network(seen))[1].float(), site)
        rows = index.to(site.device, non_blocking=True)
        inputs, mixed = strong(main, generator, vertical_flip=self.vertical_flip), None
        if len(paired):
            mixed = self._mix(paired, teacher[size:], memory["labels"][rows[size:]], site)
            inputs = torch.cat([inputs, mixed[0]])
        logits = model(to_network(inputs))[1].float()
        loss = self.main_loss(logits[:size], teacher[:size], rows[:size], site)
        if mixed is not None:
            loss = loss + self.ude_weight * self._mixed_loss(logits[size:], *mixed[1:], site)
        return loss

    def after_step(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Moves the teacher's parameters towards the student's and copies its BatchNorm statistics."""
        teacher = site.memory["teacher"]
        with torch.no_grad():
            torch._foreach_lerp_(list(teacher.parameters()), list(model.parameters()), 1 - self.ema_decay)
            for own, other in zip(teacher.buffers(), model.buffers(), strict=True):
                own.copy_(other)

    def _mix(self, paired: Tensor, teacher: Tensor, labels: Tensor, site: Site) -> tuple[Tensor, Tensor, Tensor]:
        """Mixed images, targets and the entries that count, Eq. (6)."""
        half = len(paired) // 2  # the uncertain images, then the confident ones
        uncertain = pseudo_labels(teacher[:half], labels[:half], self.ude_tau_positive, self.ude_tau_negative, site)
        confident = pseudo_labels(teacher[half:], labels[half:], self.tau_positive, self.tau_negative, site)
        weight = float(site.memory["mixing"].beta(self.mixup_alpha, self.mixup_alpha))
        images = torch.lerp(paired[:half], paired[half:], weight)
        return images, torch.lerp(uncertain[0], confident[0], weight), uncertain[1] & confident[1]

    @staticmethod
    def _mixed_loss(logits: Tensor, target: Tensor, valid: Tensor, site: Site) -> Tensor:
        if site.data.task != SINGLELABEL:
            return masked_bce(logits, target, valid, logits.numel(), site.memory["pos_weight"])
        entropy = F.cross_entropy(logits, target, reduction="none")
        kept = valid[:, 0]
        return torch.where(kept, entropy, 0).sum() / kept.sum().clamp(min=1)

    # ---- after the training -----------------------------------------------------------------------------------------
    def report(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """q of Eq. (7) and the histogram of uncertainty; writes the round's new pseudo-labels into the ledger."""
        super().report(model, task, site)
        labels, pseudo = site.data.train.labels, site.memory["pseudo"].cpu().numpy()
        known = site.memory["known"].cpu().numpy()
        knowledge = np.where(known, (labels == 1).sum(0), (pseudo == 1).sum(0))
        report = {"class_knowledge": knowledge.astype(np.float32)}
        if site.memory["entropy"] is not None:
            report["uncertainty"] = np.histogram(site.memory["entropy"], UNCERTAINTY_BINS, (0, 1))[0].astype(np.int64)
        return report


def uncertainty(logits: np.ndarray, known: np.ndarray, task: str) -> np.ndarray:
    """Entropy of each sample, Eq. (3), Deng et al., MICCAI 2023, scaled to [0, 1].

    Args:
        logits: (N, M).
        known: (M,) bool, I_k.
        task: single-label data: entropy over all classes / ln M; multi-label data: mean binary entropy / ln 2 over U_k.

    Returns:
        (N,) float64; 0 where no class is unknown.
    """
    z = logits.astype(np.float64)
    if task == SINGLELABEL:
        log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
        return (-(np.exp(log_p) * log_p).sum(1) / math.log(z.shape[1])).clip(0, 1)
    if known.all():
        return np.zeros(len(z))
    log_p, log_q = -np.logaddexp(0, -z[:, ~known]), -np.logaddexp(0, z[:, ~known])  # of p and 1 - p
    entropy = -(np.exp(log_p) * log_p + np.exp(log_q) * log_q).mean(1) / math.log(2)
    return entropy.clip(0, 1)  # rounding may exceed 1


def split_pools(order: np.ndarray, high: int, low: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """D_h, D_l and D_m: the ``high`` largest, the ``low`` smallest and the other samples; ties in sample order.

    Args:
        order: (N,) uncertainty.
        high: n_h.
        low: n_l; high + low <= N.
    """
    ranked = np.argsort(order, kind="stable")
    return np.sort(ranked[len(ranked) - high :]), np.sort(ranked[:low]), np.sort(ranked[low : len(ranked) - high])


# ---- the server -----------------------------------------------------------------------------------------------------
def check_report(report: Report, *, num_classes: int, needs_knowledge: bool) -> None:
    """Refuses a report that the aggregation or the run's own report cannot use.

    Args:
        report: finite numbers, see :class:`FedLSM`; empty for the baselines.
        num_classes: M.
        needs_knowledge: ``class_knowledge`` must be there.

    Raises:
        FedMendError: ``class_knowledge`` is missing, or a field has another shape or a negative number.
    """
    for name, size in (("class_knowledge", num_classes), ("uncertainty", UNCERTAINTY_BINS)):
        if name in report or (needs_knowledge and name == "class_knowledge"):
            value = report.get(name)
            if np.shape(value) != (size,) or (np.asarray(value) < 0).any():
                raise FedMendError(f"report field {name}: expected {size} numbers >= 0")


def positive_weights(positives: Mapping[str, np.ndarray], samples: Mapping[str, int], *, cap: float) -> np.ndarray:
    """Weight of the positive term of each class, N_neg / N_pos over the sites that identify it (D3).

    Args:
        positives: site → (M,) positive training samples, 0 for a class that the site does not identify.
        samples: site → training samples; those without a label of an identified class count as negative, as the census does not
            tell them apart.
        cap: largest weight.

    Returns:
        (M,) float32 in [0.01, cap].
    """
    total = np.zeros(len(next(iter(positives.values()))))
    negative = np.zeros_like(total)
    for site, count in positives.items():
        total += count
        negative += np.where(count > 0, samples[site] - count, 0)
    return np.clip(negative / np.maximum(total, 1), 0.01, cap).astype(np.float32)


def class_weights(
    knowledge: Mapping[str, np.ndarray], samples: Mapping[str, int], known: Mapping[str, np.ndarray], *, rule: str
) -> dict[str, np.ndarray]:
    """Share of each site in the average of every classifier row, Eq. (7), Deng et al., MICCAI 2023 (AWPA).

    Args:
        knowledge: site → (M,) q.
        samples: site → n_k.
        known: site → (M,) bool, I_k.
        rule: ``awpa``: by q; where q is 0 everywhere, by n_k over the sites that know the class. ``masked``: by n_k over the sites
            that know the class (task-dependent aggregation). With both, a class that no site knows is averaged by n_k.
            ``samples``: every class by n_k (FedAvg).

    Returns:
        site → (M,) float64; they sum to 1 for every class.
    """
    sites = sorted(knowledge)
    n = np.array([samples[s] for s in sites], dtype=np.float64)[:, None]
    owned = n * np.array([known[s] for s in sites])
    weights = np.where((rule != "samples") & (owned.sum(0) > 0), owned, n)
    if rule == "awpa":
        q = np.minimum(np.array([knowledge[s] for s in sites], dtype=np.float64), n)  # no site knows more than it has
        weights = np.where(q.sum(0) > 0, q, weights)
    weights = weights / weights.sum(0)
    return dict(zip(sites, weights, strict=True))
