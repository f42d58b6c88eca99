"""What a trained model must be like before it may enter the average, whatever the method.

Nothing here believes the site that sends the model. It is compared with what no training leaves (:data:`LOWEST`), with
what the network makes of noise, and with the updates of the other sites: an update is a trained model minus the one
that was sent. One site among three or more cannot move the median of the round; below three sites there is no majority,
and the model that was sent is the measure. BatchNorm's statistics are measured apart from the parameters, as they have
the scale of the data.

The models of a round wait on the server's disk until all have come, so that it holds one of them at a time.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmend.averaging import MAJORITY
from fedmend.errors import FedMendError

Model = Mapping[str, np.ndarray]
STATISTICS = ("running_mean", "running_var")
NOISE_EDGE = 64  # pixels


def update_norms(model: Model, sent: Model) -> dict[str, float]:
    """L2 norms of the update from the model that was ``sent`` to a trained one, in float64: of all parameters, and of
    all BatchNorm statistics."""
    squares = {"parameters": 0.0, "statistics": 0.0}
    for name, own in sent.items():
        part = "statistics" if name.endswith(STATISTICS) else "parameters"
        difference = model[name].ravel().astype(np.float64) - own.ravel()
        squares[part] += float(difference @ difference)
    return {part: float(np.sqrt(square)) for part, square in squares.items()}


def outliers(norms: Mapping[str, Mapping[str, float]], sent: Model, factor: float) -> dict[str, str]:
    """Sites whose update is far larger than those of the others.

    Args:
        norms: site → its :func:`update_norms`.
        sent: the model that all started from.
        factor: largest ratio to the median; of an even number of sites, the lower one of the two in the middle.

    Returns:
        site → words of a sentence that say what was expected.
    """
    own = update_norms(sent, {name: np.zeros_like(value) for name, value in sent.items()})
    found: dict[str, str] = {}
    for part in own:
        ordered = sorted(norm[part] for norm in norms.values())
        median = ordered[(len(ordered) - 1) // 2] if len(ordered) >= MAJORITY else 0.0
        scale, measure = (median, "the median of the round") if median else (own[part], "the norm of the global model")
        for site, norm in norms.items():
            if scale and norm[part] > factor * scale:
                got = f"{norm[part] / scale:.3g} times"
                limit = f"at most {factor:g} times {measure} (max_update_factor)"
                found.setdefault(site, f"update of the {part}: expected {limit}, got {got}")
    return found


def clipped(model: Model, sent: Model, largest: float) -> Model:
    """A trained model with its update of the model that was ``sent`` scaled down to an L2 norm of at most ``largest``
    > 0 over all parameters; BatchNorm's statistics follow by the same share. A smaller update is left as it is, to the
    last digit."""
    norm = update_norms(model, sent)["parameters"]
    if norm <= largest:
        return model
    share = largest / norm
    return {name: (own + share * (model[name] - own)).astype(own.dtype) for name, own in sent.items()}


class SafetyNet:
    """The models of one round.

    Args:
        sent: the model that all sites were sent.
        network: answers noise; its weights are overwritten.
        folder: where models wait, emptied first and removed at the end.
        factor: see :func:`outliers`; 0: not compared.
        clip: see :func:`clipped`; 0: not clipped.
    """

    def __init__(self, sent: Model, network: nn.Module, folder: Path, *, factor: float, clip: float):
        self._sent, self._network, self._folder, self._factor, self._clip = sent, network, folder, factor, clip
        generator = torch.Generator().manual_seed(0)
        channels: Any = network.channels
        self._noise = torch.randn((2, channels, NOISE_EDGE, NOISE_EDGE), generator=generator)
        self._norms: dict[str, dict[str, float]] = {}
        self._files: dict[str, Path] = {}

    def __enter__(self) -> "SafetyNet":
        shutil.rmtree(self._folder, ignore_errors=True)  # of a server that was killed
        self._folder.mkdir(parents=True)
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @torch.no_grad()
    def check(self, model: Model, where: str) -> None:
        """Refuses a model that fits the network and has finite numbers, but whose answer to noise is not finite.

        Raises:
            FedMendError: NaN or infinity in the scores.
        """
        self._network.load_state_dict({name: torch.tensor(value) for name, value in model.items()}, strict=False)
        if not torch.isfinite(self._network.eval()(self._noise)[1]).all():
            raise FedMendError(f"{where}: expected a model that gives finite scores, got NaN or infinity for noise")

    def put(self, site: str, model: Model) -> None:
        """Takes a model that passed its checks."""
        self._norms[site] = update_norms(model, self._sent)
        self._files[site] = self._folder / f"{len(self._files)}.npy"  # a site's name may be anything
        with open(self._files[site], "wb") as stream:
            for name in self._sent:
                np.save(stream, model[name], allow_pickle=False)

    def outliers(self) -> dict[str, str]:
        """See :func:`outliers`."""
        return outliers(self._norms, self._sent, self._factor) if self._factor else {}

    def moved(self, sites: Iterable[str]) -> bool:
        """Whether one of these sites sent another model than the one that it was sent."""
        return any(norm for site in sites for norm in self._norms[site].values())

    def take(self, site: str) -> Model:
        """The model of a site, as it may enter the average."""
        with open(self._files[site], "rb") as stream:
            model = {name: np.load(stream, allow_pickle=False) for name in self._sent}
        return clipped(model, self._sent, self._clip) if self._clip else model
