import pytest

from fedmend.basics.words import as_given, in_order, inert, markdown, printable, rounds_text


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("Ödem 3 %", "Ödem 3 %"),
        ("a\x1b[2Jb\r\nc", "a\\x1b[2Jb\\r\\nc"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        ("a\u00a0b\u3000\u0915\u094d\u200d\u0937", "a\u00a0b\u3000\u0915\u094d\u200d\u0937"),
        (None, "None"),
    ],
)
def test_a_terminal_gets_letters_and_no_commands(word, shown):
    assert printable(word) == shown


def test_a_word_in_markdown_is_one_line_of_text_without_markup():
    assert markdown("a\n\n## b | <c>") == "a ## b \\| \\<c\\>"
    assert markdown("a\x1b[8m") == "a\\\\x1b\\[8m"


@pytest.mark.parametrize("text", ["=A1", "+1", "-2+3.png", "@SUM(1)", "\t=A1", "\r=A1", "'=A1", "'"])
def test_a_text_that_a_spreadsheet_would_compute_has_an_apostrophe_which_comes_off_again(text):
    assert inert(text) == f"'{text}"
    assert as_given(inert(text)) == text


@pytest.mark.parametrize("value", ["a=b", "", " =A1", -1, None])
def test_other_cells_stay_as_they_are(value):
    assert inert(value) is value


def test_names_stand_in_the_order_in_which_people_count():
    names = ["site-10", "site-9", "site-1", "site-02", "site-2", "b", "3d", "B10"]
    assert in_order(names) == ["3d", "B10", "b", "site-1", "site-02", "site-2", "site-9", "site-10"]
    assert in_order(reversed(names)) == in_order(names)


def test_one_round_is_no_rounds():
    assert [rounds_text(count) for count in (0, 1, 2, "?")] == ["0 rounds", "1 round", "2 rounds", "? rounds"]
