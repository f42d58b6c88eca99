from dataclasses import replace

import numpy as np
import pytest
from factories import refused
from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs
from nvflare.private.fed.utils.fed_utils import fobs_initialize
from result_factories import WEIGHTS, good_census, good_repairs, good_result, single_label_counts

from fedmend.errors import FedMendError
from fedmend.kinds.multilabel import BINS
from fedmend.messages import RunSpec
from fedmend.method import RoundTask
from fl_components.wire import KEY, pack_result, pack_task, parse_content, unpack_result, unpack_task

MARK = "0123456789abcdef" * 2
RUN = RunSpec("run-1", ("edema", "nodule"), "tiny", 3, "0" * 32)


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


def test_a_task_survives_the_wire(wire):
    knowledge = {"prototypes": np.eye(4, dtype=np.float32), "learning_degree": np.array([0.25, 1.0])}
    task = RoundTask("detect", 5, 9, knowledge, "noisy", seed=3, sites=("site-1", "site-2"))
    weights, got, run, evaluate = unpack_task(wire(pack_task(WEIGHTS, task, RUN, evaluate=True)), "train")
    same_arrays(weights, WEIGHTS)
    same_arrays(got.knowledge, knowledge)
    assert (got.stage, got.round_num, got.total_rounds, got.role, got.seed) == ("detect", 5, 9, "noisy", 3)
    assert got.sites == ("site-1", "site-2")
    assert run == RUN
    assert evaluate is True


@pytest.mark.parametrize(
    "sites", [(), ("site-1", "site-1"), ("a\nb",), ("x" * 101,), (7,), tuple(map(str, range(1001)))]
)
def test_a_task_that_does_not_say_who_is_asked_is_refused_by_the_site(sites):
    with refused("task from the server: expected a FedMend task, got one that lacks or breaks sites"):
        unpack_task(pack_task(WEIGHTS, RoundTask("look", 5, 9, sites=sites), RUN, evaluate=False), "train")


@pytest.mark.parametrize(("question", "training"), [("train", True), ("collect", False)])
def test_the_question_says_whether_a_site_trains(wire, question, training):
    message = wire(pack_task(WEIGHTS, RoundTask("look", 5, 9, sites=("site-1", "site-2")), RUN, evaluate=False))
    task = unpack_task(message, question)[1]
    assert (task.training, task.ledger_round) == (training, 5 if training else 4)


def test_a_task_without_weights_survives_the_wire(wire):
    weights, got, run, evaluate = unpack_task(
        wire(pack_task({}, RoundTask("census", 0, 9, sites=("site-1", "site-2")), RUN, evaluate=False)), "census"
    )
    assert (weights, got.stage, run, evaluate) == ({}, "census", RUN, False)


@pytest.mark.parametrize("weights", [WEIGHTS, {}], ids=["weights", "no weights"])
def test_a_result_survives_the_wire(wire, weights):
    result = good_result(
        weights=weights,
        report={"prototypes": np.full((4, 2), 0.5, np.float32), "prototype_counts": np.array([3, 4, 0, 9])},
        counts={"val": np.arange(4 * BINS).reshape(2, 2, BINS)},
        repairs=good_repairs(),
        census=good_census(),
        ledger_mark=MARK,
        error="a sentence",
    )
    got = unpack_result(wire(pack_result(result)), "site-1")
    for name in ("weights", "report", "counts", "repairs"):
        same_arrays(getattr(got, name), getattr(result, name))
    same_arrays(
        {k: got.census.pop(k) for k in ("annotated", "positives")},
        {k: good_census()[k] for k in ("annotated", "positives")},
    )
    same_arrays(got.census.pop("preprocessing"), good_census()["preprocessing"])
    data = {"train": "0" * 32, "val": "1" * 32}
    assert got.census.pop("min_federation") == 1
    assert got.census == {"sizes": {"train": 7, "val": 2}, "data": data, "kind": "multilabel", "phantom": True}
    assert (got.round_num, got.samples, got.loss, got.ledger_mark, got.error) == (4, 7, 0.25, MARK, "a sentence")


@pytest.mark.parametrize(
    "more",
    [
        ("accepted", "rejected"),
        ("correct_positive", "correct_negative"),
        ("correct_positive", "correct_negative", "missing", "accepted", "rejected"),
    ],
)
def test_what_a_site_knows_of_its_repairs_survives_the_wire(wire, more):
    repairs = good_repairs(**{name: np.array([0, 1]) for name in more})
    same_arrays(unpack_result(wire(pack_result(good_result(repairs=repairs))), "site-1").repairs, repairs)


PROMISE = {"epsilon": 2.5, "epsilon_rdp": 2.75, "delta": 1e-4, "clip": 1.0, "noise_multiplier": 1.5}


def test_what_a_site_says_of_its_privacy_survives_the_wire(wire):
    assert unpack_result(wire(pack_result(good_result(privacy=PROMISE))), "site-1").privacy == PROMISE
    assert "privacy" not in pack_result(good_result()).meta[KEY]  # messages of other sites are as they were


@pytest.mark.parametrize(
    "privacy",
    [
        {"epsilon": 1.0},
        {**PROMISE, "patient": 1.0},
        {**PROMISE, "epsilon": float("inf")},
        {**PROMISE, "epsilon": -1.0},
        {**PROMISE, "epsilon": "3"},
        [1.0],
    ],
)
def test_anything_else_under_that_name_is_refused(privacy):
    content = pack_result(good_result()).meta[KEY]
    with refused(
        "site-1: result, privacy: expected numbers >= 0 for ['epsilon', 'epsilon_rdp', 'delta', 'clip',"
        " 'noise_multiplier'], got something else"
    ):
        parse_content({**content, "privacy": privacy}, "site-1")


def test_a_role_and_a_single_number_survive_the_wire(wire):
    task = RoundTask("robust", 5, 9, {"distillation_weight": np.float32(0.25)}, "clean", sites=("site-1", "site-2"))
    got = unpack_task(wire(pack_task(WEIGHTS, task, RUN, evaluate=False)), "train")[1]
    assert (got.role, float(got.knowledge["distillation_weight"])) == ("clean", 0.25)


def test_the_mark_of_a_ledger_survives_the_wire(wire):
    task = RoundTask("robust", 5, 9, ledger_mark=MARK, sites=("site-1", "site-2"))
    assert unpack_task(wire(pack_task(WEIGHTS, task, RUN, evaluate=False)), "train")[1].ledger_mark == MARK


@pytest.mark.parametrize("mark", ["x", MARK[:-1], MARK + "0", MARK.upper(), MARK + "\n", None, 7])
def test_a_mark_that_is_none_is_refused_by_server_and_site(mark):
    with refused("site-1: result, ledger_mark: expected 32 hexadecimal digits or none, got something else"):
        unpack_result(pack_result(good_result(ledger_mark=mark)), "site-1")
    with pytest.raises(FedMendError, match="task from the server: expected a FedMend task, got one that lacks or"):
        unpack_task(
            pack_task(
                WEIGHTS, RoundTask("robust", 5, 9, ledger_mark=mark, sites=("site-1", "site-2")), RUN, evaluate=False
            ),
            "train",
        )
    marked = pack_task(WEIGHTS, RoundTask("train", 0, 1, sites=("site-1",)), replace(RUN, mark=mark), evaluate=False)
    with pytest.raises(FedMendError, match="task from the server: expected a FedMend task, got one that lacks or"):
        unpack_task(marked, "train")


def test_single_label_counts_survive_the_wire(wire):
    result = good_result(counts={"val": single_label_counts([[1, 0], [1, 0]])})
    same_arrays(unpack_result(wire(pack_result(result)), "site-1").counts, result.counts)


@pytest.mark.parametrize(
    ("algorithm", "got"), [("HE_CKKS", "HE_CKKS"), ("x" * 5000, "x" * 40), ("\x1b[2J\n", r"\x1b[2J\n")]
)
def test_encrypted_weights_are_refused_with_the_reason(wire, algorithm, got):
    model = pack_result(good_result())
    model.meta[MetaKey.PROCESSED_ALGORITHM] = algorithm
    with refused(
        "site-1: weights: expected plain weights, which the checks and distances of the server need, got weights"
        f" processed by {got}; switch homomorphic encryption off for this job"
    ):
        unpack_result(wire(model), "site-1")


@pytest.mark.parametrize("params", [[1, 2], "weights"])
def test_weights_without_names_are_refused(params):
    model = pack_result(good_result())
    model.params = params
    with refused(f"site-1: weights: expected tensors by name, got {type(params).__name__}"):
        unpack_result(model, "site-1")


def test_the_site_of_a_result_is_the_one_that_flare_names_not_the_one_in_the_message(wire):
    assert unpack_result(wire(pack_result(good_result(site="site-2"))), "site-1").site == "site-1"


def test_messages_of_another_kind_are_refused():
    stranger = FLModel(metrics={"x": 1.0}, current_round=0, total_rounds=1)
    with refused("task from the server: expected a FedMend task, got one that lacks or breaks 'fedmend'"):
        unpack_task(stranger, "train")
    with refused(f"site-1: result, fields: expected {KNOWN}, got something else"):
        unpack_result(stranger, "site-1")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", "a b", "x" * 101, 7, None])
def test_a_run_name_that_could_leave_its_folder_is_refused_by_the_site(name):
    task = pack_task(WEIGHTS, RoundTask("train", 0, 1, sites=("site-1", "site-2")), RUN, evaluate=False)
    task.meta[KEY]["run"]["run_name"] = name
    with refused(f"job variable run_name: expected at most 100 letters, digits, '_', '.' or '-', got {name!r}"):
        unpack_task(task, "train")


def test_a_run_name_that_is_an_array_is_refused_in_one_line():
    task = pack_task(WEIGHTS, RoundTask("train", 0, 1, sites=("site-1", "site-2")), RUN, evaluate=False)
    task.meta[KEY]["run"]["run_name"] = np.ones((2, 1))
    with refused(
        "job variable run_name: expected at most 100 letters, digits, '_', '.' or '-', got array([[1.], [1.]])"
    ):
        unpack_task(task, "train")


KNOWN = ["census", "counts", "error", "ledger_mark", "loss", "repairs", "report", "round", "samples"]
COUNTS = f"counts val: expected (C, 2, {BINS}), (C, C + {2 * BINS}) or (C, 7) counts"
REPAIRS = (
    "repairs: expected ['positive', 'negative', 'untagged', 'correct_positive', 'correct_negative', 'missing',"
    " 'accepted', 'rejected']"
)
PAIRS = (
    "repairs: expected both of ['correct_positive', 'correct_negative'] or neither, 'missing' only beside them, both of"
    " ['accepted', 'rejected'] or neither"
)
CENSUS = (
    "census: expected ['annotated', 'data', 'kind', 'min_federation', 'phantom', 'positives', 'preprocessing', 'sizes']"
)
SIZES = "census sizes: expected samples per split"
DATA = "census data: expected 32 hexadecimal digits per split"


def without(content, name):
    return {k: v for k, v in content.items() if k != name}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"names": ["p1"]}, f"fields: expected {KNOWN}"),
        ({"round": -1}, "round: expected a whole number >= 0"),
        ({"round": True}, "round: expected a whole number >= 0"),
        ({"samples": float("inf")}, "samples: expected a whole number >= 0"),
        ({"samples": [[7]]}, "samples: expected a whole number >= 0"),
        ({"loss": float("nan")}, "loss: expected a finite number"),
        ({"loss": "0.5"}, "loss: expected a finite number"),
        ({"error": "x" * 2001}, "error: expected a sentence"),
        ({"error": ["x"]}, "error: expected a sentence"),
        ({"report": [1, 2]}, "report: expected a mapping of names"),
        ({"report": {"field": [1, 2]}}, "report field: expected an array of numbers"),
        ({"report": {"field": {"deep": np.ones(2)}}}, "report field: expected an array of numbers"),
        ({"report": {"field": np.array(["p1"])}}, "report field: expected an array of numbers"),
        ({"report": {"field": np.array([1j])}}, "report field: expected an array of numbers"),
        ({"report": {3: np.ones(2)}}, "report: expected a mapping of names"),
        ({"counts": None}, "counts: expected a mapping of names"),
        ({"counts": {"train": np.ones((2, 2, BINS), int)}}, "counts: expected splits out of ['val', 'test']"),
        ({"counts": {"val": np.ones((2, 2, BINS))}}, "counts val: expected an array of numbers"),
        ({"counts": {"val": -np.ones((2, 2, BINS), int)}}, "counts val: expected counts >= 0"),
        ({"counts": {"val": np.ones((2, 2, 9), int)}}, COUNTS),
        ({"counts": {"val": np.ones((2, BINS), int)}}, COUNTS),
        ({"counts": {"val": np.ones((2, 2), int)}}, COUNTS),
        ({"counts": {"val": np.ones((3, 2 + 2 * BINS), int)}}, COUNTS),
        ({"counts": {"val": np.ones(2, int)}}, COUNTS),
        ({"counts": {"val": np.array(2)}}, COUNTS),
        ({"counts": {"val": np.ones((2, 2, 2), int)}}, COUNTS),
        ({"counts": {"val": np.ones((2, 2))}}, "counts val: expected an array of numbers"),
        ({"counts": {"val": single_label_counts([[1, 0], [-1, 2]])}}, "counts val: expected counts >= 0"),
        ({"repairs": without(good_repairs(), "untagged")}, REPAIRS),
        ({"repairs": good_repairs(names=np.array([1, 2]))}, REPAIRS),
        ({"repairs": good_repairs(accepted=np.array([0, 1]))}, PAIRS),
        ({"repairs": good_repairs(rejected=np.array([0, 1]))}, PAIRS),
        ({"repairs": good_repairs(correct_positive=np.array([0, 1]))}, PAIRS),
        ({"repairs": good_repairs(missing=np.array([0, 1]))}, PAIRS),
        ({"repairs": good_repairs(positive=np.array([[1, 2]]))}, "repairs positive: expected one count per class"),
        ({"repairs": good_repairs(positive=np.array([-1, 2]))}, "repairs positive: expected counts >= 0"),
        ({"census": [1]}, CENSUS),
        ({"census": without(good_census(), "positives")}, CENSUS),
        ({"census": good_census(patients=["p1"])}, CENSUS),
        ({"census": good_census(annotated=np.array([1, 0]))}, "census annotated: expected one value per class"),
        ({"census": good_census(annotated=[True, False])}, "census annotated: expected one value per class"),
        ({"census": good_census(positives=np.ones((8, 8), int))}, "census positives: expected one value per class"),
        ({"census": good_census(preprocessing={"window": "p1"})}, "census preprocessing: expected how images are read"),
        ({"census": good_census(sizes={"val": 3})}, SIZES),
        ({"census": good_census(sizes={"train": 3, "p1": 1})}, SIZES),
        ({"census": good_census(sizes={"train": "p1"})}, SIZES),
        ({"census": good_census(data={"train": "p1"})}, DATA),
        ({"census": good_census(data={"train": ""})}, DATA),
        ({"census": good_census(data={"train": "0" * 32, "p1": "0" * 32})}, DATA),
        ({"census": good_census(data={})}, DATA),
        (
            {"census": good_census(kind="boxes")},
            "census kind: expected one of ['multilabel', 'singlelabel', 'segmentation']",
        ),
        (
            {"census": good_census(kind=np.ones(3))},
            "census kind: expected one of ['multilabel', 'singlelabel', 'segmentation']",
        ),
        (
            {"census": good_census(kind=None)},
            "census kind: expected one of ['multilabel', 'singlelabel', 'segmentation']",
        ),
        ({"census": good_census(phantom="no")}, "census phantom: expected true or false"),
    ],
)
def test_content_of_another_kind_is_refused_with_its_part(changes, sentence):
    content = pack_result(good_result()).meta[KEY]
    parse_content(content, "site-1")
    with refused(f"site-1: result, {sentence}, got something else"):
        parse_content({**content, **changes}, "site-1")


@pytest.mark.parametrize("content", [None, 7, "census", [], {}, np.ones(3)])
def test_content_that_is_none_is_refused(content):
    with refused(f"site-1: result, fields: expected {KNOWN}, got something else"):
        parse_content(content, "site-1")
