"""RHFL: sites whose loss is low and falls fast weigh more in the average; a loss that forgives wrong labels.

Fang, Ye, "Robust Federated Learning with Noisy and Heterogeneous Clients", CVPR 2022. K sites, C classes. The original
distils between models of different architectures on public data. There are none here, so that only the confidence
re-weighting is left, and it weighs the models of federated averaging, as in the tables of FedNoRo. L_k(r) is the mean
loss of site k's local model on its own samples in round r:

    loss = alpha CE + beta RCE, RCE = -sum_c p_c log(clamp(onehot(y)_c, 1e-4)) = 9.21 (1 - p_y)
    F_k = (L_k(r-1) - L_k(r)) / L_k(r)
    u_k = 1 / (K - 1) + eta F_k / sum_j F_j, and the weights in the average are softmax(u)

The first round is uniform, 1 / (K - 1) cancels out. This is our form of RHFL; the adaptation was not published.

- D1 alpha 0.1, beta 1 (released code): mostly the mean absolute error. FedNoRo's text does not name the loss;
  ``local_loss=ce`` is plain cross-entropy.
- D2 the number of samples does not appear (released code, two public adaptations); ``times_samples`` multiplies the
  weights by it.
- D3 L_k is the mean training loss of the last epoch, in train mode and on augmented images; the released code measures
  it in train mode at the start of the next round, which costs a pass more.
- D4 once the losses only go up and down, sum_j F_j is near 0 or negative: then one site holds most of the average, or
  the ranking is reversed. The published rule is kept, with the second part of u_k kept within -3 and 3, and the shares
  are recorded. ``normaliser=abs`` divides by sum_j |F_j|: no site of 20 exceeds 8 % then.
- D5 a site without a loss of the round before has F_k = 0.

Passes per training sample and epoch: 1 forward-backward.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.averaging import Contributions
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.method import Federation, Workflow
from fedmend.methods.shared.settings import Settings, Weight, one_of
from fedmend.methods.shared.singlelabel import SingleLabelMethod, SingleLabelRound

ALPHA, BETA = 0.1, 1.0
LOG_ZERO = math.log(1e-4)  # stands for log 0
LIMIT = 3.0
FIELDS = {
    "local_loss": Field(
        (),
        "float32",
        0,
        UNBOUNDED,
        "mean training loss of the last epoch of the round",
        "one mean over all samples, which tells how well labels and images agree at the site",
    )
}


# ---- the site -------------------------------------------------------------------------------------------------------
class RHFLRound(SingleLabelRound):
    """Trains and keeps count of the loss."""

    method: "RHFL"

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """See :class:`SingleLabelRound`; the mean starts anew."""
        self._total, self._seen = torch.zeros((), device=self.site.device), 0
        return super().batches(epoch)

    def loss(self, index: Tensor) -> Tensor:
        images, target = self.batch(index)
        logits = self.adjusted(self.model(images)[1])
        of = symmetric_cross_entropy if self.method.local_loss == "sce" else F.cross_entropy
        loss = of(logits, target)
        self._total += loss.detach() * len(index)
        self._seen += len(index)
        return loss

    def report(self) -> Report:
        return {"local_loss": (self._total / self._seen).cpu().numpy()}


@dataclass(kw_only=True, eq=False)
class RHFL(SingleLabelMethod):
    """Client half of RHFL.

    Args:
        local_loss: ``sce``, symmetric cross-entropy, or ``ce``.
    """

    FIELDS = FIELDS
    ROUND = RHFLRound
    local_loss: Annotated[str, one_of("sce", "ce")] = "sce"


def symmetric_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """0.1 CE + RCE, Wang et al., ICCV 2019, mean over samples.

    Args:
        logits: (B, C) float32.
        target: (B,) class numbers.
    """
    own = logits.softmax(1).gather(1, target[:, None])[:, 0]
    return ALPHA * F.cross_entropy(logits, target) + BETA * (LOG_ZERO * (own - 1)).mean()


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class RHFLWorkflow(Settings, Workflow):
    """Federated averaging with weights from the losses of two rounds.

    Args:
        eta: how much the fall of the loss counts, >= 0.
        normaliser: F_k is divided by the ``sum`` of all (published), or by that of their absolute values (``abs``).
        times_samples: the weights are multiplied by the number of samples.
    """

    METHOD = RHFL
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {"train": tuple(FIELDS)}

    @dataclass
    class Memory:
        """``losses``: site → loss of the last round, of the sites that were there."""

        losses: dict[str, float] = field(default_factory=dict)

    eta: Weight = 0.5
    normaliser: Annotated[str, one_of("sum", "abs")] = "sum"
    times_samples: bool = False

    def run(self, fed: Federation) -> None:
        for _ in fed.rounds():
            answers = fed.train("train", average=partial(self.weights, dict(fed.memory.losses)))
            fed.memory.losses = {site: float(a.report["local_loss"]) for site, a in answers.items()}
            fed.record("confidence_shares", {site: round(a.share, 4) for site, a in answers.items()})

    def weights(self, before: Mapping[str, float], contributions: Contributions) -> dict[str, float]:
        """Weight of each model.

        Args:
            before: site → loss of the round before.
            contributions: site → samples and report.
        """
        now = {site: float(c.report["local_loss"]) for site, c in contributions.items()}
        falls = [(before.get(site, loss) - loss) / max(loss, 1e-12) for site, loss in now.items()]
        confidence = confidence_weights(np.array(falls), eta=self.eta, normaliser=self.normaliser)
        samples = [c.samples if self.times_samples else 1 for c in contributions.values()]
        return {site: float(w) * n for site, w, n in zip(now, confidence, samples, strict=True)}


def confidence_weights(falls: np.ndarray, *, eta: float, normaliser: str = "sum") -> np.ndarray:
    """softmax(eta F_k / sum_j F_j), Fang and Ye, CVPR 2022, the exponents kept within -3 and 3.

    Args:
        falls: (K,) F_k.
        eta: >= 0.
        normaliser: ``sum`` or ``abs``.

    Returns:
        (K,) float64 of sum 1; uniform where the divisor is 0.
    """
    divisor = np.abs(falls).sum() if normaliser == "abs" else falls.sum()
    scaled = eta * falls / divisor if divisor else np.zeros(len(falls))
    weights = np.exp(np.clip(scaled, -LIMIT, LIMIT))
    return weights / weights.sum()
