"""Messages between server and sites."""

import numpy as np
from fuzzing import NASTY, PRIVATE, damaged, number_of_cases, try_all
from nvflare.app_common.abstract.fl_model import FLModel
from result_factories import PREPARED

from fedmend.fields import Field, check_fields
from fedmend.kinds.multilabel import BINS
from fedmend.messages import RunSpec, SiteResult
from fedmend.method import RoundTask
from fedmend.server.checks import Expected, check_result
from fl_components.wire import KEY, TAGGED, pack_result, pack_task, parse_content, unpack_result, unpack_task

WEIGHTS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, dtype=np.float32)}
RUN = RunSpec("run-1", ("edema", "nodule"), "tiny", 3)
FIELDS = {"prototypes": Field(("2C", "F"), "float32", -1e9, 1e9, "", "")}
LETTERS = {"C": 2, "R": 2, "F": 3}
EXPECTED = Expected(round_num=4, num_classes=2, weights=WEIGHTS, sizes={"train": 7}, fields=FIELDS, letters=LETTERS)
ARRAYS = [
    *(np.ones(2), np.array(2), np.array([]), np.array([-1, 2]), np.array([2**62, 2**62]), np.array([np.nan, 1.0])),
    *(np.array(["p1"]), np.array([b"x"]), np.array([1j]), np.zeros((0, 2, BINS), int), np.ones((2, 2, BINS), int)),
    *(np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]), np.array(["NaT"], "datetime64[s]"), np.float32(1)),
    *(np.array([True]), np.array([2**64 - 1], "u8"), np.zeros((1,) * 32), b"x", (1, 2), {1, 2}, 1j),
]
NASTY_PARTS = [*NASTY, *ARRAYS]
NOT_PRIVATE = [value for value in NASTY_PARTS if value is not PRIVATE]  # a server has no patients, an error is told
RESULT = pack_result(
    SiteResult(
        round_num=4,
        samples=7,
        loss=0.25,
        report={"prototypes": np.ones((4, 3), np.float32)},
        counts={"val": np.ones((2, 2, BINS), int)},
        repairs={name: np.array([0, 2]) for name in TAGGED},
        census={
            "annotated": np.array([True, False]),
            "positives": np.array([4, 0]),
            "sizes": {"train": 7, "val": 2},
            "data": {"train": "0" * 32, "val": "1" * 32},
            "kind": "multilabel",
            "phantom": True,
            "preprocessing": PREPARED.told(),
            "min_federation": 1,
        },
    )
).meta[KEY]
KNOWLEDGE = {"prototypes": np.ones((4, 3), np.float32)}
TASK = pack_task(WEIGHTS, RoundTask("detect", 5, 9, KNOWLEDGE, "noisy", sites=("site-1", "site-2")), RUN, evaluate=True)


@number_of_cases
def test_any_content_of_a_result_is_parsed_or_refused_in_one_sentence(cases):
    def parse(content):
        assert isinstance(parse_content(content, "site-1"), SiteResult)

    try_all(damaged(RESULT, NASTY_PARTS), parse, cases)


@number_of_cases
def test_any_result_is_checked_or_refused_in_one_sentence(cases):
    good = {"params": WEIGHTS, "meta": {KEY: RESULT}}

    def receive(parts):
        model = FLModel(metrics={"samples": 1.0})  # FLARE's class refuses some kinds itself, its decoder does not
        parts = parts if isinstance(parts, dict) else {}
        model.params, model.meta = parts.get("params"), parts.get("meta")
        result = unpack_result(model, "site-1")
        check_result(result, EXPECTED)

    try_all(damaged(good, NOT_PRIVATE), receive, cases)


@number_of_cases
def test_any_task_is_unpacked_or_refused_in_one_sentence(cases):
    good = {"params": WEIGHTS, "current_round": 5, "total_rounds": 9, "meta": TASK.meta}

    def receive(parts):
        model = FLModel(metrics={"samples": 1.0})
        for name in good:
            setattr(model, name, parts.get(name) if isinstance(parts, dict) else None)
        weights, task, run, evaluate = unpack_task(model, "train")
        assert isinstance(run, RunSpec)
        assert all(isinstance(c, str) for c in run.classes)
        assert isinstance(run.network, str)
        assert type(run.seed) is type(task.round_num) is int
        assert isinstance(weights, dict)
        assert isinstance(evaluate, bool)
        check_fields(task.knowledge, FIELDS, LETTERS, "site-1")

    try_all(damaged(good, NOT_PRIVATE), receive, cases)
