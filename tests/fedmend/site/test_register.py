"""A site's register of what left: one line per answer, chained; what is changed, removed or cut off is named."""

import hashlib
import json

import numpy as np
import pytest
from factories import refused

from fedmend.basics.files import locked
from fedmend.messages import SiteResult
from fedmend.site import register
from fedmend.site.register import last_hash, note, problems, read_register, register_file, told

ANSWER = SiteResult(
    "site-1",
    3,
    samples=8,
    weights={"b": np.zeros(3, np.float32), "a": np.ones((2, 2), np.float32)},
    report={"shares": np.array([0.5, 0.25])},
    loss=0.5,
    privacy={"epsilon": 1.5, "delta": 1e-5, "clip": 1.0, "noise_multiplier": 2.0},
)


@pytest.fixture
def file(tmp_path):
    """Of four answers."""
    for number in range(4):
        note(tmp_path, "site-1", {"job": "j", "run": "run-1", "task": "train", **told(SiteResult(round_num=number))})
    return register_file(tmp_path, "site-1")


def lines(file):
    return file.read_bytes().splitlines(keepends=True)


def test_a_line_says_what_left_in_names_and_bytes_with_epsilon_and_a_digest(tmp_path):
    note(tmp_path, "site-1", {"job": "job-1", "run": "run-1", "task": "train", **told(ANSWER)})
    (line,) = read_register(register_file(tmp_path, "site-1"))
    assert line.pop("time").endswith("Z")
    assert line.pop("digest") == told(ANSWER)["digest"]
    names = ("clip", "delta", "epsilon", "noise_multiplier")
    sizes = {"loss": 8, "report shares": 16, "round_num": 8, "samples": 8, "weights": 30}  # 7 float32, 2 letters
    assert line == {
        "number": 1,
        "job": "job-1",
        "run": "run-1",
        "task": "train",
        "round": 3,
        "fields": dict(sorted({**sizes, **{f"privacy {name}": 8 for name in names}}.items())),
        "epsilon": 1.5,
        "before": hashlib.sha256(b"").hexdigest(),
    }


def test_the_digest_knows_every_number_and_no_order_of_names():
    digest = told(ANSWER)["digest"]
    turned = {name: ANSWER.weights[name] for name in ("a", "b")}
    assert told(SiteResult(**{**vars(ANSWER), "site": "x", "weights": turned}))["digest"] == digest
    other = {**turned, "b": np.array([0, 0, 1e-9], np.float32)}
    assert told(SiteResult(**{**vars(ANSWER), "weights": other}))["digest"] != digest


def test_a_sentence_that_left_stands_in_its_line():
    about = told(SiteResult(error="site-1: train.csv row 3: expected 1"))
    assert (about["error"], about["fields"]) == ("site-1: train.csv row 3: expected 1", {"error": 35})


def test_an_untouched_register_is_whole(file):
    assert problems(file) == []
    assert [line["number"] for line in read_register(file)] == [1, 2, 3, 4]
    assert problems(file, last_hash(file)) == []


@pytest.mark.parametrize("number", [1, 2, 4])
def test_one_changed_line_is_named_by_its_number(file, number):
    changed = lines(file)
    changed[number - 1] = changed[number - 1].replace(b'"run-1"', b'"run-9"')
    file.write_bytes(b"".join(changed))
    assert problems(file) == [f"line {number} has been changed"]


@pytest.mark.parametrize(
    ("gone", "said"), [([1], "line 1 is missing"), ([2, 3], "lines 2 to 3 are missing"), ([4], "line 4 is missing")]
)
def test_lines_that_were_taken_out_are_named_at_the_end_too(file, gone, said):
    file.write_bytes(b"".join(line for number, line in enumerate(lines(file), 1) if number not in gone))
    assert problems(file) == [said]


def test_lines_that_were_cut_off_stay_missing_when_later_answers_follow(file):
    file.write_bytes(b"".join(lines(file)[:2]))
    note(file.parents[1], "site-1", {})
    assert [line["number"] for line in read_register(file)] == [1, 2, 5]
    assert problems(file) == ["lines 3 to 4 are missing"]


def test_two_lines_that_changed_places_and_one_that_does_not_read_are_named(file):
    first, second, third, fourth = lines(file)
    file.write_bytes(first + third + second + fourth)
    assert problems(file) == ["line 2 is missing", "line 2 stands behind line 3"]
    file.write_bytes(first + b"{}\n" + third + fourth)
    assert problems(file) == ["line 2 is none that FedMend wrote"]


def test_a_register_that_was_made_anew_is_told_by_a_hash_that_was_noted_before(file):
    noted, state_dir = last_hash(file), file.parents[1]
    for known in file.parent.iterdir():
        known.unlink()
    note(state_dir, "site-1", {})
    assert problems(file) == []
    assert problems(file, noted) == [f"no line has the hash {noted}"]


def test_a_process_that_is_killed_leaves_half_a_line_or_a_line_without_its_mark_and_neither_breaks_the_chain(file):
    mark = file.with_suffix(".mark")
    before = mark.read_bytes()
    note(file.parents[1], "site-1", {})
    mark.write_bytes(before)  # killed between the two
    with open(file, "ab") as stream:
        stream.write(b'{"number": 6, "ti')  # the next one killed in its line
    assert problems(file) == []
    note(file.parents[1], "site-1", {})
    assert [line["number"] for line in read_register(file)] == [1, 2, 3, 4, 5, 6]
    assert problems(file) == []


def test_a_register_without_its_mark_is_said(file):
    file.with_suffix(".mark").unlink()
    assert problems(file) == ["its mark is missing"]


def test_what_cannot_be_written_down_is_an_error(file, monkeypatch):
    monkeypatch.setattr(register, "PATIENCE", 0)
    with (
        locked(file.with_suffix(".lock")),
        refused("site-1: register of what left: expected to write it, got no lock"),
    ):
        note(file.parents[1], "site-1", {})
    assert json.loads(file.with_suffix(".mark").read_text())["number"] == 4
