"""The contract between a method and the rest: what the server asks, what a method may touch, what leaves a site."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.data.augment import draw_views
from fedmend.data.manifest import MULTILABEL, SINGLELABEL
from fedmend.data.site import SiteData
from fedmend.errors import FedMendError
from fedmend.ledger import LabelLedger
from fedmend.losses import log_class_prior
from fedmend.state import StateStore

Report = dict[str, np.ndarray]


@dataclass(frozen=True)
class RoundTask:
    """What the server asks of a site in one round.

    Attributes:
        stage: the paper's word for what is done.
        round_num: 0 … total_rounds - 1.
        total_rounds: rounds of the whole run.
        knowledge: arrays that the method's server half made of the last reports.
        role: e.g. ``clean`` or ``noisy``; known to this site alone.
        seed: the run's seed.
    """

    stage: str
    round_num: int
    total_rounds: int
    knowledge: Mapping[str, np.ndarray] = field(default_factory=dict)
    role: str = ""
    seed: int = 0


@dataclass
class Site:
    """What a method may touch at a site; nothing here leaves by itself.

    Attributes:
        name: site name.
        device: device of the model.
        data: images and labels; original labels are read-only.
        ledger: repaired labels.
        state: small objects that outlive the task.
        batch_size: B of the local training and of inference passes.
        memory: objects that live as long as this task.
        stop: asked before every batch; True when the job was aborted.
    """

    name: str
    device: torch.device
    data: SiteData
    ledger: LabelLedger
    state: StateStore
    batch_size: int = 32
    memory: dict = field(default_factory=dict)
    stop: Callable[[], bool] = lambda: False

    def generator(self, task: RoundTask, purpose: str) -> torch.Generator:
        """A CPU generator that depends on run seed, site, round and purpose only."""
        name = hashlib.sha256(f"{self.name}/{purpose}".encode()).digest()
        entropy = np.random.SeedSequence([task.seed, task.round_num, int.from_bytes(name[:16], "little")])
        return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))

    def views(self, task: RoundTask, count: int) -> Tensor:
        """The round's affine views of all training samples, (count, N, 2, 3); the same ones whenever asked in a round."""
        key = ("views", task.round_num, count)
        if key not in self.memory:
            self.memory[key] = draw_views(len(self.data.train), count, self.generator(task, "views"))
        return self.memory[key]

    def batches(self, order: Tensor) -> list[Tensor]:
        """Cuts sample numbers into batches; a last batch of one joins the one before, which BatchNorm needs."""
        parts = list(order.split(self.batch_size))
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        return parts


class LocalMethod(ABC):
    """Client half of a method; attributes are hyper-parameters only.

    ``REPORT_FIELDS`` declares every array that may leave besides the weights: name → shape, dtype, meaning, privacy note.
    ``TASKS`` names the kinds of labels that the method can learn from, see :class:`fedmend.data.manifest.SiteCard`.
    """

    REPORT_FIELDS: ClassVar[Mapping[str, str]] = {}
    TASKS: ClassVar[tuple[str, ...]] = (MULTILABEL,)

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Before the local training, with the received global model: repair labels, run the teacher. Default: nothing."""
        return

    def batches(self, task: RoundTask, site: Site, epoch: int) -> Iterable[Tensor]:
        """Sample numbers (B,) of one epoch's batches; default: all samples, shuffled."""
        order = torch.randperm(len(site.data.train), generator=site.generator(task, f"shuffle {epoch}"))
        return site.batches(order)

    @abstractmethod
    def loss(self, model: nn.Module, index: Tensor, task: RoundTask, site: Site) -> Tensor:
        """Scalar training loss of the samples ``index`` (B,)."""

    def after_step(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """After every optimiser step, e.g. to move a teacher. Default: nothing."""
        return

    def report(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """After the local training, with the local model, or in a task without training, with the received one; default:
        nothing leaves but the weights."""
        return {}


class SingleLabelMethod(LocalMethod):
    """What methods for single-label data share: targets, logit adjustment, and a new augmented view in every epoch.

    Args:
        la: add the log prior of the site's classes to the logits (logit adjustment, strength 1), which balances the classes.
    """

    TASKS: ClassVar[tuple[str, ...]] = (SINGLELABEL,)

    def __init__(self, *, la: bool):
        self.la = la

    def prepare(self, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Targets and class prior, on the device."""
        target = self.target(site)
        site.memory["target"] = torch.from_numpy(target).to(site.device)
        site.memory["log_prior"] = torch.from_numpy(log_class_prior(site.data.train.labels)).to(site.device)

    def batches(self, task: RoundTask, site: Site, epoch: int) -> Iterable[Tensor]:
        """All samples, shuffled; draws the augmented view of the epoch."""
        site.memory["view"] = draw_views(len(site.data.train), 1, site.generator(task, f"view {epoch}"))[0]
        return super().batches(task, site, epoch)

    @staticmethod
    def target(site: Site) -> np.ndarray:
        """(N,) int64 class numbers of the training labels.

        Raises:
            FedMendError: a sample without a label.
        """
        table = site.data.train.table
        known = (table.labels == 1).any(1)
        if not known.all():
            row = table.rows[int(np.argmin(known))]
            raise FedMendError(f"{site.name}: {table.file} row {row}, column label: expected a class name, got a blank")
        return table.labels.argmax(1).astype(np.int64)

    @staticmethod
    def batch(index: Tensor, site: Site) -> tuple[Tensor, Tensor]:
        """Augmented images (B, 3, H, W) and targets (B,) of some samples, on the device."""
        rows = index.to(site.device, non_blocking=True)
        return site.data.train.view(index, site.memory["view"]), site.memory["target"][rows]

    def adjusted(self, logits: Tensor, site: Site) -> Tensor:
        """(B, C) float32 logits, with ``la`` adjusted."""
        return logits.float() + site.memory["log_prior"] if self.la else logits.float()
