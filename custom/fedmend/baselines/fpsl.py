"""FPSL: a shared feature extractor that serves a head which has just been adapted to it.

Dong et al., "Federated Partially Supervised Learning with Limited Decentralized Medical Images", IEEE TMI 2022. It
has two parts. Task-dependent aggregation averages classifier rows over the sites that know the class: ``masked`` of
:class:`fedmend.methods.labelsets.LabelSetWorkflow`. Task-agnostic decoupling trains features by bi-level optimisation.
Of the second we know the idea only, so this is our form of it:

In each step with two independent batches a and b, features f and head Psi (the network's ``classifier``, with the
pooling of slices on studies):

1. L_a = loss(Psi(f_a)), features without gradient.
2. Psi' = Psi - eta dL_a/dPsi, without gradient (inner level).
3. L_b = loss(Psi'(f_b)).
4. Adam takes a step on L_a, which moves the head alone, plus L_b, which moves the features alone.

Decisions:

- D1 the loss is that of FedAvg*; in multi-label data hidden labels are ignored.
- D2 first order: no gradient through Psi'.
- D3 one inner step of ``inner_rate`` .01.
- D4 both batches have the job's size, so BatchNorm's statistics move twice in a step.

Nothing is reported. Three passes, one of them backward, for 2B images where FedAvg has two for B: 4/3 of FedAvg's cost
for each image.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedmend.averaging import CLASSIFIER
from fedmend.methods.labelsets import LabelSetFedAvgRound, LabelSetMethod
from fedmend.methods.shared.settings import Weight


class FPSLRound(LabelSetFedAvgRound):
    """Two batches in each step: the head learns from the first, the features from the second."""

    method: "FPSL"

    def parts(self) -> list[tuple[np.ndarray, int]]:
        """Two batches, each drawn from all samples in an order of its own."""
        return super().parts() * 2

    def loss(self, index: Tensor) -> Tensor:
        """L_a + L_b."""
        # The whole network each time: of studies, logits are no function of the features alone.
        first, second = index.chunk(2)
        head = {name: value for name, value in self.model.named_parameters() if name.startswith(CLASSIFIER)}
        rest = {name: value.detach() for name, value in self.model.named_parameters() if name not in head}
        outer = self.supervised(self._logits(rest, first), first)
        slopes = torch.autograd.grad(outer, list(head.values()), retain_graph=True)
        adapted = {
            name: (value - self.method.inner_rate * slope).detach()
            for (name, value), slope in zip(head.items(), slopes, strict=True)
        }
        return outer + self.supervised(self._logits(adapted, second), second)

    def _logits(self, others: dict[str, Tensor], index: Tensor) -> Tensor:
        """(B, M) float32 of strong views, with ``others`` in the place of parameters of these names."""
        return functional_call(self.model, others, (self.inputs(index),))[1].float()


@dataclass(kw_only=True, eq=False)
class FPSL(LabelSetMethod):
    """FPSL's bi-level training of features; with masked rows at the server, the whole of it.

    Args:
        inner_rate: eta, step of the inner level, >= 0.
    """

    ROUND = FPSLRound
    inner_rate: Weight = 0.01
