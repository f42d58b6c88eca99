"""RSNA 2019 intracranial hemorrhage with missing classes: which slices are used, at which site and in which split."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedmend.data.card import WINDOWS
from fedmend.datasets.checks import SHARES, Limits, check_fields, need, one_of
from fedmend.datasets.rsna_ich_download import WHERE
from fedmend.datasets.samples import class_by_class, parts_of
from fedmend.datasets.swapped_labels import NO_NOISE, SwapNoise

OF_STUDIES = ("study", "copied")  # what labels are of, where they are of studies


@dataclass(frozen=True, kw_only=True)
class SliceProtocol:
    """How slices get to sites that miss classes.

    Attributes:
        sites: number of sites S.
        annotated_per_site: classes that each site annotates, 1..5.
        rule: ``one_each`` or ``random``, see :func:`fedmend.datasets.imperfections.annotated_classes`.
        split: ``patient`` keeps a patient's slices in one split and one site; ``slice`` splits slice by slice, as the
            paper's released code does, so that patients are on both sides.
        partition: ``iid`` deals the shuffled patients (or slices) to the sites; ``station`` keeps the slices of a CT
            scanner (DICOM StationName) together and deals the sorted stations to the sites. A patient with
            several stations goes with the one of the first slice.
        test_share: share of each site's patients (or slices) held out for the test split, in (0, 1).
        val_share: share of what remains that goes to ``val.csv``, in [0, 1); 0 writes none.
        train_per_site: ``train.csv`` holds at most this many slices, ``val.csv`` shrinks in proportion; ``None``: all.
            The paper has 5,000.
        healthy_share: share in [0, 1) of healthy slices among those used; all lesion slices are used. ``None`` uses all
            healthy ones, as does a share that needs more than there are. The paper has 87,948 of 185,051.
        window: HU window in the card: a name of ``fedmend.data.card.WINDOWS`` or ``file`` (the file's own; the paper).
        seed: 0 or more.
        labels_of: what has a label. ``slice``; ``study``: one label for all slices of a study, with each class that
            any of them shows; ``copied``: that label stands at each slice, which is wrong where the slice does not show
            it. Studies are used whole, so that ``healthy_share`` counts nothing, and need ``split="patient"``.
        noise: which sites are noisy besides.
        lists: tables of a published split, training and test, see
            :func:`fedmend.datasets.rsna_ich_download.take_lists`. Exactly these slices are used, in this order:
            ``healthy_share`` and ``test_share`` count nothing. It needs ``split="slice"``.

    Raises:
        FedMendError: a value out of its range.
    """

    sites: int = 5
    annotated_per_site: int = 1
    rule: str = "one_each"
    split: str = "patient"
    partition: str = "iid"
    test_share: float = 0.3
    val_share: float = 0.1
    train_per_site: int | None = None
    healthy_share: float | None = 0.475
    window: str = "brain"
    seed: int = 1037
    labels_of: str = "slice"
    noise: SwapNoise = NO_NOISE
    lists: tuple[Path, Path] | None = None

    def __post_init__(self) -> None:
        limits: Limits = {
            "partition": one_of("iid", "station"),
            **SHARES,
            "healthy_share": (lambda v: v is None or 0 <= v < 1, "None, 0 or a number below 1"),
            "labels_of": one_of("slice", *OF_STUDIES),
            "window": (lambda v: v == "file" or v in WINDOWS, f"'file' or one of {sorted(WINDOWS)}"),
        }
        check_fields(WHERE, self, limits)
        check_split(self.split, self.lists)
        if self.of_studies:
            good = self.split == "patient" and self.train_per_site is None and not self.noise.noisy_share
            words = "split 'patient', no train_per_site and no noisy sites with labels of studies"
            need(good, f"{WHERE}, argument labels_of", words, "others")

    @property
    def of_studies(self) -> bool:
        """Whether slices have the label of their study."""
        return self.labels_of in OF_STUDIES

    def in_card(self) -> dict:
        """What the cards show of it."""
        used = asdict(self)
        if lists := used.pop("lists"):
            del used["test_share"], used["healthy_share"]
            used["lists"] = [Path(file).name for file in lists]
        return used


def check_split(split: str, lists: tuple[Path, Path] | None) -> None:
    """Refuses another split than by patient or by slice, and the lists of a published split by slice with the former.

    Raises:
        FedMendError: names the argument.
    """
    good, expected = one_of("patient", "slice")
    need(good(split), f"{WHERE}, argument split", expected, repr(split))
    expected = "'slice' with the lists of a published split"
    need(not lists or split == "slice", f"{WHERE}, argument split", expected, repr(split))


def select_slices(labels: np.ndarray, healthy_share: float | None, seed: int) -> np.ndarray:
    """All lesion slices and the healthy ones that are drawn.

    Args:
        labels: (N, C) of 0/1.
        healthy_share: wanted share of healthy slices among those that are used; None uses all.
        seed: 0 or more.

    Returns:
        Sorted indices.
    """
    lesion = labels.any(axis=1)
    healthy = np.flatnonzero(~lesion)
    if healthy_share is not None:
        wanted = round(lesion.sum() * healthy_share / (1 - healthy_share))
        healthy = np.random.default_rng((seed, 2)).permutation(healthy)[:wanted]
    return np.sort(np.concatenate([np.flatnonzero(lesion), healthy]))


def labels_of_studies(labels: np.ndarray, studies: np.ndarray) -> np.ndarray:
    """(N, C) of 0/1: for each slice the classes that any slice of its study shows.

    Args:
        labels: (N, C) of 0/1.
        studies: (N,) key of the study of each slice.
    """
    number = np.unique(studies, return_inverse=True)[1]
    shown = np.zeros((number.max(initial=0) + 1, labels.shape[1]), dtype=labels.dtype)
    np.maximum.at(shown, number, labels)
    return shown[number]


def sites_of_units(
    units: np.ndarray, stations: np.ndarray | None, sites: int, seed: int
) -> tuple[np.ndarray, list[list[str]]]:
    """Deals units (patients or slices) to the sites.

    Args:
        units: (N,) unit of each slice, numbers from 0.
        stations: (N,) station of each slice, of which each goes to one site; None deals shuffled units.
        sites: S.
        seed: 0 or more.

    Returns:
        Site index of each unit, and the station names of each site.

    Raises:
        FedMendError: fewer stations than sites.
    """
    num_units = units.max() + 1
    if stations is None:
        site_of = np.empty(num_units, dtype=np.int64)
        site_of[np.random.default_rng((seed, 3)).permutation(num_units)] = np.arange(num_units) % sites
        return site_of, [[] for _ in range(sites)]
    first_slice = np.unique(units, return_index=True)[1]
    names, station_of = np.unique(stations[first_slice], return_inverse=True)
    need(len(names) >= sites, f"{WHERE}, partition 'station'", f"at least {sites} stations", len(names))
    return station_of % sites, [names[s::sites].tolist() for s in range(sites)]


def parts_of_sites(
    units: np.ndarray,
    site_of: np.ndarray,
    test: np.ndarray | None,
    protocol: SliceProtocol,
    positives: Sequence[np.ndarray] = (),
) -> list[dict[str, np.ndarray]]:
    """Splits each site's units.

    Args:
        units: (N,) unit of each slice.
        site_of: site of each unit.
        test: the test units of a published split (bool), or None: they are drawn.
        protocol: shares, cap and seed.
        positives: for each site the slices with each class that it annotates, (N, K) bool, by which its validation
            split is drawn, see :func:`fedmend.datasets.samples.class_by_class`; none: whatever their classes.

    Returns:
        For each site: split name → sorted slice indices.

    Raises:
        FedMendError: a site with too few units.
    """
    order, val_share = np.random.default_rng((protocol.seed, 3)).permutation(len(site_of)), protocol.val_share
    parts = []
    for site in range(protocol.sites):
        own = order[site_of[order] == site]
        if test is None:
            num_test = max(1, round(protocol.test_share * len(own)))
        else:
            own, num_test = np.concatenate([own[test[own]], own[~test[own]]]), int(test[own].sum())
        num_val = max(1, round(val_share * (len(own) - num_test))) if val_share else 0
        least = num_test + num_val + 1
        need(len(own) >= least, f"site-{site + 1}", f"at least {least} {protocol.split}s to split", len(own))
        drawn = {"train": own[num_test + num_val :], "val": own[num_test : num_test + num_val], "test": own[:num_test]}
        if not val_share:
            del drawn["val"]
        if positives:
            drawn = class_by_class(drawn, units, positives[site], seed=protocol.seed)
        most = protocol.train_per_site
        parts.append(parts_of(units, drawn, train_per_site=most, val_share=val_share, rest=1 - val_share))
    return parts
