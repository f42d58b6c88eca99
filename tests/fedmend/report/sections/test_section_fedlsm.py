import re

import pytest
from run_factories import CHEST_DECISIONS, CHEST_SITES, make_label_set_run, rows_in, write_run

from fedmend.report.kinds.multilabel import MultiLabelReport
from fedmend.report.report import write_report
from fedmend.report.sections.fedlsm import WORDS, class_knowledge, pool_sizes, uncertainty


def test_pool_limits_are_the_bins_in_which_the_counts_are_reached():
    section = uncertainty(make_label_set_run())
    # 20 of 100 from the left end in the second bin, 30 from the right in the third.
    assert "site-1 confident up to 0.50, uncertain from 0.50" in section
    assert ">≤ 0.50 | ≥ 0.50</text>" in section
    assert re.findall(r">(0\.5|1\.0)</text>", section) == ["0.5", "1.0"] * 2  # the x axis does not count rounds
    # The last round of site-2 is its first, where every sample of both pools is in the last two bins.
    assert "site-2 confident up to 1.00, uncertain from 0.75" in section
    assert "round 1, ≤ 1.00 | ≥ 0.75</text>" in section


def test_a_site_that_was_never_measured_has_no_histogram():
    assert re.findall(r">(site-\d|&lt;b&gt;)</text>", uncertainty(make_label_set_run())) == ["site-1", "site-2"]


def test_the_first_round_is_an_outline_where_there_are_two():
    assert ">first round</text>" in uncertainty(make_label_set_run())
    section = uncertainty(make_label_set_run(decisions=CHEST_DECISIONS[:2]))
    assert "<svg" in section
    assert ">first round</text>" not in section


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {}},
        {"settings": {"high": 0.3, "low": "many"}},
        {"settings": {"high": 60, "low": 60}},  # more than there are samples
        {"known": {name: {} for name in CHEST_SITES}},
    ],
)
def test_without_known_sizes_of_the_pools_no_limits_are_drawn(changes):
    section = uncertainty(make_label_set_run(**changes))
    assert "<svg" in section
    assert "confident" not in section
    assert "limits" not in section
    assert ">share of the samples, %</text>" in section


def test_sizes_of_the_pools_are_counts_or_shares_of_at_least_one_sample():
    run = make_label_set_run(settings={"high": 0.001, "low": 0.25})
    assert pool_sizes(run, "site-1", {1: [100]}) == (1, 25)
    assert pool_sizes(run, "<b>", {1: [50]}) == (1, 12)
    run = make_label_set_run(settings={"high": 5, "low": 7.0})
    assert pool_sizes(run, "site-1", {1: [12], 2: [12]}) == (5, 7)
    assert pool_sizes(run, "site-1", {1: [12], 2: [11]}) is None


def test_class_knowledge_of_the_last_round_is_marked_shaded_and_summed():
    section = class_knowledge(make_label_set_run())
    last, earlier = section.split("<details>")
    assert rows_in(last) == [
        ["Site", "edema", "mass &lt;5 mm"],
        ["&lt;b&gt;", "–", "–"],
        ["site-1", "✓ 30", "10"],
        ["site-2", "30", "✓ 40"],
        ["All sites", "60", "50"],
    ]
    assert '<td class="heat" style="background:#a6cfe7">✓ 30</td>' in last  # a half
    assert "<summary>Rounds before (1)</summary>" in earlier
    assert rows_in(earlier)[1:3] == [["&lt;b&gt;", "✓ 9", "✓ 5"], ["site-1", "✓ 30", "0"]]


def test_a_class_that_nobody_knows_yet_is_not_shaded():
    decision = {"round": 1, "what": "class_knowledge", "value": {"site-1": [3.0, 0.0]}}
    section = class_knowledge(make_label_set_run(decisions=[decision]))
    assert '<td class="heat" style="background:#ffffff">0</td>' in section
    assert "<details>" not in section


def test_the_average_by_class_knowledge_is_named_where_it_is_made():
    assert "(AWPA)" in class_knowledge(make_label_set_run())
    assert "(AWPA)" not in class_knowledge(make_label_set_run(settings={"aggregation": "masked"}))


def test_the_page_has_both_sections_their_words_and_no_other_ones(tmp_path):
    page = write_report(write_run(tmp_path, make_label_set_run())).read_text(encoding="utf-8")
    anchors = re.findall('<section id="([^"]+)"', page)
    assert anchors.index("uncertainty") + 1 == anchors.index("class-knowledge")
    assert "decisions" not in anchors
    kind = [word for word in MultiLabelReport.words if word != "Warm-up"]
    assert re.findall("<dt>(.*?)</dt>", page) == [*kind, *WORDS]
    assert "td.heat" in page
    assert "<b>" not in page.replace("</span><b>", "")


def test_a_run_without_such_decisions_has_neither_section():
    assert uncertainty(make_label_set_run(decisions=[])) == class_knowledge(make_label_set_run(decisions=[])) == ""
