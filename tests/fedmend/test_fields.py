import numpy as np
import pytest
from factories import refused

from fedmend.errors import FedMendError
from fedmend.fields import Field, check_fields, counted, hold_back

SIZES = {"C": 3, "R": 4, "F": 2}
WHERE = "site-1: field"


def field(shape=("C",), dtype="float32", low=0, high=1, **options):
    return Field(shape, dtype, low, high, "what it is", "what it could give away", **options)


@pytest.mark.parametrize(
    ("shape", "numbers"),
    [((), ()), ((5,), (5,)), (("C",), (3,)), (("2C", "F"), (6, 2)), (("R", 7), (4, 7)), (("10F",), (20,))],
)
def test_letters_of_a_shape_become_the_numbers_of_the_run(shape, numbers):
    assert field(shape).numbers(SIZES) == numbers


@pytest.mark.parametrize(
    ("described", "value"),
    [
        (field(), np.float32([0, 0.5, 1])),
        (field(("2C", "F")), np.zeros((6, 2), np.float32)),
        (field((), "int64", 0, 9), np.array(9)),
        (field((), "int64", 0, 9), np.int64(0)),
        (field((0,)), np.zeros(0, np.float32)),
        (field(dtype="bool"), np.array([True, False, True])),
    ],
)
def test_a_value_that_fits_is_taken(described, value):
    described.check(value, SIZES, WHERE)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.zeros(2, np.float32), "float32 of shape (2,)"),
        (np.zeros((1, 3), np.float32), "float32 of shape (1, 3)"),
        (np.zeros(3), "float64 of shape (3,)"),
        (np.zeros(3, np.float16), "float16 of shape (3,)"),
        (np.zeros(3, np.int64), "int64 of shape (3,)"),
        (np.zeros(3, np.complex64), "complex64 of shape (3,)"),
        (np.array(["a", "b", "c"]), "<U1 of shape (3,)"),
        (np.array([None, {}, []], dtype=object), "object of shape (3,)"),
        (np.float32(1), "float32 of shape ()"),
        ([0.0, 0.5, 1.0], "list"),
        (0.5, "float"),
        (None, "NoneType"),
        ({"a": 1}, "dict"),
    ],
)
def test_another_type_dtype_or_shape_is_refused(value, got):
    with refused(f"{WHERE}: expected float32 of shape (3,), got {got}"):
        field().check(value, SIZES, WHERE)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad):
    with refused(f"{WHERE}: expected finite numbers, got NaN or infinity"):
        field().check(np.float32([0, bad, 1]), SIZES, WHERE)


@pytest.mark.parametrize(
    ("value", "got"), [([0, 0.5, 1.5], "0 to 1.5"), ([-0.25, 0, 1], "-0.25 to 1"), ([-2, 0, 3], "-2 to 3")]
)
def test_numbers_out_of_range_are_refused(value, got):
    with refused(f"{WHERE}: expected numbers from 0 to 1, got {got}"):
        field().check(np.float32(value), SIZES, WHERE)


def test_values_are_checked_by_their_names():
    known = {"a": field(), "b": field((), "int64", 0, 9)}
    check_fields({"b": np.array(3), "a": np.zeros(3, np.float32)}, known, SIZES, "where,")
    check_fields({}, known, SIZES, "where,")
    with refused("where, b: expected numbers from 0 to 9, got 10 to 10"):
        check_fields({"b": np.array(10)}, known, SIZES, "where,")
    with refused("where, c: expected one of ['a', 'b'], got another"):
        check_fields({"c": np.array(3)}, known, SIZES, "where,")


def test_a_name_of_somebody_else_is_short_and_forges_no_line():
    with pytest.raises(FedMendError) as e:
        check_fields({"a\nERROR " + "x" * 500: np.array(3)}, {}, SIZES, "where,")
    assert str(e.value) == f"where, a\\nERROR {'x' * 32}: expected one of [], got another"


# ---- rows of few samples --------------------------------------------------------------------------------------------

ROWS = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
COUNTED = {"rows": "counts"}


def test_fields_that_are_counted_name_the_field_that_counts():
    assert counted({"b": field(counted_by="n"), "c": field(), "a": field(counted_by="m")}) == {"a": "m", "b": "n"}


def test_rows_of_too_few_samples_are_zero_with_their_counts():
    report = {"rows": ROWS, "counts": np.array([2, 3, 0, 1]), "other": np.float32(0.5)}
    told, held = hold_back(report, COUNTED, 3)
    assert told["rows"].tolist() == [[0, 0], [3, 4], [0, 0], [0, 0]]
    assert told["counts"].tolist() == [0, 3, 0, 0]
    assert told["other"] == 0.5
    assert held == {"rows": 2}  # the row without a sample held nothing
    assert (told["rows"].dtype, told["counts"].dtype) == (np.float32, np.int64)
    assert report["counts"].tolist() == [2, 3, 0, 1]


def test_rows_of_one_number_each_are_held_back_too():
    told, held = hold_back({"rows": np.float32([1, 2]), "counts": np.array([9, 1])}, COUNTED, 2)
    assert told["rows"].tolist() == [1, 0]
    assert held == {"rows": 1}


def test_with_enough_samples_nothing_is_held_back():
    told, held = hold_back({"rows": ROWS, "counts": np.array([3, 4, 5, 6])}, COUNTED, 3)
    np.testing.assert_array_equal(told["rows"], ROWS)
    assert held == {}


def test_a_report_without_the_counted_field_is_left_alone():
    assert hold_back({"other": 1}, COUNTED, 3) == ({"other": 1}, {})


def test_a_small_count_is_held_back_without_its_rows_too():
    told, held = hold_back({"counts": np.array([1, 3, 0, 2])}, COUNTED, 3)
    assert (told["counts"].tolist(), held) == ([0, 3, 0, 0], {})


@pytest.mark.parametrize("counts", [None, np.array([3, 4]), np.array(3)], ids=["absent", "too short", "one for all"])
def test_rows_without_a_count_each_are_refused(counts):
    report = {"rows": ROWS} | ({} if counts is None else {"counts": counts})
    with refused("expected counts with one count per row of rows"):
        hold_back(report, COUNTED, 3)
