"""How a command ends where the system, or the person, does not let it go on."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from cli_calls import call
from factories import ROOT
from job_factories import write_job

from fl_components.cli import main

EXPECTED = "expected files, folders and ports that can be used, got"
JOB = ROOT / "jobs" / "fedmlp_ich"
LISTENS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def refuse(monkeypatch):
    """``fedmend report FOLDER`` ends with this error."""

    def raising(error):
        def write_report(folder):
            raise error

        monkeypatch.setattr("fedmend.report.report.write_report", write_report)

    return raising


FULL = os.strerror(errno.ENOSPC)
ERRORS = {
    "a file": (PermissionError(errno.EACCES, "x", "/runs/a"), "/runs/a: Permission denied"),
    "a move": (OSError(errno.EROFS, "x", "/a", None, "/b"), "/b: Read-only file system"),
    "a copy of many files": (shutil.Error([("/a", "/b", f"[Errno 28] {FULL}: '/b'")]), f"/b: {FULL}"),
    "a full disk while writing": (OSError(errno.ENOSPC, "x"), f"folder: {FULL}"),
    "an error of a package": (OSError("cannot open resource"), "folder: cannot open resource"),
}


@pytest.mark.parametrize(("error", "got"), ERRORS.values(), ids=ERRORS)
def test_what_the_system_refuses_is_one_sentence_with_what_where_and_why(refuse, capsys, error, got):
    refuse(error)
    assert call("report", "folder") == 1
    assert capsys.readouterr().err == f"fedmend: report: {EXPECTED} {got}\n"


def test_a_file_in_the_place_of_a_folder_is_one_sentence_of_every_command(tmp_path, capsys):
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    for words in (
        ["simulate", JOB, "--local", "--workspace", below / "w"],
        ["simulate", JOB, "--workspace", below / "w"],
        ["poc", JOB, "--workspace", below / "w"],
        ["configure", JOB, below / "out"],
        ["compare", JOB, "--seeds", "0", "--out", below / "out"],
        ["phantom", "ich", below / "out"],
        ["simulate", JOB, "--local", "--workspace", tmp_path / ("x" * 300)],
    ):
        assert call(*words) == 1, words
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"fedmend: {words[0]}: {EXPECTED} {tmp_path}"), line
        assert line.endswith((": Not a directory", ": File name too long", ": File exists")), line


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_a_command_quietly():
    words = [sys.executable, "-m", "fl_components.cli", "jobs", str(ROOT / "jobs")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "custom"), str(ROOT)])}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    process.stdout.close()
    assert (process.wait(60), process.stderr.read()) == (141, b"")


@pytest.fixture
def read_only(tmp_path):
    """A checkout's job that nobody may write."""
    job = write_job(tmp_path / "job")
    for place in (job, *job.rglob("*")):
        place.chmod(0o555 if place.is_dir() else 0o444)
    return job


def test_a_job_of_a_read_only_checkout_becomes_one_that_can_be_changed(read_only, tmp_path):
    assert call("configure", read_only, tmp_path / "out", "--set", "num_rounds=3") == 0
    for place in ((out := tmp_path / "out"), *out.rglob("*")):
        assert place.stat().st_mode & 0o200, place
    assert call("configure", tmp_path / "out", tmp_path / "again", "--set", "num_rounds=4") == 0


def test_json_with_the_mark_of_windows_editors_is_read_and_written_as_flare_reads_it(tmp_path):
    job = write_job(tmp_path / "job", one={"about": "x", "set": {"num_rounds": 2}})
    for file in job.rglob("*.json"):
        file.write_text(file.read_text(), encoding="utf-8-sig")
    assert call("configure", job, tmp_path / "out", "--variant", "one") == 0
    for file in ("meta.json", "app/config/config_fed_client.json", "app/config/config_fed_server.json"):
        json.loads((tmp_path / "out" / file).read_text())


@pytest.fixture
def at_a_terminal():
    """Signals as a terminal leaves them, though the tests may run under nohup or in the background."""
    usual = dict.fromkeys(LISTENS, signal.SIG_DFL) | {signal.SIGINT: signal.default_int_handler}
    before = {n: signal.signal(n, handler) for n, handler in usual.items()}
    yield
    for n, handler in before.items():
        signal.signal(n, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_is_stopped_in_order_however_often_it_is_asked(monkeypatch, at_a_terminal, number, code):
    cleaned = []

    def write_report(folder):
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            for again in LISTENS:
                os.kill(os.getpid(), again)
            cleaned.append(True)

    monkeypatch.setattr("fedmend.report.report.write_report", write_report)
    ends = pytest.raises(SystemExit) if number != signal.SIGINT else contextlib.nullcontext()
    with ends as stop:
        assert call("report", "folder") == code
    assert stop is None or stop.value.code == code
    assert cleaned == [True]
    assert [signal.getsignal(n) for n in LISTENS] == [signal.SIG_IGN] * 3  # until the process has ended


def test_a_command_that_ends_by_itself_leaves_the_signals_as_they_were():
    before = [signal.getsignal(n) for n in LISTENS]
    assert call("report", "nowhere") == 1
    assert [signal.getsignal(n) for n in LISTENS] == before


def test_a_command_under_nohup_goes_on_when_the_terminal_closes(monkeypatch):
    handlers = []
    monkeypatch.setattr(
        "fedmend.report.report.write_report", lambda folder: handlers.append(signal.getsignal(signal.SIGHUP))
    )
    monkeypatch.setattr("fedmend.report.report.summary_text", lambda folder: "")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["report", "folder"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert handlers == [signal.SIG_IGN]


def test_a_word_that_a_terminal_without_utf8_has_garbled_is_one_sentence(tmp_path, capsys):
    """What Python makes of the bytes of an accent where ``LC_ALL=C`` holds and its UTF-8 mode is off."""
    assert call("configure", JOB, tmp_path / "job", "--set", 'classes=["\udcc3\udca9","b"]') == 1
    said = 'job variable classes: expected a list, got \'["\\udcc3\\udca9","b"]\''
    assert capsys.readouterr().err == f"fedmend: {said}\n"
    assert not (tmp_path / "job").exists()
