"""ConDistFL with a network in three dimensions in FLARE's real simulator, on a phantom too small for learning."""

import json

import nibabel
import numpy as np
import pytest
from forgetful import run_here
from simulation import LOCAL, SMALL, fedmend, lines, outcome, records

pytestmark = pytest.mark.slow
SITES = ["site-1", "site-2", "site-3"]


def test_without_flare_a_run_is_that_of_the_simulator(condist):
    workspace, out = condist(2)
    assert "PHANTOM round 3/3" in out
    assert [*lines(workspace, "metrics.jsonl")[-1]["per_class"]["dice"]] != []
    assert outcome(condist(LOCAL)[0], SITES) == outcome(workspace, SITES)


def test_a_site_whose_every_task_is_a_new_process_ends_with_the_same_run(condist, tmp_path):
    forgetful = run_here("condist_organs", tmp_path / "run", sites=3, settings=SMALL["condist_organs"], forgetful=True)
    assert outcome(forgetful, SITES) == outcome(condist(LOCAL)[0], SITES)


def test_the_model_comes_home_and_outlines_the_organs_of_a_volume(condist, tmp_path):
    package = records(condist(LOCAL)[0]) / "condist_organs.fedmend"
    about = json.loads((package / "package.json").read_text())
    assert about["classes"] == ["liver", "spleen", "kidneys"]
    assert about["preprocessing"]["spacing"] == [12.0, 12.0, 15.0]
    (tmp_path / "in").mkdir()
    voxels = np.random.default_rng(0).normal(0, 200, (20, 24, 9)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([-14.0, -12.0, 20.0, 1.0])), tmp_path / "in" / "a.nii.gz")
    code, out = fedmend("predict", package, tmp_path / "in", tmp_path / "out", home=tmp_path)
    assert code == 0, out
    found = nibabel.load(tmp_path / "out" / "masks" / "a.nii.gz")
    assert found.shape == voxels.shape
    assert {*np.unique(np.asarray(found.dataobj))} <= {0, 1, 2, 3}
    head, row = (tmp_path / "out" / "predictions.csv").read_text().splitlines()[:2]
    assert "spleen_ml" in head
    assert row.startswith("a.nii.gz")
