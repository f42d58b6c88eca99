"""MONAI's 2D ``BasicUNet``, written out: the same names, initial weights and output to the last digit.

MONAI has no part that can be imported without all others: its package imports itself whole, and with it torchvision,
PyTorch's compiler, SciPy and Matplotlib. On one core that took 5.3 s beside the 1.8 s of torch, which a site pays in
every round where FLARE starts a process per task; this takes no time that can be measured.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicUNet(nn.Module):
    """Encoder and decoder of a U-Net (Ronneberger et al., MICCAI 2015), without the last convolution.

    It equals ``monai.networks.nets.BasicUNet(2, 1, features=widths, act="relu", norm="batch", bias=False,
    upsample="nontrainable")`` without its ``final_conv``.

    Args:
        widths: channels of the five encoder blocks and of the last decoder block (F).
    """

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        first, *deeper, last = widths
        self.conv_0 = _two_convolutions(1, first)
        for depth, (above, width) in enumerate(zip(widths, deeper, strict=False), 1):
            setattr(self, f"down_{depth}", _named(max_pooling=nn.MaxPool2d(2), convs=_two_convolutions(above, width)))
        for depth in (4, 3, 2):
            setattr(self, f"upcat_{depth}", _UpCat(widths[depth], widths[depth - 1], widths[depth - 1], halves=True))
        self.upcat_1 = _UpCat(widths[1], first, last, halves=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 1, H, W), H and W from 16 on → (B, F, H, W)."""
        encoded = [self.conv_0(images)]
        for depth in range(1, 5):
            encoded.append(self.get_submodule(f"down_{depth}")(encoded[-1]))
        decoded = encoded.pop()
        for depth in range(4, 0, -1):
            decoded = self.get_submodule(f"upcat_{depth}")(decoded, encoded.pop())
        return decoded


class _UpCat(nn.Module):
    """Doubles the edges, appends what the encoder had at that size, and convolves twice.

    Args:
        inplanes: channels from below.
        beside: channels of the encoder.
        planes: channels of the output.
        halves: a 1x1 convolution halves the channels first.
    """

    def __init__(self, inplanes: int, beside: int, planes: int, *, halves: bool):
        super().__init__()
        width = inplanes // 2 if halves else inplanes
        self.upsample = _named(
            **({"preconv": nn.Conv2d(inplanes, width, 1)} if halves else {}),
            upsample_non_trainable=nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True),
        )
        self.convs = _two_convolutions(beside + width, planes)

    def forward(self, below: Tensor, beside: Tensor) -> Tensor:
        """(B, inplanes, h, w) and (B, beside, H, W), H = 2h or 2h + 1 → (B, planes, H, W)."""
        up = self.upsample(below)
        odd = [big - small for big, small in zip(beside.shape[:1:-1], up.shape[:1:-1], strict=True)]
        if any(odd):  # pooling dropped the last column or row
            up = F.pad(up, [0, odd[0], 0, odd[1]], "replicate")
        return self.convs(torch.cat([beside, up], dim=1))


def _named(**modules: nn.Module) -> nn.Sequential:
    sequence = nn.Sequential()
    for name, module in modules.items():
        sequence.add_module(name, module)
    return sequence


def _two_convolutions(inplanes: int, planes: int) -> nn.Sequential:
    return _named(conv_0=_convolution(inplanes, planes), conv_1=_convolution(planes, planes))


def _convolution(inplanes: int, planes: int) -> nn.Sequential:
    conv = nn.Conv2d(inplanes, planes, 3, padding=1, bias=False)
    return _named(conv=conv, adn=_named(N=nn.BatchNorm2d(planes), A=nn.ReLU(inplace=True)))
