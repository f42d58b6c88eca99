import numpy as np
import pytest
from factories import refused

from fedmend.datasets.samples import check_trainable, class_by_class, hold_out, of_known, parts_of, shown_labels

CLASSES = ("a", "b", "c")


def test_the_test_split_holds_whole_units_and_does_not_depend_on_the_order():
    units = [f"p{i // 3}" for i in range(30)]
    held = hold_out(units, 0.3, seed=4)
    assert held.sum() == 9
    assert {units[i] for i in np.flatnonzero(held)}.isdisjoint({units[i] for i in np.flatnonzero(~held)})
    order = np.random.default_rng(0).permutation(30)
    np.testing.assert_array_equal(hold_out([units[i] for i in order], 0.3, seed=4), held[order])
    assert (hold_out(units, 0.3, seed=5) != held).any()


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.99, 2)])
def test_the_test_split_leaves_at_least_one_unit_on_each_side(share, count):
    assert hold_out(["a", "b", "c"], share, seed=0).sum() == count


@pytest.mark.parametrize(("units", "share"), [("ab", 0), ("ab", 1), ("aa", 0.5)])
def test_a_test_split_that_cannot_be_drawn_is_refused(units, share):
    found = len(set(units))
    with refused(f"test split: expected a test_share between 0 and 1 and at least 2 units, got {share} and {found}"):
        hold_out(list(units), share, seed=0)


def test_the_samples_of_a_unit_stay_together_and_a_cap_takes_them_unit_after_unit():
    units = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    drawn = {"train": np.array([2, 0]), "val": np.array([3]), "test": np.array([1])}
    caps = {"val_share": 0.25, "rest": 0.75}
    whole = parts_of(units, drawn, train_per_site=None, **caps)
    assert [whole[name].tolist() for name in drawn] == [[0, 2, 4, 6], [3, 7], [1, 5]]
    # val: round(3 * 0.25 / 0.75) = 1; the test split keeps all
    capped = parts_of(units, drawn, train_per_site=3, **caps)
    assert [capped[name].tolist() for name in drawn] == [[0, 2, 6], [3], [1, 5]]


@pytest.mark.parametrize("seed", range(5))
def test_the_validation_split_has_of_each_class_the_share_that_it_has_of_the_patients(seed):
    # 40 patients with two images each; patients 0 to 3 have class a, 4 to 19 class b, the others none: of 10 patients
    # in the validation split 10 / 40 * 4 = 1 has class a, 4 have class b, and 5 none.
    units, kinds = np.repeat(np.arange(40), 2), np.repeat([0, 1, 2], [4, 16, 20])
    positives = kinds[units][:, None] == np.arange(2)
    order = np.random.default_rng(seed).permutation(40)
    found = class_by_class({"train": order[10:], "val": order[:10], "test": order[:0]}, units, positives, seed=seed)
    assert np.bincount(kinds[found["val"]]).tolist() == [1, 4, 5]
    assert sorted([*found["train"], *found["val"]]) == list(range(40))
    kept = [u for u in order[10:] if u not in found["val"]]
    assert found["train"][: len(kept)].tolist() == kept  # in their order, so that a cap takes the same ones


def test_no_validation_split_takes_the_only_patient_with_a_class():
    drawn = {"train": np.arange(1, 5), "val": np.array([0])}
    positives = np.arange(5)[:, None] == 0
    found = class_by_class(drawn, np.arange(5), positives, seed=0)
    assert 0 in found["train"]
    assert len(found["val"]) == 1
    assert class_by_class({"train": np.arange(5)}, np.arange(5), positives, seed=0)["train"].tolist() == [0, 1, 2, 3, 4]


def test_the_classes_that_a_site_labels_are_told_for_both_kinds_of_labels():
    known = np.array([True, False, True])
    assert of_known(np.array([0, 2, 1]), known).tolist() == [[True, False], [False, True], [False, False]]
    assert of_known(np.array([[1, 1, 0]]), known).tolist() == [[True, False]]


def test_labels_of_classes_that_a_site_does_not_know_are_blank():
    assert shown_labels(np.array([0, 1, 2, 1]), np.array([True, False, True])).tolist() == [0, -1, 2, -1]


@pytest.mark.parametrize(
    ("labels", "known", "sentence"),
    [
        ([[0, 1], [1, 1]], [True, True], "site: train.csv, column b: expected both 0 and 1, got only 1"),
        ([[0, 0], [1, 0]], [True, True], "site: train.csv, column b: expected both 0 and 1, got only 0"),
        (np.zeros((0, 2)), [True, False], "site: train.csv, column a: expected both 0 and 1, got no image"),
        ([2, 2], [True] * 3, "site: train.csv, column label: expected at least 2 classes, got 1"),
        (
            [0, 1, 1],
            [False, True, True],
            "site: train.csv, column label: expected at least 2 of its classes ['b', 'c'], got 1",
        ),
    ],
)
def test_training_labels_that_no_site_could_learn_from_are_refused(labels, known, sentence):
    with refused(sentence):
        check_trainable("site: train.csv", CLASSES, np.array(labels), np.array(known))


def test_a_class_that_a_site_does_not_know_may_have_one_value():
    check_trainable("site", CLASSES, np.array([[0, 1], [1, 1]]), np.array([True, False]))
    check_trainable("site", CLASSES, np.array([1, 2]), np.array([False, True, True]))
