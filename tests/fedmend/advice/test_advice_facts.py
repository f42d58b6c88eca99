import json

import numpy as np
import pytest
from advice_factories import CLASSES, FULL, GAP, LABELLED, OTHER_GAP, Q, federation, masks, single, site
from factories import refused

from fedmend.advice import Losses, read_losses


def test_a_class_without_annotation_is_a_gap_where_samples_have_several_labels():
    assert federation(GAP, OTHER_GAP, FULL).gaps == {"site-1": ["nodule"], "site-2": ["edema"]}


def test_a_class_without_a_sample_is_a_gap_only_beside_unlabelled_samples_where_samples_have_one_label():
    with_blanks, without = single((300, 300, 100), (300, 0, 100)), single((400, 400, 0), (400, 0, 0))
    assert federation(with_blanks, without).gaps == {"site-1": ["nodule"]}


def test_a_number_that_is_held_back_is_no_gap_no_blank_and_no_completeness():
    facts = federation(site((Q, Q, Q), (400, Q, 0)), FULL)
    assert facts.gaps == {}
    assert facts.unlabelled == {}
    assert not facts.complete
    assert facts.untold == {"site-1": ["edema", "nodule"]}


def test_blanks_are_seen_where_a_class_is_annotated_in_part():
    assert federation(site((300, 80, 100), (400, 80, 0)), GAP).unlabelled == {"site-1": ["edema"]}


def test_a_class_is_nowhere_only_if_every_site_says_so():
    empty, silent = site((400, 80, 0), (400, 0, 0)), site((400, 80, 0), (400, Q, 0))
    assert federation(empty, GAP).nowhere == ["nodule"]
    assert federation(empty, silent).nowhere == []
    assert federation(empty, silent).doubtful == ["nodule"]
    assert federation(FULL, silent).doubtful == []


def test_a_site_is_alone_with_a_class_only_if_all_others_say_that_they_lack_it():
    assert federation(GAP, OTHER_GAP, OTHER_GAP).alone == {"site-1": ["edema"]}
    assert federation(GAP, site((Q, Q, Q), (0, 0, 400))).alone == {}


def test_the_median_share_is_that_of_annotated_samples_at_sites_that_tell_both():
    facts = federation(site((100, 10, 300), (200, 60, 200)), site((300, 30, 100), (200, Q, 200)))
    assert facts.median_share == pytest.approx((40 / 400 + 60 / 200) / 2)
    assert federation(site((0, 0, 400), (0, 0, 400))).median_share is None


def test_the_imbalance_is_that_of_all_sites_together():
    sites = single((400, 300, 0), (400, 100, 0)), single((200, 100, 0), (200, 100, 0))
    assert federation(*sites).imbalance == 2.0
    assert federation(*sites, single((400, Q, 0), (400, Q, 0))).imbalance is None
    assert federation(single((400, 400, 0), (400, 0, 0))).imbalance is None


def test_a_column_of_one_value_and_a_site_of_one_class_are_seen():
    assert federation(site((400, 400, 0), (400, 0, 0)), FULL).one_value == {"site-1": ["edema", "nodule"]}
    assert federation(single((400, 400, 0), (400, 0, 0)), LABELLED).one_class == ["site-1"]
    assert federation(single((400, 396, 0), (400, Q, 0)), LABELLED).one_class == []


def test_a_card_tells_the_share_of_lesions_that_are_left():
    others = masks(), masks(lesions=(0, 0)), masks(lesions=(9, 8))
    assert federation(masks(lesions=(2, 8)), *others).left == {"site-1": 0.25}


def test_sites_that_were_not_counted_are_no_part_of_the_numbers():
    facts = federation(FULL, site((Q, Q, Q), (Q, Q, Q), problem="site-2: bad", phantom=True))
    assert facts.numbers("annotated").tolist() == [[400, 400]]
    assert (facts.kind, facts.phantom, facts.untold) == ("multilabel", False, {})


@pytest.mark.parametrize("sites", [(), (FULL, LABELLED), (FULL, site((9, 3, 0), (9, 3, 0), kind=""))])
def test_without_one_kind_at_all_sites_there_is_none(sites):
    assert federation(*sites).kind == ""


# ---- losses ---------------------------------------------------------------------------------------------------------
FOUR = federation(LABELLED, LABELLED, LABELLED, LABELLED)
SAID = {"class_loss": {name: [0.5, 0.5] for name in FOUR.sites}, "noisy": ["site-2"], "vote_share": 0.9}


def write_run(folder, *decisions, classes=CLASSES):
    info = {"run_name": "r", "method": "fednoro", "phantom": False, "classes": classes, "num_rounds": 3, "sites": {}}
    (folder / "run.json").write_text(json.dumps(info))
    lines = [json.dumps({"round": 2, "what": what, "value": value}) + "\n" for what, value in decisions]
    (folder / "decisions.jsonl").write_text("".join(lines))
    return folder


def test_the_losses_of_a_run_say_which_sites_are_noisy(tmp_path):
    run = write_run(tmp_path, ("noisy_client_detection", SAID))
    assert read_losses(run, FOUR) == Losses(("site-1", "site-2", "site-3", "site-4"), ("site-2",), 0.9)


@pytest.mark.parametrize(
    ("decisions", "classes", "facts", "sentence"),
    [
        (
            [("best_model", {})],
            CLASSES,
            FOUR,
            "losses: expected a run that compares the losses of its sites, such as one of jobs/fednoro_ich, found no"
            " noisy_client_detection among its decisions",
        ),
        (
            [("noisy_client_detection", {**SAID, "noisy": "all"})],
            CLASSES,
            FOUR,
            "losses, noisy_client_detection: expected class_loss, noisy and vote_share, got another record",
        ),
        (
            [("noisy_client_detection", SAID)],
            ("edema", "mass"),
            FOUR,
            "losses: expected the classes of the audit, ['edema', 'nodule'], got others",
        ),
        (
            [("noisy_client_detection", SAID)],
            CLASSES,
            federation(*[LABELLED] * 5),
            "losses: expected losses of every site that was counted, got none of site-5",
        ),
        (
            [("noisy_client_detection", SAID)],
            CLASSES,
            federation(FULL, GAP),
            "losses: expected an audit of singlelabel data, got multilabel",
        ),
    ],
)
def test_losses_that_do_not_fit_the_audit_are_refused(tmp_path, decisions, classes, facts, sentence):
    with refused(sentence):
        read_losses(write_run(tmp_path, *decisions, classes=classes), facts)


def test_numbers_have_one_row_per_site_even_without_any():
    assert np.array_equal(federation().numbers("missing"), np.zeros((0, 2)))
