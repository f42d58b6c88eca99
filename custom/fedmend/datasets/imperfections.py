"""How complete labels are made imperfect: the papers' protocols."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import label

from fedmend.datasets.checks import need

_MAX_DRAWS = 100_000
_LEGACY_SEEDS = 2**32  # numpy's RandomState takes no other
# Below any 1 - p of float32 probabilities: samples that the annotator is sure of are drawn last, but can be drawn.
_SURE = 1e-8
_HALF_UP = 0.5 + 1e-9  # a product such as 0.29 * 50 lies a little below its half
# Completeness in tenths of site k = 0.. at level m: first site, step per site, step per level; number of levels.
_COMPLETENESS = {"ms": (4, 2, -1, 4), "lung": (7, 1, -3, 3)}
_COMPLETENESS_SITES = 4


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
    where, per_site = "annotated classes", annotated_per_site
    words = f"num_sites >= 1, annotated_per_site in 1..{num_classes} and seed >= 0"
    good = num_sites >= 1 and 1 <= per_site <= num_classes and seed >= 0
    need(good, where, words, f"{num_sites}, {per_site} and {seed}")
    words = f"num_sites * annotated_per_site >= {num_classes}, the number of classes"
    need(num_sites * per_site >= num_classes, where, words, f"{num_sites} * {per_site}")
    found = f"with {num_sites} sites of {per_site}; use rule"
    if rule == "one_each":
        offset = (np.arange(num_classes)[None, :] - np.arange(num_sites)[:, None]) % num_classes
        reached = (offset < per_site).any(axis=0)
        words = f"rule 'one_each' to reach all {num_classes} classes"
        need(reached.all(), where, words, f"{reached.sum()} {found} 'random'")
        return offset < per_site
    need(rule == "random", where, "rule 'one_each' or 'random'", repr(rule))
    rng = np.random.default_rng((seed, 1))
    for _ in range(_MAX_DRAWS):
        # The ranks of a row of uniform numbers are a random permutation: the first m ranks are m classes drawn fairly.
        annotated = rng.random((num_sites, num_classes)).argsort(axis=1) < per_site
        if annotated.any(axis=0).all():
            break
    words = f"rule 'random' to reach all {num_classes} classes within {_MAX_DRAWS} draws"
    need(annotated.any(axis=0).all(), where, words, f"none {found} 'one_each'")
    return annotated


def identified_classes(num_sites: int, num_classes: int, per_site: int, *, seed: int) -> np.ndarray:
    """Which site identifies which class: the label-set mismatch of FedLSM (Deng et al., MICCAI 2023, Sec. 3.1).

    The shuffled classes are dealt to the sites in turn, which makes sure that each is identified somewhere; then each
    site draws as many of the other classes as it lacks. The paper's released code may draw a class that the site has
    already.

    Args:
        num_sites: S, at least 1.
        num_classes: C, at least 1.
        per_site: number of classes that each site identifies, in 1..C.
        seed: 0 or more.

    Returns:
        (S, C) bool; every column has at least one True, every row exactly ``per_site``.

    Raises:
        FedMendError: a number out of its range, or a class that no site would identify.
    """
    words = f"num_sites >= 1, per_site in 1..{num_classes}, num_sites * per_site >= {num_classes}"
    good = num_sites >= 1 and 1 <= per_site <= num_classes and num_sites * per_site >= num_classes and seed >= 0
    got = f"{num_sites}, {per_site}, {num_sites * per_site} and {seed}"
    need(good, "identified classes", f"{words}, the number of classes, and seed >= 0", got)
    rng = np.random.default_rng((seed, 1))
    identified = np.zeros((num_sites, num_classes), dtype=bool)
    identified[np.arange(num_classes) % num_sites, rng.permutation(num_classes)] = True
    for own in identified:
        own[rng.choice(np.flatnonzero(~own), per_site - own.sum(), replace=False)] = True
    return identified


def _check_class_numbers(where: str, labels: np.ndarray, num_classes: int) -> None:
    numbers = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)
    need(numbers, where, "a vector of class numbers", f"{labels.ndim} dimensions of {labels.dtype}")
    if len(labels):
        low, high = labels.min(), labels.max()
        need(low >= 0 and high < num_classes, where, f"class numbers in 0..{num_classes - 1}", f"{low} to {high}")


def bernoulli_dirichlet_partition(
    labels: np.ndarray, num_sites: int, *, alpha: float, presence: float, seed: int, num_classes: int | None = None
) -> np.ndarray:
    """Deals samples to sites that lack classes and differ in size: the partition of FedCorr (Xu et al., CVPR 2022).

    Each site owns each class with probability ``presence``; a site without any class draws again. The samples of a
    class go, one by one, to the sites that own it, with probabilities from a symmetric Dirichlet distribution. The
    draws are those of FedNoRo's released partition (numpy's legacy generator, frozen by numpy), which uses seed 100.

    Args:
        labels: (N,) class numbers in 0..C-1.
        num_sites: S, at least 1.
        alpha: Dirichlet concentration, > 0; small values give sites of very different sizes.
        presence: probability in (0, 1] that a site owns a class.
        seed: 0 or more, below 2 ** 32.
        num_classes: C; None takes the largest label + 1.

    Returns:
        (N,) int64 site index of each sample, 0..S-1; every site has a sample.

    Raises:
        FedMendError: a number out of its range, a class that no site owns, or a site without samples.
    """
    where, labels = "partition", np.asarray(labels)
    good = num_sites >= 1 and alpha > 0 and 0 < presence <= 1 and 0 <= seed < _LEGACY_SEEDS
    words = f"num_sites >= 1, alpha > 0, presence above 0 and at most 1, and seed in 0..{_LEGACY_SEEDS - 1}"
    need(good, where, words, f"{num_sites}, {alpha}, {presence} and {seed}")
    if num_classes is None:
        num_classes = int(labels.max(initial=0)) + 1
    _check_class_numbers(where, labels, num_classes)
    rng = np.random.RandomState(seed)
    owned = rng.binomial(1, presence, size=(num_sites, num_classes)).astype(bool)
    for _ in range(_MAX_DRAWS):
        lacking = ~owned.any(axis=1)
        if not lacking.any():
            break
        owned[lacking] = rng.binomial(1, presence, size=(lacking.sum(), num_classes))
    site_of = np.empty(len(labels), dtype=np.int64)
    for c in range(num_classes):
        owners, samples = np.flatnonzero(owned[:, c]), np.flatnonzero(labels == c)
        got = f"class {c} at none of {num_sites} with presence {presence} and seed {seed}"
        need(len(owners), where, "every class at one site or more", got)
        shares = rng.dirichlet(np.full(len(owners), alpha))
        site_of[samples] = rng.choice(owners, size=len(samples), p=shares)
    sizes = np.bincount(site_of, minlength=num_sites)
    found = f"{len(labels)} samples with alpha {alpha}, presence {presence} and seed {seed}"
    got = f"an empty site, site-{sizes.argmin() + 1}, from {found}"
    need(sizes.all(), where, f"a sample at each of {num_sites} sites", got)
    return site_of


def draw_noisy_sites(
    num_sites: int, *, noisy_share: float, low: float, high: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which sites are noisy and how noisy (Algorithm 1, lines 1 and 7, Wu et al., IJCAI 2023).

    The draws are those of the released code: numpy's legacy generator shuffles the flags, then draws a rate for every
    site.

    Args:
        num_sites: S, at least 1.
        noisy_share: share of noisy sites in 0..1 (the paper's rho); their number is rounded down.
        low: smallest noise rate, in 0..high.
        high: largest noise rate, in low..1.
        seed: 0 or more, below 2 ** 32.

    Returns:
        flags (S,) bool, the noisy sites; rates (S,) float64, the noise rate eta of each, 0 at the others.

    Raises:
        FedMendError: a number out of its range.
    """
    good = num_sites >= 1 and 0 <= noisy_share <= 1 and 0 <= low <= high <= 1 and 0 <= seed < _LEGACY_SEEDS
    words = f"num_sites >= 1, noisy_share in 0..1, 0 <= low <= high <= 1 and seed in 0..{_LEGACY_SEEDS - 1}"
    need(good, "noisy sites", words, f"{num_sites}, {noisy_share}, {low}, {high} and {seed}")
    rng = np.random.RandomState(seed)
    flags = np.arange(num_sites) < int(noisy_share * num_sites)
    rng.shuffle(flags)
    return flags, np.where(flags, rng.uniform(low, high, num_sites), 0.0)


def instance_dependent_noise(labels: np.ndarray, probabilities: np.ndarray, rate: float, *, seed: int) -> np.ndarray:
    """Flips the labels that an annotator finds hard (Algorithm 1, lines 5-12, and Eq. (1), Wu et al., IJCAI 2023).

    int(rate * N) samples are drawn without replacement with weights 1 - p(y|x), y being the true class; each gets
    another class, drawn with p(.|x) over the other classes (with equal chances where all of those are 0).

    Args:
        labels: (N,) true class numbers in 0..C-1.
        probabilities: (N, C) the annotator's p(.|x); rows sum to 1.
        rate: noise rate eta in 0..1.
        seed: 0 or more.

    Returns:
        (N,) int64; exactly int(rate * N) labels differ.

    Raises:
        FedMendError: a number out of its range, arrays that do not fit each other, or a single class.
    """
    where = "instance-dependent noise"
    labels, probabilities = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    need(0 <= rate <= 1 and seed >= 0, where, "rate in 0..1 and seed >= 0", f"{rate} and {seed}")
    good = probabilities.ndim == 2 and len(probabilities) == len(labels) and probabilities.shape[1] >= 2
    words = f"probabilities of {len(labels)} samples for at least 2 classes, between which a label can be flipped"
    need(good, where, words, f"shape {probabilities.shape}")
    _check_class_numbers(where, labels, probabilities.shape[1])
    good = (probabilities >= 0).all() and np.allclose(probabilities.sum(axis=1), 1, rtol=0, atol=1e-3)
    need(good, where, "probabilities >= 0 that sum to 1 for each sample", "others")
    rng = np.random.default_rng(seed)
    noisy, rows = labels.astype(np.int64), np.arange(len(labels))
    weights = np.maximum(1 - probabilities[rows, labels], 0) + _SURE
    # The first k events of Poisson processes with these rates are k samples drawn in turn with these weights.
    flipped = np.sort(np.argsort(rng.exponential(size=len(labels)) / weights, kind="stable")[: int(rate * len(labels))])
    others = probabilities[flipped]
    others[np.arange(len(flipped)), labels[flipped]] = 0
    hopeless = others.sum(axis=1) == 0
    others[hopeless] = np.arange(others.shape[1]) != labels[flipped][hopeless, None]
    bounds = others.cumsum(axis=1)
    # A class of probability 0 spans no part of the line, so that the true class is never hit.
    noisy[flipped] = (bounds <= rng.random((len(flipped), 1)) * bounds[:, -1:]).sum(axis=1)
    return noisy


def uniform_noise(labels: np.ndarray, rate: float, *, num_classes: int, seed: int) -> np.ndarray:
    """Gives each sample, with probability ``rate``, a class drawn evenly from all classes, the true one included.

    About rate * (1 - 1 / C) of the labels are wrong afterwards: the random noise of FedCorr (Xu et al., CVPR 2022).

    Args:
        labels: (N,) true class numbers in 0..C-1.
        rate: noise rate eta in 0..1.
        num_classes: C.
        seed: 0 or more.

    Returns:
        (N,) int64.

    Raises:
        FedMendError: a number out of its range.
    """
    where, labels = "uniform noise", np.asarray(labels)
    need(0 <= rate <= 1 and seed >= 0, where, "rate in 0..1 and seed >= 0", f"{rate} and {seed}")
    _check_class_numbers(where, labels, num_classes)
    rng = np.random.default_rng(seed)
    redrawn = rng.random(len(labels)) < rate
    return np.where(redrawn, rng.integers(num_classes, size=len(labels)), labels).astype(np.int64)


@dataclass(frozen=True)
class LesionCounts:
    """What lesion removal left of a mask: numbers of lesions and voxels, of the complete mask and of the kept part."""

    lesions: int
    kept_lesions: int
    voxels: int
    kept_voxels: int


def completeness_settings(dataset: str, m: int, sites: int = 4) -> tuple[float, ...]:
    """The annotation completeness a_k of each site in the experiments of FedIA (Xiang et al., MICCAI 2024).

    Args:
        dataset: ``ms``, a_k = 0.2 k - 0.1 m + 0.4, or ``lung``, a_k = 0.1 k - 0.3 m + 0.7, with k = 0..3.
        m: level of incompleteness, 0..3 of ``ms``, 0..2 of ``lung``.
        sites: S in 1..4; fewer than the paper's four take the first ones, which are the least complete.

    Returns:
        S shares of kept lesions in (0, 1].

    Raises:
        FedMendError: an unknown dataset or a number out of its range.
    """
    words = f"dataset {' or '.join(map(repr, _COMPLETENESS))}"
    need(dataset in _COMPLETENESS, "completeness", words, repr(dataset))
    first, per_site, per_level, levels = _COMPLETENESS[dataset]
    words = f"m in 0..{levels - 1} and sites in 1..{_COMPLETENESS_SITES} for {dataset!r}"
    need(0 <= m < levels and 1 <= sites <= _COMPLETENESS_SITES, "completeness", words, f"{m} and {sites}")
    return tuple((first + per_site * k + per_level * m) / 10 for k in range(sites))


def remove_lesions(mask: np.ndarray, share: float, *, seed: int) -> tuple[np.ndarray, LesionCounts]:
    """Sets whole lesions of a volume to background: the incomplete annotation of FedIA (Xiang et al., MICCAI 2024).

    A lesion is a 26-connected component. ``share`` of their number, rounded half up and at least one, stay. With the
    same seed a smaller share keeps some of the lesions that a larger one keeps.

    Args:
        mask: (X, Y, Z), lesion where not 0.
        share: completeness in (0, 1].
        seed: 0 or more; one for each volume.

    Returns:
        (X, Y, Z) uint8 mask of 0 and 1 with the kept lesions, and the counts.

    Raises:
        FedMendError: a number out of its range, or a mask of other than three dimensions.
    """
    words = "3 dimensions, share above 0 and at most 1 and seed >= 0"
    good = mask.ndim == 3 and 0 < share <= 1 and seed >= 0
    need(good, "lesion removal", words, f"{mask.ndim}, {share} and {seed}")
    lesions, count = label(mask, structure=np.ones((3, 3, 3)))
    stays = np.zeros(count + 1, dtype=np.uint8)
    number = max(1, math.floor(share * count + _HALF_UP))
    stays[1 + np.random.default_rng(seed).permutation(count)[:number]] = 1
    kept = stays[lesions]
    return kept, LesionCounts(count, int(stays.sum()), int(np.count_nonzero(lesions)), int(kept.sum()))
