"""Facts of a federation's labels that advice rests on: who knows which class, and what no site tells.

Letters of shapes: S counted sites, C classes. A number that a site holds back is never guessed: what follows from it is
neither true nor false here, and the site is among those in :attr:`Facts.untold`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedmend.advice.label_audit import COUNTS, HELD_BACK, SiteLabels
from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL

DETECTION = "noisy_client_detection"  # the decision that holds the losses of the sites


@dataclass(frozen=True)
class Losses:
    """What the losses of the sites said after a warm-up.

    Attributes:
        judged: sites whose losses were compared.
        noisy: those that were judged noisy.
        vote_share: share of the fits that agree.
    """

    judged: tuple[str, ...]
    noisy: tuple[str, ...]
    vote_share: float


@dataclass(frozen=True)
class Facts:
    """What a label audit says, as far as it says it.

    Attributes:
        sites: site → what it says.
        classes: C class names.
        losses: what a warm-up said of the sites, if one was run.
    """

    sites: Mapping[str, SiteLabels]
    classes: Sequence[str]
    losses: Losses | None = None

    @cached_property
    def counted(self) -> dict[str, SiteLabels]:
        """Sites that were counted."""
        return {name: site for name, site in self.sites.items() if not site.problem}

    @cached_property
    def kinds(self) -> dict[str, list[str]]:
        """Kind of labels → sites that have it; the empty kind where a site does not say."""
        found: dict[str, list[str]] = {}
        for name, site in self.counted.items():
            found.setdefault(site.kind, []).append(name)
        return found

    @property
    def kind(self) -> str:
        """The kind of labels of all sites; empty where there is no such one."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 else ""

    @property
    def phantom(self) -> bool:
        """Whether labels of any site are synthetic."""
        return any(site.phantom for site in self.counted.values())

    def numbers(self, dataset: str) -> np.ndarray:
        """(S, C) int64 of one of ``COUNTS``, or ``HELD_BACK``."""
        rows = [site.counts[COUNTS.index(dataset)] for site in self.counted.values()]
        return np.array(rows, dtype=np.int64).reshape(-1, len(self.classes))

    def where(self, flags: np.ndarray) -> dict[str, list[str]]:
        """Site → classes with a flag of (S, C), for sites that have any."""
        pairs = zip(self.counted, flags, strict=True)
        named = {site: [c for c, flag in zip(self.classes, row, strict=True) if flag] for site, row in pairs}
        return {site: classes for site, classes in named.items() if classes}

    @cached_property
    def untold(self) -> dict[str, list[str]]:
        """Site → classes of which it holds a number back."""
        return self.where(np.any([self.numbers(name) == HELD_BACK for name in COUNTS], axis=0))

    @cached_property
    def unlabelled(self) -> dict[str, list[str]]:
        """Site → classes of which some, but not all, training samples are known to have no label."""
        return self.where((self.numbers("annotated") > 0) & (self.numbers("missing") > 0))

    @cached_property
    def gaps(self) -> dict[str, list[str]]:
        """Site → classes that it is known not to know.

        With several labels per sample, or masks of several structures: those that it does not annotate. With one: those
        that no sample has, where other samples have no label at all; without such samples nothing says that anything
        was left out.
        """
        if self.kind == MULTILABEL or self.structures:
            return self.where(self.numbers("annotated") == 0)
        if self.kind == SINGLELABEL:
            return self.where((self.numbers("positive") == 0) & (self.numbers("missing") > 0))
        return {}

    @property
    def structures(self) -> bool:
        """Whether labels are masks of several structures."""
        return self.kind == SEGMENTATION and len(self.classes) > 1

    @property
    def complete(self) -> bool:
        """Whether every sample is known to have a label of every class."""
        return bool((self.numbers("missing") == 0).all())

    @cached_property
    def nowhere(self) -> list[str]:
        """Classes that are known to have no positive sample at any site."""
        return [c for c, none in zip(self.classes, (self.numbers("positive") == 0).all(0), strict=True) if none]

    @cached_property
    def doubtful(self) -> list[str]:
        """Classes of which no site tells a positive sample, and some site does not tell whether it has one."""
        positive = self.numbers("positive")
        found = ~(positive > 0).any(0) & (positive == HELD_BACK).any(0)
        return [c for c, flag in zip(self.classes, found, strict=True) if flag]

    @cached_property
    def alone(self) -> dict[str, list[str]]:
        """Site → classes of which it is known to be the only one with positive samples."""
        positive = self.numbers("positive")
        return self.where((positive > 0) & ((positive != 0).sum(0) == 1))

    @cached_property
    def one_value(self) -> dict[str, list[str]]:
        """Site → classes that it annotates without a positive or without a negative sample."""
        annotated, positive = self.numbers("annotated"), self.numbers("positive")
        return self.where((annotated > 0) & ((positive == 0) | (positive == annotated)))

    @cached_property
    def one_class(self) -> list[str]:
        """Sites whose labels are known to be of one class at most."""
        few = (self.numbers("positive") != 0).sum(1) < 2
        return [site for site, flag in zip(self.counted, few, strict=True) if flag]

    @cached_property
    def median_share(self) -> float | None:
        """Median over classes of positive samples per annotated one, at the sites that tell both; None: none does."""
        annotated, positive = self.numbers("annotated"), self.numbers("positive")
        told = (annotated > 0) & (positive != HELD_BACK)
        some = told.any(0)
        shares = np.where(told, positive, 0).sum(0)[some] / np.where(told, annotated, 0).sum(0)[some]
        return float(np.median(shares)) if len(shares) else None

    @cached_property
    def imbalance(self) -> float | None:
        """Samples of the largest class per sample of the smallest, over all sites; None: not told, or one has none."""
        positive = self.numbers("positive")
        sums = positive.sum(0)
        return None if (positive == HELD_BACK).any() or not sums.all() else float(sums.max() / sums.min())

    @cached_property
    def left(self) -> dict[str, float]:
        """Site → share of its lesions that its card says were left in the masks."""
        masks = self.kind == SEGMENTATION
        said = {name: site.lesions for name, site in self.counted.items() if masks and site.lesions}
        return {name: kept / of for name, (kept, of) in said.items() if 0 <= kept <= of != 0}


def read_losses(folder: Path, facts: Facts) -> Losses:
    """What the sites' losses said after the warm-up of a run that compares them.

    Args:
        folder: run folder.
        facts: of the same sites.

    Raises:
        FedMendError: no run folder, a run without such a record, or one of other classes or sites.
    """
    from fedmend.records.run_folder import load_run

    run = load_run(folder)
    found = run.last_decided(DETECTION, {DETECTION: Mapping})
    if found is None:
        raise FedMendError(
            "losses: expected a run that compares the losses of its sites, such as one of jobs/fednoro_ich, found no"
            f" {DETECTION} among its decisions"
        )
    losses, noisy, share = (found[1].get(name) for name in ("class_loss", "noisy", "vote_share"))
    if not (isinstance(losses, Mapping) and isinstance(noisy, list) and isinstance(share, int | float)):
        raise FedMendError(f"losses, {DETECTION}: expected class_loss, noisy and vote_share, got another record")
    if facts.kind != SINGLELABEL:
        kinds = " and ".join(sorted(facts.kinds)) or "no site"
        raise FedMendError(f"losses: expected an audit of {SINGLELABEL} data, got {kinds}")
    if set(run.info["classes"]) != set(facts.classes):
        raise FedMendError(f"losses: expected the classes of the audit, {sorted(facts.classes)}, got others")
    if missing := sorted(set(facts.counted) - set(losses)):
        raise FedMendError(f"losses: expected losses of every site that was counted, got none of {', '.join(missing)}")
    judged = tuple(facts.counted)
    return Losses(judged, tuple(site for site in judged if site in noisy), float(share))
