import argparse

import pytest
from cli_calls import call

from fl_components.cli import build_parser, main

SEEDS = "expected different whole numbers like 0,1,2 or 0-2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("simulate jobs/x --seeds a", f"argument --seeds: {SEEDS}, got 'a'"),
        ("configure jobs/x out --sites 0", "argument --sites: expected a whole number from 1 on, got '0'"),
        (
            "simulate jobs/x --seeds 0,",
            "argument --seeds: expected different whole numbers like 0,1,2 or 0-2, got '0,'",
        ),
        ("simulate jobs/x --gpu 0,x", "argument --gpu: expected numbers of GPUs like 0,1, got '0,x'"),
        ("prepare rsna-ich a b --healthy-share x", "argument --healthy-share: expected a number or 'all', got 'x'"),
    ],
)
def test_a_word_in_the_place_of_a_number_ends_with_usage_and_exit_code_2(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {message}")


@pytest.mark.parametrize("words", [[], ["bake"], ["ledger"], ["prepare", "other", "a", "b"], ["simulate"]])
def test_words_that_are_no_command_end_with_usage_and_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage: fedmend" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("phantm", "argument COMMAND: invalid choice: 'phantm'; nearest: phantom"),
        ("ledger udno x", "argument ACTION: invalid choice: 'udno'; nearest: undo"),
        ("init --uncertain positiv", "argument --uncertain: invalid choice: 'positiv'; nearest: positive"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest_ones(words, message, capsys):
    with pytest.raises(SystemExit):
        main(words.split())
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {message}")


def options(parser):
    """All options of a parser and of the commands below it, with the words that lead to them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from ((f"{name} {words}", option) for words, option in options(below))
        elif action.option_strings:
            yield action.option_strings[0], action


def test_an_option_of_several_words_may_be_given_again():
    several = [(words, option) for words, option in options(build_parser()) if option.nargs in ("+", "*")]
    assert {"simulate --set", "compare --site", "init --columns", "prepare dicom --keep"} < {w for w, _ in several}
    assert [words for words, option in several if not isinstance(option, argparse._ExtendAction)] == []


def test_only_datasets_and_phantoms_which_check_their_numbers_themselves_take_any_whole_number():
    found = {words.split()[0] for words, option in options(build_parser()) if option.type is int}
    assert found == {"init", "phantom", "prepare"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("compare x --set a=1 --set b=2 c=3", {"set": ["a=1", "b=2", "c=3"]}),
        ("compare x --site a=1 b=2 --site c=3", {"site": ["a=1", "b=2", "c=3"]}),
        ("compare x --rows a,b --rows c", {"rows": ["a", "b", "c"]}),
        ("compare x --variant a --variant b,c", {"variants": ["a", "b", "c"]}),
        ("configure x y --tracking mlflow --tracking wandb", {"tracking": ["mlflow", "wandb"]}),
    ],
)
def test_what_is_given_again_is_added_to_what_was_given_and_stays_with_that_call(words, found):
    parser = build_parser([])
    for _ in range(2):
        args = vars(parser.parse_args(words.split()))
        assert {name: args[name] for name in found} == found


def test_a_person_can_interrupt(monkeypatch):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmend.report.report.write_report", interrupt)
    assert call("report", "x") == 130
