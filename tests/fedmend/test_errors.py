"""The sentences about sites and job variables."""

import re

import pytest
from factories import refused

from fedmend.errors import FedMendError, check_variables, place_of, said_by


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


@pytest.mark.parametrize(
    ("site", "sentence"),
    [
        ("job", "job variable share: expected 0 to 1, got 1.5"),
        ("run", "run_name 'run-1': expected no other task"),
        ("state", "state file step.pt: expected what FedMend saved"),
        ("job", "job, variant x: expected a mapping"),
        ("site-1", "site-10: train.csv: expected a label"),
        ("site-1", "site-1"),
    ],
)
def test_the_site_is_named_before_a_sentence_whose_first_word_only_looks_like_its_name(site, sentence):
    assert said_by(site, sentence) == said_by(site, FedMendError(sentence)) == f"{site}: {sentence}"


def test_a_sentence_that_names_its_site_is_left_as_it_is():
    assert said_by("site-1", FedMendError("site-1: train.csv: expected a label")) == (
        "site-1: train.csv: expected a label"
    )


def test_an_unexpected_error_is_told_by_type_and_place_and_never_by_its_words():
    with pytest.raises(KeyError) as raised:
        {}["/data/patient-7.nii"]
    assert re.fullmatch(r"KeyError at test_errors\.py:\d+", place_of(raised.value))
