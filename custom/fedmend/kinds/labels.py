"""What data with one label and with several labels per image have in common."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

from fedmend.data.card import SiteCard, check_classes
from fedmend.data.site import Opening, SiteData, Split, load_site, load_truth
from fedmend.data.tables import LabelTable, load_table
from fedmend.errors import FedMendError
from fedmend.kinds.base import Kind
from fedmend.labels import NOT_ANNOTATED
from fedmend.learning.inference import infer
from fedmend.method import Site
from fedmend.repairs.label_ledger import LabelLedger


class LabelKind(Kind):
    """Images with labels (N, C) int8: 1, 0 or -1 = not annotated."""

    unit = "labels"
    sample = "samples"
    check_size = 32

    def load(self, card: SiteCard, classes: Sequence[str], opening: Opening) -> SiteData:
        return load_site(card, classes, opening, partial(self.check_training, card.site))

    def check_training(self, site: str, table: LabelTable) -> None:
        """Refuses a training table of fewer than two samples, or with labels that do not tell classes apart.

        Raises:
            FedMendError: it is one.
        """
        if len(table.images) < 2:
            raise FedMendError(f"{site}: {table.file}: expected at least 2 samples, got {len(table.images)}")
        self.check_values(table, f"{site}: {table.file}")

    @abstractmethod
    def check_values(self, table: LabelTable, where: str) -> None:
        """Refuses a training table whose labels do not tell classes apart; ``where`` begins the sentence.

        Raises:
            FedMendError: says which column, and what it has.
        """

    def open_ledger(self, path: Path, card: SiteCard, data: SiteData) -> LabelLedger:
        table = data.train.table
        names = {"images": table.images, "classes": data.classes}
        return LabelLedger(path, fingerprint=table.fingerprint(), site=card.site, one_label=self.one_label, **names)

    def load_truth(self, card: SiteCard, data: SiteData) -> np.ndarray | None:
        return load_truth(card, data.classes, data.train.table.images)

    def describe(self, card: SiteCard, data: SiteData) -> list[str]:
        lines = []
        for split, held in {"train": data.train, **data.evaluation}.items():
            for i, name in enumerate(data.classes):
                positive, negative, blank = ((held.labels[:, i] == v).sum() for v in (1, 0, NOT_ANNOTATED))
                text = f"{positive} positive, {negative} negative, {blank} blank"
                lines.append(f"{split}, {name}: {text if held.table.annotated[i] else 'not annotated here'}")
        return lines

    def positives(self, data: SiteData) -> np.ndarray:
        return (data.train.labels == 1).sum(0).astype(np.int64)

    def scored(self, model: nn.Module, split: Split, site: Site) -> np.ndarray:
        return infer(model, split, site)[1].numpy()

    def count(self, scored: np.ndarray, split: Split, among: np.ndarray | None = None) -> np.ndarray:
        chosen = slice(None) if among is None else among
        return self.counted(scored[chosen], split.labels[chosen])

    @abstractmethod
    def counted(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Mergeable int64 counts (C, *counts_shape) of (N, C) logits and (N, C) labels."""

    def repairs(self, site: Site, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
        repairs = site.ledger.repairs()
        some = (repairs >= 0).any() or site.ledger.in_force()  # all of them may be rejected
        return repair_counts(repairs, site.data.train.labels, truth) if some else {}

    def label_counts(self, card: SiteCard, classes: Sequence[str]) -> np.ndarray:
        check_classes(card, classes)
        labels = load_table(card, card.splits["train"], classes).labels
        return np.array([(labels != NOT_ANNOTATED).sum(0), (labels == 1).sum(0), (labels == NOT_ANNOTATED).sum(0)])


def repair_counts(repairs: np.ndarray, labels: np.ndarray, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
    """How many labels of each missing class are repaired, and how many of them are right.

    Args:
        repairs: (N, C) int8 from the ledger, -1 = not repaired.
        labels: (N, C) int8 original labels, -1 = not annotated.
        truth: (N, C) int8 complete labels, or None where the truth is unknown.

    Returns:
        positive, negative, untagged: (C,) int64; with a truth also correct_positive, correct_negative.
    """
    positive, negative = repairs == 1, repairs == 0
    counts = {
        "positive": positive.sum(0),
        "negative": negative.sum(0),
        "untagged": ((labels == NOT_ANNOTATED) & (repairs == NOT_ANNOTATED)).sum(0),
    }
    if truth is not None:
        counts["correct_positive"] = (positive & (truth == 1)).sum(0)
        counts["correct_negative"] = (negative & (truth == 0)).sum(0)
    return {k: v.astype(np.int64) for k, v in counts.items()}
