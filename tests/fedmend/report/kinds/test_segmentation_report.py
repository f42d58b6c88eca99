import re

from run_factories import (
    LESION_SITES,
    lesion_evaluation,
    make_lesion_run,
    rows_in,
)

from fedmend.report.sections.repairs import pseudo_label_lines, pseudo_labels
from fedmend.report.sections.results import curves, key_numbers, per_class, sites


def alt_of(section):
    return re.findall(r'aria-label="(.*?)"', section.split("<svg")[1])[0]


def test_key_numbers_are_dice_precision_and_recall_with_the_best_of_both_dice():
    section = key_numbers(make_lesion_run())
    assert re.findall(r'<div class="card"><span>(.*?)</span><b>(.*?)</b>', section) == [
        ("Dice · Final model, round 4", "0.500"),
        ("volume Dice · Final model, round 4", "0.700"),
        ("precision · Final model, round 4", "0.750"),
        ("recall · Final model, round 4", "0.500"),
        ("Best, highest Dice, round 3", "0.600"),
        ("Best, highest volume Dice, round 4", "0.700"),
    ]
    assert "Dice: mean over 1,200 slices with a lesion, test split." in section
    assert "macro" not in section


def test_last_is_the_mean_of_ten_rounds_after_the_warmup():
    found = [lesion_evaluation(r, r / 100, 0.5) for r in range(13)]
    section = key_numbers(make_lesion_run(evaluations=found, num_rounds=12))
    assert "Last, mean Dice of rounds 3 to 12</span><b>0.075</b>" in section
    assert "<td>Best, highest Dice, round 12</td>" in section
    assert "Last" not in key_numbers(make_lesion_run(evaluations=found, num_rounds=12, warmup_rounds=3))


def test_a_split_without_a_lesion_says_why_there_is_no_dice():
    nothing = lesion_evaluation(4, None, None) | {"positives": [0]}
    section = key_numbers(make_lesion_run(evaluations=[nothing]))
    assert (
        "Dice: mean over 0 slices with a lesion, test split. lesion is left out: no slice with it in the test split."
        in section
    )


def test_marked_slices_and_lesions_are_counted_per_site():
    rows = rows_in(sites(make_lesion_run()))
    slices = ["training slices", "of these with a marked lesion", "test slices"]
    assert rows == [
        ["Site", *slices, "marked lesions", "all lesions", "completeness"],
        ["&lt;b&gt;", "20", "20", "8", "20", "20", "100%"],
        ["site-1", "30", "12", "8", "10", "40", "25%"],
        ["site-2", "50", "48", "8", "30", "40", "75%"],
        ["All sites", "100", "80", "24", "60", "100", "60%"],
    ]


def test_lesions_of_a_site_that_does_not_know_them_are_not_available():
    partly = LESION_SITES | {"site-2": {k: v for k, v in LESION_SITES["site-2"].items() if k != "lesions"}}
    rows = rows_in(sites(make_lesion_run(known=partly)))
    assert rows[3] == ["site-2", "50", "48", "8", "n/a", "n/a", "n/a"]
    assert rows[4][-3:] == ["30", "60", "50%"]
    nobody = {site: {k: v for k, v in known.items() if k != "lesions"} for site, known in LESION_SITES.items()}
    assert rows_in(sites(make_lesion_run(known=nobody)))[0][-1] == "test slices"
    assert "completeness" not in sites(make_lesion_run(known=nobody))


def test_all_metrics_share_one_figure():
    section = curves(make_lesion_run())
    assert section.count("<svg") == 1
    assert alt_of(section) == (
        "Metrics over rounds 0 to 4: Dice (slices) from 0.00 to 0.50; Volume Dice from 0.00 to 0.70; Precision from"
        " 0.75 to 0.75; Recall from 0.50 to 0.50."
    )
    unknown = curves(make_lesion_run(evaluations=[lesion_evaluation(4, None, 0.5)]))
    assert "Dice (slices) not measured" in unknown
    assert ">n/a</text>" in unknown


def test_repairs_of_masks_are_no_pseudo_labels_and_one_class_needs_no_table_of_classes():
    run = make_lesion_run()
    assert pseudo_labels(run) == per_class(run) == ""
    assert pseudo_label_lines(run) == []


def test_of_several_structures_each_has_its_numbers():
    known = {
        "site-1": {"annotated": ["liver"], "train": 30, "test": 8, "positives": {"liver": 20}},
        "site-2": {"annotated": ["liver", "spleen"], "train": 50, "test": 8, "positives": {"liver": 40, "spleen": 30}},
    }
    values = {"dice": [0.8, 0.4], "volume_dice": [0.9, 0.5], "precision": [0.7, None], "recall": [0.6, 0.2]}
    found = {"round": 4, "split": "test", "macro": {"dice": 0.6}, "positives": [70, 12], "per_class": values}
    run = make_lesion_run(decisions=[], known=known, evaluations=[found], classes=["liver", "spleen"])
    assert rows_in(sites(run)) == [
        ["Site", "liver", "spleen", "train", "val", "test"],
        ["site-1", "✓ 20", "–", "30", "n/a", "8"],
        ["site-2", "✓ 40", "✓ 30", "50", "n/a", "8"],
        ["Sites that mark it", "2 of 2", "1 of 2", "80", "0", "16"],
    ]
    words = "Means over 2 of 2 classes, test split. Precision is without 1 that the model never marks."
    assert words in key_numbers(run)
    rows = rows_in(per_class(run))
    assert rows[0][:3] == ["Class", "slices with it", "Dice final"]
    assert [row[:3] for row in rows[1:3]] == [["liver", "70", "0.800"], ["spleen", "12", "0.400"]]
    assert "spleen from 0.40 to 0.40" in curves(run)


def test_a_structure_that_is_never_marked_is_not_said_to_be_absent_and_recall_has_no_level_of_guessing():
    values = {"precision": [0.7, None, None], "recall": [0.6, 0.0, None]}
    macro = {"precision": 0.7, "recall": 0.3}
    found = {"round": 4, "split": "test", "macro": macro, "positives": [70, 12, 0], "per_class": values}
    page = curves(make_lesion_run(decisions=[], evaluations=[found], classes=["liver", "spleen", "kidneys"]))
    precision, recall = page.split("<svg")[1:]
    assert re.findall(r">(never marked|no slice with it)<", precision) == ["never marked", "no slice with it"]
    assert re.findall(r">(never marked|no slice with it)<", recall) == ["no slice with it"]
    assert "guessing" not in page
