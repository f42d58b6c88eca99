import re

from run_factories import CHEST_SITES, EVIL, SKIN, make_label_set_run, make_single_label_run, rows_in, rows_of

from fedmend.report.report import summary_text, write_report
from fedmend.report.sections.results import sites


def test_a_run_with_one_class_per_sample_shows_its_own_metrics(skin_page):
    cards = re.findall(r'<div class="card"><span>(.*?)</span><b>(.*?)</b>', skin_page)
    assert cards == [
        ("BACC · Final model, round 12", "0.600"),
        ("macro F1 · Final model, round 12", "0.754"),
        ("macro AUC · Final model, round 12", "0.925"),
        ("macro precision · Final model, round 12", "0.744"),
        ("accuracy · Final model, round 12", "0.786"),
        ("Last, mean BACC of rounds 3 to 12", "0.410"),  # (3 + 4 + ... + 10 + 12) / 20 and 0.9, over ten
    ]
    assert rows_of(skin_page, "numbers")[-1] == ["Best, highest BACC, round 11", "0.900"]
    assert "Means over 2 of 3 classes" in skin_page
    head, nevus, _, rare, macro = rows_of(skin_page, "classes")
    columns = [f"{metric} {model}" for model in ("final", "best") for metric in ("Recall", "F1", "AUC", "Precision")]
    assert head == ["Class", "samples", *columns]
    assert nevus == ["nevus", "10", *["0.800", "0.842", "0.925", "0.889"] * 2]
    assert rare == ["rare &lt;1 %", "0", *["n/a"] * 8]
    assert macro == ["macro", "", "0.600", "0.754", "0.925", "0.744", "0.900", "0.754", "0.925", "0.744"]
    assert "rare &lt;1 %: no sample in the test split." in skin_page


def test_curves_of_such_a_run_have_guessing_where_it_is_known(skin_page):
    part = skin_page.split('<section id="curves">')[1].split("</section>")[0]
    alts = re.findall(r'aria-label="(.*?)"', part)
    end = "rare &lt;1 % not measured."
    assert alts == [
        "BACC (macro), recall (classes) over rounds 0 to 12: macro from 0.00 to 0.60; nevus from 0.80 to 0.80; "
        f"melanoma from 0.75 to 0.75; {end}",
        f"F1 over rounds 0 to 12: macro from 0.75 to 0.75; nevus from 0.84 to 0.84; melanoma from 0.67 to 0.67; {end}",
        f"AUC over rounds 0 to 12: macro from 0.93 to 0.93; nevus from 0.93 to 0.93; melanoma from 0.93 to 0.93; {end}",
        "Precision over rounds 0 to 12: macro from 0.74 to 0.74; nevus from 0.89 to 0.89; melanoma from 0.60 to 0.60; "
        f"{end}",
        "Accuracy over rounds 0 to 12: all samples from 0.79 to 0.79.",
    ]
    figures = part.split("<h3>")[1:]
    assert ["guessing" in figure for figure in figures] == [True, False, True, False, False]
    assert ["no sample" in figure for figure in figures] == [True, True, True, True, False]


def test_training_labels_are_counted_per_site_and_a_class_without_any_is_marked(tmp_path, skin_page):
    rows = rows_of(skin_page, "sites")
    assert rows[0] == ["Site", "nevus", "melanoma", "rare &lt;1 %", "train", "test"]  # no site has a val split
    assert rows[2] == ["site-1", "30", "10", "0", "40", "5"]
    assert rows[-1] == ["All sites", "70", "29", "1", "100", "20"]
    run = make_single_label_run(tmp_path)["run"]
    run["sites"][EVIL]["positives"][SKIN[2]] = 0
    make_single_label_run(tmp_path, run=run)
    assert rows_of(write_report(tmp_path).read_text(encoding="utf-8"), "sites")[-1][3] == "⚠ none"


def test_confusion_matrices_show_counts_and_shares_of_the_row(skin_page):
    part = skin_page.split('<section id="confusion">')[1].split("</section>")[0]
    assert re.findall("<h3>(.*?)</h3>", part) == ["Final model, round 12", "Best model, round 11"]
    assert '<td class="heat hit" style="background:#70b2d9">8<small>80%</small></td>' in part
    rows = rows_of(skin_page, "confusion")
    assert rows[1] == ["nevus", "8<small>80%</small>", "2<small>20%</small>", "0<small>0%</small>", "10"]
    assert rows[3] == ["rare &lt;1 %", "0", "0", "0", "0"]
    assert rows[4] == ["All", "9", "5", "0", "14"]
    assert rows[7] == ["melanoma", "4<small>100%</small>", "0<small>0%</small>", "0<small>0%</small>", "4"]


def test_a_final_model_that_is_the_best_has_one_confusion_matrix(tmp_path):
    results = make_single_label_run(tmp_path)["results"]
    make_single_label_run(tmp_path, results=results | {"best": {"round": 12}})
    assert write_report(tmp_path).read_text(encoding="utf-8").count("True ↓") == 1


def test_the_summary_of_a_run_with_one_class_per_sample_has_its_columns(tmp_path):
    make_single_label_run(tmp_path)
    text = summary_text(tmp_path)
    assert "test split                    BACC  macro F1  macro AUC  macro precision  accuracy\n" in text
    assert "  Best model, round 11       0.900     0.754      0.925            0.744     0.786\n" in text
    assert "Last, mean BACC of rounds 3 to 12: 0.410\nBest, highest BACC, round 11: 0.900\n" in text
    assert f"Noisy sites: {EVIL}, site-2 (detection vote share 0.889)\n" in text
    assert len(text.splitlines()) <= 15


def test_the_initial_model_is_never_the_best(tmp_path):
    metrics = make_single_label_run(tmp_path)["metrics"][:2]
    metrics[0]["macro"]["bacc"] = 0.99
    make_single_label_run(tmp_path, metrics=metrics, drop=("results", "decisions"))
    (tmp_path / "results.json").unlink()
    assert "Best, highest BACC, round 1: 0.050\n" in summary_text(tmp_path)


def test_images_without_a_label_are_counted_where_each_image_has_one_class():
    rows = rows_in(sites(make_label_set_run(confusion=True)))
    assert rows[0] == ["Site", *("edema", "mass &lt;5 mm"), "no label", "train", "test"]
    assert rows[1] == ["&lt;b&gt;", "9", "5", "36", "50", "6"]
    assert rows[-1] == ["All sites", "39", "45", "166", "250", "18"]


def test_a_site_whose_label_counts_stay_there_is_not_said_to_have_no_labels():
    known = {"<b>": CHEST_SITES["<b>"], "private": {"annotated": ["edema"], "train": 100, "privacy": {}}}
    rows = rows_in(sites(make_label_set_run(known=known, confusion=True)))
    assert [row[3] for row in rows] == ["no label", "36", "n/a", "36"]
    assert rows[-1][1:3] == ["9", "5"]
    alone = rows_in(sites(make_label_set_run(known={"private": known["private"]}, confusion=True)))
    assert alone[-1] == ["All sites", "n/a", "n/a", "100"]
    known["<b>"] = {**known["<b>"], "train": 14}  # nobody tells of an image without a label
    assert "no label" not in sites(make_label_set_run(known=known, confusion=True))
