"""Local training and inference at a site, the same for every method."""

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.learning.inference import Stopped, mixed_precision
from fedmend.learning.local_norm import AVERAGED, LOCAL
from fedmend.learning.patient_steps import PatientSteps
from fedmend.method import Round, RoundTask, Site

MOMENTS = "adam"
COUPLED, SUPERVISED, DECOUPLED = "coupled", "supervised", "decoupled"
DECAYS = (COUPLED, SUPERVISED, DECOUPLED)


class EagerAdam(torch.optim.Adam):
    """PyTorch's Adam, or AdamW, without the decorators that import PyTorch's compiler at the first use.

    That takes 2 seconds in each new process, and nothing is compiled here.
    """

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
    zero_grad = inspect.unwrap(torch.optim.Adam.zero_grad)


@dataclass(frozen=True, kw_only=True)
class LocalTrainer:
    """Adam with a learning rate that is constant within a round.

    Coupled L2 is part of the gradient. For a row of the classifier whose loss has no gradient, such as that of a class
    which a site does not annotate, it is all of the gradient, and Adam moves each weight a full learning rate towards 0
    in every step, however small the coefficient is. Without L2 such a row still moves by Adam's moments where it had a
    gradient before: in earlier steps of the round, or with ``keep_moments`` in earlier rounds.

    Attributes:
        learning_rate: Adam's learning rate in round 0, > 0.
        learning_rate_decay: what each round multiplies it by, above 0 to 1; 1: it is constant.
        weight_decay: L2 coefficient, >= 0.
        decay: ``coupled``: L2 in the gradient; ``supervised``: the same without the rows of the classifier of which the
            loss has no gradient in that step; ``decoupled``: as in AdamW (Loshchilov and Hutter, ICLR 2019).
        local_epochs: epochs per round, >= 1.
        second_momentum: Adam's beta_2, in [0, 1).
        keep_moments: Adam goes on with the moments of the round before; otherwise it is fresh in every round. A round
            whose model does not go on (:attr:`fedmend.method.Round.goes_on`) starts afresh and leaves none. Those of
            an earlier run of the same name, from another seed, do not count, nor do those of rounds without noise in
            a round with it: its update would tell of their gradients.
        norm: ``averaged``, or ``local``: normalisation layers stay at the site, see
            :mod:`fedmend.learning.local_norm`.
    """

    learning_rate: float
    learning_rate_decay: float = 1.0
    weight_decay: float = 5e-4
    decay: str = COUPLED
    local_epochs: int = 1
    second_momentum: float = 0.999
    keep_moments: bool = False
    norm: str = AVERAGED

    def __post_init__(self) -> None:
        if not self.learning_rate > 0 or not self.weight_decay >= 0 or self.local_epochs < 1:
            raise FedMendError(
                "job variables: expected learning_rate > 0, weight_decay >= 0 and local_epochs >= 1, got"
                f" {self.learning_rate}, {self.weight_decay}, {self.local_epochs}"
            )
        if not 0 < (factor := self.learning_rate_decay) <= 1:
            raise FedMendError(f"job variable learning_rate_decay: expected above 0 to 1, got {factor}")
        if self.decay not in DECAYS:
            raise FedMendError(f"job variable decay: expected one of {list(DECAYS)}, got {self.decay!r:.40}")
        if not 0 <= self.second_momentum < 1:
            raise FedMendError(f"job variable second_momentum: expected 0 to below 1, got {self.second_momentum}")
        if self.norm not in (AVERAGED, LOCAL):
            raise FedMendError(f"job variable norm: expected {AVERAGED} or {LOCAL}, got {self.norm!r:.40}")

    def train(self, work: Round, private: PatientSteps | None = None) -> float:
        """Trains ``work.model`` in place for one round.

        Args:
            work: gives model, batches and loss.
            private: batches and gradients of a site with differential privacy.

        Returns:
            Mean loss per batch of the last epoch; with ``private`` it may be no finite number.

        Raises:
            Stopped: the job was aborted.
            FedMendError: the loss is not finite, and not ``private``.
        """
        model, task, site = work.model, work.task, work.site
        model.train()
        keep = self.keep_moments and work.goes_on
        optimizer = self._optimizer(model, task, site, keep=keep, private=private is not None)
        for epoch in range(self.local_epochs):
            total, steps = torch.zeros((), device=site.device), 0
            batches = work.batches(epoch)  # also draws the views of the epoch
            index: Any  # image numbers; with noise those of each patient
            for index in batches if private is None else private.batches():
                if site.stop():
                    raise Stopped
                optimizer.zero_grad(set_to_none=True)
                if private is None:
                    with mixed_precision(site):
                        loss = work.loss(index)
                    loss.backward()
                else:
                    loss = _private_gradient(work, index, private)
                if self.decay == SUPERVISED:
                    _decay_supervised_rows(model, self.weight_decay)
                optimizer.step()
                work.after_step()
                total += loss.detach()
                steps += 1
            mean = (total / max(steps, 1)).item()  # read once an epoch: reading every step would stall a GPU
            # With noise the gradients are finite whatever the loss is; a sentence would tell that there is a patient,
            # or a number of them, with whom it overflows.
            if private is None and not math.isfinite(mean):
                raise FedMendError(
                    f"{site.name}: round {task.round_num}, local training: expected a finite loss, got {mean};"
                    " lower learning_rate"
                )
        if keep:
            moments = {"seed": task.seed, "private": private is not None, "state": optimizer.state_dict()["state"]}
            site.state.save_turn(MOMENTS, task.round_num, moments)
        return mean

    def _optimizer(
        self, model: nn.Module, task: RoundTask, site: Site, *, keep: bool, private: bool
    ) -> torch.optim.Optimizer:
        ours = {*model.get_submodule("classifier").parameters()} if self.decay == SUPERVISED else set()
        groups: list[dict[str, Any]] = [{"params": [p for p in model.parameters() if p not in ours]}]
        if ours:
            groups.append({"params": [p for p in model.parameters() if p in ours], "weight_decay": 0.0})
        optimizer = EagerAdam(
            groups,
            lr=self.learning_rate * self.learning_rate_decay**task.round_num,
            betas=(0.9, self.second_momentum),
            weight_decay=self.weight_decay,
            decoupled_weight_decay=self.decay == DECOUPLED,
            fused=True,
        )
        before = site.state.last_turn(MOMENTS, before=task.round_num) if keep else None
        if before is None or (private and not before[1].get("private")):
            return optimizer
        if before[0] == task.round_num - 1 and before[1].get("seed") == task.seed:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": before[1]["state"]})
        return optimizer


@torch.no_grad()
def _decay_supervised_rows(model: nn.Module, weight_decay: float) -> None:
    """Adds coupled L2 to the gradient of each row of the classifier that has one."""
    for parameter in model.get_submodule("classifier").parameters():
        if (gradient := parameter.grad) is not None:
            rows = gradient.flatten(1).any(1) if parameter.dim() > 1 else gradient.ne(0)
            rows = rows.view(-1, *[1] * (parameter.dim() - 1))
            gradient.add_(torch.where(rows, parameter, 0), alpha=weight_decay)


def _private_gradient(work: Round, batch: Sequence[Tensor], private: PatientSteps) -> Tensor:
    """Mean loss of the patients of a step; 0 where there are none."""
    losses = torch.zeros(2, device=work.site.device)  # sum, number
    with mixed_precision(work.site):
        for loss in private.losses(work, batch):
            if work.site.stop():
                raise Stopped
            losses += torch.stack([loss.float(), torch.ones_like(loss.float())])
    return losses[0] / losses[1].clamp(min=1)
