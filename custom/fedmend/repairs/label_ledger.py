"""The label ledger: every repaired label of a site in a :mod:`fedmend.repairs.ledger`, and the target they make."""

from dataclasses import dataclass

import numpy as np

from fedmend.labels import NOT_ANNOTATED
from fedmend.repairs import verdicts as people
from fedmend.repairs.ledger import Entry, Ledger
from fedmend.repairs.verdicts import Verdict


@dataclass(frozen=True)
class Repairs:
    """Labels that one rule sets in one round.

    Attributes:
        sample: (M,) sample numbers.
        label_class: (M,) class numbers.
        new: (M,) labels 0 or 1.
        confidence: (M,) float, the rule's own measure (larger = surer).
    """

    sample: np.ndarray
    label_class: np.ndarray
    new: np.ndarray
    confidence: np.ndarray


class LabelLedger(Ledger):
    """The label ledger of one site and run; see :class:`fedmend.repairs.ledger.Ledger`."""

    def record(self, rule: str, round_num: int, old_labels: np.ndarray, repairs: Repairs) -> None:
        """Appends the repairs of one round in one transaction.

        Args:
            rule: the method's rule, e.g. ``fedmlp.missing_label_detection``.
            round_num: communication round.
            old_labels: (N, C) int8 labels before the repair.
            repairs: what the rule sets.
        """
        sample, label_class = repairs.sample.astype(int), repairs.label_class.astype(int)
        old, new = old_labels[sample, label_class], repairs.new.astype(int)
        self._append(rule, round_num, (sample, label_class, old, new, repairs.confidence))

    def repairs(self) -> np.ndarray:
        """(N, C) int8: the repaired label in force of each sample and class, -1 where there is none.

        Labels that people have given count as repaired; those that they have rejected do not.
        """
        return self._outcome().copy()

    def _combine(self, entries: list[Entry], verdicts: list[Verdict]) -> np.ndarray:
        matrix, how = np.full(self._shape, NOT_ANNOTATED, dtype=np.int8), {"one_label": self._one_label}
        if entries:
            sample, label_class, _, new, *_ = zip(*entries, strict=True)
            matrix[list(sample), list(label_class)] = new
            if self._one_label:  # a rule that came after a rejection knows nothing of the class that was rejected
                last = {entry.sample: entry.label_class for entry in entries if entry.new == 1}
                for row in np.flatnonzero((matrix == 1).sum(1) > 1).tolist():
                    matrix[row] = np.where(matrix[row] == 1, 0, matrix[row])
                    matrix[row, last[row]] = 1
        refused = people.refused(matrix, people.banned(verdicts, self._shape, **how), **how)
        return people.judged(np.where(refused, NOT_ANNOTATED, matrix), verdicts, **how)

    def apply(self, labels: np.ndarray) -> np.ndarray:
        """The training target: ``labels`` (N, C) int8 with the repairs in force put in; a new array."""
        repaired = self.repairs()
        return np.where(repaired != NOT_ANNOTATED, repaired, labels)

    def judged(self, labels: np.ndarray) -> np.ndarray:
        """``labels`` (N, C) int8 with those that people have fixed or given put in; a new array."""
        return people.judged(labels, self.verdicts(), one_label=self._one_label)

    def banned(self) -> np.ndarray:
        """(N, C, 2) bool: whether people have rejected the label 0, and 1, of each sample and class."""
        return people.banned(self.verdicts(), self._shape, one_label=self._one_label)
