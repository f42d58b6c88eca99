"""The table of predictions while it grows."""

import pytest
from factories import refused

from fedmend.package.rows import PART, Rows, text_of

HEADER = ["image", "study", "problem"]
ABOUT = {"package": "ab"}


def rows(names):
    return [[f"{name}.png", f"{name}\n{name}", ""] for name in names]


def opened(folder):
    return Rows(folder / "out", ABOUT, HEADER, 2)


@pytest.mark.parametrize("left", ["", "e.p", 'e.png,"e', 'e.png,"e\n', 'e.png,"e\ne",\n'])
@pytest.mark.parametrize("end", ["\n", "\n\n", " "])
def test_a_call_goes_on_after_its_last_whole_batch_whatever_names_have_in_them(tmp_path, end, left):
    whole = [[image, study.replace("\n", end), problem] for image, study, problem in rows("abcd")]
    with opened(tmp_path) as table:
        table.add(whole[:2])
        table.add(whole[2:])
    with open(tmp_path / "out" / PART, "ab") as stream:
        stream.write(left.encode())
    with opened(tmp_path) as table:
        assert table.done == 4
        table.add(rows("ef"))
        table.finish()
        assert table.read() == [HEADER, *whole, *rows("ef")]


def test_two_calls_do_not_fill_one_table(tmp_path):
    with opened(tmp_path) as table:
        with refused(f"predict: expected a folder that no other call fills, one fills {tmp_path / 'out'}"):
            opened(tmp_path)
        table.add(rows("ab"))
    with opened(tmp_path) as again:
        assert again.done == 2
    assert (tmp_path / "out" / PART).read_text() == text_of([HEADER, *rows("ab")])
