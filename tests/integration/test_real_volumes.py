"""FedIA on three real patients (Lesjak et al., 2018) in FLARE's simulator: two sites, half of their lesions marked."""

import json
import os
from pathlib import Path

import pytest
from factories import ROOT
from simulation import fedmend, lines, records

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("FEDMEND_REAL_DATA" not in os.environ, reason="needs FEDMEND_REAL_DATA"),
]
SHORT = ["run_name=ms_flair", "num_rounds=3", "warmup_rounds=2", "local_epochs=1", "image_size=64"]


def test_three_patients_at_two_sites_train_and_report_measured_numbers(tmp_path):
    source, sites = Path(os.environ["FEDMEND_REAL_DATA"]) / "ms_flair", tmp_path / "sites"
    split = ["--completeness", "0.5,0.5", "--test-share", 0.34, "--seed", 1]
    code, out = fedmend("prepare", "ms", source, sites, *split, home=tmp_path)
    assert code == 0, out
    lists = [json.loads((sites / name / "datalist.json").read_text()) for name in ("site-1", "site-2")]
    assert sorted((len(f["training"]), len(f.get("test", ()))) for f in lists) == [(1, 0), (1, 1)]
    labels = {file: file.read_bytes() for file in sites.rglob("*.nii.gz")}
    words = ["--workspace", tmp_path / "work", "--threads", 2, "--sites", 2, "--set", *SHORT]
    settings = ["--site", f"data_root={sites}/{{SITE_NAME}}", f"cache_dir={tmp_path}/cache"]
    code, out = fedmend("simulate", ROOT / "jobs" / "fedia_ms", *words, *settings, home=tmp_path)
    assert code == 0, out
    assert "PHANTOM" not in out
    told = json.loads((records(tmp_path / "work") / "run.json").read_text())
    assert told["phantom"] is False
    assert [s["lesions"][0] for s in told["sites"].values()] == [
        (s["lesions"][1] + 1) // 2 for s in told["sites"].values()
    ]
    last = lines(tmp_path / "work", "metrics.jsonl")[-1]
    assert (last["split"], last["round"]) == ("test", 3)
    assert 0 <= last["macro"]["dice"] <= 1
    assert "PHANTOM" not in (records(tmp_path / "work") / "report.html").read_text()
    assert not list((tmp_path / "work").rglob("gallery.html"))  # of patients, only where the site wants it
    assert {file: file.read_bytes() for file in labels} == labels
