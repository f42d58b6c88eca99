"""FedMLP learns: on a phantom of which each site annotates one class it beats the partial loss, its strongest simple
baseline, and it finds labels that are missing."""

import pytest
from arms import final, lines, train

pytestmark = pytest.mark.slow
SMALL = {
    **{"phantom.images": 1500, "phantom.pixels": 48, "image_size": 32},
    **{"num_rounds": 6, "local_epochs": 4, "batch_size": 32, "learning_rate": 0.001},
}
MARGIN = 0.015  # of AUC; seen over seeds 0 to 9: FedMLP ahead by .023 to .077, mean .040


def test_fedmlp_finds_missing_labels_and_beats_the_partial_loss(tmp_path):
    runs = train("fedmlp_ich", tmp_path, ["fedavg_pl"], SMALL, only_method={"warmup_rounds": 2})
    repairs = lines(runs["method"], "repairs")
    last = [line for line in repairs if line["round"] == repairs[-1]["round"]]
    tagged, right = (sum(line[key] for line in last) for key in ("positive", "correct_positive"))
    # Seeds 0 to 9: 85 to 96 positive tags, 67 to 78 % right. Without its core, the tags of
    # detection, there are none. Without consistency in stage 2 the test still passes.
    assert tagged > 40
    assert right > tagged / 2
    auc = final(runs, "auc")
    assert auc["method"] > auc["fedavg_pl"] + MARGIN, auc
