"""FixMatch on unknown classes: the network learns on strong views what it is sure of on weak ones.

Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020. Loss and thresholds are
FedLSM's L_I + L_U. The labelling pass is in eval mode, so that the BatchNorm statistics are those of the strong views.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from fedmend.data.augment import strong, to_network, weak
from fedmend.methods.base import RoundTask, Site
from fedmend.methods.labelsets import PseudoLabelMethod, probabilities


class FixMatch(PseudoLabelMethod):
    """The network of the step labels its own batch, where FedLSM has a teacher; no uncertainty, no mixed pairs.

    Args: those of :class:`PseudoLabelMethod`.
    """

    RULE: ClassVar[str] = "fixmatch.pseudo_label"

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """L_I + L_U."""
        pixels, generator = site.data.train.pixels(index), site.memory["generator"]
        model.eval()
        with torch.no_grad():
            predicted = probabilities(model(to_network(weak(pixels, generator)))[1].float(), site)
        model.train()
        torch.clear_autocast_cache()  # else some versions of torch go on with weights cast without gradient
        logits = model(to_network(strong(pixels, generator, vertical_flip=self.vertical_flip)))[1].float()
        return self.main_loss(logits, predicted, index.to(site.device, non_blocking=True), site)
