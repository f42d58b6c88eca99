import shutil

import nibabel
import numpy as np
from review_factories import make_desk, make_mask_run, make_organ_run

from fedmend.repairs.verdicts import ACCEPT, REJECT, RELABEL, UNSURE, WITHDRAW
from fedmend.review.desk import Desk
from fedmend.review.sign_off import class_verdicts, export, reviewers

TAGS = ((0, 1, 1, 0, 0.9), (1, 1, 0, 0, 0.5), (2, 1, 0, 1, 0.7), (3, 1, 1, 1, 0.7), (5, 2, 1, 1, 0.7))
OPINIONS = np.tile([0.5, 0.5, 0.5], (6, 1))
OPINIONS[:, 0] = [0.1, 0.1, 0.1, 0.1, 0.9, 0.1]  # the model doubts that sample 0 has class 0


def reviewed(folder):
    desk = make_desk(folder, *TAGS, opinions=OPINIONS)
    for place, word, who, more in (
        ((0, 1), ACCEPT, "AB", {}),
        ((1, 1), REJECT, "AB", {}),
        ((2, 1), UNSURE, "CD", {}),
        ((0, 0), RELABEL, "CD", {"value": 0}),
    ):
        desk.judge(desk.item(*place), word, reviewer=who, **more)
    return desk


def rows(file):
    return [line.split(",") for line in file.read_text().splitlines()]


def test_the_corrected_copy_holds_what_people_accepted_and_gave_and_nothing_else(tmp_path):
    desk = reviewed(tmp_path)
    original = (tmp_path / "data" / "train.csv").read_bytes()
    said = export(desk, tmp_path / "out")
    assert said[0].endswith("train.csv written, 2 labels differ from the original")
    header, *body = rows(tmp_path / "out" / "train.csv")
    fracture, edema = header.index("fracture"), header.index("edema")
    assert [row[fracture] for row in body] == ["1", "", "", "", "", ""]
    assert [row[edema] for row in body] == ["0", "0", "", "0", "1", "0"]
    assert (tmp_path / "data" / "train.csv").read_bytes() == original


def test_with_unseen_ones_all_repairs_are_in_it_that_nobody_rejected(tmp_path):
    export(reviewed(tmp_path), tmp_path / "out", unseen=True)
    header, *body = rows(tmp_path / "out" / "train.csv")
    assert [row[header.index("fracture")] for row in body] == ["1", "", "0", "1", "", ""]


def test_verdicts_are_counted_per_class_and_reviewer(tmp_path):
    desk = reviewed(tmp_path)
    found = {c.name: c.numbers for c in class_verdicts(desk)}  # repairs, accepted, rejected, relabelled, unsure, unseen
    assert found == {
        "edema": (0, 0, 0, 0, 0, 0),
        "edema, own labels": (1, 0, 0, 1, 0, 0),
        "fracture": (4, 1, 1, 0, 1, 1),
        "nodule": (1, 0, 0, 0, 0, 1),
    }
    assert [(r.initials, r.verdicts) for r in reviewers(desk)] == [("AB", 2), ("CD", 2)]
    desk.judge(desk.item(0, 1), WITHDRAW, reviewer="AB", seen=desk.item(0, 1).verdict.name)
    assert [(r.initials, r.verdicts) for r in reviewers(desk)] == [("AB", 1), ("CD", 2)]


def test_the_page_to_sign_names_no_sample(tmp_path):
    desk = reviewed(tmp_path)
    export(desk, tmp_path / "out")
    page = (tmp_path / "out" / "sign_off.html").read_text()
    assert desk.data.train.table.fingerprint()[:12] in page
    assert "img0" not in page
    assert "CD" in page


def test_of_masks_the_accepted_pixels_are_in_the_corrected_volume(tmp_path):
    desk = Desk(make_mask_run(tmp_path, 1, 2))
    desk.judge(desk.item(1, 0), ACCEPT, reviewer="AB")
    added = []
    for name, unseen in (("judged", False), ("all", True)):
        export(desk, tmp_path / name, unseen=unseen)
        (file,) = (tmp_path / name / "masks").iterdir()
        added.append(int((nibabel.load(file).get_fdata() > 0).sum() - desk.data.train.masks.sum()))
    assert added == [1, 2]


def test_of_several_structures_the_accepted_ones_are_in_the_corrected_volume_with_their_values(tmp_path):
    desk = Desk(make_organ_run(tmp_path))
    desk.judge(desk.item(1, 2), ACCEPT, reviewer="AB")
    for name, unseen, found in (("judged", False, [0, 7, 9]), ("all", True, [0, 5, 7, 9])):
        export(desk, tmp_path / name, unseen=unseen)
        (file,) = (tmp_path / name / "masks").iterdir()
        assert np.unique(np.asarray(nibabel.load(file).dataobj)).tolist() == found
    assert [c.numbers[:2] for c in class_verdicts(desk)] == [(1, 0), (0, 0), (1, 1)]


def test_what_was_judged_in_another_run_or_undone_is_counted_and_can_be_taken_back(tmp_path):
    desk = reviewed(tmp_path)
    earlier = {c.name: c.numbers for c in class_verdicts(desk)}
    desk.ledger.undo()
    later = tmp_path / "state" / "run-2" / "site-1"
    shutil.copytree(desk.folder, later, ignore=shutil.ignore_patterns("ledger*"))
    desk.kind.open_ledger(later / "ledger.sqlite", desk.card, desk.data)
    for folder in (desk.folder, later):
        desk = Desk(folder)
        assert export(desk, tmp_path / folder.parent.name)[0].endswith("2 labels differ from the original")
        found = {c.name: c.numbers for c in class_verdicts(desk)}
        assert found["edema, own labels"] == earlier["edema, own labels"]
        # Accepted and rejected ones; what is unsure or unseen is not in force.
        assert found["fracture"] == (2, 1, 1, 0, 0, 0)
        assert [(r.initials, r.verdicts) for r in reviewers(desk)] == [("AB", 2), ("CD", 1)]
    desk.take_back(desk.item(0, 1), reviewer="AB", seen=desk.item(0, 1).verdict.name)
    assert export(desk, tmp_path / "out")[0].endswith("1 labels differ from the original")


def test_masks_that_were_accepted_in_another_run_are_counted_with_their_pixels(tmp_path):
    desk = Desk(make_mask_run(tmp_path, 1))
    desk.judge(desk.item(1, 0), ACCEPT, reviewer="AB")
    desk.ledger.undo()
    desk = Desk(desk.folder)
    assert [c.numbers for c in class_verdicts(desk)] == [(1, 1, 0, 0, 0, 0)]
    assert np.argwhere(desk.ledger.to_judge(1)).tolist() == [[5, 5]]
    desk.judge(desk.item(1, 0), REJECT, reviewer="AB", seen=desk.item(1, 0).verdict.name)
    assert not desk.ledger.change().any()
