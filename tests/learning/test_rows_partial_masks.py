"""The comparison rows of FedIA learn: on a small phantom each ranks lesion pixels above the others."""

import json

import pytest
from factories import ROOT

from fl_components.run.local import run_local

pytestmark = pytest.mark.slow
SMALL = {
    **{"phantom.images": 10, "phantom.test_share": 0.4, "phantom.val_share": 0.0, "phantom.m": 0},
    **{"num_rounds": 8, "local_epochs": 3, "eval_every": 8},
}


@pytest.mark.parametrize("variant", ["elr", "fednoro", "rmd", "nr_dice"])
def test_a_row_of_fedia_learns(tmp_path, tmp_path_factory, variant):
    results = run_local(
        ROOT / "jobs" / "fedia_ms",
        tmp_path,
        threads=1,
        variables=SMALL,
        variants=[variant],
        site_settings={"cache_dir": str(tmp_path_factory.getbasetemp() / "cache")},  # the phantom is drawn once
        quiet=True,
    )
    print(variant, json.dumps(results["final"]["test"]))
    assert results["final"]["test"]["dice"] > 0.2
