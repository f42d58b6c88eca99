"""The paper's table of made-up runs, whose numbers can be seen at once."""

import csv
import dataclasses
import io
import re

import pytest
from factories import refused

from fedmend.comparison.curves import curves_figure
from fedmend.comparison.fairness import TableRow
from fedmend.comparison.paper_table import PaperTable, costs_of
from fedmend.comparison.table_pages import FILES, latex, markdown, write_paper_table
from fedmend.records.run_folder import RunFiles


def make_run(seed, auc, *, val=None, phantom=False):
    def evaluations(value):
        return [{"round": r, "per_class": {"auc": [v]}, "macro": {"auc": v}} for r, v in ((0, 0.5), (1, value))]

    info = {"phantom": phantom, "classes": ["edema"], "seed": seed, "sites": {"a": {"train": 8}}}
    metrics = {"test": evaluations(auc)} | ({"val": evaluations(val)} if val else {})
    return RunFiles(None, info, metrics, (), (), {"final": {}})


def cost(seconds=90, **changes):
    site = {"rounds": 5, "steps": 30, "images": 80, "sent": 3_000_000, "received": 1_000_000}
    effort = {"unit": "epochs", "per_round": 4}
    return {
        "seconds": seconds,
        "peak_memory": 5e8,
        "initial_model": "x",
        "sites": {"a": site},
        "effort": effort,
    } | changes


def row(title, *aucs, vals=(None, None), costs=None, **options):
    runs = [make_run(seed, auc, val=val) for seed, (auc, val) in enumerate(zip(aucs, vals, strict=True))]
    return TableRow(title=title, runs=runs, costs=costs or [cost(), cost()], **options)


@pytest.fixture
def table():
    rows = {
        "own": row("Own & only", 0.7, 0.8, published={"auc": 88.5}),
        "fedavg": row("FedAvg", 0.6, 0.66, simple=True, published={"auc": 76.3, "bacc_last": 50}),
        "prox": row("FedProx", 0.5, 0.5, simple=True),
        "short": row("Short", 0.9, 0.9, simple=True, costs=[cost(effort={"unit": "epochs", "per_round": 1})] * 2),
    }
    return PaperTable(
        "job_x", rows, source="Smith, Table 1", left_out={"Clean": "expected y"}, incomplete=[2], federations=[0, 0]
    )


def test_the_markdown_has_results_beside_published_numbers_differences_and_costs(table, tmp_path):
    text = write_paper_table(table, tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(FILES)
    lines = text.splitlines()
    for line in (
        "| method | AUC | AUC, published | BACC, mean of the last ten rounds, published |",
        "| Own & only | 75.0 ± 7.1 | 88.5 |  |",
        "| FedAvg | 63.0 ± 4.2 | 76.3 | 50 |",
        "| Own & only | +12.0 [-13.4, 37.4] |",
        "Primary measure: AUC. p of the other measures: two-sided t-tests, Holm's correction over the other measures of"
        " the row.",
        "| Short [1] | n/a |",
        "| Own & only | 20 epochs | 30 | 2.0 | 2 min | 4.0 | 500 |",
        "[1] not comparable: 5 epochs at a site instead of 20 epochs",
        "Seeds that are not complete and left out: 2.",
        "Left out: Clean: expected y.",
    ):
        assert line in lines, text
    assert "(Smith, Table 1): on its own data, splits, network and schedule" in text
    assert "PHANTOM" not in text


def test_the_strongest_simple_baseline_is_that_of_the_reported_split(table):
    how = "that with the best AUC on the test split, the hardest to beat"
    assert table.reference == ("fedavg", how)
    vals = {"own": (0.5, 0.5), "fedavg": (0.6, 0.7), "prox": (0.5, 0.6)}
    aucs = {"own": (0.7, 0.8), "fedavg": (0.5, 0.5), "prox": (0.6, 0.66)}
    rows = {name: row(name, *aucs[name], vals=vals[name], simple=name != "own") for name in vals}
    assert PaperTable("x", rows).reference == ("prox", how)


def test_the_strongest_simple_baseline_is_that_of_the_primary_measure():
    rows = {name: row(name, 0.7, 0.8, simple=name != "own") for name in ("own", "fedavg", "prox")}
    for name, ap in (("own", 0.9), ("fedavg", 0.3), ("prox", 0.4)):
        for run in rows[name].runs:
            run.evaluations[-1]["macro"] |= {"map": ap, "auc": 1 - ap}
    assert PaperTable("x", rows).reference[0] == "fedavg"
    best, how = PaperTable("x", rows, primary="map").reference
    assert (best, how) == ("prox", "that with the best mAP on the test split, the hardest to beat")


def test_the_table_counts_federations_not_seeds():
    rows = {
        "own": row("Own", 0.8, 0.7, 0.6, vals=[None] * 3, costs=[cost()] * 3),
        "fedavg": row("FedAvg", 0.7, 0.7, 0.5, vals=[None] * 3, costs=[cost()] * 3, simple=True),
    }
    table = PaperTable("x", rows, federations=[0, 0, 1])  # differences 10 and 0 on one federation, 10 on another
    assert table.differences("own")[0].mean == pytest.approx(7.5)
    assert table.facts[1].startswith("2 federations: ")
    results = table.parts()[0].rows
    assert results[0][1] == "67.5 ± 10.6"
    assert {line["federations"] for line in csv.DictReader(io.StringIO(table.csv()))} == {"2"}


def test_the_strongest_simple_baseline_is_that_of_the_means_that_the_table_shows():
    # Two seeds on one federation and one on another: the means of the seeds would be 63.3 and 61.3.
    aucs = {"own": (0.9, 0.9, 0.9), "fedavg": (0.7, 0.7, 0.5), "prox": (0.6, 0.6, 0.64)}
    costs = [cost()] * 3
    rows = {n: row(n, *own, vals=[None] * 3, costs=costs, simple=n != "own") for n, own in aucs.items()}
    table = PaperTable("x", rows, federations=[0, 0, 1])
    assert [line[1] for line in table.parts()[0].rows] == ["90.0 ± 0.0", "60.0 ± 14.1", "62.0 ± 2.8"]
    assert table.reference[0] == "prox"


def test_single_classes_stand_beside_the_papers_where_they_are_asked_for(table):
    asked = dataclasses.replace(table, of_classes={"own": {"edema": 88.4}})
    part = next(part for part in asked.parts() if part.word == "classes")
    assert part.caption == "AUC of each class"
    assert part.head == ["method", "edema", "edema, published"]
    assert part.rows[:2] == [["Own & only", "75.0 ± 7.1", "88.4"], ["FedAvg", "63.0 ± 4.2", ""]]
    lines = [line for line in csv.DictReader(io.StringIO(asked.csv())) if line["metric"] == "AUC, edema"]
    assert [(line["row"], line["mean"], line["sd"], line["published"]) for line in lines][:2] == [
        ("own", "75.000", "7.071", "88.4"),
        ("fedavg", "63.000", "4.243", ""),
    ]
    assert {line["difference"] + line["p"] for line in lines} == {""}
    assert "classes" not in [part.word for part in table.parts()]
    assert "AUC, edema" not in table.csv()


def test_without_a_simple_baseline_there_are_no_differences():
    table = PaperTable("x", {"own": row("Own", 0.7, 0.8), "other": row("Other", 0.7, 0.8)})
    assert [part.word for part in table.parts()] == ["results", "costs"]
    assert table.facts[2].startswith("No differences: no simple baseline")


def test_the_strongest_simple_baseline_has_no_difference_to_itself(table):
    assert table.differences("fedavg") == [None]
    assert {line["difference"] for line in csv.DictReader(io.StringIO(table.csv())) if line["row"] == "fedavg"} == {""}


def test_a_table_without_differences_names_the_true_reason(table):
    lacking = row("FedAvg", 0.6, 0.66, simple=True)
    lacking.runs[1].metrics["test"][-1]["macro"]["auc"] = None
    less = dataclasses.replace(table, rows={**table.rows, "fedavg": lacking})
    assert "No differences: AUC of FedAvg could not be measured in every seed." in less.facts
    assert less.differences("own") == [None] * len(less.columns)
    other = dataclasses.replace(table, primary="f1")
    assert "No differences: the primary measure was not measured." in other.facts


def test_a_run_that_nobody_measured_has_no_costs_and_is_not_compared(table):
    rows = {"own": row("Own", 0.7, 0.8), "old": row("Old", 0.6, 0.6, simple=True, costs=[{}, cost()])}
    table = PaperTable("x", rows)
    assert costs_of(rows["old"]) is None
    assert table.reference[0] == ""
    assert table.parts()[-1].rows[1][1:] == ["n/a"] * 6


def test_the_csv_has_a_line_per_row_and_metric(table, tmp_path):
    write_paper_table(table, tmp_path)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "comparison.csv").read_text())))
    own = lines[0]
    assert (own["row"], own["title"], own["metric"], own["mean"], own["sd"]) == (
        "own",
        "Own & only",
        "AUC",
        "75.000",
        "7.071",
    )
    assert (own["primary"], float(own["p"])) == ("yes", pytest.approx(0.105, abs=1e-3))  # t = 6, one degree of freedom
    assert (own["difference"], own["published"], own["simple"], own["comparable"]) == ("12.000", "88.5", "no", "yes")
    assert own["passes"] == "2.0"
    assert (own["seconds"], own["megabytes"], own["memory_megabytes"], own["training"]) == (
        "90.0",
        "4.0",
        "500.0",
        "20 epochs",
    )
    assert [(line["mean"], line["published"]) for line in lines if line["metric"].startswith("BACC")] == [("", "50")]
    assert {line["comparable"] for line in lines if line["row"] == "short"} == {"no"}


def test_a_title_like_a_formula_is_text_in_a_spreadsheet(table):
    found = dataclasses.replace(table, rows={"own": row("+ MLD", 0.7, 0.8)})
    assert {line["title"] for line in csv.DictReader(io.StringIO(found.csv()))} == {"'+ MLD"}
    assert "| + MLD |" in markdown(found)


def test_latex_escapes_what_it_would_read_as_commands(table, tmp_path):
    write_paper_table(table, tmp_path)
    text = (tmp_path / "comparison.tex").read_text()
    assert r"Own \& only & 75.0 $\pm$ 7.1 & 88.5" in text
    assert r"job\_x" in text
    assert latex(dataclasses.replace(table, left_out={}, name="a<b|c>")).count("a$<$b$|$c$>$") == len(table.parts())
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    assert not re.search(r"(?<!\\)[_#]", re.sub(r"(?m)^%.*$", "", text))


def test_the_page_has_tables_and_curves_inside_and_asks_for_nothing(table, tmp_path):
    write_paper_table(table, tmp_path)
    page = (tmp_path / "comparison.html").read_text()
    for word in ('id="results"', 'id="curves"', 'id="differences"', 'id="costs"', "Own &amp; only", "88.5", "<svg "):
        assert word in page
    assert not re.search(r"(src|href)=\"(?!#)", page)
    assert "PHANTOM" not in page


def test_a_row_of_synthetic_data_among_others_is_marked():
    rows = {"own": row("Own", 0.7, 0.8), "other": row("Other", 0.7, 0.8)}
    assert not PaperTable("x", rows).phantom
    rows["other"].runs[1].info["phantom"] = True
    assert PaperTable("x", rows).phantom


def test_costs_are_means_of_the_runs_and_the_largest_memory():
    more = {"rounds": 5, "steps": 50, "images": 160, "sent": 5_000_000, "received": 1_000_000}
    costs = [cost(), cost(150, peak_memory=9e8, sites={"a": more})]
    assert costs_of(row("Own", 0.7, 0.8, costs=costs)) == ("20 epochs", 40, 120, 5, 900, 3)
    assert costs_of(row("Own", 0.7, 0.8, costs=costs[::-1])).memory == 900


def test_synthetic_data_are_marked_everywhere(tmp_path):
    runs = [make_run(0, 0.7, phantom=True)]
    rows = {"own": TableRow(title="Own", runs=runs, costs=[cost()])}
    write_paper_table(PaperTable("x", rows), tmp_path)
    for name in FILES:
        text = (tmp_path / name).read_text()
        assert "PHANTOM" in text or ",yes," in text, name


def test_a_metric_that_nobody_measured_is_one_sentence(tmp_path):
    with refused("--metric: expected one of ['auc'], got 'f1'"):
        write_paper_table(PaperTable("x", {"own": row("Own", 0.7, 0.8)}, metric="f1"), tmp_path)


def test_the_axis_of_a_single_round_counts_whole_rounds():
    svg = curves_figure({"own": [make_run(0, 0.7)]})
    assert ">1</text>" in svg
    assert ">0.945</text>" not in svg
