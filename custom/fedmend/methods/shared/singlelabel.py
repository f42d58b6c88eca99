"""What methods for single-label data share: targets, logit adjustment, and new augmented views in every epoch."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.labels import NOT_ANNOTATED, SINGLELABEL
from fedmend.learning.losses import log_class_prior
from fedmend.method import LocalMethod, Round, RoundTask, Site
from fedmend.methods.shared.settings import Settings
from fedmend.repairs.label_ledger import Repairs


class SingleLabelRound(Round):
    """Targets and class prior of one round, on the device."""

    method: "SingleLabelMethod"
    views: Tensor  # (VIEWS, N, 2, 3) of the epoch
    VIEWS = 1  # augmented views of a sample in an epoch

    def __init__(self, method: "SingleLabelMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        labels = self.labels()
        target = class_numbers(site, labels)
        self.target = torch.from_numpy(target).to(site.device)
        self._log_prior = torch.from_numpy(log_class_prior(labels[self.samples().numpy()])).to(site.device)

    def labels(self) -> np.ndarray:
        """(N, C) labels to learn from; default: those of people. A method that relabels takes the ledger's."""
        return self.site.labels()

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """See :class:`Round`; draws the augmented views of the epoch."""
        generator = self.site.generator(self.task, f"view {epoch}")
        self.views = self.site.draw(len(self.site.data.train), self.VIEWS, generator)
        return super().batches(epoch)

    def batch(self, index: Tensor, view: int = 0) -> tuple[Tensor, Tensor]:
        """Augmented images (B, 3, H, W) and targets (B,) of some samples, on the device."""
        rows = index.to(self.site.device, non_blocking=True)
        return self.site.data.train.view(index, self.views[view]), self.target[rows]

    def adjusted(self, logits: Tensor) -> Tensor:
        """(B, C) float32 logits, with ``la`` adjusted."""
        return logits.float() + self._log_prior if self.method.la else logits.float()


class SingleLabelMethod(Settings, LocalMethod):
    """A method for single-label data.

    Attributes:
        la: add the log prior of the site's classes to the logits (logit adjustment, strength 1), which balances the
            classes.
    """

    KINDS = (SINGLELABEL,)
    la = False


def fixed_by_people(site: Site) -> np.ndarray:
    """(N,) bool: training samples whose label people have fixed."""
    nothing = np.full_like(site.data.train.labels, NOT_ANNOTATED)
    return (site.ledger.judged(nothing) != NOT_ANNOTATED).any(1)


def settled(site: Site, classes: np.ndarray) -> np.ndarray:
    """(N,) bool: training samples whose label people have fixed, or for which they have rejected these (N,) class
    numbers."""
    return fixed_by_people(site) | site.ledger.banned()[np.arange(len(classes)), classes, 1]


def class_numbers(site: Site, labels: np.ndarray) -> np.ndarray:
    """(N,) int64 class numbers of (N, C) labels.

    Raises:
        FedMendError: a sample without a label.
    """
    known = (labels == 1).any(1)
    if not known.all():
        table = site.data.train.table
        row = table.rows[int(np.argmin(known))]
        raise FedMendError(f"{site.name}: {table.file} row {row}, column label: expected a class name, got a blank")
    return labels.argmax(1).astype(np.int64)


def class_changes(labels: np.ndarray, target: np.ndarray, confidence: np.ndarray) -> Repairs:
    """What turns labels into other classes: of each sample that changes, the old class becomes 0 and the new one 1.

    Args:
        labels: (N, C) one-hot labels in force.
        target: (N,) class numbers.
        confidence: (N,) in the new class.
    """
    old = labels.argmax(1)
    rows = np.flatnonzero(old != target)
    classes = np.stack([old[rows], target[rows]], 1).reshape(-1)
    return Repairs(rows.repeat(2), classes, np.tile([0, 1], len(rows)), confidence[rows].repeat(2))
