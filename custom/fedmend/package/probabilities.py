"""From the logits of a package's network to probabilities: the one place for prediction and every export."""

from typing import Any

import torch
from torch import Tensor, nn

from fedmend.labels import MULTILABEL, SEGMENTATION
from fedmend.package.opened import OpenedPackage


def probabilities(package: OpenedPackage, logits: Tensor) -> Tensor:
    """Probabilities of the classes.

    Args:
        package: says the kind of labels, and the temperatures of its classes.
        logits: (B, C) float; of masks (B, 1 + C, H, W), channel 0 = background.

    Returns:
        (B, C) float32; of masks (B, C, H, W), without the background.
    """
    logits = logits.float()
    if package.kind == SEGMENTATION:
        return logits.softmax(1)[:, 1:]
    if package.calibrated:
        logits = logits / logits.new_tensor(package.temperatures)
    return logits.sigmoid() if package.kind == MULTILABEL else logits.softmax(1)


def facts(package: OpenedPackage) -> dict[str, Any]:
    """What every export says of its model beside the graph: kind, classes, preparation and how to decide."""
    return {
        "kind": package.kind,
        "classes": list(package.classes),
        "preprocessing": package.info["preprocessing"],
        "thresholds": list(package.thresholds),
        "temperature": list(package.temperatures),
        "not_fitted": list(package.not_fitted),
        "phantom": package.phantom,
    }


class Asked(nn.Module):
    """From pixels to probabilities in one module, which needs nothing else of FedMend.

    Args:
        package: whose network it is.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, package: OpenedPackage):
        super().__init__()
        self.network, self._package = package.network(), package
        prepared = package.preprocessing
        self.channels = 3 if prepared.color and package.kind != SEGMENTATION else 1
        self._scaled = package.kind != SEGMENTATION
        for name, values in (("mean", prepared.pixel_mean), ("deviation", prepared.pixel_deviation)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(1, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 1 or 3, S, S) float32 in 0..1, S the package's image size → probabilities, see :func:`probabilities`."""
        if self._scaled:
            pixels = (pixels - self.mean) / self.deviation
        return probabilities(self._package, self.network(pixels)[1])

    def example(self, batch: int) -> Tensor:
        """(batch, channels, S, S) pixels drawn from a fixed seed."""
        size = self._package.preprocessing.image_size
        return torch.rand(batch, self.channels, size, size, generator=torch.Generator().manual_seed(0))
