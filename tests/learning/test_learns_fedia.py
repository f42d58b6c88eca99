"""FedIA learns: where sites mark 10 to 70 % of the lesions it finds unmarked ones, and beats federated averaging."""

import json

import pytest
from factories import ROOT

from fl_components.run.local import run_local

pytestmark = pytest.mark.slow
SMALL = {
    **{"phantom.images": 14, "phantom.test_share": 0.43, "phantom.val_share": 0.0, "phantom.seed": 2100},
    **{"num_rounds": 18, "seed": 100},
}
LAST = 4  # rounds: the Dice of six test volumes jumps from round to round


def lines(workspace, name):
    file = workspace / "server" / "simulate_job" / "fedmend" / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_fedia_finds_unmarked_lesions_and_beats_federated_averaging(tmp_path):
    dice = {}
    for name in ("fedia", "fedavg"):
        run_local(
            ROOT / "jobs" / "fedia_ms",
            tmp_path / name,
            threads=1,
            variables=SMALL,
            variants=[] if name == "fedia" else [name],
            site_settings={"cache_dir": str(tmp_path / "cache")},  # the phantom is drawn once
            quiet=True,
        )
        dice[name] = sum(line["macro"]["dice"] for line in lines(tmp_path / name, "metrics")[-LAST:]) / LAST
    last = {line["site"]: line for line in lines(tmp_path / "fedia", "repairs")}.values()
    right, marked, missing = (sum(line[key] for line in last) for key in ("correct_positive", "positive", "missing"))
    # Seen: 94 % of the marked pixels right, 26 % of the missing ones found; Dice 58.0 against 48.9 after 16 rounds, in
    # an earlier run 63.5 against 50.0 after 18; on other patients (seed and phantom.seed 0) 73.0 against 65.5.
    assert right > 0.7 * marked
    assert right > 0.15 * missing
    assert dice["fedia"] > dice["fedavg"] + 0.03, dice
