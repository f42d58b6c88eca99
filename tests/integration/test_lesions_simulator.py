"""FedIA in FLARE's real simulator, with a phantom so small that only plumbing is tested, not learning."""

import nibabel
import numpy as np
import pytest
import torch
from factories import ROOT
from simulation import fedmend, global_model, lines, metrics_without_seconds, records, runs_by_threads

pytestmark = pytest.mark.slow
SITES = ["site-1", "site-2"]
SMALL = [
    *("num_rounds=5", "warmup_rounds=2", "image_size=32", "local_epochs=1", "learning_rate=0.003", "gap=0"),
    *("threshold=0.5", "phantom.images=6", "phantom.sites=2", "phantom.pixels=32", "phantom.depth=12", "phantom.m=1"),
    *("phantom.test_share=0.33", "learning_rate_decay=1", "min_component=1"),
]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    return runs_by_threads("fedia_ms", tmp_path_factory.mktemp("home"), sites=2, settings=SMALL)


def state_of(workspace, site):
    (folder,) = workspace.glob(f"**/state/fedia_ms/{site}")
    return folder


def test_sites_estimate_their_completeness_and_correct_their_masks(simulated):
    workspace, out = simulated(2)
    assert "PHANTOM round 5/5" in out
    decided = {d["what"]: d["value"] for d in lines(workspace, "decisions.jsonl")}
    assert sorted(decided["completeness"]) == sorted(decided["iou_line"]) == SITES
    assert sum(decided["completeness_weights"].values()) == pytest.approx(1, abs=1e-5)
    assert lines(workspace, "metrics.jsonl")[-1]["macro"]["dice"] is not None
    page = (records(workspace) / "report.html").read_text()
    assert '<section id="completeness">' in page


def test_a_correction_leaves_a_ledger_repaired_volumes_and_a_gallery_at_the_site_and_labels_alone(simulated):
    workspace, _ = simulated(2)
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


def test_a_site_whose_every_task_is_a_new_process_ends_with_the_same_model_and_masks(simulated):
    (one, _), (two, _) = simulated(1), simulated(2)  # with one thread, curve, flag and masks come from disk
    assert metrics_without_seconds(one) == metrics_without_seconds(two)
    weights = global_model(one)
    assert all(torch.equal(value, weights[name]) for name, value in global_model(two).items())
    assert lines(one, "repairs.jsonl") == lines(two, "repairs.jsonl")


def test_the_upper_bound_trains_on_complete_masks(tmp_path):
    words = ["--variant", "all_labels", "--workspace", tmp_path / "w", "--threads", 2, "--sites", 2]
    small = [s for s in SMALL if not s.startswith(("gap", "num_rounds"))] + ["num_rounds=2"]
    code, out = fedmend("simulate", ROOT / "jobs" / "fedia_ms", *words, "--set", *small, home=tmp_path)
    assert code == 0, out
    assert not any(d["what"] == "corrected" for d in lines(tmp_path / "w", "decisions.jsonl"))
