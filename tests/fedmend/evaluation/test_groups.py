"""Subgroups, and which of them are told."""

from dataclasses import replace

import numpy as np
import pytest
from factories import refused
from torch_factories import make_split

from fedmend.evaluation.groups import Column, columns_of, held_back
from fedmend.evaluation.held_out import studies_of

FEW = 5


def told(place, labels=None, *, patients=None, groups=2, one_label=False, rest=True):
    """Which (group, class) are told; the last row is of those in no group."""
    labels = np.ones((len(place), 1), dtype=int) if labels is None else np.asarray(labels)
    split = make_split(labels)
    if patients is not None:
        split = replace(split, table=replace(split.table, patients=tuple(patients)))
    place = np.asarray(place)
    return (~held_back(split, [(place, groups)], FEW, one_label=one_label, told=rest)[0]).tolist()


@pytest.mark.parametrize(
    ("patients", "studies", "numbers"),
    [
        (["p1", "p1", "p2", "p2"], ["1", "1.0", "1", "2"], [0, 0, 1, 2]),  # of each patient, from 1
        (["p1", "", "", ""], ["a", "a", "b", ""], [0, 0, 1, -1]),
    ],
)
def test_a_study_is_of_one_patient(patients, studies, numbers):
    split = make_split(np.ones((4, 1), dtype=int))
    table = replace(split.table, patients=tuple(patients), about={"study": tuple(studies)})
    assert studies_of(replace(split, table=table)).tolist() == numbers


def test_words_become_values_or_bands():
    assert columns_of("sex, scanner,age:40,60,site", []) == ["sex", "scanner", "age:40,60", "site"]
    assert grouped("sex:F,M", ["M", "", "F", "X"]) == (("F", "M"), [1, 2, 0, 2])
    assert grouped("sex", ["M", "", "F"]) == (("F", "M"), [1, 2, 0])
    ages = ["39.9", "40", "59", "60", "", "old"]
    assert grouped("age:40,60", ages) == (("below 40", "40 to 60", "from 60"), [0, 1, 1, 2, 3, 3])


def test_values_on_a_command_line_end_where_the_name_of_a_column_stands():
    known = ["sex", "scanner", "age"]
    assert columns_of("sex:F,M", known) == ["sex:F,M"]
    assert columns_of("sex:F,M,scanner,age:40,60", known) == ["sex:F,M", "scanner", "age:40,60"]
    assert columns_of("scanner:A,7,sex:F,M", known) == ["scanner:A,7", "sex:F,M"]
    assert columns_of("sex,M", known) == ["sex", "M"]  # refused, as there is no column M


def test_values_in_another_writing_are_of_one_group_unless_both_are_named():
    found = ["f", "F", "f", "m", "7", "7.0"]
    assert grouped("sex:F,M", found) == (("F", "M"), [0, 0, 0, 1, 2, 2])
    assert grouped("sex", found) == (("7", "f", "m"), [1, 1, 1, 2, 0, 0])
    assert grouped("sex:F,f", found) == (("F", "f"), [1, 0, 1, 2, 2, 2])


def test_ages_of_dicom_are_put_into_bands_of_years():
    ages = ["045Y", "018M", "104W", "730D", "731D", "45Y", "045y"]
    assert grouped("age:2,45", ages) == (("below 2", "2 to 45", "from 45"), [2, 0, 0, 0, 1, 2, 2])
    assert grouped("age:45.2", ["45,5", "45,1"])[1] == [1, 0]


def test_words_for_a_missing_value_are_no_group():
    assert grouped("sex", ["F", "nan", "NA", "not given", ""]) == (("F",), [0, 1, 1, 1, 1])


def test_bands_that_differ_in_their_last_digits_have_names_of_their_own():
    names = Column.of("day:20200101,20200102,20200103").fixed
    assert names == ("below 20200101", "20200101 to 20200102", "20200102 to 20200103", "from 20200103")


def grouped(words, found):
    names, place = Column.of(words).groups(found)
    return names, place.tolist()


@pytest.mark.parametrize("words", ["", ":40", "age:", "age:60,40", "sex:F,F", "age:40,", "sex:F,not given"])
def test_words_that_are_no_column_are_refused(words):
    expected = "a column, with values or ascending numbers behind it if wanted, such as sex:F,M or age:40,60"
    with refused(f"subgroups: expected {expected}, got {words!r}"):
        Column.of(words)


def test_a_column_with_too_many_values_is_refused():
    with refused("subgroups: expected at most 20 groups of age, got 21; give bands of numbers, such as age:40,60"):
        Column.of("age").groups([str(n) for n in range(21)])


def test_a_small_group_takes_the_smallest_other_one_with_it():
    assert told([0] * 4 + [1] * 9 + [2] * 6, groups=2) == [[False], [True], [False]]
    assert told([0] * 4 + [1] * 6, groups=2) == [[False], [False], [True]]  # nobody is in no group: nothing to hide
    assert told([0] * 3 + [1] * 3 + [2] * 9, groups=2) == [[False], [False], [True]]  # two small ones hide each other


def test_a_rest_that_is_never_told_hides_a_small_group_if_it_is_large():
    assert told([0] * 3 + [1] * 9 + [2] * 7, groups=2, rest=False) == [[False], [True], [False]]
    assert told([0] * 3 + [1] * 9 + [2] * 1, groups=2, rest=False) == [[False], [False], [False]]


def test_few_of_a_class_are_held_back_class_by_class():
    one, other = [1] * 2 + [0] * 8, [1] * 5 + [0] * 15  # 2 of 10 positive in the first group, 5 of 20 in the second
    labels = np.array([one + other, [1] * 5 + [0] * 5 + [1] * 10 + [0] * 10]).T
    assert told([0] * 10 + [1] * 20, labels, groups=2) == [[False, True], [False, True], [True, True]]


def test_people_are_counted_rather_than_images():
    place = [0] * 10 + [1] * 10 + [2] * 10
    assert told(place, groups=2) == [[True]] * 3
    patients = ["p"] * 10 + [f"q{n}" for n in range(10)] + [f"r{n}" for n in range(10)]
    shown = told(place, patients=patients, groups=2)
    assert shown[0] == [False]
    assert [False] in shown[1:]  # ten images of one patient follow from the others


def test_with_one_label_the_classes_of_a_group_hide_each_other():
    labels = np.eye(3, dtype=int)[[0] * 2 + [1] * 6 + [2] * 9 + [0] * 8 + [1] * 8 + [2] * 8]
    shown = told([0] * 17 + [1] * 24, labels, groups=2, one_label=True)
    assert shown[0] == [False, False, True]  # 2 would follow from 17 - 6 - 9
    assert shown[1][0] is False  # and from the sum over groups


def test_the_same_few_patients_in_several_groups_are_counted_once():
    # Of 40 patients there are frontal views alone, of 4 others frontal and lateral ones of another device.
    patients = [f"p{n}" for n in range(40)] + [f"q{n}" for n in range(4)] * 2
    assert told([0] * 40 + [1] * 4 + [2] * 4, patients=patients, groups=3)[:3] == [[False]] * 3


def test_with_one_label_the_same_few_patients_in_several_classes_are_counted_once():
    labels = np.eye(3, dtype=int)[[0] * 4 + [1] * 4 + [2] * 9 + [0] * 9 + [1] * 9 + [2] * 9]
    patients = [f"p{n}" for n in range(4)] * 2 + [f"q{n}" for n in range(36)]
    assert told([0] * 17 + [1] * 27, labels, patients=patients, groups=2, one_label=True)[0] == [False] * 3


def together(*places, labels=None, rest=False):
    """Of each column, which groups are told."""
    split = make_split(np.ones((len(places[0]), 1), dtype=int) if labels is None else np.asarray(labels))
    columns = [(np.asarray(place), max(place) + 1) for place in places]
    found = held_back(split, columns, FEW, one_label=False, told=rest)
    return [(~hidden[:-1, 0]).tolist() for hidden in found]


def test_a_small_group_does_not_follow_from_another_column_that_divides_the_same_people():
    # Two scanners of one vendor, 20 and 3 people, and two of another vendor, 9 and 8: the vendor less its large scanner
    # would be the small one.
    scanner, vendor = [0] * 20 + [1] * 3 + [2] * 9 + [3] * 8, [0] * 23 + [1] * 17
    assert together(scanner) == [[True, False, True, False]]
    assert together(vendor) == [[True, True]]
    assert together(scanner, vendor) == together(vendor, scanner)[::-1] == [[False, False, True, False], [True, True]]


def test_a_third_column_does_not_hide_what_two_others_tell():
    scanner, vendor = [0] * 20 + [1] * 3 + [2] * 9 + [3] * 8, [0] * 23 + [1] * 17
    sex = [0] * 10 + [1] * 10 + [0, 1, 0] + [0] * 9 + [1] * 8
    assert together(scanner, vendor, sex) == [[False, False, True, False], [True, True], [True, True]]


def test_more_columns_than_can_be_looked_at_together_are_refused():
    assert together(*[[0] * 9 + [1] * 9] * 6) == [[True, True]] * 6
    with refused("subgroups: expected at most 6 columns, got 7"):
        together(*[[0] * 9 + [1] * 9] * 7)


def test_what_two_columns_leave_of_the_whole_is_not_small():
    # Nobody is in the one group of both columns, and 3 people are in neither.
    places = [[0] * 12 + [1] * 15, [1] * 12 + [0] * 12 + [1] * 3]
    split, columns = make_split(np.ones((27, 1), dtype=int)), [(np.array(place), 1) for place in places]
    found = held_back(split, columns, FEW, one_label=False, told=False)
    assert sorted(bool(hidden[0, 0]) for hidden in found) == [False, True]


def test_columns_that_divide_each_other_into_large_parts_are_told():
    assert together([0] * 20 + [1] * 20, ([0] * 10 + [1] * 10) * 2) == [[True, True]] * 2
    assert together([0] * 20 + [1] * 20, [0] * 18 + [1] * 20 + [0] * 2) == [[True, True]] * 2  # 18, 2, 2 and 18


def test_few_without_a_class_are_held_back_as_few_with_it_are():
    labels = np.array([[1] * 8 + [0] * 2 + [1] * 10 + [0] * 10]).T
    assert told([0] * 10 + [1] * 20, labels, groups=2) == [[False], [False], [True]]  # 2 would follow from the sum


def test_a_group_is_told_where_a_small_one_hides_behind_those_in_none_who_are_not_told():
    assert told([0] * 2 + [1] * 10 + [2] * 20, groups=2, rest=False) == [[False], [True], [False]]


def test_few_with_a_class_do_not_follow_from_two_columns_however_many_are_without_it():
    # As the scanners and vendors above, and 20 people without the class at each scanner.
    scanner = [0] * 20 + [1] * 3 + [2] * 9 + [3] * 8 + [0] * 20 + [1] * 20 + [2] * 20 + [3] * 20
    labels = np.array([[1] * 40 + [0] * 80]).T
    found = together(scanner, [number // 2 for number in scanner], labels=labels)
    assert found == [[False, False, True, False], [True, True]]


def test_parts_of_two_columns_are_counted_in_people_rather_than_images():
    scanner = [0] * 20 + [1] * 9 + [2] * 9 + [3] * 8  # three people at the second scanner, with three images each
    patients = [f"p{n}" for n in range(20)] + ["a", "b", "c"] * 3 + [f"q{n}" for n in range(17)]
    split = make_split(np.ones((46, 1), dtype=int))
    split = replace(split, table=replace(split.table, patients=tuple(patients)))
    columns = [(np.array(scanner), 4), (np.array(scanner) // 2, 2)]
    found = held_back(split, columns, FEW, one_label=False, told=True)
    assert [(~hidden[:-1, 0]).tolist() for hidden in found] == [[False, False, True, False], [True, True]]


def test_two_small_parts_do_not_follow_as_what_a_group_has_besides_a_known_one():
    # 20 people are in the first group of both columns, 2 and 2 in the others of the first one: 24 less 20 are 4.
    one, other = [0] * 24 + [1] * 40, [0] * 20 + [1] * 2 + [2] * 2 + [1] * 20 + [2] * 20
    assert together(one, other) == [[True, True], [False, False, True]]


def test_a_small_part_does_not_follow_from_three_columns_of_which_no_two_tell_it():
    # Four parts: 2 people in the first group of all columns, and 10, 11 and 12 in that of one. The three first groups,
    # less everybody, are twice the 2.
    parts = [(0, 0, 0)] * 2 + [(0, 1, 1)] * 10 + [(1, 0, 1)] * 11 + [(1, 1, 0)] * 12
    one, two, three = np.array(parts).T.tolist()
    for places in ((one, two), (one, three), (two, three)):
        assert together(*places) == [[True, True]] * 2
    assert together(one, two, three) == [[False, False], [True, True], [True, True]]
