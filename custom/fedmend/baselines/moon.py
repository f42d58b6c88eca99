"""MOON: a local model that keeps close to the global one in its features.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021. Paper and code compare the output of a projection head
(256 numbers); here it is the features z that the networks return, as they have no such head. One previous model,
temperature .5 and mu 1 are those of the code. The first round of a site, and one after a round that it missed, has no
contrastive term: where both models are the common start, the term has no gradient anyway. A model that an earlier run
of this name left, from another seed, does not count.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.fields import Report
from fedmend.learning.weights import get_weights, set_weights
from fedmend.method import RoundTask, Site
from fedmend.methods.labelsets import LabelSetFedAvg, LabelSetFedAvgRound
from fedmend.methods.shared.settings import Positive, Weight

STATE = "moon"


class MoonRound(LabelSetFedAvgRound):
    """Keeps the received model and the site's own of the round before."""

    method: "Moon"

    def __init__(self, method: "Moon", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self._compared: tuple[nn.Module, nn.Module] | None = None
        before = site.state.last_turn(STATE, before=task.round_num)
        if before is not None and before[0] == task.round_num - 1 and before[1].get("seed") == task.seed:
            received = copy.deepcopy(model).eval().requires_grad_(False)
            previous = copy.deepcopy(received)
            set_weights(previous, before[1]["weights"])
            self._compared = received, previous

    def loss(self, index: Tensor) -> Tensor:
        """Supervised plus mu times contrastive loss of the strong views."""
        images = self.inputs(index)
        features, logits = self.model(images)
        loss = self.supervised(logits.float(), index)
        if self._compared is None:
            return loss
        with torch.no_grad():
            received, previous = (other(images)[0].float() for other in self._compared)
        contrastive = contrastive_loss(features.float(), received, previous, tau=self.method.temperature)
        return loss + self.method.mu * contrastive

    def report(self) -> Report:
        """Keeps the local model for the next round; nothing leaves but the weights."""
        self.site.state.save_turn(
            STATE, self.task.round_num, {"seed": self.task.seed, "weights": get_weights(self.model)}
        )
        return {}


@dataclass(kw_only=True, eq=False)
class Moon(LabelSetFedAvg):
    """Adds the model-contrastive loss to that of FedAvg.

    Args:
        mu: weight of the contrastive term, >= 0.
        temperature: tau, > 0.
    """

    ROUND = MoonRound
    mu: Weight = 1.0
    temperature: Positive = 0.5


def contrastive_loss(features: Tensor, received: Tensor, previous: Tensor, *, tau: float) -> Tensor:
    """Model-contrastive loss, Li, He, Song, CVPR 2021: -log(e^(a/tau) / (e^(a/tau) + e^(b/tau))), mean over samples,
    where a and b are the cosine similarities of the features to those of the received and of the previous model.

    Args:
        features: (B, F) of the local model.
        received: (B, F) of the received global model.
        previous: (B, F) of the local model of the round before.
        tau: temperature, > 0.
    """
    difference = F.cosine_similarity(features, previous) - F.cosine_similarity(features, received)
    return F.softplus(difference / tau).mean()  # log(1 + e^((b - a)/tau)), which does not overflow
