import itertools
import json

import numpy as np
import pytest
from factories import CLASSES, LABELS, make_site_folder, refused
from nifti_factories import lesion, make_volume_site

from fedmend.advice.label_audit import HELD_BACK, SiteLabels, audit_text, count_folders, hold_back, read_audit


def columns(*classes):
    """(3, C) counts from annotated, positive and missing of each class."""
    return np.array(classes).T


def told(*classes, min_count=5, one_label=False):
    """Annotated, positive and missing of each class after the small ones were held back; None is held back."""
    left = hold_back(columns(*classes), min_count=min_count, one_label=one_label)
    return [tuple(None if n == HELD_BACK else n for n in c) for c in left.T.tolist()]


@pytest.mark.parametrize(
    ("counts", "left"),
    [
        ((100, 40, 0), (100, 40, 0)),
        ((100, 5, 5), (100, 5, 5)),
        ((0, 0, 100), (0, 0, 100)),
        ((100, 0, 0), (100, 0, 0)),
        ((100, 4, 0), (100, None, 0)),
        ((100, 97, 0), (100, None, 0)),  # three negative ones
        ((100, 40, 3), (None, 40, None)),
        ((3, 2, 100), (None, None, None)),
        ((3, 0, 100), (None, None, None)),
    ],
)
def test_small_counts_and_what_tells_them_are_held_back(counts, left):
    assert told(counts) == [left]


@pytest.mark.parametrize("min_count", [0, 1])
def test_a_site_without_a_minimum_tells_everything(min_count):
    assert told((100, 1, 2), min_count=min_count) == [(100, 1, 2)]


def test_a_class_says_nothing_about_another_one_where_samples_have_several_labels():
    assert told((100, 4, 0), (100, 30, 0), (100, 20, 0)) == [(100, None, 0), (100, 30, 0), (100, 20, 0)]


@pytest.mark.parametrize(
    ("counts", "positive"),
    [
        ([(100, 4, 0), (100, 60, 0), (100, 36, 0), (100, 0, 0)], [None, 60, None, 0]),
        ([(100, 4, 0), (100, 36, 0), (100, 36, 0), (100, 24, 0)], [None, 36, 36, None]),
        ([(100, 4, 0), (100, 36, 0), (100, 36, 0), (100, 36, 0)], [None] * 4),  # equal ones go together
        ([(100, 50, 3), (100, 30, 3), (100, 20, 3), (100, 0, 3)], [None, None, None, 0]),
        ([(9, 3, 0), (9, 3, 0), (9, 3, 0), (9, 0, 0)], [None] * 4),
        ([(100, 50, 0), (100, 50, 0)], [50, 50]),
        ([(100, 97, 0), (100, 3, 0)], [None, None]),
    ],
)
def test_where_samples_have_one_label_a_sum_does_not_tell_what_was_held_back(counts, positive):
    assert [c[1] for c in told(*counts, one_label=True)] == positive


def test_nearly_all_positive_does_not_tell_how_few_are_missing():
    # 7 of 9 are positive: with the annotated ones held back, 0 negative ones and 2 missing would follow from 7.
    nearly, enough = (7, 7, 2), (58, 50, 2)
    assert hold_back(columns(nearly), min_count=3, one_label=False).T.tolist() == [[HELD_BACK] * 3]
    assert hold_back(columns(enough), min_count=5, one_label=False).T.tolist() == [[HELD_BACK, 50, HELD_BACK]]


def test_no_held_back_count_of_a_small_site_follows_from_what_is_told():
    least, told = 3, {}
    for samples in range(3, 13):
        for annotated in range(samples + 1):
            for positive in range(annotated + 1):
                real = (annotated, positive, samples - annotated)
                said = hold_back(columns(real), min_count=least, one_label=False)[:, 0].tolist()
                told.setdefault((samples, *said), set()).add(real)
    for said, possible in told.items():
        for i, number in enumerate(said[1:]):
            small = {real[i] for real in possible}
            assert number != HELD_BACK or len(small) > 1 or small.pop() >= least


def test_no_held_back_count_of_a_small_site_follows_where_samples_have_one_label():
    least, told = 3, {}
    for *positive, missing in itertools.product(range(13), repeat=4):
        if not least <= sum(positive) + missing <= 12:
            continue
        real = columns(*((sum(positive), n, missing) for n in positive))
        said = hold_back(real, min_count=least, one_label=True)
        told.setdefault((sum(positive) + missing, *said.ravel().tolist()), []).append(real.ravel())
    for (_, *said), possible in told.items():
        lowest, highest = np.min(possible, axis=0), np.max(possible, axis=0)
        assert not np.any((np.array(said) == HELD_BACK) & (lowest == highest) & (highest < least))


def test_the_order_of_classes_changes_nothing_that_is_held_back():
    for order in itertools.permutations([1, 4, 4, 6]):
        assert [c[1] for c in told(*((15, n, 0) for n in order), min_count=3, one_label=True)] == [
            n if n > 4 else None for n in order
        ]


# ---- site folders ---------------------------------------------------------------------------------------------------
def test_site_folders_on_this_machine_are_counted_as_their_sites_would(tmp_path):
    make_site_folder(tmp_path / "site-1")
    make_site_folder(tmp_path / "site-2", np.array([0, 1, 1, 2, 0, 0]))
    (tmp_path / "notes").mkdir()
    sites, classes = count_folders(tmp_path, min_count=2)
    assert (list(sites), classes) == (["site-1", "site-2"], CLASSES)
    assert (sites["site-1"].kind, sites["site-2"].kind) == ("multilabel", "singlelabel")
    assert sites["site-1"].counts.T.tolist() == [[-1, 2, -1], [0, 0, 6], [-1, 2, -1]]  # one blank each
    assert sites["site-2"].counts[1].tolist() == [3, -1, -1]  # one sample of the third, hidden by the second


def test_a_folder_that_cannot_be_counted_does_not_stop_the_others(tmp_path):
    make_site_folder(tmp_path / "site-1", LABELS[:3])
    make_site_folder(tmp_path / "site-2")
    make_site_folder(tmp_path / "site-3", classes=("a", "b", "c"))
    sites, classes = count_folders(tmp_path, min_count=5)
    assert classes == CLASSES
    assert sites["site-1"].problem == "site-1: train.csv: expected at least min_count training samples, got fewer"
    words = "site-3: site.json, field classes: expected site-1's ['edema', 'fracture', 'nodule'], got ['a', 'b', 'c'] ("
    assert sites["site-3"].problem.startswith(words)
    assert not sites["site-2"].problem


def test_the_card_of_volumes_tells_how_many_lesions_were_left(tmp_path):
    for name in ("site-1", "site-2"):
        make_volume_site(tmp_path / name, [lesion()] * 2)
    card = tmp_path / "site-1" / "site.json"
    made = {"site": {"kept_lesions": 3, "lesions": 12}}
    card.write_text(json.dumps({**json.loads(card.read_text()), "provenance": made}))
    sites, _ = count_folders(tmp_path, min_count=2)
    assert [site.lesions for site in sites.values()] == [(3, 12), None]


def test_a_folder_without_site_folders_or_without_any_readable_card_is_refused(tmp_path):
    with refused(f"data: expected a folder of site folders, found no site.json one level below {tmp_path}"):
        count_folders(tmp_path, min_count=5)
    (tmp_path / "site-1").mkdir()
    (tmp_path / "site-1" / "site.json").write_text("{")
    with refused("site-1: site.json: expected JSON, got a file that does not parse"):
        count_folders(tmp_path, min_count=5)


# ---- the file -------------------------------------------------------------------------------------------------------
def test_the_file_of_an_audit_gives_back_what_sites_said(tmp_path):
    said = {
        "site-2": SiteLabels(
            samples=60, counts=columns((60, HELD_BACK, 0), (0, 0, 60)), phantom=True, kind="multilabel"
        ),
        "site-1": SiteLabels(samples=0, counts=columns((HELD_BACK,) * 3, (HELD_BACK,) * 3), problem="site-1: bad"),
    }
    (tmp_path / "audit.json").write_text(audit_text(said, ("edema", "nodule")))
    sites, classes = read_audit(tmp_path / "audit.json")
    assert classes == ("edema", "nodule")
    assert list(sites) == ["site-2", "site-1"]
    for name, site in sites.items():
        assert site.counts.tolist() == said[name].counts.tolist()
        for field in ("samples", "phantom", "problem", "kind"):
            assert getattr(site, field) == getattr(said[name], field)


GOOD = {"problem": "", "kind": "multilabel", "phantom": False, "samples": 9}
GOOD |= {"annotated": [9], "positive": [None], "missing": [0]}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        {"classes": [], "sites": {}},
        {"classes": ["a", "a"], "sites": {}},
        {"classes": ["a"], "sites": []},
        *[
            {"classes": ["a"], "sites": {"site-1": {**GOOD, name: value}}}
            for name, value in (
                ("annotated", [9, 9]),
                ("annotated", 9),
                ("positive", [-1]),
                ("positive", [2**31]),
                ("missing", ["0"]),
                ("missing", [0.5]),
                ("samples", True),
                ("kind", "other"),
                ("phantom", 0),
                ("problem", None),
            )
        ],
    ],
    ids=str,
)
def test_another_file_in_the_place_of_an_audit_is_refused(tmp_path, content):
    file = tmp_path / "audit.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with refused("audit.json: expected what a label audit writes, got another file"):
        read_audit(file)


def test_the_file_that_the_refused_ones_depart_from_is_read(tmp_path):
    (tmp_path / "audit.json").write_text(json.dumps({"classes": ["a"], "sites": {"site-1": GOOD}}))
    assert read_audit(tmp_path / "audit.json")[0]["site-1"].counts.tolist() == [[9], [HELD_BACK], [0]]
    with refused("none.json: expected in the folder of a label audit, not found"):
        read_audit(tmp_path / "none.json")
