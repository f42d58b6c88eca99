"""Each row of the problem of missing classes learns: on a small phantom of which each site annotates one class.

What is asked is that images are ranked, as in the tables of the problem: with labels that count as negative FedLSR
predicts nothing above 0.5, so that its balanced accuracy is 0.5.
"""

import pytest
from arms import train_row

pytestmark = pytest.mark.slow
SMALL = {"phantom.images": 500, "phantom.pixels": 32, "num_rounds": 3, "local_epochs": 4, "learning_rate": 0.003}
ROWS = {"fednoro": {}, "fedlsr": {}, "fedfixmatch": {}, "rscfed": {}, "fedirm": {}, "cbafed": {"warmup_rounds": 2}}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_ranks_images_better_than_chance(row, cache, tmp_path):
    found = train_row("fedmlp_ich", row, tmp_path, SMALL | {"eval_every": 3} | ROWS[row], cache=cache)
    # Seen with seed 0: FedNoRo 0.623, FedLSR 0.608, FedFixMatch 0.635, RSCFed 0.655, FedIRM 0.663, CBAFed 0.612; the
    # partial loss without any of them 0.640. With seed 1: 0.681, 0.622, 0.630, 0.647, 0.663,
    # and CBAFed 0.511: on so few images its pseudo-labels can also lead it astray.
    assert found["auc"] > 0.57
