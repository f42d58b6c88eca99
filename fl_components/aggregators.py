"""Aggregation of site models on the server."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

from fedmend.errors import FedMendError
from fedmend.methods.fedia import completeness_weights
from fedmend.methods.fedlsm import class_weights
from fedmend.methods.fednoro import distance_aware_weights, model_distances
from fl_components.payload import SiteResult, unpack_result


class SampleWeightedAggregator(ModelAggregator):
    """FedAvg: sum_k N_k w_k / sum_k N_k over all floating tensors, BatchNorm statistics included.

    The sum depends on its order in the last digits, so :class:`StagedController` hands results over in sorted site order; the
    server holds the models that came before their turn.
    """

    def __init__(self):
        super().__init__()
        self._helper = WeightedAggregationHelper()

    def accept_model(self, model: FLModel) -> None:
        """Adds one validated site result, weighted by its number of training samples."""
        result = unpack_result(model, model.meta["client_name"])
        self._helper.add(result.weights, float(result.samples), result.site, result.round_num)

    def aggregate_model(self) -> FLModel:
        """The weighted mean as a full model."""
        return FLModel(params=self._helper.get_result(), params_type=ParamsType.FULL)

    def reset_stats(self) -> None:
        """Forgets the accepted models."""
        self._helper.reset_stats()


class SharesAggregator(SampleWeightedAggregator):
    """An average whose weights depend on all results of the round, which it therefore keeps until the end."""

    def __init__(self):
        super().__init__()
        self._results: list[SiteResult] = []
        self.shares: dict[str, float] = {}  # site → share of its model in the last average

    @abstractmethod
    def weigh(self, results: Sequence[SiteResult]) -> Sequence[float]:
        """Weight of each result, >= 0, not all 0."""

    def accept_model(self, model: FLModel) -> None:
        """Keeps one validated site result."""
        self._results.append(unpack_result(model, model.meta["client_name"]))

    def aggregate_model(self) -> FLModel:
        """The weighted mean as a full model."""
        weights = np.asarray(self.weigh(self._results), dtype=np.float64)
        for result, weight in zip(self._results, weights.tolist(), strict=True):
            if weight > 0:  # a share may vanish in floating point, and FLARE's helper takes no 0
                self._helper.add(result.weights, weight, result.site, result.round_num)
            self.shares[result.site] = weight / float(weights.sum())
        return super().aggregate_model()

    def reset_stats(self) -> None:
        """Forgets the accepted models."""
        super().reset_stats()
        self._results, self.shares = [], {}


class DistanceAwareAggregator(SharesAggregator):
    """DaAgg: sum_k N_k e^-D(k) w_k / sum_j N_j e^-D(j), Eqs. (6)-(7), Wu et al., IJCAI 2023.

    D of a noisy site is the distance of its model to the nearest clean one, divided by the largest of them; D of a clean site
    is 0. Without noisy or without clean models it is :class:`SampleWeightedAggregator`.

    Args:
        noisy: names of the noisy sites.
        distance: ``sum`` or ``l2``, see :func:`fedmend.methods.fednoro.model_distances`.
        buffers: BatchNorm statistics count in the distance.
    """

    def __init__(self, noisy: Collection[str], *, distance: str = "sum", buffers: bool = True):
        super().__init__()
        self._noisy, self._distance, self._buffers = set(noisy), distance, buffers

    def weigh(self, results: Sequence[SiteResult]) -> Sequence[float]:
        """N_k e^-D(k) of each result."""
        noisy = np.array([r.site in self._noisy for r in results])
        distances = np.zeros(len(noisy))
        if noisy.any() and not noisy.all():
            models = [r.weights for r in results]
            distances = model_distances(models, noisy, distance=self._distance, buffers=self._buffers)
        if far := [r.site for r, d in zip(results, distances, strict=True) if not np.isfinite(d)]:
            raise FedMendError(
                f"{', '.join(far)}: weights: expected a finite distance to the clean models, got another"
            )
        return distance_aware_weights([r.samples for r in results], distances)


class CompletenessAggregator(SharesAggregator):
    """sum_k w_k exp(a_k / l_k) / sum_j exp(a_j / l_j), Eq. (4), Xiang et al., MICCAI 2024.

    Args:
        completeness: site → a_k.
    """

    def __init__(self, completeness: Mapping[str, float]):
        super().__init__()
        self._completeness = completeness

    def weigh(self, results: Sequence[SiteResult]) -> Sequence[float]:
        """Share of each result by its completeness and its loss."""
        losses = {r.site: float(r.report["dice_loss"][0]) for r in results}
        shares = completeness_weights(self._completeness, losses)
        return [shares[r.site] for r in results]


class ClasswiseAggregator(SampleWeightedAggregator):
    """Averages the rows of the classifier class by class and everything else by samples, Eq. (7), Deng et al., MICCAI 2023.

    Args:
        classifier: keys of the model whose first axis is the classes.
        known: site → (M,) bool, the classes that it identifies.
        rule: ``awpa``, ``masked`` or ``samples``, see :func:`fedmend.methods.fedlsm.class_weights`.
    """

    def __init__(self, classifier: Sequence[str], known: Mapping[str, np.ndarray], *, rule: str = "awpa"):
        super().__init__()
        self._classifier, self._known, self._rule = list(classifier), known, rule
        self._rows: dict[str, dict[str, np.ndarray]] = {}
        self._knowledge: dict[str, np.ndarray] = {}
        self._samples: dict[str, int] = {}

    def accept_model(self, model: FLModel) -> None:
        """Adds one validated site result."""
        result = unpack_result(model, model.meta["client_name"])
        self._rows[result.site] = {key: result.weights.pop(key) for key in self._classifier}
        self._samples[result.site] = result.samples
        self._knowledge[result.site] = result.report.get("class_knowledge", np.zeros(len(self._known[result.site])))
        self._helper.add(result.weights, float(result.samples), result.site, result.round_num)

    def aggregate_model(self) -> FLModel:
        """The average as a full model."""
        merged = super().aggregate_model()
        shares = class_weights(self._knowledge, self._samples, self._known, rule=self._rule)
        for key in self._classifier:
            rows = [
                share.reshape(-1, *[1] * (self._rows[site][key].ndim - 1)) * self._rows[site][key]
                for site, share in shares.items()
            ]
            merged.params[key] = np.sum(rows, axis=0).astype(self._rows[next(iter(shares))][key].dtype)
        return merged

    def reset_stats(self) -> None:
        """Forgets the accepted models."""
        super().reset_stats()
        self._rows, self._knowledge, self._samples = {}, {}, {}
