"""FedLSR on multi-label data: the network learns from the mixed and sharpened answers to two views of an image.

Our form of Jiang et al., "Towards Federated Learning against Noisy Labels via Local Self-Regularization", CIKM 2022,
for the row "FedLSR" of Sun et al., MICCAI 2024 (FedMLP), and of the code of the latter (commit 2ad28b8). B samples in a
batch, C classes, R rounds. A label that is missing counts as negative: this is the noise of the labels.

- D1 in the code the sharpened probability enters the loss as if it were a logit, so that what is compared with the
  label lies in .5 to .73 and a rare class has no way to 0. Here its logit enters (``sigmoid_twice`` is the code).
- D2 the logit is kept within 16 of 0, where that of the code's product of probabilities would be infinite.
- D3 the weight of the divergence rises over the first .08 R rounds, which are the 40 of the code's 500.
- D4 only the positive part of each binary distribution is in the divergence (code); no entropy term (code).
- D5 the positive weights are those of the baselines (code).

Passes per training sample and round: 2 E forward-backward.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.method import RoundTask, Site
from fedmend.methods.baselines import FedAvgRound, MultiLabelMethod
from fedmend.methods.shared.settings import Positive, Weight

RAMP = 0.08  # share of all rounds
LIMIT = 16.0  # of a sharpened logit
SMALLEST = 1e-6  # of a sharpened probability in the divergence


class MultiLabelFedLSRRound(FedAvgRound):
    """Two views of each sample, and a mixing weight for each batch."""

    method: "MultiLabelFedLSR"
    VIEWS = 2

    def __init__(self, method: "MultiLabelFedLSR", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._generator = site.generator(task, "mixing")
        self._weight = method.gamma * min(task.round_num / (RAMP * task.total_rounds), 1.0)

    def loss(self, index: Tensor) -> Tensor:
        """Supervised loss of the mixed and sharpened answers, plus the weighted divergence of the two."""
        first, second = self.logits(index), self.logits(index, 1)
        share = torch.rand((), generator=self._generator).to(first.device)
        answer = mixed_logits(first, second, share)
        answer = answer.sigmoid() if self.method.sigmoid_twice else answer.clamp(-LIMIT, LIMIT)
        loss = self.supervised(answer, index)
        return loss + self._weight * divergence(first, second, self.method.temperature)


@dataclass(kw_only=True, eq=False)
class MultiLabelFedLSR(MultiLabelMethod):
    """FedAvg with local self-regularisation.

    Args:
        gamma: largest weight of the divergence, >= 0.
        temperature: of the probabilities in the divergence, > 0; below 1 they are sharpened.
        sigmoid_twice: D1.
    """

    ROUND = MultiLabelFedLSRRound
    gamma: Weight = 0.4
    temperature: Positive = 1 / 3
    sigmoid_twice: bool = False


def mixed_logits(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """Logits of the sharpened mixture: 2 logit(share * sigmoid(first) + (1 - share) * sigmoid(second)).

    Computed from logarithms, so that a saturated sigmoid does no harm.

    Args:
        first: (B, C) logits of one view.
        second: (B, C) of the other.
        share: scalar in 0..1.
    """
    shares = share.log(), (1 - share).log()

    def log_probability(sign: int) -> Tensor:
        parts = (a + F.logsigmoid(sign * z) for a, z in zip(shares, (first, second), strict=True))
        return torch.logaddexp(*parts)

    return 2 * (log_probability(1) - log_probability(-1))


def divergence(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Jensen-Shannon divergence of the sharpened probabilities of two views, without their negative parts (D4).

    Args:
        first: (B, C) float32 logits of one view.
        second: (B, C) float32 logits of the other.
        temperature: logits are divided by it.

    Returns:
        Scalar, the mean over entries.
    """
    one, two = ((z / temperature).sigmoid().clamp(SMALLEST, 1) for z in (first, second))
    middle = ((one + two) / 2).log()
    return sum(((q * (q.log() - middle)).mean() for q in (one, two)), torch.zeros(())) / 2
