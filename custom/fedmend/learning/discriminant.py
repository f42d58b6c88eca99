"""Classifiers that are solved: a ridge discriminant for each class, with scores that are log-odds.

Fisher's linear discriminant, one against the rest. x_i (F,) are the features of n samples, scaled by their own mean and
standard deviation, and y_i in [0, 1] says how far sample i has the class: 1 or 0 for a label, between them for a guess.
m_1 and m_0 are means weighted by y and 1 - y, n_1 and n_0 the sums of the weights, S the covariance within:

    w = (S + lambda tr(S) / F I)^-1 (m_1 - m_0),    S = sum_i y_i (x_i - m_1)^2 + (1 - y_i) (x_i - m_0)^2  /  n

With fewer samples than features the samples of the two sides lie far apart along w, and other samples do not: taken
as log-odds, w x is several times too sure of itself. So the score is a w x + b with the a and b of a logistic
regression of y on the scores of samples that w was solved without (Platt scaling: Platt, Advances in Large Margin
Classifiers 1999; its penalty on a keeps a finite where the scores part the sides). Samples of one patient are left out
together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FOLDS = 5
SMALLEST_DEVIATION = 0.01  # of the largest: a feature that hardly varies here may vary in other samples
LEAST_SPREAD = 0.5  # of log-odds: standard deviation of the scores of a head that tells nothing of new samples
FEWEST = 2  # samples with a class, and without it, of which one is left out


@dataclass(frozen=True)
class Heads:
    """Linear classifiers.

    Attributes:
        weights: (C, F) float64.
        biases: (C,) float64.
        counts: (C,) int64, the fewer of the samples with and without the class; 0: no classifier.
    """

    weights: np.ndarray
    biases: np.ndarray
    counts: np.ndarray


def solve_heads(
    features: Tensor, labels: np.ndarray, ridge: float, *, balanced: bool = False, patients: Sequence[str] = ()
) -> Heads:
    """A classifier for each class, see the module.

    Args:
        features: (N, F).
        labels: (N, C) of 0 to 1; negative: the sample takes no part in the classifier of that class.
        ridge: lambda > 0.
        balanced: the log-odds are those of a population in which half has the class.
        patients: N keys of patients; none, or an empty one: of the sample nothing is known.

    Returns:
        The heads for features as they are, not scaled.
    """
    x = features.double()
    deviation, mean = torch.std_mean(x, dim=0, correction=0)
    deviation = deviation.clamp(min=float(SMALLEST_DEVIATION * deviation.max()) or 1.0)
    x = (x - mean) / deviation
    num_classes = labels.shape[1]
    weights, biases = torch.zeros(num_classes, x.shape[1], dtype=x.dtype), torch.zeros(num_classes, dtype=x.dtype)
    counts = np.zeros(num_classes, dtype=np.int64)
    groups = np.array([patient or f" {i}" for i, patient in enumerate(patients or [""] * len(x))])
    for c in range(num_classes):
        known = labels[:, c] >= 0
        share = np.asarray(labels[known, c], dtype=np.float64)
        fewest = int(min(share.sum(), (1 - share).sum()) + 1e-6)
        if fewest < FEWEST:
            continue
        scaled = x[torch.from_numpy(known)]
        row, border = discriminant(scaled, torch.from_numpy(share), ridge)
        slope, bias = log_odds(out_of_fold(scaled, share, ridge, groups[known]), share, balanced=balanced)
        weights[c] = slope * row / deviation
        biases[c] = bias - slope * border - weights[c] @ mean
        counts[c] = fewest
    return Heads(weights.numpy(), biases.numpy(), counts)


def discriminant(x: Tensor, share: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """w (F,), and w x half-way between the two means.

    Args:
        x: (n, F) float64, scaled.
        share: (n,) float64 y, neither all 0 nor all 1.
        ridge: lambda.
    """
    with_class, without = (part @ x / part.sum() for part in (share, 1 - share))
    sides = [(part / len(x)).sqrt()[:, None] * (x - mean) for part, mean in ((share, with_class), (1 - share, without))]
    within = torch.cat([sides[0][share > 0], sides[1][share < 1]])  # S = within^T within
    number = x.shape[1]
    penalty = ridge * within.square().sum() / number
    if not penalty > 0:  # all samples of a side are the same
        penalty = torch.ones_like(penalty)
    apart = with_class - without
    if len(within) < number:  # Woodbury: (A^T A + p I)^-1 v = (v - A^T (A A^T + p I)^-1 A v) / p
        gram = within @ within.T + penalty * torch.eye(len(within), dtype=x.dtype)
        row = (apart - within.T @ torch.linalg.solve(gram, within @ apart)) / penalty
    else:
        row = torch.linalg.solve(within.T @ within + penalty * torch.eye(number, dtype=x.dtype), apart)
    return row, row @ (with_class + without) / 2


def out_of_fold(x: Tensor, share: np.ndarray, ridge: float, groups: np.ndarray) -> np.ndarray:
    """(n,) scores, 0 half-way between the means, of samples that had no part in w; NaN: no w could be solved without.
    Folds are stratified by the labels; where hardly any guess reaches one half, by the likeliest samples, as many as
    the guesses add up to.

    Args:
        x: (n, F) float64, scaled.
        share: (n,) y.
        ridge: lambda.
        groups: (n,) keys; samples of one key are left out together.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    side, scores = share >= 0.5, np.full(len(share), np.nan)
    if len(np.unique(groups[side])) < FEWEST:
        side = np.isin(np.arange(len(share)), np.argsort(-share, kind="stable")[: round(share.sum())])
    folds = min(FOLDS, *(len(np.unique(groups[part])) for part in (side, ~side)))
    if folds < FEWEST:
        return scores
    for rest, out in StratifiedGroupKFold(folds).split(scores, side, groups):
        if 0 < share[rest].sum() < len(rest):
            row, border = discriminant(x[rest], torch.from_numpy(share[rest]), ridge)
            scores[out] = (x[out] @ row - border).numpy()
    return scores


def log_odds(scores: np.ndarray, share: np.ndarray, *, balanced: bool) -> tuple[float, float]:
    """a and b for which a * score + b is the log-odds of the class.

    Args:
        scores: (n,); NaN: it takes no part.
        share: (n,) y, neither all 0 nor all 1.
        balanced: see :func:`solve_heads`.

    Returns:
        a and b; where no score, or only scores of one side, take part, 1 and the log-odds of the mean of y. a is never
        so small that scores turn round or fall together, which chance may suggest where few have the class; the
        log-odds is then about the mean.
    """
    from scipy.sparse import csr_array
    from sklearn.linear_model import LogisticRegression

    prior = 0.0 if balanced else float(np.log(share.mean() / (1 - share.mean())))
    scores, share = scores[~np.isnan(scores)], share[~np.isnan(scores)]
    if not 0 < share.sum() < len(share):
        return 1.0, prior
    unit = scores.std() or 1.0
    weights = np.concatenate([share, 1 - share])
    if balanced:
        weights = weights * np.repeat([1 / share.mean(), 1 / (1 - share).mean()], len(share)) / 2
    sides, twice = np.repeat([1, 0], len(share)), np.tile(scores / unit, 2)[:, None]
    # Sparse, as BLAS adds up many samples in as many threads as there are, which changes the last digits.
    fit = LogisticRegression().fit(csr_array(twice[weights > 0]), sides[weights > 0], weights[weights > 0])
    slope = float(fit.coef_[0, 0])
    if slope >= LEAST_SPREAD:
        return slope / unit, float(fit.intercept_[0])
    return LEAST_SPREAD / unit, prior - LEAST_SPREAD / unit * float(scores.mean())
