import pytest
from factories import refused

from fedmend.basics.json_files import NameTwice, parse_json, read_document, read_json


def test_what_python_would_read_too_is_read_as_it_stands(tmp_path):
    (tmp_path / "x.json").write_text('{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9"}}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"a": [1, 2.5, None, True], "b": {"c": "é"}}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "NaN",
        "[-Infinity]",
        "1e999",
        '"\\u0000"',
        '{"\\u0000": 1}',
        '["\\ud800"]',
        "[" * 5000,
        "9" * 400,
        "9" * 5000,
    ],
    ids=lambda text: text[:12],
)
def test_what_breaks_whoever_uses_it_does_not_parse(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_a_name_twice_in_an_object_is_refused_in_a_sentence_that_does_not_tell_it(tmp_path):
    (tmp_path / "x.json").write_text('{"a": {"b": 1}, "c": [{"b": 2, "b": 2}]}')
    with refused("site-1: x.json: expected each name once in an object, got one twice"):
        read_document(tmp_path / "x.json", "site-1: x.json", "in the folder")
    with pytest.raises(NameTwice):
        read_json(tmp_path / "x.json")


def test_a_file_saved_by_a_windows_editor_is_read_without_its_byte_order_mark(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1}', encoding="utf-8-sig")
    assert read_json(tmp_path / "x.json") == {"a": 1}


def test_a_document_that_cannot_be_read_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "x.json").write_text('{"a": 1')
    with refused("site-1: x.json: expected JSON, got a file that does not parse"):
        read_document(tmp_path / "x.json", "site-1: x.json", "in the folder")
    for absent in (tmp_path / "y.json", tmp_path, tmp_path / "x.json" / "below"):
        with refused("site-1: x.json: expected in the folder, not found"):
            read_document(absent, "site-1: x.json", "in the folder")
    (tmp_path / "x.json").write_text("[1]")
    assert read_document(tmp_path / "x.json", "site-1: x.json", "in the folder") == [1]
