"""Training at one hospital: epochs on its own labels, of which its validation split chooses one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from fedmend.errors import FedMendError
from fedmend.labels import MULTILABEL, SEGMENTATION, SINGLELABEL
from fedmend.learning.local_norm import LAYERS
from fedmend.learning.training import LocalTrainer
from fedmend.method import LocalMethod, Round, RoundTask
from fedmend.methods.alone import MaskRound
from fedmend.methods.baselines import FedAvgPL, SingleLabelFedAvg
from fedmend.methods.condist import ConDist
from fedmend.methods.shared.slices import SliceMethod
from fedmend.worth.home import Home

HEAD, ALL = "head", "all"
PATIENCE = 5  # epochs without a better validation metric
OF_RUN = ("learning_rate", "weight_decay", "decay", "second_momentum")


class _Masks(SliceMethod):
    """Dice loss on the masks in force."""

    ROUND: ClassVar[type[Round]] = MaskRound


METHODS: Mapping[str, LocalMethod] = {
    MULTILABEL: FedAvgPL(),
    SINGLELABEL: SingleLabelFedAvg(la=True),
    SEGMENTATION: _Masks(),
}
# Of several structures a site may mark some: a model that knows the others is held to them, one that begins has nothing
# to be held to.
KNOWN, NEW = ConDist(first_weight=1.0), ConDist(first_weight=0.0, last_weight=0.0)


@dataclass(frozen=True)
class Plan:
    """How a hospital trains.

    Attributes:
        trainer: for one epoch.
        epochs: at most.
        seed: of shuffling and augmentation.
    """

    trainer: LocalTrainer
    epochs: int
    seed: int


@dataclass(frozen=True)
class Trained:
    """A model that a hospital has trained.

    Attributes:
        model: of the chosen epoch.
        epochs: that were trained.
        chosen: the epoch that the validation split chose; 0: the model as it began.
        metric: name of the validation metric.
        values: of it, from the model as it began to that after the last epoch.
    """

    model: nn.Module
    epochs: int
    chosen: int
    metric: str
    values: tuple[float, ...]


def plan_of(settings: Mapping[str, Any], name: str, *, epochs: int = 0, rate: float = 1.0) -> Plan:
    """A plan with the settings of a run.

    Args:
        settings: of the run, as a package keeps them.
        name: of the package, for messages.
        epochs: at most; 0: as many as a site had in the run.
        rate: what the run's learning rate is multiplied by.

    Raises:
        FedMendError: the package does not say how its run trained.
    """
    try:
        given = {key: settings[key] for key in OF_RUN if key in settings}
        trainer = LocalTrainer(**{**given, "learning_rate": settings["learning_rate"] * rate}, keep_moments=True)
        most = epochs or settings["num_rounds"] * settings["local_epochs"]
        return Plan(trainer, int(most), int(settings["seed"]))
    except (KeyError, TypeError, ValueError):
        raise FedMendError(
            f"package {name}, provenance.settings: expected learning_rate, num_rounds, local_epochs and seed of its"
            " run, got others"
        ) from None


def train_at(home: Home, model: nn.Module, plan: Plan, *, layers: str = ALL, from_start: bool) -> Trained:
    """Trains a model in place on a hospital's own labels.

    Args:
        home: the hospital; its test split is not looked at.
        model: on the device of the site.
        plan: how long and how.
        layers: ``all``, or ``head``: the classifier alone.
        from_start: the model is an untrained one, so that it is not chosen itself, and training does not stop early.

    Raises:
        FedMendError: no validation split that can choose, or a loss that is not finite.
    """
    _freeze(model, layers)
    site, method = home.site, METHODS[home.kind.name]
    if home.kind.name == SEGMENTATION and len(site.data.classes) > 1:
        method = NEW if from_start else KNOWN
    values = [_measured(home, model)]
    best, chosen = _copied(model), 0
    for epoch in range(plan.epochs):
        task = RoundTask("personalise", epoch, plan.epochs, seed=plan.seed)
        plan.trainer.train(method.start(model, task, site))
        values.append(_measured(home, model))
        if values[-1] > max(values[int(from_start) : -1], default=float("-inf")):
            best, chosen = _copied(model), epoch + 1
        if not from_start and epoch + 1 - chosen >= PATIENCE:
            break
    model.load_state_dict(best)
    return Trained(model.eval(), len(values) - 1, chosen, home.kind.best_metric, tuple(values))


def _measured(home: Home, model: nn.Module) -> float:
    val = home.site.data.evaluation.get("val")
    if val is None:
        raise FedMendError(
            f"{home.site.name}: site.json, field splits: expected val, which ends the training, got none"
        )
    metric = home.kind.best_metric
    value: float | None = home.kind.metrics(home.kind.evaluate(model, val, home.site))["macro"][metric]
    if value is None:
        raise FedMendError(
            f"{home.site.name}: {val.file}: expected samples that {metric} can be measured on, got others"
        )
    return value


def _copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _freeze(model: nn.Module, layers: str) -> None:
    """Of ``head`` the classifier alone learns, and normalisation goes by the statistics that the model came with."""
    if layers == ALL:
        return
    head = {id(parameter) for parameter in model.get_submodule("classifier").parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in head)

    def settle(module: nn.Module, inputs: object) -> None:
        for part in module.modules():
            if isinstance(part, LAYERS):
                part.eval()

    model.register_forward_pre_hook(settle)
