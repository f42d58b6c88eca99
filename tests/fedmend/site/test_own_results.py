"""A hospital's own numbers."""

import json
import os

import numpy as np
import pytest

from fedmend.kinds import kind_of
from fedmend.kinds.multilabel import BINS, multilabel_intervals
from fedmend.site.own_results import OwnResults, line

MULTI = kind_of("multilabel")


def counts(positives=8):
    found = np.zeros((2, 2, BINS), dtype=np.int64)
    found[0, 0, [100, 600]], found[0, 1, 600] = [6, 2], positives
    found[1, 0, 100] = 8
    return found


def results(**changes):
    facts = {"classes": ("bleed", "<b>"), "round_num": 4, "sizes": {"train": 30, "test": 16}}
    facts |= {"counts": {"test": counts()}, "phantom": False}
    facts |= {"repairs": {"positive": np.array([0, 5]), "negative": np.array([0, 7]), "untagged": np.array([0, 9])}}
    return OwnResults(site="site-1", run_name="run-1", **(facts | changes))


def written(tmp_path, **changes):
    results(**changes).write(MULTI, tmp_path)
    return json.loads((tmp_path / "site_results.json").read_text()), (tmp_path / "site_report.html").read_text()


def test_metrics_have_intervals_and_nothing_is_held_back_from_the_hospital_itself(tmp_path):
    numbers, page = written(tmp_path, counts={"test": counts(positives=2)})
    found = numbers["metrics"]["test"]
    assert found["macro"]["auc"] == pytest.approx((6 + 1) / 8)  # two of the eight negatives tie
    assert found["positives"] == [2, 0]
    assert found["intervals"]["auc"] == multilabel_intervals(counts(positives=2))["auc"]
    assert "0.875" in page


def test_numbers_and_page_are_for_their_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        written(tmp_path)
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600, 0o600]


def test_the_page_names_splits_classes_and_repairs_and_says_that_it_stays(tmp_path):
    numbers, page = written(tmp_path)
    assert numbers["repairs"] == {"positive": [0, 5], "negative": [0, 7], "untagged": [0, 9]}
    for words in ("Run run-1, model after 4 rounds; 30 in train, 16 in test", "&lt;b&gt;", "made positive", "stays at"):
        assert words in page
    assert "<b>" not in page.partition("<main>")[2].partition('<div class="card">')[0]


def test_a_page_about_a_phantom_says_so(tmp_path):
    assert "PHANTOM" in written(tmp_path, phantom=True)[1]
    assert "PHANTOM" not in written(tmp_path)[1]


def test_a_site_that_evaluates_nothing_says_so(tmp_path):
    numbers, page = written(tmp_path, counts={}, repairs={})
    assert numbers["metrics"] == {}
    assert "This site evaluates no split" in page
    assert "No labels are repaired here" in page


def test_the_log_has_the_metrics_of_the_test_split():
    assert line(MULTI, {"val": counts(), "test": counts()}) == "test AUC 0.875 mAP 0.800 BACC 0.875"
    assert line(MULTI, {"val": counts()}).startswith("val AUC")
    assert line(MULTI, {}) == ""
