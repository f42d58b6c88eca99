"""FedMLP learns: on a phantom of which each site annotates one class it beats the partial loss, its strongest simple
baseline, and it finds labels that are missing."""

import json

import pytest
from factories import ROOT

from fl_components.run.local import run_local

pytestmark = pytest.mark.slow
SMALL = {"phantom.images": 1500, "phantom.pixels": 48, "num_rounds": 6, "local_epochs": 4}


def test_fedmlp_finds_missing_labels_and_beats_the_partial_loss(tmp_path):
    auc = {}
    for name in ("fedmlp", "fedavg_pl"):
        results = run_local(
            ROOT / "jobs" / "fedmlp_ich",
            tmp_path / name,
            threads=1,
            variables=SMALL | ({"warmup_rounds": 2} if name == "fedmlp" else {}),
            variants=[] if name == "fedmlp" else [name],
            site_settings={"cache_dir": str(tmp_path / "cache")},  # the phantom is drawn once
            quiet=True,
        )
        auc[name] = results["final"]["test"]["auc"]
    repairs = tmp_path / "fedmlp" / "server" / "simulate_job" / "fedmend" / "repairs.jsonl"
    lines = [json.loads(line) for line in repairs.read_text().splitlines()]
    last = [line for line in lines if line["round"] == lines[-1]["round"]]
    tagged, right = (sum(line[key] for line in last) for key in ("positive", "correct_positive"))
    # Seeds 0, 1, 2: 79 to 85 positive tags, 69 to 75 % right; AUC 0.056, 0.026 and 0.055 above the partial loss.
    assert tagged > 40
    assert right > tagged / 2
    assert auc["fedmlp"] > auc["fedavg_pl"] + 0.015, auc
