"""FedLSM: sites whose label sets do not match, multi-label or single-label.

Deng, Luo, Chen, "Scale Federated Learning for Label Set Mismatch in Medical Image Classification", MICCAI 2023. N
samples at a site, M classes; I_k are the classes that site k identifies, U_k the others.

Every round a site measures the uncertainty of its images under the received model (Eq. 3) and sorts them into D_h
(uncertain), D_l (confident) and the rest. A teacher, the moving average of the student, gives pseudo-labels on unknown
classes of D_l and the rest (Eqs. 4-5); pairs of D_l and D_h are mixed (uncertain data enhancement, Eq. 6). The server
averages each classifier row by what the sites know about its class (adaptive weighted proxy aggregation, Eq. 7). What
is not FedLSM's alone is in :mod:`fedmend.methods.labelsets` (L_I, L_U, the baselines, masked rows) and
:mod:`fedmend.methods.shared.readings` (Eqs. 3-5 for each kind of labels).

Where paper and reference code (dzp2095/FedLSM) differ, or the paper is silent:

- D1 multi-label uncertainty: binary entropy / ln 2, mean over U_k, in [0, 1]; the code drops one half and averages over
  all M.
- D2 the uncertainty pass is in eval mode and leaves BatchNorm alone; in the code it runs in train mode.
- D3 the loss is element-wise, divided by B*M; the code multiplies a scalar mean by the weights, so its mask has no
  effect. The weight N_neg / N_pos, counted over the sites that identify the class and capped, is on the positive term
  alone.
- D4 images of the mixed pairs get pseudo-labels in single-label data too; a pair in which one image has no label is
  dropped.
- D5 a single-label pseudo-label is a class of U_k (Eq. 4); the code takes any class.
- D6 thresholds of the uncertain image: ``ude_tau_positive``, ``ude_tau_negative`` (.7 and .005 as released); an entry
  counts where it is known or valid in both images.
- D7 q of Eq. (7) counts samples: positive labels, and for a class of U_k the samples whose last pseudo-label of the
  round is positive, among the samples that were drawn. Labels are those of people: a pseudo-label that somebody has
  accepted is one. The code counts draws. The ledger keeps the last pseudo-label of a sample also after the teacher has
  become unsure. Wrong ones count in full, as published, unless ``discount`` is on.
- D8 Adam's beta_2 is the paper's .99 in the job (``second_momentum``); its moments go on over rounds (code).
- D9 every round draws another order of samples; the code repeats one. No sample is twice in a batch: a pass over the
  samples ends with its last whole batch.
- D10, D11 split and identified classes are the converters' matter. D12 all sites start from the server's weights.
- D13 augmentation as in the code, vertical flips by ``vertical_flip``.
- D14 thresholds and uncertainty are read from sigmoid(z - log w), where w is the weight of the positive term, so that
  they are probabilities whatever ``pos_weight_cap`` is. The weights of the code have no effect on its probabilities
  (D3); in the paper they are not said.
- D15 ``keep_labelled``: D_h leaves L_I in paper and code, and with it the labels of rare classes, which are uncertain.
- D16 a step of the student has ``batch_size`` images with the mixed ones, as in the paper, and so has a baseline's.
- D17 in single-label data L_U is divided by N_U (Eq. 4); the code divides labels and pseudo-labels by the batch
  (``loss_mean``).
- D18 ``known_all_labelled``: where every picture of a class of I_k has its label, as in the paper's protocol, one
  without a label is of U_k. Paper and code take probabilities over all classes all the same, and drop a single-label
  picture whose most probable class is of I_k: of (.60, .35, .05), the first of I_k, nothing is left; given U_k, the
  second class has .875.
- The known classes of a single-label site are those of which it has a label.
- The teacher starts each round as the received model (code).

Passes per round: one inference of each sample; per step the teacher sees the main batch and the pairs, the student the
main batch and the mixed pairs.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import Contributions
from fedmend.data.augment import weak
from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.labels import NOT_ANNOTATED, SINGLELABEL
from fedmend.learning.inference import infer
from fedmend.method import Answer, Federation, RoundTask, Site
from fedmend.methods.labelsets import LabelSetWorkflow, PseudoLabelMethod, PseudoLabelRound
from fedmend.methods.shared.mean_teacher import COPIED, MeanTeacher
from fedmend.methods.shared.settings import (
    Count,
    NegativeThreshold,
    PartialShare,
    Positive,
    PositiveThreshold,
    Weight,
    one_of,
)

LOG = logging.getLogger("fedmend.fedlsm")
UNCERTAINTY_BINS = 20
FIELDS = {
    "class_knowledge": Field(
        ("C",),
        "float32",
        0,
        UNBOUNDED,
        "q of Eq. (7): positive labels or pseudo-labels of each class",
        "counts per class",
    ),
    "uncertainty": Field(
        (UNCERTAINTY_BINS,), "int64", 0, UNBOUNDED, "training samples by uncertainty, equal bins from 0 to 1", "counts"
    ),
}


# ---- the site -------------------------------------------------------------------------------------------------------
class FedLSMRound(PseudoLabelRound):
    """One round at a site: measures uncertainty by the received model, sorts samples into pools, makes the teacher."""

    method: "FedLSM"

    def __init__(self, method: "FedLSM", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        samples, known = len(site.data.train), self.known.cpu().numpy()
        self._mixing = np.random.default_rng(site.generator(task, "mixup").initial_seed())
        self._entropy: np.ndarray | None = None  # (N,) where it was measured
        # Without unknown classes there is nothing to be uncertain about: every sample is in the main pool.
        self._pools = (np.arange(0), np.arange(0), np.arange(samples))
        if known.all():
            LOG.info("%s: every class is known here: no uncertainty estimation, no pseudo-labels", site.name)
        else:
            order = torch.rand(samples, generator=site.generator(task, "pools")).numpy()
            if method.ue:
                logits = self.unweighted(infer(model, site.data.train, site)[1])
                order = self._entropy = self.reading.uncertainty(logits.numpy(), known)
            self._pools = split_pools(order, *self._pool_sizes(samples))
        self._main = self._main_pool(samples)
        self._pairs = min(method.pairs, *map(len, self._pools[:2])) if method.ude_weight else 0
        if (least := len(self._main) + self._pairs) < 2:
            raise FedMendError(
                f"{site.name}: {site.data.train.table.file}: expected at least 2 samples besides high, got {least}"
            )
        if site.batch_size < self._pairs + 2:
            raise FedMendError(
                f"job variables batch_size, pairs: expected at least 2 images of a step besides the mixed ones, got"
                f" {site.batch_size} and {self._pairs}"
            )
        self._teacher = MeanTeacher(model, decay=method.ema_decay, statistics=COPIED)

    def _main_pool(self, samples: int) -> np.ndarray:
        """Samples of L_I and L_U: all but D_h, or all but those of D_h that have no label."""
        left_out = np.zeros(samples, dtype=bool)
        left_out[self._pools[0]] = True
        self._uncertain = torch.from_numpy(left_out).to(self.site.device)
        if self.method.keep_labelled:
            left_out = left_out & (self.labels == NOT_ANNOTATED).all(1).cpu().numpy()
        return np.flatnonzero(~left_out)

    def labelled_by_teacher(self, rows: Tensor) -> Tensor:
        """U_k, of samples that are not uncertain."""
        return ~self.known & ~self._uncertain[rows, None]

    def _pool_sizes(self, samples: int) -> tuple[int, int]:
        given = (self.method.high, self.method.low)
        high, low = (max(1, round(v * samples)) if v < 1 else round(v) for v in given)
        if high + low > samples:
            raise FedMendError(
                f"{self.site.name}: {self.site.data.train.table.file}: expected at least high + low = {high} + {low}"
                f" samples, got {samples}"
            )
        return high, low

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, M) of (B, M) logits; given that the class is one of U_k where ``known_all_labelled`` says so (D18)."""
        within = self.method.known_all_labelled and self.site.data.kind == SINGLELABEL and not self.known.all()
        return super().probabilities(logits.masked_fill(self.known, -math.inf) if within else logits)

    def parts(self) -> list[tuple[np.ndarray, int]]:
        """Samples of L_I and L_U, then ``pairs`` of D_h and ``pairs`` of D_l; with the mixed ones, B images."""
        high, low, _ = self._pools
        sizes = ((self._main, self.site.batch_size - self._pairs), (high, self._pairs), (low, self._pairs))
        return [(pool, count) for pool, count in sizes if count]

    def loss(self, index: Tensor) -> Tensor:
        """L_I + L_U + lambda * L_UDE, Eqs. (4)-(6)."""
        data = self.site.data.train
        size, pixels = len(index) - 2 * self._pairs, data.pixels(index)
        main, paired = pixels[:size], pixels[size:]
        with torch.no_grad():
            seen = torch.cat([weak(main, self.generator), paired])
            predicted = self.probabilities(self._teacher.network(data.to_network(seen))[1])
        rows = index.to(self.site.device, non_blocking=True)
        inputs, mixed = self.strong_views(main), None
        if len(paired):
            mixed = self._mix(paired, predicted[size:], rows[size:])
            inputs = torch.cat([inputs, mixed[0]])
        logits = self.model(data.to_network(inputs))[1].float()
        loss = self.main_loss(logits[:size], predicted[:size], rows[:size])
        if mixed is not None:
            loss = loss + self.method.ude_weight * self.reading.mixed_loss(logits[size:], *mixed[1:], self.pos_weight)
        return loss

    def after_step(self) -> None:
        self._teacher.follow(self.model)

    def _mix(self, paired: Tensor, predicted: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mixed images, targets and the entries that count, Eq. (6)."""
        method, half = self.method, len(paired) // 2  # the uncertain images, then the confident ones
        unknown = ~self.known
        ude = method.ude_tau_positive, method.ude_tau_negative
        uncertain = self.targets(predicted[:half], rows[:half], unknown, *ude)
        taus = method.tau_positive, method.tau_negative
        confident = self.targets(predicted[half:], rows[half:], unknown, *taus)
        weight = float(self._mixing.beta(method.mixup_alpha, method.mixup_alpha))
        images = torch.lerp(paired[:half], paired[half:], weight)
        return images, torch.lerp(uncertain[0], confident[0], weight), uncertain[1] & confident[1]

    def report(self) -> Report:
        """q of Eq. (7) and the histogram of uncertainty; writes the round's new pseudo-labels into the ledger."""
        super().report()
        worth = self.pseudo.probabilities() if self.method.discount else 1.0
        positive = self.pseudo.labels.cpu().numpy() == 1  # of U_k, without those that people have accepted
        knowledge = (self.labels == 1).sum(0).cpu().numpy() + (positive * worth).sum(0)
        report = {"class_knowledge": knowledge.astype(np.float32)}
        if self._entropy is not None:
            report["uncertainty"] = np.histogram(self._entropy, UNCERTAINTY_BINS, (0, 1))[0].astype(np.int64)
        return report


@dataclass(kw_only=True, eq=False)
class FedLSM(PseudoLabelMethod):
    """Client half of FedLSM.

    Args:
        high: D_h, the uncertain samples: a number, or a share of the samples when below 1.
        low: D_l, the confident ones, likewise.
        pairs: pairs of D_l and D_h that are mixed per step; with them a step has ``batch_size`` images, as many as one
            of the baselines.
        keep_labelled: images of D_h that have a label stay in L_I too; they get no pseudo-labels.
        discount: a pseudo-label counts in q with its probability, so that q is the number of positives to expect.
        known_all_labelled: in single-label data, the site's labels are complete for the classes that it knows: no
            picture of such a class is without a label. Then the probabilities of a picture without a label, which
            thresholds and ledger see, are those over the unknown classes, which sum to 1. No meaning in multi-label
            data.
        ude_tau_positive: tau_positive of the uncertain image of a pair.
        ude_tau_negative: tau_negative of the uncertain image of a pair.
        ude_weight: lambda, weight of the mixed pairs, >= 0; 0 switches uncertain data enhancement off.
        mixup_alpha: of the Beta distribution of the mixing weight, > 0.
        ema_decay: of the teacher, in [0, 1).
        ue: sort samples by uncertainty; off: D_h and D_l are drawn at random.
    """

    RULE = "fedlsm.pseudo_label"
    FIELDS = FIELDS
    ROUND = FedLSMRound
    high: Positive = 0.05
    low: Positive = 0.2
    pairs: Count = 4
    keep_labelled: bool = False
    discount: bool = False
    known_all_labelled: bool = False
    ude_tau_positive: PositiveThreshold = 0.7
    ude_tau_negative: NegativeThreshold = 0.005
    ude_weight: Weight = 0.1
    mixup_alpha: Positive = 0.2
    ema_decay: PartialShare = 0.999
    ue: bool = True


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
@dataclass(kw_only=True, eq=False)
class FedLSMWorkflow(LabelSetWorkflow):
    """Rounds of one stage; each classifier row is averaged by what the sites know about its class (AWPA).

    Args:
        aggregation: ``awpa`` (Eq. 7), or an ablation: ``masked`` or ``samples``, see :class:`LabelSetWorkflow`.
    """

    METHOD = FedLSM
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {"train": ("class_knowledge",)}
    aggregation: Annotated[str, one_of("awpa", "masked", "samples")] = "awpa"

    def check(self, stage: str, report: Report) -> None:
        """Refuses a report without the class knowledge, which only ``awpa`` needs."""
        if self.aggregation == "awpa":
            super().check(stage, report)

    def weigh(self, weights: np.ndarray, samples: np.ndarray, contributions: Contributions) -> np.ndarray:
        """Eq. (7), Deng et al., MICCAI 2023: by q; where all q are 0, by n_k over the sites that know the class."""
        if self.aggregation != "awpa":
            return weights
        told = np.array([c.report["class_knowledge"] for c in contributions.values()], dtype=np.float64)
        q = np.minimum(told, samples)  # no site knows more than it has
        return np.where(q.sum(0) > 0, q, weights)

    def record(self, fed: Federation, answers: Mapping[str, Answer]) -> None:
        """Writes down q and the histograms of uncertainty."""
        for name in FIELDS:
            shown = {site: a.report[name].tolist() for site, a in answers.items() if name in a.report}
            if shown:
                fed.record(name, shown)
