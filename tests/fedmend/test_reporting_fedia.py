import json
import re

import pytest

from fedmend.page import COMPLETENESS_GLOSSARY, SEGMENTATION_GLOSSARY
from fedmend.reporting import curves, key_numbers, per_class, sites, summary_text, write_report
from fedmend.reporting_fedia import completeness, completeness_lines, completeness_weights, corrections, iou
from fedmend.reporting_fedmlp import pseudo_label_lines, pseudo_labels
from fedmend.run_folder import Run

SITES = {
    "site-1": {"annotated": ["lesion"], "train": 30, "test": 8, "positives": {"lesion": 12}, "lesions": [10, 40]},
    "site-2": {"annotated": ["lesion"], "train": 50, "test": 8, "positives": {"lesion": 48}, "lesions": [30, 40]},
    "<b>": {"annotated": ["lesion"], "train": 20, "test": 8, "positives": {"lesion": 20}, "lesions": [20, 20]},
}
REPAIRS = [
    {"round": 4, "site": "site-2", "class": "lesion", "positive": 8, "negative": 0, "untagged": 0}
    | {"correct_positive": 6, "correct_negative": 0, "missing": 24},
    {"round": 3, "site": "<b>", "class": "lesion", "positive": 2, "negative": 0, "untagged": 0}
    | {"correct_positive": 0, "correct_negative": 0, "missing": 0},
]
DECISIONS = [
    {
        "round": 2,
        "what": "completeness",
        "value": {
            "site-1": {"annotated": 20, "predicted": 100, "estimate": 0.2},
            "site-2": {"annotated": 60, "predicted": 50, "estimate": 1.2},
            "<b>": {"annotated": 20, "predicted": 25, "estimate": 0.8},
        },
    },
    {"round": 2, "what": "iou_line", "value": {"site-1": [0.1, 0.0], "site-2": [0.2, 0.1], "<b>": [0.3, 0.3]}},
    *(
        {"round": r, "what": "iou", "value": {"site-1": 0.1, "site-2": value, "<b>": 0.4}}
        for r, value in ((1, 0.2), (2, 0.3), (3, 0.3), (4, 0.45))
    ),
    {"round": 2, "what": "triggered", "value": ["<b>"]},
    {"round": 3, "what": "corrected", "value": ["<b>"]},
    {"round": 3, "what": "triggered", "value": ["site-2"]},
    {"round": 4, "what": "corrected", "value": ["site-2"]},
    {"round": 3, "what": "completeness_weights", "value": {"site-1": 0.1, "site-2": 0.6, "<b>": 0.3}},
    {"round": 4, "what": "completeness_weights", "value": {"site-1": 0.05, "site-2": 0.7, "<b>": 0.25}},
    {"round": 3, "what": "best_model", "value": {"dice": 0.6, "split": "test"}},
]


def evaluation(round_num, dice, volume_dice):
    values = {"dice": dice, "volume_dice": volume_dice, "precision": 0.75, "recall": 0.5}
    record = {"round": round_num, "split": "test", "macro": values, "positives": [1200]}
    return record | {"per_class": {name: [value] for name, value in values.items()}}


def make_run(folder=None, *, decisions=DECISIONS, repairs=REPAIRS, known=SITES, evaluations=None, **changes):
    """A finished run of four rounds, two of them warm-up, and three sites."""
    if evaluations is None:
        evaluations = [evaluation(r, r / 5, r / 10) for r in range(4)] + [evaluation(4, 0.5, 0.7)]
    info = {
        "run_name": "ms",
        "method": "fedia",
        "phantom": False,
        "task": "segmentation",
        "classes": ["lesion"],
        "num_rounds": 4,
        "warmup_rounds": 2,
        "sites": known,
    } | changes
    return Run(folder, info, {"test": evaluations}, list(repairs), list(decisions), {"final": {}})


def write_run(folder, run):
    (folder / "run.json").write_text(json.dumps(run.info))
    (folder / "results.json").write_text(json.dumps(run.results))
    for name, lines in (("metrics", run.evaluations), ("repairs", run.repairs), ("decisions", run.decisions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def rows_of(section):
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", section, flags=re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def alt_of(section):
    return re.findall(r'aria-label="(.*?)"', section.split("<svg")[1])[0]


# ---- what every segmentation shows ----------------------------------------------------------------------------------


def test_key_numbers_are_dice_precision_and_recall_with_last_and_best_of_both_dice():
    section = key_numbers(make_run())
    assert re.findall(r'<div class="card"><span>(.*?)</span><b>(.*?)</b>', section) == [
        ("Dice · Final model, round 4", "0.500"),
        ("volume Dice · Final model, round 4", "0.700"),
        ("precision · Final model, round 4", "0.750"),
        ("recall · Final model, round 4", "0.500"),
        ("Last, mean Dice of rounds 1 to 4", "0.425"),  # (0.2 + 0.4 + 0.6 + 0.5) / 4
        ("Last, mean volume Dice of rounds 1 to 4", "0.325"),
    ]
    assert "<td>Best, highest Dice, round 3</td>" in section
    assert "<td>Best, highest volume Dice, round 4</td>" in section
    assert "Dice: mean over 1,200 slices with a lesion, test split." in section
    assert "macro" not in section


def test_last_is_the_mean_of_ten_rounds():
    found = [evaluation(r, r / 100, 0.5) for r in range(13)]
    section = key_numbers(make_run(evaluations=found, num_rounds=12))
    assert "Last, mean Dice of rounds 3 to 12</span><b>0.075</b>" in section


def test_a_split_without_a_lesion_says_why_there_is_no_dice():
    nothing = evaluation(4, None, None) | {"positives": [0]}
    section = key_numbers(make_run(evaluations=[nothing]))
    assert (
        "Dice: mean over 0 slices with a lesion, test split. lesion is left out: no slice with it in the test split."
        in section
    )


def test_marked_slices_and_lesions_are_counted_per_site():
    rows = rows_of(sites(make_run()))
    slices = ["training slices", "of these with a marked lesion", "test slices"]
    assert rows == [
        ["Site", *slices, "marked lesions", "all lesions", "completeness"],
        ["&lt;b&gt;", "20", "20", "8", "20", "20", "100%"],
        ["site-1", "30", "12", "8", "10", "40", "25%"],
        ["site-2", "50", "48", "8", "30", "40", "75%"],
        ["All sites", "100", "80", "24", "60", "100", "60%"],
    ]


def test_lesions_of_a_site_that_does_not_know_them_are_not_available():
    partly = SITES | {"site-2": {k: v for k, v in SITES["site-2"].items() if k != "lesions"}}
    rows = rows_of(sites(make_run(known=partly)))
    assert rows[3] == ["site-2", "50", "48", "8", "n/a", "n/a", "n/a"]
    assert rows[4][-3:] == ["30", "60", "50%"]
    nobody = {site: {k: v for k, v in known.items() if k != "lesions"} for site, known in SITES.items()}
    assert rows_of(sites(make_run(known=nobody)))[0][-1] == "test slices"
    assert "completeness" not in sites(make_run(known=nobody))


def test_all_metrics_share_one_figure():
    section = curves(make_run())
    assert section.count("<svg") == 1
    assert alt_of(section) == (
        "Metrics over rounds 0 to 4: Dice (slices) from 0.00 to 0.50; Volume Dice from 0.00 to 0.70; Precision from 0.75 to"
        " 0.75; Recall from 0.50 to 0.50."
    )
    unknown = curves(make_run(evaluations=[evaluation(4, None, 0.5)]))
    assert "Dice (slices) not measured" in unknown
    assert ">n/a</text>" in unknown


def test_repairs_of_masks_are_no_pseudo_labels_and_one_class_needs_no_table_of_classes():
    run = make_run()
    assert pseudo_labels(run) == per_class(run) == ""
    assert pseudo_label_lines(run) == []


# ---- completeness ---------------------------------------------------------------------------------------------------


def test_estimates_are_shown_beside_the_truth_with_places():
    section = completeness(make_run())
    assert rows_of(section) == [
        ["Site", "marked lesions", "lesions found", "estimate", "place", "true completeness", "true place"],
        ["site-1", "20", "100", "0.200", "3", "0.250", "3"],
        ["&lt;b&gt;", "20", "25", "0.800", "2", "1.000", "1 ≠"],
        ["site-2", "60", "50", "1.200", "1", "0.750", "2 ≠"],
    ]
    assert "After round 2" in section
    assert "site-1 has left the largest share of its lesions unmarked. 1 of 3 sites are at their true place." in section


def test_sites_without_a_known_truth_have_no_place_beside_those_with_one():
    partly = SITES | {"site-2": {"train": 50}}
    assert rows_of(completeness(make_run(known=partly)))[3] == ["site-2", "60", "50", "1.200", "n/a", "n/a", "n/a"]
    rows = rows_of(completeness(make_run(known={site: {"train": 5} for site in SITES})))
    assert rows[0] == ["Site", "marked lesions", "lesions found", "estimate", "place"]
    assert [row[-1] for row in rows[1:]] == ["3", "2", "1"]


# ---- learning curves ------------------------------------------------------------------------------------------------


def test_learning_curves_have_the_line_and_the_rounds_of_trigger_and_correction():
    section = iou(make_run())
    assert alt_of(section) == (
        "IoU of the sites over rounds 1 to 4: &lt;b&gt; from 0.40 to 0.40 (triggered 2, corrected 3); site-1 from 0.10 to 0.10"
        " (not triggered); site-2 from 0.20 to 0.45 (triggered 3, corrected 4)."
    )
    for word in ("IoU", "expected line", "triggered", "corrected", "warm-up"):
        assert f">{word}</text>" in section
    assert section.count("stroke-dasharray: 4,2") == 3 + 1  # a line for each site and in the legend
    assert "No site has done so." not in section


def test_a_site_that_was_spared_or_never_triggered_has_no_marks():
    quiet = [d for d in DECISIONS if d["what"] not in ("triggered", "corrected", "iou_line")]
    section = iou(make_run(decisions=[*quiet, {"round": 3, "what": "spared", "value": ["site-2"]}]))
    assert "site-2 from 0.20 to 0.45 (spared 3)" in section
    assert ">triggered</text>" not in section
    assert ">expected line</text>" not in section
    assert "No site has done so." in section


def test_the_line_of_the_first_round_on_is_cut_at_0_and_1(monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "fedmend.reporting_fedia.grid_figure",
        lambda key, panels, **other: drawn.update({p.title: p.lines for p in panels}) or "",
    )
    iou(make_run())
    line = drawn["<b>"][1]
    assert list(line.rounds) == [1, 2, 3, 4]
    assert line.values == pytest.approx([0.3, 0.6, 0.9, 1.0])
    assert [(mark.rounds, mark.values, mark.style) for mark in drawn["site-2"][2:]] == [
        ([3], [0.3], "triggered"),
        ([4], [0.45], "corrected"),
    ]


# ---- aggregation and corrections ------------------------------------------------------------------------------------


def test_shares_of_the_sites_are_drawn_with_their_shares_by_samples():
    section = completeness_weights(make_run())
    assert alt_of(section) == (
        "Aggregation weights in per cent over rounds 3 to 4, at the end: &lt;b&gt; 25.0 (completeness 0.80); site-1 5.0"
        " (completeness 0.20); site-2 70.0 (completeness 1.20)."
    )
    assert ">by samples alone</text>" in section
    assert "in rounds 3 to 4" in section


def test_corrections_have_rounds_precision_and_recall():
    section = corrections(make_run())
    assert rows_of(section)[1:] == [
        ["&lt;b&gt;", "2", "3", "2", "0", "0", "0.000", "n/a"],
        ["site-2", "3", "4", "8", "6", "24", "0.750", "0.250"],
        ["site-1", "never", *"––––––"],
        ["Corrected sites", "", "", "10", "6", "24", "0.600", "0.250"],
    ]


def test_corrections_without_a_known_truth_waiting_and_spared_sites_are_told_apart():
    unknown = [{k: v for k, v in REPAIRS[0].items() if k != "missing"} | {"correct_positive": None}]
    decisions = [
        {"round": 3, "what": "triggered", "value": ["<b>", "site-2"]},
        {"round": 4, "what": "corrected", "value": ["site-2"]},
        {"round": 3, "what": "spared", "value": ["site-1"]},
    ]
    assert rows_of(corrections(make_run(decisions=decisions, repairs=unknown)))[1:] == [
        ["&lt;b&gt;", "3", "waits", "0", "n/a", "n/a", "n/a", "n/a"],
        ["site-2", "3", "4", "8", "n/a", "n/a", "n/a", "n/a"],
        ["site-1", "spared in 3", *"––––––"],
        ["Corrected sites", "", "", "8", "n/a", "n/a", "n/a", "n/a"],
    ]


def test_a_run_without_such_decisions_has_none_of_the_sections():
    run = make_run(decisions=[], repairs=[])
    assert completeness(run) == iou(run) == completeness_weights(run) == corrections(run) == ""
    assert completeness_lines(run) == []
    assert corrections(make_run(decisions=[], task="multilabel")) == ""


# ---- the page and the plain text ------------------------------------------------------------------------------------


def test_the_page_has_the_sections_and_words_of_a_segmentation_and_its_tables(tmp_path):
    page = write_report(write_run(tmp_path, make_run())).read_text(encoding="utf-8")
    own = ["completeness", "iou", "completeness-weights", "corrections"]
    assert re.findall('<section id="([^"]+)"', page) == [
        *("numbers", "sites", "curves"),
        *own,
        *("decisions", "files", "glossary"),
    ]
    assert re.findall("<dt>(.*?)</dt>", page) == [*SEGMENTATION_GLOSSARY, *COMPLETENESS_GLOSSARY]
    assert [row[0] for row in rows_of(page.split('id="decisions"')[1].split("</section>")[0])] == ["What", "best model"]
    assert "<b>" not in page.replace("</span><b>", "")
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "| fedia | 50.0 | 70.0 | 75.0 | 50.0 | 42.5 | 32.5 | 1 |" in (tmp_path / "macro.md").read_text(
        encoding="utf-8"
    )


def test_the_plain_text_has_the_same_numbers(tmp_path):
    text = summary_text(write_run(tmp_path, make_run()))
    assert text.startswith("ms: fedia, 3 sites, segmentation, finished, 4 rounds, 2 of them warm-up\n")
    assert "test split                    Dice  volume Dice  precision  recall\n" in text
    assert "  Final model, round 4       0.500        0.700      0.750   0.500\n" in text
    assert "Last, mean Dice of rounds 1 to 4: 0.425\nBest, highest Dice, round 3: 0.600\n" in text
    assert "Completeness, estimated (true): <b> 0.80 (1.00), site-1 0.20 (0.25), site-2 1.20 (0.75)\n" in text
    assert "Corrected: <b> in round 3, site-2 in round 4\nPixels added: 10, precision 0.600, recall 0.250\n" in text
