"""The model reaches the hospital that wants it: a provisioned federation on loopback, signed and checked for real."""

import json

import pytest
from deployment import SITES, TINY, deployed
from factories import ROOT
from simulation import fedmend

from fedmend import Job, Package

pytestmark = pytest.mark.slow
BYTES = {"package.json", "weights.safetensors", "SHA256SUMS", "signature.json"}


def test_the_site_that_wants_the_model_has_the_signed_one_of_the_server_and_the_other_has_none(tmp_path):
    with deployed(tmp_path) as deployment, deployment.settings("site-1", keep_model=True):
        kits, lead = deployment.federation.kits, deployment.federation.lead
        job = Job("fedmlp_ich", sites=len(SITES), run_name="kept", share_model="best", **TINY)
        run = job.run(lead, tmp_path / "out", progress=False)
        (kept,) = (kits / "fedmend-state").rglob("*.fedmend")
    assert kept == kits / "fedmend-state" / "site-1" / "kept" / "site-1" / "model" / "kept-best.fedmend"
    (at_server,) = (tmp_path / "out").rglob("kept-best.fedmend")
    assert {file.name for file in kept.iterdir()} == BYTES
    assert all((kept / name).read_bytes() == (at_server / name).read_bytes() for name in BYTES)
    assert not Package(kept).network().training
    decisions = [json.loads(line) for line in (at_server.parent / "decisions.jsonl").read_text().splitlines()]
    assert {"package": "kept-best.fedmend", "sites": ["site-1"]} in [d["value"] for d in decisions]
    for kit in (kits / "site-2", lead, kits / deployment.federation.server):
        code, out = fedmend("package", "verify", kept, "--kit", kit, home=tmp_path)
        assert code == 0, out
        assert f"signed by {deployment.federation.server} (" in out
    assert run.name == "kept"


def test_without_certificates_the_model_of_a_local_run_is_kept_unsigned(tmp_path):
    settings = ["--site", "keep_model=true", "--set", *(f"{k}={json.dumps(v)}" for k, v in TINY.items())]
    job = ROOT / "jobs" / "fedmlp_ich"
    code, out = fedmend(
        "simulate", job, "--local", "--workspace", tmp_path / "w", "--sites", 2, *settings, home=tmp_path
    )
    assert code == 0, out
    kept = sorted((tmp_path / "w").rglob("model/*.fedmend"))
    assert len(kept) == 2
    code, out = fedmend("package", "verify", kept[0], home=tmp_path)
    assert (code, "unsigned: made without a startup kit" in out) == (0, True)
