"""Labelled samples, and how they are dealt to sites: what every converter makes of the tables of its download."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedmend.data.card import IMAGE
from fedmend.datasets.checks import need
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL

Say = Callable[[str], object]  # is called with one line of text at a time


@dataclass(frozen=True, kw_only=True)
class Samples:
    """A data set with complete labels, of which every site gets a part.

    Attributes:
        images: N paths below ``image_root``.
        labels: (N, C) of 0 and 1 in multi-label data, (N,) class numbers in 0..C-1 in single-label data.
        classes: C class names.
        image_root: folder that the paths start from.
        modality: DICOM modality word, for people.
        window: ``None``, ``file``, a name of ``fedmend.data.card.WINDOWS`` or (centre, width) in HU.
        color: pictures are in colour.
        patients: N keys of patients or lesions, or nothing.
        studies: N names of studies, or nothing.
        sample: what has a label, see :class:`fedmend.data.card.SiteCard`.
    """

    images: Sequence[str]
    labels: np.ndarray
    classes: Sequence[str]
    image_root: Path
    modality: str = ""
    window: str | tuple[float, float] | None = None
    color: bool = False
    patients: Sequence[str] | np.ndarray = ()
    studies: Sequence[str] | np.ndarray = ()
    sample: str = IMAGE

    @property
    def kind(self) -> str:
        """``multilabel`` or ``singlelabel``."""
        return MULTILABEL if self.labels.ndim == 2 else SINGLELABEL


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one site gets of the samples.

    Attributes:
        parts: split → numbers of its samples; ``train`` is one of them.
        known: (C,) bool, the classes that the site annotates or identifies.
        about: what the card says of the site, for people.
    """

    parts: Mapping[str, np.ndarray]
    known: np.ndarray
    about: Mapping


def sizes(parts: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Split → number of its samples."""
    return {name: len(index) for name, index in parts.items()}


def check_trainable(where: str, classes: Sequence[str], labels: np.ndarray, known: np.ndarray) -> None:
    """Refuses training labels that no site could learn from.

    Args:
        where: words that name site and table.
        classes: C names.
        labels: (n, C) of 0 and 1, or (n,) class numbers.
        known: (C,) bool, the classes whose labels are shown.

    Raises:
        FedMendError: a class with only 0 or only 1, or labels of fewer than 2 classes.
    """
    if labels.ndim == 2:
        for c in np.flatnonzero(known).tolist():
            found = np.unique(labels[:, c])
            got = f"only {found[0]}" if len(found) else "no image"
            need(len(found) == 2, f"{where}, column {classes[c]}", "both 0 and 1", got)
        return
    found = np.flatnonzero(np.bincount(labels, minlength=len(classes)) * known)
    own = "classes" if known.all() else f"of its classes {[classes[c] for c in np.flatnonzero(known).tolist()]}"
    need(len(found) >= 2, f"{where}, column label", f"at least 2 {own}", len(found))


def shown_labels(labels: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(N,) class numbers, blank where the class is not one of the ``known`` (C,) bool."""
    return np.where(known[labels], labels, NOT_ANNOTATED)


def released_classes(released: Sequence[Sequence[str]], classes: Sequence[str]) -> np.ndarray:
    """(S, C) bool of the classes that a paper's code drew for each of S sites."""
    return np.array([[c in own for c in classes] for own in released])


def hold_out(units: Sequence[str] | np.ndarray, share: float, *, seed: int) -> np.ndarray:
    """Draws whole units (patients, lesions or single images) for the test split.

    Args:
        units: N keys; samples of one key stay together.
        share: share of the units that is held out, in (0, 1); at least one unit is, and at least one is not.
        seed: 0 or more.

    Returns:
        (N,) bool, True in the test split; it does not depend on the order of the samples.

    Raises:
        FedMendError: a share out of its range, or fewer than two units.
    """
    names, index = np.unique(np.asarray(units), return_inverse=True)
    words = "a test_share between 0 and 1 and at least 2 units"
    need(0 < share < 1 and len(names) >= 2, "test split", words, f"{share} and {len(names)}")
    count = min(max(1, round(share * len(names))), len(names) - 1)
    return np.isin(index, np.random.default_rng(seed).permutation(len(names))[:count])


def class_by_class(
    drawn: Mapping[str, np.ndarray], units: np.ndarray, positives: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Draws the validation split of a site again, so that it has the share of each class that it has of the units.

    Greedy, the rarest class first: thresholds and the best model are chosen on a few samples, of which a draw that does
    not look at classes may leave a class none. scikit-learn's StratifiedGroupKFold takes one class a sample only.

    Args:
        drawn: split → units; ``train`` and ``val`` are divided anew, and nothing is without ``val``.
        units: (N,) unit (patient, lesion or image) of each sample, numbers from 0; samples of one stay together.
        positives: (N, K) bool, the samples with each class that the site labels.
        seed: 0 or more.

    Returns:
        Split → units. Those of the training split stay in their order, with those that were in ``val`` behind them.
    """
    if not len(drawn.get("val", ())):
        return dict(drawn)
    pool, wanted = np.concatenate([drawn["train"], drawn["val"]]), len(drawn["val"])
    counts = np.zeros((units.max(initial=0) + 1, positives.shape[1]), dtype=np.int64)
    np.add.at(counts, units, positives)
    counts = counts[pool]
    goal, have = counts.sum(0) * wanted / len(pool), np.zeros(counts.shape[1])
    order = np.random.default_rng((seed, 5)).permutation(len(pool))
    held, left = np.zeros(len(pool), dtype=bool), np.ones(len(pool), dtype=bool)
    for c in np.argsort(counts.sum(0), kind="stable").tolist():
        for u in order[(left & (counts[:, c] > 0))[order]].tolist():
            left[u] = False
            if have[c] + counts[u, c] / 2 <= goal[c] and held.sum() < len(pool) - 1:
                held[u] = True
                have += counts[u]
    held[order[left[order]][: max(0, wanted - int(held.sum()))]] = True  # units with none of the classes
    if not held.any():
        return dict(drawn)
    shuffled = order[held[order]]
    return {**drawn, "train": pool[~held], "val": pool[shuffled]}


def of_known(labels: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(N, K) bool: the samples with each of the K ``known`` (C,) classes, of (N, C) 0 and 1 or (N,) class numbers."""
    return labels[:, known] == 1 if labels.ndim == 2 else labels[:, None] == np.flatnonzero(known)


def parts_of(
    units: np.ndarray, drawn: Mapping[str, np.ndarray], *, train_per_site: int | None, val_share: float, rest: float
) -> dict[str, np.ndarray]:
    """The samples of a site's units; every unit lies in one split.

    Args:
        units: (N,) unit (patient, lesion or image) of each sample, numbers from 0.
        drawn: split → units, in the order in which their samples are taken.
        train_per_site: the training split holds at most this many samples, the validation split shrinks in proportion;
            None: all.
        val_share: share of the units in the validation split.
        rest: share of the units in the training split.

    Returns:
        Split → sorted numbers of its samples.
    """
    most = {"train": train_per_site}
    if train_per_site is not None:
        most["val"] = max(1, round(train_per_site * val_share / rest))
    rank, parts = np.empty(units.max(initial=0) + 1, dtype=np.int64), {}
    for name, own in drawn.items():
        rank[:] = -1
        rank[own] = np.arange(len(own))
        found = np.flatnonzero(rank[units] >= 0)
        parts[name] = np.sort(found[np.argsort(rank[units[found]], kind="stable")][: most.get(name)])
    return parts
