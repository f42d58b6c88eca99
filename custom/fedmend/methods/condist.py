"""ConDistFL: Wang et al., "ConDistFL: Conditional Distillation for Federated Learning from Partially Annotated Data",
MICCAI 2023 workshops (arXiv 2308.04070).

Sites mark some structures F of C and leave the others as background. A site's loss has two parts. The supervised one
is *marginal* (Shi et al., Medical Image Analysis 2021): the probabilities of background and of all structures that the
site does not mark are added up, because its masks do not tell them apart. The other one, *conditional distillation*,
learns what is inside this union from the received model: with temperature T,

    P(g | not F) = softmax(z / T)_g / (1 - sum of those of F),        g: background and each structure not in F,

of the local model follows that of the received one, by a Dice loss over the pixels that neither the mask nor the
received model gives to F. Its weight grows linearly from round to round.

Where paper and released code (research/condist-fl of NVIDIA FLARE) differ:

D1. The code's cross-entropy takes softmax of the merged probabilities a second time. Here it is -log of the merged
    probability, as in Shi et al.
D2. The code trains nnU-Nets in three dimensions with deep supervision, which is left out here; networks see axial
    slices or, where the job says so, patches of volumes.
D3. The code's groups of structures (an organ with its tumour) are single structures here.
D4. The code's server takes the plain mean of the sites' updates and a step of SGD with momentum 0.6 on it (FedOpt);
    here it is federated averaging by samples. Its sites have SGD, whose momentum lasts over rounds, a learning rate
    that falls along a cosine, and clipped gradients; here they have the job's optimiser.

An option of ours, off by default: before one round each site marks in its ledger what the received model is sure of
among the structures that its masks do not show (*pseudo-labels*, for people to look at). From then on the cross-entropy
takes these pixels as their structure; in all else they stay what they were, unmarked.

Nothing but weights, and counts of what was repaired, leaves a site.
"""

import copy
import logging
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.learning.inference import infer_structures
from fedmend.method import RoundTask, Site
from fedmend.methods.shared.settings import MarkThreshold, Positive, Range, Weight
from fedmend.methods.shared.slices import SliceBatchRound, SliceMethod

LOG = logging.getLogger("fedmend.condist")
SMALL = 1e-5  # in denominators, as in the released code
RULE = "condist.pseudo_label"


def merged_log_probabilities(logits: Tensor, marked: Tensor) -> Tensor:
    """Log-probabilities of what a site's masks tell apart: the union of background and unmarked structures, and each
    marked structure.

    Args:
        logits: (B, 1 + C, ...) float32, channel 0 = background.
        marked: (C,) bool, the structures that the masks show.

    Returns:
        (B, 1 + F, ...), the union first.
    """
    log_p = logits.log_softmax(1)
    union = torch.cat([marked.new_ones(1), ~marked])
    return torch.cat([log_p[:, union].logsumexp(1, keepdim=True), log_p[:, ~union]], 1)


def batch_dice(probability: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Dice loss of each channel over all pixels of a batch, 1 - 2 sum(p t) / (sum p + sum t + 1e-5), and their mean.

    MONAI's ``DiceLoss(batch=True, smooth_nr=0, smooth_dr=1e-5)``, with a mask ``MaskedDiceLoss``.

    Args:
        probability: (B, K, ...) in 0..1.
        target: (B, K, ...) in 0..1.
        mask: (B, 1, ...) of 0 and 1, pixels that count; None: all.
    """
    if mask is not None:
        probability, target = probability * mask, target * mask
    axes = (0, *range(2, probability.dim()))
    both, sizes = (v.sum(axes) for v in (probability * target, probability + target))
    return (1 - 2 * both / (sizes + SMALL)).mean()


def marginal_loss(logits: Tensor, masks: Tensor, marked: Tensor) -> Tensor:
    """Dice and cross-entropy of what a site's masks tell apart.

    Args:
        logits: (B, 1 + C, H, W) float32.
        masks: (B, H, W) int64 numbers of structures, 0 where none is marked; one that the site's masks do not show is a
            pseudo-label.
        marked: (C,) bool, the structures that the site's masks show.
    """
    log_p = merged_log_probabilities(logits, marked)
    place = torch.zeros(len(marked) + 1, dtype=torch.long, device=masks.device)
    place[1:][marked] = torch.arange(1, log_p.shape[1], device=masks.device)
    target = place[masks]
    shown = nn.functional.one_hot(target, log_p.shape[1]).movedim(-1, 1).to(log_p.dtype)
    told = torch.cat([log_p[:, :1], logits.log_softmax(1)[:, 1:]], 1)  # of a pixel with a pseudo-label its structure
    return batch_dice(log_p.exp(), shown) + nn.functional.nll_loss(told, masks)


def conditional(logits: Tensor, marked: Tensor, temperature: float) -> Tensor:
    """P(g | no marked structure) of background and each unmarked structure g, (B, 1 + C - F, H, W).

    Args:
        logits: (B, 1 + C, H, W) float32.
        marked: (C,) bool.
        temperature: T > 0.
    """
    p = (logits / temperature).softmax(1)
    others = torch.cat([marked.new_ones(1), ~marked])
    return p[:, others] / (1 - p[:, ~others].sum(1, keepdim=True) + SMALL)


def conditional_distillation(
    logits: Tensor, received: Tensor, masks: Tensor, marked: Tensor, temperature: float
) -> Tensor:
    """Dice loss between the conditional probabilities of the local and the received model.

    Args:
        logits: (B, 1 + C, H, W) of the local model.
        received: (B, 1 + C, H, W) of the received one.
        masks: (B, H, W) int64, the site's marks.
        marked: (C,) bool, the structures that they show.
        temperature: T > 0.
    """
    shown = torch.cat([marked.new_zeros(1), marked])
    outside = ~(shown[masks] | shown[received.argmax(1)])
    own, wanted = (conditional(z, marked, temperature) for z in (logits, received))
    return batch_dice(own, wanted, outside.unsqueeze(1).to(own.dtype))


class ConDistRound(SliceBatchRound):
    """One round on slices, or patches of volumes, whose grey values change at random."""

    method: "ConDist"

    def __init__(self, method: "ConDist", model: nn.Module, task: RoundTask, site: Site):
        if method.pseudo_label_round == task.round_num + 1 and not all(site.data.train.annotated):
            method.pseudo_label(model, task, site)
        super().__init__(method, model, task, site)
        self._marked = torch.tensor(site.data.train.annotated, device=site.device)
        share = task.round_num / max(1, task.total_rounds - 1)
        self._weight = method.first_weight + share * (method.last_weight - method.first_weight)
        self._received = copy.deepcopy(model).eval().requires_grad_(False) if self._distils else None

    @property
    def _distils(self) -> bool:
        return self._weight > 0 and not bool(self._marked.all())

    def loss(self, index: Tensor) -> Tensor:
        images, marks = self.batch(index)
        masks, logits = marks.long(), self.model(images)[1].float()
        marked = self._marked if self.method.marginal else torch.ones_like(self._marked)
        loss = marginal_loss(logits, masks, marked)
        if self._received is None:
            return loss
        with torch.no_grad():
            received = self._received(images)[1].float()
        more = conditional_distillation(logits, received, masks, self._marked, self.method.temperature)
        return loss + self._weight * more


@dataclass(kw_only=True, eq=False)
class ConDist(SliceMethod):
    """Masks of several structures, of which each site marks some.

    Args:
        marginal: the supervised loss takes background and unmarked structures together; false: an unmarked structure is
            background, as in plain FedAvg.
        first_weight: of the distillation in the first round, >= 0.
        last_weight: in the last round, >= 0; both 0: no distillation.
        temperature: T of the distillation, > 0.
        pseudo_label_round: the round, from 1, before which pseudo-labels are made; 0: none.
        pseudo_label_threshold: probability above which an unmarked pixel gets one, 0.5 to below 1.
    """

    STRUCTURES = True
    VOLUMES = True
    ROUND = ConDistRound
    marginal: bool = True
    first_weight: Weight = 0.01
    last_weight: Weight = 1.0
    temperature: Positive = 2.0
    pseudo_label_round: Annotated[int, Range(lambda value: value >= 0, "0 or more")] = 0
    pseudo_label_threshold: MarkThreshold = 0.8

    def pseudo_label(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Marks, in the ledger, unmarked pixels that the received model is sure of, where the masks do not show it."""
        train = site.data.train
        change, confidence = np.zeros(train.masks.shape, dtype=np.int8), np.zeros((len(train), len(train.annotated)))
        for index, p in infer_structures(model, train, site):
            best = np.where(p.max(1) > self.pseudo_label_threshold, p.argmax(1) + 1, 0)
            for c in np.flatnonzero(~np.array(train.annotated)):
                here = (best == c + 1) & (train.masks[index] == 0)
                change[index] += (here * (c + 1)).astype(np.int8)
                confidence[index, c] = (p[:, c] * here).sum((1, 2)) / np.maximum(here.sum((1, 2)), 1)
        site.ledger.record(RULE, task.ledger_round, change, confidence)
        LOG.info(
            "%s: pseudo-labels for %d pixels of %d slices", site.name, (change > 0).sum(), change.any((1, 2)).sum()
        )
