"""FedMLP: federated multi-label learning with classes that are not annotated at some sites.

Sun, Wu et al., "FedMLP: Federated Multi-Label Medical Image Classification under Task Heterogeneity", MICCAI 2024.
C classes, N samples at a site, F features. Annotated classes are the paper's active classes AC_k, missing ones NC_k.

Warm-up: two augmented views, WPC loss (Eqs. 3-4) on annotated classes. From the last warm-up round on, sites send
prototypes (Eq. 5) and learning degrees (Eq. 10); the server averages them (Eqs. 6, 10). In stage 2 each site tags the most
certain samples of its missing classes (Eqs. 7-9) for good and trains on annotated and tagged labels with the WPC loss and on
the rest with consistency to the global model (section 2.4).

The published code (commit 2ad28b8) is an ablation snapshot that does not run, so the paper leads. Where they differ:

- D1 logit adjustment: paper, on in both stages (``la``).
- D2 self-adaptive threshold: paper, tau = d^G * T (``st``; off = fixed T as in the code).
- D3 consistency regularisation in stage 2: paper, on (``cr``); it gives no weight, 1 is that of a line that the code has
  commented out (``cr_weight``).
- D4 distillation from the global model in the warm-up: paper, none (``warmup_distillation`` = 1 is the code).
- D5 learning degree averaged over the sites that miss the class: code and the paper's text; its Eq. (10) says S_c
  (``degree_over`` of the controller: missing, annotated, all).
- D6 prototypes weighted by N_k as in the code; plain mean as in Eq. (6) is ``prototype_weighting=uniform`` of the controller.
- D7 loss divided by B*|AC_k| in the warm-up (code) and B*C in stage 2 (Eq. 4; the code's commented line, while the active one
  divides by the number of supervised entries); Eq. (4)'s 1/C throughout is ``normaliser=paper``. B is the size of the batch at
  hand, also of a short last one, where the code divides by the nominal size.
- D8 learning rate: paper, 3e-5 in the paper preset of the job.
- D9 the data split is the converter's matter (:mod:`fedmend.datasets.rsna_ich`).
- D10 class prior of a missing class in stage 2: n1 / (n0 + n1) over tagged samples, smoothed by 1, because the code's n1 / N
  shifts logits too far while few samples are tagged (``prior=all`` is close to the code: (n1 + 1) / (N + 2)).
- D11 the code drops positive tags when there are no negative ones: not reproduced.
- D12 quotas are shares of the residual samples on each side, rounded down (both); small sites may want
  ``quota_rounding=ceil``.
- D13 two views in the warm-up, their losses averaged; one view in stage 2 (code).
- D14 concerns the FedAvg baseline: :mod:`fedmend.methods.baselines`.

Passes per training sample and round: warm-up 2 forward-backward; last warm-up round 1 inference more; stage 2
1 forward-backward and 2 inferences, because one scoring pass of the received model gives both the confidences of Eq. (7) and
the teacher of section 2.4: a sample has one augmented view per round, which all three passes share. The last round needs no
prototypes and saves its second inference.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.data.manifest import NOT_ANNOTATED
from fedmend.errors import FedMendError
from fedmend.ledger import Repairs
from fedmend.losses import masked_bce, positive_weight, prior_shift
from fedmend.methods.base import LocalMethod, Report, RoundTask, Site
from fedmend.training import infer

WARMUP, PROTOTYPE, DETECT = "warmup", "prototype", "detect"
RULE = "fedmlp.missing_label_detection"


class FedMLP(LocalMethod):
    """Client half of FedMLP.

    Args:
        mld: missing label detection (Eqs. 7-9); off: nothing is tagged.
        wpc: weighted partial-class loss (Eq. 4); off: Eq. (1), where a missing label counts as negative (unless ``cr``
            or ``warmup_distillation`` takes care of it), with the baselines' positive weights.
        cr: consistency regularisation of untagged missing classes (section 2.4).
        st: self-adaptive threshold (Eq. 10); off: the selection ratios are T_0 and T_1 themselves.
        ratio_negative: T_0, largest share of the residual negative side tagged per round, in [0, 1].
        ratio_positive: T_1, the same for the positive side.
        low: L of Eq. (10); probabilities below it count as learned.
        high: R of Eq. (10); probabilities above it count as learned.
        la: logit adjustment (Eq. 3) inside the WPC loss.
        cr_weight: weight of the consistency term, >= 0.
        warmup_distillation: weight of distillation from the global model in the warm-up, >= 0.
        prior: ``tagged`` or ``all``, see D10.
        quota_rounding: ``floor`` or ``ceil``, see D12.
        normaliser: ``code`` or ``paper``, see D7.
    """

    REPORT_FIELDS: ClassVar[Mapping[str, str]] = {
        "prototypes": "(2C, F) float32, row 2c+n: mean feature of the samples with label n of annotated class c, else 0;"
        " a mean over at least min_count samples",
        "prototype_counts": "(2C,) int64, samples behind each prototype; a count per class",
        "learning_degree": "(C,) float32, share of samples with probability < L or > R; one number per class",
    }

    def __init__(
        self,
        *,
        mld: bool = True,
        wpc: bool = True,
        cr: bool = True,
        st: bool = True,
        ratio_negative: float = 0.005,
        ratio_positive: float = 0.01,
        low: float = 0.3,
        high: float = 0.7,
        la: bool = True,
        cr_weight: float = 1.0,
        warmup_distillation: float = 0.0,
        prior: str = "tagged",
        quota_rounding: str = "floor",
        normaliser: str = "code",
    ):
        for name, value, choices in (
            ("prior", prior, ("tagged", "all")),
            ("quota_rounding", quota_rounding, ("floor", "ceil")),
            ("normaliser", normaliser, ("code", "paper")),
        ):
            if value not in choices:
                raise FedMendError(f"job variable {name}: expected one of {choices}, got {value!r}")
        if not (0 <= ratio_negative <= 1 and 0 <= ratio_positive <= 1):
            raise FedMendError(
                f"job variables ratio_negative, ratio_positive: expected 0 to 1, got {ratio_negative}, {ratio_positive}"
            )
        if not 0 <= low < high <= 1:
            raise FedMendError(f"job variables low, high: expected 0 <= low < high <= 1, got {low}, {high}")
        if not (cr_weight >= 0 and warmup_distillation >= 0):
            raise FedMendError(
                f"job variables cr_weight, warmup_distillation: expected >= 0, got {cr_weight}, {warmup_distillation}"
            )
        self.mld, self.wpc, self.cr, self.st, self.la = mld, wpc, cr, st, la
        self.ratio_negative, self.ratio_positive = ratio_negative, ratio_positive
        self.low, self.high = low, high
        self.cr_weight, self.warmup_distillation = cr_weight, warmup_distillation
        self.prior, self.quota_rounding, self.normaliser = prior, quota_rounding, normaliser

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Runs the received global model once over the training data where it is needed, and tags (stage 2)."""
        labels = site.data.train.labels
        if task.stage == DETECT:
            if self.mld or self.cr:
                features, logits = infer(model, site.data.train, site, site.views(task, 1)[0])
                site.memory["teacher"] = logits.sigmoid().to(site.device)[None]
                if self.mld:
                    self._tag(features.numpy(), task, site)
            labels = site.ledger.apply(labels)
        elif self.warmup_distillation:
            passes = [infer(model, site.data.train, site, view)[1] for view in site.views(task, 2)]
            site.memory["teacher"] = torch.stack(passes).sigmoid().to(site.device)
        known = labels != NOT_ANNOTATED
        site.memory["target"] = torch.from_numpy((labels == 1).astype(np.float32)).to(site.device)
        site.memory["known"] = torch.from_numpy(known).to(site.device)
        site.memory["shift"] = torch.from_numpy(self._logit_shift(labels, site)).to(site.device)
        weight = positive_weight(np.maximum(labels, 0))
        site.memory["pos_weight"] = torch.from_numpy(weight).to(site.device)

    def _logit_shift(self, labels: np.ndarray, site: Site) -> np.ndarray:
        if not (self.wpc and self.la):
            return np.zeros(labels.shape[1], dtype=np.float32)
        counted = labels if self.prior == "tagged" else np.maximum(labels, 0)
        return np.where(site.data.annotated, prior_shift(labels), prior_shift(counted, smoothing=1.0)).astype(
            np.float32
        )

    def _tag(self, features: np.ndarray, task: RoundTask, site: Site) -> None:
        labels, tagged = site.data.train.labels, site.ledger.repairs()
        degree = _knowledge(task, site, "learning_degree") if self.st else np.ones(labels.shape[1])
        if ((degree < 0) | (degree > 1)).any():  # larger shares would tag what nobody is certain of
            raise FedMendError(
                f"{site.name}: round {task.round_num}, learning_degree from the server: expected 0 to 1, got another"
            )
        confidence = confidences(features, _knowledge(task, site, "prototypes"))
        found: list[tuple[np.ndarray, int, int]] = []
        for c in np.flatnonzero(~site.data.annotated):
            residual = (tagged[:, c] == NOT_ANNOTATED) & ~np.isnan(confidence[:, c])
            ratios = (degree[c] * self.ratio_negative, degree[c] * self.ratio_positive)
            negatives, positives = select_confident(confidence[:, c], residual, *ratios, rounding=self.quota_rounding)
            found += [(negatives, c, 0), (positives, c, 1)]
        sample = np.concatenate([s for s, _, _ in found] or [np.zeros(0, dtype=np.int64)])
        label_class = np.concatenate([np.full(len(s), c) for s, c, _ in found] or [np.zeros(0, dtype=np.int64)])
        new = np.concatenate([np.full(len(s), n) for s, _, n in found] or [np.zeros(0, dtype=np.int64)])
        repairs = Repairs(sample, label_class, new, np.abs(confidence[sample, label_class]))
        site.ledger.record(RULE, task.round_num, labels, repairs)

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Eq. (4) on known labels plus, in stage 2, the mean squared error of section 2.4 on the others."""
        if task.stage == DETECT:
            return self._view_loss(model, 0, 1, index, task, site, self.cr_weight if self.cr else 0.0)
        losses = [self._view_loss(model, v, 2, index, task, site, self.warmup_distillation) for v in (0, 1)]
        return (losses[0] + losses[1]) / 2

    def _view_loss(
        self, model: nn.Module, view: int, views: int, index: Tensor, task: RoundTask, site: Site, teacher_weight: float
    ) -> Tensor:
        memory = site.memory
        _, logits = model(site.data.train.view(index, site.views(task, views)[view]))
        logits, rows = logits.float(), index.to(site.device, non_blocking=True)
        known, target = memory["known"][rows], memory["target"][rows]
        whole, annotated = known.numel(), len(index) * int(site.data.annotated.sum())
        scale = whole if task.stage == DETECT or self.normaliser == "paper" else annotated
        if self.wpc:
            loss = masked_bce(logits + memory["shift"], target, known, scale)
        else:
            counted = known if teacher_weight else torch.ones_like(known)
            loss = masked_bce(logits, target, counted, whole, memory["pos_weight"])
        if teacher_weight:
            unknown_scale = whole if task.stage == DETECT else max(whole - annotated, len(index))
            error = (logits.sigmoid() - memory["teacher"][view][rows]).square()
            loss = loss + teacher_weight * torch.where(known, 0, error).sum() / unknown_scale
        return loss

    def report(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Prototypes of annotated classes and learning degrees of all classes, by one pass of the local model."""
        if not self.mld or task.stage == WARMUP or task.round_num == task.total_rounds - 1:
            return {}
        view = site.views(task, 1 if task.stage == DETECT else 2)[0]
        features, logits = infer(model, site.data.train, site, view)
        prototypes, counts = local_prototypes(features.numpy(), site.data.train.labels)
        degree = learning_degree(logits.sigmoid().numpy(), self.low, self.high)
        return {"prototypes": prototypes, "prototype_counts": counts, "learning_degree": degree}


def _knowledge(task: RoundTask, site: Site, name: str) -> np.ndarray:
    value = task.knowledge.get(name)
    if value is None or not np.isfinite(value).all():
        got = "nothing" if value is None else "NaN or infinity"
        raise FedMendError(
            f"{site.name}: round {task.round_num}, {name} from the server: expected finite numbers, got {got}"
        )
    return value


def _slices(samples: int) -> list[slice]:
    """Parts of a data set that fit the cache when turned to float64."""
    return [slice(i, i + 4096) for i in range(0, samples, 4096)]


def confidences(features: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    """Z of Eq. (7), Sun et al., MICCAI 2024: cos(P_0, F) - cos(P_1, F).

    Args:
        features: (N, F).
        prototypes: (2C, F), row 2c + n for label n of class c; a zero row = no prototype.

    Returns:
        (N, C) float64; < 0 leans positive, NaN for a class that lacks a prototype.
    """
    prototypes = prototypes.astype(np.float64)
    length = np.linalg.norm(prototypes, axis=1)
    directions = (prototypes / np.maximum(length, 1e-12)[:, None]).T
    z = np.empty((len(features), len(prototypes) // 2))
    for rows in _slices(len(features)):
        part = features[rows].astype(np.float64)
        cosine = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)) @ directions
        z[rows] = cosine[:, 0::2] - cosine[:, 1::2]
    z[:, (length[0::2] == 0) | (length[1::2] == 0)] = np.nan
    return z


def select_confident(
    confidence: np.ndarray,
    residual: np.ndarray,
    ratio_negative: float,
    ratio_positive: float,
    *,
    rounding: str = "floor",
) -> tuple[np.ndarray, np.ndarray]:
    """Most certain residual samples of one class, Eqs. (8)-(9), Sun et al., MICCAI 2024.

    Args:
        confidence: (N,) Z of Eq. (7).
        residual: (N,) bool, samples that are not tagged yet.
        ratio_negative: tau_0, share of the residual samples with Z >= 0 that is selected.
        ratio_positive: tau_1, share of those with Z < 0.
        rounding: ``floor`` or ``ceil`` of the product.

    Returns:
        Sample numbers to tag 0 (largest Z first) and 1 (smallest Z first); ties in sample order.
    """
    negative_side = np.flatnonzero(residual & (confidence >= 0))
    positive_side = np.flatnonzero(residual & (confidence < 0))
    negatives = negative_side[np.argsort(-confidence[negative_side], kind="stable")]
    positives = positive_side[np.argsort(confidence[positive_side], kind="stable")]
    return (
        negatives[: _quota(ratio_negative, len(negatives), rounding)],
        positives[: _quota(ratio_positive, len(positives), rounding)],
    )


def _quota(ratio: float, size: int, rounding: str) -> int:
    # The degree in the ratio has travelled as float32: 0.1 * 30 = 3.00000004 must not be rounded up to 4, nor
    # 0.01 * 300 = 2.9999999 down to 2.
    exact = float(ratio) * size
    return math.floor(exact * (1 + 1e-6)) if rounding == "floor" else math.ceil(exact * (1 - 1e-6))


def local_prototypes(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Prototypes of Eq. (5), Sun et al., MICCAI 2024: mean features per class and label, from original labels only.

    Args:
        features: (N, F).
        labels: (N, C) int8; -1 = not annotated.

    Returns:
        prototypes (2C, F) float32, row 2c + n, zero where no sample has the label; counts (2C,) int64.
    """
    member = np.stack([labels == 0, labels == 1], axis=2).reshape(len(labels), -1)
    counts = member.sum(0)
    sums = sum(member[rows].T.astype(np.float64) @ features[rows].astype(np.float64) for rows in _slices(len(labels)))
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts.astype(np.int64)


def learning_degree(probabilities: np.ndarray, low: float, high: float) -> np.ndarray:
    """Local learning degree d_c^k, Eq. (10) left, Sun et al., MICCAI 2024: share of scores < L or > R.

    Args:
        probabilities: (N, C) raw sigmoid outputs.
        low: L.
        high: R.

    Returns:
        (C,) float32 in 0..1.
    """
    return ((probabilities < low) | (probabilities > high)).mean(0).astype(np.float32)


def check_report(report: Report, num_classes: int, num_features: int) -> None:
    """Refuses a report that the server half cannot use.

    Args:
        report: what a site sent; an empty report is fine.
        num_classes: C.
        num_features: F.

    Raises:
        FedMendError: a field is missing or has another shape, or a learning degree is not in 0..1.
    """
    if not report:
        return
    shapes = {name: np.shape(report[name]) for name in FedMLP.REPORT_FIELDS if name in report}
    expected = {
        "prototypes": (2 * num_classes, num_features),
        "prototype_counts": (2 * num_classes,),
        "learning_degree": (num_classes,),
    }
    if shapes != expected:
        raise FedMendError(f"report: expected the shapes {expected}, got {shapes}")
    if ((report["learning_degree"] < 0) | (report["learning_degree"] > 1)).any():
        raise FedMendError("report field learning_degree: expected numbers from 0 to 1, got others")


def global_prototypes(
    reports: Mapping[str, Report], samples: Mapping[str, int], *, weighting: str = "samples"
) -> np.ndarray:
    """Global prototypes P_n^c, Eq. (6), Sun et al., MICCAI 2024, over the sites that have one.

    Args:
        reports: site → report with prototypes (2C, F) and prototype_counts (2C,).
        samples: site → N_k.
        weighting: ``samples`` (weights N_k, as the published code) or ``uniform`` (Eq. 6 to the letter).

    Returns:
        (2C, F) float32; zero rows where no site has the prototype. Sites are summed in sorted order.
    """
    total, weights = 0.0, 0.0
    for site in sorted(reports):
        weight = (reports[site]["prototype_counts"] > 0) * (float(samples[site]) if weighting == "samples" else 1.0)
        total = total + weight[:, None] * reports[site]["prototypes"].astype(np.float64)
        weights = weights + weight
    return (total / np.maximum(weights, 1e-12)[:, None]).astype(np.float32)


def classes_without_prototype(prototypes: np.ndarray) -> list[int]:
    """Classes for which nothing can be tagged in the next round, because a row of (2C, F) ``prototypes`` is zero."""
    absent = ~prototypes.any(axis=1)
    return np.flatnonzero(absent[0::2] | absent[1::2]).tolist()


def global_learning_degree(
    reports: Mapping[str, Report],
    samples: Mapping[str, int],
    annotated: Mapping[str, np.ndarray],
    *,
    over: str = "missing",
) -> np.ndarray:
    """Global learning degree d_c^G, Eq. (10) right, Sun et al., MICCAI 2024: mean weighted by N_k.

    Args:
        reports: site → report with learning_degree (C,).
        samples: site → N_k.
        annotated: site → (C,) bool.
        over: the sites that count for a class: those where it is ``missing`` or ``annotated``, or ``all``.

    Returns:
        (C,) float32; 1 for a class for which no site counts.
    """
    total, weights = 0.0, 0.0
    for site in sorted(reports):
        counts = {"missing": ~annotated[site], "annotated": annotated[site], "all": np.ones_like(annotated[site])}[over]
        weight = counts * float(samples[site])
        total, weights = total + weight * reports[site]["learning_degree"], weights + weight
    return np.where(weights > 0, total / np.maximum(weights, 1e-12), 1.0).astype(np.float32)
