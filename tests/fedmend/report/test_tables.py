import csv
import io

import pytest
from factories import refused

from fedmend.records.run_folder import RunFiles
from fedmend.report.tables import TABLES, comparison, mean_and_sd


def make_run(*aucs, macro=None, single=False, **changes):
    """A finished run whose final model has these AUCs; the initial model has others."""
    info = {"phantom": False, "classes": ["edema", "a|b"], "seed": 3}
    last = {"round": 1, "per_class": {"auc": list(aucs)}, "macro": {"auc": sum(aucs) / 2} if macro is None else macro}
    first = {"round": 0, "per_class": {"auc": [0.1, 0.1]}, "macro": {"auc": 0.1}}
    evaluations = [m | ({"confusion": [[1, 0], [0, 1]]} if single else {}) for m in (first, last)]
    split = changes.pop("split", "test")
    fields = {"info": info | changes.pop("info", {}), "metrics": {split: evaluations}, "results": {"final": {}}}
    return RunFiles(folder=None, repairs=(), decisions=(), **{**fields, **changes})


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def test_rows_are_methods_and_cells_mean_and_deviation_over_seeds_in_points():
    texts = comparison(
        {"FedAvg": [make_run(0.5, 0.75), make_run(0.6, 0.75, info={"seed": 4})], "FedLSM": [make_run(0.9, 0.80)]}
    )
    assert tuple(texts) == TABLES
    assert texts["per_class.md"].splitlines() == [
        "AUC of each class, final model, test split: points of 100, mean ± sd over seeds",
        "",
        "| method | edema | a\\|b | Average | seeds |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| FedAvg | 55.0 ± 7.1 | 75.0 ± 0.0 | 65.0 ± 3.5 | 2 |",  # 0.1 / sqrt(2), 0.05 / sqrt(2)
        "| FedLSM | 90.0 | 80.0 | 85.0 | 1 |",
    ]
    assert rows_of(texts["per_class.csv"]) == [
        ["method", "edema", "edema sd", "a|b", "a|b sd", "Average", "Average sd", "seeds", "phantom"],
        ["FedAvg", "55.0", "7.1", "75.0", "0.0", "65.0", "3.5", "2", "no"],
        ["FedLSM", "90.0", "", "80.0", "", "85.0", "", "1", "no"],
    ]


def test_no_name_is_a_formula_in_a_spreadsheet():
    texts = comparison({"=A1": [make_run(0.5, 0.75, info={"classes": ["@mass", "+1"]})]})
    head, row = rows_of(texts["per_class.csv"])
    assert head[1:5] == ["'@mass", "'@mass sd", "'+1", "'+1 sd"]
    assert (row[0], rows_of(texts["macro.csv"])[1][0]) == ("'=A1", "'=A1")


def test_macro_columns_are_the_metrics_that_a_run_has():
    texts = comparison({"A": [make_run(0.5, 0.5, macro={"bacc": 0.25, "map": 0.125, "auc": 0.5})]})
    assert texts["macro.md"].splitlines()[2:] == [
        "| method | AUC | mAP | BACC | seeds |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| A | 50.0 | 12.5 | 25.0 | 1 |",
    ]
    values = {"bacc": 0.25, "f1": 0.5, "auc": 0.75, "precision": 0.625, "accuracy": 1.0}
    texts = comparison({"A": [make_run(0.5, 0.5, macro=values, single=True)]})
    head = ["AUC", "Accuracy", "F1", "Precision", "Recall (BACC)", "Recall (BACC), best"]
    assert rows_of(texts["macro.csv"])[0][1:-2:2] == head
    assert rows_of(texts["macro.csv"])[1][1:11:2] == ["75.0", "100.0", "50.0", "62.5", "25.0"]


def test_a_value_that_one_seed_lacks_is_not_available():
    lacking = make_run(0.5, 0.5, macro={"auc": 0.5, "map": None}, info={"seed": 4})
    lacking.evaluations[-1]["per_class"]["auc"][1] = None
    texts = comparison({"A": [make_run(0.5, 0.5, macro={"auc": 0.5, "map": 0.5}), lacking]})
    assert "| A | 50.0 ± 0.0 | n/a | 50.0 ± 0.0 | 2 |" in texts["per_class.md"]
    assert rows_of(texts["macro.csv"])[1] == ["A", "50.0", "0.0", "", "", "2", "no"]


def test_runs_without_an_auc_per_class_have_a_row():
    run = make_run(0.5, 0.5)
    del run.evaluations[-1]["per_class"]["auc"]
    assert "| A | n/a | n/a | 50.0 | 1 |" in comparison({"A": [run]})["per_class.md"]


def test_rows_of_synthetic_images_say_phantom():
    runs = {"A": [make_run(0.5, 0.5)], "B": [make_run(0.5, 0.5), make_run(0.5, 0.5, info={"phantom": True, "seed": 4})]}
    texts = comparison(runs)
    for name in ("per_class", "macro"):
        assert "**PHANTOM**, synthetic images that say nothing about patients: B\n" in texts[f"{name}.md"]
        assert [row[-1] for row in rows_of(texts[f"{name}.csv"])] == ["phantom", "no", "yes"]
    assert not any("PHANTOM" in text for text in comparison({"A": runs["A"]}).values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"results": {}}, "expected finished runs, got one that goes on or was stopped"),
        ({"metrics": {}}, "expected runs with a test or val split, got one without"),
        (
            {"info": {"classes": ["a|b", "edema"]}},
            "expected the classes of the first run, in their order, got others",
        ),
        ({"split": "val"}, "expected results on the test split as in the first run, got val"),
    ],
)
def test_runs_that_cannot_be_compared_are_one_sentence(changes, sentence):
    with refused(f"table, B, seed 3: {sentence}"):
        comparison(
            {"A": [make_run(0.5, 0.5)], "B": [make_run(0.5, 0.5, info={"seed": 4}), make_run(0.5, 0.5, **changes)]}
        )


def test_a_row_is_one_setting_with_different_seeds():
    with refused("table, A: expected runs with different seeds, got the seeds [3, 3]"):
        comparison({"A": [make_run(0.5, 0.5), make_run(0.5, 0.5)]})
    one, other = ({"seed": s, "settings": {"seed": s, "run_name": str(s), "mu": s}} for s in (1, 2))
    with refused("table, A: expected runs that differ in the seed alone, got different ['mu']"):
        comparison({"A": [make_run(0.5, 0.5, info=one), make_run(0.5, 0.5, info=other)]})
    del one["settings"]["mu"], other["settings"]["mu"]
    assert comparison({"A": [make_run(0.5, 0.5, info=one), make_run(0.5, 0.5, info=other)]})


def test_a_segmentation_has_dice_of_the_final_model_of_the_last_ten_rounds_and_of_the_best():
    evaluations = [
        {"round": r, "per_class": {"dice": [r / 100]}, "macro": {"dice": r / 100, "volume_dice": 0.5, "recall": 0.25}}
        for r in range(13)
    ]
    info = {"classes": ["lesion"], "task": "segmentation"}
    texts = comparison({"FedIA": [make_run(info=info, metrics={"test": evaluations}, macro={})]})
    assert texts["per_class.md"].splitlines()[0].startswith("Dice of each class, final model, test split")
    assert rows_of(texts["per_class.csv"])[1] == ["FedIA", "12.0", "", "1", "no"]  # the only class is its own average
    head, row = rows_of(texts["macro.csv"])
    summaries = [f"{word}, {what}" for word in ("Dice", "Volume Dice") for what in ("mean of rounds 3 to 12", "best")]
    assert head[1:-2:2] == ["Dice", "Volume Dice", "Recall", *summaries]
    assert row[1:-2:2] == ["12.0", "50.0", "25.0", "7.5", "12.0", "50.0", "50.0"]  # last: rounds 3 to 12


def test_the_mean_of_the_last_rounds_is_of_ten_that_all_rows_have_after_the_longest_warmup():
    def lesion(rounds, warmup):
        found = [{"round": r, "per_class": {"dice": [0.5]}, "macro": {"dice": r / 100}} for r in rounds]
        info = {"classes": ["lesion"], "task": "segmentation", "warmup_rounds": warmup}
        return make_run(info=info, metrics={"test": found}, macro={})

    def table(*runs):
        head, *rows = rows_of(comparison({str(i): [run] for i, run in enumerate(runs)})["macro.csv"])
        return [list(column) for column in zip(head[1:-2:2], *(row[1:-2:2] for row in rows), strict=True)]

    baseline = lesion(range(0, 31, 2), 0)  # evaluated in every other round
    mean = "Dice, mean of rounds 12 to 30"
    assert table(lesion(range(31), 10), baseline)[1] == [mean, "21.0", "21.0"]
    assert [name for name, *_ in table(lesion(range(31), 12), baseline)] == ["Dice", "Dice, best"]
    assert table(lesion(range(31), 12))[1] == ["Dice, mean of rounds 21 to 30", "25.5"]
    one_exchange = lesion(range(2), 0)  # as of closed-form heads, which leave the mean of the others as it is
    assert table(lesion(range(31), 12), one_exchange)[1] == ["Dice, mean of rounds 21 to 30", "25.5", ""]
    assert [name for name, *_ in table(one_exchange)] == ["Dice", "Dice, best"]


def test_mean_and_deviation_are_points_of_100_and_a_single_value_has_no_deviation():
    assert mean_and_sd([0.5, 0.6]) == ("55.0", "7.1")  # 0.1 / sqrt(2)
    assert mean_and_sd([0.5, 0.6], digits=2) == ("55.00", "7.07")
    assert mean_and_sd([0.5]) == ("50.0", "")
    assert mean_and_sd([0.5, None]) == ("", "")


def chosen_by(positives, value, **info):
    """A run whose thresholds are chosen by this many positives, and 20 negatives, of each class."""
    macro = {"auc": 0.5, "bacc_val": value}
    run = make_run(0.5, 0.5, macro=macro, info=info)
    run.evaluations[-1]["per_class"]["bacc_val"] = [value, None]
    val = {"round": 1, "positives": positives, "negatives": [20, 20]}
    return RunFiles(**{**vars(run), "metrics": {**run.metrics, "val": [val]}})


def test_the_table_says_which_classes_had_too_few_positives_for_a_threshold():
    runs = [chosen_by([10, 4], 0.75), chosen_by([12, 7], 0.75, seed=4)]
    words = "BACC (val) needs 10 positives and 10 negatives of a class in the val split"
    assert comparison({"A": runs})["macro.md"].splitlines()[2:] == [
        "| method | AUC | BACC, threshold of validation | seeds |",
        "| --- | ---: | ---: | ---: |",
        "| A | 50.0 ± 0.0 | 75.0 ± 0.0 | 2 |",
        "",
        f"{words} and is n/a for a|b (4 to 7 positives, 20 negatives).",
    ]


def test_a_threshold_that_no_class_could_choose_reads_na():
    texts = comparison({"A": [chosen_by([0, 4], None)]})
    assert "| A | 50.0 | n/a | 1 |" in texts["macro.md"]
    assert "edema (0 positives, 20 negatives), a|b (4 positives, 20 negatives)" in texts["macro.md"]
    assert rows_of(texts["macro.csv"])[1] == ["A", "50.0", "", "", "", "1", "no"]
