"""FedFixMatch: what the network is sure of on the weak view of an image, it learns on the strong one.

Our form of Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020,
with federated averaging, for the row "FedFixMatch" of Sun et al., MICCAI 2024 (FedMLP), and of the code of the latter
(commit 2ad28b8). A site annotates A classes and misses M. :mod:`fedmend.baselines.fixmatch` is another method: the row
of FedLSM.

An image counts only where the network is sure of *all* missing classes. This starves the loss where many are missing.

- D1 thresholds .8 and .2, weight 1, from the first round on (code); FixMatch has .95.
- D2 the strong view is :func:`fedmend.data.augment.strong`, which has neither the solarisation nor the grey square of
  the code: on CT both make other tissue of the image.
- D3 the pseudo-labels come from the pass that is trained too, in train mode (code), and are constants.
- D4 a batch without a sure image has the supervised loss alone (code), and so has a site that annotates all classes.

Passes per training sample and round: 2 E forward-backward.
"""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.data.augment import strong
from fedmend.fields import Report
from fedmend.method import RoundTask, Site
from fedmend.methods.baselines import FedAvgPLRound, MultiLabelMethod
from fedmend.methods.shared.pseudo_labels import PseudoLabels
from fedmend.methods.shared.settings import PositiveThreshold, Range

RULE = "fedfixmatch.pseudo_label"


class FedFixMatchRound(FedAvgPLRound):
    """Keeps the pseudo-labels of the round for the ledger."""

    method: "FedFixMatch"

    def __init__(self, method: "FedFixMatch", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._pseudo = PseudoLabels(site, self.missing.cpu().numpy())
        self._generator = site.generator(task, "strong views")

    def loss(self, index: Tensor) -> Tensor:
        """Supervised loss of the weak view, plus the mean over sure images and missing classes of the binary
        cross-entropy of the strong view."""
        logits, train = self.logits(index), self.site.data.train
        loss = self.supervised(logits, index)
        if not len(self.missing):
            return loss
        images = train.to_network(strong(train.pixels(index), self._generator))
        other = self.model(images)[1].float()[:, self.missing]
        probabilities = logits.detach()[:, self.missing].sigmoid()
        sure = sure_images(probabilities, self.method.tau_positive, self.method.tau_negative)
        rows, target = index.to(self.site.device, non_blocking=True), (probabilities > 0.5).float()
        used = sure[:, None] & ~self._pseudo.closed(rows, target)
        self._pseudo.keep(rows, target, probabilities, used)
        terms = F.binary_cross_entropy_with_logits(other, target, reduction="none")
        return loss + (terms * used).mean(1).sum() / sure.sum().clamp(min=1)

    def report(self) -> Report:
        """Writes the pseudo-labels into the ledger; nothing leaves but the weights."""
        self._pseudo.record(RULE, self.task, self.site)
        return {}


@dataclass(kw_only=True, eq=False)
class FedFixMatch(MultiLabelMethod):
    """Partial loss and FixMatch on missing classes.

    Args:
        tau_positive: an image is sure of a class above it, in [0.5, 1].
        tau_negative: or below it, in [0, 0.5].
    """

    ROUND = FedFixMatchRound
    tau_positive: PositiveThreshold = 0.8
    tau_negative: Annotated[float, Range(lambda value: 0 <= value <= 0.5, "0 to 0.5")] = 0.2


def sure_images(probabilities: Tensor, tau_positive: float, tau_negative: float) -> Tensor:
    """(B,) bool: images of which every probability (B, M) is above tau_positive or below tau_negative."""
    return ((probabilities > tau_positive) | (probabilities < tau_negative)).all(1)
