"""The rows that FedNoRo is compared with learn: on a small phantom with noisy sites each is above chance."""

import pytest
from arms import lines, train_row

from fedmend.records.run_folder import RUN_FOLDER

pytestmark = pytest.mark.slow
SITES = 5  # site-2 and site-3 are noisy
SMALL = {
    **{"phantom.sites": SITES, "phantom.images": 1500, "phantom.pixels": 48, "image_size": 32},
    **{"phantom.noise": "uniform", "phantom.noise_low": 0.5, "phantom.noise_high": 0.7},
    **{"num_rounds": 4, "local_epochs": 2, "seed": 100, "eval_every": 100},
}
# Row → least BACC and AUC. Chance is 0.2 and 0.5; seen with this seed: FedLSR .513 and .782, RHFL .446 and .778, RoFL
# .225 and .657, FedCorr .506 and .737, FedCorr+LA .555 and .787. RoFL's entropy term and its labels from an early model
# draw it to the large classes, in the published tables too: it ranks, but names little else.
LEAST = {
    "fedlsr": (0.4, 0.7),
    "rhfl": (0.35, 0.7),
    "rofl": (0.0, 0.6),
    "fedcorr": (0.38, 0.68),
    "fedcorr_la": (0.42, 0.7),
}


@pytest.mark.parametrize("row", LEAST)
def test_a_row_learns(tmp_path, cache, row):
    settings = SMALL | ({"iterations": 1} if row.startswith("fedcorr") else {})
    found = train_row("fednoro_ich", row, tmp_path, settings, cache=cache, sites=SITES)
    bacc, auc = LEAST[row]
    assert found["bacc"] > bacc, found
    assert found["auc"] > auc, found
    if row.startswith("fedcorr"):  # which also takes one or two clean sites for noisy
        decisions = lines(tmp_path / RUN_FOLDER, "decisions")
        (value,) = [line["value"] for line in decisions if line["what"] == "noisy_sites"]
        assert {"site-2", "site-3"} <= set(value["noisy"]) < {f"site-{i}" for i in range(1, SITES + 1)}
