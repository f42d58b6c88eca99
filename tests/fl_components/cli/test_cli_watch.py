"""``fedmend watch`` as a person types it."""

import json
import sys

import pytest
from cli_calls import call

PICTURE = {"run_name": "spring", "num_rounds": 2, "done": 1, "curves": {"auc": [[0, 0.5], [1, 0.75]]}, "split": "test"}


@pytest.fixture
def run(tmp_path):
    def write(**facts):
        file = tmp_path / "progress.json"
        file.write_text(json.dumps({"state": "runs", **PICTURE, **facts}))
        return file

    write()
    return write


def test_one_frame_is_printed_while_a_run_goes_on(tmp_path, run, capsys):
    assert call("watch", tmp_path, "--once") == 0
    out = capsys.readouterr().out
    assert "1 of 2 rounds" in out
    assert "AUC" in out
    assert "finished" not in out


def test_a_finished_run_ends_the_command_with_its_result(tmp_path, run, capsys):
    run(state="finished", done=2)
    assert call("watch", tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "finished: 2 rounds, test AUC 0.750"


def test_the_command_ends_by_itself_when_the_run_does(tmp_path, run, capsys, monkeypatch):
    looks = iter([lambda: run(done=2), lambda: run(state="stopped", reason="too few sites")])
    monkeypatch.setattr("fl_components.cli.watch.time.sleep", lambda seconds: next(looks)())
    assert call("watch", tmp_path) == 1
    assert capsys.readouterr().err == "fedmend: the run stopped: too few sites\n"


def test_a_run_that_has_not_begun_is_said_in_one_frame(tmp_path, capsys):
    assert call("watch", tmp_path, "--once") == 0
    assert capsys.readouterr().out == "no run has begun here yet\n"


def test_damage_is_one_sentence(tmp_path, run, capsys):
    run(state="asleep")
    assert call("watch", tmp_path, "--once") == 1
    assert capsys.readouterr().err.startswith("fedmend: progress.json, field state: expected one of ['starts', 'runs'")


def test_a_frame_can_be_kept_as_a_picture(tmp_path, run):
    assert call("watch", tmp_path, "--once", "--svg", tmp_path / "a.svg") == 0
    assert "spring" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize("words", [["--job-id", "x"], ["--svg", "a.svg"]])
def test_options_without_the_one_that_they_belong_to_are_refused(tmp_path, run, capsys, words):
    assert call("watch", tmp_path, *words) == 1
    assert "expected --kit beside --job-id, and --once beside --svg" in capsys.readouterr().err


def test_without_rich_the_command_says_what_to_install(tmp_path, run, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert call("watch", tmp_path) == 1
    sentence = "watch: expected the package rich (pip install 'fedmend[watch]'), not found"
    assert capsys.readouterr().err == f"fedmend: {sentence}\n"
