"""Batched weak augmentation on the device, drawn per (sample, view) so that a view can be made again.

:func:`draw_views` is the weak augmentation of the code of FedMLP and FedNoRo: rotation up to 10 degrees, translation up
to 2 % of the edge, horizontal flip with probability 1/2, empty corners filled with 0. Bilinear sampling, where the
published code uses the nearest neighbour, because small images suffer from the latter. :func:`weak` and :func:`strong`
are the pair of FedLSM's code.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
MAX_ROTATION = 10.0  # degrees
MAX_TRANSLATION = 0.02  # of the edge length
FLIP_PROBABILITY = 0.5


def draw_views(samples: int, views: int, generator: torch.Generator) -> Tensor:
    """Draws the affine maps of all V views of N samples at once, by a CPU generator: (V, N, 2, 3) float32 matrices for
    :func:`torch.nn.functional.affine_grid`."""
    return views_of(torch.rand(4, views, samples, generator=generator))


def views_of(numbers: Tensor) -> Tensor:
    """The maps of :func:`draw_views`, (V, N, 2, 3), of (4, V, N) float32 numbers of 0 to 1."""
    angle, shift_x, shift_y, flip = numbers.unbind()
    angle = (2 * angle - 1) * math.radians(MAX_ROTATION)
    shift = (2 * torch.stack([shift_x, shift_y], -1) - 1) * 2 * MAX_TRANSLATION  # grid coordinates span 2
    mirror = torch.where(flip < FLIP_PROBABILITY, -1.0, 1.0)
    return _maps(angle, 1.0, shift, mirror, 1.0)


def warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Applies one affine map to each image.

    MONAI's Affine gives the same within 1e-4, one image after the other: with RandFlip 111 ms for 16 images of 48 x 48
    in three channels where this takes 1.6, at 224 x 224 126 and 53 ms (one CPU thread).

    Args:
        images: (B, 1 or 3, H, W) float.
        matrices: (B, 2, 3) float32.

    Returns:
        The same shape; points from outside the image are 0.
    """
    with torch.autocast(images.device.type, enabled=False):  # 16 bits cannot tell the pixels of a large image apart
        grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _maps(angle: Tensor, scale: Tensor | float, shift: Tensor, mirror: Tensor, flip: Tensor | float) -> Tensor:
    """(..., 2, 3) maps of rotation (rad), magnification, shift (grid units), and flips (+-1) to the side and down."""
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    rotation = torch.stack(
        [torch.stack([cos * mirror, -sin * flip], -1), torch.stack([sin * mirror, cos * flip], -1)], -2
    )
    return torch.cat([rotation, shift.unsqueeze(-1)], -1)


def _signs(count: int, probability: float, generator: torch.Generator) -> Tensor:
    return torch.where(torch.rand(count, generator=generator) < probability, -1.0, 1.0)


def weak(images: Tensor, generator: torch.Generator) -> Tensor:
    """Horizontal flip of (B, 1 or 3, H, W) float images with probability 1/2, drawn by a CPU generator."""
    flip = _signs(len(images), FLIP_PROBABILITY, generator).to(images.device) < 0
    return torch.where(flip.view(-1, 1, 1, 1), images.flip(3), images)


def strong(images: Tensor, generator: torch.Generator, *, vertical_flip: bool = False) -> Tensor:
    """Flips; brightness +-0.2 (p 0.75); one of median blur, Gaussian blur and noise, equally often (p 0.7); shift 10 %,
    scale 10 %, rotation 15 degrees (p 0.85).

    Args:
        images: (B, 1 or 3, H, W) float in 0..1.
        generator: CPU generator.
        vertical_flip: flip upside down with probability 1/2 too; not for chest films.

    Returns:
        The same shape, in 0..1; points from outside the image are 0.
    """
    count, device = len(images), images.device

    def uniform(low: float, high: float, *more: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *more, generator=generator)

    moved = (uniform(0, 1) < 0.85).float()
    maps = _maps(
        uniform(-1, 1) * moved * math.radians(15.0),
        1 + uniform(-0.1, 0.1) * moved,
        uniform(-0.2, 0.2, 2) * moved[:, None],  # grid coordinates span 2
        _signs(count, FLIP_PROBABILITY, generator),
        _signs(count, FLIP_PROBABILITY if vertical_flip else 0.0, generator),
    )
    brightness = uniform(-0.2, 0.2) * (uniform(0, 1) < 0.75)
    kind, sigma, wide = uniform(0, 3) / 0.7, uniform(0.3, 1.2), uniform(0, 1) < 0.5  # kind: 3 and above: as it is
    images = images + brightness.view(-1, 1, 1, 1).to(device)
    with torch.autocast(device.type, enabled=False):
        for edge, chosen in ((3, (kind < 1) & ~wide), (5, (kind < 1) & wide)):
            if len(rows := _rows(chosen, device)):
                images[rows] = median(images[rows], edge)
        if len(rows := _rows((kind >= 1) & (kind < 2), device)):
            images[rows] = blur(images[rows], sigma.to(device)[rows])
    noisy = (kind >= 2) & (kind < 3)
    if len(rows := _rows(noisy, device)):
        deviation = uniform(5.0, 30.0)[noisy].sqrt() / 255  # the variance is given for 8-bit grey values
        noise = normal((len(rows), *images.shape[1:]), generator, device)
        images[rows] += noise * deviation.view(-1, 1, 1, 1).to(device)
    return warp(images.clamp(0, 1), maps.to(device)).clamp(0, 1)


def normal(shape: Sequence[int], generator: torch.Generator, device: torch.device) -> Tensor:
    """Standard normal numbers, float32 of any shape; a GPU draws them itself, from a seed of the CPU's generator."""
    if device.type == "cpu":
        return torch.randn(shape, generator=generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed))


def _rows(chosen: Tensor, device: torch.device) -> Tensor:
    return chosen.nonzero().flatten().to(device)


def median(images: Tensor, edge: int) -> Tensor:
    """Median of ``edge`` x ``edge`` pixels, each channel for itself.

    MONAI's ``MedianSmooth`` gives the same to the last digit, image by image; for 16 images of 64 x 64 it took 28 ms
    where this takes 2 with an edge of 3, and 82 for 14 with one of 5 (one CPU thread).

    Args:
        images: (B, C, H, W).
        edge: odd.

    Returns:
        The same shape; beyond the edge the image goes on with its last pixel.
    """
    padded = F.pad(images, (edge // 2,) * 4, mode="replicate")
    height, width = images.shape[2:]
    near = [padded[..., y : y + height, x : x + width] for y in range(edge) for x in range(edge)]
    # Of half of the values and two more, neither the least nor the greatest is the median of all. Three to
    # fifteen times faster on a CPU than torch.median of the neighbourhoods.
    kept, others = near[: len(near) // 2 + 2], near[len(near) // 2 + 2 :]
    while True:
        kept = _bubble(_bubble(kept, torch.maximum, torch.minimum)[::-1], torch.minimum, torch.maximum)[1:-1]
        if not others:
            return kept[0]
        kept.append(others.pop())


def _bubble(values: list[Tensor], onward: Callable, left: Callable) -> list[Tensor]:
    """The same values, the greatest (or least) of them last."""
    moving, behind = values[0], []
    for value in values[1:]:
        behind.append(left(moving, value))
        moving = onward(moving, value)
    return [*behind, moving]


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Gaussian blur of 5 x 5 pixels.

    Args:
        images: (B, C, H, W) float32.
        sigma: (B,) pixels, up to about 1.2.

    Returns:
        The same shape; beyond the edge the image goes on with its last pixel.
    """
    batch, channels, height, width = images.shape
    line = torch.arange(-2.0, 3.0, device=images.device)
    kernel = torch.exp(-(line**2) / (2 * sigma[:, None] ** 2))
    kernel = kernel / kernel.sum(1, keepdim=True)
    square = (kernel[:, :, None] * kernel[:, None, :]).repeat_interleave(channels, 0).unsqueeze(1)
    padded = F.pad(images, (2, 2, 2, 2), mode="replicate").reshape(1, batch * channels, height + 4, width + 4)
    return F.conv2d(padded, square, groups=batch * channels).reshape(images.shape)


def to_network(
    images: Tensor, mean: Sequence[float] = IMAGENET_MEAN, deviation: Sequence[float] = IMAGENET_STD
) -> Tensor:
    """Grey (B, 1, H, W) or colour (B, 3, H, W) in 0..1 → (B, 3, H, W), scaled by mean and deviation, which are one
    number or one for each colour."""
    shift, scale = (images.new_tensor(values).expand(3).view(1, 3, 1, 1) for values in (mean, deviation))
    images = (images - shift) / scale
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda else images
