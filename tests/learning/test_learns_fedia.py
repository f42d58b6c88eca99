"""FedIA learns: where sites mark 10 to 70 % of the lesions it finds unmarked ones, and beats federated averaging."""

import pytest
from arms import lines, train

pytestmark = pytest.mark.slow
SMALL = {
    **{"phantom.images": 14, "phantom.test_share": 0.43, "phantom.val_share": 0.0, "phantom.seed": 2100},
    **{"num_rounds": 18, "learning_rate": 0.004, "learning_rate_decay": 0.95, "seed": 100},
}
LAST = 4  # rounds: the Dice of six test volumes jumps from round to round


def test_fedia_finds_unmarked_lesions_and_beats_federated_averaging(tmp_path):
    runs = train("fedia_ms", tmp_path, ["fedavg"], SMALL)
    last = {line["site"]: line for line in lines(runs["method"], "repairs")}.values()
    right, marked, missing = (sum(line[key] for line in last) for key in ("correct_positive", "positive", "missing"))
    # Seen: 94 % of the marked pixels right, 26 % of the missing ones found; Dice 58.0 against 48.9 after 16 rounds, in
    # an earlier run 63.5 against 50.0 after 18; on other patients (seed and phantom.seed 0) 73.0 against 65.5.
    assert right > 0.7 * marked
    assert right > 0.15 * missing
    dice = {
        arm: sum(line["macro"]["dice"] for line in lines(run, "metrics")[-LAST:]) / LAST for arm, run in runs.items()
    }
    assert dice["method"] > dice["fedavg"] + 0.03, dice
