"""The comparison rows of FedLSM learn: on a small phantom each is better than chance."""

import pytest
from arms import train_row

pytestmark = pytest.mark.slow
SMALL = {
    **{"phantom.images": 700, "phantom.pixels": 48, "num_rounds": 5, "local_iterations": 30, "eval_every": 5},
    "learning_rate_decay": 0.88,
}


@pytest.mark.parametrize("variant", ["fedpu", "candidate_sets", "fpsl", "fssl", "fedavg_masked_ignored"])
def test_a_row_of_fedlsm_learns(tmp_path, cache, variant):
    found = train_row("fedlsm_isic2018", variant, tmp_path, SMALL, cache=cache)
    # Seen: AUC 0.87 (fedpu), 0.80 (fpsl), 0.86 (fssl), 0.85 (fedavg_masked_ignored).
    assert found["auc"] > 0.7
