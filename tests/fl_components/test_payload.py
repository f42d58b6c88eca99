import re

import numpy as np
import pytest
from factories import refused
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs
from nvflare.private.fed.utils.fed_utils import fobs_initialize

from fedmend.errors import FedMendError
from fedmend.methods.base import RoundTask
from fl_components.payload import (
    RunCard,
    SiteResult,
    check_result,
    pack_result,
    pack_task,
    unpack_result,
    unpack_task,
)

WEIGHTS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, dtype=np.float32)}
RUN = RunCard("run-1", ("edema", "nodule"), "tiny", 3)


@pytest.fixture(scope="module")
def wire():
    """What FLARE makes of a model between two processes."""
    fobs_initialize()
    common_decomposers.register()
    return lambda model: FLModelUtils.from_shareable(fobs.loads(fobs.dumps(FLModelUtils.to_shareable(model))))


def same_arrays(one, other):
    assert set(one) == set(other)
    for name, value in one.items():
        assert value.dtype == other[name].dtype
        np.testing.assert_array_equal(value, other[name])


def good_result(**changes):
    fields = {"site": "site-1", "round_num": 4, "samples": 7, "weights": WEIGHTS, "loss": 0.25}
    return SiteResult(**{**fields, **changes})


def check(**changes):
    check_result(good_result(**changes), round_num=4, num_classes=2, weights=WEIGHTS)


def test_a_task_survives_the_wire(wire):
    knowledge = {"prototypes": np.eye(4, dtype=np.float32), "learning_degree": np.array([0.25, 1.0])}
    task = RoundTask("detect", 5, 9, knowledge, "noisy", seed=3)
    weights, got, run, evaluate = unpack_task(wire(pack_task(WEIGHTS, task, RUN, evaluate=True)))
    same_arrays(weights, WEIGHTS)
    same_arrays(got.knowledge, knowledge)
    assert (got.stage, got.round_num, got.total_rounds, got.role, got.seed) == ("detect", 5, 9, "noisy", 3)
    assert run == RUN
    assert evaluate is True


def test_a_task_without_weights_survives_the_wire(wire):
    weights, got, run, evaluate = unpack_task(wire(pack_task({}, RoundTask("census", 0, 9), RUN, evaluate=False)))
    assert (weights, got.stage, run, evaluate) == ({}, "census", RUN, False)


@pytest.mark.parametrize("weights", [WEIGHTS, {}], ids=["weights", "no weights"])
def test_a_result_survives_the_wire(wire, weights):
    result = good_result(
        weights=weights,
        report={"prototypes": np.full((4, 2), 0.5, np.float32), "prototype_counts": np.array([3, 4, 0, 9])},
        counts={"val": np.arange(8).reshape(2, 2, 2)},
        repairs={"positive": np.array([0, 2])},
        census={"annotated": np.array([True, False]), "sizes": {"train": 7}, "phantom": True},
        error="a sentence",
    )
    got = unpack_result(wire(pack_result(result)), "site-1")
    for name in ("weights", "report", "counts", "repairs"):
        same_arrays(getattr(got, name), getattr(result, name))
    assert got.census.pop("annotated").tolist() == [True, False]
    assert got.census == {"sizes": {"train": 7}, "phantom": True}
    assert (got.round_num, got.samples, got.loss, got.error) == (4, 7, 0.25, "a sentence")


def test_the_site_of_a_result_is_the_one_that_flare_names_not_the_one_in_the_message(wire):
    assert unpack_result(wire(pack_result(good_result(site="site-2"))), "site-1").site == "site-1"


def test_messages_of_another_kind_are_refused():
    stranger = FLModel(metrics={"x": 1.0}, current_round=0, total_rounds=1)
    with refused("task from the server: expected a FedMend task, got one that lacks or breaks 'fedmend'"):
        unpack_task(stranger)
    with refused("site-1: result: expected a FedMend result, got one that lacks or breaks 'fedmend'"):
        unpack_result(stranger, "site-1")


def test_a_good_result_is_accepted():
    check()
    check_result(good_result(weights={}), round_num=4, num_classes=2, weights=None)


START = "site-1: result of round 4"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"error": "site-1: train.csv row 3: expected ..., got ..."}, "site-1: train.csv row 3: expected ..., got ..."),
        ({"round_num": 3}, f"{START}: expected round 4, got round 3"),
        ({"samples": 0}, f"{START}, field samples: expected at least 1, got 0"),
        (
            {"weights": {"a": WEIGHTS["a"]}},
            f"{START}, weights: expected the global model's 2 tensors, missing or unknown: ['b']",
        ),
        (
            {"weights": {**WEIGHTS, "z": WEIGHTS["b"]}},
            f"{START}, weights: expected the global model's 2 tensors, missing or unknown: ['z']",
        ),
        ({"weights": {}}, f"{START}, weights: expected the global model's 2 tensors, missing or unknown: ['a', 'b']"),
        ({"weights": {**WEIGHTS, "b": np.ones(3)}}, f"{START}, weights b: expected shape (2,), got (3,)"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(changes, sentence):
    with refused(sentence):
        check(**changes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    spoilt = np.array([1.0, bad], dtype=np.float32)
    with refused(f"{START}, weights b: expected finite numbers, got NaN or infinity"):
        check(weights={**WEIGHTS, "b": spoilt})
    with refused(f"{START}, report field prototypes: expected finite numbers, got NaN or infinity"):
        check(report={"prototypes": spoilt})


def test_an_error_sentence_counts_before_everything_else_about_a_result():
    with pytest.raises(FedMendError, match=re.escape("the site's own words")):
        check_result(SiteResult(error="the site's own words"), round_num=4, num_classes=2, weights=WEIGHTS)
