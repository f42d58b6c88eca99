"""RSNA 2019 intracranial hemorrhage with missing classes: which slices are used, at which site and in which split."""

from collections.abc import Mapping

import numpy as np

from fedmend.errors import FedMendError

SPLITS = ("train", "val", "test")


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


def _shuffle(num_units: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, 3)).permutation(num_units)


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
        site_of[_shuffle(num_units, seed)] = np.arange(num_units) % sites
        return site_of, [[] for _ in range(sites)]
    first_slice = np.unique(units, return_index=True)[1]
    names, station_of = np.unique(stations[first_slice], return_inverse=True)
    if len(names) < sites:
        raise FedMendError(f"rsna-ich, partition 'station': expected at least {sites} stations, got {len(names)}")
    return station_of % sites, [names[s::sites].tolist() for s in range(sites)]


def parts_of_sites(
    units: np.ndarray, site_of: np.ndarray, test: np.ndarray | None, arguments: Mapping
) -> list[dict[str, np.ndarray]]:
    """Splits each site's units.

    Args:
        units: (N,) unit of each slice.
        site_of: site of each unit.
        test: the test units of a published split (bool), or None: they are drawn.
        arguments: those of :func:`fedmend.datasets.rsna_ich.prepare`.

    Returns:
        For each site: split name → sorted slice indices.

    Raises:
        FedMendError: a site with too few units.
    """
    sites, split = arguments["sites"], arguments["split"]
    test_share, val_share, train_per_site = (arguments[k] for k in ("test_share", "val_share", "train_per_site"))
    order = _shuffle(len(site_of), arguments["seed"])
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    by_unit = np.argsort(position[units], kind="stable")  # slice indices, unit after unit in shuffled order
    split_of = np.full(len(site_of), SPLITS.index("train"))
    for site in range(sites):
        own = order[site_of[order] == site]
        if test is None:
            num_test = max(1, round(test_share * len(own)))
        else:
            own, num_test = np.concatenate([own[test[own]], own[~test[own]]]), int(test[own].sum())
        num_val = max(1, round(val_share * (len(own) - num_test))) if val_share else 0
        if len(own) <= num_test + num_val:
            raise FedMendError(
                f"site-{site + 1}: expected at least {num_test + num_val + 1} {split}s to split, got {len(own)}"
            )
        split_of[own[:num_test]] = SPLITS.index("test")
        split_of[own[num_test : num_test + num_val]] = SPLITS.index("val")
    caps = {"train": train_per_site, "val": None}
    if train_per_site is not None:
        caps["val"] = max(1, round(train_per_site * val_share / (1 - val_share)))
    key = site_of[units[by_unit]] * len(SPLITS) + split_of[units[by_unit]]
    return [
        {
            name: np.sort(by_unit[key == site * len(SPLITS) + k][: caps.get(name)])
            for k, name in enumerate(SPLITS)
            if name != "val" or val_share
        }
        for site in range(sites)
    ]
