"""FedLSM in FLARE's real simulator, with a phantom so small that only plumbing is tested, not learning."""

import pytest
import torch
from factories import ROOT
from simulation import fedmend, global_model, lines, metrics_without_seconds, records

pytestmark = pytest.mark.slow
SITES = ["site-1", "site-2", "site-3"]


def test_sites_measure_uncertainty_and_tell_what_they_know_of_each_class(fedlsm):
    workspace, out = fedlsm(3)
    assert "PHANTOM round 3/3 train" in out
    decided = lines(workspace, "decisions.jsonl")
    for what, size in (("class_knowledge", 7), ("uncertainty", 20)):
        shown = {d["round"]: d["value"] for d in decided if d["what"] == what}
        assert sorted(shown) == [1, 2, 3]
        assert all(sorted(value) == SITES and all(len(v) == size for v in value.values()) for value in shown.values())
    assert lines(workspace, "metrics.jsonl")[-1]["macro"]["auc"] is not None
    page = (records(workspace) / "report.html").read_text()
    assert all(f'<section id="{name}">' in page for name in ("uncertainty", "class-knowledge"))
    assert (records(workspace) / "macro.csv").is_file()


def test_a_site_whose_every_task_is_a_new_process_ends_with_the_same_model(fedlsm):
    (two, _), (three, _) = fedlsm(2), fedlsm(3)  # with fewer threads than sites, Adam's moments come from disk
    assert metrics_without_seconds(two) == metrics_without_seconds(three)
    weights = global_model(two)
    assert all(torch.equal(value, weights[name]) for name, value in global_model(three).items())


def test_a_baseline_with_a_model_of_the_round_before_does_not_need_its_process(tmp_path):
    small = ["num_rounds=2", "image_size=32", "batch_size=8", "local_iterations=2", "learning_rate=0.001"]
    small += ["phantom.images=600", "phantom.sites=3", "phantom.pixels=32", "phantom.protocol=fedmlp"]
    small += [
        'phantom.classes=["Effusion","Infiltration","Atelectasis"]',
        'classes=["Effusion","Infiltration","Atelectasis"]',
    ]
    models = []
    for threads in (1, 3):
        words = ["--variant", "moon_masked", "--workspace", tmp_path / str(threads), "--threads", threads, "--sites", 3]
        code, out = fedmend("simulate", ROOT / "jobs" / "fedlsm_cxr14", *words, "--set", *small, home=tmp_path)
        assert code == 0, out
        models.append(global_model(tmp_path / str(threads)))
    assert all(torch.equal(value, models[0][name]) for name, value in models[1].items())
