"""The stages of FedNoRo (Wu et al., IJCAI 2023) on the server."""

from functools import partial

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel

from fedmend.errors import FedMendError
from fedmend.methods.fednoro import (
    CLEAN,
    DETECT,
    MIN_SITES,
    NOISY,
    ROBUST,
    WARMUP,
    check_report,
    detect_noisy_clients,
    distillation_weight,
    loss_matrix,
    normalise_losses,
)
from fl_components.aggregators import DistanceAwareAggregator
from fl_components.controllers.staged import StagedController


class FedNoRoController(StagedController):
    """Warm-up, detection of the noisy sites once, then robust training.

    Args:
        ramp_begin: round from which lambda rises; -1: the first round of stage 2.
        ramp_end: round from which lambda has its largest value; -1: round(R / 2) - 1.
        ramp_maximum: largest lambda, in [0, 1].
        votes: mixtures that vote on the set of noisy sites.
        min_vote_share: share of the mixtures that must agree on the noisy sites; with less, none is taken for noisy. 0 is the
            published rule.
        covariance: ``auto``, ``full`` or ``spherical``, see :func:`fedmend.methods.fednoro.detect_noisy_clients`.
        detection_per_class: losses per class (Eq. 3); False: one loss per site.
        detection_normalise: min-max normalisation of Eq. (3).
        distance: ``sum`` or ``l2``, see :func:`fedmend.methods.fednoro.model_distances`.
        distance_buffers: BatchNorm statistics count in the distance.
        settings: see :class:`StagedController`.
    """

    def __init__(
        self,
        *,
        ramp_begin: int = -1,
        ramp_end: int = -1,
        ramp_maximum: float = 0.8,
        votes: int = 9,
        min_vote_share: float = 0.67,
        covariance: str = "auto",
        detection_per_class: bool = True,
        detection_normalise: bool = True,
        distance: str = "sum",
        distance_buffers: bool = True,
        **settings,
    ):
        super().__init__(**settings)
        if covariance not in ("auto", "full", "spherical") or distance not in ("sum", "l2"):
            raise ValueError(f"unknown covariance {covariance!r} or distance {distance!r}")
        if votes < 1 or not (0 <= ramp_maximum <= 1 and 0 <= min_vote_share <= 1):
            raise ValueError(
                "expected votes >= 1, ramp_maximum and min_vote_share from 0 to 1, got"
                f" {votes}, {ramp_maximum} and {min_vote_share}"
            )
        begin = self.warmup_rounds if ramp_begin < 0 else ramp_begin
        end = round(self.num_rounds / 2) - 1 if ramp_end < 0 else ramp_end
        self._weight = partial(distillation_weight, begin=begin, end=end, maximum=ramp_maximum)
        self._detection = partial(detect_noisy_clients, votes=votes, covariance=covariance)
        self._per_class, self._normalise = detection_per_class, detection_normalise
        self._min_vote_share = min_vote_share
        self._distance = {"distance": distance, "buffers": distance_buffers}

    def rounds(self) -> None:
        """R rounds, T1 of them warm-up."""
        model, _, first = self.start_run()
        if len(self.annotated) < MIN_SITES:
            raise FedMendError(
                f"census: expected at least {MIN_SITES} sites to tell noisy from clean ones, got {len(self.annotated)}"
            )
        if self.roles:  # an earlier job of this run has them; a site that was not there then has shown nothing
            self.roles = {site: self.roles.get(site, NOISY) for site in self.annotated}
        for r in range(first, self.num_rounds):
            if r < self.warmup_rounds:  # stage 1, Eq. (2)
                model, _ = self.train_round(model, WARMUP, r)
            else:  # stage 2, Eqs. (4)-(7)
                if r == self.warmup_rounds:
                    self._detect(model, r)
                model = self._robust_round(model, r)
            self.save_progress(model, r + 1)
        self.finish(model)

    def _detect(self, model: FLModel, round_num: int) -> None:
        check = partial(check_report, num_classes=len(self.card.classes))
        results = self.collect(model, DETECT, round_num, at_least=MIN_SITES, check_report=check)
        reports = {site: result.report for site, result in results.items()}
        losses = loss_matrix(reports, per_class=self._per_class)  # Eq. (3)
        normalised = normalise_losses(losses, normalise=self._normalise)
        detection = self._detection(normalised)
        agreed = detection.vote_share >= self._min_vote_share
        noisy = [site for site, flag in zip(reports, detection.noisy, strict=True) if flag and agreed]
        absent = sorted(set(self.annotated) - set(reports))
        self.record(
            "noisy_client_detection",
            {
                "class_loss": dict(zip(reports, _numbers(losses), strict=True)),
                "normalised": dict(zip(reports, _numbers(normalised), strict=True)),
                "noisy": noisy,
                "vote_share": round(detection.vote_share, 4),
                "covariance": detection.covariance,
                "absent": absent,
            },
            round_num,
        )
        for column in np.flatnonzero((~np.isnan(losses)).sum(0) == 1) if self._per_class else ():
            site = next(s for s, row in zip(reports, losses, strict=True) if not np.isnan(row[column]))
            name = self.card.classes[column]
            self.record("class_at_one_site", f"{name} is at {site} only and says nothing about noise", round_num)
        distrusted = {*noisy, *absent}
        if not distrusted or len(distrusted) == len(self.annotated):
            which = "noisy" if not distrusted else "clean"
            self.record("fallback", f"no {which} site found: federated averaging goes on", round_num)
            distrusted = set()
        self.roles = {site: NOISY if site in distrusted else CLEAN for site in self.annotated}

    def _robust_round(self, model: FLModel, round_num: int) -> FLModel:
        weight = self._weight(round_num)
        noisy = [site for site, role in self.roles.items() if role == NOISY]
        aggregator = DistanceAwareAggregator(noisy, **self._distance)
        knowledge = {"distillation_weight": np.float32(weight)}
        model, _ = self.train_round(model, ROBUST, round_num, knowledge, aggregator)
        if noisy:
            self.record("distillation_weight", round(weight, 4), round_num + 1)
            shares = {site: round(share, 4) for site, share in aggregator.shares.items()}
            self.record("aggregation_weights", shares, round_num + 1)
        return model


def _numbers(rows: np.ndarray) -> list[list[float | None]]:
    """Numbers for JSON; NaN, a class without samples, becomes null."""
    return [[None if np.isnan(x) else round(float(x), 4) for x in row] for row in rows]
