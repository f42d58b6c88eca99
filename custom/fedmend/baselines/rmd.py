"""RMD: two networks leave out each other's least believable pixels, and teach each other where they are stable.

Fang et al., "Reliable Mutual Distillation for Medical Image Segmentation Under Imperfect Annotations", IEEE TMI 2023. A
row of the table of Xiang et al., MICCAI 2024 (FedIA), who do not say how they made it, so this is our form of it: each
site trains two U-Nets (network ``unet_twin``), the server averages both, and the first is evaluated.

R rounds, r = round from 0; z_m logit of the lesion less that of the background in network m, y marks:

1. rho_r rises linearly from 0 to ``drop`` over the first fifth of the rounds. S_m are the 1 - rho_r of the batch's
   pixels with the smallest cross-entropy of network m. L_t1 is the mean cross-entropy of network 1 over S_2, L_t2 that
   of network 2 over S_1.
2. W is a flip of the slice along none, one or both axes; after the first fifth also a smooth random map, and noise of
   deviation .02 on the image. z_m' are the logits of network m on W(x) with dropout in its encoder.
   D_m = (z_m' - W(z_m))^2.
3. c_r = exp(-5 (1 - min(r / .2 R, 1))^2). Q_m are the share c_r of the pixels with the smallest D_m. L_c1 is
   the mean over Q_2 of KL(sigmoid W(z_2) || sigmoid z_1'), L_c2 that over Q_1 with the networks exchanged.
4. L = sum over m of L_tm + ``weight`` c_r L_cm.

Decisions (the authors' code is Amber-Believe/ReliableMutualDistillation 3e52848):

- D1 ramps end at .2 R (10 of 50 epochs in the code, which has no rounds, and where rho has risen an epoch earlier).
- D2 ``drop`` .005, ``weight`` 9e-4 and the share c_r of step 3 are the code's for LIDC, while for ACDC it has .8 c_r;
  with such a weight the networks hardly teach each other.
- D3 targets of the divergence have no gradient, while in the code they move the peer too.
- D4 one Adam of the job for both networks, which share no parameter; the code has 1e-3, falling to 0.
- D5 the smooth map: shifts of a 3x3 grid with a deviation of 1 to 26 pixels of 128, rotation by up to 60 degrees,
  magnification by 1 to 2. Pixels that come from outside the slice are in no Q. The code flips a whole batch alike, and
  adds the noise before the map, kept within 0 and 1; here each slice has a flip of its own, and the noise is added
  after the map, which then does not smooth it, and may leave 0..1.
- D6 dropout .05 .1 .2 .3 .5 in the five blocks of the encoder, drawn by a generator of the site.
- D7 what is dropped are the pixels whose marks are least believable: unmarked lesions, but also hard marked pixels.

Nothing is reported and no state kept; four passes forward and backward, so four times FedAvg's cost. BatchNorm's
statistics follow all four.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.learning.twin_network import TwinNetwork
from fedmend.method import RoundTask, Site
from fedmend.methods.shared.ramp_up import gaussian_ramp_up
from fedmend.methods.shared.settings import PartialShare, Weight
from fedmend.methods.shared.slices import SliceBatchRound, SliceMethod

RAMP_SHARE = 0.2
DROPOUT = (0.05, 0.1, 0.2, 0.3, 0.5)  # of the encoder's blocks
NOISE = 0.02
LARGEST_SHIFT, LARGEST_ROTATION, LARGEST_ZOOM = 26 / 128, 60.0, 2.0  # of the edge, degrees, factor


class RMDRound(SliceBatchRound):
    """One step for both networks at a time."""

    method: "RMD"
    model: TwinNetwork

    def __init__(self, method: "RMD", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        if not isinstance(model, TwinNetwork):
            raise FedMendError("job variable network: expected one of two networks for RMD, such as unet_twin")
        length = RAMP_SHARE * task.total_rounds
        self._drop = method.drop * (min(task.round_num / length, 1.0) if length else 1.0)
        self._ramp = gaussian_ramp_up(task.round_num, begin=0, end=length, maximum=1.0)
        self._smooth = task.round_num >= length
        self._maps = site.generator(task, "maps")
        seed = site.generator(task, "dropout").initial_seed()
        self._dropout = torch.Generator(site.device).manual_seed(seed)

    def loss(self, index: Tensor) -> Tensor:
        """L of both networks."""
        images, marks = self.batch(index)
        logits = [lesion_logits(network, images) for network in (self.model.first, self.model.second)]
        losses = [F.binary_cross_entropy_with_logits(z, marks, reduction="none") for z in logits]
        kept = 1 - self._drop
        total = mean_of_smallest(losses[0], losses[1], kept) + mean_of_smallest(losses[1], losses[0], kept)
        if self.method.weight > 0:
            total = total + self.method.weight * self._ramp * self._teaching(images, logits)
        return total

    def _teaching(self, images: Tensor, logits: list[Tensor]) -> Tensor:
        """L_c1 + L_c2."""
        maps = random_maps(len(images), images.shape[-1], self._maps, smooth=self._smooth).to(images.device)
        seen = warp(images, maps)
        if self._smooth:
            seen = seen + NOISE * torch.randn(seen.shape, generator=self._maps).to(seen.device)
        inside = (maps.abs() <= 1).all(-1)
        targets = [warp(z.detach().unsqueeze(1), maps).squeeze(1) for z in logits]
        found = []
        for network in (self.model.first, self.model.second):
            with dropout(cast("Iterable[nn.Module]", network.encoder), self._dropout):
                found.append(lesion_logits(network, seen))
        total = images.new_zeros(())
        for student, peer in ((0, 1), (1, 0)):
            unstable = (found[peer].detach() - targets[peer]).square()
            probability = targets[peer].sigmoid()
            divergence = F.binary_cross_entropy_with_logits(
                found[student], probability, reduction="none"
            ) - F.binary_cross_entropy_with_logits(targets[peer], probability, reduction="none")
            total = total + mean_of_smallest(divergence[inside], unstable[inside], self._ramp)
        return total


@dataclass(kw_only=True, eq=False)
class RMD(SliceMethod):
    """Reliable mutual distillation of two networks.

    Args:
        drop: rho, share of the pixels that are left out in the end, 0 to below 1.
        weight: of what the networks teach each other, >= 0; 0 and ``drop`` 0: two networks that are trained apart.
    """

    ROUND = RMDRound
    drop: PartialShare = 0.005
    weight: Weight = 9e-4


def lesion_logits(network: nn.Module, images: Tensor) -> Tensor:
    """(B, H, W) float32: logit of the lesion less that of the background."""
    logits = network(images)[1].float()
    return logits[:, 1] - logits[:, 0]


def mean_of_smallest(values: Tensor, judged: Tensor, share: float) -> Tensor:
    """Mean of those of ``values`` where ``judged`` is among the smallest.

    Args:
        values: any shape.
        judged: the same shape; its ties count as one.
        share: of the numbers that count; at least one does.

    Returns:
        Scalar; 0 where there is no number at all.
    """
    count = round(share * values.numel())
    if count >= values.numel():
        return values.mean() if values.numel() else values.sum()
    limit = judged.detach().flatten().kthvalue(max(count, 1)).values
    chosen = judged <= limit
    return torch.where(chosen, values, 0).sum() / chosen.sum()


def random_maps(count: int, size: int, generator: torch.Generator, *, smooth: bool) -> Tensor:
    """Where each pixel of W(x) comes from.

    Args:
        count: B slices, each with a map of its own.
        size: edge in pixels.
        generator: CPU generator.
        smooth: not the flip alone, also shifts, rotation and magnification.

    Returns:
        (B, size, size, 2) float32 places (x, y) from -1 to 1 for :func:`torch.nn.functional.grid_sample`; beyond, they
        are outside the slice.
    """
    flips = torch.where(torch.rand(count, 2, generator=generator) < 0.5, -1.0, 1.0)
    identity = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]).expand(count, 2, 3)
    grid = F.affine_grid(identity, [count, 1, size, size], align_corners=False)
    if smooth:
        angle, zoom, deviation = torch.rand(3, count, generator=generator)
        angle, zoom = angle * math.radians(LARGEST_ROTATION), 1 + (LARGEST_ZOOM - 1) * zoom
        cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
        turn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        grid = torch.einsum("bij,bhwj->bhwi", turn, grid)
        deviation = (1 / 128 + (LARGEST_SHIFT - 1 / 128) * deviation) * 2  # the places span 2
        shifts = deviation.view(-1, 1, 1, 1) * torch.randn(count, 2, 3, 3, generator=generator)
        grid = grid + F.interpolate(shifts, size=(size, size), mode="bicubic", align_corners=True).movedim(1, -1)
    return grid * flips.view(-1, 1, 1, 2)


def warp(values: Tensor, maps: Tensor) -> Tensor:
    """(B, C, H, W) values at the places of :func:`random_maps`; 0 outside."""
    with torch.autocast(values.device.type, enabled=False):
        return F.grid_sample(values.float(), maps, mode="bilinear", padding_mode="zeros", align_corners=False)


@contextmanager
def dropout(blocks: Iterable[nn.Module], generator: torch.Generator) -> Iterator[None]:
    """Drops outputs of the blocks of an encoder, with the shares of :data:`DROPOUT`."""

    def hook_of(share: float) -> Callable[[nn.Module, tuple, Tensor], Tensor]:
        def hook(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
            kept = torch.rand(output.shape, generator=generator, device=output.device) >= share
            return output * kept / (1 - share)

        return hook

    hooks = [block.register_forward_hook(hook_of(share)) for block, share in zip(blocks, DROPOUT, strict=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
