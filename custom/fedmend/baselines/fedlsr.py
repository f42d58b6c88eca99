"""FedLSR: a model that learns from the mean of two views of itself, and less from single labels, which may be wrong.

Jiang, Sun, Wang, Liu, "Towards Federated Learning against Noisy Labels via Local Self-Regularization", CIKM 2022. C
classes; o_1 and o_2 are the logits of two augmented views of a sample, T = 1/3. The server averages by samples; a site
trains with

    p = m softmax(o_1) + (1 - m) softmax(o_2), m uniform in 0..1, one number per batch
    q = p^2 / sum p^2
    q_v = softmax(o_v / T), M = (q_1 + q_2) / 2
    loss = CE(q, y) + g JS + lambda H, JS = 1/2 sum_v mean over samples and classes of q_v log(q_v / M)

g rises in a straight line to ``gamma`` in the first ``warmup_share`` of all rounds. H is the mean entropy of
softmax(q_1). This is our form of FedLSR: how FedNoRo's authors adapted it was not published.

- D1 CE takes q as if it were logits, so that softmax is taken twice (released code, two re-implementations): with five
  classes the loss of a sample lies between 0.90 and 1.91, and its gradient is much as that of the mean absolute error.
  ``ce_of_probability``: -log q_y, which is what was probably meant.
- D2 H likewise takes softmax of a softmax, of the first view alone (released code). By the authors the term belongs to
  the discussion of the paper. Its weight, 0.6, is the code's.
- D3 two views of the weak augmentation; the released code takes the image itself and one with flips and colour jitter,
  which grey CT slices do not have.
- D4 all sites and a fresh Adam in every round, as all rows here; the released code has SGD and draws 5 of 100 sites.
- D5 warm-up of 0.2 R rounds: 20 of 100 and 60 of 300 in the appendix of FedNoRo.

Passes per training sample and epoch: 2 forward-backward.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.methods.shared.settings import Share, Weight
from fedmend.methods.shared.singlelabel import SingleLabelMethod, SingleLabelRound

SHARPER = 3.0  # 1 / T
SMALLEST = 1e-6


class FedLSRRound(SingleLabelRound):
    """Learns from two views."""

    method: "FedLSR"
    VIEWS = 2

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """See :class:`SingleLabelRound`; a number m for each batch is drawn too."""
        self._mixing = self.site.generator(self.task, f"mixing {epoch}")
        return super().batches(epoch)

    def loss(self, index: Tensor) -> Tensor:
        """Cross-entropy of the mixed prediction, plus what keeps the views alike and sure of themselves."""
        images, target = self.batch(index)
        first = self.model(images)[1].float()  # two passes: one over both views would have other BatchNorm statistics
        second = self.model(self.batch(index, 1)[0])[1].float()
        m = torch.rand((), generator=self._mixing).item()
        log_q = mixed_prediction(first, second, m)
        own = F.nll_loss(log_q, target) if self.method.ce_of_probability else F.cross_entropy(log_q.exp(), target)
        regular = self._gamma() * view_divergence(first, second)
        return own + regular + self.method.entropy_weight * confidence_entropy(first)

    def _gamma(self) -> float:
        warmup = self.method.warmup_share * self.task.total_rounds
        return self.method.gamma * min(self.task.round_num / warmup, 1.0) if warmup > 0 else self.method.gamma


@dataclass(kw_only=True, eq=False)
class FedLSR(SingleLabelMethod):
    """Client half of FedLSR.

    Args:
        gamma: largest weight of the divergence of the two views, >= 0.
        entropy_weight: lambda, weight of the entropy, >= 0.
        warmup_share: share of all rounds in which the weight of the divergence rises, 0 to 1.
        ce_of_probability: cross-entropy of the mixed prediction as a probability (D1).
    """

    ROUND = FedLSRRound
    gamma: Weight = 0.4
    entropy_weight: Weight = 0.6
    warmup_share: Share = 0.2
    ce_of_probability: bool = False


def mixed_prediction(first: Tensor, second: Tensor, m: float) -> Tensor:
    """log q of q = p^2 / sum p^2 with p = m softmax(first) + (1 - m) softmax(second), finite for any logits.

    Args:
        first: (B, C) float32 logits of the first view.
        second: of the second view.
        m: share of the first view, in [0, 1).
    """
    share = torch.tensor([m, 1 - m]).log()
    mixed = torch.logaddexp(share[0] + first.log_softmax(1), share[1] + second.log_softmax(1))
    return (2 * mixed).log_softmax(1)


def sharpened(logits: Tensor) -> Tensor:
    """(B, C) softmax(o / T) with T = 1/3, not below 1e-6."""
    return (SHARPER * logits).softmax(1).clamp(SMALLEST, 1)


def view_divergence(first: Tensor, second: Tensor) -> Tensor:
    """JS of two views' sharpened predictions, mean over samples and classes; 0 where they are equal.

    Args:
        first: (B, C) float32 logits of the first view.
        second: of the second view.
    """
    views = sharpened(first), sharpened(second)
    middle = ((views[0] + views[1]) / 2).log()
    return sum(((q * (q.log() - middle)).mean() for q in views), torch.zeros(())) / 2


def confidence_entropy(logits: Tensor) -> Tensor:
    """Mean entropy of softmax(q), q the sharpened prediction of (B, C) logits (D2); a scalar."""
    again = sharpened(logits).log_softmax(1)
    return -(again.exp() * again).sum(1).mean()
