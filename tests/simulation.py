"""Commands that start FLARE's simulator, and what a run leaves behind."""

import contextlib
import json
import os
import re
import subprocess
import sys
import uuid
from hashlib import sha256

import psutil
import torch
from factories import ROOT

from fedmend.repairs.ledger import read_history

MARK = "FEDMEND_TEST_RUN"
LOCAL = "local"
SMALL = {  # job → settings of runs that test plumbing, not learning
    "fedmlp_ich": [
        *("num_rounds=3", "local_epochs=1"),
        "warmup_rounds=1",
        "image_size=32",
        "batch_size=8",
        "st=false",
    ],  # certain of nothing
    "fednoro_isic2019": [
        *("num_rounds=3", "warmup_rounds=1", "image_size=32", "batch_size=8", "local_epochs=1"),
        *("phantom.images=240", "phantom.sites=4", "phantom.pixels=32", "phantom.noise=uniform"),
    ],
    "fedlsm_isic2018": [
        *("num_rounds=3", "image_size=32", "batch_size=8", "local_iterations=4", "pairs=2", "learning_rate=0.001"),
        *("phantom.images=700", "phantom.sites=3", "phantom.pixels=32"),
    ],
    "fedia_ms": [
        *("num_rounds=5", "warmup_rounds=2", "image_size=32", "local_epochs=1", "learning_rate=0.003", "gap=0"),
        *(
            "threshold=0.5",
            "phantom.images=6",
            "phantom.sites=2",
            "phantom.pixels=32",
            "phantom.depth=12",
            "phantom.m=1",
        ),
        *("phantom.test_share=0.33", "phantom.val_share=0", "learning_rate_decay=1", "line_share=1", "min_component=1"),
    ],
    "condist_organs": [  # a network in three dimensions
        *("network=volume/monai/SegResNet(init_filters=8, blocks_down=[1, 1], blocks_up=[1])", "batch_size=2"),
        *("spacing=[12,12,15]", "patch=[32,32,8]", "image_size=32", "num_rounds=3", "local_epochs=1"),
        *("phantom.images=9", "phantom.pixels=32", "phantom.depth=12"),
    ],
}


def run(words, *, home, cwd=None, timeout=600, root=ROOT):
    """Runs a command of the checkout ``root``; whatever process it leaves behind is ended.

    Returns:
        Exit code and output, stderr included.
    """
    mark = uuid.uuid4().hex
    paths = os.pathsep.join([str(root / "custom"), str(root)])
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


def runs_by_threads(job, home, *, sites, site_settings=()):
    """A function: number of threads → workspace and output of a run of the job with the settings of ``SMALL``.

    ``LOCAL`` in the place of the number is a run without FLARE. Each run is made once.
    """
    runs = {}

    def simulate(threads):
        if threads not in runs:
            workspace = home / f"threads-{threads}"
            how = ["--local"] if threads == LOCAL else ["--threads", threads]
            words = ["--workspace", workspace, *how, "--sites", sites, "--set", *SMALL[job]]
            words += ["--site", *site_settings] if site_settings else []
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


def ledger(workspace, site):
    """All rows of the ledger that the site keeps in a run."""
    (file,) = workspace.glob(f"**/state/*/{site}/ledger.sqlite")
    return read_history(file)


def metrics_without_seconds(workspace):
    return re.sub(r', "seconds": [0-9.]+', "", (records(workspace) / "metrics.jsonl").read_text())


def outcome(workspace, sites):
    """All that a run leaves, without the time at which it was written: equal for equal runs, to the last digit."""
    told = json.loads((records(workspace) / "run.json").read_text())
    assert told.pop("started")
    return {
        "metrics": metrics_without_seconds(workspace),
        "repairs": lines(workspace, "repairs.jsonl"),
        "decisions": [{k: v for k, v in d.items() if k != "time"} for d in lines(workspace, "decisions.jsonl")],
        "model": {name: sha256(value.numpy().tobytes()).hexdigest() for name, value in global_model(workspace).items()},
        "ledgers": {site: ledger(workspace, site) for site in sites},
        "run": told,
        "files": {file.name for file in records(workspace).iterdir()},
    }
