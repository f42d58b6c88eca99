import csv
import io
import re

import pytest
from factories import refused

from fedmend.comparison.paired import (
    FILES,
    holm,
    paired_difference,
    per_federation,
    primary_key,
    unit_sentence,
    write_comparison,
)
from fedmend.records.run_folder import RunFiles
from fedmend.report.tables import Column, comparison


def make_run(seed, *aucs, phantom=False):
    """A run whose model has these AUCs after 0, 1, ... rounds."""
    evaluations = [
        {"round": r, "per_class": {"auc": [auc]}, "macro": {"auc": auc, "map": None if r == 2 else 0.5}}
        for r, auc in enumerate(aucs)
    ]
    info = {"phantom": phantom, "classes": ["edema"], "seed": seed}
    return RunFiles(None, info, {"test": evaluations}, (), (), {"final": {}})


RUNS = {
    "own": [make_run(0, 0.5, 0.7), make_run(1, 0.5, 0.8)],
    "a|b": [make_run(0, 0.5, 0.6), make_run(1, 0.5, 0.66)],
}


def test_a_difference_is_paired_and_its_interval_is_that_of_student():
    # Differences 10 and 14 points: mean 12, sd 2.828, standard error 2; t of one degree of freedom is 12.706.
    found = paired_difference([0.7, 0.8], [0.6, 0.66])
    assert found[:3] == pytest.approx((12.0, 12 - 25.412, 12 + 25.412), abs=1e-3)
    assert found.p == pytest.approx(0.1051, abs=1e-4)  # 2 / pi * atan(1 / 6), t = 6
    assert str(found) == "+12.0 [-13.4, 37.4]"
    # Differences 1, 2, 3: sd 1, standard error 1 / sqrt(3); t of two degrees of freedom is 4.3027.
    assert paired_difference([0.01, 0.02, 0.03], [0, 0, 0])[1:3] == pytest.approx((2 - 2.4842, 2 + 2.4842), abs=1e-3)


def test_seeds_on_the_same_data_are_averaged_before_an_interval_counts_federations():
    # Federations 7 and 8 have the means 11 and 14; three seeds in each of them are not six observations.
    assert per_federation([0.10, 0.12, 0.14, 0.11], [7, 7, 8, 7]) == pytest.approx([0.11, 0.14])
    assert per_federation([0.1, None, 0.3], [0, 0, 1]) == [None, 0.3]
    assert per_federation([0.1, 0.2], [3, 3]) == [0.1, 0.2]  # one federation: over seeds, and it is said
    assert unit_sentence([3, 3]).startswith("One federation: deviations and intervals are over seeds")
    assert unit_sentence([0, 1]) == "2 federations: deviations and intervals are over federations."
    end = "over federations, results of the 3 seeds averaged on each first."
    assert unit_sentence([0, 0, 1]) == f"2 federations: deviations and intervals are {end}"


def test_nine_pairs_on_three_federations_have_two_degrees_of_freedom(tmp_path):
    runs = {
        "own": [make_run(seed, 0.5, 0.5 + (1 + seed // 3) / 100) for seed in range(9)],
        "a": [make_run(seed, 0.5, 0.5) for seed in range(9)],
    }
    text = write_comparison(runs, tmp_path, federations=[seed // 3 for seed in range(9)])
    assert "| a | +2.0 [-0.5, 4.5] |" in text  # differences 1, 2, 3: 2 ± 4.3027 / sqrt(3)
    assert "3 federations: deviations and intervals are over federations, results of the 9 seeds averaged" in text
    line = next(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert (line["mean"], line["sd"], line["seeds"], line["federations"]) == ("52.000", "1.000", "9", "3")


def test_differences_that_are_all_the_same_say_nothing_of_others():
    assert paired_difference([0.5, 0.5], [0.5, 0.5]) == (0, 0, 0, 1)
    assert paired_difference([0.5, 0.75], [0.25, 0.5]) == (25, None, None, None)
    assert str(paired_difference([0.8, 0.9], [0.7, 0.8])) == "+10.0"  # they differ by 1e-14


def test_holm_corrects_the_smallest_most_and_keeps_the_order():
    # .01 x 4, .02 x 3, then .03 x 2 and .04 x 1, neither of which may fall below those before it
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []


def test_the_primary_measure_stays_as_it_is_and_the_others_are_corrected(tmp_path):
    def run(seed, auc, more):
        evaluations = [{"round": 1, "per_class": {}, "macro": {"auc": auc, "map": more, "bacc": more}}]
        info = {"phantom": False, "classes": ["edema"], "seed": seed}
        return RunFiles(None, info, {"test": evaluations}, (), (), {"final": {}})

    runs = {"own": [run(0, 0.7, 0.7), run(1, 0.8, 0.8)], "a": [run(0, 0.6, 0.6), run(1, 0.66, 0.66)]}
    text = write_comparison(runs, tmp_path, federations=[0, 1], primary="auc")
    assert "Primary measure: AUC. p of the other measures: two-sided t-tests, Holm's correction" in text
    plain = "+12.0 [-13.4, 37.4]"
    assert f"| a | {plain} | {plain}, p 0.21 | {plain}, p 0.21 |" in text  # twice .105
    lines = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert [(line["p"], line["primary"]) for line in lines[3:]] == [("0.105", "yes"), ("0.21", "no"), ("0.21", "no")]


def test_a_primary_measure_of_the_last_rounds_is_the_final_one_in_short_runs():
    run, columns = make_run(0, 0.5, 0.7), [Column("Dice", None, "dice"), Column("AUC", None, "auc")]
    assert primary_key("dice_last", columns, run) == "dice"
    assert primary_key("dice_last", [*columns, Column("Last", None, "dice_last")], run) == "dice_last"
    assert primary_key("", columns, run) == "auc"  # what chooses the best model of these labels
    assert primary_key("f1", columns, run) == ""


def test_precision_over_other_structures_has_no_difference(tmp_path):
    def run(seed, *precision):
        known = [p for p in precision if p is not None]
        values = {"dice": [0.5, 0.1], "precision": list(precision), "recall": [0.5, 0.0]}
        macro = {"dice": 0.3, "precision": sum(known) / len(known), "recall": 0.25}
        evaluations = [{"round": 1, "per_class": values, "macro": macro, "positives": [9, 9]}]
        info = {"phantom": False, "task": "segmentation", "classes": ["liver", "spleen"], "seed": seed}
        return RunFiles(None, info, {"test": evaluations}, (), (), {"final": {}})

    runs = {"own": [run(0, 0.6, 0.4), run(1, 0.6, 0.4)], "marks one": [run(0, 0.9, None), run(1, 0.9, 0.3)]}
    text = write_comparison(runs, tmp_path, federations=[0, 1])
    assert "| marks one | 30.0 ± 0.0 | 75.0 ± 21.2 |" in text
    assert "| marks one | +0.0 [0.0, 0.0] | n/a |" in text
    words = "Precision: mean over the classes that a model marks at all, which may be others in another row."
    assert words in text
    assert words in comparison({"own": runs["own"], "one": runs["marks one"]})["macro.md"]
    assert words not in comparison({"own": runs["own"]})["macro.md"]


def test_one_pair_has_no_interval_and_a_missing_value_no_difference():
    assert str(paired_difference([0.5], [0.75])) == "-25.0"
    assert paired_difference([0.5, None], [0.5, 0.5]) is None


def test_the_tables_have_a_line_per_row_and_one_per_other_row(tmp_path):
    text = write_comparison(RUNS, tmp_path, federations=[0, 0])
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(FILES)
    assert text.splitlines() == [
        "Final model, test split: points of 100, mean ± sd; seeds 0, 1",
        "",
        "One federation: deviations and intervals are over seeds of the training, not over other data.",
        "",
        "| row | AUC | mAP |",
        "| --- | ---: | ---: |",
        "| own | 75.0 ± 7.1 | 50.0 ± 0.0 |",
        "| a\\|b | 63.0 ± 4.2 | 50.0 ± 0.0 |",
        "",
        "own minus the other row, mean of the paired differences [95 % t-interval]",
        "",
        "Primary measure: AUC. p of the other measures: two-sided t-tests, Holm's correction over the other measures of"
        " the row.",
        "",
        "| own minus | AUC | mAP |",
        "| --- | ---: | ---: |",
        "| a\\|b | +12.0 [-13.4, 37.4] | +0.0 [0.0, 0.0], p 1 |",
    ]
    lines = list(csv.reader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert lines[1] == ["own", "AUC", "75.000", "7.071", "", "", "", "2", "no", "1", "", "yes"]
    assert lines[3] == ["a|b", "AUC", "63.000", "4.243", "12.000", "-13.412", "37.412", "2", "no", "1", "0.105", "yes"]


def test_a_row_like_a_formula_is_text_in_a_spreadsheet(tmp_path):
    write_comparison({"own": RUNS["own"], "+b": RUNS["own"]}, tmp_path, federations=[0, 0])
    lines = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    assert {line["row"] for line in lines} == {"own", "'+b"}


def test_the_figure_has_a_line_per_row_with_its_last_mean(tmp_path):
    runs = {name: [make_run(0, 0.5, 0.7, phantom=True)] for name in ("own", "fedavg")}
    assert write_comparison(runs, tmp_path, federations=[0]).startswith("**PHANTOM**, ")
    svg = (tmp_path / "comparison.svg").read_text()
    for word in ("own 70.0", "fedavg 70.0", "AUC, test split", "PHANTOM"):
        assert f">{word}</text>" in svg
    write_comparison(runs, tmp_path / ".", federations=[0])
    assert (tmp_path / "comparison.svg").read_text() == svg


def test_a_figure_of_many_rows_names_them_all(tmp_path):
    write_comparison({f"row {n}": [make_run(0, 0.5, 0.7)] for n in range(40)}, tmp_path, federations=[0])
    svg = (tmp_path / "comparison.svg").read_text()
    height = float(re.findall(r'viewBox="0 0 \S+ (\S+)"', svg)[0])
    places = [float(y) for y in re.findall(r' y="([\d.]+)"[^>]*>row \d+ 70', svg)]
    assert len(places) == 40
    assert max(places) < height


def test_a_metric_that_nobody_measured_is_one_sentence(tmp_path):
    with refused("--metric: expected one of ['auc', 'map'], got 'f1'"):
        write_comparison(RUNS, tmp_path, federations=[0, 0], metric="f1")


def test_a_metric_that_no_class_could_be_measured_by_leaves_the_tables_and_a_figure_without_lines(tmp_path):
    runs = {name: [make_run(0, 0.5, None)] for name in ("own", "fedavg")}
    text = write_comparison(runs, tmp_path, federations=[0])
    assert "| own | 50.0 |" in text  # mAP
    svg = (tmp_path / "comparison.svg").read_text()
    assert "own n/a" in svg


def test_runs_without_an_evaluation_are_one_sentence(tmp_path):
    empty = RunFiles(None, {"phantom": False, "classes": ["edema"], "seed": 0}, {}, (), (), {"final": {}})
    with refused("compare: expected runs with a test or val split, got one without"):
        write_comparison({"own": [empty]}, tmp_path, federations=[0])
