"""The sentences about job variables."""

import pytest
from factories import refused

from fedmend.errors import check_variables


def test_variables_in_range_pass():
    check_variables(True, "0 to 1", share=0.5)


def test_a_variable_out_of_range_is_refused_with_what_was_expected_and_given():
    with refused("job variable share: expected 0 to 1, got 1.5"):
        check_variables(False, "0 to 1", share=1.5)
    with refused("job variable loss: expected 'a' or 'b', got 'c'"):
        check_variables(False, "'a' or 'b'", loss="c")


@pytest.mark.parametrize("values", [(1, 0), (0, 1)])
def test_variables_that_do_not_go_together_are_named_in_their_order(values):
    low, high = values
    with refused(f"job variables low, high: expected low < high, got {low}, {high}"):
        check_variables(False, "low < high", low=low, high=high)


def test_a_long_value_is_cut_off():
    with refused("job variable share: expected 0 to 1, got '" + 119 * "9"):
        check_variables(False, "0 to 1", share=1000 * "9")
