import numpy as np
import pytest
from factories import refused

from fedmend.datasets.samples import check_trainable, hold_out, parts_of, shown_labels

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
