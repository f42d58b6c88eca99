import pytest

from fedmend.basics.json_files import parse_json, read_json


def test_what_python_would_read_too_is_read_as_it_stands(tmp_path):
    (tmp_path / "x.json").write_text('{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9"}}', encoding="utf-8")
    assert read_json(tmp_path / "x.json") == {"a": [1, 2.5, None, True], "b": {"c": "é"}}


@pytest.mark.parametrize(
    "text",
    ["{", "NaN", "[-Infinity]", "1e999", '"\\u0000"', '{"\\u0000": 1}', '["\\ud800"]', "[" * 5000, "9" * 5000],
    ids=lambda text: text[:12],
)
def test_what_breaks_whoever_uses_it_does_not_parse(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
