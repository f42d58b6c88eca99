"""Candidate sets: an image without a label is of one of the classes that its site does not identify."""

import numpy as np
import torch
from torch import Tensor

from fedmend.labels import NOT_ANNOTATED


def candidate_shares(labels: np.ndarray, logits: Tensor, identified: np.ndarray) -> np.ndarray:
    """How far each sample has each class: its label, or without one the softmax over the classes that the site does not
    identify.

    Args:
        labels: (N, C) of single-label data, a row of -1 for an image without a label.
        logits: (N, C) of the received model.
        identified: (C,) bool, of which the site has images by its own labels.

    Returns:
        (N, C) float64 of 0 to 1; a sample without a label is unknown (-1) where the site identifies every class.
    """
    candidates, unlabelled = ~identified, (labels == NOT_ANNOTATED).all(1)
    shares = labels.astype(np.float64)
    if candidates.any():
        shares[unlabelled] = 0
        guess = logits[torch.from_numpy(unlabelled)][:, torch.from_numpy(candidates)].double().softmax(1)
        shares[np.ix_(unlabelled, candidates)] = guess.numpy()
    return shares
