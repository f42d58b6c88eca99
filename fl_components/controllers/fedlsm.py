"""The rounds of FedLSM (Deng et al., MICCAI 2023), and of the baselines that it is compared with, on the server."""

from functools import partial

from fedmend.data.manifest import MULTILABEL
from fedmend.errors import FedMendError
from fedmend.methods.fedlsm import check_report, positive_weights
from fl_components.aggregators import ClasswiseAggregator
from fl_components.controllers.staged import StagedController
from fl_components.payload import SiteResult


class FedLSMController(StagedController):
    """One stage; the classifier is averaged class by class.

    Args:
        classifier: keys of the model whose first axis is the classes.
        aggregation: ``awpa`` (Eq. 7; FedLSM alone), ``masked`` or ``samples``, see
            :func:`fedmend.methods.fedlsm.class_weights`.
        pos_weight_cap: largest weight of the positive term of a class, >= 1.
        settings: see :class:`StagedController`; ``warmup_rounds`` has no meaning.
    """

    def __init__(self, *, classifier: list[str], aggregation: str = "awpa", pos_weight_cap: float = 100.0, **settings):
        super().__init__(**settings)
        if aggregation not in ("awpa", "masked", "samples") or not pos_weight_cap >= 1:
            raise ValueError(
                "expected aggregation awpa, masked or samples and pos_weight_cap >= 1, got"
                f" {aggregation!r} and {pos_weight_cap}"
            )
        if not classifier or len(set(classifier)) < len(classifier):
            raise ValueError(f"expected different keys in classifier, got {classifier}")
        self._classifier, self._aggregation, self._cap = classifier, aggregation, pos_weight_cap
        self.warmup_rounds = 0

    def rounds(self) -> None:
        """R rounds."""
        model, _, first = self.start_run()
        classes = len(self.card.classes)
        for key in self._classifier:
            if key not in model.params or len(model.params[key]) != classes:
                raise FedMendError(
                    f"job variable classifier: expected keys of the model with {classes} rows, got {key!r}"
                )
        known = {site: positives > 0 for site, positives in self.positives.items()}
        if everything := sorted(site for site, flags in known.items() if flags.all()):
            self.record("every_class_known", f"no pseudo-labels and no mixed pairs at {', '.join(everything)}")
        check = partial(check_report, num_classes=classes, needs_knowledge=self._aggregation == "awpa")
        knowledge = {}
        if self.task == MULTILABEL:
            knowledge["pos_weight"] = positive_weights(self.positives, self.samples, cap=self._cap)
        for r in range(first, self.num_rounds):
            aggregator = ClasswiseAggregator(self._classifier, known, rule=self._aggregation)
            model, results = self.train_round(model, "train", r, knowledge, aggregator, check)
            self._record(results, r + 1)
            self.save_progress(model, r + 1)
        self.finish(model)

    def _record(self, results: dict[str, SiteResult], round_num: int) -> None:
        for name in ("class_knowledge", "uncertainty"):
            shown = {site: r.report[name].tolist() for site, r in results.items() if name in r.report}
            if shown:
                self.record(name, shown, round_num)
