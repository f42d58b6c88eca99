"""Features from all stages of a network, for a classifier that is solved and not trained.

The last layer of a network that was trained on photographs is made for their classes; what tells medical images apart
is often seen earlier. Mean and standard deviation of each channel of a stage's map say what was seen there and how
unevenly, wherever it was. The classifier reads the backbone's output, as without them, and the statistics of all
stages. Its columns for these begin as 0 and are solved, not trained (:mod:`fedmend.learning.heads`): they are of other
orders of magnitude than the output, and a gradient through them would change the stages.

Behind ``projected/`` the classifier reads random sums of these statistics, and not the output. Each stage's means, and
its deviations, are first scaled to mean 0 and variance 1 over its channels, image by image. So features have few
numbers and a length of about 1, whatever the images are: what a sum of features with noise for differential privacy
needs (:mod:`fedmend.methods.closed_form_sums`), where no statistic of images is known that could scale them.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.learning.network_names import PROJECTED, STAGES

_PARENT = re.compile(r"_?(blocks|stages)", re.ASCII)  # whose children are stages
_STAGE = re.compile(r"(layer|features\.denseblock)\d", re.ASCII)
RANDOM_SUMS = 64  # features behind PROJECTED
_EDGE = 64  # pixels of the image by which channels are counted


def find_stages(backbone: nn.Module) -> list[nn.Module]:
    """The stages of a backbone of torchvision, timm or MONAI, by their names there; empty: none is known."""
    named = list(backbone.named_modules())
    parents = [module for name, module in named if _PARENT.fullmatch(name)]
    return [*parents[0].children()] if parents else [module for name, module in named if _STAGE.fullmatch(name)]


class StageClassifier(nn.Linear):
    """A linear classifier of which the first ``trained`` columns alone have a gradient.

    Args:
        trained: features of the backbone's output.
        solved: features of its stages.
        num_classes: C.
    """

    def __init__(self, trained: int, solved: int, num_classes: int):
        super().__init__(trained + solved, num_classes)
        self.trained = trained
        first = nn.Linear(trained, num_classes)
        with torch.no_grad():
            self.weight.zero_()
            self.weight[:, :trained] = first.weight
            self.bias.copy_(first.bias)

    def forward(self, features: Tensor) -> Tensor:
        """(B, trained + solved) → (B, C)."""
        output, stages = features[:, : self.trained], features[:, self.trained :]
        trained, solved = self.weight[:, : self.trained], self.weight[:, self.trained :]
        return F.linear(output, trained, self.bias) + F.linear(stages, solved.detach())


def stage_statistics(
    backbone: nn.Module, stages: Sequence[nn.Module], images: Tensor, *, detached: bool = True, scaled: bool = False
) -> Tensor:
    """The output of a backbone, then means and standard deviations of the channels of all stages.

    Args:
        backbone: of a network.
        stages: modules of it whose outputs are maps.
        images: (B, channels, H, W), as the backbone takes them.
        detached: no gradient goes through the statistics.
        scaled: each stage's means, and its deviations, come scaled over its channels, and the output is left out.

    Returns:
        (B, F) float32: the output; for each stage the means of its channels, then their standard deviations.

    Raises:
        FedMendError: a stage gives no map, as those of a transformer.
    """
    maps: list[Tensor] = []
    hooks = [stage.register_forward_hook(lambda module, given, output: maps.append(output)) for stage in stages]
    try:
        last = backbone(images)
    finally:
        for hook in hooks:
            hook.remove()
    if any(not torch.is_tensor(output) or output.ndim != 4 for output in maps):
        raise FedMendError(
            f"job variable network: expected stages that give maps behind {STAGES} or {PROJECTED}, got others"
        )
    seen = (output.detach() if detached else output for output in maps)
    found = [torch.std_mean(output.float(), dim=(2, 3), correction=0) for output in seen]
    parts = [part for deviation, mean in found for part in (mean, deviation)]
    return torch.cat([F.layer_norm(p, p.shape[1:]) for p in parts] if scaled else [last.float(), *parts], 1)


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


def reading_stages(network: Any, name: str, num_classes: int) -> nn.Module:
    """A network with a classifier on its output and all of its stages.

    Args:
        network: a :class:`fedmend.learning.networks.Network`.
        name: of the new one.
        num_classes: C.

    Raises:
        FedMendError: no network for labels with stages of convolutions.
    """
    stages, trained = _stages_of(network, name), network.num_features
    network.stages, network.num_features = stages, count_features(network.backbone, stages, network.channels)
    network.classifier = StageClassifier(trained, network.num_features - trained, num_classes)
    return network


def projecting_stages(network: Any, name: str, num_classes: int) -> nn.Module:
    """A network with a classifier on random sums over all of its stages, drawn where the network's other numbers are.

    Args:
        network: as of :func:`reading_stages`.
        name: of the new one.
        num_classes: C.

    Raises:
        FedMendError: as there.
    """
    stages = _stages_of(network, name)
    statistics = count_features(network.backbone, stages, network.channels) - network.num_features
    network.stages, network.num_features = stages, RANDOM_SUMS
    projection = torch.randn(statistics, RANDOM_SUMS) / (statistics * RANDOM_SUMS) ** 0.5
    network.projected, network.projection = True, nn.Buffer(projection)
    network.classifier = nn.Linear(RANDOM_SUMS, num_classes)
    network.backbone.requires_grad_(False)  # noise for differential privacy would move it, though no loss does
    return network


def _stages_of(network: Any, name: str) -> list[nn.Module]:
    known = isinstance(getattr(network, "classifier", None), nn.Linear) and not (network.of_studies or network.stages)
    stages = find_stages(network.backbone) if known else []
    if not stages:
        before = PROJECTED if name.startswith(PROJECTED) else STAGES
        raise FedMendError(
            f"job variable network: expected behind {before} a network for labels with stages of convolutions, such as"
            f" resnet18, densenet121 or timm/tf_efficientnet_lite0, got {name!r:.60}"
        )
    return stages
