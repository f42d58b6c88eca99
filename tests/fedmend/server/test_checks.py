import re

import numpy as np
import pytest
from factories import refused
from result_factories import WEIGHTS, good_census, good_repairs, good_result, single_label_counts

from fedmend.errors import FedMendError
from fedmend.fields import UNBOUNDED, Field
from fedmend.kinds import kind_of
from fedmend.kinds.multilabel import BINS
from fedmend.learning.weights import LARGEST_WEIGHT
from fedmend.messages import RunSpec, SiteResult
from fedmend.server.checks import MOST_SAMPLES, Expected, check_result

SPLIT_SIZES = {"train": 7, "val": 2}
FIELDS = {"prototypes": Field(("2C", "F"), "float32", -UNBOUNDED, UNBOUNDED, "means", "means")}
START = "site-1: result of round 4"


def expected(*, kind="multilabel", **changes):
    given = {
        "round_num": 4,
        "num_classes": 2,
        "weights": WEIGHTS,
        "sizes": SPLIT_SIZES,
        "kind": kind_of(kind),
        "evaluated": True,
        "fields": FIELDS,
        "letters": {"C": 2, "R": 2, "F": 3},
    }
    return Expected(**{**given, **changes})


def check(*, kind="multilabel", **changes):
    check_result(good_result(**changes), expected(kind=kind))


def check_census(**changes):
    result = good_result(**{"weights": {}, "census": good_census(), **changes})
    check_result(result, Expected(round_num=4, num_classes=2))


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", "a b", "x" * 101, 7, None])
def test_a_run_name_that_could_leave_its_folder_is_refused(name):
    with refused(f"job variable run_name: expected at most 100 letters, digits, '_', '.' or '-', got {name!r}"):
        RunSpec(name, ("edema",), "tiny", 0)


def test_a_run_name_of_letters_that_fill_a_file_name_is_refused():
    assert RunSpec("あ" * 66, ("edema",), "tiny", 0).run_name == "あ" * 66
    with refused("job variable run_name: expected at most 200 bytes in UTF-8, got 201"):
        RunSpec("あ" * 67, ("edema",), "tiny", 0)


@pytest.mark.parametrize("name", ["run-1", "fedmlp_ich", "2026.11", "a..b"])
def test_an_ordinary_run_name_is_taken(name):
    assert RunSpec(name, ("edema",), "tiny", 0).run_name == name


def test_a_good_result_is_accepted():
    check()
    check(report={"prototypes": np.zeros((4, 3), np.float32)})
    check(counts={"val": single_label_counts([[1, 0], [0, 1]])}, kind="singlelabel")
    check(counts={"val": np.zeros((2, 2, BINS), dtype=int)}, repairs=good_repairs(correct_positive=np.array([0, 1])))
    check_result(good_result(weights={}), expected(weights=None))
    check_census()


def test_a_census_must_hold_one():
    with refused(f"{START}: expected a census, got none"):
        check_census(census={})


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": {"val": np.ones((3, 2, BINS), dtype=np.int64)}},
        {"counts": {"val": single_label_counts(np.eye(3, dtype=int))}},
        {"repairs": {k: np.zeros(3, dtype=np.int64) for k in good_repairs()}},
        {"census": good_census(annotated=np.array([True, False, True]))},
        {"census": good_census(positives=np.zeros(3, dtype=np.int64))},
    ],
    ids=["counts", "single-label counts", "repairs", "annotated", "positives"],
)
def test_counts_of_another_number_of_classes_are_refused(changes):
    with refused(f"{START}: expected counts of 2 classes, got counts of 3"):
        check(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"error": "site-1: train.csv row 3: expected ..., got ..."}, "site-1: train.csv row 3: expected ..., got ..."),
        ({"round_num": 3}, f"{START}: expected round 4, got round 3"),
        ({"samples": 0}, f"{START}, field samples: expected the 7 of its census, got 0"),
        ({"samples": 10**12}, f"{START}, field samples: expected the 7 of its census, got 1000000000000"),
        (
            {"weights": {"a": WEIGHTS["a"]}},
            f"{START}, weights: expected the global model's 2 tensors, missing or unknown: ['b']",
        ),
        (
            {"weights": {**WEIGHTS, "z": WEIGHTS["b"]}},
            f"{START}, weights: expected the global model's 2 tensors, missing or unknown: ['z']",
        ),
        ({"weights": {}}, f"{START}, weights: expected the global model's 2 tensors, missing or unknown: ['a', 'b']"),
        (
            {"weights": {**WEIGHTS, 3: WEIGHTS["b"], "c": WEIGHTS["b"]}},
            f"{START}, weights: expected the global model's 2 tensors, missing or unknown: ['3', 'c']",
        ),
        *(
            ({"weights": {**WEIGHTS, "b": value}}, f"{START}, weights b: expected float32 of shape (2,), got {got}")
            for value, got in (
                (np.ones(3, np.float32), "float32 of (3,)"),
                (np.ones(2), "float64 of (2,)"),
                (np.ones(2, np.complex64), "complex64 of (2,)"),
                (np.array(["p1", "p2"]), "<U2 of (2,)"),
                (np.array([None, {}]), "object of (2,)"),
                ("p1", "str of no shape"),
                ([[1.0], [1.0, 2.0]], "list of no shape"),
            )
        ),
        (
            {"report": {"features": np.ones((7, 3))}},
            f"{START}, report field features: expected one of ['prototypes'], got another",
        ),
        (
            {"report": {"prototypes": np.ones((2, 3), np.float32)}},
            f"{START}, report field prototypes: expected float32 of shape (4, 3), got float32 of shape (2, 3)",
        ),
        (
            {"report": {"prototypes": np.full((4, 3), 2e9, np.float32)}},
            f"{START}, report field prototypes: expected numbers from -1e+09 to 1e+09, got 2e+09 to 2e+09",
        ),
    ],
)
def test_a_result_that_does_not_fit_is_refused(changes, sentence):
    with refused(sentence):
        check(**changes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    with refused(f"{START}, weights b: expected finite numbers, got NaN or infinity"):
        check(weights={**WEIGHTS, "b": np.array([1.0, bad], dtype=np.float32)})
    with refused(f"{START}, report field prototypes: expected finite numbers, got NaN or infinity"):
        check(report={"prototypes": np.full((4, 3), bad, dtype=np.float32)})


@pytest.mark.parametrize("large", [2 * LARGEST_WEIGHT, -2 * LARGEST_WEIGHT])
def test_weights_that_could_overflow_a_sum_are_refused(large):
    with refused(f"{START}, weights b: expected numbers from -1e+12 to 1e+12, got larger ones"):
        check(weights={**WEIGHTS, "b": np.float32([1, large])})
    check(weights={**WEIGHTS, "b": np.float32([1, 0.5 * LARGEST_WEIGHT])})


def test_an_error_sentence_counts_before_everything_else_about_a_result():
    with pytest.raises(FedMendError, match=re.escape("the site's own words")):
        check_result(SiteResult(error="the site's own words"), expected())


# ---- the census -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"samples": 0, "census": good_census(sizes={"train": 0})}, "field samples: expected at least 1, got 0"),
        ({"samples": 8}, "field samples: expected at least 1, got 8"),
        (
            {"samples": 2 * MOST_SAMPLES, "census": good_census(sizes={"train": 2 * MOST_SAMPLES})},
            f"census sizes: expected at most {MOST_SAMPLES} samples per split, got {2 * MOST_SAMPLES}",
        ),
        (
            {"census": good_census(sizes={"train": 7, "test": MOST_SAMPLES + 1})},
            f"census sizes: expected at most {MOST_SAMPLES} samples per split, got {MOST_SAMPLES + 1}",
        ),
        (
            {"census": good_census(positives=np.array([8, 0]))},
            "census positives: expected at most the training samples, got more",
        ),
        (
            {"census": good_census(data={"train": "0" * 32})},
            "census data: expected a mark of each split of its sizes, got others",
        ),
        (
            {"counts": {"val": np.zeros((2, 2, BINS), dtype=int)}},
            "counts val: expected none, as no evaluation was asked for, got some",
        ),
        ({"report": {"x": np.ones(1)}}, "report field x: expected one of [], got another"),
    ],
)
def test_a_census_that_cannot_be_is_refused(changes, sentence):
    with refused(f"{START}, {sentence}"):
        check_census(**changes)


# ---- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [3, 2**62])
def test_more_scores_than_samples_are_refused(many):
    counts = np.zeros((2, 2, 1000), dtype=np.int64)
    counts[0, :, 7] = 1
    check(counts={"val": counts})
    counts[1, :, 9] = many // 2 + 1
    with refused(f"{START}, counts val: expected at most the samples of its census, got more"):
        check(counts={"val": counts})


def test_counts_of_a_split_that_the_census_did_not_name_are_refused():
    counts = np.zeros((2, 2, 1000), dtype=np.int64)
    check(counts={"test": counts})
    counts[0, 0, 7] = 1
    with refused(f"{START}, counts test: expected at most the samples of its census, got more"):
        check(counts={"test": counts})


@pytest.mark.parametrize("many", [2, 2**62])
def test_more_predictions_than_samples_are_refused(many):
    counts = single_label_counts([[1, 0], [0, 1]])
    check(counts={"val": counts}, kind="singlelabel")
    counts[[0, 1], [0, 1]] = many  # in all classes together
    with refused(f"{START}, counts val: expected at most the samples of its census, got more"):
        check(counts={"val": counts}, kind="singlelabel")


@pytest.mark.parametrize("c", [0, 1])
@pytest.mark.parametrize("many", [1, 2**63 - 1])
def test_more_scores_of_a_class_than_samples_of_single_label_data_are_refused(c, many):
    counts = single_label_counts([[1, 0], [0, 1]])
    counts[c, 2 + 7] = many
    with refused(f"{START}, counts val: expected at most the samples of its census, got more"):
        check(counts={"val": counts}, kind="singlelabel")


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("multilabel", single_label_counts([[1, 0], [0, 1]])),
        ("singlelabel", np.zeros((2, 2, BINS), dtype=int)),
        ("segmentation", np.zeros((2, 2, BINS), dtype=int)),
    ],
)
def test_counts_of_another_kind_of_labels_are_refused(kind, counts):
    with refused(f"{START}, counts val: expected those of {kind} data, got others"):
        check(counts={"val": counts}, kind=kind)
