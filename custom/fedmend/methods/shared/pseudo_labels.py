"""Pseudo-labels that a round trains on: the last one of each entry goes into the ledger."""

import numpy as np
import torch
from torch import Tensor

from fedmend.labels import NOT_ANNOTATED
from fedmend.method import RoundTask, Site
from fedmend.repairs.label_ledger import Repairs


class PseudoLabels:
    """The pseudo-labels of one round at one site.

    Args:
        site: whose labels they are.
        columns: (M,) int64, the classes that may get pseudo-labels; every array (B, M) below has these columns.

    Attributes:
        labels: (N, C) int8 on the device: the last pseudo-label of each entry, -1 without one.
    """

    def __init__(self, site: Site, columns: np.ndarray):
        shape = site.data.train.labels.shape
        self.labels = torch.full(shape, NOT_ANNOTATED, dtype=torch.int8, device=site.device)
        self._confidence = torch.zeros(shape, device=site.device)
        self._columns = torch.from_numpy(columns).to(site.device)
        closed = site.ledger.banned() | (site.labels() != NOT_ANNOTATED)[..., None]
        self._closed = torch.from_numpy(closed).to(site.device)

    def closed(self, rows: Tensor, target: Tensor) -> Tensor:
        """What gets no pseudo-label: entries that have a label, and those of which people have rejected this one.

        Args:
            rows: (B,) sample numbers on the device.
            target: (B, M), above .5 for a positive pseudo-label.

        Returns:
            (B, M) bool.
        """
        closed = self._closed[rows[:, None], self._columns]
        return torch.where(target > 0.5, closed[..., 1], closed[..., 0])

    def keep(self, rows: Tensor, target: Tensor, probabilities: Tensor, used: Tensor) -> None:
        """Takes these entries in the place of earlier ones.

        Args:
            rows: (B,) sample numbers on the device.
            target: (B, M) of 0 and 1.
            probabilities: (B, M); the confidence is the distance to .5.
            used: (B, M) bool: the entries that have a pseudo-label, none of them :meth:`closed`.
        """
        place = rows[:, None], self._columns
        self.labels[place] = torch.where(used, target, NOT_ANNOTATED).to(torch.int8)
        self._confidence[place] = (probabilities - 0.5).abs()

    def probabilities(self) -> np.ndarray:
        """(N, C) float32: the probability of the last pseudo-label; of no meaning where there is none."""
        return 0.5 + self._confidence.cpu().numpy()

    def record(self, rule: str, task: RoundTask, site: Site) -> None:
        """Writes into the ledger what is new against the repairs in force."""
        labels = self.labels.cpu().numpy()
        sample, label_class = ((labels != NOT_ANNOTATED) & (labels != site.ledger.repairs())).nonzero()
        confidence = self._confidence.cpu().numpy()[sample, label_class]
        repairs = Repairs(sample, label_class, labels[sample, label_class], confidence)
        site.ledger.record(rule, task.ledger_round, site.data.train.labels, repairs)
