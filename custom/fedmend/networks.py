"""Backbones that return features and logits, made from a name that server and sites share."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.safety_net import check_range

LOG = logging.getLogger("fedmend.networks")


class ResNet18(nn.Module):
    """torchvision's ResNet-18 with a linear classifier on its 512 globally averaged features.

    Args:
        num_classes: C.
    """

    channels, num_features = 3, 512
    torchvision_head = "fc."

    def __init__(self, num_classes: int):
        from torchvision.models import resnet18

        super().__init__()
        self.backbone = resnet18(weights=None)
        self.backbone.fc = nn.Identity()
        self.classifier = nn.Linear(self.num_features, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) → features (B, 512) and logits (B, C)."""
        features = self.backbone(images)
        return features, self.classifier(features)


class NarrowResNet(nn.Module):
    """A ResNet with one basic block per stage (ResNet-10) for small images on a CPU: 308,439 parameters for 7 classes.

    16, 32, 64 and 128 channels, and a 3x3 stem of stride 2 without pooling. On the ISIC 2018 phantom at 48 pixels it
    reached what ResNet-18 reached (macro F1 .74 and .71 after six epochs, all labels) in an eighth of the time.

    MONAI's ``ResNet`` with these arguments has the same names, the same initial weights and the same output to the last
    digit. It is made of torchvision's blocks here because importing MONAI's networks takes 4 seconds, which a site pays
    in every round where FLARE starts a process per task.

    Args:
        num_classes: C.
    """

    channels, num_features = 3, 128
    torchvision_head = None  # torchvision has no such network

    def __init__(self, num_classes: int):
        super().__init__()
        self.backbone = _narrow_backbone((16, 32, 64, 128))
        self.classifier = nn.Linear(self.num_features, num_classes)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) → features (B, 128) and logits (B, C)."""
        features = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return features, self.classifier(features)


def _narrow_backbone(widths: Sequence[int]) -> nn.Sequential:
    """(B, 3, H, W) → (B, last width): a stem, a basic block per width, all but the first of stride 2, global mean."""
    from torchvision.models.resnet import BasicBlock, conv1x1

    backbone, planes = nn.Sequential(), widths[0]
    backbone.conv1 = nn.Conv2d(3, planes, 3, stride=2, padding=1, bias=False)
    backbone.bn1, backbone.relu = nn.BatchNorm2d(planes), nn.ReLU(inplace=True)
    for stage, width in enumerate(widths, 1):
        stride, shortcut = (1 if stage == 1 else 2), None
        if width != planes:
            shortcut = nn.Sequential(conv1x1(planes, width, stride), nn.BatchNorm2d(width))
        setattr(backbone, f"layer{stage}", nn.Sequential(BasicBlock(planes, width, stride, shortcut)))
        planes = width
    backbone.avgpool, backbone.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return backbone


class DenseNet121(nn.Module):
    """torchvision's DenseNet-121 with a linear classifier on its 1,024 globally averaged features.

    Args:
        num_classes: C.
    """

    channels, num_features = 3, 1024
    torchvision_head = "classifier."

    def __init__(self, num_classes: int):
        from torchvision.models import densenet121

        super().__init__()
        self.backbone = densenet121(weights=None)
        self.backbone.classifier = nn.Identity()
        self.classifier = nn.Linear(self.num_features, num_classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) → features (B, 1024) and logits (B, C)."""
        features = self.backbone(images)
        return features, self.classifier(features)


class UNet(nn.Module):
    """MONAI's 2D U-Net for one-channel images, with a 1x1 convolution as the classifier of each pixel.

    Two 3x3 convolutions, BatchNorm and ReLU per block, max pooling, bilinear upsampling (align_corners) and
    concatenation, as the U-Net in the code of Xiang et al., MICCAI 2024 (17,262,466 parameters for two image channels;
    17,963,842 here). MONAI's decoder is another: a 1x1 convolution halves the channels before each upsampling but the
    last, the blocks have the encoder's widths (512, 256, 128, then 64) where that U-Net has half of them (256, 128, 64,
    then 64), and an odd edge is padded by repeating the last row or column, not with zeros.

    Args:
        num_classes: C, the background not counted.
        widths: channels of the five encoder blocks and of the last decoder block (F).
    """

    channels = 1
    torchvision_head = None  # torchvision has no U-Net

    def __init__(self, num_classes: int, widths: Sequence[int] = (64, 128, 256, 512, 512, 64)):
        from monai.networks.nets import BasicUNet

        super().__init__()
        self.num_features = widths[-1]
        self.backbone = BasicUNet(
            spatial_dims=2,
            in_channels=1,
            out_channels=1 + num_classes,
            features=widths,
            act=("relu", {"inplace": True}),
            norm="batch",
            bias=False,
            upsample="nontrainable",
        )
        self.classifier, self.backbone.final_conv = self.backbone.final_conv, nn.Identity()
        self.to(memory_format=torch.channels_last)  # a step on a CPU takes a quarter less time so

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, H, W), H and W from 16 on → features (B, F, H, W) and logits (B, 1 + C, H, W), channel 0 =
        background."""
        features = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return features, self.classifier(features)


CHANNELS_PER_GROUP = 16  # Wu and He, ECCV 2018


def with_group_norm(network: Callable[[int], nn.Module], num_classes: int) -> nn.Module:
    """A network with GroupNorm in the place of each BatchNorm: no image changes what another one gives, which
    differential privacy needs (:mod:`fedmend.privacy`). Weights of networks with BatchNorm do not fit.

    Args:
        network: number of classes → network whose numbers of channels are multiples of 16.
        num_classes: C.
    """
    model = network(num_classes)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                groups = child.num_features // CHANNELS_PER_GROUP
                setattr(parent, name, nn.GroupNorm(groups, child.num_features))
    return model


NETWORKS = {
    "resnet18": ResNet18,
    "resnet_narrow": NarrowResNet,
    "densenet121": DenseNet121,
    "resnet18_gn": partial(with_group_norm, ResNet18),
    "resnet_narrow_gn": partial(with_group_norm, NarrowResNet),
    "densenet121_gn": partial(with_group_norm, DenseNet121),
    "unet": UNet,
    "unet_narrow": partial(UNet, widths=(8, 16, 32, 64, 64, 8)),  # an eighth of the widths, for a CPU
}
# torchvision's files of DenseNet weights still have the names of its first version: norm.1 for norm1.
_OLD_DENSENET_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


def build_network(network: str, num_classes: int) -> nn.Module:
    """An untrained network by name.

    Raises:
        FedMendError: unknown name.
    """
    if network not in NETWORKS:
        raise FedMendError(f"job variable network: expected one of {sorted(NETWORKS)}, got {network!r}")
    return NETWORKS[network](num_classes)


def initial_network(network: str, classes: Sequence[str], seed: int, weights: str = "") -> nn.Module:
    """The global model of round 0: seeded, and started from a local weights file where one is given.

    Args:
        network: name of the backbone.
        classes: C class names.
        seed: seeds the initialisation without touching global random state.
        weights: empty for random weights; else a local file, either torchvision's ImageNet state dict (the classifier
            stays random; for ResNet-18 and DenseNet-121) or a global model that FedMend wrote (all weights; same number
            of classes).

    Raises:
        FedMendError: the file is missing or does not fit the network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_network(network, len(classes))
    if not weights:
        LOG.info("network %s starts from random weights (no weights file given)", network)
        return model
    state = _read_weights(weights)
    own = model.state_dict()
    head = model.torchvision_head
    if head and not any(k.startswith("backbone.") for k in state):  # torchvision's names, and its own head
        names = {k: _OLD_DENSENET_NAME.sub(r"\1\2", k) for k in state if not k.startswith(head)}
        state = {f"backbone.{new}": state[old] for old, new in names.items()}
        state |= {k: own[k] for k in ("classifier.weight", "classifier.bias")}
    # A global model that FedMend wrote has floating tensors only; BatchNorm's counters keep their own value.
    state = {k: v for k, v in own.items() if not v.is_floating_point()} | state
    for name, tensor in own.items():
        if name not in state or state[name].shape != tensor.shape:
            got = tuple(state[name].shape) if name in state else "nothing"
            raise FedMendError(
                f"weights file: expected {name} with shape {tuple(tensor.shape)} for {network}, got {got}"
            )
    if extra := sorted(set(state) - set(own)):
        raise FedMendError(f"weights file: expected only the keys of {network}, got also {extra[:3]}")
    model.load_state_dict(state)
    LOG.info("network %s starts from the given weights file", network)
    return model


def _read_weights(weights: str) -> Mapping[str, Tensor]:
    if not Path(weights).is_file():
        raise FedMendError("job variable weights: expected a local file, not found")
    try:
        content = torch.load(weights, map_location="cpu", weights_only=True)
    except Exception as e:  # torch raises many types for a file that is not a checkpoint
        raise FedMendError(
            f"weights file: expected a PyTorch state dict, got a file that does not load ({type(e).__name__})"
        ) from None
    state = content.get("model", content) if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not all(torch.is_tensor(v) for v in state.values()):
        raise FedMendError("weights file: expected a PyTorch state dict, got something else")
    return dict(state)


def get_weights(model: nn.Module) -> dict[str, Tensor]:
    """The floating tensors of the state dict (parameters and BatchNorm statistics), detached, on the CPU,
    contiguous."""
    return {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if v.is_floating_point()}


def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Loads what :func:`get_weights` gave; integer counters keep their value.

    Raises:
        FedMendError: a tensor is missing, unknown, of another shape, not finite or out of range.
    """
    own = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    if set(own) != set(weights):
        raise FedMendError(
            f"global model: expected the {len(own)} tensors of the network, got others:"
            f" {sorted(set(own) ^ set(weights))[:3]}"
        )
    for name, value in weights.items():
        if value.shape != own[name].shape:
            raise FedMendError(
                f"global model: expected {name} with shape {tuple(own[name].shape)}, got {tuple(value.shape)}"
            )
        if not torch.isfinite(value).all():
            raise FedMendError(f"global model: expected finite numbers, got NaN or infinity in {name}")
        check_range(name, value, f"global model, {name}")
    model.load_state_dict(weights, strict=False)
