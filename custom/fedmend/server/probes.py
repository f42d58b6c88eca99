"""Images that nobody has seen before, to ask a model for finite scores.

A model can be made so that it works on images that its maker knows and on no other. So these are drawn anew in every
round from the operating system's randomness, in the size of the job's images: noise, which excites every part of a
network, and smooth pictures between very dark and very bright, which real images are more like. Nothing else depends on
them: they are looked at for finite numbers alone.
"""

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor, nn

DARK, BRIGHT = -2.2, 2.6  # black and white after the usual scaling of pictures
COARSEST, FINEST = 2, 12  # blobs along an edge of a smooth picture


def draw_probes(channels: int, shape: Sequence[int]) -> list[Tensor]:
    """Probes, (1, channels, *shape) float32, scaled as images are when they enter a network of ``channels``; ``shape``:
    rows and columns, before them the slices of a patch."""
    generator = torch.Generator().manual_seed(secrets.randbits(63))

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def noise(size: Sequence[int]) -> Tensor:
        return torch.randn((1, channels, *size), generator=generator)

    def smooth(level: float, contrast: float) -> Tensor:
        blobs = noise([round(between(COARSEST, FINEST))] * len(shape)) * contrast
        mode = "bilinear" if len(shape) == 2 else "trilinear"
        fine = nn.functional.interpolate(blobs, size=tuple(shape), mode=mode) + noise(shape) * between(0, 0.1)
        return level + (fine if between(0, 1) < 0.5 else fine.mean(1, keepdim=True).expand_as(fine))

    return [
        noise(shape),
        noise(shape) * 10 ** between(-1, 0.5) + between(DARK, BRIGHT),
        smooth(0, between(0.5, 2)),
        smooth(DARK, between(0.1, 1)),
        smooth(BRIGHT, between(0.1, 1)),
        torch.full((1, channels, *shape), DARK),
    ]
