from run_factories import make_run, rows_of

from fedmend.records.run_folder import load_run
from fedmend.report.kinds.multilabel import MultiLabelReport
from fedmend.report.sections.results import key_numbers, per_class, result_lines


def test_key_numbers_name_the_final_the_best_and_the_initial_model(page):
    cards = page.split('class="cards"')[1].split("</section>")[0]
    assert cards.index("Final model, round 2</span><b>0.623") < cards.index("Best model, round 1</td>")
    assert rows_of(page, "numbers")[:3] == [
        ["Best model, round 1", "0.734"],
        ["End of warm-up, round 1", "0.734"],
        ["Before training, round 0", "0.512"],
    ]


def test_the_best_model_says_what_chose_it(page, tmp_path):
    assert "Best model: after round 1 (highest AUC, 0.700; val split)." in page
    make_run(tmp_path, decisions=[{"round": 2, "what": "best_model", "value": {"final": True, "split": "test"}}])
    assert "Best model: after round 2 (the final one; test split)." in key_numbers(load_run(tmp_path))


def test_a_metric_without_a_value_reads_na_and_the_reason_is_given(page):
    rows = rows_of(page, "classes")
    assert rows[1] == ["bleed", "4", "10", "0.623", "0.250", "0.500", "0.734", "0.250", "0.500"]
    assert rows[2] == ["mass &lt;5 mm", "0", "14", *["n/a"] * 6]
    assert "mass &lt;5 mm: no positive sample in the test split." in page
    assert "Means over 1 of 2 classes" in page


def test_a_class_that_no_site_annotates_is_flagged(page):
    rows = rows_of(page, "sites")
    assert rows[2] == ["site-1", "✓ 17 pos.", "–", "40", "5", "6"]
    assert rows[-1] == ["Sites that annotate", "2 of 2", "⚠ none", "100", "12", "14"]
    assert "No site annotates: mass &lt;5 mm." in page


def test_the_words_say_where_balanced_accuracy_cuts():
    assert "when a score above 0.5 counts as a finding" in MultiLabelReport.words["BACC"]


def test_a_class_says_how_many_samples_chose_its_threshold(tmp_path):
    measured = {"auc": [0.75, 0.5], "ap": [0.5, 0.5], "bacc": [0.5, 0.5]}
    test = {
        "split": "test",
        "macro": {"auc": 0.625, "bacc_val": 0.875},
        "per_class": measured | {"bacc_val": [0.875, None]},
    }
    test |= {"positives": [4, 5], "negatives": [10, 9]}
    val = {"split": "val", "macro": {}, "per_class": {}, "positives": [12, 4], "negatives": [10, 19]}
    said = {
        "round": 1,
        "what": "best_model_chosen_by",
        "value": {"reason": "the best model is chosen by 1 of 2 classes"},
    }
    make_run(tmp_path, metrics=[m | {"round": 2} for m in (test, val)], decisions=[said])
    run = load_run(tmp_path)
    rows = rows_of(per_class(run), "classes")
    assert rows[0][:5] == ["Class", "positive", "negative", "positive in val", "negative in val"]
    assert rows[1][1:5] == ["4", "10", "12", "10"]
    assert (rows[0][-1], [row[-1] for row in rows[1:]]) == ("BACC (val) final", ["0.875", "n/a", "0.875"])
    words = "BACC (val) needs 10 positives and 10 negatives of a class in the val split and is n/a for mass"
    assert words in key_numbers(run)
    assert f"{words} &lt;5 mm (4 positives, 19 negatives)." in key_numbers(run)
    told = ["The best model is chosen by 1 of 2 classes", f"{words} <5 mm (4 positives, 19 negatives)"]
    assert [line for line in result_lines(run) if line in told] == told
