"""The stages of FedIA (Xiang et al., MICCAI 2024) on the server."""

from collections.abc import Mapping

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel

from fedmend.methods.fedia import (
    COMPLETENESS,
    CORRECTED,
    CORRECTION,
    DONE,
    EXEMPT,
    TRIGGERED,
    WARMUP,
    check_completeness,
    check_report,
    completeness,
    soft_iou,
)
from fl_components.aggregators import CompletenessAggregator, SampleWeightedAggregator
from fl_components.controllers.staged import LOG, Knowledge, StagedController
from fl_components.payload import SiteResult


class FedIAController(StagedController):
    """Warm-up, estimation of the completeness once, completeness-aware aggregation with correction, federated averaging.

    Args:
        completeness_aggregation: average by completeness and loss in stage 2 (Eq. 4); False: by samples.
        clip: an estimated completeness is at most 1.
        max_stage2_rounds: rounds after which stage 3 begins even if a site has not corrected; 0 = no limit.
        settings: see :class:`StagedController`; ``warmup_rounds`` is the paper's T, at least 2.
    """

    def __init__(
        self,
        *,
        completeness_aggregation: bool = True,
        clip: bool = False,
        max_stage2_rounds: int = 0,
        **settings,
    ):
        super().__init__(**settings)
        if self.warmup_rounds < 2 or max_stage2_rounds < 0:
            raise ValueError(
                "expected warmup_rounds >= 2, which a line needs, and max_stage2_rounds >= 0, got"
                f" {self.warmup_rounds} and {max_stage2_rounds}"
            )
        self._by_completeness, self._clip = completeness_aggregation, clip
        self._max_stage2_rounds = max_stage2_rounds
        self._completeness: dict[str, float] = {}  # site → a of Eq. (3)
        self._correction: dict[str, int] = {}  # site → how far it is

    def rounds(self) -> None:
        """R rounds, T of them warm-up."""
        model, knowledge, first = self.start_run()
        self._restore(knowledge)
        for r in range(first, self.num_rounds):
            if r < self.warmup_rounds:  # stage 1, Eq. (1)
                model = self._round(model, WARMUP, r)
            else:
                if r == self.warmup_rounds:
                    self._estimate(model, r)  # Eqs. (3) and (6)
                if self._in_stage_2(r):  # Eqs. (4)-(7)
                    model = self._round(model, CORRECTION, r, by_completeness=self._by_completeness)
                else:  # stage 3, Eq. (1)
                    model = self._round(model, CORRECTED, r)
            self.save_progress(model, r + 1, self._memory())
        if left := self._uncorrected():
            self.record("not_corrected", left, self.num_rounds)
            words = "their IoU never fell behind its line, or the job does not correct"
            LOG.warning("%snot corrected by the end: %s; %s", self._mark, ", ".join(left), words)
        self.finish(model)

    def _uncorrected(self) -> list[str]:
        """Sites that have not corrected and may yet: not those that are spared, nor those without a line to fall behind."""
        return [site for site in sorted(self._completeness) if self._correction.get(site) not in (DONE, EXEMPT)]

    def _in_stage_2(self, round_num: int) -> bool:
        if self._max_stage2_rounds and round_num >= self.warmup_rounds + self._max_stage2_rounds:
            return False
        return bool(self._uncorrected())

    def _estimate(self, model: FLModel, round_num: int) -> None:
        results = self.collect(
            model, COMPLETENESS, round_num, at_least=self._min_sites, check_report=check_completeness
        )
        lesions = {site: result.report["lesions"] for site, result in results.items()}
        self._completeness = {site: completeness(counts, clip=self._clip) for site, counts in lesions.items()}
        self.record(
            "completeness",
            {
                site: {"annotated": int(counts[0]), "predicted": int(counts[1]), "estimate": self._completeness[site]}
                for site, counts in lesions.items()
            },
            round_num,
        )
        for site, counts in lesions.items():
            if not counts[1]:
                words = "the model finds no lesion there, so it counts as the least complete site"
            elif counts[0] > counts[1]:
                words = f"more lesions are marked ({counts[0]}) than the model finds ({counts[1]}), so the estimate is above 1"
                words += " and was cut" if self._clip else ""
            else:
                continue
            LOG.warning("%s%s: completeness: %s", self._mark, site, words)
        lines = {site: [round(float(v), 6) for v in result.report["iou_line"]] for site, result in results.items()}
        self.record("iou_line", lines, round_num)

    def _round(self, model: FLModel, stage: str, round_num: int, *, by_completeness: bool = False) -> FLModel:
        aggregator = CompletenessAggregator(self._completeness) if by_completeness else SampleWeightedAggregator()
        knowledge = {
            "first_round": np.int64(self.warmup_rounds),
            "best_completeness": np.float64(max(self._completeness.values(), default=0.0)),
        }
        model, results = self.train_round(model, stage, round_num, knowledge, aggregator, check_report)
        self._record_round(results, round_num + 1)
        if by_completeness:
            shares = {site: round(share, 6) for site, share in aggregator.shares.items()}
            self.record("completeness_weights", shares, round_num + 1)
        return model

    def _record_round(self, results: Mapping[str, SiteResult], done_rounds: int) -> None:
        iou = {site: round(soft_iou(float(r.report["dice_loss"][0])), 6) for site, r in results.items()}
        self.record("iou", iou, done_rounds)
        for name, value in (("triggered", TRIGGERED), ("corrected", DONE), ("spared", EXEMPT)):
            now = {site for site, r in results.items() if int(r.report["correction"][0]) == value}
            if new := sorted(site for site in now if self._correction.get(site) != value):
                self.record(name, new, done_rounds)
        self._correction |= {site: int(r.report["correction"][0]) for site, r in results.items()}

    def _memory(self) -> Knowledge:
        """What a job that goes on needs to know, as arrays for the checkpoint."""
        estimates = {f"completeness/{site}": np.float64(value) for site, value in self._completeness.items()}
        return estimates | {f"correction/{site}": np.int64(value) for site, value in self._correction.items()}

    def _restore(self, memory: Knowledge) -> None:
        for key, value in memory.items():
            name, _, site = key.partition("/")
            if name == "completeness":
                self._completeness[site] = float(value)
            else:
                self._correction[site] = int(value)
