import argparse
import ast
import sys
from pathlib import Path

import pytest

import fedmend
import fl_components.cli
from fl_components.cli.common import count, positive, say, seeds


def test_a_line_that_is_said_neither_steers_the_terminal_nor_forges_another_line(capsys):
    say("package run\x1b[2J for Ödem\nsigned by root", Path("a"))
    say("b\r", file=sys.stderr)
    assert capsys.readouterr() == ("package run\\x1b[2J for Ödem\\nsigned by root\na\n", "b\\r\n")


@pytest.mark.parametrize("text", ["-1", "1.5", "", "all"])
def test_a_count_is_a_whole_number_from_0_on(text):
    assert count("0") == 0
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from 0 on"):
        count(text)
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from 1 on"):
        positive(text)


def test_a_positive_number_starts_with_1():
    assert positive("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number from 1 on, got '0'"):
        positive("0")


def test_seeds_are_numbers_and_spans_none_of_which_is_empty_or_has_three_ends():
    assert seeds("4,0-2") == [4, 0, 1, 2]
    for text in ("0-2-4", "5-3", "0-1,5-3", "0,0-1", "", "-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected different whole numbers like 0,1,2 or 0-2"):
            seeds(text)


def test_no_command_prints_in_any_other_way():
    found = []
    for file in [*Path(fl_components.cli.__file__).parent.glob("*.py"), *Path(fedmend.__file__).parent.rglob("*.py")]:
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        found += [file.name for node in nodes if isinstance(node, ast.Name) and node.id == "print"]
    assert found == ["checks.py", "words.py"]  # sitecheck escapes its own lines, which have colours
