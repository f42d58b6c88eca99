"""FedCorr's stages, whatever is labelled: sites that look noisy are found and correct their labels step by step.

Xu, Chen, Quek, Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022; code
Xu-Jingyi/FedCorr, commit d9c0d86. A site has N samples, of masks: slices. LID: local intrinsic dimension, see
:mod:`fedmend.methods.shared.dimensions`.

1. T1 rounds (``iterations``), in each of which the model goes from site to site in random order, each site starting
   from what the one before it left. In its turn a site k trains with mixup (lam ~ Beta(1, 1) per batch) and
   beta mu_k ||w - w_received||_2, mu_k its noise level of the round before, at first 0. It reports the mean LID of its
   local model's predictions and keeps the losses of its samples. After each of these rounds a mixture of two Gaussians
   on the LID, summed over the rounds so far, tells noisy sites, the larger mean, from clean ones. A noisy site fits a
   mixture to its losses: mu_k is the share of the larger component. Its int(N mu_k pi) samples of the largest losses
   are relabelled where the global model is surer than theta. A clean site has mu_k = 0.
2. T2 rounds of federated averaging with mixup over the sites of mu_k <= kappa. At the end the noisy sites relabel all
   samples of which the global model is surer than theta.
3. T3 rounds of federated averaging with mixup over all sites.

- D1 an iteration of stage 1 is one round. T1 rounds come before those of the job, as in the appendix of FedNoRo, which
  does not count stage 1; T2 and T3 share the job's.
- D2 beta 5 and mixup, as in every published command; the code's defaults are 0 and off. Local epochs, five in the
  code, are the job's.
- D3 the square root of the proximal term starts at 1e-12, where the code leaves out the first batch, whose gradient is
  not a number.
- D4 losses are those of one iteration (code; the paper says accumulated). They, LID and new labels are of plain images,
  where the code leaves the augmentation on.
- D5 LID is limited (:func:`fedmend.methods.shared.dimensions.local_intrinsic_dimension`). The sums are scaled to 0..1
  and go into the mixtures that FedNoRo's sites go into, which vote; they are made for few sites too. Fewer than 4 are
  refused.
- D6 no site of mu_k <= kappa, where the code divides by 0: stage 2 is over all sites, and the record says so.
- D7 a site that does not answer in its turn stops the run, as in a round that needs it; a job may go on without it. A
  site that lacks a turn counts as noisy. Before its first one it has mu_k = 1 and relabels nothing.

Original labels are not written over: changes are in the ledger. Passes per sample: in stage 1 E forward-backward and 1
inference per round, at a noisy site 2; in stages 2 and 3 E forward-backward. In stage 1 sites work one after the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedmend.errors import FedMendError
from fedmend.fields import Report
from fedmend.labels import SEGMENTATION
from fedmend.method import Federation, LocalMethod, Round, RoundTask, Site, Workflow
from fedmend.methods.shared.dimensions import LID, MIN_SITES, NOISE_LEVEL, detect_noisy_clients, min_max, stands_out
from fedmend.methods.shared.distances import squared_distance
from fedmend.methods.shared.settings import Count, Settings, Share, SomeShare, Weight

TURN, CORRECT, FINETUNE, RELABEL, USUAL = "turn", "correct", "finetune", "relabel", "usual"
CLEAN, NOISY = "clean", "noisy"
RULE = "fedcorr.correction"
LOSSES, LEVEL = "losses", "noise_level"  # in the site's state
FIELDS = {"lid": LID, "noise_level": NOISE_LEVEL}


# ---- the site -------------------------------------------------------------------------------------------------------
def keep(name: str, values: np.ndarray, round_num: int, task: RoundTask, site: Site) -> None:
    """Keeps an array, any shape, that a round leaves at the site, for :func:`kept`."""
    site.state.save_array(name, round_num, values, fingerprint=_fingerprint(task, site))


def kept(name: str, task: RoundTask, site: Site) -> np.ndarray | None:
    """The array, any shape, that the last round before this one left; None where there is none of this run and these
    samples."""
    return site.state.last_array(name, before=task.round_num, fingerprint=_fingerprint(task, site))


def _fingerprint(task: RoundTask, site: Site) -> str:
    return f"{site.data.train.fingerprint()} {task.seed}"


class MixupRound(Round):
    """Mixup; in a turn of stage 1 also the proximal term. To be put before a class that has ``batch(index)``."""

    method: "CorrectingMethod"
    batch: Callable[..., tuple[Tensor, Tensor]]

    def __init__(self, method: "CorrectingMethod", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        level = kept(LEVEL, task, site) if task.stage == TURN else None
        self._pull = 0.0 if level is None else method.beta * level.item()
        self._received = [p.detach().clone() for p in model.parameters()] if self._pull else []
        self._mixing = site.generator(task, "mixup")

    def loss(self, index: Tensor) -> Tensor:
        """:meth:`target_loss` of mixed samples plus the proximal term."""
        images, target = self.batch(index)
        share = torch.rand((), generator=self._mixing).item()  # Beta(1, 1)
        partners = torch.randperm(len(index), generator=self._mixing).to(images.device)
        logits = self.model(share * images + (1 - share) * images[partners])[1].float()
        other = self.target_loss(logits, target[partners])
        loss = share * self.target_loss(logits, target) + (1 - share) * other
        if not self._pull:
            return loss
        return loss + self._pull * (squared_distance(self.model, self._received) + 1e-12).sqrt()  # D3

    def report(self) -> Report:
        """After a turn: keeps the losses of the local model and reports its mean LID."""
        if self.task.stage != TURN:
            return {}
        lid, losses = self.lid_and_losses()
        keep(LOSSES, losses, self.task.round_num, self.task, self.site)
        return {"lid": np.array(lid, dtype=np.float32)}

    @abstractmethod
    def target_loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Scalar loss of a batch.

        Args:
            logits: float32, of the network: (B, C), of masks (B, 2, H, W).
            target: as ``batch`` gives it.
        """

    @abstractmethod
    def lid_and_losses(self) -> tuple[float, np.ndarray]:
        """Mean LID of the local model's predictions, and (N,) float32 losses of the samples."""


@dataclass(kw_only=True, eq=False)
class CorrectingMethod(Settings, LocalMethod, ABC):
    """Client half of FedCorr. To be put before the class of methods for a kind of labels.

    Args:
        beta: weight of the proximal term of stage 1, >= 0.
        relabel_ratio: pi, share of the samples in the larger component that may be relabelled in stage 1, 0 to 1.
        confidence: theta, the global model must be surer than this of a new label, 0 to 1.
    """

    FIELDS = FIELDS
    beta: Weight = 5.0
    relabel_ratio: Share = 0.5
    confidence: Share = 0.5

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """A noisy site corrects labels; after a round of stage 1 every site says its noise level."""
        site.ledger.undo(rule=RULE, from_round=task.ledger_round)  # the question may be asked again
        if task.stage == RELABEL:
            self.relabel(np.ones(len(site.data.train), dtype=bool), model, task, site)
            return {}
        level = self._correct(model, task, site) if task.role == NOISY else 0.0
        keep(LEVEL, np.array(level), task.ledger_round, task, site)
        return {"noise_level": np.array(level, dtype=np.float32)}

    def _correct(self, model: nn.Module, task: RoundTask, site: Site) -> float:
        """Relabels the samples of the largest losses; mu_k."""
        losses = kept(LOSSES, task, site)
        if losses is None:
            return 1.0  # D7
        level = float(stands_out(losses).mean())
        chosen = np.zeros(len(losses), dtype=bool)
        chosen[np.argsort(-losses, kind="stable")[: int(len(losses) * level * self.relabel_ratio)]] = True
        if chosen.any():
            self.relabel(chosen, model, task, site)
        return level

    @abstractmethod
    def relabel(self, chosen: np.ndarray, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Gives samples the labels of which the model is sure, in the ledger.

        Args:
            chosen: (N,) bool, which samples.
            model: the received global model.
            task: the question.
            site: whose labels.
        """


# ---- the server -----------------------------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class FedCorrWorkflow(Settings, Workflow):
    """Stage 1 from site to site, then federated averaging over the clean sites and over all.

    Args:
        iterations: T1, rounds of stage 1, >= 1, which come before the ``num_rounds`` of the job.
        finetune_share: share of these that stage 2 has, above 0 to 1; at least one round.
        clean_threshold: kappa, largest noise level of a site that takes part in stage 2, 0 to 1.
    """

    METHOD = CorrectingMethod
    NEEDS: ClassVar[Mapping[str, Sequence[str]]] = {TURN: ("lid",), CORRECT: ("noise_level",)}
    least_sites = MIN_SITES

    @dataclass
    class Memory:
        """What stage 1 found.

        Attributes:
            lids: site → mean LID of each of its turns.
            noisy: the noisy sites.
            levels: site → noise level.
        """

        lids: dict[str, list[float]] = field(default_factory=dict)
        noisy: list[str] = field(default_factory=list)
        levels: dict[str, float] = field(default_factory=dict)

    iterations: Count = 2
    finetune_share: SomeShare = 0.5
    clean_threshold: Share = 0.1

    def run(self, fed: Federation) -> None:
        first = self.warmup_rounds = self.iterations  # not before: the job's own rounds need not hold them
        usual = first + max(round(self.finetune_share * fed.num_rounds), 1)
        for r in fed.rounds(first + fed.num_rounds):
            if 0 < r <= first:
                self._correct(fed, r)
            if r < first:
                self._from_site_to_site(fed)
            elif r < usual:
                fed.train(FINETUNE, sites=self._clean(fed, first=r == first))
            else:
                if r == usual:
                    self._relabel(fed)
                fed.train(USUAL)

    @staticmethod
    def _from_site_to_site(fed: Federation) -> None:
        sites, lids = sorted(fed.sites), fed.memory.lids
        for i in fed.generator("order").permutation(len(sites)):
            answer = fed.train(TURN, sites=[sites[i]])[sites[i]]
            lids[sites[i]] = [*lids.get(sites[i], []), float(answer.report["lid"])]

    def _correct(self, fed: Federation, turns: int) -> None:
        """Tells noisy from clean sites and asks the noisy ones to correct labels."""
        memory = fed.memory
        sums = {s: sum(lids) for s, lids in sorted(memory.lids.items()) if s in fed.sites and len(lids) == turns}
        if len(sums) < MIN_SITES:
            raise FedMendError(f"stage 1: expected LID of at least {MIN_SITES} sites, got {len(sums)}")
        found = detect_noisy_clients(min_max(np.array(list(sums.values())))[:, None])
        clean = {site for site, noisy in zip(sums, found.noisy, strict=True) if not noisy}
        memory.noisy = sorted(set(fed.sites) - clean)
        answers = fed.collect(CORRECT, roles={s: CLEAN if s in clean else NOISY for s in fed.sites})
        memory.levels = {site: float(a.report["noise_level"]) for site, a in answers.items()}
        fed.record(
            "noisy_sites",
            {
                "lid": {site: round(value, 4) for site, value in sums.items()},
                "noisy": memory.noisy,
                "vote_share": round(found.vote_share, 4),
                "noise_level": {site: round(level, 4) for site, level in memory.levels.items()},
            },
        )
        self._corrected(fed, [site for site in memory.noisy if memory.levels.get(site) and site in memory.lids])

    def _clean(self, fed: Federation, *, first: bool) -> list[str]:
        """The sites of stage 2."""
        clean = [site for site in fed.sites if fed.memory.levels.get(site, 1.0) <= self.clean_threshold]
        if first and not clean:  # D6
            sentence = "no clean site found: all sites take part in stage 2"
            fed.record("fallback", sentence)
            fed.warn(sentence)
        return clean or list(fed.sites)

    def _relabel(self, fed: Federation) -> None:
        noisy = [site for site in fed.memory.noisy if site in fed.sites]
        if noisy:
            self._corrected(fed, list(fed.collect(RELABEL, sites=noisy, roles=dict.fromkeys(noisy, NOISY))))

    @staticmethod
    def _corrected(fed: Federation, sites: list[str]) -> None:
        """Writes down who has corrected, which the report of a run with masks shows."""
        if sites and fed.kind == SEGMENTATION:
            fed.record("corrected", sites)
