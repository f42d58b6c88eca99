"""What FedLSM and the baselines that it is compared with share, and the plainest of these baselines.

The label sets of the sites do not match, in multi-label or single-label data. N samples at a site, M classes; I_k are
the classes that site k identifies, U_k the others. All methods take the same number of optimiser steps on strong views
of the same kind with the same weights of positive terms, so that a comparison is about the method alone.

Rows of Tables 1 and 2, Deng et al., MICCAI 2023, and ``aggregation`` of the server:

============================ ======================================= =============
row                          method                                  aggregation
============================ ======================================= =============
FedAvg with 100 % labels     LabelSetFedAvg on complete labels       ``samples``
FedAvg                       LabelSetFedAvg                          ``samples``
FedAvg*                      LabelSetFedAvg                          ``masked``
FedProx*                     LabelSetFedProx                         ``masked``
MOON*                        fedmend.baselines.moon.Moon               ``masked``
FedRS                        fedmend.baselines.fedrs.FedRS             ``samples``
FedPU                        fedmend.methods.fedpu.FedPU             ``samples``
FPSL                         fedmend.baselines.fpsl.FPSL               ``masked``
FedAvg*+FixMatch             fedmend.baselines.fixmatch.FixMatch       ``masked``
FSSL*                        fedmend.baselines.fssl.FSSL               ``masked``
FedLSM                       fedmend.methods.fedlsm.FedLSM           ``awpa``
(not in the paper)           fedmend.methods.candidate_sets          ``masked``
============================ ======================================= =============

The published code has no baseline that can be run, and the paper's details of them are in a supplement that we did not
have: every row is our form of it. Decisions:

- D1 a step of a baseline has as many images as one of FedLSM with its mixed ones (D16 there), 64 in the paper.
- D2 the cross-entropy of single-label data is the mean over the labelled images of a batch (Eq. 4). FedLSM's code
  divides by all images, and an unlabelled one adds 0, so that the loss shrinks with the labelled share. Adam takes no
  notice, but coupled L2 then weighs more. A batch without any label has loss 0; MOON's contrastive and FedProx's
  proximal term remain.
- D3 in multi-label data a hidden label counts as negative in FedAvg and FedRS (paper: y_c = 0 on U_k). For the starred
  rows the paper does not say; here ``hidden`` is ``negative`` by default, so that FedAvg* is FedAvg but for the server.
  Masked rows leave out what sites do not know of the classifier, but false negatives still reach the features;
  ``ignored`` leaves them out too. FixMatch, FPSL and FSSL* always ignore hidden labels.
- D4 a class is known at a site if its column is annotated, and at the server if the site has a positive: a site without
  one has no share in that row, and no pseudo-labels for it.
- D5 see :mod:`fedmend.baselines.fedrs`. D6 see :mod:`fedmend.baselines.moon`. D7 see :mod:`fedmend.baselines.fixmatch`.
- D8 mu of FedProx (.01) and the other numbers of the baselines are ours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.averaging import CLASSIFIER, Contributions
from fedmend.data.augment import strong
from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field, Report
from fedmend.labels import MULTILABEL, NOT_ANNOTATED, SINGLELABEL
from fedmend.method import Answer, Federation, LocalMethod, Round, RoundTask, Site, Workflow
from fedmend.methods.baselines import ProximalRound
from fedmend.methods.shared.pseudo_labels import PseudoLabels
from fedmend.methods.shared.readings import READINGS
from fedmend.methods.shared.settings import Count, NegativeThreshold, PositiveThreshold, Range, Settings, Weight, one_of

KNOWLEDGE = {
    "pos_weight": Field(
        ("C",),
        "float32",
        0,
        UNBOUNDED,
        "weight of the positive term of each class, negatives / positives over the sites that know it",
        "tells sites how frequent each class is in the federation",
    )
}


# ---- the site -------------------------------------------------------------------------------------------------------
class LabelSetRound(Round):
    """Known classes, labels and weights of positive terms, on the device, and the generator of the augmentation."""

    method: "LabelSetMethod"

    def __init__(self, method: "LabelSetMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self.reading = READINGS[site.data.kind]
        known = self.reading.known_classes(site.data.train.labels)  # a review may give an unknown class some labels
        if not known.any():
            raise FedMendError(
                f"{site.name}: {site.data.train.table.file}: expected labels of at least one class, got none"
            )
        self.known = torch.from_numpy(known).to(site.device)
        self.labels = torch.from_numpy(site.labels().astype(np.float32)).to(site.device)
        self.pos_weight: Tensor | None = None
        if self.reading.weighted:
            self.pos_weight = torch.from_numpy(np.asarray(task.word("pos_weight"))).to(site.device)
        self.generator = site.generator(task, "augment")

    def parts(self) -> list[tuple[np.ndarray, int]]:
        """Pools (n,) of sample numbers, and how many of each are in a batch: here B of all samples."""
        return [(np.arange(len(self.site.data.train)), self.site.batch_size)]

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """``local_iterations`` batches, the parts of each in their order."""
        generator = self.site.generator(self.task, f"shuffle {epoch}")
        streams = [(_Stream(pool, generator), count) for pool, count in self.parts()]
        for _ in range(self.method.local_iterations):
            yield torch.cat([stream.take(count) for stream, count in streams])

    def unweighted(self, logits: Tensor) -> Tensor:
        """(B, M) logits that a loss without weights of positive terms would have led to: a weight w adds log w to the
        logit at which the loss is least."""
        return logits if self.pos_weight is None else logits - self.pos_weight.log().to(logits.device)

    def strong_views(self, pixels: Tensor) -> Tensor:
        """Strong views of (B, 1 or 3, H, W) images, other ones at each call."""
        return strong(pixels, self.generator, vertical_flip=self.method.vertical_flip)


@dataclass(kw_only=True, eq=False)
class LabelSetMethod(Settings, LocalMethod):
    """Local training at a site that does not identify all classes.

    Args:
        local_iterations: optimiser steps per round, >= 1.
        vertical_flip: part of the strong augmentation.

    Attributes:
        hidden: what a hidden multi-label entry is in the supervised loss, ``ignored`` or ``negative``.
    """

    hidden = "ignored"
    KINDS: ClassVar[tuple[str, ...]] = (MULTILABEL, SINGLELABEL)
    KNOWLEDGE = KNOWLEDGE
    local_iterations: Count
    vertical_flip: bool = False


class _Stream:
    """Samples of a pool without end, in a new order whenever too few are left; no sample twice in a batch."""

    def __init__(self, pool: np.ndarray, generator: torch.Generator):
        self._pool, self._generator = torch.from_numpy(pool), generator
        self._left = self._pool[:0]

    def take(self, count: int) -> Tensor:
        if len(self._left) < count:
            self._left = self._pool[torch.randperm(len(self._pool), generator=self._generator)]
        taken, self._left = self._left[:count], self._left[count:]
        return taken


# ---- pseudo-labels on unknown classes -------------------------------------------------------------------------------
class PseudoLabelRound(LabelSetRound):
    """Also learns from confident predictions of unknown classes, and writes a round's last ones into the ledger.

    Attributes:
        pseudo: the pseudo-labels of the round.
    """

    method: "PseudoLabelMethod"

    def __init__(self, method: "PseudoLabelMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        self.pseudo = PseudoLabels(site, np.arange(len(site.data.classes)))

    def main_loss(self, logits: Tensor, predicted: Tensor, rows: Tensor) -> Tensor:
        """L_I + L_U, Eqs. (4)-(5), Deng et al., MICCAI 2023; keeps the last pseudo-label of each sample.

        Args:
            logits: (B, M) float32 of the strong views.
            predicted: (B, M) probabilities of the weak views, without gradient.
            rows: (B,) sample numbers on the device.
        """
        method, labels = self.method, self.labels[rows]
        taus = method.tau_positive, method.tau_negative
        target, valid = self.targets(predicted, rows, self.labelled_by_teacher(rows), *taus)
        self.pseudo.keep(rows, target, predicted, valid & (labels == NOT_ANNOTATED))
        over_batch = method.loss_mean == "batch"
        return self.reading.loss(logits, target, valid, labels, self.pos_weight, over_batch=over_batch)

    def targets(self, predicted: Tensor, rows: Tensor, unknown: Tensor, *taus: float) -> tuple[Tensor, Tensor]:
        """:meth:`fedmend.methods.shared.readings.Reading.pseudo_labels` without those that people have rejected.

        Args:
            predicted: (B, M) probabilities.
            rows: (B,) sample numbers on the device.
            unknown: (M,) or (B, M) bool: classes that may get pseudo-labels.
            taus: thresholds for positive and negative ones.
        """
        labels = self.labels[rows]
        target, valid = self.reading.pseudo_labels(predicted, labels, unknown, *taus)
        refused = self.pseudo.closed(rows, target) & (labels == NOT_ANNOTATED)
        return target, valid & ~(refused.any(1, keepdim=True) if self.site.data.kind == SINGLELABEL else refused)

    def probabilities(self, logits: Tensor) -> Tensor:
        """(B, M) probabilities that thresholds are compared with, of (B, M) logits."""
        return self.reading.probabilities(self.unweighted(logits.float()))

    def labelled_by_teacher(self, rows: Tensor) -> Tensor:
        """(M,) or (B, M) bool: where the samples ``rows`` (B,) may get pseudo-labels; default: U_k."""
        return ~self.known

    def report(self) -> Report:
        """Writes the round's new pseudo-labels into the ledger; nothing leaves but the weights."""
        self.pseudo.record(self.method.RULE, self.task, self.site)
        return {}


@dataclass(kw_only=True, eq=False)
class PseudoLabelMethod(LabelSetMethod):
    """A method with pseudo-labels, which stand in the ledger as ``RULE``.

    Args:
        tau_positive: probability from which an unknown class is pseudo-labelled positive; of the largest class in
            single-label data.
        tau_negative: probability up to which it is negative (multi-label).
        loss_mean: in single-label data, ``parts``: L_I is the mean over the labelled images of a batch, L_U that over
            the others (Eq. 4); ``batch``: both are divided by all images, so that a pseudo-label weighs as much as a
            label (released code).
    """

    RULE: ClassVar[str]
    tau_positive: PositiveThreshold = 0.85
    tau_negative: NegativeThreshold = 0.01
    loss_mean: Annotated[str, one_of("parts", "batch")] = "parts"


# ---- baselines ------------------------------------------------------------------------------------------------------
class LabelSetFedAvgRound(LabelSetRound):
    """Supervised loss of the strong views."""

    def loss(self, index: Tensor) -> Tensor:
        return self.supervised(self.model(self.inputs(index))[1].float(), index)

    def inputs(self, index: Tensor) -> Tensor:
        """Network input (B, 3, H, W): strong views, other ones at each call."""
        train = self.site.data.train
        return train.to_network(self.strong_views(train.pixels(index)))

    def supervised(self, logits: Tensor, index: Tensor) -> Tensor:
        """Loss of (B, M) logits of the samples (B,) by their labels.

        Multi-label: weighted binary cross-entropy by B*M; hidden entries are negative or ignored. Single-label: mean
        cross-entropy of the labelled samples.
        """
        labels = self.labels[index.to(self.site.device, non_blocking=True)]
        negative = self.method.hidden == "negative" and self.site.data.kind == MULTILABEL
        valid = torch.ones_like(labels, dtype=torch.bool) if negative else labels != NOT_ANNOTATED
        return self.reading.loss(logits, labels.clamp(min=0), valid, labels, self.pos_weight, over_batch=False)


@dataclass(kw_only=True, eq=False)
class LabelSetFedAvg(LabelSetMethod):
    """FedAvg, and, with masked rows at the server, FedAvg*.

    Args:
        hidden: what a hidden entry of multi-label data is in the loss, ``negative`` or ``ignored`` (D3).
    """

    ROUND: ClassVar[type[Round]] = LabelSetFedAvgRound
    hidden: Annotated[str, one_of("negative", "ignored")] = "negative"


class LabelSetFedProxRound(ProximalRound, LabelSetFedAvgRound):
    """The proximal term on mismatched label sets."""


@dataclass(kw_only=True, eq=False)
class LabelSetFedProx(LabelSetFedAvg):
    """FedProx: :class:`LabelSetFedAvg` with the proximal term.

    Args:
        mu: weight of the proximal term, >= 0.
    """

    ROUND = LabelSetFedProxRound
    mu: Weight = 0.01


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class LabelSetWorkflow(Settings, Workflow):
    """Rounds of one stage; the classifier is averaged class by class.

    Args:
        aggregation: ``masked``: every row of the classifier by n_k over the sites that know its class (task-dependent
            aggregation), or by n_k over all where no site knows it; ``samples``: every row by n_k (FedAvg).
        pos_weight_cap: largest weight of the positive term of a class, >= 1.
    """

    METHOD = LabelSetMethod

    @dataclass
    class Memory:
        """``knowledge``: weights of positive terms, as the last job of the run sent them."""

        knowledge: dict[str, np.ndarray] = field(default_factory=dict)

    aggregation: Annotated[str, one_of("masked", "samples")]
    pos_weight_cap: Annotated[float, Range(lambda value: value >= 1, ">= 1")] = 100.0

    def run(self, fed: Federation) -> None:
        """R rounds.

        Raises:
            FedMendError: the classifier of the network has another number of rows than there are classes.
        """
        for key, value in fed.model.items():
            if key.startswith(CLASSIFIER) and len(value) != len(fed.classes):
                expected = f"a classifier with {len(fed.classes)} rows"
                raise FedMendError(f"job variable network: expected {expected}, got {len(value)} in {key!r}")
        known = {site: facts.positives > 0 for site, facts in fed.sites.items()}
        if everything := sorted(site for site, flags in known.items() if flags.all()):
            fed.record("every_class_known", f"no pseudo-labels and no mixed pairs at {', '.join(everything)}")
        if READINGS[fed.kind].weighted:
            fed.memory.knowledge = {"pos_weight": self._pos_weight(fed)}
        for _ in fed.rounds():
            answers = fed.train("train", knowledge=fed.memory.knowledge, rows=partial(self.row_weights, known))
            self.record(fed, answers)

    def _pos_weight(self, fed: Federation) -> np.ndarray:
        positives = {site: facts.positives for site, facts in fed.sites.items()}
        samples = {site: facts.samples for site, facts in fed.sites.items()}
        weights = positive_weights(positives, samples, cap=self.pos_weight_cap)
        # A job may go on without any site that knows a class: its row is as the weight of earlier rounds has made it.
        before = fed.memory.knowledge.get("pos_weight", weights)
        return np.where(np.any([p > 0 for p in positives.values()], axis=0), weights, before)

    def logit_shift(self, fed: Federation) -> np.ndarray | float:
        """log w of multi-label data: a weight w adds it to the logit at which the loss is least (D14 of FedLSM)."""
        return np.log(self._pos_weight(fed)) if READINGS[fed.kind].weighted else 0.0

    def row_weights(self, known: Mapping[str, np.ndarray], contributions: Contributions) -> dict[str, np.ndarray]:
        """Share of each site in every row of the classifier.

        Args:
            known: site → (M,) bool, I_k.
            contributions: site → samples and report.

        Returns:
            site → (M,) float64; they sum to 1 for every class.
        """
        n = np.array([c.samples for c in contributions.values()], dtype=np.float64)[:, None]
        owned = n * np.array([known[site] for site in contributions])
        weights = np.where((self.aggregation != "samples") & (owned.sum(0) > 0), owned, n)
        weights = self.weigh(weights, n, contributions)
        return dict(zip(contributions, weights / weights.sum(0), strict=True))

    def weigh(self, weights: np.ndarray, samples: np.ndarray, contributions: Contributions) -> np.ndarray:
        """(S, M) weights before they are scaled to shares; a method may put its own in their place."""
        return weights

    def record(self, fed: Federation, answers: Mapping[str, Answer]) -> None:
        """Writes down what sites told; the baselines tell nothing."""
        return


def positive_weights(positives: Mapping[str, np.ndarray], samples: Mapping[str, int], *, cap: float) -> np.ndarray:
    """Weight of the positive term of each class, N_neg / N_pos over the sites that identify it (D3 of FedLSM).

    Args:
        positives: site → (M,) positive training samples, 0 for a class that the site does not identify.
        samples: site → training samples; those without a label of an identified class count as negative, as the census
            does not tell them apart.
        cap: largest weight.

    Returns:
        (M,) float32 in [0.01, cap].
    """
    counts, n = np.array(list(positives.values())), np.array([samples[site] for site in positives])[:, None]
    negative = np.where(counts > 0, n - counts, 0).sum(0)
    return np.clip(negative / np.maximum(counts.sum(0), 1), 0.01, cap).astype(np.float32)
