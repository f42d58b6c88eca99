"""Pseudo-labels that a round trains on: the last one of each entry goes into the ledger."""

import torch
from torch import Tensor

from fedmend.labels import NOT_ANNOTATED
from fedmend.method import RoundTask, Site
from fedmend.repairs.label_ledger import Repairs


class PseudoLabels:
    """The pseudo-labels of one round at one site.

    Args:
        site: whose labels they are.

    Attributes:
        labels: (N, C) int8 on the device: the last pseudo-label of each entry, -1 without one.
    """

    def __init__(self, site: Site):
        shape = site.data.train.labels.shape
        self.labels = torch.full(shape, NOT_ANNOTATED, dtype=torch.int8, device=site.device)
        self._confidence = torch.zeros(shape, device=site.device)
        # What people have rejected, and what they have given a label, gets no pseudo-label.
        self._closed = torch.from_numpy(site.ledger.banned() | (site.labels() != NOT_ANNOTATED)[..., None])
        self._closed = self._closed.to(site.device)

    def keep(self, rows: Tensor, columns: Tensor, probabilities: Tensor, used: Tensor) -> Tensor:
        """Takes these entries in the place of earlier ones.

        Args:
            rows: (B,) sample numbers on the device.
            columns: (M,) class numbers on the device.
            probabilities: (B, M); the pseudo-label is 1 above .5, and the confidence the distance to .5.
            used: (B, M) bool: the entries that may be trained on.

        Returns:
            (B, M) bool: those of them that people leave open.
        """
        closed = self._closed[rows[:, None], columns]
        used = used & ~torch.where(probabilities > 0.5, closed[..., 1], closed[..., 0])
        new = torch.where(used, (probabilities > 0.5).to(torch.int8), NOT_ANNOTATED)
        self.labels[rows[:, None], columns] = new
        self._confidence[rows[:, None], columns] = (probabilities - 0.5).abs()
        return used

    def record(self, rule: str, task: RoundTask, site: Site) -> None:
        """Writes into the ledger what is new against the repairs in force."""
        labels = self.labels.cpu().numpy()
        sample, label_class = ((labels != NOT_ANNOTATED) & (labels != site.ledger.repairs())).nonzero()
        confidence = self._confidence.cpu().numpy()[sample, label_class]
        repairs = Repairs(sample, label_class, labels[sample, label_class], confidence)
        site.ledger.record(rule, task.ledger_round, site.data.train.labels, repairs)
