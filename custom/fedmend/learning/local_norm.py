"""Normalisation layers that stay at their site: FedBN (Li, Jiang, Zhang, Kamp, Dou, ICLR 2021), ``norm: local``.

Parameters and statistics of the normalisation layers are kept in the state of the site, which outlives processes; the
server gets back those that it sent and averages the rest. A site that has none yet begins with those that it receives.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedmend.basics.state import StateStore
from fedmend.errors import FedMendError
from fedmend.learning.networks import build_network
from fedmend.learning.weights import get_weights
from fedmend.method import LocalMethod, RoundTask, Site

AVERAGED, LOCAL = "averaged", "local"
NORM = "norm"  # name in the site's state
LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def norm_names(model: nn.Module) -> set[str]:
    """Names of the floating tensors of a model's normalisation layers."""
    layers = {name for name, module in model.named_modules() if isinstance(module, LAYERS)}
    return {name for name in get_weights(model) if name.rpartition(".")[0] in layers}


def check_norm(site: str, norm: str, method: LocalMethod, network: str, *, private: bool) -> None:
    """Refuses normalisation layers of a site's own where they make no sense.

    Args:
        site: site name for messages.
        norm: the job's setting.
        method: client half of the job's method.
        network: name of its network.
        private: the site keeps differential privacy.

    Raises:
        FedMendError: the site keeps differential privacy, the method trains a model of the site's own anyway, or the
            network has no such layer.
    """
    if norm != LOCAL:
        return
    where = f"{site}: job variable norm: expected {AVERAGED}"
    if private:
        raise FedMendError(f"{where} at a site with differential privacy, got {norm}")
    if type(method).evaluated is not LocalMethod.evaluated:
        raise FedMendError(f"{where} for a method whose sites have models of their own, got {norm}")
    with torch.device("meta"):
        model = build_network(network, 2)
    if not any(isinstance(module, LAYERS) for module in model.modules()):
        raise FedMendError(f"{where} for a network without normalisation layers ({network}), got {norm}")


def put_norm(norm: str, model: nn.Module, task: RoundTask, site: Site) -> None:
    """Puts the layers that a site kept before a round into the received model, where the job's ``norm`` says so."""
    if norm != LOCAL:
        return
    before = site.state.last_turn(NORM, before=task.round_num)
    if before is not None and before[1]["seed"] == task.seed:
        model.load_state_dict(before[1]["weights"], strict=False)


def keep_norm(
    norm: str, model: nn.Module, received: Mapping[str, np.ndarray], task: RoundTask, site: Site
) -> dict[str, np.ndarray]:
    """Keeps the trained layers at the site, where the job says so.

    Args:
        norm: the job's setting.
        model: after the local training.
        received: name → array of the global model.
        task: of the round.
        site: whose state keeps them.

    Returns:
        What the site sends in their place: the received ones; nothing where all layers are averaged.
    """
    if norm != LOCAL:
        return {}
    names = norm_names(model)
    kept = {name: value for name, value in get_weights(model).items() if name in names}
    site.state.save_turn(NORM, task.round_num, {"seed": task.seed, "weights": kept})
    return {name: received[name] for name in names}


def kept_norm(folder: Path, rounds: int) -> Mapping[str, torch.Tensor] | None:
    """The layers that a site kept after so many ``rounds`` of a run.

    Args:
        folder: of the run's state at the site.
        rounds: that the model has seen.

    Returns:
        Name → tensor of any shape; None where it kept none after that round.
    """
    found = StateStore(folder).last_turn(NORM, before=rounds)
    return found[1]["weights"] if found is not None and found[0] == rounds - 1 else None
