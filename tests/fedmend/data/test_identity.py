import os

import pytest
from factories import refused

from fedmend.data.identity import (
    as_on_disk,
    canonical,
    file_key,
    is_missing,
    known_as,
    loose,
    matched,
    merged,
    names_of,
    one_path,
)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (" 7.0 ", "7"),
        ("007.00", "007"),
        ("P5\0", "P5"),
        ("\ufeffp1\u200b", "p1"),
        ("\u202ap\u00ad1\u200e\u202c", "p1"),  # as copied from a page
        ("e\u0301" + "4", "\u00e9" + "4"),
        ("1.2.3.0", "1.2.3.0"),  # a UID
        ("7.5", "7.5"),
        ("p07", "p07"),
        ("\u0661.0", "\u0661.0"),  # an Arabic digit
    ],
)
def test_an_id_has_one_form(text, form):
    assert canonical(text) == form


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("00101", "101", True),
        ("101,0", "101", True),
        ("1.01E+02", "101", True),
        ("p07", "P07", True),
        ("A  1", "a 1", True),
        ("\uff11\uff12", "12", True),  # wide digits
        ("\u0410\u0412-07", "AB-07", True),  # Cyrillic letters
        ("\u0391\u0392-07", "AB-07", True),  # Greek ones
        ("p\u20137", "p-7", True),
        ("\u22121", "-1", True),
        ("\u0431", "b", False),
        ("p07", "p7", False),
        ("101", "1010", False),
        ("1.5", "15", False),
        ("1.2.840.1", "1.2.840.01", False),
        ("1e99", "1" + "0" * 98, False),
    ],
)
def test_a_loose_form_forgets_how_a_number_or_a_letter_is_written(one, other, same):
    assert (loose(one) == loose(other)) == same


def test_words_of_programs_for_a_missing_value_are_blank():
    assert all(
        map(is_missing, ["", " ", "nan", "NaN", "N/A", "NA", "null", "None", "<NA>", "#N/A", "empty", "NaT", "."])
    )
    assert not any(map(is_missing, ["0", "-1", "u", "naevus", "normal", "unknown"]))


def test_patients_that_may_be_one_are_one():
    ids = ["7", "7.0", "007", "p07", "P07", "", " ", "8"]
    assert merged(ids) == (["7", "7", "7", "p07", "p07", "", "", "8"], 2)  # 007 and P07; 7.0 is 7


def test_an_id_is_found_in_the_form_in_which_it_is_written():
    assert matched(["7", "e\u0301", "P5 ", "x"], ["7.0", "\u00e9", "P5", "P6"], "t") == (
        {"7": "7.0", "e\u0301": "\u00e9", "P5 ": "P5"},
        0,
    )


def test_an_id_without_its_zeros_is_found_where_it_can_mean_one_thing():
    ids = ["00101", "00101", "00102", "S1", "205"]
    assert matched(ids, ["101", "102.0", "s1"], "t") == ({"00101": "101", "00102": "102.0", "S1": "s1"}, 3)


def test_an_id_that_is_exact_for_each_is_no_question():
    assert matched(["101", "00101"], ["101", "00101"], "t") == ({"101": "101", "00101": "00101"}, 0)
    assert matched(["101"], ["101", "00101"], "t") == ({"101": "101"}, 0)


@pytest.mark.parametrize(
    ("ids", "listed", "count"),
    [
        (["00101", "101"], ["101"], 1),  # equal to one, may have been the other
        (["00101", "0101"], ["101"], 1),
        (["00101"], ["101", "0101"], 2),
        (["00101", "101", "00102", "102", "00105"], ["101", "102", "105"], 2),
        (["p1", "P1"], ["P1"], 1),
    ],
)
def test_an_id_that_can_mean_several_things_is_refused(ids, listed, count):
    words = "expected ids that can mean one thing each (or a finer column, e.g. StudyInstanceUID)"
    with refused(f"t: {words}, got {count} that others equal but for leading zeros, case or the writing of a number"):
        matched(ids, listed, "t")


@pytest.mark.parametrize("text", ["./a/b.png", "a//b.png", "a/x/../b.png", "a\\b.png", " a/b.png "])
def test_a_path_has_one_spelling(text):
    assert one_path(text) == "a/b.png"


def test_a_path_keeps_its_slice_and_what_leads_out_of_its_folder():
    assert one_path(".\\v.nii.gz#07") == "v.nii.gz#7"
    assert one_path("a#1/./b.nii#7") == "a#1/b.nii#7"
    assert one_path("a/../../b.png") == "../b.png"
    assert one_path("") == ""


def test_class_names_that_differ_in_their_writing_are_one():
    cells = ["Melanoma", "melanoma", "melanoma", " naevus", "Naevus", "nan", "", "2.0", "2"]
    assert names_of(cells) == ["2", "Naevus", "melanoma"]


def test_a_name_is_known_by_its_letters_or_where_one_alone_differs_in_writing():
    names = ["a", "A", "Edema"]
    assert [known_as(text, names) for text in ("a", "A", "EDEMA ", "b", "none")] == ["a", "A", "Edema", None, None]
    assert known_as("\uff21", names) is None  # a wide A: could be both


def test_a_name_of_a_mac_is_found_by_its_letters(tmp_path):
    apart, whole = "e\u0301", "\u00e9"
    (tmp_path / apart).mkdir()
    (tmp_path / apart / f"{apart}.nii").touch()
    assert as_on_disk(tmp_path, f"{whole}/{whole}.nii#3") == f"{apart}/{apart}.nii#3"
    assert as_on_disk(tmp_path, f"{whole}/x.nii") == f"{apart}/x.nii"
    assert as_on_disk(tmp_path, "x.nii") == "x.nii"
    assert as_on_disk(tmp_path, f"/nowhere/{whole}.nii") == f"/nowhere/{whole}.nii"


def test_all_names_of_one_file_have_one_key(tmp_path):
    (tmp_path / "a.nii").touch()
    (tmp_path / "b.nii").symlink_to("a.nii")
    os.link(tmp_path / "a.nii", tmp_path / "c.nii")
    (tmp_path / "d.nii").touch()
    keys = [file_key(tmp_path, f"{name}.nii#3") for name in "abcd"]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert file_key(tmp_path, "a.nii#4") != keys[0] == file_key(tmp_path, "a.nii#03")
    assert file_key(tmp_path, "a.nii") == file_key(tmp_path, "a.nii#0")
    assert [file_key(tmp_path, name) for name in ("x.nii", "", "a\0")] == [None] * 3
