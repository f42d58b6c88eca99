"""A recipe in FLARE's own environments: its simulator, and its federation of processes on this machine."""

import re

import pytest
from factories import ROOT
from simulation import fedmend, metrics_without_seconds, run

pytestmark = pytest.mark.slow
TINY = {"num_rounds": 1, "warmup_rounds": 1, "image_size": 32, "batch_size": 8, "st": False, "local_epochs": 1}
PHANTOM = {"phantom.images": 300, "phantom.sites": 2, "phantom.annotated_per_site": 4}
SCRIPT = f"""
import os
import psutil
import fedmend
from nvflare.recipe import PocEnv, SimEnv
from fl_components.recipes import FedMLPRecipe

recipe = FedMLPRecipe("ich", sites=2, **{ {**TINY, **PHANTOM} })
started = recipe.execute(ENVIRONMENT)
found = fedmend.Run(started.get_result(clean_up=False))
print("status", started.get_status())
print("records", found.folder)
left = psutil.Process().children(recursive=True)
print("left", [p.pid for p in left if p.status() != psutil.STATUS_ZOMBIE])
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


def execute(environment, home, folder):
    """Output of a script that executes the recipe in this environment."""
    (folder / "play.py").write_text(SCRIPT.replace("ENVIRONMENT", environment))
    code, out = run(["play"], home=home, cwd=folder, timeout=180)
    assert code == 0, out
    assert "\nleft []\n" in out
    return out


@pytest.fixture(scope="module")
def expected(home):
    """Metrics of the same job without FLARE."""
    words = [f"{name}={value}" for name, value in {**TINY, "st": "false", **PHANTOM}.items()]
    job = ["simulate", ROOT / "jobs" / "fedmlp_ich", "--local", "--workspace", home / "local", "--sites", 2]
    code, out = fedmend(*job, "--set", *words, home=home)
    assert code == 0, out
    return metrics_without_seconds(home / "local")


def test_a_recipe_in_flares_simulator_gives_the_numbers_of_the_job(home, tmp_path, expected):
    execute(f"SimEnv(num_clients=2, workspace_root={str(tmp_path)!r})", home, tmp_path)
    assert metrics_without_seconds(tmp_path / "fedmlp_ich") == expected


def test_a_recipe_in_flares_poc_gives_them_too_and_leaves_nothing_running(home, tmp_path, expected, monkeypatch):
    monkeypatch.setenv("NVFLARE_POC_WORKSPACE", str(tmp_path / "poc"))
    out = execute("PocEnv(num_clients=2)", home, tmp_path)
    assert "status FINISHED:COMPLETED" in out
    (found,) = (tmp_path / "poc" / "fedmend" / "prod_00" / "lead@fedmend.example.org").rglob("metrics.jsonl")
    assert re.sub(r', "seconds": [0-9.]+', "", found.read_text()) == expected
