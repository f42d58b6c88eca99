"""Batched weak augmentation on the device, drawn per (sample, view) so that a view can be made again.

The weak augmentation of the four papers' code: rotation up to 10 degrees, translation up to 2 % of the edge, horizontal
flip with probability 1/2, empty corners filled with 0. Bilinear sampling, where the published code uses the nearest
neighbour, because small images suffer from the latter.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
MAX_ROTATION = 10.0  # degrees
MAX_TRANSLATION = 0.02  # of the edge length
FLIP_PROBABILITY = 0.5


def draw_views(samples: int, views: int, generator: torch.Generator) -> Tensor:
    """Draws the affine maps of all views of a data set at once.

    Args:
        samples: N.
        views: V views of each sample.
        generator: CPU generator; the same seed gives the same views.

    Returns:
        (V, N, 2, 3) float32 matrices for :func:`torch.nn.functional.affine_grid`.
    """
    angle, shift_x, shift_y, flip = torch.rand(4, views, samples, generator=generator).unbind()
    angle = (2 * angle - 1) * math.radians(MAX_ROTATION)
    shift = (2 * torch.stack([shift_x, shift_y], -1) - 1) * 2 * MAX_TRANSLATION  # grid coordinates span 2
    mirror = torch.where(flip < FLIP_PROBABILITY, -1.0, 1.0)
    cos, sin = torch.cos(angle), torch.sin(angle)
    rotation = torch.stack([torch.stack([cos * mirror, -sin], -1), torch.stack([sin * mirror, cos], -1)], -2)
    return torch.cat([rotation, shift.unsqueeze(-1)], -1)


def warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Applies one affine map to each image.

    Args:
        images: (B, 1 or 3, H, W) float.
        matrices: (B, 2, 3) float32.

    Returns:
        The same shape; points from outside the image are 0.
    """
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def to_network(images: Tensor) -> Tensor:
    """Grey (B, 1, H, W) or colour (B, 3, H, W) in 0..1 → (B, 3, H, W) with ImageNet mean and standard deviation, as the backbones expect."""
    mean = images.new_tensor(IMAGENET_MEAN).view(1, 3, 1, 1)
    std = images.new_tensor(IMAGENET_STD).view(1, 3, 1, 1)
    return (images - mean) / std
