"""FedIA in FLARE's real simulator, with a phantom so small that only plumbing is tested, not learning."""

import nibabel
import numpy as np
import pytest
from factories import ROOT
from forgetful import run_here
from simulation import LOCAL, SMALL, fedmend, lines, outcome, records

pytestmark = pytest.mark.slow
SITES = ["site-1", "site-2"]


def state_of(workspace, site):
    (folder,) = workspace.glob(f"**/state/fedia_ms/{site}")
    return folder


def test_sites_estimate_their_completeness_and_correct_their_masks(fedia):
    workspace, out = fedia(2)
    assert "PHANTOM round 5/5" in out
    decided = {d["what"]: d["value"] for d in lines(workspace, "decisions.jsonl")}
    assert sorted(decided["completeness"]) == sorted(decided["iou_line"]) == SITES
    assert sum(decided["completeness_weights"].values()) == pytest.approx(1, abs=1e-5)
    assert lines(workspace, "metrics.jsonl")[-1]["macro"]["dice"] is not None
    page = (records(workspace) / "report.html").read_text()
    assert '<section id="completeness">' in page


def test_a_correction_leaves_a_ledger_repaired_volumes_and_a_gallery_at_the_site_and_labels_alone(fedia):
    workspace, _ = fedia(2)
    corrected = {s for d in lines(workspace, "decisions.jsonl") if d["what"] == "corrected" for s in d["value"]}
    assert corrected
    repaired = []
    for site in corrected:
        folder = state_of(workspace, site)
        assert (folder / "gallery.html").is_file()
        code, out = fedmend("ledger", "show", folder / "ledger.sqlite", home=workspace)
        assert code == 0
        volumes = list(folder.glob("repaired/*/*.nii.gz"))
        assert bool(volumes) == ("fedia.correction" in out)
        repaired += volumes
    assert repaired  # at least one site has found something to mark
    for volume in repaired:
        assert set(np.unique(np.asarray(nibabel.load(volume).dataobj))) == {0, 1}


def test_without_flare_a_run_is_that_of_the_simulator(fedia):
    assert outcome(fedia(LOCAL)[0], SITES) == outcome(fedia(2)[0], SITES)


def test_a_site_whose_every_task_is_a_new_process_ends_with_the_same_run(fedia, tmp_path):
    settings = SMALL["fedia_ms"]
    forgetful = run_here("fedia_ms", tmp_path / "run", sites=2, settings=settings, forgetful=True)
    assert outcome(forgetful, SITES) == outcome(fedia(LOCAL)[0], SITES)  # curve, flag and masks come from disk


def test_the_upper_bound_trains_on_complete_masks(tmp_path):
    words = ["--variant", "all_labels", "--workspace", tmp_path / "w", "--local", "--sites", 2]
    small = [s for s in SMALL["fedia_ms"] if not s.startswith(("gap", "num_rounds"))] + ["num_rounds=2"]
    code, out = fedmend("simulate", ROOT / "jobs" / "fedia_ms", *words, "--set", *small, home=tmp_path)
    assert code == 0, out
    assert not any(d["what"] == "corrected" for d in lines(tmp_path / "w", "decisions.jsonl"))
