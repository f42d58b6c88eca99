"""Commands that start FLARE's simulator, and what a run leaves behind."""

import contextlib
import json
import os
import re
import subprocess
import sys
import uuid

import psutil
import torch
from factories import ROOT

MARK = "FEDMEND_TEST_RUN"


def run(words, *, home, cwd=None, timeout=600):
    """Runs a command; whatever process it leaves behind is ended.

    Returns:
        Exit code and output, stderr included.
    """
    mark = uuid.uuid4().hex
    paths = os.pathsep.join([str(ROOT / "custom"), str(ROOT)])
    env = {**os.environ, "HOME": str(home), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", MARK: mark}
    try:
        done = subprocess.run(
            [sys.executable, "-m", *map(str, words)],
            cwd=cwd or home,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done.returncode, done.stdout
    finally:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    process.kill()


def fedmend(*words, **options):
    return run(["fl_components.cli", *words], **options)


def runs_by_threads(job, home, *, sites, settings):
    """A function: number of threads → workspace and output of a run of the job; each run is made once."""
    runs = {}

    def simulate(threads):
        if threads not in runs:
            workspace = home / f"threads-{threads}"
            words = ["--workspace", workspace, "--threads", threads, "--sites", sites, "--set", *settings]
            code, out = fedmend("simulate", ROOT / "jobs" / job, *words, home=home)
            assert code == 0, out
            runs[threads] = workspace, out
        return runs[threads]

    return simulate


def records(workspace):
    return workspace / "server" / "simulate_job" / "fedmend"


def lines(workspace, name):
    return [json.loads(line) for line in (records(workspace) / name).read_text().splitlines()]


def global_model(workspace):
    file = json.loads((records(workspace) / "results.json").read_text())["files"]["global model"]
    return torch.load(file, weights_only=False)["model"]


def metrics_without_seconds(workspace):
    return re.sub(r', "seconds": [0-9.]+', "", (records(workspace) / "metrics.jsonl").read_text())
