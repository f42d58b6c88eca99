"""What travels between server and sites: the question that the server asks, the answer of a site."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedmend.errors import FedMendError
from fedmend.method import RoundTask

CENSUS, TRAIN, COLLECT, EVALUATE, KEEP = "census", "train", "collect", "evaluate", "keep"
QUESTIONS = (CENSUS, TRAIN, COLLECT, EVALUATE, KEEP)
LONGEST_NAME = 200  # bytes of a run_name: a file name may have 255, and those made of it are longer
KEEP_MODEL = "keep_model"  # in the census of a site that wants the model when the run is over
LONGEST_ERROR = 2000  # characters
WAITS = "waits until somebody of this site has approved the job"  # an answer after which the server asks again
HOLD = 60  # seconds for which a site that waits so keeps the census before it says so again
MARK = re.compile(r"(?:[0-9a-f]{32})?")  # of a ledger or a run


@dataclass(frozen=True)
class RunSpec:
    """What all tasks of a run share; it has its one home in the server's job configuration.

    Attributes:
        run_name: names state and ledger; a job submitted again under it goes on where it stopped.
        classes: C class names in the order of all arrays.
        network: backbone name.
        seed: the run's seed.
        mark: drawn when the server began the run, to tell it from an earlier one of this name; empty outside a run.
    """

    run_name: str
    classes: tuple[str, ...]
    network: str
    seed: int
    mark: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.run_name, str) or not re.fullmatch(r"\w[\w.-]{0,99}", self.run_name):
            got = " ".join(repr(self.run_name).split())[:120]  # an array has lines
            raise FedMendError(
                f"job variable run_name: expected at most 100 letters, digits, '_', '.' or '-', got {got}"
            )
        if (size := len(self.run_name.encode())) > LONGEST_NAME:
            raise FedMendError(f"job variable run_name: expected at most {LONGEST_NAME} bytes in UTF-8, got {size}")


@dataclass
class SiteResult:
    """What a site answers.

    Attributes:
        site: site name (set by the server from FLARE's own identity, never taken from the message).
        round_num: the task's round.
        samples: N_k training samples.
        weights: floating tensors of the local model, empty for tasks without training.
        report: fields declared in the method's ``FIELDS``.
        counts: split → counts of the received global model, see :class:`fedmend.kinds.Kind`.
        repairs: name → (C,) counts of repaired labels.
        census: annotated (C,), positives (C,), sizes of the splits, marks of their data (see
            :mod:`fedmend.site.data_marks`), kind of labels, phantom flag, preprocessing as
            :mod:`fedmend.preprocessing` tells it; where masks were made incomplete also lesions (2,): the number that
            the masks mark and the number of all lesions, and ``keep_model`` at a site that wants the model.
        loss: mean training loss.
        ledger_mark: latest mark of the site's ledger, see :mod:`fedmend.repairs.ledger`; it tells nothing.
        error: one sentence when the site could not do the task, else empty.
        privacy: epsilon (the smaller one, and that of RDP), delta, clip and noise multiplier of a site that keeps
            differential privacy; else empty.
    """

    site: str = ""
    round_num: int = 0
    samples: int = 0
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    report: dict[str, np.ndarray] = field(default_factory=dict)
    counts: dict[str, np.ndarray] = field(default_factory=dict)
    repairs: dict[str, np.ndarray] = field(default_factory=dict)
    census: dict = field(default_factory=dict)
    loss: float = 0.0
    ledger_mark: str = ""
    error: str = ""
    privacy: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """One question to some sites.

    Attributes:
        name: one of :data:`fedmend.messages.QUESTIONS`.
        weights: the global model; empty for a census; with the question ``keep`` the files of a package, name →
            (bytes,) uint8.
        tasks: site → what it is asked.
        run: the run.
        evaluate: whether sites evaluate the model.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    tasks: Mapping[str, RoundTask]
    run: RunSpec
    evaluate: bool = False

    @property
    def round_num(self) -> int:
        """The round, the same for all sites."""
        return next(iter(self.tasks.values())).round_num
