"""Sites whose labels are noisy, by the mean loss of each class: Eq. (3) and the mixture of FedNoRo.

Wu, Yu, Jiang, Cheng, Yan, "FedNoRo", IJCAI 2023. Which losses, and what is done with the sites, is a method's matter;
deviations from the paper are in :mod:`fedmend.methods.fednoro`. K sites, C classes.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.errors import FedMendError
from fedmend.fields import Report
from fedmend.method import Federation
from fedmend.methods.shared.dimensions import AUTO, detect_noisy_clients

VOTES, MIN_VOTE_SHARE = 9, 0.67


def find_noisy_sites(
    fed: Federation,
    reports: Mapping[str, Report],
    *,
    votes: int = VOTES,
    covariance: str = AUTO,
    min_vote_share: float = MIN_VOTE_SHARE,
    per_class: bool = True,
    normalise: bool = True,
) -> list[str]:
    """The sites whose class-wise losses stand out, Eq. (3) and the mixture of Wu et al., IJCAI 2023; written down.

    Args:
        fed: where the decision is recorded.
        reports: site → detection report.
        votes: mixtures that vote on the set of noisy sites.
        covariance: of the mixtures, see :func:`fedmend.methods.shared.dimensions.detect_noisy_clients`.
        min_vote_share: share of the mixtures that must agree; with less, no site is taken for noisy.
        per_class: losses per class; False: one loss per site.
        normalise: min-max normalisation of Eq. (3).

    Returns:
        Their names, sorted.
    """
    losses = loss_matrix(reports, per_class=per_class)
    normalised = normalise_losses(losses, normalise=normalise)
    sites = sorted(reports)
    detection = detect_noisy_clients(normalised, votes=votes, covariance=covariance)
    agreed = detection.vote_share >= min_vote_share
    noisy = [site for site, flag in zip(sites, detection.noisy, strict=True) if flag and agreed]
    fed.record(
        "noisy_client_detection",
        {
            "class_loss": dict(zip(sites, _numbers(losses), strict=True)),
            "normalised": dict(zip(sites, _numbers(normalised), strict=True)),
            "noisy": noisy,
            "vote_share": round(detection.vote_share, 4),
            "covariance": detection.covariance,
            "absent": sorted(set(fed.sites) - set(reports)),
        },
    )
    for column in np.flatnonzero((~np.isnan(losses)).sum(0) == 1) if per_class else ():
        site = next(s for s, row in zip(sites, losses, strict=True) if not np.isnan(row[column]))
        fed.record("class_at_one_site", f"{fed.rows[column]} is at {site} only and says nothing about noise")
    return noisy


def _numbers(rows: np.ndarray) -> list[list[float | None]]:
    """Numbers for JSON; NaN, a class without samples, becomes null."""
    return [[None if np.isnan(x) else round(float(x), 4) for x in row] for row in rows]


def class_losses(logits: Tensor, classes: np.ndarray) -> Report:
    """What a site tells: the mean cross-entropy of the samples of each class, and how many there are.

    Args:
        logits: (N, C).
        classes: (N,) class numbers.
    """
    loss = F.cross_entropy(logits.double(), torch.from_numpy(classes), reduction="none").numpy()
    count = np.bincount(classes, minlength=logits.shape[1])
    total = np.bincount(classes, weights=loss, minlength=logits.shape[1])
    return {"class_loss": (total / np.maximum(count, 1)).astype(np.float32), "class_count": count.astype(np.int64)}


def check_counts(report: Report) -> None:
    """Refuses a detection report of no class.

    Raises:
        FedMendError: no class has enough samples.
    """
    if not (report["class_count"] > 0).any():
        raise FedMendError("report field class_count: expected at least one class with enough samples, got none")


def loss_matrix(reports: Mapping[str, Report], *, per_class: bool = True) -> np.ndarray:
    """Mean losses of all sites.

    Args:
        reports: site → detection report.
        per_class: False gives one loss per site over all its samples (an ablation of the paper's Table 3).

    Returns:
        (K, C) or (K, 1) float64, sites in sorted order; NaN for a class without samples at a site.
    """
    loss = np.array([reports[s]["class_loss"] for s in sorted(reports)], dtype=np.float64)
    count = np.array([reports[s]["class_count"] for s in sorted(reports)])
    if not per_class:
        return (loss * count).sum(1, keepdims=True) / count.sum(1, keepdims=True)
    return np.where(count > 0, loss, np.nan)


def normalise_losses(losses: np.ndarray, *, normalise: bool = True) -> np.ndarray:
    """Fills missing classes with their smallest loss and scales every class to 0..1, Eq. (3), Wu et al., IJCAI 2023.

    Args:
        losses: (K, C), NaN = missing.
        normalise: False only fills (an ablation of the paper's Table 3).

    Returns:
        (K, C) float64; a class that is constant over the sites, or nowhere, is 0.
    """
    known = ~np.isnan(losses).all(0)
    low, high = np.zeros(losses.shape[1]), np.zeros(losses.shape[1])
    low[known], high[known] = np.nanmin(losses[:, known], 0), np.nanmax(losses[:, known], 0)
    filled = np.where(np.isnan(losses), low, losses)
    if not normalise:
        return filled
    return np.where(high > low, (filled - low) / np.where(high > low, high - low, 1), 0)
