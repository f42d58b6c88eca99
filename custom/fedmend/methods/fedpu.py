"""FedPU: an image without a label is probably none of the site's classes.

Lin et al., "Federated Learning with Positive and Unlabeled Data", ICML 2022. Single-label data; Table 1 of Deng et al.,
MICCAI 2023, has a row of it. I_k are the classes that site k identifies, U_k the others, M all; P are the labelled
images of a batch, U the others, n_P and n_U how many. With p = softmax and l_c = -ln(1 - p_c + .01):

- CE = mean over P of -ln p_y.
- A = sum over U and I_k of l_c / (n_U |I_k|): an unlabelled image is none of the site's classes.
- S = -sum over P of pi_y l_y / n_P takes back what A does to hidden members of class y; pi_c is the share of class c
  among the site's unlabelled images.
- C = pi' sum over P and U_k of l_c / (n_P (M - |I_k|)), pi' that of the first class of I_k: a labelled image is none of
  the unknown classes.
- L = CE + ``weight`` (A + S + C).

What we followed (the paper's text for FedLSM's table is in a supplement that we did not have; its code, FedPU-torch
d7b378d, is for another loader):

- D1 under FedLSM's protocol every image of a known class is labelled, so pi, S and C are 0: L = CE + A. In FedPU's own
  setting a share of the images of a known class has no label: ``hidden_share``, s. Then pi_c = s / (1 - s) n_c / N_U,
  at most 1, by the site's n_c labelled images of the class and its N_U unlabelled ones. The code takes pi from the true
  labels of the unlabelled images, or .1.
- D2 S falls without bound as p_y goes to 1. With s > 0 the sum of A and S is at least 0 for each class (Kiryo et al.,
  NeurIPS 2017); the code has no bound.
- D3 .01 in the logarithm is that of one of the code's two variants, 1e-6 that of the other. The code never adds C, as
  it tests the length of a list of 0 and 1, and weights class c by its number; none of that is here.
- D4 a part without an image is 0; so is C at a site that knows all classes.
- D5 optimiser, learning rate and steps are the job's; the code has SGD with .01, momentum .9 and a decay of .992.

A spreads the probability of unlabelled images over all unknown classes, the wrong ones too: in the paper's table FedPU
is at or below FedAvg, in ours (docs/results_label_sets.md) far above it. The server averages by samples. Nothing is
reported; cost as FedAvg.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedmend.labels import NOT_ANNOTATED, SINGLELABEL
from fedmend.method import RoundTask, Site
from fedmend.methods.labelsets import LabelSetFedAvgRound, LabelSetMethod
from fedmend.methods.shared.settings import PartialShare, Weight

SMALLEST = 0.01  # eps of the logarithm


class FedPURound(LabelSetFedAvgRound):
    """Cross-entropy of labelled images, and the risk of positive and unlabelled ones."""

    method: "FedPU"

    def __init__(self, method: "FedPU", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        unlabelled = (self.labels == NOT_ANNOTATED).all(1).sum()
        odds = method.hidden_share / (1 - method.hidden_share)
        prior = (odds * (self.labels == 1).sum(0) / unlabelled.clamp(min=1)).clamp(max=1)
        self.prior = torch.where(unlabelled > 0, prior, 0)

    def supervised(self, logits: Tensor, index: Tensor) -> Tensor:
        """CE + weight (A + S + C)."""
        positive = (self.labels[index.to(self.site.device, non_blocking=True)] == 1).float()
        risk = positive_unlabelled_risk(logits, positive, self.known, self.prior)
        return super().supervised(logits, index) + self.method.weight * risk


def positive_unlabelled_risk(logits: Tensor, positive: Tensor, known: Tensor, prior: Tensor) -> Tensor:
    """A + S + C.

    Args:
        logits: (B, M) float32.
        positive: (B, M) float, one-hot; a row of 0 for an unlabelled image.
        known: (M,) bool, I_k.
        prior: (M,) share of each class among the unlabelled images; all 0: S = C = 0.

    Returns:
        Scalar; a part without an image is 0.
    """
    other = -torch.log(1 - logits.softmax(1) + SMALLEST)
    unlabelled = 1 - positive.sum(1, keepdim=True)
    labelled = positive.sum().clamp(min=1)
    by_class = (unlabelled * other).sum(0) * known / (unlabelled.sum().clamp(min=1) * known.sum())
    taken_back = prior * (positive * other).sum(0) / labelled
    # l_c can be below 0, as 1 - p + .01 can exceed 1: without a prior there is nothing to bound.
    summed = torch.where(prior > 0, (by_class - taken_back).clamp(min=0), by_class).sum()
    elsewhere = ((1 - unlabelled - positive) * other * ~known).sum() / (labelled * (~known).sum().clamp(min=1))
    return summed + prior[known][0] * elsewhere


@dataclass(kw_only=True, eq=False)
class FedPU(LabelSetMethod):
    """FedPU, for single-label data.

    Args:
        weight: of the risk of positive and unlabelled images beside the cross-entropy, >= 0; 0 is FedAvg.
        hidden_share: share of the images of a known class that have no label, 0 to below 1.
    """

    KINDS = (SINGLELABEL,)
    ROUND = FedPURound
    weight: Weight = 1.0
    hidden_share: PartialShare = 0.0
