"""Aggregation of site models on the server."""

from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

from fl_components.payload import unpack_result


class SampleWeightedAggregator(ModelAggregator):
    """FedAvg: sum_k N_k w_k / sum_k N_k over all floating tensors, BatchNorm statistics included.

    The sum depends on its order in the last digits, so :class:`StagedController` hands results over in sorted site order
    after all have arrived; the server holds one model per site meanwhile.
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
