"""FixMatch on unknown classes: the network learns on strong views what it is sure of on weak ones.

Sohn et al., "FixMatch: Simplifying Semi-Supervised Learning with Consistency and Confidence", NeurIPS 2020. Our form of
it: loss and thresholds are FedLSM's L_I + L_U, in multi-label data with negative pseudo-labels too, and labelled and
unlabelled images come as they are drawn. The original has one threshold, .95, and seven unlabelled images for each
labelled one. The labelling pass is in eval mode, so that the BatchNorm statistics are those of the strong views.
"""

import torch
from torch import Tensor

from fedmend.data.augment import weak
from fedmend.methods.labelsets import PseudoLabelMethod, PseudoLabelRound


class FixMatchRound(PseudoLabelRound):
    """The network of the step labels its own batch."""

    def loss(self, index: Tensor) -> Tensor:
        """L_I + L_U."""
        train, model = self.site.data.train, self.model
        pixels = train.pixels(index)
        model.eval()
        with torch.no_grad():
            predicted = self.probabilities(model(train.to_network(weak(pixels, self.generator)))[1])
        model.train()
        torch.clear_autocast_cache()  # else some versions of torch go on with weights cast without gradient
        logits = model(train.to_network(self.strong_views(pixels)))[1].float()
        return self.main_loss(logits, predicted, index.to(self.site.device, non_blocking=True))


class FixMatch(PseudoLabelMethod):
    """FixMatch, where FedLSM has a teacher; no uncertainty, no mixed pairs."""

    RULE = "fixmatch.pseudo_label"
    ROUND = FixMatchRound
