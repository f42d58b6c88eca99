"""Class prototypes: what a site's features say about classes that it does not annotate (Eqs. 5-9 of Sun et al., MICCAI
2024, "FedMLP: Federated Multi-Label Medical Image Classification under Task Heterogeneity").

A prototype is the mean feature of the samples with one label of one class. C classes, N samples, F features.
"""

import math
from collections.abc import Mapping

import numpy as np
import torch

from fedmend.averaging import mean_over_sites
from fedmend.fields import Report
from fedmend.learning.threads import one_thread


def local_prototypes(features: np.ndarray, labels: np.ndarray, fewest: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Prototypes of Eq. (5), Sun et al., MICCAI 2024: mean features per class and label, from labels of people only.

    Args:
        features: (N, F).
        labels: (N, C) int8; -1 = not annotated.
        fewest: samples that a mean may be of; rows from which one of fewer would follow are zero, see :func:`tellable`.

    Returns:
        prototypes (2C, F) float32, row 2c + n, zero where no sample has the label; counts (2C,) int64.
    """
    member = np.stack([labels == 0, labels == 1], axis=2).reshape(len(labels), -1)
    member &= tellable(member, fewest, pairs=True)
    counts = member.sum(0)
    sums = sum(member[rows].T.astype(np.float64) @ features[rows].astype(np.float64) for rows in _slices(len(labels)))
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts.astype(np.int64)


def tellable(member: np.ndarray, fewest: int, *, pairs: bool = False) -> np.ndarray:
    """Rows of means that may be told together.

    A mean and its count are a sum, and the difference of two sums is one over the samples in which they differ. So
    where all samples have a label of two classes, the rows of one class add up to the sum over all samples, and a row
    of few samples of the other class would be this less the other row. Where each sample has one of several classes,
    the sum over all less those of the classes is one over the samples with none.

    Args:
        member: (N, R) bool, the samples behind each row.
        fewest: samples that a mean may be of.
        pairs: rows 2c and 2c + 1 have no sample in common, so that their sum is one too.

    Returns:
        (R,) bool: rows of which none, and no two of a pair, are all but a few samples of others, and of which no sum
        or difference is one over a few samples that all rows treat alike; also rows of few samples themselves, which
        the site's ReportGuard holds back.
    """
    sets = np.concatenate([member, member[:, 0::2] | member[:, 1::2]], axis=1) if pairs else member
    common = sets.astype(np.float32).T @ sets.astype(np.float32)  # exact below 2^24 samples
    size = np.diag(common)
    left = size[:, None] - common  # of the first without the second
    gives_away = (common == size) & (left > 0) & (left < fewest)  # the second is a part of the first
    rows = member.shape[1]
    told = size[:rows] >= fewest
    while True:
        known = np.concatenate([told, told[0::2] & told[1::2]]) if pairs else told
        found = np.argwhere(gives_away & known[:, None] & known)
        if len(found):
            ways = [[n] if n < rows else [2 * (n - rows), 2 * (n - rows) + 1] for n in found[0].tolist()]
        elif len(together := np.flatnonzero(told)[_giving_few(member[:, told], fewest)]):
            ways = [together.tolist()] * 2
        else:
            return told | (size[:rows] < fewest)
        # A row whose partner stays at the site is of little use, and goes first; else the smaller one of the second.
        alone = [row for way in ways for row in way if pairs and not told[row ^ 1]]
        told[min(alone or ways[1], key=lambda row: size[row])] = False


def _giving_few(member: np.ndarray, fewest: int) -> np.ndarray:
    """(R,) bool: rows of ``member`` (N, R) whose sums, added and subtracted, are one over fewer than ``fewest`` samples
    that are in the same rows; none where there is no such sum."""
    alike, count = np.unique(member, axis=0, return_counts=True)
    sums = alike.T.astype(np.float64)
    shares = np.linalg.pinv(sums)  # (kinds of samples, R)
    follows = (shares * sums.T).sum(1) > 1 - 1e-6
    few = np.flatnonzero(follows & (count < fewest))
    return np.abs(shares[few[0]]) > 1e-6 if len(few) else np.zeros(member.shape[1], dtype=bool)


def global_prototypes(reports: Mapping[str, Report], samples: Mapping[str, int]) -> np.ndarray:
    """Global prototypes P_n^c, Eq. (6), Sun et al., MICCAI 2024, over the sites that have one, weighted by N_k, as in
    the released code.

    Args:
        reports: site → report with prototypes (2C, F) and prototype_counts (2C,).
        samples: site → N_k.

    Returns:
        (2C, F) float32; zero rows where no site has the prototype.
    """
    prototypes = {site: report["prototypes"] for site, report in reports.items()}
    return mean_over_sites(prototypes, {s: (r["prototype_counts"] > 0) * samples[s] for s, r in reports.items()})


def classes_without_prototype(prototypes: np.ndarray) -> list[int]:
    """Classes for which nothing can be tagged in the next round, because a row of (2C, F) ``prototypes`` is zero."""
    return np.flatnonzero(~prototypes.any(axis=1).reshape(-1, 2).all(1)).tolist()


def _slices(samples: int) -> list[slice]:
    """Parts of a data set that fit the cache when turned to float64."""
    return [slice(i, i + 4096) for i in range(0, samples, 4096)]


def confidences(features: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    """Z of Eq. (7), Sun et al., MICCAI 2024: cos(P_0, F) - cos(P_1, F).

    Args:
        features: (N, F).
        prototypes: (2C, F), row 2c + n for label n of class c; a zero row = no prototype.

    Returns:
        (N, C) float64; < 0 leans positive, NaN for a class that lacks a prototype.
    """
    prototypes = prototypes.astype(np.float64)
    length = np.linalg.norm(prototypes, axis=1)
    directions = (prototypes / np.maximum(length, 1e-12)[:, None]).T
    z = np.empty((len(features), len(prototypes) // 2))
    for rows in _slices(len(features)):
        part = features[rows].astype(np.float64)
        part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12)
        with one_thread():
            cosine = (torch.tensor(part) @ torch.tensor(directions)).numpy()
        z[rows] = cosine[:, 0::2] - cosine[:, 1::2]
    z[:, (length[0::2] == 0) | (length[1::2] == 0)] = np.nan
    return z


def whitened_confidences(features: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    """Z by a linear discriminant in place of Eq. (7): (F - (P_0 + P_1) / 2)^T (S + tr(S) / F I)^-1 (P_0 - P_1).

    S is the scatter of the site's own features about their mean, whatever their labels, so nothing more is exchanged. A
    cosine from the origin is mostly about the mean of all features, which tells no class from another.

    Args:
        features: (N, F).
        prototypes: as for :func:`confidences`.

    Returns:
        As :func:`confidences`, but each class in units of its standard deviation over the samples.
    """
    pairs = prototypes.astype(np.float64).reshape(-1, 2, prototypes.shape[1])
    apart, half_way = torch.tensor(pairs[:, 0] - pairs[:, 1]), torch.tensor(pairs.mean(1))
    x, parts = torch.from_numpy(features), _slices(len(features))
    with one_thread():
        mean = x.mean(0, dtype=torch.float64)
        scatter = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
        for rows in parts:
            part = x[rows] - mean
            scatter += part.T @ part
        penalty = float(scatter.trace()) / len(scatter) or 1.0  # 0 where all samples are the same
        directions = torch.linalg.solve(scatter + penalty * torch.eye(len(scatter), dtype=scatter.dtype), apart.T)
        raw = torch.cat([(x[rows] - mean) @ directions for rows in parts]) - ((half_way - mean) * directions.T).sum(1)
    z = raw.numpy()
    z /= np.maximum(z.std(0), 1e-12)
    z[:, ~np.all(np.any(pairs, axis=2), axis=1)] = np.nan
    return z


def select_confident(
    z: np.ndarray, residual: np.ndarray, ratio_negative: float, ratio_positive: float, *, rounding: str = "floor"
) -> tuple[np.ndarray, np.ndarray]:
    """Most certain residual samples of one class, Eqs. (8)-(9), Sun et al., MICCAI 2024.

    Args:
        z: (N,) Z of Eq. (7).
        residual: (N,) bool, samples that are not tagged yet.
        ratio_negative: tau_0, share of the residual samples with Z >= 0 that is selected.
        ratio_positive: tau_1, share of those with Z < 0.
        rounding: ``floor`` or ``ceil`` of the product.

    Returns:
        Sample numbers to tag 0 (largest Z first) and 1 (smallest Z first); ties in sample order.
    """
    negative_side = np.flatnonzero(residual & (z >= 0))
    positive_side = np.flatnonzero(residual & (z < 0))
    negatives = negative_side[np.argsort(-z[negative_side], kind="stable")]
    positives = positive_side[np.argsort(z[positive_side], kind="stable")]
    negatives = negatives[: _quota(ratio_negative, len(negatives), rounding)]
    return negatives, positives[: _quota(ratio_positive, len(positives), rounding)]


def _quota(ratio: float, size: int, rounding: str) -> int:
    # The degree in the ratio has travelled as float32: 0.1 * 30 = 3.00000004 must not be rounded up to 4, nor
    # 0.01 * 300 = 2.9999999 down to 2.
    exact = float(ratio) * size
    return math.floor(exact * (1 + 1e-6)) if rounding == "floor" else math.ceil(exact * (1 - 1e-6))
