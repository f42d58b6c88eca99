"""Losses for imperfect labels, and the class statistics that go into them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedmend.labels import NOT_ANNOTATED

PRIOR_LIMIT = 1e-3  # class priors are kept in [limit, 1 - limit], which bounds the logit shift to +-6.9


def masked_bce(
    logits: Tensor, target: Tensor, mask: Tensor, divisor: float, pos_weight: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy summed over the entries in ``mask`` and divided by ``divisor``.

    Args:
        logits: (B, C).
        target: (B, C) of 0/1; anything where ``mask`` is False.
        mask: (B, C) bool.
        divisor: what the sum is divided by.
        pos_weight: (C,) weights of the positive term, or None.
    """
    known = torch.where(mask, target, 0).to(logits.dtype)
    loss = F.binary_cross_entropy_with_logits(logits, known, pos_weight=pos_weight, reduction="none")
    return torch.where(mask, loss, 0).sum() / divisor


def prior_shift(labels: np.ndarray, smoothing: float = 0.0) -> np.ndarray:
    """Logit shift log(pi_1 / pi_0) of multi-label logit adjustment, Eq. (3), Sun et al., MICCAI 2024.

    Multiplying odds by pi_1/pi_0 as in Eq. (3) is adding this shift to the logit, which stays finite where the quotient
    of Eq. (3) would become 0/0.

    Args:
        labels: (N, C) int; 1, 0 or -1 = unknown, which does not count.
        smoothing: added to the count of each side.

    Returns:
        (C,) float32; the prior is kept within PRIOR_LIMIT of 0 and 1, and is 1/2 for a class without any label.
    """
    positive, negative = (labels == 1).sum(0) + smoothing, (labels == 0).sum(0) + smoothing
    known = positive + negative
    prior = np.where(known > 0, positive / np.maximum(known, 1e-12), 0.5)
    prior = np.clip(prior, PRIOR_LIMIT, 1 - PRIOR_LIMIT)
    return np.log(prior / (1 - prior)).astype(np.float32)


def positive_weight(labels: np.ndarray) -> np.ndarray:
    """Weight N / n_positive of the positive term, as in the published FedMLP baselines; 1 without positives.

    Args:
        labels: (N, C) int; 1, 0 or -1 = unknown.

    Returns:
        (C,) float32, >= 1.
    """
    known, positive = (labels != NOT_ANNOTATED).sum(0), (labels == 1).sum(0)
    return np.where(positive > 0, known / np.maximum(positive, 1), 1.0).astype(np.float32)


def log_class_prior(labels: np.ndarray) -> np.ndarray:
    """log pi of single-label logit adjustment (Menon et al., ICLR 2021), as in Wu et al., IJCAI 2023.

    Args:
        labels: (N, C) int, one-hot.

    Returns:
        (C,) float32; -inf for a class without a sample, which then is never predicted and gets no gradient.
    """
    count = (labels == 1).sum(0)
    with np.errstate(divide="ignore"):
        return np.log(count / count.sum()).astype(np.float32)


def distillation(logits: Tensor, soft: Tensor) -> Tensor:
    """KL divergence from the teacher's probabilities to the student's, mean over samples or pixels, sum over classes.

    Args:
        logits: (B, C, ...) of the student; -inf for a class that it cannot predict: the teacher's is left out there.
        soft: (B, C, ...) probabilities of the teacher.
    """
    possible = torch.isfinite(logits)
    student = logits.log_softmax(1).masked_fill(~possible, 0)
    soft = soft.masked_fill(~possible, 0)
    return F.kl_div(student, soft, reduction="sum") / (logits.numel() // logits.shape[1])


def soft_dice_loss(probability: Tensor, target: Tensor) -> Tensor:
    """Soft Dice loss of lesions, Eq. (2), Xiang et al., MICCAI 2024: 1 - mean 2 sum(p y) / (sum p + sum y + 1e-4).

    The small number stands in the denominator only. So a slice whose target is all background has loss 1 and no
    gradient: a lesion that nobody annotated on it is not unlearnt. It is MONAI's ``DiceLoss(smooth_nr=0,
    smooth_dr=1e-4)`` to the last digit of the gradient; importing MONAI takes seconds, see
    :mod:`fedmend.learning.unet`.

    Args:
        probability: (B, H, W), or of volumes (B, D, H, W), float32 in 0..1, foreground.
        target: of the same shape, 0/1, any dtype.

    Returns:
        Mean over samples, a scalar in 0..1.
    """
    target, axes = target.to(probability.dtype), tuple(range(1, probability.dim()))
    both = (probability * target).sum(axes)
    only = [(each.sum(axes) - both) * 0.5 for each in (probability, target)]  # MONAI's order, for the last digit
    return (1 - 2 * both / (2 * (both + only[0] + only[1]) + 1e-4)).mean()


def noise_robust_dice_loss(
    probability: Tensor, target: Tensor, *, gamma: float = 1.5, pooled: bool = False, squares: bool = True
) -> Tensor:
    """Noise-robust Dice loss, Wang et al., IEEE TMI 2020 (COPLE-Net): sum |p - y|^gamma / (sum p^2 + sum y^2 + 1e-5).

    The smaller gamma, the less the pixels that contradict their label count. Unlike the soft Dice loss it does have a
    gradient where the target is all background, and may exceed 1 there. With squares that gradient pushes a large p up
    and a small one down: a slice on which nobody marked a lesion makes the network surer of what it believes. With
    plain sums it pushes both down. Where a slice is partly marked, both push an unmarked lesion down.

    Args:
        probability: (B, H, W), or of volumes (B, D, H, W), float32 in 0..1, foreground.
        target: of the same shape, 0/1, any dtype.
        gamma: 1 (like the mean absolute error) to 2 (the Dice loss with squares); below 1 the gradient at p = y is
            not finite.
        pooled: sums go over all samples; False: a quotient for each sample.
        squares: False: sum p + sum y in the denominator.

    Returns:
        Mean over samples, a scalar >= 0.
    """
    target = target.to(probability.dtype)
    axes = tuple(range(0 if pooled else 1, probability.dim()))
    error = (probability - target).abs().pow(gamma).sum(axes)
    sizes = (probability.square(), target.square()) if squares else (probability, target)
    size = sizes[0].sum(axes) + sizes[1].sum(axes)
    return (error / (size + 1e-5)).mean()
