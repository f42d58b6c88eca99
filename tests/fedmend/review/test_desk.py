import shutil

import numpy as np
import pytest
from factories import CLASSES, LABELS, refused
from review_factories import RULE, make_desk, make_mask_run, make_organ_run, make_run

from fedmend.repairs.label_ledger import Repairs
from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, UNSURE
from fedmend.review.desk import CONFIDENCE, DOUBT, JUDGED, OWN, RANDOM, REPAIRS, ROUND, Choice, Desk, reviewable
from fedmend.review.shown import Shown
from fedmend.review.sign_off import class_verdicts

# Class 1 is missing at the site; class 0 is (1, 0, blank, 0, 1, 0) and class 2 (0, 1, 0, 0, 1, blank).
TAGS = ((0, 1, 1, 0, 0.9), (1, 1, 0, 0, 0.5), (2, 1, 0, 1, 0.7), (2, 0, 1, 1, 0.6))
OPINIONS = np.full((6, 3), 0.5) + 0.4 * np.array(
    [[1, 1, -1], [-1, -1, 1], [-0.5, 0.5, -1], [-1, 0, -1], [-0.75, 0, 1], [-1, 0, 0]]
)


def places(items):
    return [(item.sample, item.label_class) for item in items]


def test_repairs_and_labels_that_the_model_doubts_wait_each_with_its_words(tmp_path):
    items = {(i.sample, i.label_class): i for i in make_desk(tmp_path, *TAGS, opinions=OPINIONS).items()}
    assert sorted(items) == [(0, 1), (1, 1), (2, 0), (2, 1), (4, 0)]
    tagged, own = items[2, 1], items[4, 0]
    assert (tagged.old, tagged.new, tagged.rule, tagged.round_num, tagged.confidence) == (-1, 0, RULE, 1, 0.7)
    assert tagged.doubt == pytest.approx(0.7)  # the model gives the class 0.7
    assert (own.old, own.new, own.rule, own.round_num) == (1, 1, "", -1)
    assert own.doubt == pytest.approx(0.8)


def test_the_value_of_a_look_is_doubt_times_the_balanced_weight_of_the_label(tmp_path):
    items = {(i.sample, i.label_class): i for i in make_desk(tmp_path, *TAGS, opinions=OPINIONS).items()}
    # Class 1 has the tags 1, 0, 0: weights 3/2 and 3/4. Class 0 has three 1 with the tag and three 0.
    assert items[0, 1].value == pytest.approx(0.1 * 3 / 2)
    assert items[2, 1].value == pytest.approx(0.7 * 3 / 4)
    assert items[2, 0].value == pytest.approx(0.7 * 6 / 6)
    assert items[4, 0].value == pytest.approx(0.8 * 5 / 4)  # of the originals: two 1 of five


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({}, [(4, 0), (2, 0), (2, 1), (0, 1), (1, 1)]),
        ({"order": CONFIDENCE}, [(4, 0), (1, 1), (2, 0), (2, 1), (0, 1)]),
        ({"order": DOUBT}, [(4, 0), (2, 0), (2, 1), (0, 1), (1, 1)]),
        ({"order": ROUND, "what": REPAIRS}, [(2, 0), (2, 1), (0, 1), (1, 1)]),
        ({"what": OWN}, [(4, 0)]),
        ({"label_class": 1, "round_num": 0}, [(0, 1), (1, 1)]),
        ({"state": JUDGED}, []),
    ],
)
def test_the_queue_is_chosen_and_ordered(tmp_path, choice, wanted):
    assert places(make_desk(tmp_path, *TAGS, opinions=OPINIONS).queue(Choice(**choice))) == wanted


def test_the_random_order_is_the_same_at_every_look(tmp_path):
    desk = make_desk(tmp_path, *TAGS, opinions=OPINIONS)
    order = places(desk.queue(Choice(order=RANDOM)))
    assert order == places(Desk(desk.folder).queue(Choice(order=RANDOM)))
    assert order != sorted(order)


def test_without_opinions_repairs_alone_wait(tmp_path):
    desk = make_desk(tmp_path, *TAGS)
    assert sorted(places(desk.items())) == [(0, 1), (1, 1), (2, 0), (2, 1)]
    assert {item.doubt for item in desk.items()} == {0.5}


def test_a_verdict_takes_an_item_out_of_the_queue_and_counts_at_once(tmp_path):
    desk = make_desk(tmp_path, *TAGS, opinions=OPINIONS)
    desk.judge(desk.item(0, 1), REJECT, reviewer="AB", note="motion")
    desk.judge(desk.item(4, 0), RELABEL, reviewer="AB", value=0)
    assert places(desk.queue(Choice())) == [(2, 0), (2, 1), (1, 1)]
    assert sorted(places(desk.queue(Choice(state=JUDGED)))) == [(0, 1), (4, 0)]
    target = Desk(desk.folder).ledger.apply(LABELS)
    assert (target[0, 1], target[4, 0]) == (-1, 0)
    assert desk.item(0, 1).verdict.note == "motion"


def test_a_new_repair_of_a_label_whose_earlier_one_was_rejected_waits_again(tmp_path):
    desk = make_desk(tmp_path, *TAGS)
    desk.judge(desk.item(0, 1), REJECT, reviewer="AB")
    make_again = (0, 1, 0, 3, 0.8)
    shutil.rmtree(tmp_path / "data")
    desk = Desk(make_run(tmp_path, make_again))
    assert (0, 1) in places(desk.queue(Choice()))


def take_back(desk, sample, label_class, *, reviewer="AB"):
    item = desk.item(sample, label_class)
    desk.take_back(item, reviewer=reviewer, seen=item.verdict.name)


@pytest.mark.parametrize(("first", "second"), [(None, 0), (1, 0), (0, 1)])
def test_a_new_repair_of_a_label_that_somebody_left_open_waits(tmp_path, first, second):
    desk = make_desk(tmp_path, *[(4, 0, first, 0, 0.9)] * (first is not None), opinions=OPINIONS)
    desk.judge(desk.item(4, 0), UNSURE, reviewer="AB")
    assert desk.item(4, 0).judged
    for new, judged in ((first, True), (second, False)):
        if new is not None:
            desk.ledger.record(RULE, 1, desk.data.train.labels, Repairs(*np.array([[4], [0], [new], [1]])))
        assert desk.item(4, 0).judged == judged


def test_taking_back_returns_to_the_verdict_before(tmp_path):
    desk = make_desk(tmp_path, *TAGS)
    first = desk.judge(desk.item(0, 1), ACCEPT, reviewer="AB")
    desk.judge(desk.item(0, 1), REJECT, reviewer="AB", seen=first.name)
    take_back(desk, 0, 1, reviewer="CD")
    assert (desk.item(0, 1).verdict.word, desk.item(0, 1).verdict.reviewer) == (ACCEPT, "AB")
    assert desk.ledger.repairs()[0, 1] == 1
    desk.judge(desk.item(1, 1), UNSURE, reviewer="AB")
    assert desk.item(1, 1).judged
    take_back(desk, 1, 1)
    assert not desk.item(1, 1).judged


def test_what_was_taken_back_does_not_count_again_when_it_is_taken_back_a_second_time(tmp_path):
    desk = make_desk(tmp_path, *TAGS)
    desk.judge(desk.item(0, 1), ACCEPT, reviewer="AB")
    take_back(desk, 0, 1)
    with refused("verdict: expected one to take back, found none"):
        desk.take_back(desk.item(0, 1), reviewer="CD", seen="")
    assert not desk.item(0, 1).judged


def test_a_rejection_that_was_taken_back_forbids_nothing_and_the_one_before_it_still_does(tmp_path):
    desk = make_desk(tmp_path, *TAGS)
    desk.judge(desk.item(0, 1), REJECT, reviewer="AB")
    desk.ledger.record(RULE, 3, LABELS, Repairs(*np.array([0, 1, 0, 0.8])[:, None]))
    desk.judge(desk.item(0, 1), REJECT, reviewer="AB", seen=desk.item(0, 1).verdict.name)
    assert desk.ledger.banned()[0, 1].tolist() == [True, True]
    take_back(desk, 0, 1)
    assert desk.ledger.banned()[0, 1].tolist() == [False, True]
    assert desk.ledger.repairs()[0, 1] == 0
    take_back(desk, 0, 1)
    assert not desk.ledger.banned().any()


def test_with_one_label_per_sample_another_class_after_a_rejected_one_waits(tmp_path):
    desk = make_desk(tmp_path, (0, 0, 0, 0, 0.9), (0, 2, 1, 0, 0.9), labels=np.array([0, 1, 2, 0]))
    desk.judge(desk.item(0, 2), REJECT, reviewer="AB")
    assert desk.item(0, 2).judged
    rows = np.array([[0, 0, 0, 0.9], [0, 1, 1, 0.9]]).T
    desk.ledger.record(RULE, 1, desk.data.train.labels, Repairs(*rows))
    assert (desk.item(0, 1).label_class, desk.item(0, 1).judged) == (1, False)


def test_of_masks_pixels_that_came_after_a_verdict_wait_and_a_verdict_is_about_them_alone(tmp_path):
    desk = Desk(make_mask_run(tmp_path, 1))
    sure = np.full(len(desk.data.train), 0.9)
    for place, word in enumerate((REJECT, ACCEPT, UNSURE)):
        item = desk.item(1, 0)
        desk.judge(item, word, reviewer="AB", seen=item.verdict.name if item.verdict else "")
        assert desk.item(1, 0).judged
        change = np.zeros(desk.data.train.masks.shape, dtype=np.int8)
        change[1, 5, [5, 6 + place % 2]] = 1
        desk.ledger.record("fedia.correction", 3 + place, change, sure)
        assert desk.item(1, 0).judged == (place == 2)
    assert desk.ledger.change()[1, 5, 5:].tolist() == [0, 1, 1]
    assert desk.ledger.accepted()[1, 5, 5:].tolist() == [0, 1, 0]


def test_with_one_label_per_sample_an_item_is_a_sample_and_its_new_class(tmp_path):
    labels, opinions = np.array([0, 1, 2, 0]), np.eye(3)[[2, 1, 0, 0]] * 0.8 + 0.05
    desk = make_desk(tmp_path, (0, 0, 0, 0, 0.9), (0, 2, 1, 0, 0.9), labels=labels, opinions=opinions)
    assert [(i.sample, i.label_class, i.old, i.rule) for i in desk.items()] == [(0, 2, 0, RULE), (2, 2, 1, "")]
    desk.judge(desk.item(0, 2), REJECT, reviewer="AB")
    desk.judge(desk.item(2, 2), RELABEL, reviewer="AB", value=0)
    assert desk.ledger.apply(desk.data.train.labels).argmax(1).tolist() == [0, 1, 0, 0]


def test_an_image_without_a_class_was_blank_before_its_repair(tmp_path):
    desk = make_desk(tmp_path, (1, 2, 1, 0, 0.9), (3, 1, 1, 0, 0.9), labels=np.array([1, -1, 2, 0]))
    lines = [Shown(desk).line(item) for item in desk.items()]
    assert [(line.before, line.after) for line in lines] == [("blank", CLASSES[2]), (CLASSES[0], CLASSES[1])]


def test_another_label_is_one_of_the_job(tmp_path):
    desk = make_desk(tmp_path, *TAGS)
    with refused("verdict, label: expected one of the job's, got another"):
        desk.judge(desk.item(0, 1), RELABEL, reviewer="AB", value=2)
    masks = Desk(make_mask_run(tmp_path / "masks", 1))
    with refused("verdict, label: expected one of the job's, got another"):
        masks.judge(masks.item(1, 0), RELABEL, reviewer="AB", value=9)
    with refused("review: expected a label that was repaired or is doubted, got another; look at the queue"):
        desk.item(5, 2)
    with refused("verdict: expected one to take back, found none"):
        desk.take_back(desk.item(0, 1), reviewer="AB", seen="")


def test_the_label_that_an_item_has_is_accepted_when_it_is_given(tmp_path):
    desk = make_desk(tmp_path, *TAGS, opinions=OPINIONS)
    assert desk.judge(desk.item(0, 1), RELABEL, reviewer="AB", value=1).word == ACCEPT
    assert desk.judge(desk.item(4, 0), RELABEL, reviewer="AB", value=1).word == ACCEPT  # an own label
    assert desk.judge(desk.item(1, 1), RELABEL, reviewer="AB", value=1).word == RELABEL
    desk = make_desk(tmp_path / "single", (0, 0, 0, 0, 0.9), (0, 2, 1, 0, 0.9), labels=np.array([0, 1, 2, 0]))
    assert desk.judge(desk.item(0, 2), RELABEL, reviewer="AB", value=2).word == ACCEPT


@pytest.mark.parametrize(
    ("new", "word", "later", "shown"),
    [
        (None, ACCEPT, 0, (1, "")),  # the own label is right, and a rule repairs it all the same
        (None, RELABEL, 0, (1, "")),
        (0, ACCEPT, 1, (0, RULE)),
        (0, REJECT, None, (0, RULE)),  # the model doubts the own label, which nobody has rejected
        (0, RELABEL, None, (0, RULE)),
    ],
)
def test_a_verdict_is_shown_with_what_it_is_about_whatever_comes_later(tmp_path, new, word, later, shown):
    desk = make_desk(tmp_path, *[(4, 0, new, 0, 0.9)] * (new is not None), opinions=OPINIONS)  # whose own label is 1
    desk.judge(desk.item(4, 0), word, reviewer="AB", value=(new == 0) * 1 if word == RELABEL else None)
    before = class_verdicts(desk)
    if later is None:
        desk.ledger.undo()
    else:
        desk.ledger.record(RULE, 1, desk.data.train.labels, Repairs(*np.array([[4], [0], [later], [1]])))
    item = desk.item(4, 0)
    assert (item.new, item.rule, item.judged, item.verdict.word) == (*shown, True, word)
    assert class_verdicts(desk) == before


def test_of_masks_slices_with_repairs_wait(tmp_path):
    desk = Desk(make_mask_run(tmp_path, 1))
    (item,) = desk.items()
    assert (item.sample, item.new - item.old, item.rule, item.round_num) == (1, 1, "fedia.correction", 2)
    desk.judge(item, REJECT, reviewer="AB")
    assert not desk.ledger.change().any()
    assert desk.ledger.to_judge(1).sum() == 1
    take_back(desk, 1, 0)
    assert desk.ledger.change().sum() == 1


def test_of_masks_of_several_structures_each_waits_in_its_slices(tmp_path):
    desk = Desk(make_organ_run(tmp_path))
    liver, kidneys = desk.queue(Choice())
    assert [(i.sample, i.label_class, i.old, i.new, i.doubt) for i in (liver, kidneys)] == [
        (1, 0, 0, 1, 0.5),
        (1, 2, 0, 2, 0.25),
    ]
    desk.judge(liver, REJECT, reviewer="AB")
    assert (np.unique(desk.ledger.change()).tolist(), desk.item(1, 2).judged) == ([0, 3], False)
    take_back(desk, 1, 0)
    assert np.unique(desk.ledger.change()).tolist() == [0, 1, 3]


def test_runs_are_found_below_a_folder_the_newest_first(tmp_path):
    run = make_run(tmp_path, *TAGS)
    assert reviewable(tmp_path) == [run]
    assert reviewable(run) == [run]
    with refused("review: expected a folder with the ledger of a run (the state_dir of a site), found none"):
        reviewable(tmp_path / "data")


def test_a_run_that_cannot_be_opened_is_one_sentence(tmp_path):
    with refused("run run-9, site-1: expected a ledger, found none"):
        Desk(tmp_path / "run-9" / "site-1")
    run = make_run(tmp_path, *TAGS)
    (run / "opened.pt").unlink()
    with refused("run run-1, site-1: expected a run of this version of FedMend, got an earlier one; run it again"):
        Desk(run)
