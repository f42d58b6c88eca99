"""Training at one hospital: epochs on its own labels, of which its validation split chooses one, or solved heads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from fedmend.methods.closed_form import ClosedForm
from fedmend.methods.condist import ConDist
from fedmend.methods.shared.slices import SliceMethod
from fedmend.worth.home import Home

HEAD, ALL = "head", "all"
PATIENCE = 5  # epochs without a better validation metric
OF_RUN = ("learning_rate", "learning_rate_decay", "weight_decay", "decay", "second_momentum")


class _Masks(SliceMethod):
    """Dice loss on the masks in force."""

    ROUND: ClassVar[type[Round]] = MaskRound


# Kind of labels → method, and the settings of a run that say whether it balances classes.
METHODS: Mapping[str, tuple[Callable[..., LocalMethod], tuple[str, ...]]] = {
    MULTILABEL: (FedAvgPL, ("weighted",)),
    SINGLELABEL: (SingleLabelFedAvg, ("la",)),
    SEGMENTATION: (_Masks, ()),
}
# Of several structures a site may mark some: a model that knows the others is held to them, one that begins has nothing
# to be held to.
KNOWN, NEW = ConDist(first_weight=1.0), ConDist(first_weight=0.0, last_weight=0.0)


@dataclass(frozen=True)
class Plan:
    """How a hospital trains.

    Attributes:
        trainer: for one epoch; its learning rate decays with the rounds of the run.
        method: its loss.
        epochs: at most.
        per_round: epochs of a round of the run, > 0.
        seed: of shuffling and augmentation.
    """

    trainer: LocalTrainer
    method: LocalMethod
    epochs: int
    per_round: float
    seed: int

    def trainer_of(self, epoch: int) -> LocalTrainer:
        """The trainer of an epoch, from 0."""
        rate = self.trainer.learning_rate * self.trainer.learning_rate_decay ** int(epoch / self.per_round)
        return replace(self.trainer, learning_rate=rate, learning_rate_decay=1.0)


@dataclass(frozen=True)
class Trained:
    """A model that a hospital has trained.

    Attributes:
        model: of the chosen epoch.
        epochs: that were trained; 0: its heads were solved.
        chosen: the epoch that the validation split chose; 0: the model as it began.
        metric: name of the validation metric.
        values: of it, from the model as it began to that after the last epoch.
    """

    model: nn.Module
    epochs: int
    chosen: int
    metric: str
    values: tuple[float, ...]


def plan_of(settings: Mapping[str, Any], name: str, home: Home, *, epochs: int = 0, rate: float = 1.0) -> Plan:
    """A plan with the settings of a run.

    Args:
        settings: of the run, as a package keeps them.
        name: of the package, for messages.
        home: the hospital.
        epochs: at most; 0: as many as a site had in the run, or as many samples where rounds count optimiser steps.
        rate: what the run's learning rate is multiplied by.

    Raises:
        FedMendError: the package does not say how its run trained.
    """
    try:
        given = {key: settings[key] for key in OF_RUN if key in settings}
        trainer = LocalTrainer(**{**given, "learning_rate": settings["learning_rate"] * rate}, keep_moments=True)
        make, own = METHODS[home.kind.name]
        method = make(**{key: settings[key] for key in own if key in settings})
        per_round = settings.get("local_epochs", 1)
        if "local_iterations" in settings:
            per_round *= settings["local_iterations"] * home.site.batch_size / len(home.site.data.train)
        most = epochs or max(round(settings["num_rounds"] * per_round), 1)
        return Plan(trainer, method, most, per_round, int(settings["seed"]))
    except (KeyError, TypeError, ValueError):
        raise FedMendError(
            f"package {name}, provenance.settings: expected learning_rate, num_rounds and seed of its run, got others"
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
    site, method = home.site, plan.method
    if home.kind.name == SEGMENTATION and len(site.data.classes) > 1:
        method = NEW if from_start else KNOWN
    values = [_measured(home, model)]
    best, chosen = _copied(model), 0
    for epoch in range(plan.epochs):
        task = RoundTask("personalise", epoch, plan.epochs, seed=plan.seed)
        plan.trainer_of(epoch).train(method.start(model, task, site))
        values.append(_measured(home, model))
        if values[-1] > max(values[int(from_start) : -1], default=float("-inf")):
            best, chosen = _copied(model), epoch + 1
        if not from_start and epoch + 1 - chosen >= PATIENCE:
            break
    model.load_state_dict(best)
    return Trained(model.eval(), len(values) - 1, chosen, home.kind.best_metric, tuple(values))


def solve_at(home: Home, model: nn.Module, settings: Mapping[str, Any]) -> Trained:
    """Gives a model the heads that a hospital's own labels alone give, in place.

    Args:
        home: the hospital; its validation and test splits are not looked at.
        model: of a run that solved heads and trained nothing, on the device of the site.
        settings: of that run, as a package keeps them.

    Raises:
        FedMendError: no class has two samples with and two without it.
    """
    own = {key: settings[key] for key in ("ridge", "la", "hidden") if key in settings}
    task = RoundTask("heads", 0, 1, seed=0, training=False)
    report = ClosedForm(**own).collect(model, task, home.site)
    heads = {"weight": report["head_weights"], "bias": report["head_biases"]}
    model.get_submodule("classifier").load_state_dict({name: torch.from_numpy(rows) for name, rows in heads.items()})
    return Trained(model.eval(), 0, 0, home.kind.best_metric, ())


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
