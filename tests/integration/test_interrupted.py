"""Commands that a person starts twice, or stops by Ctrl-C, which a terminal sends to all processes of the command."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from deployment import TINY, until
from factories import ROOT

pytestmark = pytest.mark.slow
BUSY = "fedmend: --workspace: expected one without a run at work, there is one; wait for its end, or choose another\n"
RECORDS = "server/simulate_job/fedmend"


def start(workspace, said, *words, rounds=200):
    """``fedmend simulate`` as a terminal starts it, with processes of its own that listen to Ctrl-C."""
    settings = [f"{name}={str(value).lower()}" for name, value in {**TINY, "num_rounds": rounds}.items()]
    command = ["-m", "fl_components.cli", "simulate", str(ROOT / "jobs" / "fedmlp_ich"), "--sites", "2"]
    command += ["--workspace", str(workspace), "--set", *settings, *words]
    paths = os.pathsep.join([str(ROOT / "custom"), str(ROOT)])
    home = {"HOME": str(workspace.parent), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **home},
        stdout=subprocess.DEVNULL,
        stderr=open(workspace.with_name(said), "w"),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def left_of(workspace):
    """Processes that still work in the workspace."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(workspace) in " ".join(process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.mark.parametrize(("how", "times"), [("--local", 1), ("--local", 2), ("--quiet", 2)])  # the last one: FLARE's
def test_ctrl_c_once_or_twice_ends_with_130_and_no_traceback_and_the_next_run_finds_all_whole(tmp_path, how, times):
    workspace = tmp_path / "w"
    process = start(workspace, "first", how)
    until(lambda: (workspace / RECORDS / "run.json").is_file())
    assert start(workspace, "second", how).wait(60) == 1
    assert (tmp_path / "second").read_text() == BUSY
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
    assert process.wait(60) == 130
    assert "Traceback" not in (tmp_path / "first").read_text()
    assert left_of(workspace) == []
    assert start(workspace, "third", how, rounds=2).wait(300) == 0
    assert (workspace / RECORDS / "report.html").is_file()
