import json
import re

import pytest

from fedmend.page import GLOSSARY, LABEL_SET_GLOSSARY, SINGLE_LABEL_GLOSSARY, table
from fedmend.reporting import sites, summary_text, write_report
from fedmend.reporting_fedlsm import class_knowledge, pool_sizes, uncertainty
from fedmend.reporting_fedmlp import pseudo_label_lines, pseudo_labels
from fedmend.run_folder import Run

CLASSES = ["edema", "mass <5 mm"]
SITES = {
    "site-1": {"annotated": ["edema"], "train": 100, "test": 6, "positives": {"edema": 30}},
    "site-2": {"annotated": ["mass <5 mm"], "train": 100, "test": 6, "positives": {"mass <5 mm": 40}},
    "<b>": {"annotated": CLASSES, "train": 50, "test": 6, "positives": {"edema": 9, "mass <5 mm": 5}},
}
# Four bins: 0-0.25, 0.25-0.5, 0.5-0.75, 0.75-1.
DECISIONS = [
    {"round": 1, "what": "class_knowledge", "value": {"site-1": [30.0, 0.0], "site-2": [0.0, 40.0], "<b>": [9.0, 5.0]}},
    {"round": 1, "what": "uncertainty", "value": {"site-1": [0, 0, 0, 100], "site-2": [0, 0, 10, 90]}},
    {"round": 2, "what": "class_knowledge", "value": {"site-1": [30.0, 10.0], "site-2": [30.0, 40.0]}},
    {"round": 2, "what": "uncertainty", "value": {"site-1": [15, 25, 40, 20]}},
]


def make_run(folder=None, *, decisions=DECISIONS, settings=None, known=SITES, repairs=(), confusion=False):
    """A finished run of two rounds and three sites; site-2 has no histogram in the last one, <b> has none at all."""
    evaluation = {
        "round": 2,
        "split": "test",
        "macro": {"auc": 0.5},
        "per_class": {"auc": [0.5, 0.5]},
        "positives": [4, 4],
        "negatives": [4, 4],
    } | ({"confusion": [[4, 0], [0, 4]]} if confusion else {})
    info = {
        "run_name": "demo",
        "method": "fedlsm",
        "phantom": False,
        "classes": CLASSES,
        "num_rounds": 2,
        "warmup_rounds": 0,
        "sites": known,
        "settings": {"high": 0.3, "low": 20} if settings is None else settings,
    }
    return Run(folder, info, {"test": [evaluation]}, list(repairs), list(decisions), {"final": {}})


def write_run(folder, run):
    (folder / "run.json").write_text(json.dumps(run.info))
    (folder / "results.json").write_text(json.dumps(run.results))
    for name, lines in (("metrics", run.evaluations), ("repairs", run.repairs), ("decisions", run.decisions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def rows_of(section):
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", section, flags=re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


# ---- uncertainty ----------------------------------------------------------------------------------------------------


def test_pool_limits_are_the_bins_in_which_the_counts_are_reached():
    section = uncertainty(make_run())
    # 20 of 100 from the left end in the second bin, 30 from the right in the third.
    assert "site-1 confident up to 0.50, uncertain from 0.50" in section
    assert ">≤ 0.50 | ≥ 0.50</text>" in section
    assert re.findall(r">(0\.5|1\.0)</text>", section) == ["0.5", "1.0"] * 2  # the x axis does not count rounds
    # The last round of site-2 is its first, where every sample of both pools is in the last two bins.
    assert "site-2 confident up to 1.00, uncertain from 0.75" in section
    assert "round 1, ≤ 1.00 | ≥ 0.75</text>" in section


def test_a_site_that_was_never_measured_has_no_histogram():
    assert re.findall(r">(site-\d|&lt;b&gt;)</text>", uncertainty(make_run())) == ["site-1", "site-2"]


def test_the_first_round_is_an_outline_where_there_are_two():
    assert ">first round</text>" in uncertainty(make_run())
    section = uncertainty(make_run(decisions=DECISIONS[:2]))
    assert "<svg" in section
    assert ">first round</text>" not in section


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {}},
        {"settings": {"high": 0.3, "low": "many"}},
        {"settings": {"high": 60, "low": 60}},  # more than there are samples
        {"known": {name: {} for name in SITES}},
    ],
)
def test_without_known_sizes_of_the_pools_no_limits_are_drawn(changes):
    section = uncertainty(make_run(**changes))
    assert "<svg" in section
    assert "confident" not in section
    assert "limits" not in section
    assert ">share of the samples, %</text>" in section


def test_sizes_of_the_pools_are_counts_or_shares_of_at_least_one_sample():
    run = make_run(settings={"high": 0.001, "low": 0.25})
    assert pool_sizes(run, "site-1", {1: [100]}) == (1, 25)
    assert pool_sizes(run, "<b>", {1: [50]}) == (1, 12)
    run = make_run(settings={"high": 5, "low": 7.0})
    assert pool_sizes(run, "site-1", {1: [12], 2: [12]}) == (5, 7)
    assert pool_sizes(run, "site-1", {1: [12], 2: [11]}) is None


# ---- what each site knows -------------------------------------------------------------------------------------------


def test_class_knowledge_of_the_last_round_is_marked_shaded_and_summed():
    section = class_knowledge(make_run())
    last, earlier = section.split("<details>")
    assert rows_of(last) == [
        ["Site", "edema", "mass &lt;5 mm"],
        ["&lt;b&gt;", "–", "–"],
        ["site-1", "✓ 30", "10"],
        ["site-2", "30", "✓ 40"],
        ["All sites", "60", "50"],
    ]
    assert '<td class="heat" style="background:#a6cfe7">✓ 30</td>' in last  # a half
    assert "<summary>Rounds before (1)</summary>" in earlier
    assert rows_of(earlier)[1:3] == [["&lt;b&gt;", "✓ 9", "✓ 5"], ["site-1", "✓ 30", "0"]]


def test_a_class_that_nobody_knows_yet_is_not_shaded():
    decision = {"round": 1, "what": "class_knowledge", "value": {"site-1": [3.0, 0.0]}}
    section = class_knowledge(make_run(decisions=[decision]))
    assert '<td class="heat" style="background:#ffffff">0</td>' in section
    assert "<details>" not in section


def test_the_average_by_class_knowledge_is_named_where_it_is_made():
    assert "(AWPA)" in class_knowledge(make_run())
    assert "(AWPA)" not in class_knowledge(make_run(settings={"aggregation": "masked"}))


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_both_sections_their_words_and_no_other_ones(tmp_path):
    page = write_report(write_run(tmp_path, make_run())).read_text(encoding="utf-8")
    anchors = re.findall('<section id="([^"]+)"', page)
    assert anchors.index("uncertainty") + 1 == anchors.index("class-knowledge")
    assert "decisions" not in anchors
    unused = {"Warm-up", "Prototype", "Learning degree"}
    assert re.findall("<dt>(.*?)</dt>", page) == [*(w for w in GLOSSARY if w not in unused), *LABEL_SET_GLOSSARY]
    assert "td.heat" in page
    assert "<b>" not in page.replace("</span><b>", "")


def test_a_run_without_such_decisions_has_neither_section():
    assert uncertainty(make_run(decisions=[])) == class_knowledge(make_run(decisions=[])) == ""


# ---- pseudo-labels where each image has one class -------------------------------------------------------------------

REPAIRS = [
    {"round": 1, "site": site, "class": name, "positive": positive, "negative": 6, "untagged": 70}
    | {"correct_positive": correct, "correct_negative": 5}
    for site, name, positive, correct in (("site-1", CLASSES[1], 8, 6), ("site-2", CLASSES[0], 12, 9))
]


def test_where_an_image_has_one_class_a_pseudo_label_counts_for_its_class_alone():
    run = make_run(repairs=REPAIRS, confusion=True)
    section = pseudo_labels(run)
    assert rows_of(section) == [
        ["Site, class", "pseudo-labels", "of these right", "precision", "no label yet"],
        ["site-1, mass &lt;5 mm", "8", "6", "0.750", "70"],
        ["site-2, edema", "12", "9", "0.750", "70"],
        ["Sum", "20", "", "", ""],
    ]
    assert ">pseudo-label of another class</text>" in section
    assert ">8 pos</text>" in section
    assert "negative pseudo-labels" not in section
    assert pseudo_label_lines(run) == ["Pseudo-labels: 20, precision 0.750"]


def test_where_an_image_has_several_classes_negative_pseudo_labels_are_counted_too():
    run = make_run(repairs=REPAIRS)
    section = pseudo_labels(run)
    assert rows_of(section)[-1] == ["Sum", "20", "", "", "12", "", "", "140"]
    assert ">8 pos, 6 neg</text>" in section
    assert "negative pseudo-labels" in section
    assert len(pseudo_label_lines(run)) == 2


def test_the_words_of_pseudo_labels_are_there_when_there_are_some(tmp_path):
    page = write_report(write_run(tmp_path, make_run(repairs=REPAIRS, confusion=True))).read_text(encoding="utf-8")
    words = re.findall("<dt>(.*?)</dt>", page)
    own = [w for w in SINGLE_LABEL_GLOSSARY if w != "Warm-up"]
    assert words == [*own, "Pseudo-label", "Precision of pseudo-labels", *LABEL_SET_GLOSSARY]
    assert "Pseudo-labels: 20, precision 0.750\n" in summary_text(tmp_path)


def test_images_without_a_label_are_counted_where_each_image_has_one_class():
    rows = rows_of(sites(make_run(confusion=True)))
    assert rows[0] == ["Site", *("edema", "mass &lt;5 mm"), "no label", "train", "test"]
    assert rows[1] == ["&lt;b&gt;", "9", "5", "36", "50", "6"]
    assert rows[-1] == ["All sites", "39", "45", "166", "250", "18"]


def test_heads_of_a_table_with_many_columns_stand_upright():
    assert '<table class="wide">' in table("c", ["Site", *"abcdefghijkl"], [["site-1", *range(12)]])
    assert "wide" not in table("c", ["Site", *"abcdefghijk"], [["site-1", *range(11)]])
