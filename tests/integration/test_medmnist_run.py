"""A file in MedMNIST's format, from ``fedmend prepare`` to the results of a job."""

import json

import pytest
from cli_calls import call
from factories import ROOT
from medmnist_factories import make_medmnist

pytestmark = pytest.mark.slow


def test_a_file_of_medmnist_becomes_sites_that_pass_the_sitecheck_and_train_fedmlp(tmp_path):
    from fl_components.job.folder import Changes
    from fl_components.run.local import run_local

    source = make_medmnist(tmp_path / "octmnist_28.npz", size=28, sizes={"train": 240, "val": 40, "test": 80})
    assert call("prepare", "medmnist", source, tmp_path / "data", "--sites", 2) == 0
    card = json.loads((tmp_path / "data" / "site-1" / "site.json").read_text())
    assert call("sitecheck", tmp_path / "data" / "site-1") == 0
    job = ROOT / "jobs" / "fedmlp_ich"
    variables = {"classes": card["classes"], "num_rounds": 4, "image_size": 32, "batch_size": 16}
    settings = {"data_root": str(tmp_path / "data" / "{SITE_NAME}")}
    changes = Changes(variables, sites=2)
    results = run_local(job, tmp_path / "work", changes, site_settings=settings, quiet=True)
    assert results["final"]["test"]["auc"] > 0.8  # the classes differ in brightness
