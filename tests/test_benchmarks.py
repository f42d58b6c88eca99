"""The benchmarks can be started, and the table of privacy says what its rows say."""

import importlib.util
import sys

import numpy as np
import pytest
from factories import ROOT
from review_factories import make_desk, make_mask_run

from fedmend.review.desk import Desk

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


def load(name):
    if name == "review_pages":
        pytest.importorskip("starlette")
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_privacy_has_the_epsilon_of_the_site_that_spent_most_and_paired_differences(capsys):
    rows = [
        {
            "noise": 1.0,
            "seed": s,
            "auc": auc,
            "bacc": 0.5,
            "told": {"a": {"epsilon": e, "epsilon_rdp": e + 1, "delta": 1e-4}},
        }
        for s, auc, e in ((0, 0.70, 3.0), (1, 0.74, 4.0))
    ]
    plain = [{"noise": 0.0, "seed": s, "auc": auc, "bacc": 0.6, "told": {}} for s, auc in ((1, 0.88), (0, 0.9))]
    load("privacy").print_table([*rows, *plain])
    lines = capsys.readouterr().out.splitlines()
    # 72 and, of 70 and 74, sqrt(2^2 + 2^2) = 2.8; differences -20 and -14, so -17 with 12.706 (t, 1 degree) * 3
    assert lines[1:] == [
        "| 0 | no privacy | no privacy | 89.0 ± 1.4 |  | 60.0 ± 0.0 |",
        "| 1 | 4.0 | 5.0 | 72.0 ± 2.8 | -17.0 (-55.1 to +21.1) | 50.0 ± 0.0 |",
    ]


def test_the_slices_of_the_detection_have_the_shares_of_the_real_ones(monkeypatch):
    detection = load("detection")
    monkeypatch.setattr(detection, "REAL", (10, 20, 20, 20, 40))
    counts, rows = (2, 9, 9, 9, 9), []
    for number, (name, count) in enumerate(zip(detection.CLASSES, counts, strict=True)):
        for i in range(count):
            rows += [
                {"ID": f"ID_{number}{i}_{c}", "Label": str(int(c in (name, "any")))}
                for c in (*detection.CLASSES, "any")
            ]
    rows += [{"ID": f"ID_both_{c}", "Label": "1"} for c in detection.CLASSES[:2]]
    kept = detection.balanced(rows)  # epidural is scarcest: 2 of 10
    assert [sum(name.startswith(f"ID_{c}") for name in kept) for c in range(5)] == [2, 4, 4, 4, 8]
    assert "ID_both" not in kept


def test_the_table_of_the_detection_counts_what_each_rule_finds(capsys):
    losses = {"a": [0.1, 1.0], "b": [0.9, 1.9], "c": [0.1, 1.1], "d": [0.2, 1.0], "e": [1.0, 2.0]}
    reports = {site: {"class_loss": loss, "class_count": [5, 5]} for site, loss in losses.items()}
    row = {"seed": 0, "noisy_share": 0.4, "rates": [0.5, 0.7], "la": True, "noisy": ["b", "e"], "reports": reports}
    load("detection").print_table([row, {**row, "noisy": ["b"]}])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "LA agreed rho 0.4 eta (0.5, 0.7) exact 1 of 2"
    assert lines[1] == "LA agreed all: exact 50.0 recall 100.0 precision 75.0 vote share 100.0"


def test_what_a_review_finds_early_is_pooled_over_the_sites():
    pooled = load("review").pooled
    queues = [[False, True, True, True], [True, True, False, False, True]]  # right ones; each site looks at its first
    assert pooled(queues, 0.05) == 1 / 3
    assert pooled(queues, 0.5) == 2 / 3
    assert pooled([[True, True]], 0.5) is None


def test_a_simulated_reader_accepts_what_is_right_and_gives_the_true_label_for_what_is_wrong(tmp_path):
    truth = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0]])
    desk = make_desk(tmp_path, (0, 1, 1, 0, 0.9), (1, 1, 0, 0, 0.5), (2, 1, 1, 0, 0.7), truth=truth)
    load("review").read(desk, "confidence", 2)  # the least confident two: samples 1 and 2
    assert [(v.sample, v.word, v.value) for v in desk.ledger.verdicts()] == [(1, "relabel", 1), (2, "relabel", 0)]
    load("review").read(desk, "confidence", 2)
    assert [(v.sample, v.word) for v in desk.ledger.verdicts()[2:]] == [(0, "accept")]


def test_a_stage_that_makes_more_passes_is_compared_by_operations():
    gpu = load("gpu")
    bare = gpu.Timing(seconds=2.0, images=100, operations=1e9)  # 50 images and 0.5e9 operations a second
    row = gpu.row("fedmlp_ich", "detect", gpu.Timing(seconds=4.0, images=80, operations=1.8e9), bare)
    assert row["images_per_second"] == 20
    assert row["share_of_bare_loop"] == pytest.approx(0.9)
    assert (row["share_of_peak"], row["peak_memory"]) == (None, 0)


def test_the_stopwatch_leaves_out_the_first_training_of_a_stage_and_takes_its_operations():
    gpu = load("gpu")
    watch = gpu.Stopwatch()
    inf = float("inf")
    watch.stages = {
        "warmup": [gpu.Timing(inf, 10, 500.0), gpu.Timing(4.0, 20), gpu.Timing(1.0, 10)],
        "detect": [gpu.Timing(inf, 10, 500.0)],
    }
    assert watch.fastest() == {"warmup": gpu.Timing(1.0, 10, 500.0)}


@pytest.mark.parametrize(("pixel", "word"), [(5, "accept"), (6, "reject")])
def test_a_simulated_reader_of_masks_rejects_slices_of_which_most_changed_pixels_are_wrong(
    tmp_path, monkeypatch, pixel, word
):
    desk, review = Desk(make_mask_run(tmp_path, 1)), load("review")
    truth = np.zeros(desk.data.train.masks.shape, dtype=np.uint8)
    truth[1, 5, pixel] = 1  # the repair added (5, 5)
    monkeypatch.setattr(review, "truth_of", lambda _: truth)
    review.read(desk, "value", 50)
    assert [(v.sample, v.word) for v in desk.ledger.verdicts()] == [(1, word)]


@pytest.mark.parametrize("metric", ["auc", "dice"])
def test_the_table_of_a_review_shows_auc_or_of_masks_dice(capsys, metric):
    review = load("review")
    metrics = {name: {metric: value, "bacc": 0.9} for name, value in (("first", 0.5), ("value", 0.6), ("random", 0.55))}
    row = {"found": {"value": [0.1, 0.2, 0.3]}, "metrics": metrics, "repairs": 10, "wrong": 5}
    nothing = {**row, "found": {"value": [None] * 3}, "repairs": 3, "wrong": 0}
    review.print_tables([row, nothing])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "repairs, wrong ones: 10, 5; 3, 0;"
    assert lines[3] == "| value | 10.0 | 20.0 | 30.0 |"
    assert f"| order of the review | {metric} | more than without |" in lines


def test_the_pages_of_a_review_are_measured_one_kind_after_another(tmp_path):
    pages = load("review_pages")
    found = pages.measure(pages.make_run(tmp_path, 8), times=2)
    assert len(found) == 5
    assert all(seconds > 0 for seconds in found.values())


@pytest.mark.parametrize("average", ["distance", "class-wise"])
def test_the_server_alone_averages_what_its_stand_ins_answer(average):
    found = load("scale").measure(average, 5)
    assert found["seconds"] > 0
    assert found["sent_mb"] == pytest.approx(2 * 5 * 1.2, rel=0.1)  # there and back, 1.2 MB of each site


@pytest.mark.parametrize("name", [file.stem for file in BENCHMARKS])
def test_every_benchmark_says_how_it_is_called(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        load(name).main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage:")
