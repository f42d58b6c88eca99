"""Pictures of runs that another party wrote."""

import json

import pytest

from fedmend.errors import FedMendError
from fedmend.records.picture import LARGEST, LONGEST, clean, read_picture

GOOD = {
    "state": "runs",
    "run_name": "spring",
    "num_rounds": 4,
    "sites": {"site-1": {"state": "training", "round": 2, "samples": 9, "seconds": 1.5}},
    "curves": {"auc": [[0, 0.5], [1, 0.75]]},
    "highest": {"auc": [1, 0.75]},
    "repairs": {"a": {"positive": 3}},
    "decisions": [{"time": "t", "round": None, "what": "resumed", "value": "x"}],
}


def read(**changes):
    return read_picture(json.dumps(GOOD | changes))


def test_a_picture_is_read_as_it_was_written():
    picture = read()
    assert picture.curves == {"auc": ((0, 0.5), (1, 0.75))}
    assert picture.highest == {"auc": (1, 0.75)}
    assert picture.sites["site-1"] == {"state": "training", "round": 2, "samples": 9, "seconds": 1.5}
    assert picture.decisions[0]["round"] is None
    assert picture.remaining == -1


def test_unknown_fields_of_a_later_version_are_passed_over():
    assert read(weather="fine") == read()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "asleep"),
        ("state", ["runs"]),
        ("run_name", 3),
        ("phantom", 1),
        ("num_rounds", -1),
        ("num_rounds", True),
        ("num_rounds", 2**60),
        ("remaining", "soon"),
        ("remaining", 1e300),
        ("curves", {"auc": [[0]]}),
        ("curves", [1]),
        ("highest", {"auc": None}),
        ("repairs", {"a": {"positive": -3}}),
        ("sites", {"site-1": "here"}),
        ("decisions", {"round": 1}),
    ],
)
def test_a_field_of_another_kind_is_refused_by_name(field, value):
    with pytest.raises(FedMendError, match=f"progress.json, field {field}: expected "):
        read(**{field: value})


@pytest.mark.parametrize(
    "text", ["", '{"state": "ru', "[]", "NaN", '{"elapsed": NaN}', "[" * 5000, " " * (LARGEST + 1)]
)
def test_text_that_is_no_picture_is_refused(text):
    with pytest.raises(FedMendError, match=r"progress.json: expected the picture of a run"):
        read_picture(text)


def test_a_picture_without_a_state_is_refused():
    with pytest.raises(FedMendError, match=r"progress.json, field state: expected one of .*, got nothing"):
        read_picture("{}")


def test_texts_cannot_steer_a_terminal():
    assert clean("a\x1b[2J\u202eb\n") == "a?[2J?b?"
    assert len(clean("x" * 1000)) == LONGEST
    assert read(run_name="\x07").run_name == "?"
    assert list(read(sites={"\x1b": {}}).sites) == ["?"]


def test_the_latest_values_are_those_of_the_last_point_of_each_metric_that_has_one():
    curves = {"auc": [[0, 0.5], [1, 0.75]], "map": [[1, 0.25]], "bacc": []}
    found = read_picture(json.dumps({"state": "runs", "split": "val", "curves": curves}))
    assert found.latest == "val AUC 0.750 mAP 0.250"
    assert read_picture('{"state": "runs", "split": "val"}').latest == ""
