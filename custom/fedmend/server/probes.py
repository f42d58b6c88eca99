"""Images that nobody has seen before, to ask a model for finite scores.

A model can be made so that it works on images that its maker knows and on no other. So these are drawn anew in every
round from the operating system's randomness, in the size of the job's images: noise, which excites every part of a
network, and smooth pictures between very dark and very bright, which real images are more like. Nothing else depends on
them: they are looked at for finite numbers alone.
"""

import secrets

import torch
from torch import Tensor, nn

DARK, BRIGHT = -2.2, 2.6  # black and white after the usual scaling of pictures
COARSEST, FINEST = 2, 12  # blobs along an edge of a smooth picture


def draw_probes(channels: int, edge: int) -> list[Tensor]:
    """Probes, (1, channels, H, W) float32 each with H = W = ``edge``, scaled as images are when they enter a network of
    ``channels``."""
    generator = torch.Generator().manual_seed(secrets.randbits(63))

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def noise(size: int) -> Tensor:
        return torch.randn((1, channels, size, size), generator=generator)

    def smooth(level: float, contrast: float) -> Tensor:
        blobs = noise(round(between(COARSEST, FINEST))) * contrast
        fine = nn.functional.interpolate(blobs, size=(edge, edge), mode="bilinear") + noise(edge) * between(0, 0.1)
        return level + (fine if between(0, 1) < 0.5 else fine.mean(1, keepdim=True).expand_as(fine))

    return [
        noise(edge),
        noise(edge) * 10 ** between(-1, 0.5) + between(DARK, BRIGHT),
        smooth(0, between(0.5, 2)),
        smooth(DARK, between(0.1, 1)),
        smooth(BRIGHT, between(0.1, 1)),
        torch.full((1, channels, edge, edge), DARK),
    ]
