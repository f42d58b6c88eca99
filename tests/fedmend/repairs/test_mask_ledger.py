import csv
import os

import nibabel
import numpy as np
import pytest
from factories import refused
from nifti_factories import lesion, make_volume_site, open_volumes
from torch_factories import make_mask_split

from fedmend.errors import WAY_ON, FedMendError
from fedmend.repairs.ledger import read_history, to_csv, undo_file
from fedmend.repairs.mask_ledger import MaskLedger
from fedmend.repairs.verdicts import ACCEPT, REJECT, Verdict

RULE, OTHER = "fedia.correction", "fedia.other"
MASKS = np.zeros((4, 8, 8), dtype=np.uint8)  # two volumes of two slices
MASKS[1, 2:4, 3:6] = 1
SURE = np.linspace(0.8, 0.95, 4)


def ledger(folder, masks=MASKS):
    split = make_mask_split(folder, masks, volumes=2)
    return MaskLedger(folder / "state" / "ledger.sqlite", split=split, classes=["lesion"], site="site-1")


def pixels(*places):
    """(4, 8, 8) bool with (slice, row, column) set."""
    added = np.zeros(MASKS.shape, dtype=bool)
    for place in places:
        added[place] = True
    return added


def files(folder):
    """Repaired volumes: folder / file."""
    return sorted(f"{p.parent.name}/{p.name}" for p in (folder / "state" / "repaired").rglob("*.nii.gz"))


A, B, C = (0, 1, 1), (1, 7, 0), (3, 4, 4)


def test_a_new_ledger_changes_nothing(tmp_path):
    book = ledger(tmp_path)
    target = book.apply(MASKS)
    assert target.dtype == bool
    assert np.array_equal(target, MASKS > 0)
    assert not book.added().any()
    assert book.history() == []


def test_added_pixels_are_in_the_target_and_undo_gives_the_original_back(tmp_path):
    book, original = ledger(tmp_path), MASKS.copy()
    original.setflags(write=False)
    labels = {p: p.read_bytes() for p in (tmp_path / "labels").iterdir()}
    book.record(RULE, 2, pixels(A, C), SURE)
    assert np.array_equal(book.added(), pixels(A, C))
    assert np.array_equal(book.apply(original), (MASKS > 0) | pixels(A, C))
    assert book.undo() == 2
    assert np.array_equal(book.apply(original), MASKS > 0)
    assert np.array_equal(original, MASKS)
    assert {p: p.read_bytes() for p in (tmp_path / "labels").iterdir()} == labels


def test_a_ledger_file_is_undone_without_its_data(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 1, pixels(A), SURE)
    book.record(RULE, 2, pixels(B), SURE)
    assert undo_file(tmp_path / "state" / "ledger.sqlite", from_round=2) == 1
    assert np.array_equal(book.added(), pixels(A))
    assert undo_file(tmp_path / "state" / "ledger.sqlite") == 1
    assert np.array_equal(book.apply(MASKS), MASKS > 0)


def test_the_history_counts_lesion_voxels_of_each_slice(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 2, pixels(A, B, (1, 7, 1)), SURE)
    common = {"class": "lesion voxels", "rule": RULE, "round": 2, "in_force": 1}
    expected = [
        {"image": "case-0.nii.gz#0", "old": 0, "new": 1, "confidence": SURE[0]},
        {"image": "case-0.nii.gz#1", "old": 6, "new": 8, "confidence": SURE[1]},
    ]
    assert book.history() == [row | common for row in expected]
    assert read_history(tmp_path / "state" / "ledger.sqlite") == book.history()
    assert to_csv(tmp_path / "state" / "ledger.sqlite", tmp_path / "out.csv") == 2
    with open(tmp_path / "out.csv", newline="") as stream:
        assert [(r["class"], r["old"], r["new"], r["round"]) for r in csv.DictReader(stream)] == [
            ("lesion voxels", "0", "1", "3"),
            ("lesion voxels", "6", "8", "3"),
        ]


def test_voxels_are_counted_in_the_label_file_whatever_the_size_of_the_slices(tmp_path):
    folder = make_volume_site(tmp_path / "site", [lesion(((0, 2), (6, 8), (1, 2)))], test=(), foreground=2)
    data = open_volumes(folder, size=4)
    book = MaskLedger(tmp_path / "l.sqlite", split=data.train, classes=["lesion"], site="site-1", values={2: 1})
    added = np.zeros((4, 4, 4), dtype=bool)
    added[1, 3, 3] = added[2, 0, 0] = True
    book.record(RULE, 0, added, SURE)
    assert [(r["old"], r["new"]) for r in book.history()] == [(4, 8), (0, 4)]
    assert np.array_equal(book.apply(data.train.masks), (data.train.masks > 0) | added)


def test_repaired_volumes_lie_beside_the_ledger(tmp_path):
    ledger(tmp_path).record(RULE, 2, pixels(C), SURE)
    assert files(tmp_path) == [f"{RULE}-round-3/002-case-1.nii.gz"]
    repaired = nibabel.load(tmp_path / "state" / "repaired" / f"{RULE}-round-3" / "002-case-1.nii.gz")
    assert np.argwhere(np.asarray(repaired.dataobj)).tolist() == [[4, 3, 1]]  # row 4 is y = 7 - 4


def test_a_repeated_round_replaces_its_own_entries_and_volumes(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 2, pixels(A, C), SURE)
    book.record(RULE, 2, pixels(B), SURE)
    assert np.array_equal(book.added(), pixels(B))
    assert files(tmp_path) == [f"{RULE}-round-3/001-case-0.nii.gz"]
    assert [row["in_force"] for row in book.history()] == [0, 0, 1]


def test_a_repeated_round_takes_later_rounds_back(tmp_path):
    book = ledger(tmp_path)
    for round_num, place in ((1, A), (2, B), (3, C)):
        book.record(RULE, round_num, pixels(place), SURE)
    book.record(RULE, 2, pixels((1, 0, 0)), SURE)
    assert np.array_equal(book.added(), pixels(A, (1, 0, 0)))


def test_rounds_and_rules_add_up(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, pixels(A), SURE)
    book.record(RULE, 1, pixels(C, (0, 1, 2)), SURE)
    book.record(OTHER, 1, pixels(A, B), SURE)
    assert np.array_equal(book.added(), pixels(A, B, C, (0, 1, 2)))
    assert book.undo(rule=OTHER) == 2
    assert np.array_equal(book.added(), pixels(A, C, (0, 1, 2)))
    assert book.undo(from_round=1) == 2
    assert np.array_equal(book.added(), pixels(A))


def test_a_round_may_add_nothing(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, pixels(A), SURE)
    book.record(RULE, 0, pixels(), SURE)
    assert not book.added().any()
    assert files(tmp_path) == []


def test_repairs_outlive_the_process(tmp_path):
    ledger(tmp_path).record(RULE, 0, pixels(A, B), SURE)
    again = ledger(tmp_path)
    assert np.array_equal(again.added(), pixels(A, B))
    again.undo()
    assert not ledger(tmp_path).added().any()


def test_repaired_pixels_are_for_the_owner_of_the_ledger_alone(tmp_path):
    before = os.umask(0)
    try:
        ledger(tmp_path).record(RULE, 0, pixels(A), SURE)
    finally:
        os.umask(before)
    (file,) = (tmp_path / "state" / "masks").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_round_that_was_undone_can_be_recorded_again(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, pixels(A), SURE)
    book.undo()
    book.record(RULE, 0, pixels(B), SURE)
    assert np.array_equal(book.added(), pixels(B))


def test_a_ledger_of_other_masks_is_refused(tmp_path):
    ledger(tmp_path)
    with refused(
        "site-1: label ledger: expected the ledger of this data set, got that of another; choose another run_name or"
        " put the earlier labels back"
    ):
        ledger(tmp_path, np.roll(MASKS, 1))


def test_a_ledger_without_its_pixels_is_one_sentence(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 2, pixels(A), SURE)
    (tmp_path / "state" / "masks").rename(tmp_path / "elsewhere")
    with refused("site-1: label ledger: expected the folder masks beside it with the pixels of round 3, not found"):
        book.apply(MASKS)


def flipped(content):
    """A bit of the packed pixels is another one."""
    place = content.index(b"pixels.npy") + 40
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [lambda c: b"", lambda c: c[:-40], lambda c: c.replace(b"rows", b"rowz"), flipped])
def test_damaged_pixels_are_one_sentence(tmp_path, damage):
    book = ledger(tmp_path)
    book.record(RULE, 2, pixels(A), SURE)
    (file,) = (tmp_path / "state" / "masks").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    with refused(
        "site-1: label ledger: expected the pixels of round 3 in the folder masks beside it, got a damaged file;"
        f" {WAY_ON}"
    ):
        book.apply(MASKS)


def test_a_mask_ledger_that_has_fallen_behind_is_refused(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 2, pixels(A), SURE)
    told = book.mark()
    book.check_mark(told)
    (tmp_path / "state" / "ledger.sqlite").unlink()
    with pytest.raises(FedMendError, match="got a ledger without the latest"):
        ledger(tmp_path).check_mark(told)


def test_pixels_are_unpacked_once_until_somebody_changes_them(tmp_path, monkeypatch, opened, parsed):
    book, review, read, load = ledger(tmp_path), ledger(tmp_path), [], np.load
    monkeypatch.setattr("numpy.load", lambda file: read.append(file) or load(file))
    book.record(RULE, 0, pixels(A), SURE)
    book.record(RULE, 1, pixels(C), SURE)
    opened.clear()
    for _ in range(2):
        assert np.array_equal(book.apply(MASKS), (MASKS > 0) | pixels(A, C))
    assert (len(opened), len(parsed), len(read)) == (2, 1, 2)  # two files of pixels
    review.judge(Verdict(A[0], 0, REJECT, 0, 1, RULE, 0, "AB"))
    read.clear()
    assert np.array_equal(book.added(), pixels(C))
    assert len(read) == 2


def test_changes_may_be_written_over(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, pixels(A), SURE)
    book.change()[:] = 0
    assert np.array_equal(book.added(), pixels(A))


def test_pixels_without_their_rows_are_not_in_force(tmp_path, monkeypatch):
    book = ledger(tmp_path)
    book.record(RULE, 0, pixels(A), SURE)
    monkeypatch.setattr(book, "_append", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # the process ends between pixels and rows
        book.record(RULE, 0, pixels(B), SURE)
    assert not book.added()[1].any()


def test_pixels_are_written_before_the_rows_that_need_them(tmp_path, monkeypatch):
    book = ledger(tmp_path)
    monkeypatch.setattr("numpy.savez_compressed", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        book.record(RULE, 0, pixels(A), SURE)
    assert book.history() == []
    assert not book.added().any()


# ---- pixels that become background ----------------------------------------------------------------------------------
E, F = (1, 2, 3), (1, 3, 5)  # two of the six lesion pixels of slice 1


def changes(*, lesion=(), background=()):
    """(4, 8, 8) int8 with 1 and -1 at (slice, row, column)."""
    return pixels(*lesion).astype(np.int8) - pixels(*background)


def test_removed_pixels_are_no_target_and_undo_gives_them_back(tmp_path):
    book = ledger(tmp_path)
    change = changes(lesion=[A], background=[E, F])
    book.record(RULE, 2, change, SURE)
    assert (book.change().dtype, book.change().tolist()) == (np.int8, change.tolist())
    assert np.array_equal(book.added(), pixels(A))
    assert np.array_equal(book.apply(MASKS), (MASKS > 0) & ~pixels(E, F) | pixels(A))
    assert [(row["old"], row["new"]) for row in book.history()] == [(0, 1), (6, 4)]
    assert np.array_equal(ledger(tmp_path).change(), change)  # read by another process
    assert book.undo() == 2
    assert np.array_equal(book.apply(MASKS), MASKS > 0)


def test_a_repaired_volume_lacks_the_removed_voxels(tmp_path):
    ledger(tmp_path).record(RULE, 0, changes(lesion=[(1, 2, 2)], background=[E]), SURE)
    assert files(tmp_path) == [f"{RULE}-round-1/001-case-0.nii.gz"]
    repaired = nibabel.load(tmp_path / "state" / "repaired" / f"{RULE}-round-1" / "001-case-0.nii.gz")
    seen = np.rot90(np.asarray(repaired.dataobj)[:, :, 1])
    assert np.argwhere(seen).tolist() == [[2, 2], [2, 4], [2, 5], [3, 3], [3, 4], [3, 5]]


def test_the_later_of_two_repairs_of_a_pixel_counts(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, changes(lesion=[A, B], background=[E]), SURE)
    book.record(RULE, 1, changes(background=[A, F]), SURE)
    book.record(OTHER, 1, changes(lesion=[E, (1, 0, 0)]), SURE)
    assert np.array_equal(book.change(), changes(lesion=[B, E, (1, 0, 0)], background=[A, F]))
    assert book.undo(rule=OTHER) == 1
    assert np.array_equal(book.change(), changes(lesion=[B], background=[A, E, F]))
    assert book.undo(from_round=1) == 2
    assert np.array_equal(book.change(), changes(lesion=[A, B], background=[E]))


def test_a_rule_that_is_recorded_again_counts_as_the_later_one(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, changes(lesion=[A]), SURE)
    book.record(OTHER, 0, changes(background=[A]), SURE)
    assert np.array_equal(book.change(), changes(background=[A]))
    book.record(RULE, 0, changes(lesion=[A]), SURE)
    assert np.array_equal(book.change(), changes(lesion=[A]))


def test_the_file_of_pure_additions_is_as_it_always_was(tmp_path):
    book = ledger(tmp_path)
    book.record(RULE, 0, changes(lesion=[A, C]), SURE)
    file = tmp_path / "state" / "masks" / f"{RULE}-0.npz"
    with np.load(file) as saved:
        assert sorted(saved) == ["pixels", "rows"]
        assert saved["rows"].tolist() == [0, 3]
        assert saved["pixels"].tolist() == np.packbits(pixels(A, C)[[0, 3]].reshape(2, 64), axis=1).tolist()
    book.record(RULE, 0, changes(lesion=[A], background=[E]), SURE)
    with np.load(file) as saved:
        assert sorted(saved) == ["pixels", "removed", "rows"]
        assert np.unpackbits(saved["removed"], axis=1).sum(1).tolist() == [0, 1]


# ---- several structures ---------------------------------------------------------------------------------------------
ORGANS, VALUES = ["liver", "spleen", "kidneys"], {5: 1, 7: 2, 9: 3}
SHOWN = np.zeros((4, 8, 8), dtype=np.uint8)
SHOWN[1, 2:4, 3:6] = 2  # the spleen; the liver is not shown


def organ_ledger(folder):
    split = make_mask_split(folder, SHOWN, volumes=2)
    for item in split.items:  # the values of the site's files
        file = nibabel.load(item.label)
        numbers = np.asarray(file.dataobj)
        nibabel.save(nibabel.Nifti1Image(np.where(numbers == 2, np.uint8(7), np.uint8(0)), file.affine), item.label)
    place = folder / "state" / "ledger.sqlite"
    return MaskLedger(place, split=split, classes=ORGANS, site="site-1", values=VALUES)


def organ_change(*places):
    """(4, 8, 8) int8 with the value at (slice, row, column, value)."""
    change = np.zeros(SHOWN.shape, dtype=np.int8)
    for *place, value in places:
        change[tuple(place)] = value
    return change


SURE_OF = np.arange(12).reshape(4, 3) / 20
PLACES = (0, 0, 0, 1), (1, 0, 0, 1), (1, 0, 1, 1), (1, 7, 7, 3), (1, 2, 3, -1)


def test_a_row_names_the_structure_that_it_changes(tmp_path):
    book = organ_ledger(tmp_path)
    book.record(RULE, 0, organ_change(*PLACES), SURE_OF)
    assert [(r["image"][-1], r["class"], r["old"], r["new"], r["confidence"]) for r in book.history()] == [
        ("0", "liver voxels", 0, 1, 0.0),
        ("1", "liver voxels", 0, 2, 0.15),
        ("1", "spleen voxels", 6, 5, 0.2),
        ("1", "kidneys voxels", 0, 1, 0.25),
    ]
    target = book.apply(SHOWN)
    assert target.dtype == np.uint8
    expected = SHOWN.copy()
    for *place, value in PLACES:
        expected[tuple(place)] = max(value, 0)
    assert (target == expected).all()
    assert (organ_ledger(tmp_path / "other").apply(SHOWN) == SHOWN).all()
    with np.load(tmp_path / "state" / "masks" / f"{RULE}-0.npz") as saved:
        assert (saved["rows"].tolist(), saved["classes"].tolist()) == ([0, 1, 1, 1], [0, 0, 1, 2])


def test_what_is_marked_never_becomes_another_structure(tmp_path):
    book = organ_ledger(tmp_path)
    book.record(RULE, 0, organ_change((1, 2, 3, 1), (1, 2, 2, 1)), SURE_OF)
    assert (book.apply(SHOWN) == np.where(organ_change((1, 2, 2, 1)), 1, SHOWN)).all()
    assert [(r["old"], r["new"]) for r in book.history()] == [(0, 1)]


def test_repaired_volumes_hold_the_values_of_all_structures(tmp_path):
    organ_ledger(tmp_path).record(RULE, 0, organ_change(*PLACES), SURE_OF)
    (file,) = (tmp_path / "state" / "repaired" / f"{RULE}-round-1").iterdir()
    seen = np.rot90(np.asarray(nibabel.load(file).dataobj)[:, :, 1])
    assert [*np.unique(seen, return_counts=True)[1]] == [64 - 8, 2, 5, 1]
    assert (seen[0, 0], seen[0, 1], seen[7, 7], seen[2, 3], seen[2, 4]) == (5, 5, 9, 0, 7)


def test_a_verdict_is_about_one_structure_of_a_slice(tmp_path):
    book = organ_ledger(tmp_path)
    book.record(RULE, 0, organ_change(*PLACES), SURE_OF)
    assert (book.to_judge(1, 0) == organ_change(*PLACES[1:3])[1]).all()
    assert (book.to_judge(1, 1) == organ_change(PLACES[4])[1]).all()
    book.judge(Verdict(1, 0, REJECT, 0, 2, RULE, 0, "AB"))
    book.judge(Verdict(1, 2, ACCEPT, 0, 1, RULE, 0, "AB"))
    assert (book.change() == organ_change(PLACES[0], *PLACES[3:])).all()
    assert (book.accepted() == organ_change(PLACES[3])).all()
    book.undo()
    assert (book.change() == organ_change(PLACES[3])).all()  # what is accepted stays
    book.judge(Verdict(1, 1, ACCEPT, 6, 5, RULE, 0, "AB", pixels=b""), seen="")
    assert (book.change() == organ_change(PLACES[3])).all()  # nothing of the spleen is changed any more


def test_a_rejected_change_of_a_pixel_leaves_another_change_of_it_in_force(tmp_path):
    book = organ_ledger(tmp_path)
    book.record(RULE, 0, organ_change((1, 0, 0, 1), (1, 0, 1, 1)), SURE_OF)
    book.judge(Verdict(1, 0, REJECT, 0, 2, RULE, 0, "AB"))
    book.record(RULE, 1, organ_change((1, 0, 0, 3)), SURE_OF)
    assert (book.change() == organ_change((1, 0, 0, 3))).all()
