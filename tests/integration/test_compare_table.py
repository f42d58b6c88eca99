"""The paper's table with real runs: stopped and gone on with, on site folders, and on two workers of a cluster."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest
from factories import ROOT
from simulation import SMALL, fedmend

pytestmark = pytest.mark.slow
SETTINGS = SMALL["fedmlp_ich"]
MEASURED = {"seconds", "memory_megabytes"}


ROWS = "fedavg,fedavg_pl"  # of the table; with all of them this would take minutes


def words(sites, out, *more):
    how = ["--data", sites, "--rows", ROWS, "--seeds", "4", "--out", out, "--set", *SETTINGS, "num_rounds=2"]
    return ["compare", "missing-classes", *how, *more]


def numbers(out):
    """All lines of the table without what another machine would measure otherwise."""
    with open(out / "comparison.csv") as stream:
        return [{k: v for k, v in line.items() if k not in MEASURED} for line in csv.DictReader(stream)]


@pytest.fixture(scope="module")
def table(home, sites, tmp_path_factory):
    """A table whose command was interrupted after its first run, and went on."""
    out = tmp_path_factory.mktemp("table")
    env = {
        **os.environ,
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT / 'custom'}{os.pathsep}{ROOT}",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "fl_components.cli", *map(str, words(sites, out, "--processes", 1))]
    listens = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # in the background it may not
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, env=env, cwd=home, **pipes, **listens)
    try:
        end = time.monotonic() + 600
        while not (out / "fedmlp" / "seed-4.json").is_file() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "stopped; complete runs are kept, and the same command goes on" in said
    assert not (out / "comparison.md").exists()
    first = (out / "fedmlp" / "seed-4.cost.json").read_bytes()
    code, said = fedmend(*words(sites, out, "--processes", 1), home=home)
    assert code == 0, said
    assert (out / "fedmlp" / "seed-4.cost.json").read_bytes() == first  # not made again
    return out


def test_a_table_that_was_stopped_has_all_rows_on_the_same_data_from_the_same_weights(table):
    found = numbers(table)
    assert {line["row"] for line in found} == {"fedmlp", "fedavg", "fedavg_pl"}
    assert {(line["comparable"], line["training"], line["phantom"]) for line in found} == {("yes", "2 epochs", "yes")}
    published = {line["row"]: line["published"] for line in found if line["metric"] == "AUC"}
    assert (published["fedmlp"], published["fedavg"]) == ("88.47", "76.32")
    text = (table / "comparison.md").read_text()
    assert "**PHANTOM**" in text
    assert "Strongest simple baseline: FedAvg" in text
    assert "<svg" in (table / "comparison.html").read_text()


def test_a_table_that_is_complete_is_written_again_without_a_run(table, home, sites):
    before = numbers(table)
    code, said = fedmend(*words(sites, table, "--budget", "1s"), home=home)
    assert (code, said.count(": done, ")) == (0, 0), said
    assert numbers(table) == before


def test_a_budget_in_which_no_run_fits_is_one_sentence_before_anything_is_trained(home, sites, tmp_path):
    little = "0.01s"  # less than any machine's estimate
    code, said = fedmend(*words(sites, tmp_path, "--budget", little), home=home)
    assert code == 1
    assert "fedmend: --budget: expected time for one run of each of " in said
    assert not list(tmp_path.glob("*/seed-4*"))


def test_two_workers_of_a_cluster_give_the_same_numbers(table, home, sites, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    how = {"n_workers": 2, "threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": None}
    with distributed.LocalCluster(**how, local_directory=tmp_path / "dask") as cluster:
        out = tmp_path / "out"
        code, said = fedmend(*words(sites, out, "--cluster", cluster.scheduler_address), home=home, timeout=1200)
    assert code == 0, said
    assert numbers(out) == numbers(table)
