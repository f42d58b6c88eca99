"""The contract of a method: what may leave a site, what a method does there, and what its server half may ask for.

A paper is one module in :mod:`fedmend.methods`: its equations, a :class:`LocalMethod` whose :class:`Round` trains at a
site, and a :class:`Workflow` whose ``run`` is the algorithm at the server. A workflow talks to a :class:`Federation`
and knows neither FLARE nor files, so the same code runs in FLARE and in one process.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import Average, RowAverage
from fedmend.basics.state import StateStore
from fedmend.data.augment import draw_views
from fedmend.errors import FedMendError
from fedmend.fields import Field, Report
from fedmend.labels import MULTILABEL, NOT_ANNOTATED


@dataclass(frozen=True)
class RoundTask:
    """What the server asks of a site in one round.

    Attributes:
        stage: the paper's word for what is done.
        round_num: 0 … total_rounds - 1; of a collection, the round that comes next.
        total_rounds: rounds of the whole run.
        knowledge: arrays beside the weights, by the ``KNOWLEDGE`` of the method.
        role: e.g. ``clean`` or ``noisy``; a site learns only its own.
        seed: the run's seed.
        training: whether the site trains; False: it only reports.
        ledger_mark: latest mark of the site's ledger that this run knows (:mod:`fedmend.repairs.ledger`); empty: none.
        sites: names of all sites that are asked; empty outside a federation.
    """

    stage: str
    round_num: int
    total_rounds: int
    knowledge: Mapping[str, np.ndarray] = field(default_factory=dict)
    role: str = ""
    seed: int = 0
    training: bool = True
    ledger_mark: str = ""
    sites: tuple[str, ...] = ()

    @property
    def ledger_round(self) -> int:
        """The round under which repairs are recorded: a training first takes back what was recorded from its own number
        on, so a collection, which comes before it, records under the number before."""
        return self.round_num if self.training else self.round_num - 1

    def word(self, name: str) -> np.ndarray:
        """One array of the knowledge, any shape; it was checked when the task came in.

        Raises:
            FedMendError: the server did not send it.
        """
        if name not in self.knowledge:
            raise FedMendError(f"round {self.round_num}, {name} from the server: expected an array, got nothing")
        return self.knowledge[name]


@dataclass
class Site:
    """What a method may touch at a site; nothing here leaves by itself.

    Attributes:
        name: site name. device: device of the model.
        data: :class:`fedmend.data.site.SiteData`; original labels are read-only.
        ledger: repaired labels or masks. state: small objects that outlive the task.
        batch_size: B of the local training. inference_batch: samples of an inference pass; 0: B.
        autocast: a GPU computes in bfloat16 where it can.
        stop: asked before every batch; True when the job was aborted.
        evaluate_by: columns of subgroups that an evaluation may count. min_count: fewest people behind a number.
        draw: what draws views; with differential privacy, one of numbers that the server cannot know.
        add_up: sums up a row of numbers of each patient with noise; None: the site keeps no differential privacy.
    """

    name: str
    device: torch.device
    data: Any
    ledger: Any
    state: StateStore
    batch_size: int = 32
    inference_batch: int = 0
    autocast: bool = True
    stop: Callable[[], bool] = lambda: False
    evaluate_by: Sequence[str] = ()
    min_count: int = 5
    draw: Callable[[int, int, torch.Generator], Tensor] = draw_views
    add_up: Callable[[Iterable[Tensor]], np.ndarray] | None = None
    _views: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    def labels(self) -> np.ndarray:
        """(N, C) int8 labels of the training split, with those that people have fixed or given in a review."""
        return self.ledger.judged(self.data.train.labels)

    def generator(self, task: RoundTask, purpose: str) -> torch.Generator:
        """A CPU generator that depends on run seed, site, round and purpose only."""
        name = hashlib.sha256(f"{self.name}/{purpose}".encode()).digest()
        entropy = np.random.SeedSequence([task.seed, task.round_num, int.from_bytes(name[:16], "little")])
        return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> 1))

    def views(self, task: RoundTask, count: int) -> Tensor:
        """The round's affine views of all training samples, (count, N, 2, 3); the same whenever asked in a round."""
        key = (task.round_num, count)
        if key not in self._views:
            self._views = {k: v for k, v in self._views.items() if k[0] == task.round_num}
            self._views[key] = self.draw(len(self.data.train), count, self.generator(task, "views"))
        return self._views[key]

    def batches(self, order: Tensor) -> list[Tensor]:
        """Cuts (n,) sample numbers into batches; a last batch of one joins the one before, which BatchNorm needs."""
        parts = list(order.split(self.batch_size))
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        return parts


class Round(ABC):
    """One round of a method at one site, made by :meth:`LocalMethod.start`; its attributes end with the round.

    Args:
        method: hyper-parameters.
        model: the received global model, which the round trains.
        task: what the server asks.
        site: data, ledger and state.

    Attributes:
        goes_on: the model that trains is the one of the round before, so that Adam's moments may go on too.
    """

    goes_on: bool = True

    def __init__(self, method: "LocalMethod", model: nn.Module, task: RoundTask, site: Site):
        self.method, self.model, self.task, self.site = method, model, task, site

    def samples(self) -> Tensor:
        """(n,) numbers of the samples that the round trains on; default: all."""
        return torch.arange(len(self.site.data.train))

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """Sample numbers (B,) of one epoch's batches; default: :meth:`samples`, shuffled."""
        generator = self.site.generator(self.task, f"shuffle {epoch}")
        samples = self.samples()
        return self.site.batches(samples[torch.randperm(len(samples), generator=generator)])

    @abstractmethod
    def loss(self, index: Tensor) -> Tensor:
        """Scalar training loss of the samples ``index`` (B,)."""

    def after_step(self) -> None:
        """After every optimiser step, e.g. to move a teacher. Default: nothing."""
        return

    def report(self) -> Report:
        """After the local training; default: nothing leaves but the weights."""
        return {}


class LocalMethod:
    """Client half of a method; attributes are hyper-parameters only.

    Attributes:
        FIELDS: every array that may leave besides the weights.
        KNOWLEDGE: every array that the server may send besides the weights.
        KINDS: the kinds of labels that the method can learn from.
        STRUCTURES: whether masks may show several classes. VOLUMES: whether networks may see patches of volumes.
        PACKAGES: packages that the method needs beside FedMend's own → the extra of FedMend that installs each.
        ROUND: what happens in one round.
        patients_apart: the loss of a sample depends on it, its view (``Site.draw``) and the weights alone, and nothing
            computed from samples is reported; a site with differential privacy takes part in no other method.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = {}
    KNOWLEDGE: ClassVar[Mapping[str, Field]] = {}
    KINDS: ClassVar[tuple[str, ...]] = (MULTILABEL,)
    STRUCTURES: ClassVar[bool] = False
    VOLUMES: ClassVar[bool] = False
    PACKAGES: ClassVar[Mapping[str, str]] = {}
    ROUND: ClassVar[type[Round]]
    patients_apart: bool = False

    def start(self, model: nn.Module, task: RoundTask, site: Site) -> Round:
        """Before the local training, with the received global model: repairs labels, freezes the teacher."""
        return self.ROUND(self, model, task, site)

    def evaluated(self, model: nn.Module, task: RoundTask, site: Site) -> nn.Module:
        """The model whose predictions a site counts, given the received global model; default: that one."""
        return model

    @property
    def balanced(self) -> bool:
        """Whether logits are log-odds of a population in which half has the class, as logit adjustment makes them."""
        return bool(getattr(self, "la", False))

    def solved_from(self, logits: Tensor, site: Site) -> np.ndarray:
        """What classifiers are solved from at the end of a job with ``refit``: (N, C) of 0 to 1, negative: unknown.

        Args:
            logits: (N, C) of the received model for the training split.
            site: data and ledger; default: its labels with the repairs in force, of the classes that it knows, as
                guesses of others are of the few samples that a method was sure of.
        """
        return np.where(site.data.known, site.ledger.apply(site.data.train.labels), NOT_ANNOTATED)

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """Answers a question without training, with the received global model; default: nothing to tell.

        It may repair labels under ``task.ledger_round``, by a rule that training does not use: recording takes back
        what the same rule recorded from that round on.
        """
        return {}


@dataclass(frozen=True)
class SiteFacts:
    """What the census says about a site.

    Attributes:
        samples: N_k training samples.
        annotated: (C,) bool.
        positives: (C,) training samples with each class; 1 for each one annotated where differential privacy is kept.
    """

    samples: int
    annotated: np.ndarray
    positives: np.ndarray


@dataclass(frozen=True)
class Answer:
    """What a workflow sees of a site's result.

    Attributes:
        report: its fields.
        share: share of its model in the new global model; 0 for a collection.
    """

    report: Report
    share: float = 0.0


class Federation(ABC):
    """What a workflow talks to.

    Attributes:
        classes: C class names.
        rows: R names of the rows of labels: the classes; for masks the background before them.
        kind: kind of labels of all sites.
        num_rounds: R communication rounds.
        seed: the run's seed.
        sites: site → facts of its census, in sorted order.
        model: the global model, name → array; a workflow may put another one there.
        memory: what the workflow must remember; it comes back when a job goes on.
    """

    classes: tuple[str, ...]
    rows: tuple[str, ...]
    kind: str
    num_rounds: int
    seed: int
    sites: Mapping[str, SiteFacts]
    model: dict[str, np.ndarray]
    memory: Any

    @abstractmethod
    def rounds(self, total: int | None = None) -> Iterator[int]:
        """The rounds that are still to be done; after each, model and memory are saved. ``total``: all rounds, where
        the census decides how many; None: the job's."""

    @abstractmethod
    def train(
        self,
        stage: str,
        *,
        sites: Sequence[str] | None = None,
        roles: Mapping[str, str] | None = None,
        knowledge: Mapping[str, np.ndarray] | None = None,
        average: Average | None = None,
        rows: RowAverage | None = None,
    ) -> dict[str, Answer]:
        """Sites train the global model, and the average of their models takes its place.

        Args:
            stage: the paper's word.
            sites: who is asked; None: all. A site trains once in a round.
            roles: site → role; each site learns only its own.
            knowledge: arrays for the sites.
            average: weights of the models; None: by samples, and then the server holds one model only.
            rows: shares in the rows of the classifier, which are then averaged by them, row by row.

        Returns:
            Site → answer, of the sites whose results are valid, in sorted order.

        Raises:
            FedMendError: too few valid results.
        """

    @abstractmethod
    def collect(
        self,
        stage: str,
        *,
        sites: Sequence[str] | None = None,
        roles: Mapping[str, str] | None = None,
        knowledge: Mapping[str, np.ndarray] | None = None,
        at_least: int = 0,
    ) -> dict[str, Answer]:
        """Reports about the global model, without training; as :meth:`train`.

        Args:
            at_least: sites that must answer; 0: as in a round.
        """

    @abstractmethod
    def record(self, what: str, value: object) -> None:
        """Writes a decision down, with the number of rounds done."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """A sentence for the people who follow the run."""

    @abstractmethod
    def generator(self, purpose: str) -> np.random.Generator:
        """Random numbers that depend on seed, round and purpose only."""


class Workflow(ABC):
    """Server half of a method: the paper's algorithm.

    Attributes:
        METHOD: the client half, whose ``FIELDS`` the sites report and whose ``KNOWLEDGE`` the workflow sends; where it
            serves several methods, the class that they share.
        NEEDS: stage → fields without which a report of it is refused; default: none.
        trains: whether sites train; where they only answer, ``refit`` has nothing to end.
        warmup_rounds: rounds of the first stage, for reports; 0: there is none.
        least_sites: fewest sites that the algorithm needs.
        evaluation: the :class:`fedmend.evaluation.federated.Packages` that sites evaluate instead of training; the
            stage of a collection is the name of one. None: a training.
    """

    METHOD: ClassVar[type[LocalMethod]] = LocalMethod
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {}
    trains: ClassVar[bool] = True
    warmup_rounds: int = 0
    least_sites: int = 1
    evaluation: Any = None

    @dataclass
    class Memory:
        """What must outlive a round: numbers, text, arrays, and lists and mappings of them."""

    @abstractmethod
    def run(self, fed: Federation) -> None:
        """All rounds."""

    def trusted_sites(self, fed: Federation) -> Sequence[str] | None:
        """The sites whose labels a classifier may be solved from; None: all."""
        return None

    def logit_shift(self, fed: Federation) -> np.ndarray | float:
        """(C,) how far weights of positive terms that the server sends move trained logits from log-odds; or 0."""
        return 0.0

    def check(self, stage: str, report: Report) -> None:
        """Refuses a report, whose fields fit their description, that lacks what the stage needs, see ``NEEDS``.

        Raises:
            FedMendError: names the fields.
        """
        needed = self.NEEDS.get(stage, ())
        if missing := sorted(set(needed) - set(report)):
            raise FedMendError(f"report: expected {sorted(needed)}, got none of {missing}")

    def check_rounds(self, num_rounds: int) -> None:
        """Refuses a warm-up that does not fit into the run.

        Raises:
            FedMendError: not 0 <= warmup_rounds <= num_rounds.
        """
        if not 0 <= self.warmup_rounds <= num_rounds:
            where, got = "job variables warmup_rounds, num_rounds", f"{self.warmup_rounds} of {num_rounds}"
            raise FedMendError(f"{where}: expected the warm-up to fit into the run, got {got}")

    def check_sites(self, sites: int) -> None:
        """Refuses a federation of fewer sites than the algorithm needs.

        Raises:
            FedMendError: fewer than ``least_sites``.
        """
        if sites < self.least_sites:
            least = f"at least {self.least_sites} sites for the method of this job"
            raise FedMendError(f"census: expected {least}, got {sites}")
