import pytest

from fedmend.basics.words import markdown, printable


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("Ödem 3 %", "Ödem 3 %"),
        ("a\x1b[2Jb\r\nc", "a\\x1b[2Jb\\r\\nc"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),
        (None, "None"),
    ],
)
def test_a_terminal_gets_letters_and_no_commands(word, shown):
    assert printable(word) == shown


def test_a_word_in_markdown_is_one_line_of_text_without_markup():
    assert markdown("a\n\n## b | <c>") == "a ## b \\| \\<c\\>"
    assert markdown("a\x1b[8m") == "a\\\\x1b\\[8m"
