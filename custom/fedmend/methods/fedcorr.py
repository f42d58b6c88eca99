"""FedCorr: noisy sites are found by the dimension of their predictions, and their labels are corrected step by step.

Xu, Chen, Quek, Chong, "FedCorr: Multi-Stage Federated Learning for Label Noise Correction", CVPR 2022. K sites, C
classes, R rounds. LID: local intrinsic dimension, see :mod:`fedmend.methods.dimensions`.

1. Before the R rounds, T1 times (``iterations``): the model goes from site to site in random order, one site per round,
   without an average. A site trains with mixup (lam ~ Beta(1, 1) per batch) and beta mu_k ||w - w_received||_2, mu_k
   its noise level of the iteration before, at first 0. It reports the mean LID of its local model's softmax outputs and
   keeps the losses of its samples. After the last site a two-component Gaussian mixture on the sums of LID over the
   iterations so far tells noisy sites, the larger mean, from clean ones. A noisy site fits a mixture to its losses of
   this iteration: its noise level is the share in the larger component. Of its int(N level 0.5) largest losses, those
   of which the current global model is surer than 0.5 get the class that it gives them. A clean site has level 0.
2. ``finetune_share`` of the R rounds: federated averaging with mixup over the sites of a level up to 0.1. At its end
   each noisy site relabels all samples of which the global model is surer than 0.5.
3. The rest of the R rounds: federated averaging with mixup over all sites.

With ``la`` logit adjustment is added to all training losses ("employed in the local training phase", FedNoRo).

- D1 beta 5 and mixup, as in every published command; the code's defaults are 0 and off. T1, T2, T3 are those of the
  appendix of FedNoRo: 2, 50, 50 on ICH and 5, 150, 150 on ISIC 2019, where stage 1 does not count as rounds either.
- D2 the square root of the proximal term starts at 1e-12, where the code leaves out the first batch, whose gradient is
  not a number.
- D3 losses are plain cross-entropy; the code takes it of softmax outputs, as if they were logits. They are those of one
  iteration (code; the paper says accumulated).
- D4 plain images for LID, losses and new labels, where the code leaves the augmentation on; logits without adjustment.
- D5 the prior of ``la`` is that of the labels in force, in every round: of a prior fixed at the start, a sample
  relabelled to a class that the site did not have would have an infinite loss.
- D6 LID is limited (:func:`fedmend.methods.dimensions.local_intrinsic_dimension`). The sums are scaled to 0..1 and go
  into the mixtures that FedNoRo's sites go into, which vote; they are made for few sites too. Fewer than 4 are refused.
- D7 no site with a level up to 0.1, where the code divides by 0: stage 2 is over all sites, and the record says so.
- D8 a site that does not answer in its turn stops the run, as in a round that needs it; a job that goes on without it
  skips its turns. A site without a turn in some iteration counts as noisy, one that never had any has level 1.

Original labels are not written over: changes are in the ledger. Passes per sample: stage 1 T1 (E forward-backward and 1
inference, at a noisy site 2), stages 2 and 3 E forward-backward per round; stage 1 is serial.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedmend.errors import FedMendError, check_variables
from fedmend.fields import Field, Report
from fedmend.method import Federation, Round, RoundTask, Site, Workflow
from fedmend.methods.dimensions import (
    LID,
    MIN_SITES,
    NOISE_LEVEL,
    detect_noisy_clients,
    local_intrinsic_dimension,
    min_max,
    stands_out,
)
from fedmend.methods.singlelabel import SingleLabelMethod, SingleLabelRound, class_changes
from fedmend.training import infer

TURN, CORRECT, FINETUNE, RELABEL, USUAL = "turn", "correct", "finetune", "relabel", "usual"
CLEAN, NOISY = "clean", "noisy"
RULE = "fedcorr.correction"
LOSSES, LEVEL = "losses", "noise_level"  # in the site's state
FIELDS: Mapping[str, Field] = {"lid": LID, "noise_level": NOISE_LEVEL}


# ---- the site -------------------------------------------------------------------------------------------------------
class FedCorrRound(SingleLabelRound):
    """Mixup; in a turn of stage 1 also the proximal term."""

    method: "FedCorr"

    def __init__(self, method: "FedCorr", model: nn.Module, task: RoundTask, site: Site):
        super().__init__(method, model, task, site)
        before = site.state.last_turn(LEVEL, before=task.round_num) if task.stage == TURN else None
        self._pull = method.beta * before[1] if before else 0.0
        self._received = [p.detach().clone() for p in model.parameters()] if self._pull else []

    def labels(self) -> np.ndarray:
        """(N, C) labels in force."""
        return self.site.ledger.apply(self.site.data.train.labels)

    def batches(self, epoch: int) -> Iterable[Tensor]:
        """See :class:`SingleLabelRound`; the partners of mixup and their shares are drawn too."""
        self._mixing = self.site.generator(self.task, f"mixup {epoch}")
        return super().batches(epoch)

    def loss(self, index: Tensor) -> Tensor:
        """Cross-entropy of mixed samples plus the proximal term."""
        images, target = self.batch(index)
        share = torch.rand((), generator=self._mixing).item()  # Beta(1, 1)
        order = torch.randperm(len(index), generator=self._mixing).to(images.device)
        logits = self.adjusted(self.model(share * images + (1 - share) * images[order])[1])
        loss = share * F.cross_entropy(logits, target) + (1 - share) * F.cross_entropy(logits, target[order])
        return loss + self._pull * self._distance() if self._pull else loss

    def _distance(self) -> Tensor:
        pairs = zip(self.model.parameters(), self._received, strict=True)
        return (sum((p - q).square().sum() for p, q in pairs) + 1e-12).sqrt()

    def report(self) -> Report:
        """After a turn: keeps the losses of the local model and reports its mean LID."""
        if self.task.stage != TURN:
            return {}
        site = self.site
        logits = infer(self.model, site.data.train, site)[1]
        losses = F.cross_entropy(logits, self.target.cpu(), reduction="none").numpy()
        site.state.save_array(LOSSES, self.task.round_num, losses, fingerprint=fingerprint(self.task, site))
        return {"lid": np.float32(local_intrinsic_dimension(logits.softmax(1).numpy()).mean())}


class FedCorr(SingleLabelMethod):
    """Client half of FedCorr.

    Args:
        la: logit adjustment by the prior of the labels in force, in all training losses.
        beta: weight of the proximal term of stage 1, >= 0.
        relabel_ratio: share of the samples in the larger component that may be relabelled in stage 1, 0 to 1.
        confidence: the global model must be surer than this of a new label, 0 to 1.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    ROUND: ClassVar[type[Round]] = FedCorrRound

    def __init__(self, *, la: bool = False, beta: float = 5.0, relabel_ratio: float = 0.5, confidence: float = 0.5):
        super().__init__(la=la)
        check_variables(0 <= beta < math.inf, ">= 0", beta=beta)
        shares = {"relabel_ratio": relabel_ratio, "confidence": confidence}
        check_variables(all(0 <= share <= 1 for share in shares.values()), "0 to 1", **shares)
        self.beta, self.relabel_ratio, self.confidence = beta, relabel_ratio, confidence

    def collect(self, model: nn.Module, task: RoundTask, site: Site) -> Report:
        """A noisy site corrects labels; after an iteration of stage 1 every site says its noise level."""
        site.ledger.undo(rule=RULE, from_round=task.ledger_round)  # the question may be asked again
        if task.stage == RELABEL:
            self._relabel(np.arange(len(site.data.train)), model, task, site)
            return {}
        level = self._correct(model, task, site) if task.role == NOISY else 0.0
        site.state.save_turn(LEVEL, task.ledger_round, level)
        return {"noise_level": np.float32(level)}

    def _correct(self, model: nn.Module, task: RoundTask, site: Site) -> float:
        """Relabels the samples with the largest losses; noise level."""
        losses = site.state.last_array(LOSSES, before=task.round_num, fingerprint=fingerprint(task, site))
        if losses is None:
            return 1.0  # D8
        level = float(stands_out(losses).mean())
        largest = np.argsort(-losses, kind="stable")[: int(len(losses) * level * self.relabel_ratio)]
        if len(largest):
            self._relabel(largest, model, task, site)
        return level

    def _relabel(self, samples: np.ndarray, model: nn.Module, task: RoundTask, site: Site) -> None:
        """Gives those of the samples of which the model is sure the class that it sees."""
        labels = site.ledger.apply(site.data.train.labels)
        probability, found = (x.numpy() for x in infer(model, site.data.train, site)[1].softmax(1).max(1))
        chosen = samples[probability[samples] > self.confidence]
        target = labels.argmax(1)
        target[chosen] = found[chosen]
        site.ledger.record(RULE, task.ledger_round, labels, class_changes(labels, target, probability))


def fingerprint(task: RoundTask, site: Site) -> str:
    """Of the samples that losses belong to, and of the run."""
    return f"{site.data.train.table.fingerprint()} {task.seed}"


# ---- the server -----------------------------------------------------------------------------------------------------
class FedCorrWorkflow(Workflow):
    """Stage 1 from site to site, then federated averaging over the clean sites and over all.

    Args:
        iterations: T1, turns of each site in stage 1, >= 1; its rounds come before the ``num_rounds`` of the job.
        finetune_share: share of these that stage 2 has, above 0 to 1; at least one round.
        clean_threshold: largest noise level of a site that takes part in stage 2, 0 to 1.
    """

    FIELDS: ClassVar[Mapping[str, Field]] = FIELDS
    least_sites = MIN_SITES

    @dataclass
    class Memory:
        """What stage 1 found.

        Attributes:
            sites: those that stage 1 began with.
            order: their order in this iteration.
            lids: site → mean LID of each of its turns.
            noisy: the noisy sites.
            levels: site → noise level.
        """

        sites: list[str] = field(default_factory=list)
        order: list[str] = field(default_factory=list)
        lids: dict[str, list[float]] = field(default_factory=dict)
        noisy: list[str] = field(default_factory=list)
        levels: dict[str, float] = field(default_factory=dict)

    def __init__(self, *, iterations: int = 2, finetune_share: float = 0.5, clean_threshold: float = 0.1):
        check_variables(iterations >= 1, "at least 1", iterations=iterations)
        check_variables(0 < finetune_share <= 1, "above 0 to 1", finetune_share=finetune_share)
        check_variables(0 <= clean_threshold <= 1, "0 to 1", clean_threshold=clean_threshold)
        self.iterations, self.finetune_share, self.clean_threshold = iterations, finetune_share, clean_threshold

    def run(self, fed: Federation) -> None:
        """T1 K rounds of one site each, then R rounds."""
        fed.memory.sites = fed.memory.sites or sorted(fed.sites)
        turns = self.warmup_rounds = self.iterations * len(fed.memory.sites)
        usual = turns + max(round(self.finetune_share * fed.num_rounds), 1)
        for r in fed.rounds(turns + fed.num_rounds):
            iteration, place = divmod(r, len(fed.memory.sites))
            if 0 < r <= turns and place == 0:
                self._correct(fed, iteration)
            if r < turns:
                self._turn(fed, place)
            elif r < usual:
                fed.train(FINETUNE, sites=self._clean(fed, first=r == turns))
            else:
                if r == usual:
                    self._relabel(fed)
                fed.train(USUAL)

    def check(self, stage: str, report: Report) -> None:
        """Refuses a report without the number of its stage."""
        needed = {TURN: "lid", CORRECT: "noise_level"}.get(stage)
        if needed and needed not in report:
            raise FedMendError(f"report: expected the field {needed}, got none")

    def _turn(self, fed: Federation, place: int) -> None:
        memory = fed.memory
        if place == 0:
            memory.order = [memory.sites[i] for i in fed.generator("order").permutation(len(memory.sites))]
        site = memory.order[place]
        if site not in fed.sites:
            fed.record("turn_skipped", site)
            return
        answer = fed.train(TURN, sites=[site])[site]
        memory.lids[site] = [*memory.lids.get(site, []), float(answer.report["lid"])]

    def _correct(self, fed: Federation, iterations: int) -> None:
        """Tells noisy from clean sites and asks the noisy ones to correct labels."""
        memory = fed.memory
        sums = {s: sum(lids) for s, lids in sorted(memory.lids.items()) if s in fed.sites and len(lids) == iterations}
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

    def _clean(self, fed: Federation, *, first: bool) -> list[str]:
        """The sites of stage 2."""
        clean = [site for site in fed.sites if fed.memory.levels.get(site, 1.0) <= self.clean_threshold]
        if first and not clean:
            sentence = "no clean site found: all sites take part in stage 2"
            fed.record("fallback", sentence)
            fed.warn(sentence)
        return clean or list(fed.sites)

    def _relabel(self, fed: Federation) -> None:
        noisy = [site for site in fed.memory.noisy if site in fed.sites]
        if noisy:
            fed.collect(RELABEL, sites=noisy, roles=dict.fromkeys(noisy, NOISY))
