"""Closed-form heads: no training; each site solves a linear classifier on the features of a frozen network.

Fisher's linear discriminant with a ridge, one against the rest for each class c that site k annotates. X are the
features of the site's samples that have a label of c, each scaled by the site's own mean and standard deviation; m_1
and m_0 are the means of samples with and without the class, n_1 and n_0 their numbers, S the covariance within both
(d x d):

    w = (S + lambda tr(S) / d I)^-1 (m_1 - m_0),    b = -w (m_1 + m_0) / 2 + ln(n_1 / n_0)

The server's row of class c is the mean over the sites that annotate it, by min(n_1, n_0). One exchange, no epochs; what
leaves a site is one row of a classifier for each of its classes.

Heads solved once from frozen features are in Fanì et al., "Accelerating Heterogeneous Federated Learning with
Closed-form Classifiers" (Fed3R, ICML 2024), AFL (arXiv 2405.16240), FedCGS (Guan et al., arXiv 2503.06962) and FedCOF
(Goswami et al., arXiv 2412.14326). They sum means and covariances over sites. Here sites send heads instead: a mean of
features of few patients, or a covariance of fewer samples than features, is close to the samples, and a head is what
any trained model has. What the mean of heads costs against one head from sums is not measured with this code.

Label sets: an image of single-label data without a label counts as one of none of the site's classes, as in FedPU. That
is true where a site labels every image of its classes; ``hidden`` = ``ignored`` leaves such images out.

The network is worth its images only if its weights are: ``stages/`` and the name of a network that has seen photographs
reads all of its stages (:mod:`fedmend.learning.stage_features`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import CLASSIFIER, capped
from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL
from fedmend.learning.inference import infer
from fedmend.learning.threads import one_thread
from fedmend.method import Federation, LocalMethod, Round, RoundTask, Site, Workflow
from fedmend.methods.shared.settings import Positive, Settings, one_of

HEADS = "heads"  # stage
NEGATIVE, IGNORED = "negative", "ignored"
LARGEST_SHARE = 0.5  # of one site in a row, where three or more annotate the class
FIELDS = {
    "head_weights": Field(
        ("C", "F"), "float32", -UNBOUNDED, UNBOUNDED,
        "a linear classifier for each class, solved from the site's features",
        "as the last layer of a trained model: tells in which features the site's classes differ",
        counted_by="head_counts",
    ),
    "head_biases": Field(
        ("C",), "float32", -UNBOUNDED, UNBOUNDED,
        "where each classifier decides", "how frequent a class is at the site", counted_by="head_counts",
    ),
    "head_counts": Field(
        ("C",), "int64", 0, UNBOUNDED,
        "samples with or without the class behind each classifier, the fewer", "counts per class",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Heads:
    """Linear classifiers.

    Attributes:
        weights: (C, F) float64.
        biases: (C,) float64.
        counts: (C,) int64, the fewer of the samples with and without the class; 0: no classifier.
    """

    weights: np.ndarray
    biases: np.ndarray
    counts: np.ndarray


def solve_heads(features: Tensor, labels: np.ndarray, ridge: float, *, la: bool = False) -> Heads:
    """A ridge discriminant for each class, see the module.

    Args:
        features: (N, F).
        labels: (N, C) of 1, 0 or -1, which leaves a sample out of that class.
        ridge: lambda > 0.
        la: without ln(n_1 / n_0).

    Returns:
        The heads for features as they are, not scaled.
    """
    x = features.double()
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    deviation = torch.where(deviation > 1e-6 * deviation.max(), deviation, torch.ones_like(deviation))
    x = (x - mean) / deviation
    num_classes = labels.shape[1]
    weights, biases = torch.zeros(num_classes, x.shape[1], dtype=x.dtype), torch.zeros(num_classes, dtype=x.dtype)
    counts = np.minimum((labels == 1).sum(0), (labels == 0).sum(0))
    for c in np.flatnonzero(counts):
        known = torch.from_numpy(labels[:, c] != NOT_ANNOTATED)
        positive = torch.from_numpy(labels[:, c] == 1)[known]
        row, bias = _discriminant(x[known], positive, ridge)
        prior = 0.0 if la else math.log(int(positive.sum()) / int((~positive).sum()))
        weights[c] = row / deviation
        biases[c] = bias + prior - weights[c] @ mean
    return Heads(weights.numpy(), biases.numpy(), counts.astype(np.int64))


def _discriminant(x: Tensor, positive: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """w (F,) and b without ln(n_1 / n_0), of scaled features (n, F); solved with n x n numbers where n < F."""
    with_class, without = x[positive].mean(0), x[~positive].mean(0)
    within = torch.where(positive[:, None], x - with_class, x - without) / len(x) ** 0.5  # S = within^T within
    number = x.shape[1]
    penalty = ridge * within.square().sum() / number
    if not penalty > 0:  # all samples of a class are the same
        penalty = torch.ones_like(penalty)
    apart = with_class - without
    if len(x) < number:  # Woodbury: (A^T A + p I)^-1 v = (v - A^T (A A^T + p I)^-1 A v) / p
        gram = within @ within.T + penalty * torch.eye(len(x), dtype=x.dtype)
        row = (apart - within.T @ torch.linalg.solve(gram, within @ apart)) / penalty
    else:
        row = torch.linalg.solve(within.T @ within + penalty * torch.eye(number, dtype=x.dtype), apart)
    return row, -row @ (with_class + without) / 2


# ---- the site -------------------------------------------------------------------------------------------------------
class NoRound(Round):
    """Nothing is trained."""

    def loss(self, index: Tensor) -> Tensor:
        """There is none.

        Raises:
            FedMendError: always.
        """
        raise FedMendError("method closed_form: expected a question about heads, got a training round")


@dataclass(kw_only=True, eq=False)
class ClosedForm(Settings, LocalMethod):
    """Client half of closed-form heads.

    Args:
        ridge: lambda, > 0.
        la: leave ln(n_1 / n_0) out of b, which balances the classes, as logit adjustment does for trained methods.
        hidden: what a single-label image without a label is for the site's own classes: ``negative`` or ``ignored``.
    """

    FIELDS = FIELDS
    KINDS: ClassVar[tuple[str, ...]] = (MULTILABEL, SINGLELABEL)
    ROUND = NoRound
    ridge: Positive = 1.0
    la: bool = False
    hidden: Annotated[str, one_of(NEGATIVE, IGNORED)] = NEGATIVE

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """The heads of the classes that the site annotates.

        Raises:
            FedMendError: no class has samples with and without it.
        """
        features = infer(model, site.data.train, site)[0]
        with one_thread():
            heads = solve_heads(features, self.labels(site), self.ridge, la=self.la)
        if not heads.counts.any():
            raise FedMendError(
                f"{site.name}: {site.data.train.table.file}: expected samples with and without a class, got none"
            )
        return {
            "head_weights": heads.weights.astype(np.float32),
            "head_biases": heads.biases.astype(np.float32),
            "head_counts": heads.counts,
        }

    def labels(self, site: Site) -> np.ndarray:
        """(N, C) int8 of 1, 0 or -1; a class of which a single-label site has no image is unknown there."""
        labels = site.labels()
        if site.data.kind != SINGLELABEL:
            return labels
        known, unlabelled = (labels == 1).any(0), (labels == NOT_ANNOTATED).all(1)
        entry = NOT_ANNOTATED if self.hidden == IGNORED else 0
        return np.where(known, np.where(unlabelled[:, None], entry, labels), NOT_ANNOTATED).astype(np.int8)


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class ClosedFormWorkflow(Settings, Workflow):
    """One round: collects the heads, and takes their means as the classifier."""

    METHOD = ClosedForm
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {HEADS: tuple(FIELDS)}

    def check_rounds(self, num_rounds: int) -> None:
        """Refuses more rounds than the one that there is.

        Raises:
            FedMendError: names the variable.
        """
        if num_rounds != 1:
            raise FedMendError(f"job variable num_rounds: expected 1 for closed-form heads, got {num_rounds}")

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            answers = fed.collect(HEADS)
            weights, biases = average_heads({site: answer.report for site, answer in answers.items()})
            if nobody := [fed.classes[c] for c in np.flatnonzero(~weights.any(1))]:
                fed.record("no_head", nobody)
                fed.warn(f"no site has enough samples with and without {', '.join(nobody)}: no score tells it apart")
            fed.model |= {f"{CLASSIFIER}weight": weights, f"{CLASSIFIER}bias": biases}


def average_heads(reports: Mapping[str, Report]) -> tuple[np.ndarray, np.ndarray]:
    """Mean of the sites' heads, class by class, by their counts; no site counts for more than half of a row.

    Args:
        reports: site → ``head_weights`` (C, F), ``head_biases`` and ``head_counts`` (C,).

    Returns:
        (C, F) and (C,) float32; a class that no site has is 0. Sites are summed in sorted order.
    """
    sites = sorted(reports)
    rows = np.stack([np.column_stack([reports[s]["head_weights"], reports[s]["head_biases"]]) for s in sites])
    counts = np.stack([reports[s]["head_counts"] for s in sites])
    for c in range(counts.shape[1]):
        told = {site: int(n) for site, n in zip(sites, counts[:, c], strict=True) if n > 0}
        counts[:, c] = [capped(told, LARGEST_SHARE).get(site, 0) for site in sites]
    share = counts / np.maximum(counts.sum(0), 1)
    mean = np.einsum("sc,scf->cf", share, rows.astype(np.float64)).astype(np.float32)
    return mean[:, :-1], mean[:, -1]
