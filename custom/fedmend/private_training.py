"""Training with differential privacy at a site, and what then stays there; the promise is in :mod:`fedmend.privacy`."""

import logging
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.data.manifest import LabelTable
from fedmend.data.site import Split
from fedmend.errors import FedMendError
from fedmend.networks import NETWORKS, build_network
from fedmend.privacy import Account, Privacy

if TYPE_CHECKING:
    from fedmend.method import LocalMethod, Round
    from fedmend.results import SiteResult

LOG = logging.getLogger("fedmend.executor")


class PatientSteps:
    """Steps of DP-SGD whose unit is a patient.

    In each step, each patient is drawn with the same chance, by itself (Poisson sampling, which the accountant takes
    for granted). The gradient of the mean loss of a patient's images is clipped to the norm ``clip``; noise of standard
    deviation ``noise_multiplier * clip`` goes on the sum; the sum is divided by the expected number of patients, which
    is not the number drawn. One backward pass per patient takes longer than hooks that give all gradients at once, but
    works with every layer that treats images apart, and holds one gradient in memory instead of a batch of them.

    Draws and noise come from the operating system's randomness, never from the run's seed, which the server knows.

    Args:
        privacy: the site's policy.
        patients: image numbers of each patient, see :func:`patients_of`.
        batch_size: expected number of patients per step; also the most images of a patient in one.
        generator: for tests; None: a new one that nobody can guess.
    """

    def __init__(
        self,
        privacy: Privacy,
        patients: Sequence[Tensor],
        batch_size: int,
        generator: np.random.Generator | None = None,
    ):
        self._privacy, self._patients, self._most = privacy, patients, batch_size
        self._random = generator or np.random.default_rng(secrets.randbits(256))
        self.rate = min(1.0, batch_size / len(patients))
        self.per_epoch = math.ceil(len(patients) / batch_size)

    def batches(self) -> Iterator[list[Tensor]]:
        """The steps of one epoch: the image numbers, (n,) int64, of each patient drawn; a step may be without any."""
        for _ in range(self.per_epoch):
            drawn = np.flatnonzero(self._random.random(len(self._patients)) < self.rate)
            yield [self._some(self._patients[i]) for i in drawn]

    def _some(self, images: Tensor) -> Tensor:
        if len(images) <= self._most:
            return images
        return images[torch.from_numpy(self._random.choice(len(images), self._most, replace=False))]

    def losses(self, work: "Round", batch: Sequence[Tensor]) -> Iterator[Tensor]:
        """The loss of each patient; when all are used up, the parameters hold the gradient of the step.

        Args:
            work: the round.
            batch: image numbers, (n,) int64, of each patient.

        Yields:
            scalars.

        A gradient that is not finite counts as none: to stop because of it would tell that such a patient exists.
        """
        parameters = [p for p in work.model.parameters() if p.requires_grad]
        total = [torch.zeros_like(p) for p in parameters]
        for images in batch:
            loss = work.loss(images)
            gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)
            norm = float(torch.nn.utils.get_total_norm(gradient))
            if math.isfinite(norm):
                torch._foreach_add_(total, gradient, alpha=min(1.0, self._privacy.clip / max(norm, 1e-12)))
                yield loss.detach()
        deviation = self._privacy.noise_multiplier * self._privacy.clip
        for parameter, part in zip(parameters, total, strict=True):
            noise = self._random.standard_normal(tuple(part.shape), dtype=np.float32) * np.float32(deviation)
            part.add_(torch.from_numpy(noise).to(part))
            parameter.grad = part.div_(self.rate * len(self._patients))


def patients_of(table: LabelTable) -> list[Tensor]:
    """Image numbers, (n,) int64, of each patient of a table; an image without a patient is one by itself."""
    found: dict[object, list[int]] = {}
    for i, patient in enumerate(table.patients or [""] * len(table.images)):
        found.setdefault(patient or i, []).append(i)
    return [torch.tensor(images) for images in found.values()]


class PrivateSite:
    """The steps of a site that keeps differential privacy, and the account of them.

    Args:
        site: site name.
        privacy: its policy.
        state_dir: where its account is.
        train: training split.
        batch_size: of the job.

    Raises:
        FedMendError: as :class:`fedmend.privacy.Account`.
    """

    def __init__(self, site: str, privacy: Privacy, state_dir: Path, train: Split, batch_size: int):
        patients = patients_of(train.table)
        self.steps = PatientSteps(privacy, patients, batch_size)
        self._site, self._account = site, Account(state_dir, site, privacy, len(patients))
        unit = "patient" if any(train.table.patients) else "image"
        self._words = f"(delta {self._account.delta:.3g}, the unit is one {unit}, all jobs of this site so far)"

    def announce(self, epochs: int, rounds: int) -> dict[str, float]:
        """Says in the site's log what a job will cost; refuses it where not even a round is left.

        Args:
            epochs: per round.
            rounds: of the job.

        Returns:
            What the server learns.
        """
        account, steps = self._account, self.steps.per_epoch * epochs
        account.check(account.epsilon(self.steps.rate, steps))
        now, then = account.epsilon(), account.epsilon(self.steps.rate, steps * rounds)
        LOG.info("%s: privacy: epsilon %.3g, after this job %.3g %s", self._site, now, then, self._words)
        return account.told(now)

    def spend(self, epochs: int) -> dict[str, float]:
        """Writes the steps of a round into the account; to be called before them.

        Args:
            epochs: of the round.

        Returns:
            What the server learns.
        """
        epsilon = self._account.spend(self.steps.rate, self.steps.per_epoch * epochs)
        LOG.info("%s: privacy: epsilon %.3g with this round %s", self._site, epsilon, self._words)
        return self._account.told(epsilon)


def check_bearable(site: str, method: "LocalMethod", network: str, *, decay: str = "coupled") -> None:
    """Refuses a job under which the promise would not hold.

    Args:
        site: site name for messages.
        method: client half of the job's method.
        network: name of its network.
        decay: how its weight decay acts, see :class:`fedmend.training.LocalTrainer`.

    Raises:
        FedMendError: a method whose loss or reports use other patients, a network with BatchNorm, or a decay that asks
            which rows have a gradient: with noise, all of them have one.
    """
    where = f"{site}: local/fedmend.json, field privacy"
    if not method.patients_apart:
        raise FedMendError(
            f"{where}: expected a job of federated averaging in which patients count one by one (variant"
            f" fedavg_private), got {type(method).__name__}"
        )
    if decay == "supervised":
        raise FedMendError(
            f"{where}: expected a job with decay coupled or decoupled, got supervised, which noise turns into coupled"
        )
    with torch.device("meta"):
        model = build_network(network, 2)
    batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    if batch_norm or any(name.rpartition(".")[2].startswith("running_") for name, _ in model.named_buffers()):
        example = f"{network}_gn" if network in NETWORKS else "resnet18_gn"
        raise FedMendError(
            f"{where}: expected a network with GroupNorm, e.g. {example}, got {network}, whose BatchNorm mixes patients"
        )


def withhold(result: "SiteResult") -> "SiteResult":
    """What of an answer may leave under the promise: the noisy weights, sizes that count as known, and the promise.

    Numbers computed from patients stay: mean loss, evaluation counts, repairs, report. In the census, positives per
    class become 1 for each class that has a column.
    """
    census = dict(result.census)
    if census:
        census["positives"] = census["annotated"].astype(np.int64)
        census["sizes"] = {"train": census["sizes"]["train"]}
    return replace(result, loss=0.0, report={}, counts={}, repairs={}, census=census)


def check_withheld(result: "SiteResult", *, weights: bool) -> None:
    """Refuses an answer that has more in it than :func:`withhold` leaves.

    Args:
        result: what is about to leave.
        weights: whether weights go with it.

    Raises:
        FedMendError: names the first part.
    """
    parts = {"loss": result.loss, "report": result.report, "counts": result.counts, "repairs": result.repairs}
    parts["weights without noise"] = weights and not result.privacy
    if result.census:
        parts["positives"] = (result.census["positives"] != result.census["annotated"]).any()
        parts["sizes"] = set(result.census["sizes"]) - {"train"}
    for name, value in parts.items():
        if value:
            raise FedMendError(f"{result.site}: privacy: expected {name} to stay at this site, got some")
