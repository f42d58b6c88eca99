"""How complete labels are made imperfect: the papers' protocols."""

import numpy as np

from fedmend.errors import FedMendError

_MAX_DRAWS = 100_000


def annotated_classes(num_sites: int, num_classes: int, annotated_per_site: int, *, rule: str, seed: int) -> np.ndarray:
    """Which site annotates which class: the missing-class protocol of FedMLP (Sun et al., MICCAI 2024, Sec. 3.1).

    Args:
        num_sites: S, at least 1.
        num_classes: C, at least 1.
        annotated_per_site: number of classes that each site annotates, in 1..C.
        rule: ``one_each``: site i annotates the classes i, i+1, ... modulo C (the released protocol, generalised);
            ``random``: every site draws its classes without replacement, and all sites draw again until each class
            is annotated somewhere (the paper).
        seed: 0 or more; used by ``random`` only.

    Returns:
        (S, C) bool; every column has at least one True, every row exactly ``annotated_per_site``.

    Raises:
        FedMendError: a number out of its range, an unknown rule, or a class that no site would annotate.
    """
    if num_sites < 1 or not 1 <= annotated_per_site <= num_classes or seed < 0:
        raise FedMendError(
            f"annotated classes: expected num_sites >= 1, annotated_per_site in 1..{num_classes} and seed >= 0,"
            f" got {num_sites}, {annotated_per_site} and {seed}"
        )
    if num_sites * annotated_per_site < num_classes:
        raise FedMendError(
            f"annotated classes: expected num_sites * annotated_per_site >= {num_classes}, the number of classes,"
            f" got {num_sites} * {annotated_per_site}"
        )
    if rule == "one_each":
        offset = (np.arange(num_classes)[None, :] - np.arange(num_sites)[:, None]) % num_classes
        annotated = offset < annotated_per_site
        if not annotated.any(axis=0).all():
            raise FedMendError(
                f"annotated classes: expected rule 'one_each' to reach all {num_classes} classes, got"
                f" {annotated.any(axis=0).sum()} with {num_sites} sites of {annotated_per_site}; use rule 'random'"
            )
        return annotated
    if rule != "random":
        raise FedMendError(f"annotated classes: expected rule 'one_each' or 'random', got {rule!r}")
    rng = np.random.default_rng((seed, 1))
    for _ in range(_MAX_DRAWS):
        # The ranks of a row of uniform numbers are a random permutation: the first m ranks are m classes drawn fairly.
        annotated = rng.random((num_sites, num_classes)).argsort(axis=1) < annotated_per_site
        if annotated.any(axis=0).all():
            return annotated
    raise FedMendError(
        f"annotated classes: expected rule 'random' to reach all {num_classes} classes within {_MAX_DRAWS} draws, got"
        f" none with {num_sites} sites of {annotated_per_site}; use rule 'one_each'"
    )
