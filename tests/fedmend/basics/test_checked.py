import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from factories import refused

from fedmend.basics.checked import (
    AMOUNT,
    FLAG,
    PATH,
    PLACE,
    TEXT,
    Check,
    accepted,
    checked,
    number,
    one_of,
    taking,
    that,
    whole,
)

WHERE = "site-1: local/limits.json"


@dataclass(frozen=True)
class Card:
    number: int = taking(whole())


@dataclass(frozen=True)
class Limits:
    rounds: int = taking(whole(1))
    site: str = "here"
    hours: float = taking(AMOUNT, default=2.5)
    names: tuple[str, ...] = taking(
        Check(tuple, "a list"), that(lambda names: len({*names}) == len(names), "each name once"), default=()
    )
    card: Card | None = taking(Card, default=None)
    unit: str = taking(one_of(("a", "b")), default="a", key="of")
    strict: bool = taking(FLAG, default=False)
    notes: dict = field(default_factory=dict)


def read(**fields):
    return checked(Limits, {"rounds": 3, **fields}, WHERE)


def test_an_object_becomes_the_dataclass_and_what_is_left_out_has_its_default():
    assert read() == Limits(rounds=3, hours=2.5, names=(), card=None, unit="a", strict=False)
    assert read(hours=4, names=["x", "y"], card={"number": 7}, of="b", strict=True) == Limits(
        rounds=3, hours=4.0, names=("x", "y"), card=Card(7), unit="b", strict=True
    )


def test_a_whole_number_becomes_a_float_where_one_is_wanted():
    assert type(read(hours=4).hours) is float


def test_null_in_the_place_of_an_inner_object_is_as_if_it_were_not_there():
    assert read(card=None).card is None


def test_fields_that_do_not_come_from_the_file_are_given():
    assert checked(Limits, {"rounds": 3}, WHERE, site="there").site == "there"
    with refused(f"{WHERE}: expected the fields {KNOWN}, got also ['site']"):
        read(site="there")


KNOWN = ["rounds", "hours", "names", "card", "of", "strict"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"patient": "MUSTER"}, f": expected the fields {KNOWN}, got also ['patient']"),
        ({"x" * 99: 1}, f": expected the fields {KNOWN}, got also ['{'x' * 40}']"),
        ({"rounds": None}, ", field rounds: expected a whole number >= 1, got nothing"),
        ({"rounds": 0}, ", field rounds: expected a whole number >= 1, got another int"),
        ({"rounds": True}, ", field rounds: expected a whole number >= 1, got another bool"),
        ({"rounds": 2**53}, ", field rounds: expected a whole number >= 1, got another int"),
        ({"rounds": 2.0}, ", field rounds: expected a whole number >= 1, got another float"),
        ({"hours": -0.5}, ", field hours: expected a number >= 0, got another float"),
        ({"hours": math.nan}, ", field hours: expected a number >= 0, got another float"),
        ({"hours": math.inf}, ", field hours: expected a number >= 0, got another float"),
        ({"hours": 10**400}, ", field hours: expected a number >= 0, got another int"),
        ({"hours": False}, ", field hours: expected a number >= 0, got another bool"),
        ({"hours": "MUSTER"}, ", field hours: expected a number >= 0, got another str"),
        ({"names": 7}, ", field names: expected a list, got another int"),
        ({"names": ["MUSTER", "MUSTER"]}, ", field names: expected each name once, got another list"),
        ({"card": [1]}, ", field card: expected a JSON object, got another list"),
        ({"card": {}}, ", field card.number: expected a whole number >= 0, got nothing"),
        ({"card": {"number": "7"}}, ", field card.number: expected a whole number >= 0, got another str"),
        ({"card": {"number": 7, "age": 3}}, ", field card: expected the fields ['number'], got also ['age']"),
        ({"of": "c"}, ", field of: expected one of ['a', 'b'], got another str"),
        ({"of": ["a"]}, ", field of: expected one of ['a', 'b'], got another list"),
        ({"strict": 1}, ", field strict: expected true or false, got another int"),
    ],
)
def test_a_refused_field_is_named_and_its_value_is_not(fields, sentence):
    with refused(WHERE + sentence):
        read(**fields)


def test_a_field_without_default_has_to_be_there():
    with refused(f"{WHERE}, field rounds: expected a whole number >= 1, got nothing"):
        checked(Limits, {}, WHERE)


@pytest.mark.parametrize(("raw", "kind"), [([], "another list"), (None, "nothing"), ("{}", "another str")])
def test_what_is_no_object_is_refused(raw, kind):
    with refused(f"{WHERE}: expected a JSON object, got {kind}"):
        checked(Limits, raw, WHERE)


def test_fields_of_a_later_version_are_passed_over_where_the_reader_wants_so():
    assert checked(Limits, {"rounds": 3, "card": {"number": 7, "new": 1}, "new": 1}, WHERE, others=True).card == Card(7)


def test_a_reader_may_have_words_of_its_own_for_what_it_got():
    with refused(f"{WHERE}, field card.number: expected a whole number >= 0, got -1"):
        checked(Limits, {"rounds": 3, "card": {"number": -1}}, WHERE, got=repr)


def test_a_single_value_goes_through_its_checks_one_after_the_other():
    checks = [TEXT, Check(int, "digits"), that(lambda value: value < 9, "a number below 9")]
    assert accepted("7", checks, "here") == 7
    for value, expected in ((7, "text"), ("x", "digits"), ("9", "a number below 9")):
        with refused(f"here: expected {expected}, got another {type(value).__name__}"):
            accepted(value, checks, "here")


def test_a_number_has_a_range_of_its_own():
    share = number("above 0 and below 1", lambda value: 0 < value < 1)
    assert accepted(0.5, [share], "here") == 0.5
    with refused("here: expected a number above 0 and below 1, got another int"):
        accepted(1, [share], "here")


def test_a_whole_number_of_numpy_is_taken_as_pythons_and_nothing_else_is():
    made = accepted(np.int64(3), [whole(1)], "here")
    assert (made, type(made)) == (3, int)
    for other in (np.int64(0), np.float64(3.0), 3.0, True, np.True_, "3", 2**53):
        with refused("here: expected a whole number >= 1, got another " + type(other).__name__):
            accepted(other, [whole(1)], "here")


@pytest.mark.parametrize("given", [None, 3, "", b"x", "a\0b", "x" * 256, "card/below"])
def test_what_the_system_cannot_look_up_is_no_path(tmp_path, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "card").touch()
    with refused(f"here: expected a path that can be looked up, got {given!r}"):
        accepted(given, [PATH], "here", repr)


def test_a_place_is_a_folder_or_new(tmp_path):
    (tmp_path / "card").touch()
    for place in (tmp_path, tmp_path / "new" / "below"):
        assert accepted(str(place), [PATH, PLACE], "here") == place
    with refused("here: expected a folder, or the name of a new one, got another str"):
        accepted(str(tmp_path / "card"), [PATH, PLACE], "here")
