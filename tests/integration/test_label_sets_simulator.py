"""FedLSM in FLARE's real simulator, with a phantom so small that only plumbing is tested, not learning."""

import pytest
from forgetful import run_here
from simulation import LOCAL, SMALL, lines, outcome, records

pytestmark = pytest.mark.slow
SITES = ["site-1", "site-2", "site-3"]
MOON = [
    *("num_rounds=2", "image_size=32", "batch_size=8", "local_iterations=2", "learning_rate=0.001"),
    *("phantom.images=600", "phantom.sites=3", "phantom.pixels=32", "phantom.protocol=fedmlp"),
    *(f'{part}=["Effusion","Infiltration","Atelectasis"]' for part in ("phantom.classes", "classes")),
]


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


def test_without_flare_a_run_is_that_of_the_simulator(fedlsm):
    assert outcome(fedlsm(LOCAL)[0], SITES) == outcome(fedlsm(3)[0], SITES)


def test_a_site_whose_every_task_is_a_new_process_ends_with_the_same_run(fedlsm, tmp_path):
    settings = SMALL["fedlsm_isic2018"]
    forgetful = run_here("fedlsm_isic2018", tmp_path / "run", sites=3, settings=settings, forgetful=True)
    assert outcome(forgetful, SITES) == outcome(fedlsm(LOCAL)[0], SITES)  # Adam's moments come from disk


def test_a_baseline_with_a_model_of_the_round_before_does_not_need_its_process(tmp_path):
    options = {"sites": 3, "settings": MOON, "variants": ["moon_masked"]}
    usual, forgetful = (
        run_here("fedlsm_cxr14", tmp_path / str(each_time), forgetful=each_time, **options)
        for each_time in (False, True)
    )
    assert outcome(forgetful, SITES) == outcome(usual, SITES)
