import io

from fl_components.run import progress
from fl_components.run.progress import Bar, Lines


def test_a_line_says_how_many_runs_are_to_go_and_how_long_they_take_when_that_is_worth_saying():
    seen = []
    lines = Lines(seen.append)
    lines.begin(4, 1)
    lines.advance("fedavg, seed 0", 2, 59.0)
    lines.advance("fedavg, seed 1", 1, 600.0)
    lines.end()
    assert seen == ["fedavg, seed 0: done, 2 runs to go", "fedavg, seed 1: done, 1 runs to go, about 10 min left"]


def test_a_bar_counts_runs_and_says_the_time_left(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", out)
    bar = Bar()
    bar.begin(4, 1)
    bar.advance("fedavg, seed 0", 2, 600.0)
    bar.end()
    assert "1 of 4 runs" in out.getvalue()
    assert "2 of 4 runs" in out.getvalue()
    assert "about 10 min left" in out.getvalue()


def test_a_bar_that_never_began_ends_quietly(capsys):
    Bar().end()
    assert capsys.readouterr() == ("", "")
