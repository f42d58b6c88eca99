"""MOON: a local model that keeps close to the global one in its features.

Li, He, Song, "Model-Contrastive Federated Learning", CVPR 2021. The paper compares the output of a projection head; here it is the
features z that the networks return, as they have no such head. The first round of a site, and one after a round that it missed,
has no contrastive term.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.methods.base import Report, RoundTask, Site
from fedmend.methods.labelsets import LabelSetFedAvg
from fedmend.networks import get_weights, set_weights


class Moon(LabelSetFedAvg):
    """Adds the model-contrastive loss to that of FedAvg.

    Args:
        mu: weight of the contrastive term, >= 0.
        tau: temperature, > 0.
        others: arguments of :class:`LabelSetFedAvg`.
    """

    def __init__(self, *, mu: float = 1.0, tau: float = 0.5, **others):
        super().__init__(**others)
        if not (0 <= mu < math.inf and 0 < tau < math.inf):
            raise FedMendError(f"job variables moon_mu, moon_temperature: expected >= 0 and > 0, got {mu}, {tau}")
        self.mu, self.tau = mu, tau

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Also keeps the received model and the site's own of the round before."""
        super().prepare(model, task, site)
        site.memory["compared"] = None
        saved = site.state.load(_file(task.round_num - 1))
        if saved is not None and saved["round"] == task.round_num - 1:
            received = copy.deepcopy(model).eval().requires_grad_(False)
            previous = copy.deepcopy(received)
            set_weights(previous, saved["weights"])
            site.memory["compared"] = received, previous

    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Supervised plus mu times contrastive loss of the strong views."""
        images = self.strong_views(index, site)
        features, logits = model(images)
        loss = self.supervised(logits.float(), index, site)
        if site.memory["compared"] is None:
            return loss
        with torch.no_grad():
            received, previous = (other(images)[0].float() for other in site.memory["compared"])
        return loss + self.mu * contrastive_loss(features.float(), received, previous, tau=self.tau)

    def report(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Keeps the local model for the next round; nothing leaves but the weights."""
        # Two files by turns: a round that is repeated after a crash finds the model of the round before it.
        site.state.save(_file(task.round_num), {"round": task.round_num, "weights": get_weights(model)})
        return {}


def contrastive_loss(features: Tensor, received: Tensor, previous: Tensor, *, tau: float) -> Tensor:
    """Model-contrastive loss, Li, He, Song, CVPR 2021: -log(e^(a/tau) / (e^(a/tau) + e^(b/tau))), mean over samples, where a and b
    are the cosine similarities of the features to those of the received and of the previous model.

    Args:
        features: (B, F) of the local model.
        received: (B, F) of the received global model.
        previous: (B, F) of the local model of the round before.
        tau: temperature, > 0.
    """
    difference = F.cosine_similarity(features, previous) - F.cosine_similarity(features, received)
    return F.softplus(difference / tau).mean()  # log(1 + e^((b - a)/tau)), which does not overflow


def _file(round_num: int) -> str:
    return f"moon-{round_num % 2}"
