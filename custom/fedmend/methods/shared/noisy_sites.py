"""FedNoRo whatever the kind of labels: what server and sites tell each other, and the teacher of a noisy site.

Equations of Wu et al., IJCAI 2023.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.fields import OF_MEANS, UNBOUNDED, Field
from fedmend.learning.losses import distillation
from fedmend.method import LocalMethod, Round, RoundTask, Site

WARMUP, DETECT, ROBUST = "warmup", "detect", "robust"
CLEAN, NOISY = "clean", "noisy"
FIELDS = {
    "class_loss": Field(
        ("R",),
        "float32",
        0,
        UNBOUNDED,
        "mean cross-entropy of the training samples (of masks: the pixels) of each class, once (Eq. 3)",
        OF_MEANS,
        counted_by="class_count",
    ),
    "class_count": Field(
        ("R",),
        "int64",
        0,
        UNBOUNDED,
        "training samples (of masks: slices) with each class",
        "counts per class",
        of_samples=True,
    ),
}
KNOWLEDGE = {
    "distillation_weight": Field((), "float32", 0, 1, "lambda of Eq. (5)", "none: it depends on the round alone")
}


class TaughtRound(Round):
    """At a noisy site in stage 2 the received model is the teacher, with the ``temperature`` of the method.

    To be put before a class that has ``batch(index)`` and ``adjusted(logits)``.
    """

    method: Any
    batch: Callable[..., tuple[Tensor, Tensor]]
    adjusted: Callable[[Tensor], Tensor]

    def __init__(self, method: LocalMethod, model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._teacher: nn.Module | None = None
        self._weight = 0.0
        if task.stage == ROBUST and task.role == NOISY:
            self._weight = float(task.word("distillation_weight"))
            if self._weight > 0:
                self._teacher = copy.deepcopy(model).eval().requires_grad_(False)

    def loss(self, index: Tensor) -> Tensor:
        """:meth:`own_loss`; at a noisy site in stage 2 Eq. (5)."""
        images, target = self.batch(index)
        logits = self.adjusted(self.model(images)[1])
        own = self.own_loss(logits, target)
        if self._teacher is None:
            return own
        with torch.no_grad():
            soft = (self._teacher(images)[1].float() / self.method.temperature).softmax(1)  # Eq. (4)
        return self._weight * distillation(logits, soft) + (1 - self._weight) * own  # Eq. (5)

    @abstractmethod
    def own_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Scalar loss by the site's own labels.

        Args:
            logits: float32, adjusted: (B, C), of masks (B, 2, H, W).
            target: as ``batch`` gives it.
        """
