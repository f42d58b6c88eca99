"""Several levels as one table, of made-up runs whose numbers can be seen at once."""

import csv
import io
import re
from dataclasses import replace

import pytest

from fedmend.comparison.fairness import TableRow
from fedmend.comparison.level_table import FILES, LevelTable, write_level_table
from fedmend.comparison.paper_table import PaperTable
from fedmend.records.run_folder import RunFiles


def make_run(seed, auc):
    evaluations = [{"round": 1, "per_class": {"auc": [auc]}, "macro": {"auc": auc, "map": auc / 2}}]
    info = {"phantom": True, "classes": ["edema"], "seed": seed, "sites": {"a": {"train": 8}}}
    return RunFiles(None, info, {"test": evaluations}, (), (), {"final": {}})


def cost():
    site = {"rounds": 5, "steps": 30, "images": 80, "sent": 1, "received": 1}
    effort = {"unit": "epochs", "per_round": 4}
    return {"seconds": 9, "peak_memory": 1, "initial_model": "x", "sites": {"a": site}, "effort": effort}


def make_row(title, *aucs, **options):
    runs = [make_run(seed, auc) for seed, auc in enumerate(aucs)]
    return TableRow(title=title, runs=runs, costs=[cost()] * len(runs), **options)


def make_table(own, fedavg, printed):
    rows = {
        "own": make_row("Own", *own, published={"auc": printed} if printed else {}),
        "fedavg": make_row("FedAvg", *fedavg, simple=True),
    }
    return PaperTable("job_x", rows, source="Smith, Table 1", primary="auc", federations=[0, 1])


@pytest.fixture
def table():
    return LevelTable(
        "job_x", {"m = 0": make_table([0.8, 0.9], [0.7, 0.8], 90), "m = 1": make_table([0.6, 0.7], [0.6, 0.6], 80)}
    )


def test_methods_have_a_column_for_each_level_beside_the_papers_and_means(table, tmp_path):
    text = write_level_table(table, tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(FILES)
    lines = text.splitlines()
    for line in (
        "| method | m = 0 | m = 0, published | m = 1 | m = 1, published | mean | mean, published |",
        "| Own | 85.0 ± 7.1 | 90 | 65.0 ± 7.1 | 80 | 75.0 | 85 |",
        "| FedAvg | 75.0 ± 7.1 |  | 60.0 ± 0.0 |  | 67.5 |  |",
        "| method | m = 0 | m = 1 |",
        "| Own | +10.0 | +5.0 [-58.5, 68.5] |",  # 0 and 10: 5 ± 12.706 x 5
        "| FedAvg |  |  |",  # the baseline itself
        "2 levels; footnotes, costs and curves of each are in its folder.",
        "2 federations: deviations and intervals are over federations.",
    ):
        assert line in lines, text
    assert lines.count("AUC, test split") == 1
    assert "mAP" not in text  # neither printed nor primary
    assert "PHANTOM" in text


def test_the_primary_measure_comes_first_whatever_the_paper_printed(table):
    first = table.levels["m = 0"]
    rows = {name: replace(row, published={"map": 44}) for name, row in first.rows.items()}
    parts = LevelTable("job_x", {"m = 0": replace(first, rows=rows)}).parts()
    assert [part.word for part in parts] == ["results-auc", "results-map", "differences"]
    assert parts[0].rows[0] == ["Own", "85.0 ± 7.1", "85.0"]
    assert parts[1].rows[0] == ["Own", "42.5 ± 3.5", "44", "42.5", "44"]


def test_levels_and_rows_like_formulas_are_text_in_a_spreadsheet(table):
    rows = {"own": table.first.rows["own"], "+b": make_row("-b", 0.5, 0.5)}
    found = LevelTable("job_x", {"-20 %": replace(table.first, rows=rows)})
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    assert {(line["level"], line["row"], line["title"]) for line in lines} == {
        ("'-20 %", "own", "Own"),
        ("'-20 %", "'+b", "'-b"),
    }


def test_a_row_that_a_level_lacks_has_no_number_there_and_no_mean(table):
    first, second = table.levels.values()
    short = PaperTable("job_x", {"own": second.rows["own"]}, primary="auc", federations=[0, 1])
    results, differences = LevelTable("job_x", {"m = 0": first, "m = 1": short}).parts()
    assert results.rows[1] == ["FedAvg", "75.0 ± 7.1", "", "n/a", "", "", ""]
    assert differences.rows == [["Own", "+10.0", "n/a"], ["FedAvg", "", ""]]


def test_a_level_where_a_run_lacks_the_measure_has_no_number_and_no_mean(table):
    table.levels["m = 1"].rows["own"].runs[0].evaluations[-1]["macro"]["auc"] = None
    assert table.parts()[0].rows[0] == ["Own", "85.0 ± 7.1", "90", "n/a", "80", "", "85"]


def test_one_level_with_synthetic_images_marks_the_table(table):
    for row in table.levels["m = 1"].rows.values():
        for run in row.runs:
            run.info["phantom"] = False
    assert table.phantom


def test_a_sentence_that_holds_for_one_level_alone_names_it(table):
    first, second = table.levels.values()
    less = replace(first, left_out={"FedX": "expected clean sites"}, incomplete=[2])
    for levels in ({"m = 0": less, "m = 1": second}, {"m = 1": second, "m = 0": less}):
        facts = LevelTable("job_x", levels).facts
        assert "m = 0: Left out: FedX: expected clean sites." in facts
        assert "m = 0: Seeds that are not complete and left out: 2." in facts
        assert "2 federations: deviations and intervals are over federations." in facts


def test_differences_of_a_level_in_another_measure_than_the_first_name_it():
    def level(rounds):
        rows = {
            name: TableRow(title=name, runs=[long_run(rounds, auc)], costs=[cost()], simple=name == "fedavg")
            for name, auc in (("own", 0.8), ("fedavg", 0.7))
        }
        return PaperTable("job_x", rows, primary="bacc_last", federations=[0])

    def long_run(rounds, bacc):
        evaluations = [
            {"round": r, "per_class": {"recall": [bacc]}, "macro": {"bacc": bacc}, "confusion": [[1]]}
            for r in range(1, rounds + 1)
        ]
        info = {"phantom": True, "task": "singlelabel", "classes": ["a"], "seed": 0, "sites": {"a": {"train": 8}}}
        return RunFiles(None, info, {"test": evaluations}, (), (), {"final": {}})

    part = LevelTable("job_x", {"num_rounds=5": level(5), "num_rounds=20": level(20)}).parts()[-1]
    assert part.caption.startswith("Recall (BACC): row minus")
    assert part.head == ["method", "num_rounds=5", "num_rounds=20, Recall (BACC), mean of the last ten rounds"]


def test_a_level_without_published_numbers_has_no_column_for_them():
    table = LevelTable(
        "x", {"a=1": make_table([0.8, 0.9], [0.7, 0.8], 0), "a=2": make_table([0.8, 0.8], [0.7, 0.7], 90)}
    )
    assert table.parts()[0].head == ["method", "a=1", "a=2", "a=2, published", "mean"]


def test_the_csv_has_the_lines_of_all_levels_under_one_head(table, tmp_path):
    write_level_table(table, tmp_path)
    with open(tmp_path / "comparison.csv") as stream:
        lines = list(csv.DictReader(stream))
    assert [line["level"] for line in lines] == ["m = 0"] * 4 + ["m = 1"] * 4
    assert [line["mean"] for line in lines if line["metric"] == "AUC"] == ["85.000", "75.000", "65.000", "60.000"]


def test_the_page_has_no_curves_and_asks_for_nothing(table, tmp_path):
    write_level_table(table, tmp_path)
    page = (tmp_path / "comparison.html").read_text()
    assert 'id="differences"' in page
    assert 'id="curves"' not in page
    assert not re.search(r"(src|href)=\"(?!#)", page)
