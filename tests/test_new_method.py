"""The price of a method: new files and one command. A toy in a copy of the checkout runs with and without FLARE."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from factories import ROOT
from simulation import lines, metrics_without_seconds, records, run

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent / "new_method"
COPIED = ("custom", "fl_components", "jobs", "provisioning", "simulator_workspace/local")
SMALL = [
    "network=resnet_narrow",
    "image_size=32",
    "batch_size=8",
    "phantom.images=360",
    "phantom.sites=3",
    "phantom.annotated_per_site=3",
    "phantom.partition=station",
]
VARIANT = {
    "about": "a toy",
    "components": {
        "method": {"path": "fedmend.methods.toy.Toy"},
        "workflow": {"path": "fedmend.methods.toy.ToyWorkflow", "args": {"turns": 1}},
    },
    "set": {"method": "toy", "num_rounds": 5},
}
NEW = {
    "custom/fedmend/methods/toy.py": (HERE / "toy.py.txt").read_text(),
    "custom/fedmend/report/sections/toy.py": (HERE / "section.py.txt").read_text(),
    "jobs/variants/missing_classes/toy.json": json.dumps(VARIANT),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout with the toy in it, and what ``git status`` would say of it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    for name, text in NEW.items():
        (folder / name).write_text(text)
    done = command(folder, "policy")
    assert done.returncode == 0, done.stderr
    after = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts}
    changed = {str(f.relative_to(folder)) for f in before if before[f] != after[f]}
    added = {str(f.relative_to(folder)) for f in after.keys() - before.keys()}
    return folder, added, changed


def command(folder, *words):
    paths = os.pathsep.join([str(folder / "custom"), str(folder)])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "fl_components.cli", *map(str, words)]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)


def simulate(folder, home, *how):
    words = ["simulate", folder / "jobs" / "fedmlp_ich", "--variant", "toy", "--sites", 3, "--workspace", home, *how]
    words += ["--site", f"cache_dir={folder}/cache", "--set", *SMALL]
    code, out = run(["fl_components.cli", *words], home=folder, root=folder)
    assert code == 0, out
    return out


def test_a_method_costs_new_files_and_a_regenerated_policy(checkout):
    _, added, changed = checkout
    assert added == set(NEW)
    policy = {f"simulator_workspace/local/{name}.json" for name in ("resources", "privacy")}
    assert changed == {*policy, "provisioning/data_protection.md", "provisioning/allowed_classes.md"}


def test_it_runs_in_one_process_and_in_the_simulator_and_gives_the_same(checkout, tmp_path):
    folder, _, _ = checkout
    simulate(folder, tmp_path / "local", "--local")
    out = simulate(folder, tmp_path / "flare", "--threads", 3)
    assert "is not in allow_list" not in out
    local, flare = tmp_path / "local", tmp_path / "flare"
    assert metrics_without_seconds(local) == metrics_without_seconds(flare)
    assert lines(local, "repairs.jsonl") == lines(flare, "repairs.jsonl")
    kept = [[d["what"], d["round"], d["value"]] for d in lines(local, "decisions.jsonl")]
    assert kept == [[d["what"], d["round"], d["value"]] for d in lines(flare, "decisions.jsonl")]
    repaired = {(r["site"], r["class"]): r["positive"] for r in lines(local, "repairs.jsonl")}
    assert repaired
    assert set(repaired.values()) == {1}  # the question came before a round, whose training did not take it back
    asked = [m["stage"] for m in lines(local, "metrics.jsonl") if m["split"] == "test"]
    assert asked == ["evaluate"] * 6  # whenever only a part trains, all evaluate before it
    assert '<section id="toy">' in (records(local) / "report.html").read_text()
