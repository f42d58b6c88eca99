"""Networks that see the slices of a study at once, because a study has one label and its slices have none.

Every slice goes through the same network, and the logit of the study is a smooth maximum of those of its slices:
log-sum-exp pooling (Pinheiro and Collobert, CVPR 2015). So the label teaches the slices that show the class, and no
others. Where it is copied to all slices instead, it is wrong on each that does not show the class.
"""

import math
from typing import Any

from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.learning.network_names import STUDY

SHARPNESS = 4.0  # r: near 0 the mean of the slices, above all numbers the maximum


def pooled(features: Tensor, classifier: nn.Module) -> tuple[Tensor, Tensor]:
    """Features and logits of studies.

    Args:
        features: (B, K, F) of the K slices of each.
        classifier: (..., F) → (..., C).

    Returns:
        (B, F), in which a slice counts as much as in the logits, on the mean of the classes; (B, C) float32.
    """
    logits = classifier(features).float()
    weights = (SHARPNESS * logits).softmax(1).mean(2, keepdim=True)
    highest = ((SHARPNESS * logits).logsumexp(1) - math.log(logits.shape[1])) / SHARPNESS
    return (weights * features).sum(1), highest


def of_studies(network: Any, name: str) -> nn.Module:
    """The network for studies instead of images.

    Args:
        network: of :func:`fedmend.learning.networks.build_network`.
        name: of it, for messages.

    Raises:
        FedMendError: it learns masks, or its classifier reads its stages.
    """
    if not isinstance(getattr(network, "classifier", None), nn.Linear) or network.stages:
        raise FedMendError(
            f"job variable network: expected behind {STUDY} a network for labels, such as resnet_narrow or"
            f" timm/tf_efficientnet_lite0, got {name!r:.60}"
        )
    network.of_studies = True
    return network
