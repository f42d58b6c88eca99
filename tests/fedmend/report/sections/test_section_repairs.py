import re

from run_factories import TAGS, make_label_set_run, rows_in, rows_of, write_run

from fedmend.report.kinds.singlelabel import SingleLabelReport
from fedmend.report.report import summary_text, write_report
from fedmend.report.sections.fedlsm import WORDS
from fedmend.report.sections.repairs import pseudo_label_lines, pseudo_labels


def test_pseudo_labels_are_counted_per_site_and_unknown_truth_reads_na(page):
    rows = rows_of(page, "pseudo-labels")
    assert rows[2][1:] == ["8", "6", "0.750", "20", "19", "0.950", "12"]
    assert rows[1][1:] == ["5", "n/a", "n/a", "9", "n/a", "n/a", "46"]
    assert rows[3] == ["Sum", "13", "", "", "29", "", "", "58"]
    assert "mass &lt;5 mm positive 0.75; mass &lt;5 mm negative 0.95" in page  # alt text: known truth alone


def test_where_an_image_has_one_class_a_pseudo_label_counts_for_its_class_alone():
    run = make_label_set_run(repairs=TAGS, confusion=True)
    section = pseudo_labels(run)
    assert rows_in(section) == [
        ["Site, class", "pseudo-labels", "of these right", "precision", "no label yet"],
        ["site-1, mass &lt;5 mm", "8", "6", "0.750", "70"],
        ["site-2, edema", "12", "9", "0.750", "70"],
        ["Sum", "20", "", "", ""],
    ]
    assert ">pseudo-label of another class</text>" in section
    assert ">8 pos</text>" in section
    assert "negative pseudo-labels" not in section
    assert pseudo_label_lines(run) == ["Pseudo-labels: 20, precision 0.750"]


def test_what_people_judged_stands_beside_where_a_site_tells_it():
    run = make_label_set_run(repairs=[TAGS[0] | {"accepted": 3, "rejected": 1}, *TAGS[1:]], confusion=True)
    head, first, second, total = rows_in(pseudo_labels(run))
    assert head[-2:] == ["judged by people", "of these right"]
    assert (first[-2:], second[-2:], total[-2:]) == (["4", "0.750"], ["n/a", "n/a"], ["", ""])


def test_where_an_image_has_several_classes_negative_pseudo_labels_are_counted_too():
    run = make_label_set_run(repairs=TAGS)
    section = pseudo_labels(run)
    assert rows_in(section)[-1] == ["Sum", "20", "", "", "12", "", "", "140"]
    assert ">8 pos, 6 neg</text>" in section
    assert "negative pseudo-labels" in section
    assert len(pseudo_label_lines(run)) == 2


def test_the_words_of_pseudo_labels_are_there_when_there_are_some(tmp_path):
    page = write_report(write_run(tmp_path, make_label_set_run(repairs=TAGS, confusion=True))).read_text(
        encoding="utf-8"
    )
    words = re.findall("<dt>(.*?)</dt>", page)
    own = [w for w in SingleLabelReport.words if w != "Warm-up"]
    assert words == [*own, "Pseudo-label", "Precision of pseudo-labels", *WORDS]
    assert "Pseudo-labels: 20, precision 0.750\n" in summary_text(tmp_path)


def test_no_two_figures_of_a_page_have_a_name(tmp_path):
    run = make_label_set_run(tmp_path, repairs=TAGS, confusion=True)
    values = {name: [0.5, 0.5] for name in ("recall", "f1", "auc", "precision")}
    means = dict.fromkeys(("bacc", "f1", "auc", "precision", "accuracy"), 0.5)
    run.metrics["test"][0].update(per_class=values, macro=means)
    page = write_report(write_run(tmp_path, run)).read_text()
    ids = re.findall(r' id="(.*?)"', page)
    assert len(set(ids)) == len(ids)
