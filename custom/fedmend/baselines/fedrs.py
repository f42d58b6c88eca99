"""FedRS: federated averaging with restricted logits.

Li and Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data", KDD 2021. In the
loss, logits of classes that the site does not know are multiplied by alpha, so that their classifier rows move less.

The authors' code multiplies by alpha + (1 - alpha) n_c / max n, n_c = samples of class c at the site (``graded``); the
paper, as far as we know it, leaves the known classes alone. In the code the classifier has no bias and gradients are
clipped; here the bias is part of the logit. Outputs of a sigmoid are restricted as those of a softmax are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmend.method import RoundTask, Site
from fedmend.methods.labelsets import LabelSetFedAvg, LabelSetFedAvgRound
from fedmend.methods.shared.settings import Share


class FedRSRound(LabelSetFedAvgRound):
    """Federated averaging with restricted logits."""

    method: "FedRS"

    def __init__(self, method: "FedRS", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        positives = (self.labels == 1).sum(0)
        share = positives / positives.max().clamp(min=1) if method.graded else self.known.float()
        self._scale = torch.lerp(torch.full_like(share, method.alpha), torch.ones_like(share), share)

    def supervised(self, logits: Tensor, index: Tensor) -> Tensor:
        return super().supervised(self._scale * logits, index)


@dataclass(kw_only=True, eq=False)
class FedRS(LabelSetFedAvg):
    """Li and Zhan, "FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data", KDD 2021.

    Args:
        alpha: factor of the logits of unknown classes, 0 to 1; 1 is FedAvg.
        graded: a known class has the factor alpha + (1 - alpha) n_c / max n, where n_c is its number of positives at
            the site, as in the authors' code; False: 1.
    """

    ROUND = FedRSRound
    alpha: Share = 0.5
    graded: bool = False
