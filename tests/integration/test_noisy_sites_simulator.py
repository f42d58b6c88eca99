"""FedNoRo in FLARE's real simulator, with a phantom so small that only plumbing is tested, not learning."""

import json

import pytest
from forgetful import run_here
from simulation import LOCAL, SMALL, lines, outcome, records

pytestmark = pytest.mark.slow
SITES = [f"site-{i}" for i in range(1, 5)]


def test_noisy_sites_are_found_and_weighted_down_and_the_report_says_so(fednoro):
    workspace, out = fednoro(4)
    for line in ("PHANTOM round 1/3 warmup", "PHANTOM round 2/3 robust", "PHANTOM round 3/3 robust"):
        assert line in out
    decided = lines(workspace, "decisions.jsonl")
    (found,) = [d["value"] for d in decided if d["what"] == "noisy_client_detection"]
    assert set(found["class_loss"]) == set(SITES)
    assert 0 < len(found["noisy"]) < 4
    shares = {d["round"]: d["value"] for d in decided if d["what"] == "aggregation_weights"}
    assert sorted(shares) == [2, 3]
    census = json.loads((records(workspace) / "run.json").read_text())["sites"]
    samples = {site: census[site]["train"] for site in SITES}
    for share in shares.values():
        assert sum(share.values()) == pytest.approx(1, abs=1e-3)
        per_sample = {site: share[site] / samples[site] for site in SITES}
        clean = [per_sample[s] for s in SITES if s not in found["noisy"]]
        assert max(clean) == pytest.approx(min(clean), rel=0.02)
        assert max(per_sample[s] for s in found["noisy"]) < min(clean)
    metrics = lines(workspace, "metrics.jsonl")
    assert [m["round"] for m in metrics] == [0, 1, 2, 3]
    assert sum(map(sum, metrics[-1]["confusion"])) == sum(census[site]["test"] for site in SITES)
    page = (records(workspace) / "report.html").read_text()
    assert all(f'<section id="{name}">' in page for name in ("confusion", "noisy-sites"))


def test_without_flare_a_run_is_that_of_the_simulator(fednoro):
    assert outcome(fednoro(LOCAL)[0], SITES) == outcome(fednoro(4)[0], SITES)


def test_a_site_whose_every_task_is_a_new_process_ends_with_the_same_run(fednoro, tmp_path):
    settings = SMALL["fednoro_isic2019"]
    forgetful = run_here("fednoro_isic2019", tmp_path / "run", sites=4, settings=settings, forgetful=True)
    assert outcome(forgetful, SITES) == outcome(fednoro(LOCAL)[0], SITES)
