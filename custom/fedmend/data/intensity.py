"""Batched intensity augmentation of grey images on the device: no pixel moves, so masks stay aligned.

The steps, their order and their ranges are those of the code of Xiang et al., MICCAI 2024, which calls batchgenerators.

MONAI has the steps too (RandGaussianNoise, RandGaussianSmooth, RandSimulateLowResolution, RandAdjustContrast), for one
image at a time, on random numbers of numpy, and without the cut to the range of the small image. For a batch of 16
images of 64 x 64 they took 12.4 ms where this module takes 1.5, for 4 of 256 x 256 8.4 and 4.5 ms (one CPU thread);
gamma agrees within 2e-7. Also, MONAI's sampled Gaussian kernel does not add up to 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.data.augment import blur, normal


def augment_intensity(images: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian noise (p 0.1), Gaussian blur (p 0.1), simulated low resolution (p 0.125), gamma (p 0.15), in this order.

    Each image draws for itself whether a step happens and how strong it is. The published code chooses an image for
    blur with probability 0.2 and for low resolution with 0.25, and then each of its channels with 1/2; with the one
    channel here that is the product. Ranges: sigma 0.5..1 pixels; zoom 0.5..1; gamma 0.7..1 or 1..1.5, half each, with
    the image's mean and standard deviation kept. The noise has 0..0.1 of the image's standard deviation:
    batchgenerators takes what it calls a variance, 0..0.1, as the standard deviation and means it for standardised
    images.

    Args:
        images: (B, 1, H, W) float32, in about 0..1; (B, D, H, W) of patches of D slices, which all change alike.
        generator: CPU generator: the draws do not depend on the device.

    Returns:
        A new tensor of the same shape, not clipped to 0..1.
    """
    draws = torch.rand(len(STEPS), 2, len(images), generator=generator)
    images = images.clone()
    with torch.autocast(images.device.type, enabled=False):  # a blur in 16 bits would coarsen the grey values
        for (chance, strength), (probability, step) in zip(draws, STEPS, strict=True):
            chosen = (chance < probability).nonzero().squeeze(1)
            if len(chosen):
                index = chosen.to(images.device)
                images[index] = step(images[index], strength[chosen], generator)
    return images


# Each step takes (B, 1, H, W) images, their (B,) strengths, uniform in 0..1 on the CPU, and the CPU generator.
def _noise(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    noise = normal(images.shape, generator, images.device) * 0.1 * strength.view(-1, 1, 1, 1).to(images.device)
    return images + noise * images.std((1, 2, 3), keepdim=True)


def _blur(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    return blur(images, (0.5 + 0.5 * strength).to(images.device))


def _low_resolution(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    """Down by the nearest pixel, up by bicubic interpolation within the range of the small image."""
    height, width = images.shape[2:]
    seen = []
    for image, zoom in zip(images.split(1), (0.5 + 0.5 * strength).tolist(), strict=True):  # each has its own size
        small = F.interpolate(image, (round(zoom * height), round(zoom * width)), mode="nearest-exact")
        large = F.interpolate(small, (height, width), mode="bicubic")
        seen.append(large.clamp(small.min(), small.max()))
    return torch.cat(seen)


def _gamma(images: Tensor, strength: Tensor, generator: torch.Generator) -> Tensor:
    gamma = torch.where(strength < 0.5, 0.7 + 0.6 * strength, 0.5 + strength).view(-1, 1, 1, 1).to(images.device)
    low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
    seen = ((images - low) / (high - low + 1e-7)) ** gamma
    std, mean = torch.std_mean(images, (1, 2, 3), keepdim=True)
    new_std, new_mean = torch.std_mean(seen, (1, 2, 3), keepdim=True)
    return (seen - new_mean) / (new_std + 1e-8) * std + mean


STEPS = ((0.1, _noise), (0.2 * 0.5, _blur), (0.25 * 0.5, _low_resolution), (0.15, _gamma))  # probability, step
