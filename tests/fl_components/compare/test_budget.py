import pytest
from factories import refused

from fl_components.compare import budget as module
from fl_components.compare.budget import Budget, parse_duration, shares


@pytest.fixture
def clock(monkeypatch):
    """Seconds that have passed; a list, so that a test can change them."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_time_has_a_number_and_a_unit():
    assert [parse_duration(text) for text in ("2h", "90m", "300s", "0.5h")] == [7200, 5400, 300, 1800]
    for text in ("", "2", "h", "-1h", "0s", "2 h", "1d"):
        with pytest.raises(ValueError, match="expected a time like 2h, 90m or 300s, got "):
            parse_duration(text)


def test_a_measured_row_is_expected_to_take_what_it_took_and_others_what_their_estimate_says_in_proportion():
    budget = Budget(estimates={"a": 10, "b": 30})
    assert (budget.expected("a"), budget.expected("b")) == (10, 30)
    budget.note("a", 18)
    budget.note("a", 22)
    assert (budget.expected("a"), budget.expected("b")) == (20, 60)


def test_without_estimates_the_mean_of_the_others_is_expected():
    budget = Budget()
    assert budget.expected("a") == 0
    budget.note("b", 4)
    budget.note("c", 6)
    assert budget.expected("a") == 5


def test_rows_side_by_side_take_their_share_but_no_less_than_the_longest():
    budget = Budget(estimates={"a": 10, "b": 30, "c": 20})
    assert budget.together(["a", "b", "c"], 1) == 60
    assert budget.together(["a", "b", "c"], 2) == 30
    assert budget.together(["a", "b", "c"], 3) == 30
    assert budget.together([], 3) == 0


def test_a_budget_too_small_for_one_run_of_each_row_is_one_sentence():
    budget = Budget(3000, {"a": 1800, "b": 1800})
    budget.check(["a", "b"], 2)
    with refused("--budget: expected time for one run of each of 2 rows, about 60 min by an estimate, got 50 min"):
        budget.check(["a", "b"], 1)


def test_a_run_fits_when_it_ends_in_time(clock):
    budget = Budget(100, {"a": 40})
    assert budget.fits("a")
    clock[0] = 60
    assert budget.fits("a")
    clock[0] = 61
    assert not budget.fits("a")
    assert Budget().fits("a")


def test_comparisons_one_after_the_other_share_the_time_that_is_left(clock):
    parts = shares(100, 4)
    clock[0] = 5  # the time begins with the first question
    found = [next(parts)]
    for now in (45, 65, 205):
        clock[0] = now
        found.append(next(parts))
    assert found == [25, 20, 20, 0]
