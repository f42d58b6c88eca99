"""Features from all stages of a network, for a classifier that is solved and not trained.

The last layer of a network that was trained on photographs is made for their classes; what tells medical images apart
is often seen earlier. Mean and standard deviation of each channel of a stage's map say what was seen there and how
unevenly, wherever it was.
"""

import re
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedmend.errors import FedMendError

STAGES = "stages/"  # before a network's name
_PARENT = re.compile(r"_?(blocks|stages)", re.ASCII)  # whose children are stages
_STAGE = re.compile(r"(layer|features\.denseblock)\d", re.ASCII)
_EDGE = 64  # pixels of the image by which channels are counted


def without_stages(network: str) -> str:
    """The name of a network without ``stages/``."""
    return network.removeprefix(STAGES)


def find_stages(backbone: nn.Module) -> list[nn.Module]:
    """The stages of a backbone of torchvision, timm or MONAI, by their names there; empty: none is known."""
    named = list(backbone.named_modules())
    parents = [module for name, module in named if _PARENT.fullmatch(name)]
    return [*parents[0].children()] if parents else [module for name, module in named if _STAGE.fullmatch(name)]


def stage_statistics(backbone: nn.Module, stages: Sequence[nn.Module], images: Tensor) -> Tensor:
    """Means and standard deviations of the channels of all stages.

    Args:
        backbone: of a network.
        stages: modules of it whose outputs are maps.
        images: (B, channels, H, W), as the backbone takes them.

    Returns:
        (B, F) float32: for each stage the means of its channels, then their standard deviations.

    Raises:
        FedMendError: a stage gives no map, as those of a transformer.
    """
    maps: list[Tensor] = []
    hooks = [stage.register_forward_hook(lambda module, given, output: maps.append(output)) for stage in stages]
    try:
        backbone(images)
    finally:
        for hook in hooks:
            hook.remove()
    if any(not torch.is_tensor(output) or output.ndim != 4 for output in maps):
        raise FedMendError(f"job variable network: expected stages that give maps behind {STAGES}, got others")
    found = [torch.std_mean(output.float(), dim=(2, 3), correction=0) for output in maps]
    return torch.cat([part for deviation, mean in found for part in (mean, deviation)], 1)


@torch.no_grad()
def count_features(backbone: nn.Module, stages: Sequence[nn.Module], channels: int) -> int:
    """F of :func:`stage_statistics` for images of some ``channels``.

    Raises:
        FedMendError: as there.
    """
    mode = backbone.training
    backbone.eval()  # BatchNorm must not take notice of this image
    found = stage_statistics(backbone, stages, torch.zeros(1, channels, _EDGE, _EDGE))
    backbone.train(mode)
    return found.shape[1]
