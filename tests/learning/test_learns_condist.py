"""ConDistFL learns: sites find organs that they have not outlined, and mark them rightly for people to look at."""

import pytest
from arms import final, lines, train

pytestmark = pytest.mark.slow
SMALL = {"phantom.seed": 101, "seed": 101, "eval_every": 40}
PSEUDO_LABELS = {"pseudo_label_round": 40}  # by the model of round 39


def test_condist_finds_organs_that_a_site_has_not_outlined(tmp_path):
    runs = train("condist_organs", tmp_path, ["marginal", "fedavg"], SMALL, only_method=PSEUDO_LABELS)
    dice = final(runs, "volume_dice")  # seen: .80, .42 and .00
    assert dice["method"] > dice["marginal"] + 0.1, dice  # without its core, the distillation
    assert dice["fedavg"] < 0.1, dice
    marked = [line for line in lines(runs["method"], "repairs") if line["positive"]]
    right, added, missing = (sum(line[key] for line in marked) for key in ("correct_positive", "positive", "missing"))
    assert right > 0.6 * added, marked  # seen: .88 and .91
    assert right > 0.7 * missing, marked
