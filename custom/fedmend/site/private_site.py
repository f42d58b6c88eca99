"""A site that keeps differential privacy: its account, and what then stays there.

The promise is in :mod:`fedmend.site.privacy`, the noisy steps in :mod:`fedmend.learning.patient_steps`.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedmend.data.augment import views_of
from fedmend.data.site import Split
from fedmend.errors import FedMendError
from fedmend.fields import OF_PRIVACY, Field
from fedmend.learning.network_names import PROJECTED
from fedmend.learning.networks import NETWORKS, build_network
from fedmend.learning.patient_steps import PatientSteps, patients_of
from fedmend.learning.system_random import SystemRandom
from fedmend.messages import SiteResult
from fedmend.method import LocalMethod
from fedmend.site.accountants import Epsilon
from fedmend.site.privacy import Account, Privacy

WITHHELD = (
    "privacy: expected a task that this site could do, it failed and the job ends here; why is in the log of this site"
    " and stays there"
)
WHOLE = (1.0, 1)  # sampling rate and steps of a sum over all patients
LOG = logging.getLogger("fedmend.executor")


class PrivateSite:
    """The steps of a site that keeps differential privacy, and the account of them.

    Args:
        site: site name.
        privacy: its policy.
        state_dir: where its account is.
        train: training split.
        batch_size: of the job.
        sums: whether a round of the job is one sum over all patients, and no steps of a training.

    Raises:
        FedMendError: as :class:`fedmend.site.privacy.Account`.
    """

    def __init__(
        self, site: str, privacy: Privacy, state_dir: Path, train: Split, batch_size: int, *, sums: bool = False
    ):
        patients = patients_of(train.table)
        self.steps = PatientSteps(privacy, patients, batch_size)
        self._noise, self._sums = privacy.noise_multiplier, sums
        self._released: dict[str, float] = {}
        self._site, self._account = site, Account(state_dir, site, privacy, len(patients))
        unit = "patient" if any(train.table.patients) else "study" if train.table.slices else "image"
        self._words = f"(delta {self._account.delta:.3g}, the unit is one {unit}, all jobs of this site so far)"

    def announce(self, epochs: int, rounds: int) -> dict[str, float]:
        """Says in the site's log what a job of ``rounds`` with ``epochs`` each will cost; refuses it where not even a
        round is left. Returns what the server learns."""
        now, words = self.forecast(epochs, rounds)
        LOG.info("%s: privacy: %s", self._site, words)
        return self._account.told(now)

    def forecast(self, epochs: int, rounds: int) -> tuple[Epsilon, str]:
        """What has been spent, and in words also what a job will cost.

        Args:
            epochs: of one round.
            rounds: of the job.

        Raises:
            OverBudget: not even a round is left.
        """
        account = self._account
        rate, steps = WHOLE if self._sums else (self.steps.rate, self.steps.per_epoch * epochs)
        account.check(account.epsilon(rate, steps))
        now, then = account.epsilon(), account.epsilon(rate, steps * rounds)
        return now, f"epsilon {now}, after this job {then} {self._words}"

    def spend(self, epochs: int) -> dict[str, float]:
        """Writes the steps of a round of ``epochs`` into the account, before them; returns what the server learns."""
        return self._spend(self.steps.rate, self.steps.per_epoch * epochs)

    def _spend(self, rate: float, steps: int) -> dict[str, float]:
        epsilon = self._account.spend(rate, steps)
        LOG.info("%s: privacy: epsilon %s with this round %s", self._site, epsilon, self._words)
        return self._account.told(epsilon)

    def add_up(self, rows: Iterable[torch.Tensor]) -> np.ndarray:
        """The sum of a row of numbers for each patient, with noise, written into the account before: the Gaussian
        mechanism (Dwork and Roth 2014, appendix A) on all patients, once.

        Args:
            rows: (D,) for each patient, of a length of at most 1: a longer one is shortened, one that is not finite
                counts as none. A row must depend on its own patient alone.

        Returns:
            (D,) float64, with noise of the standard deviation ``noise_multiplier`` on each number.
        """
        told = self._spend(*WHOLE)
        total = np.zeros(1)  # as long as a row from the first one on
        for row in rows:
            exact = row.double().cpu()
            length, numbers = float(exact.norm()), exact.numpy()
            total = total + (numbers / max(length, 1.0) if math.isfinite(length) else np.zeros_like(numbers))
        self._released = told
        return total + self._noise * SystemRandom().normal(len(total))

    def released(self) -> dict[str, float]:
        """What the server learns of the promise beside sums of this task; empty: none were made. Asked for once."""
        told, self._released = self._released, {}
        return told


def secret_views(samples: int, views: int, _: torch.Generator) -> torch.Tensor:
    """Views (V, N, 2, 3) as of :func:`fedmend.data.augment.draw_views`, of the operating system's random numbers.

    The server knows the run's seed: with views drawn from it, sample after sample, one patient more would change the
    gradients of all others, and noise for one patient would not hide it.
    """
    numbers = SystemRandom().uniform(4 * views * samples).astype(np.float32)
    return views_of(torch.from_numpy(numbers).view(4, views, samples))


def of_sums(method: LocalMethod) -> bool:
    """Whether all that a method reports is made of :meth:`PrivateSite.add_up`."""
    return bool(method.FIELDS) and all(field.allowed_by == OF_PRIVACY for field in method.FIELDS.values())


def check_bearable(site: str, method: LocalMethod, network: str, *, decay: str = "coupled") -> None:
    """Refuses a job under which the promise would not hold.

    Args:
        site: site name for messages.
        method: client half of the job's method.
        network: name of its network.
        decay: how its weight decay acts, see :class:`fedmend.learning.training.LocalTrainer`.

    Raises:
        FedMendError: a method whose loss or reports use other patients, a network with BatchNorm or dropout, or a decay
            that asks which rows have a gradient: with noise, all of them have one. A method of sums with another
            network than one whose features have a length of about 1, which noise would drown or a limit cut.
    """
    where = f"{site}: local/fedmend.json, field privacy"
    if of_sums(method):
        if not network.startswith(PROJECTED):
            raise FedMendError(f"job variable network: expected {PROJECTED}NAME for sums with noise, got {network:.60}")
        return
    if not method.patients_apart or method.FIELDS:  # what it would report are numbers without noise
        raise FedMendError(
            f"{where}: expected a job of federated averaging in which patients count one by one (variant"
            f" fedavg_private), or closed_form with its variant private, got {type(method).__name__}"
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
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p for m in model.modules()):
        raise FedMendError(
            f"{where}: expected a network without dropout, got {network}, whose draws for one patient depend on the"
            " others"
        )


def withhold(result: SiteResult, fields: Mapping[str, Field]) -> SiteResult:
    """What of an answer may leave under the promise: the noisy weights or sums, sizes that count as known, and the
    promise.

    Numbers computed from patients stay: mean loss, evaluation counts, repairs, other reports. In the census, positives
    per class become 1 for each class that has a column.

    Args:
        result: the answer.
        fields: that the method may report; of these, sums with noise leave.
    """
    census = dict(result.census)
    if census:
        census["positives"] = census["annotated"].astype(np.int64)
        census |= {name: {"train": census[name]["train"]} for name in ("sizes", "data")}
    return replace(result, loss=0.0, report=_sums(result, fields), counts={}, repairs={}, census=census)


def _sums(result: SiteResult, fields: Mapping[str, Field]) -> dict[str, np.ndarray]:
    """The part of a report that is made of sums with noise; none without the promise."""
    own = result.report if result.privacy else {}
    return {name: value for name, value in own.items() if fields[name].allowed_by == OF_PRIVACY}


def check_withheld(result: SiteResult, fields: Mapping[str, Field], *, weights: bool) -> None:
    """Refuses an answer, with ``weights`` or without, that has more in it than :func:`withhold` leaves.

    Raises:
        FedMendError: names the first part.
    """
    parts: dict[str, object] = {"loss": result.loss, "counts": result.counts, "repairs": result.repairs}
    parts["report"] = set(result.report) - set(_sums(result, fields))
    parts["weights without noise"] = weights and not result.privacy
    if result.census:
        parts["positives"] = (result.census["positives"] != result.census["annotated"]).any()
        parts |= {name: set(result.census[name]) - {"train"} for name in ("sizes", "data")}
    for name, value in parts.items():
        if value:
            raise FedMendError(f"{result.site}: privacy: expected {name} to stay at this site, got some")
