"""What differs between kinds of labels: how data are opened, repaired, evaluated and counted.

Letters of shapes: N samples (images, or slices of volumes), C classes, S edge length in pixels.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import nn

from fedmend.data.card import SiteCard
from fedmend.data.site import Opening, SiteData
from fedmend.errors import FedMendError
from fedmend.labels import ENOUGH
from fedmend.method import Site
from fedmend.repairs.label_ledger import LabelLedger
from fedmend.repairs.mask_ledger import MaskLedger


class Kind(ABC):
    """One kind of labels; it has no state, so that one object serves all sites.

    Attributes:
        name: as in :attr:`fedmend.data.card.SiteCard.kind`.
        unit: what a repair changes.
        sample: what the label audit counts.
        one_label: each sample has one class, so that the samples of all classes add up to the annotated ones.
        check_size: edge length in pixels at which a folder is checked.
        best_metric: the mean over classes that chooses the best model.
        lacking: what classes lack that cannot choose it, see :meth:`choosers`.
        counts_words: shape of what :meth:`evaluate` returns, for messages.
    """

    name: ClassVar[str]
    unit: ClassVar[str]
    sample: ClassVar[str]
    one_label: ClassVar[bool] = False
    check_size: ClassVar[int]
    best_metric: ClassVar[str]
    lacking: ClassVar[str] = f"fewer than {ENOUGH} samples with the class or without it"
    counts_words: ClassVar[str]

    # ---- at the site ------------------------------------------------------------------------------------------------
    @abstractmethod
    def load(self, card: SiteCard, classes: Sequence[str], opening: Opening) -> SiteData:
        """Opens the data of a site for a job's C classes.

        Raises:
            FedMendError: anything about the folder that cannot be used.
        """

    @abstractmethod
    def open_ledger(self, path: Path, card: SiteCard, data: SiteData) -> LabelLedger | MaskLedger:
        """The ledger of the training split; ``path`` is its SQLite file."""

    @abstractmethod
    def load_truth(self, card: SiteCard, data: SiteData) -> np.ndarray | None:
        """Complete training labels (N, C) or masks (N, S, S) to measure repairs, or None; never given to a method."""

    @abstractmethod
    def describe(self, card: SiteCard, data: SiteData) -> list[str]:
        """Lines about the labels for the person who prepared the folder."""

    @abstractmethod
    def positives(self, data: SiteData) -> np.ndarray:
        """(C,) int64: training samples with each class."""

    def census_extras(self, card: SiteCard) -> Mapping[str, np.ndarray]:
        """What the card tells the server beyond annotated classes and sample counts; by default nothing."""
        return {}

    @abstractmethod
    def scored(self, model: nn.Module, split: Any, site: Site) -> np.ndarray:
        """What a model says of each of the N samples of a split; it stays at the site. Of labels (N, C) float32
        logits; of masks (N, C, 3) int64 pixels of a slice: found and in the mask, found, in the mask."""

    @abstractmethod
    def count(self, scored: np.ndarray, split: Any, among: np.ndarray | None = None) -> np.ndarray:
        """Mergeable int64 counts (C, *counts_shape) of what :meth:`scored` says.

        Args:
            scored: (N, ...) of all samples of the split.
            split: of the kind.
            among: (N,) bool, the samples that count; None: all.
        """

    def evaluate(self, model: nn.Module, split: Any, site: Site) -> np.ndarray:
        """Mergeable int64 counts of a model on a split of the kind, (C, *counts_shape)."""
        return self.count(self.scored(model, split, site), split)

    @abstractmethod
    def repairs(self, site: Site, truth: np.ndarray | None) -> Mapping[str, np.ndarray]:
        """Counts (C,) int64 of what the ledger of a site has repaired; empty when nothing is."""

    @abstractmethod
    def opinions(self, model: nn.Module, site: Site) -> np.ndarray:
        """What a model thinks of the training samples: (N, C) float32 probabilities of labels; of masks (N, 1), the
        mean probability, over the pixels of a slice that repairs changed, that the change is wrong; 0 without any."""

    def gallery(self, site: Site, truth: np.ndarray | None, *, phantom: bool) -> str:
        """A page with pictures of the repairs in the site's ledger, for its own eyes; empty where there is nothing to
        look at. ``truth`` is as :meth:`load_truth` gives it, any shape; synthetic images are a ``phantom``."""
        return ""

    @abstractmethod
    def label_counts(self, card: SiteCard, classes: Sequence[str]) -> np.ndarray:
        """Counts the labels of the training split for a job's C classes; no image is opened.

        Returns:
            (3, C) int64: annotated samples, positive ones, samples without a label.

        Raises:
            FedMendError: other classes than the job's, or a table, datalist or mask that cannot be read.
        """

    # ---- at the server ----------------------------------------------------------------------------------------------
    @abstractmethod
    def counts_shape(self, num_classes: int) -> tuple[int, ...]:
        """Shape of the counts of each class, that is without the first axis."""

    @abstractmethod
    def parts(self, counts: np.ndarray) -> list[np.ndarray]:
        """Counts (C, *counts_shape) in parts that count every sample at most once."""

    def check_counts(self, counts: np.ndarray, num_classes: int, samples: int, where: str) -> None:
        """Refuses counts that a site cannot have made.

        Args:
            counts: what a site sent about a split; expected (C, *counts_shape).
            num_classes: C.
            samples: samples of the split by the site's census.
            where: words that name site, round and split.

        Raises:
            FedMendError: counts of another kind or number of classes, or of more samples than there are.
        """
        if counts.shape != (num_classes, *self.counts_shape(num_classes)):
            raise FedMendError(f"{where}: expected those of {self.name} data, got others")
        if any(sum(part.ravel().tolist()) > samples for part in self.parts(counts)):  # Python numbers do not wrap
            raise FedMendError(f"{where}: expected at most the samples of its census, got more")

    @abstractmethod
    def metrics(self, counts: np.ndarray, chosen_on: np.ndarray | None = None) -> dict:
        """Metrics of the sum of what sites sent: ``per_class`` and ``macro``, and counts that the report shows.

        Args:
            counts: the sum, (C, *counts_shape) int64.
            chosen_on: that of the validation split, on which thresholds are chosen; None: there is none.
        """

    @abstractmethod
    def few(self, counts: np.ndarray, fewest: int) -> np.ndarray:
        """(C,) bool: the classes that (C, *counts_shape) int64 counts describe by 1 to ``fewest`` - 1 samples with the
        class, or without it."""

    @abstractmethod
    def choosers(self, counts: np.ndarray) -> np.ndarray:
        """(C,) bool: the classes of which (C, *counts_shape) int64 counts of a split have enough samples to choose the
        best model by: of labels :data:`fedmend.labels.ENOUGH` with the class and as many without it."""

    def choice(self, counts: np.ndarray) -> float | None:
        """The mean of :attr:`best_metric` over the classes that :meth:`choosers` names, of (C, *counts_shape) int64
        counts; None: there are none."""
        return self.metrics(_without(~self.choosers(counts), counts))["macro"][self.best_metric]

    def site_metrics(self, counts: np.ndarray, fewest: int = 0) -> dict:
        """:meth:`metrics` of one site alone, at the thresholds that need no validation split.

        Args:
            counts: what the site sent about a split, (C, *counts_shape) int64.
            fewest: samples that a number may describe; classes with fewer are left out, also of the means.

        Returns:
            as :meth:`metrics`, without a confusion matrix, whose cells are small; ``held_back``: C flags.
        """
        few = self.few(counts, fewest)
        found = self.metrics(_without(few, counts))
        found.pop("confusion", None)
        return found | {"held_back": few.tolist()}

    def site_intervals(self, counts: np.ndarray, fewest: int) -> dict[str, list[float]]:
        """:meth:`intervals` of one site alone, of (C, *counts_shape) int64 counts, without the classes that are held
        back by ``fewest`` as in :meth:`site_metrics`."""
        return self.intervals(_without(self.few(counts, fewest), counts))

    def intervals(self, counts: np.ndarray, chosen_on: np.ndarray | None = None) -> dict[str, list[float]]:
        """Name in ``macro`` → ends of a 95 % interval, of (C, *counts_shape) int64 counts as for :meth:`metrics`; empty
        where they are not enough for it."""
        return {}

    def thresholds(self, counts: np.ndarray) -> dict[str, list]:
        """Where probabilities begin to count as a class, chosen on the (C, *counts_shape) int64 counts of a validation
        split; empty where nothing is chosen.

        Returns:
            ``threshold``: C probabilities; ``not_sure``: C pairs of probabilities, between which the threshold would
            lie in 95 of 100 other validation splits; both None for a class with too few samples to choose by;
            ``positives``, ``negatives``: the C counts that chose.
        """
        return {}

    def calibrated(self, thresholds: Mapping[str, list], counts: np.ndarray, fewest: int) -> dict[str, list]:
        """:meth:`thresholds` as a package has them: with the temperatures by which logits are divided before they
        become probabilities, where the kind has some, and thresholds of these probabilities.

        Args:
            thresholds: chosen on ``counts``.
            counts: (C, *counts_shape) int64 of a validation split.
            fewest: samples that a number may describe.

        Returns:
            also ``not_fitted``, where the kind has temperatures: C texts, why the class has temperature 1 and threshold
            0.5, empty where they are fitted.
        """
        return dict(thresholds)

    def known_classes(self, annotated: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """(C,) bool: the classes that a site knows, of those that have a column, ``annotated`` (C,) bool, and the
        training samples with each class, ``positives`` (C,)."""
        return annotated

    def repairable(self, annotated: np.ndarray, positives: np.ndarray) -> np.ndarray:
        """(C,) bool: the classes whose repairs are recorded; arguments as in :meth:`known_classes`."""
        return ~annotated

    def row_names(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Names of the rows of the network's classifier."""
        return tuple(classes)


def _without(few: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Counts (C, ...) with zeros in the classes that ``few`` (C,) bool names."""
    return np.where(few.reshape(-1, *[1] * (counts.ndim - 1)), 0, counts)
