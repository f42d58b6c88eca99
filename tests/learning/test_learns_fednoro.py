"""FedNoRo learns: on a phantom with noisy sites it beats the strongest simple baseline, logit adjustment alone."""

import json

import pytest
from factories import ROOT

from fl_components.run.local import run_local

pytestmark = pytest.mark.slow
SITES = 5  # two of them noisy
SMALL = {
    **{"phantom.sites": SITES, "phantom.images": 3600, "phantom.pixels": 48, "image_size": 32},
    **{"phantom.noise": "uniform", "phantom.noise_low": 0.7, "phantom.noise_high": 0.9},
    **{"num_rounds": 6, "local_epochs": 4, "seed": 100},
}
MARGIN = 0.03  # BACC; seen with this seed: FedNoRo .769, FedLA .684


def test_fednoro_finds_the_noisy_sites_and_beats_logit_adjustment_alone(tmp_path):
    bacc = {}
    for name in ("fednoro", "fedla"):
        results = run_local(
            ROOT / "jobs" / "fednoro_ich",
            tmp_path / name,
            threads=1,
            variables=SMALL,
            variants=[] if name == "fednoro" else [name],
            sites=SITES,
            site_settings={"cache_dir": str(tmp_path / "cache")},  # the phantom is drawn once
            quiet=True,
        )
        bacc[name] = results["final"]["test"]["bacc"]
    decisions = tmp_path / "fednoro" / "server" / "simulate_job" / "fedmend" / "decisions.jsonl"
    told = [json.loads(line) for line in decisions.read_text().splitlines()]
    (found,) = [line["value"]["noisy"] for line in told if line["what"] == "noisy_client_detection"]
    assert found == ["site-2", "site-3"]
    assert bacc["fednoro"] > bacc["fedla"] + MARGIN, bacc
