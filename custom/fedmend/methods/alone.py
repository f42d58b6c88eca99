"""No federation: each site trains and evaluates a model of its own, so that the metrics say what the hospitals get
without each other.

All begin with the federation's initial weights and train as long as in the other rows of a table, on what their own
people annotated: classes that a site does not annotate are left out of its loss. The received model goes back as it
came. What is pooled over sites mixes the scores of several models; the metrics of each site are of its own model on its
own samples.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from fedmend.fields import Report
from fedmend.learning.losses import soft_dice_loss
from fedmend.method import LocalMethod, Round, RoundTask, Site
from fedmend.methods.baselines import (
    FedAvgPL,
    SingleLabelFedAvg,
    SingleLabelFedAvgRound,
    ViewsRound,
    keep_model,
    own_model,
)
from fedmend.methods.labelsets import LabelSetFedAvg, LabelSetFedAvgRound, positive_weights
from fedmend.methods.shared.settings import Settings, one_of
from fedmend.methods.shared.slices import SliceMethod, SliceRound

OWN_MODEL = "own_model"


class _OwnRound(Round):
    """Trains the site's own model; the received one goes back as it came."""

    def __init__(self, method: LocalMethod, model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, own_model(OWN_MODEL, model, task, site), task, site)

    def report(self) -> Report:
        """Nothing; keeps the site's model."""
        keep_model(OWN_MODEL, self.model, self.task, self.site)
        return {}


class _OwnModel(Settings, LocalMethod):
    """A method whose site counts its own model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.patients_apart = False  # the accountant follows the model that is sent

    def evaluated(self, model: nn.Module, task: RoundTask, site: Site) -> nn.Module:
        return own_model(OWN_MODEL, model, task, site)


class AloneRound(_OwnRound, ViewsRound):
    """The classes that the site annotates, with its own weights of positives."""


class Alone(_OwnModel, FedAvgPL):
    """Each site trains alone on multi-label data, on the classes that it annotates."""

    ROUND = AloneRound


class SingleLabelAloneRound(_OwnRound, SingleLabelFedAvgRound):
    """Cross-entropy, adjusted by the site's own classes where the method says so."""


class SingleLabelAlone(_OwnModel, SingleLabelFedAvg):
    """Each site trains alone on single-label data."""

    ROUND = SingleLabelAloneRound


class LabelSetAloneRound(_OwnRound, LabelSetFedAvgRound):
    """The labels of the site, with weights of positives that its own samples give, none above the federation's largest:
    that keeps the cap of the job, which a site does not know."""

    def __init__(self, method: LocalMethod, model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        if self.pos_weight is not None:
            positives, largest = {site.name: (site.labels() == 1).sum(0)}, max(1.0, float(self.pos_weight.max()))
            weights = positive_weights(positives, {site.name: len(site.data.train)}, cap=largest)
            self.pos_weight = torch.from_numpy(weights).to(site.device)


@dataclass(kw_only=True, eq=False)
class LabelSetAlone(_OwnModel, LabelSetFedAvg):
    """Each site trains alone on the classes that it identifies, of multi-label or single-label data.

    Args:
        hidden: as of :class:`fedmend.methods.labelsets.LabelSetFedAvg`.
    """

    ROUND = LabelSetAloneRound
    hidden: Annotated[str, one_of("negative", "ignored")] = "ignored"


class MaskRound(SliceRound):
    """Dice loss on the annotation in force."""

    def mask_loss(self, logits: Tensor, marks: Tensor, index: Tensor) -> Tensor:
        return soft_dice_loss(logits.softmax(1)[:, 1], marks)


class MaskAloneRound(_OwnRound, MaskRound):
    """Trains the site's own model on its masks."""


class MaskAlone(_OwnModel, SliceMethod):
    """Each site trains alone on its masks."""

    ROUND = MaskAloneRound
