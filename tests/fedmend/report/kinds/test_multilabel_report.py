from run_factories import rows_of

from fedmend.report.kinds.multilabel import MultiLabelReport


def test_key_numbers_name_the_final_the_best_and_the_initial_model(page):
    cards = page.split('class="cards"')[1].split("</section>")[0]
    assert cards.index("Final model, round 2</span><b>0.623") < cards.index("Best model, round 1</td>")
    assert rows_of(page, "numbers")[:3] == [
        ["Best model, round 1", "0.734"],
        ["End of warm-up, round 1", "0.734"],
        ["Before training, round 0", "0.512"],
    ]


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
