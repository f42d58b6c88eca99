"""The stages of FedMLP (Sun, Wu et al., MICCAI 2024) on the server."""

from functools import partial

from fedmend.methods.fedmlp import (
    DETECT,
    PROTOTYPE,
    WARMUP,
    check_report,
    classes_without_prototype,
    global_learning_degree,
    global_prototypes,
)
from fl_components.controllers.staged import Knowledge, StagedController
from fl_components.payload import SiteResult


class FedMLPController(StagedController):
    """Warm-up, prototypes in its last round, then missing-label detection with self-adaptive thresholds.

    Args:
        degree_over: the sites whose learning degree of a class counts, ``missing``, ``annotated`` or ``all`` (D5 of
            :mod:`fedmend.methods.fedmlp`).
        prototype_weighting: ``samples`` or ``uniform`` (D6).
        settings: see :class:`StagedController`.
    """

    def __init__(self, *, degree_over: str = "missing", prototype_weighting: str = "samples", **settings):
        super().__init__(**settings)
        if degree_over not in ("missing", "annotated", "all") or prototype_weighting not in ("samples", "uniform"):
            raise ValueError(f"unknown degree_over {degree_over!r} or prototype_weighting {prototype_weighting!r}")
        self._degree_over, self._prototype_weighting = degree_over, prototype_weighting

    def rounds(self) -> None:
        """R rounds, t1 of them warm-up."""
        model, knowledge, first = self.start_run()
        num_classes, num_features = model.params["classifier.weight"].shape
        check = partial(check_report, num_classes=num_classes, num_features=num_features)
        for r in range(first, self.num_rounds):
            model, results = self.train_round(model, self._stage(r), r, knowledge, check_report=check)
            knowledge = self._merge_reports(results, r)  # Eqs. (6) and (10)
            self.save_progress(model, r + 1, knowledge)
        self.finish(model)

    def _stage(self, round_num: int) -> str:
        if round_num >= self.warmup_rounds:
            return DETECT
        return PROTOTYPE if round_num == self.warmup_rounds - 1 else WARMUP

    def _merge_reports(self, results: dict[str, SiteResult], round_num: int) -> Knowledge:
        reports = {site: result.report for site, result in results.items() if result.report}
        if not reports:
            return {}
        samples = {site: results[site].samples for site in reports}
        degree = global_learning_degree(reports, samples, self.annotated, over=self._degree_over)
        shown = {c: round(float(d), 4) for c, d in zip(self.card.classes, degree, strict=True)}
        self.record("learning_degree", shown, round_num + 1)
        prototypes = global_prototypes(reports, samples, weighting=self._prototype_weighting)
        if missing := classes_without_prototype(prototypes):
            self.record("no_prototype", [self.card.classes[c] for c in missing], round_num + 1)
        return {"prototypes": prototypes, "learning_degree": degree}
