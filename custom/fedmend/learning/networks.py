"""Backbones that return features and logits, made from a name that server and sites share."""

import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedmend.data.augment import IMAGENET_MEAN, IMAGENET_STD
from fedmend.errors import FedMendError, not_installed
from fedmend.learning.monai_networks import MONAI, monai_network
from fedmend.learning.network_names import PROJECTED, STAGES, STUDY, VOLUME, plain_name
from fedmend.learning.slice_pooling import of_studies, pooled
from fedmend.learning.stage_features import projecting_stages, reading_stages, stage_statistics
from fedmend.learning.twin_network import TwinNetwork
from fedmend.learning.unet import BasicUNet
from fedmend.learning.weights import load_initial

LOG = logging.getLogger("fedmend.learning.networks")
SMALLEST_EDGE = 32  # pixels of the smallest images that a network has to take
DROP_RATES = ("drop_prob", "drop_rate", "drop", "drop_connect_rate")  # attributes of timm's and MONAI's modules


class Network(nn.Module):
    """A backbone, and a classifier on its features: (B, F), or (B, F, H, W) where masks are learnt.

    Attributes:
        channels: of an image.
        num_features: F.
        library_heads: what the names of the classifier begin with in the state dict of the library that the network
            comes from; empty: no library has weights for it.
        stages: modules of the backbone that the classifier reads beside the backbone's output.
        projected: it reads them through ``projection`` (statistics of the stages, F) alone.
        of_studies: a sample is a study of several slices; False: it is an image.
    """

    channels = 3
    num_features: int
    library_heads: tuple[str, ...] = ()
    stages: Sequence[nn.Module] = ()
    projected: bool = False
    projection: Tensor
    of_studies: bool = False
    backbone: nn.Module
    classifier: nn.Module

    def prepared(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) as the backbone takes them; default for labels: channels last, which takes a third off
        a step of EfficientNet on a CPU and 5 to 20 % off one of ResNet-18; for masks: as they are."""
        labels = isinstance(self.classifier, nn.Linear)
        return images.contiguous(memory_format=torch.channels_last) if labels else images

    def features(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) → (B, F); where masks are learnt, (B, F, H, W)."""
        images = self.prepared(images)
        return self.read(images, self.stages) if self.stages else self.backbone(images)

    def read(self, images: Tensor, stages: Sequence[nn.Module], *, detached: bool = True) -> Tensor:
        """(B, F) of prepared images and the network's stages; ``detached``: without a gradient to these."""
        if not self.projected:
            return stage_statistics(self.backbone, stages, images, detached=detached)
        return stage_statistics(self.backbone, stages, images, detached=detached, scaled=True) @ self.projection

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, channels, H, W) → features (B, F) and logits (B, C); where masks are learnt, features (B, F, H, W) and
        logits (B, 1 + C, H, W), channel 0 = background. Of studies of K slices (B, K * channels, H, W)."""
        if self.of_studies:
            slices = images.unflatten(1, (-1, self.channels))
            return pooled(self.features(slices.flatten(0, 1)).unflatten(0, slices.shape[:2]), self.classifier)
        features = self.features(images)
        return features, self.classifier(features)


class TorchvisionNetwork(Network):
    """A network of torchvision with a linear classifier on its globally averaged features.

    Args:
        name: of its function.
        num_features: F.
        head: the name of its own classifier.
        num_classes: C.
    """

    def __init__(self, name: str, num_features: int, head: str, num_classes: int):
        from torchvision.models import get_model

        super().__init__()
        self.num_features, self.library_heads = num_features, (f"{head}.",)
        self.backbone = get_model(name, weights=None)
        setattr(self.backbone, head, nn.Identity())
        self.classifier = nn.Linear(num_features, num_classes)
        self.to(memory_format=torch.channels_last)


class NarrowResNet(Network):
    """A ResNet with one basic block per stage (ResNet-10) for small images on a CPU: 308,439 parameters for 7 classes.

    16 to 128 channels, and a 3x3 stem of stride 2 without pooling. On phantom dermoscopy at 48 pixels it reached what
    ResNet-18 reached (macro F1 .74 and .71 after six epochs, all labels) in an eighth of the time.

    MONAI's ``ResNet`` with these arguments has the same names, the same initial weights and the same output to the last
    digit. It is written out here because importing MONAI's networks takes 4 seconds, and torchvision's, which bring
    PyTorch's compiler with them, 2; a site pays that in every round where FLARE starts a process per task.

    Args:
        num_classes: C.
    """

    num_features = 128

    def __init__(self, num_classes: int):
        super().__init__()
        self.backbone = _narrow_backbone((16, 32, 64, 128))
        self.classifier = nn.Linear(self.num_features, num_classes)
        self.to(memory_format=torch.channels_last)


def _narrow_backbone(widths: Sequence[int]) -> nn.Sequential:
    """(B, 3, H, W) → (B, last width): a stem, a basic block per width, all but the first of stride 2, global mean."""
    backbone, planes = nn.Sequential(), widths[0]
    backbone.conv1 = nn.Conv2d(3, planes, 3, stride=2, padding=1, bias=False)
    backbone.bn1, backbone.relu = nn.BatchNorm2d(planes), nn.ReLU(inplace=True)
    for stage, width in enumerate(widths, 1):
        stride, shortcut = (1 if stage == 1 else 2), None
        if width != planes:
            shortcut = nn.Sequential(nn.Conv2d(planes, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))
        setattr(backbone, f"layer{stage}", nn.Sequential(_BasicBlock(planes, width, stride, shortcut)))
        planes = width
    backbone.avgpool, backbone.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return backbone


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al., CVPR 2016), with the names of torchvision's.

    Args:
        inplanes: channels of the input.
        planes: channels of the output.
        stride: of the first convolution.
        downsample: makes the input fit the output; None: it fits.
    """

    def __init__(self, inplanes: int, planes: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(planes), nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, images: Tensor) -> Tensor:
        """(B, inplanes, H, W) → (B, planes, H / stride, W / stride)."""
        branch = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(images)))))
        return self.relu(branch + (images if self.downsample is None else self.downsample(images)))


class UNet(Network):
    """MONAI's 2D U-Net (:mod:`fedmend.learning.unet`) for one-channel images with edges from 16 pixels on, and a 1x1
    convolution as each pixel's classifier.

    Two 3x3 convolutions, BatchNorm and ReLU per block, max pooling, bilinear upsampling (align_corners) and
    concatenation, as the U-Net in the code of Xiang et al., MICCAI 2024 (17.3 M parameters; 18.0 M here). MONAI's
    decoder is another: a 1x1 convolution halves the channels before each upsampling but the last, the blocks have the
    encoder's widths (512, 256, 128, then 64) where that U-Net has half of them (256, 128, 64, then 64), and an odd edge
    is padded by repeating the last row or column, not with zeros.

    Args:
        num_classes: C, the background not counted.
        widths: channels of the five encoder blocks and of the last decoder block (F).
    """

    channels = 1

    def __init__(self, num_classes: int, widths: Sequence[int] = (64, 128, 256, 512, 512, 64)):
        super().__init__()
        self.num_features = widths[-1]
        self.backbone = BasicUNet(widths)
        self.classifier = nn.Conv2d(self.num_features, 1 + num_classes, 1)
        self.to(memory_format=torch.channels_last)  # a step on a CPU takes a quarter less time so

    @property
    def encoder(self) -> list[nn.Module]:
        """The five blocks of the encoder."""
        return [self.backbone.get_submodule(name) for name in ("conv_0", "down_1", "down_2", "down_3", "down_4")]

    def prepared(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


class SegResNet(Network):
    """MONAI's residual 2D segmentation network (Myronenko, BrainLes 2018) for one-channel images whose edges are
    multiples of 8 pixels: 394,986 parameters.

    It has GroupNorm where the U-Net has BatchNorm, so no statistics of a site's images travel or are averaged.

    Args:
        num_classes: C, the background not counted.
    """

    channels, num_features = 1, 8

    def __init__(self, num_classes: int):
        from monai.networks.nets import SegResNet as MonaiSegResNet

        super().__init__()
        network = MonaiSegResNet(spatial_dims=2, init_filters=8, in_channels=1, out_channels=1 + num_classes)
        self.backbone, self.classifier = network, network.conv_final[2].conv
        network.conv_final[2] = nn.Identity()


class TimmNetwork(Network):
    """A network of timm (PyTorch Image Models) with a linear classifier on its pooled features.

    It is built without weights: timm would download them. Dropout is off, see :func:`_without_dropout`. Images come
    normalised by ImageNet's mean and deviation; a network that timm trained with others gets them so. That matters for
    pretrained weights: on a photograph of a daisy, tf_efficientnet_lite0 gave that class .34, and .11 without.

    Args:
        name: one that timm itself registers, without the tag of pretrained weights behind a dot.
        num_classes: C.

    Raises:
        FedMendError: timm is not installed, has no such network, or has it for images of one size only.
    """

    def __init__(self, name: str, num_classes: int):
        super().__init__()
        try:
            import timm
        except ImportError:
            raise FedMendError(f"job variable network: {not_installed('timm', 'pretrained')}") from None
        # A name with "hf-hub:" or "local-dir:" would make timm read, or download, what somebody put there.
        known = re.fullmatch(r"\w+", name, re.ASCII) and timm.is_model(name)
        about = timm.get_pretrained_cfg(name) if known else None  # None for names that timm has given up, too
        if about is None:
            raise FedMendError(
                f"job variable network: expected timm/ and a name of timm.list_models(), got {name!r:.60}"
            )
        if about.fixed_input_size or (about.min_input_size or (0,))[-1] > SMALLEST_EDGE:
            raise FedMendError(
                f"job variable network: expected one for images of any size, got timm/{name}, made for"
                f" {about.input_size[-1]} pixels"
            )
        network: Any = timm.create_model(name, pretrained=False, num_classes=0)
        _without_dropout(network)
        self.backbone, self.num_features = network, network.head_hidden_size
        heads = (about.classifier,) if isinstance(about.classifier, str) else about.classifier or ()
        self.library_heads = tuple(f"{head}." for head in heads)
        self.classifier = nn.Linear(self.num_features, num_classes)
        self.to(memory_format=torch.channels_last)
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (about.mean, about.std))
        # ((x * IMAGENET_STD + IMAGENET_MEAN) - mean) / std
        self._scale = nn.Buffer(torch.tensor(IMAGENET_STD).view(3, 1, 1) / std, persistent=False)
        self._shift = nn.Buffer((torch.tensor(IMAGENET_MEAN).view(3, 1, 1) - mean) / std, persistent=False)

    def prepared(self, images: Tensor) -> Tensor:
        return super().prepared(images * self._scale + self._shift)


class MonaiNetwork(Network):
    """A network of MONAI, without weights; see :mod:`fedmend.learning.monai_networks`. Dropout is off.

    Args:
        words: name and arguments.
        num_classes: C.
        dimensions: 2, or 3 for patches (B, 1, D, H, W).

    Raises:
        FedMendError: as :func:`fedmend.learning.monai_networks.monai_network`.
    """

    def __init__(self, words: str, num_classes: int, dimensions: int = 2):
        super().__init__()
        network, head, family = monai_network(words, num_classes, dimensions)
        _without_dropout(network)
        self.backbone, self.classifier, self.channels = network, head, family.channels
        self.num_features = head.get_parameter("weight").shape[1]
        self.library_heads = (f"{family.head}.",)
        if isinstance(head, nn.Linear):
            self.to(memory_format=torch.channels_last)


def _without_dropout(model: nn.Module) -> None:
    """Turns off what drops units, blocks or paths by chance in training.

    It would draw from torch's global random state, which threads of sites share, and which each process that FLARE
    starts for a round seeds alike or not at all: the same seed would not give the same numbers.
    """
    for module in model.modules():
        for name in ("p", *DROP_RATES) if isinstance(module, _DropoutNd) else DROP_RATES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


CHANNELS_PER_GROUP = 16  # Wu and He, ECCV 2018


def with_group_norm(network: Callable[[int], nn.Module], num_classes: int) -> nn.Module:
    """A network with GroupNorm in the place of each BatchNorm: no image changes what another one gives, which
    differential privacy needs (:mod:`fedmend.site.privacy`). Weights of networks with BatchNorm do not fit.

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


UNET_NARROW = partial(UNet, widths=(8, 16, 32, 64, 64, 8))  # an eighth of the widths, for a CPU
RESNET18 = partial(TorchvisionNetwork, "resnet18", 512, "fc")
DENSENET121 = partial(TorchvisionNetwork, "densenet121", 1024, "classifier")
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": RESNET18,
    "resnet_narrow": NarrowResNet,
    "densenet121": DENSENET121,
    "resnet18_gn": partial(with_group_norm, RESNET18),
    "resnet_narrow_gn": partial(with_group_norm, NarrowResNet),
    "densenet121_gn": partial(with_group_norm, DENSENET121),
    "segresnet": SegResNet,
    "unet": UNet,
    "unet_narrow": UNET_NARROW,
    "unet_twin": partial(TwinNetwork, UNet),
    "unet_narrow_twin": partial(TwinNetwork, UNET_NARROW),
}
TIMM = "timm/"


def build_network(network: str, num_classes: int) -> nn.Module:
    """An untrained network by name.

    Args:
        network: a key of :data:`NETWORKS`, ``timm/`` and the name of one of timm's, or ``monai/`` and the name of one
            of MONAI's; before it ``stages/``, ``projected/``, ``study/`` or
            ``volume/`` (:mod:`fedmend.learning.network_names`).
        num_classes: C.

    Raises:
        FedMendError: unknown name.
    """
    if network.startswith(VOLUME):
        return _of_volumes(network.removeprefix(VOLUME), num_classes)
    if network.startswith(STUDY):
        return of_studies(build_network(network.removeprefix(STUDY), num_classes), network)
    if network.startswith(STAGES):
        return reading_stages(build_network(network.removeprefix(STAGES), num_classes), network, num_classes)
    if network.startswith(PROJECTED):
        return projecting_stages(build_network(network.removeprefix(PROJECTED), num_classes), network, num_classes)
    if network.startswith(TIMM):
        return TimmNetwork(network.removeprefix(TIMM), num_classes)
    if network.startswith(MONAI):
        return MonaiNetwork(network.removeprefix(MONAI), num_classes)
    if network not in NETWORKS:
        raise FedMendError(
            f"job variable network: expected one of {sorted(NETWORKS)}, {TIMM}NAME or {MONAI}NAME, got {network!r:.60}"
        )
    return NETWORKS[network](num_classes)


def _of_volumes(network: str, num_classes: int) -> nn.Module:
    """A network of MONAI that learns masks, in three dimensions."""
    if network.startswith(MONAI):
        return MonaiNetwork(network.removeprefix(MONAI), num_classes, dimensions=3)
    words = f"expected behind {VOLUME} a network of MONAI that learns masks, such as {MONAI}SegResNet"
    raise FedMendError(f"job variable network: {words}, got {network!r:.60}")


def initial_network(network: str, classes: Sequence[str], seed: int, weights: str = "") -> nn.Module:
    """The global model of round 0: seeded, and started from a local weights file where one is given.

    Args:
        network: name of the backbone.
        classes: C class names.
        seed: seeds the initialisation without touching global random state.
        weights: empty for random weights; else a file, see :func:`fedmend.learning.weights.load_initial`.

    Raises:
        FedMendError: the file is missing or does not fit the network.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_network(network, len(classes))
    if weights:
        load_initial(model, plain_name(network), weights)
    LOG.info("network %s starts from %s", network, "the given weights file" if weights else "random weights")
    return model
