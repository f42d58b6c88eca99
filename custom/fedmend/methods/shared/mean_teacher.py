"""A mean teacher: the moving average of a site's own networks over all rounds.

Tarvainen and Valpola, "Mean Teachers are Better Role Models", NeurIPS 2017. The teacher stays at its site.
"""

import copy

import torch
from torch import nn

from fedmend.learning.weights import get_weights, set_weights
from fedmend.method import RoundTask, Site


class MeanTeacher:
    """The teacher of one site in one round.

    It goes on where the site's last round before this one left it. A site's first teacher is the received model; so is
    that of a run with another seed, whose teacher an earlier run of the same name may have left.

    Args:
        name: under which it is kept at the site.
        model: the received model.
        task: the round.
        site: whose teacher it is.
        decay: largest alpha, in [0, 1).
        statistics: average BatchNorm's statistics too, and use them (eval mode); otherwise the teacher takes those of
            its own batches (train mode).

    Attributes:
        network: the teacher.
    """

    def __init__(self, name: str, model: nn.Module, task: RoundTask, site: Site, *, decay: float, statistics: bool):
        self.network = copy.deepcopy(model).requires_grad_(False).train(not statistics)
        self._name, self._decay, self._statistics, self._steps = name, decay, statistics, 0
        before = site.state.last_turn(name, before=task.round_num)
        if before is not None and before[1]["seed"] == task.seed:
            set_weights(self.network, before[1]["weights"])
            self._steps = before[1]["steps"]

    @torch.no_grad()
    def follow(self, student: nn.Module) -> None:
        """After a step of the student: alpha times the teacher plus 1 - alpha times the student.

        alpha = min(1 - 1/(n + 1), decay) after n steps in all rounds, so that the teacher is the plain mean of all
        networks so far until ``decay`` bounds its memory. torch's ``AveragedModel`` has one alpha for all steps.
        """
        alpha = min(1 - 1 / (self._steps + 1), self._decay)
        own, other = list(self.network.parameters()), list(student.parameters())
        if self._statistics:
            own += [b for b in self.network.buffers() if b.is_floating_point()]
            other += [b for b in student.buffers() if b.is_floating_point()]
        torch._foreach_lerp_(own, other, 1 - alpha)
        self._steps += 1

    def save(self, task: RoundTask, site: Site) -> None:
        """Keeps it for the site's next round."""
        value = {"seed": task.seed, "steps": self._steps, "weights": get_weights(self.network)}
        site.state.save_turn(self._name, task.round_num, value)
