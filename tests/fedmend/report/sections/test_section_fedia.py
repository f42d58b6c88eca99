import re
from html import escape

import pytest
from run_factories import LESION_DECISIONS, LESION_SITES, MASK_REPAIRS, make_lesion_run, rows_in, write_run

from fedmend.basics.words import in_order
from fedmend.report.kinds.segmentation import SegmentationReport
from fedmend.report.report import summary_text, write_report
from fedmend.report.sections.fedia import (
    WORDS,
    completeness,
    completeness_lines,
    completeness_weights,
    corrections,
    iou,
)


def alt_of(section):
    return re.findall(r'aria-label="(.*?)"', section.split("<svg")[1])[0]


def test_estimates_are_shown_beside_the_truth_with_places():
    section = completeness(make_lesion_run())
    assert rows_in(section) == [
        ["Site", "marked lesions", "lesions found", "estimate", "place", "true completeness", "true place"],
        ["site-1", "20", "100", "0.200", "3", "0.250", "3"],
        ["&lt;b&gt;", "20", "25", "0.800", "2", "1.000", "1 ≠"],
        ["site-2", "60", "50", "1.200", "1", "0.750", "2 ≠"],
    ]
    assert "After round 2" in section
    assert "site-1 has left the largest share of its lesions unmarked. 1 of 3 sites are at their true place." in section


def test_sites_without_a_known_truth_have_no_place_beside_those_with_one():
    partly = LESION_SITES | {"site-2": {"train": 50}}
    assert rows_in(completeness(make_lesion_run(known=partly)))[3] == [
        "site-2",
        "60",
        "50",
        "1.200",
        "n/a",
        "n/a",
        "n/a",
    ]
    rows = rows_in(completeness(make_lesion_run(known={site: {"train": 5} for site in LESION_SITES})))
    assert rows[0] == ["Site", "marked lesions", "lesions found", "estimate", "place"]
    assert [row[-1] for row in rows[1:]] == ["3", "2", "1"]


def test_learning_curves_have_the_line_and_the_rounds_of_trigger_and_correction():
    section = iou(make_lesion_run())
    assert alt_of(section) == (
        "IoU of the sites over rounds 1 to 4: &lt;b&gt; from 0.40 to 0.40 (triggered 2, corrected 3); site-1 from 0.10"
        " to 0.10 (not triggered); site-2 from 0.20 to 0.45 (triggered 3, corrected 4)."
    )
    for word in ("IoU", "expected line", "triggered", "corrected", "warm-up"):
        assert f">{word}</text>" in section
    assert section.count("stroke-dasharray: 4,2") == 3 + 1  # a line for each site and in the legend
    assert "No site has done so." not in section


def test_a_site_that_was_spared_or_never_triggered_has_no_marks():
    quiet = [d for d in LESION_DECISIONS if d["what"] not in ("triggered", "corrected", "iou_line")]
    section = iou(make_lesion_run(decisions=[*quiet, {"round": 3, "what": "spared", "value": ["site-2"]}]))
    assert "site-2 from 0.20 to 0.45 (spared 3)" in section
    assert ">triggered</text>" not in section
    assert ">expected line</text>" not in section
    assert "No site has done so." in section


def test_the_line_of_the_first_round_on_is_cut_at_0_and_1(monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "fedmend.report.sections.fedia.grid_figure",
        lambda key, panels, **other: drawn.update({p.title: p.lines for p in panels}) or "",
    )
    iou(make_lesion_run())
    line = drawn["<b>"][1]
    assert list(line.rounds) == [1, 2, 3, 4]
    assert line.values == pytest.approx([0.3, 0.6, 0.9, 1.0])
    assert [(mark.rounds, mark.values, mark.style) for mark in drawn["site-2"][2:]] == [
        ([3], [0.3], "triggered"),
        ([4], [0.45], "corrected"),
    ]


def test_shares_of_the_sites_are_drawn_with_their_shares_by_samples():
    section = completeness_weights(make_lesion_run())
    assert alt_of(section) == (
        "Aggregation weights in per cent over rounds 3 to 4, at the end: &lt;b&gt; 25.0 (completeness 0.80); site-1 5.0"
        " (completeness 0.20); site-2 70.0 (completeness 1.20)."
    )
    assert ">by samples alone</text>" in section
    assert "in rounds 3 to 4" in section


def test_corrections_have_rounds_precision_and_recall():
    section = corrections(make_lesion_run())
    assert rows_in(section)[1:] == [
        ["&lt;b&gt;", "2", "3", "2", "0", "0", "0.000", "n/a"],
        ["site-2", "3", "4", "8", "6", "24", "0.750", "0.250"],
        ["site-1", "never", *"––––––"],
        ["Corrected sites", "", "", "10", "6", "24", "0.600", "0.250"],
    ]


def test_structures_of_a_site_are_added_up():
    known = {name: site | {"annotated": ["spleen"]} for name, site in LESION_SITES.items()}
    counts = [("liver", 8, 6, 24), ("spleen", 0, 0, 0), ("kidneys", 4, 4, 16)]
    repairs = [
        {"round": r, "site": "site-2", "class": c, "positive": n, "negative": 0, "untagged": 0}
        | {"correct_positive": right, "correct_negative": 0, "missing": missing}
        for r in (3, 4)
        for c, n, right, missing in counts
    ]
    run = make_lesion_run(decisions=[], repairs=repairs, known=known, classes=["liver", "spleen", "kidneys"])
    section = corrections(run)
    assert rows_in(section)[0][3:6] == ["pixels added", "of these right", "unmarked structure"]
    assert rows_in(section)[1][:6] == ["site-2", "n/a", "3", "12", "10", "40"]
    assert completeness_lines(run)[-1] == "Pixels added: 12, precision 0.833, recall 0.250"


def test_corrections_without_a_known_truth_waiting_and_spared_sites_are_told_apart():
    unknown = [{k: v for k, v in MASK_REPAIRS[0].items() if k != "missing"} | {"correct_positive": None}]
    decisions = [
        {"round": 3, "what": "triggered", "value": ["<b>", "site-2"]},
        {"round": 4, "what": "corrected", "value": ["site-2"]},
        {"round": 3, "what": "spared", "value": ["site-1"]},
    ]
    assert rows_in(corrections(make_lesion_run(decisions=decisions, repairs=unknown)))[1:] == [
        ["&lt;b&gt;", "3", "waits", "0", "n/a", "n/a", "n/a", "n/a"],
        ["site-2", "3", "4", "8", "n/a", "n/a", "n/a", "n/a"],
        ["site-1", "spared in 3", *"––––––"],
        ["Corrected sites", "", "", "8", "n/a", "n/a", "n/a", "n/a"],
    ]


def test_a_site_that_tells_what_was_right_but_not_what_is_missing_counts_as_unknown():
    run = make_lesion_run(repairs=[{k: v for k, v in MASK_REPAIRS[0].items() if k != "missing"}])
    assert rows_in(corrections(run))[-1] == ["Corrected sites", "", "", "8", *["n/a"] * 4]
    assert completeness_lines(run)[-1] == "Pixels added: 8, precision n/a, recall n/a"


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"negative": 0}, "Nothing was ever unmarked."),
        ({"negative": 8, "correct_negative": 6}, "Unmarked: 8 pixels, 75 % of them rightly."),
        ({"negative": 8, "correct_negative": None}, "Unmarked: 8 pixels."),
    ],
)
def test_pixels_that_became_background_are_named(counts, sentence):
    assert sentence in corrections(make_lesion_run(repairs=[MASK_REPAIRS[0] | counts]))


def test_a_run_without_such_decisions_has_none_of_the_sections():
    run = make_lesion_run(decisions=[], repairs=[])
    assert completeness(run) == iou(run) == completeness_weights(run) == corrections(run) == ""
    assert completeness_lines(run) == []
    assert corrections(make_lesion_run(decisions=[], task="multilabel")) == ""


def test_the_page_has_the_sections_and_words_of_a_segmentation_and_its_tables(tmp_path):
    page = write_report(write_run(tmp_path, make_lesion_run())).read_text(encoding="utf-8")
    own = ["completeness", "iou", "completeness-weights", "corrections"]
    assert re.findall('<section id="([^"]+)"', page) == [
        *("numbers", "sites", "curves"),
        *own,
        *("decisions", "files", "glossary"),
    ]
    assert re.findall("<dt>(.*?)</dt>", page) == [*SegmentationReport.words, *WORDS]
    assert [row[0] for row in rows_in(page.split('id="decisions"')[1].split("</section>")[0])] == ["What", "best model"]
    assert "<b>" not in page.replace("</span><b>", "")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "| fedia | 50.0 | 70.0 | 75.0 | 50.0 | 60.0 | 70.0 | 1 |" in (tmp_path / "macro.md").read_text(
        encoding="utf-8"
    )


def test_the_plain_text_has_the_same_numbers(tmp_path):
    text = summary_text(write_run(tmp_path, make_lesion_run()))
    assert text.startswith("ms: fedia, 3 sites, segmentation, finished, 4 rounds, 2 of them warm-up\n")
    assert "test split                    Dice  volume Dice  precision  recall\n" in text
    assert "  Final model, round 4       0.500        0.700      0.750   0.500\n" in text
    assert "Best, highest Dice, round 3: 0.600\nBest, highest volume Dice, round 4: 0.700\n" in text
    assert "Completeness, estimated (true): <b> 0.80 (1.00), site-1 0.20 (0.25), site-2 1.20 (0.75)\n" in text
    assert "Corrected: <b> in round 3, site-2 in round 4\nPixels added: 10, precision 0.600, recall 0.250\n" in text


@pytest.mark.filterwarnings("error")
def test_models_that_find_nothing_have_curves_at_zero():
    decisions = [{"round": r, "what": "iou", "value": {"site-1": 0.0, "site-2": 0.0}} for r in (1, 2)]
    section = iou(make_lesion_run(decisions=decisions))
    assert "site-1 from 0.00 to 0.00" in section
    assert "−" not in section  # no axis below 0


@pytest.mark.parametrize("found", [(0, 0, 0), (0, 9, 9)])
def test_a_site_where_the_model_finds_no_lesion_is_not_said_to_have_left_lesions_unmarked(found):
    value = {
        site: {"annotated": 9, "predicted": n, "estimate": float(n > 0)}
        for site, n in zip(in_order(LESION_SITES), found, strict=True)
    }
    section = completeness(make_lesion_run(decisions=[{"round": 2, "what": "completeness", "value": value}]))
    blind = ", ".join(site for site, n in zip(in_order(LESION_SITES), found, strict=True) if not n)
    assert f"At {escape(blind)} the model finds no lesion, so there is no estimate" in section
    assert "unmarked." not in section
    assert ("at their true place" in section) == any(found)


@pytest.mark.parametrize(
    ("estimates", "words"),
    [
        ((0.5, 0.5, 0.9), "site-1 and site-2 have left equal shares of their lesions unmarked, none more."),
        ((1.0, 1.2, 1.0), "At no site does the model find more than are marked."),
    ],
)
def test_no_site_is_said_to_leave_out_more_than_the_estimates_show(estimates, words):
    value = {
        site: {"annotated": 9, "predicted": 9, "estimate": e} for site, e in zip(LESION_SITES, estimates, strict=True)
    }
    assert words in completeness(make_lesion_run(decisions=[{"round": 2, "what": "completeness", "value": value}]))
