"""Steps of DP-SGD whose unit is a patient."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmend.data.tables import LabelTable
from fedmend.learning.system_random import SystemRandom
from fedmend.method import Round


class PatientSteps:
    """Steps of DP-SGD whose unit is a patient.

    In each step, each patient is drawn with the same chance, by itself (Poisson sampling, which the accountant takes
    for granted). The gradient of the mean loss of a patient's images is clipped to the norm ``clip``; noise of standard
    deviation ``noise_multiplier * clip`` goes on the sum; the sum is divided by the expected number of patients, which
    is not the number drawn. One backward pass per patient takes longer than hooks that give all gradients at once, but
    works with every layer that treats images apart, and holds one gradient in memory instead of a batch of them.

    Draws and noise are the operating system's random numbers, never made from the run's seed, which the server knows.

    Args:
        privacy: the site's policy, a :class:`fedmend.site.privacy.Privacy`.
        patients: image numbers of each patient, see :func:`patients_of`.
        batch_size: expected number of patients per step; also the most images of a patient in one.
        random: where draws and noise come from; None: the operating system.
    """

    def __init__(
        self,
        privacy: Any,
        patients: Sequence[Tensor],
        batch_size: int,
        random: SystemRandom | None = None,
    ):
        self._privacy, self._patients, self._most = privacy, patients, batch_size
        self._random = random or SystemRandom()
        self.rate = min(1.0, batch_size / len(patients))
        self.per_epoch = math.ceil(len(patients) / batch_size)

    def batches(self) -> Iterator[list[Tensor]]:
        """The steps of one epoch: the image numbers, (n,) int64, of each patient drawn; a step may be without any."""
        for _ in range(self.per_epoch):
            drawn = np.flatnonzero(self._random.uniform(len(self._patients)) < self.rate).tolist()
            yield [self._some(self._patients[i]) for i in drawn]

    def _some(self, images: Tensor) -> Tensor:
        if len(images) <= self._most:
            return images
        return images[torch.from_numpy(self._random.choice(len(images), self._most))]

    def losses(self, work: Round, batch: Sequence[Tensor]) -> Iterator[Tensor]:
        """The loss of each patient; when all are used up, the parameters hold the gradient of the step.

        Args:
            work: the round.
            batch: image numbers, (n,) int64, of each patient.

        Yields:
            scalars.

        A gradient that is not finite counts as none: to stop because of it would tell that such a patient exists.
        """
        parameters = [p for p in work.model.parameters() if p.requires_grad]
        # In float32, one patient more would change how the gradients of all others are rounded, by more than ``clip``.
        total = [torch.zeros_like(p, dtype=torch.float64) for p in parameters]
        for images in batch:
            loss = work.loss(images)
            gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)
            norm = float(torch.nn.utils.get_total_norm(gradient))
            if math.isfinite(norm):
                torch._foreach_add_(total, gradient, alpha=min(1.0, self._privacy.clip / max(norm, 1e-12)))
                yield loss.detach()
        deviation = self._privacy.noise_multiplier * self._privacy.clip
        for parameter, part in zip(parameters, total, strict=True):
            noise = deviation * self._random.normal(part.numel()).reshape(part.shape)
            part += torch.from_numpy(noise).to(part.device)
            parameter.grad = part.div_(self.rate * len(self._patients)).to(parameter.dtype)  # rounded once, at the end


def patients_of(table: LabelTable) -> list[Tensor]:
    """Image numbers, (n,) int64, of each patient of a table; an image without a patient is one by itself."""
    found: dict[object, list[int]] = {}
    for i, patient in enumerate(table.patients or [""] * len(table.images)):
        found.setdefault(patient or i, []).append(i)
    return [torch.tensor(images) for images in found.values()]
