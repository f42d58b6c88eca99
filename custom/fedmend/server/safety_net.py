"""What a trained model must be like before it may enter the average, whatever the method.

Nothing here believes the site that sends the model. It is compared with what no training leaves
(:data:`fedmend.learning.weights.LOWEST`), with what the network makes of images that no site knows, and with the
updates of the other sites: an update is a trained model minus the one that was sent. One site among three or more
cannot move the median of the round; below three sites there is no majority, and the model that was sent is the measure.
BatchNorm's statistics are measured apart from the parameters, as they have the scale of the data. A channel whose
variance vanishes at one site alone multiplies what passes it for all, if the site has most of the average. An honest
site may have such a channel, which nothing in its images excites: after a hundred steps its running variance is all but
0. So no site is refused for it, but no variance enters the average below a share of what most sites have.

The models of a round wait on the server's disk until all have come, so that it holds one of them at a time.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedmend.averaging import MAJORITY
from fedmend.errors import FedMendError
from fedmend.fields import Report
from fedmend.server.probes import draw_probes

Model = Mapping[str, np.ndarray]
VARIANCE = "running_var"
STATISTICS = ("running_mean", VARIANCE)
EDGE = 64  # pixels, where a job says no size
VANISHED = 1e-4  # smallest ratio of a variance; on the phantoms of the jobs, narrow networks were above 0.05
LEAST_BIAS = 10.0  # that solved biases are measured by: of sites with one class each, honest ones were 0.04 to 17
EPSILON = 1e-5  # which BatchNorm adds to a variance


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


def head_outliers(reports: Mapping[str, Report], factor: float) -> dict[str, str]:
    """Sites whose solved classifiers are far larger than those of the others, where three or more have some.

    Args:
        reports: site → ``head_weights`` (C, F), ``head_biases`` and ``head_counts`` (C,).
        factor: largest ratio to the median; of an even number of sites, the lower one of the two in the middle.

    Returns:
        site → words of a sentence that say what was expected.
    """
    found: dict[str, str] = {}
    for part in ("head_weights", "head_biases"):
        sizes = {}
        for site, report in reports.items():
            if (known := report["head_counts"] > 0).any():
                rows = report[part][known].astype(np.float64).reshape(known.sum(), -1)
                sizes[site] = float(np.sqrt(np.square(rows).sum(1).mean()))
        ordered = sorted(sizes.values())
        median = ordered[(len(ordered) - 1) // 2] if len(sizes) >= MAJORITY else 0.0
        if part == "head_biases" and len(sizes) >= MAJORITY:  # of uncentred features: about 0 at some site by chance
            median = max(median, LEAST_BIAS)
        for site, size in sizes.items():
            if median and size > factor * median:
                limit = f"at most {factor:g} times the median of the sites (max_update_factor)"
                found.setdefault(site, f"report field {part}: expected {limit}, got {size / median:.3g} times")
    return found


def least_variances(variances: Mapping[str, Model], sent: Model) -> dict[str, np.ndarray]:
    """The smallest running variances that may enter an average: :data:`VANISHED` times what both the model that was
    sent and most sites have, with what BatchNorm adds to each.

    Args:
        variances: site → its running variances by name.
        sent: the model that all started from.

    Returns:
        name → as many numbers as there are channels; 0 for a channel that was dead before, or is at most sites.
    """
    sites = list(variances)
    middle = max((len(sites) - 1) // 2, min(len(sites) - 1, 1))  # the lower median; of two sites, the larger
    found = {}
    for name in next(iter(variances.values()), {}):
        usual = np.sort(np.stack([variances[site][name] for site in sites]), axis=0)[middle]
        found[name] = (VANISHED * (np.minimum(sent[name], usual) + EPSILON) - EPSILON).clip(min=0).astype(usual.dtype)
    return found


def suspect(peaks: Mapping[str, Mapping[str, float]], shares: Mapping[str, float], sent: Model) -> tuple[float, str]:
    """The site that has changed a tensor of the average most in comparison with the others; a hint, no proof.

    Args:
        peaks: site → name → largest change of a number.
        shares: of the sites in the average.
        sent: the model that all started from.

    Returns:
        How many times the median of the sites, and below three sites how many times the largest number that was sent;
        the name of the site, empty where nothing was changed.
    """
    found = (0.0, "")
    for name, own in sent.items():
        changes = {site: shares[site] * peaks[site][name] for site in shares}
        median = sorted(changes.values())[(len(changes) - 1) // 2] if len(changes) >= MAJORITY else 0.0
        scale = median or float(np.abs(own).max(initial=0))
        found = max([found, *((change / scale, site) for site, change in changes.items() if scale and change)])
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
        network: answers images that nobody knows; its weights are overwritten.
        folder: where models wait, emptied first and removed at the end.
        factor: see :func:`outliers`; 0: not compared.
        clip: see :func:`clipped`; 0: not clipped.
        shape: of the job's images, in pixels: rows and columns, before them the slices of a patch.
    """

    def __init__(
        self,
        sent: Model,
        network: nn.Module,
        folder: Path,
        *,
        factor: float,
        clip: float,
        shape: Sequence[int] = (EDGE, EDGE),
    ):
        self._sent, self._network, self._folder, self._factor, self._clip = sent, network, folder, factor, clip
        channels: Any = network.channels
        self._probes = draw_probes(channels, shape)
        self._peaks: dict[str, dict[str, float]] = {}
        self._variances: dict[str, Model] = {}
        self._least: dict[str, np.ndarray] = {}
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
        """Refuses a model that fits the network and has finite numbers, but gives an image scores that are not, see
        :mod:`fedmend.server.probes`.

        Raises:
            FedMendError: NaN or infinity in the scores.
        """
        self._network.load_state_dict({name: torch.tensor(value) for name, value in model.items()}, strict=False)
        self._network.eval()
        if not all(torch.isfinite(self._network(probe)[1]).all() for probe in self._probes):
            raise FedMendError(f"{where}: expected a model that gives finite scores, got NaN or infinity for an image")

    def put(self, site: str, model: Model) -> None:
        """Takes a model that passed its checks."""
        self._norms[site] = update_norms(model, self._sent)
        self._peaks[site] = {k: float(np.abs(model[k] - own).max(initial=0)) for k, own in self._sent.items()}
        self._variances[site] = {k: model[k] for k in self._sent if k.endswith(VARIANCE)}
        self._files[site] = self._folder / f"{len(self._files)}.npy"  # a site's name may be anything
        with open(self._files[site], "wb") as stream:
            for name in self._sent:
                np.save(stream, model[name], allow_pickle=False)

    def outliers(self) -> dict[str, str]:
        """See :func:`outliers`."""
        return outliers(self._norms, self._sent, self._factor) if self._factor else {}

    def raise_variances(self, sites: Iterable[str]) -> dict[str, int]:
        """Lets no model of these sites into the average with variances below :func:`least_variances`.

        Returns:
            site → how many of its channels are raised, of sites that have some.
        """
        own = {site: self._variances[site] for site in sites} if self._factor else {}
        self._least = least_variances(own, self._sent)
        count = {s: sum(int((v[k] < least).sum()) for k, least in self._least.items()) for s, v in own.items()}
        return {site: channels for site, channels in count.items() if channels}

    def suspect(self, shares: Mapping[str, float]) -> tuple[float, str]:
        """See :func:`suspect`."""
        return suspect(self._peaks, shares, self._sent)

    def moved(self, sites: Iterable[str]) -> bool:
        """Whether one of these sites sent another model than the one that it was sent."""
        return any(norm for site in sites for norm in self._norms[site].values())

    def take(self, site: str) -> Model:
        """The model of a site, as it may enter the average."""
        with open(self._files[site], "rb") as stream:
            model = {name: np.load(stream, allow_pickle=False) for name in self._sent}
        model = dict(clipped(model, self._sent, self._clip)) if self._clip else model
        return model | {name: np.maximum(model[name], least) for name, least in self._least.items()}
