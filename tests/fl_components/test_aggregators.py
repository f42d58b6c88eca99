import numpy as np

from fl_components.aggregators import SampleWeightedAggregator
from fl_components.payload import SiteResult, pack_result


def reply(site, samples, *values):
    model = pack_result(SiteResult(samples=samples, weights={"w": np.array(values, dtype=np.float32)}))
    model.meta["client_name"] = site
    return model


def test_the_mean_is_weighted_by_samples():
    aggregator = SampleWeightedAggregator()
    aggregator.accept_model(reply("site-1", 10, 1, 4))
    aggregator.accept_model(reply("site-2", 30, 5, -4))
    merged = aggregator.aggregate_model()
    np.testing.assert_array_equal(merged.params["w"], np.array([4, -2], dtype=np.float32))  # (10*1 + 30*5) / 40
    assert merged.params["w"].dtype == np.float32


def test_a_round_knows_nothing_of_the_one_before():
    aggregator = SampleWeightedAggregator()
    aggregator.accept_model(reply("site-1", 10, 100))
    aggregator.aggregate_model()
    aggregator.reset_stats()
    aggregator.accept_model(reply("site-1", 10, 2))
    assert aggregator.aggregate_model().params["w"].tolist() == [2]


def test_received_models_are_not_changed():
    model = reply("site-1", 10, 1, 4)
    aggregator = SampleWeightedAggregator()
    aggregator.accept_model(model)
    aggregator.accept_model(reply("site-2", 30, 5, -4))
    aggregator.aggregate_model()
    assert model.params["w"].tolist() == [1, 4]
