import io
import logging

import pytest

from fedmend.progress import Progress
from fedmend.run_log import RunLog
from fl_components.run import progress
from fl_components.run.progress import Bar, Lines, rounds_bar


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


@pytest.fixture
def said(tmp_path, caplog):
    """A function: what a run says at the end of a round."""

    class Checkpoint:
        def best(self):
            return None

    log = RunLog(tmp_path, ["a"], Checkpoint(), lambda *_: None, Progress(tmp_path, lambda _: None))

    def line(*round_and_metrics):
        with caplog.at_level(logging.INFO):
            log.progress(*round_and_metrics, 5, 1.0)
        return caplog.messages[-1]

    return line


def test_a_bar_over_rounds_moves_with_the_lines_of_a_run(said, capsys):
    with rounds_bar("spring", 9) as show:
        show("census: every site opens and checks its data")
        first = said(3, 9, "warm up", {"test": {"macro": {"auc": 0.75}}})
        show(f"2026-11-23 15:34:43,381 - fedmend.run - INFO - {first}")
        show(said(4, 9, "detect", {}))
    seen = capsys.readouterr().err
    assert "spring" in seen
    assert "round 4 of 9" in seen
    assert "test AUC 0.750" in seen
    assert seen.rindex("round 5 of 9") > seen.index("round 4 of 9")
    assert "not evaluated" in seen
