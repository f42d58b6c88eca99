import io
import json

from fl_components.run import bars
from fl_components.run.bars import Bar, Lines, rounds_bar


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
    monkeypatch.setattr(bars.sys, "stderr", out)
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


def picture(**facts):
    return json.dumps({"state": "runs", **facts})


def test_a_bar_over_rounds_moves_with_the_pictures_of_a_run(capsys):
    with rounds_bar("spring", 9) as watch:
        watch(picture())
        watch(picture(done=4, split="test", curves={"auc": [[0, 0.5], [3, 0.75]], "map": [[3, 0.25]]}))
        watch(picture(done=5, split="test", curves={"auc": [[4, 0.875]]}))
    first, second = capsys.readouterr().err.split("round 4 of 9")
    assert "spring" in first
    assert "test AUC 0.750 mAP 0.250" in second
    assert "round 5 of 9" in second
    assert "test AUC 0.875" in second


def test_a_bar_over_rounds_is_drawn_again_only_where_something_has_changed(capsys):
    with rounds_bar("spring", 9) as watch:
        for _ in range(5):
            watch(picture(done=4, stage="warmup"))
            watch(picture(done=4, stage="detect"))
        assert capsys.readouterr().err.count("round 4 of 9") == 1


def test_a_picture_that_does_not_read_leaves_the_bar_as_it_is_and_stops_nothing(capsys):
    with rounds_bar("spring", 9) as watch:
        watch(picture(done=4))
        watch("round 5/9 warm up | received model: test AUC 0.750 | 5 sites")
        watch(picture(done="5"))
    assert "round 5 of 9" not in capsys.readouterr().err
