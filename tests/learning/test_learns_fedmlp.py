"""FedMLP learns: on a phantom of which each site annotates one class it beats the partial loss, its strongest simple
baseline, and it finds labels that are missing."""

import pytest
from arms import final, lines, train

pytestmark = pytest.mark.slow
SMALL = {
    **{"phantom.images": 1500, "phantom.pixels": 48, "image_size": 32},
    **{"num_rounds": 6, "local_epochs": 4, "batch_size": 32, "learning_rate": 0.001},
}
MARGIN = 0.008  # of AUC; seen over seeds 0 to 9: FedMLP ahead by .009 to .067, mean .041


def test_fedmlp_finds_missing_labels_and_beats_the_partial_loss(tmp_path):
    runs = train("fedmlp_ich", tmp_path, ["fedavg_pl"], SMALL, only_method={"warmup_rounds": 2})
    repairs = lines(runs["method"], "repairs")
    last = [line for line in repairs if line["round"] == repairs[-1]["round"]]
    tagged, right = (sum(line[key] for line in last) for key in ("positive", "correct_positive"))
    # Seeds 0, 1, 2: 79 to 85 positive tags, 69 to 75 % right. Without its core, the tags of
    # detection, there are none. Without consistency in stage 2 the test still passes.
    assert tagged > 40
    assert right > tagged / 2
    auc = final(runs, "auc")
    assert auc["method"] > auc["fedavg_pl"] + MARGIN, auc
