import pytest
from cli_calls import call

from fl_components.cli import main

SEEDS = "expected different whole numbers like 0,1,2 or 0-2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("simulate jobs/x --seeds a", f"argument --seeds: {SEEDS}, got 'a'"),
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


def test_a_person_can_interrupt(monkeypatch):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmend.report.report.write_report", interrupt)
    assert call("report", "x") == 130
