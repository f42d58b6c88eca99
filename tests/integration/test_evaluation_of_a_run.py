"""A federation runs, then its package is evaluated at each site."""

import json
from pathlib import Path

import numpy as np
import pytest
from factories import ROOT

from fedmend import Package
from fedmend.kinds import kind_of
from fl_components.job.folder import Changes
from fl_components.run.local import run_local

SMALL = {"num_rounds": 2, "local_epochs": 1, "warmup_rounds": 1, "phantom.images": 400}


@pytest.mark.slow
def test_a_package_has_at_each_site_the_metrics_that_the_run_had_there_and_together_those_of_all(tmp_path):
    settings = {"cache_dir": str(tmp_path / "cache"), "threads": 1}
    results = run_local(ROOT / "jobs/fedmlp_ich", tmp_path / "run", Changes(SMALL), site_settings=settings, quiet=True)
    package, kind, together = Package(tmp_path / "run"), kind_of("multilabel"), []
    folders = sorted(card.parent for card in Path(tmp_path / "cache").rglob("site.json"))
    assert [folder.name for folder in folders] == [f"site-{n}" for n in range(1, 6)]
    for folder in folders:
        found = package.evaluate(folder)
        together.append(found.counts)
        own = json.loads(next((tmp_path / "run").rglob(f"{folder.name}/site_results.json")).read_text())["metrics"]
        for name, value in own["test"]["macro"].items():
            assert found.results["metrics"]["macro"][name] == pytest.approx(value, abs=1e-9)
        for name, values in own["test"]["per_class"].items():
            assert found.results["metrics"]["per_class"][name] == pytest.approx(values, abs=1e-9)
    whole = kind.metrics(np.sum(together, axis=0))["macro"]
    wanted = results["final"]["test"]
    assert whole == pytest.approx({name: wanted[name] for name in whole}, abs=1e-9)
