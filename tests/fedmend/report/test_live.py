"""The picture of a run on a terminal."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from fedmend.records.picture import Picture
from fedmend.report.live import draw, last_line, save_svg, sparkline

PICTURE = Picture(
    "runs",
    run_name="spring",
    method="fedmlp",
    phantom=True,
    unit="labels",
    num_rounds=8,
    done=2,
    round=3,
    stage="detect",
    elapsed=130,
    remaining=400,
    split="test",
    curves={"auc": ((0, 0.5), (1, 0.75), (2, 0.7))},
    highest={"auc": (1, 0.75)},
    repairs={"bleed": {"positive": 8, "correct_positive": 6, "negative": 0, "untagged": 1200}},
    sites={
        "site-1": {"state": "training", "round": 2, "samples": 1234, "seconds": 4.5},
        "site-2": {"state": "refused", "refused": 2},
    },
    decisions=({"round": 2, "what": "best_model", "value": "auc: 0.75"},),
)


def shown(picture=PICTURE, *, width=100, silent=0.0, encoding="utf-8", **options):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace")
    console = Console(file=file, width=width, **options)
    console.print(draw(picture, silent=silent, console=console))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def row(text, name):
    return next(re.split(r"  +", line.strip("│| ")) for line in text.splitlines() if line.strip("│| ").startswith(name))


def test_a_frame_shows_rounds_time_metrics_sites_repairs_and_decisions():
    text = shown()
    assert "PHANTOM fedmlp" in text
    assert "2 of 8 rounds, now 3: detect, 2 min, about 7 min left" in text
    assert row(text, "AUC") == ["AUC", "0.700", "0.750", "1", "▁█▇"]
    assert row(text, "site-1") == ["site-1", "training", "2", "1,234", "4.5"]
    assert row(text, "site-2") == ["site-2", "refused", "–", "2", "–", "–"]
    assert row(text, "bleed") == ["bleed", "8", "75 %", "1,200"]
    assert row(text, "best model") == ["best model", "2", "auc: 0.75"]


def test_time_left_runs_down_and_a_long_silence_is_said():
    text = shown(silent=130)
    assert "about 4 min left" in text
    assert "nothing new for 2 min" in text


def test_a_run_that_has_just_begun_is_a_frame_too():
    assert "0 of ? rounds" in shown(Picture("starts"))


def test_a_run_that_stopped_shows_its_reason_and_no_time_left():
    text = shown(Picture("stopped", reason="too few sites", num_rounds=8, done=2, remaining=400, stage="detect"))
    assert "stopped: too few sites" in text
    assert "left" not in text
    assert "now" not in text


def test_markup_of_another_party_is_text():
    picture = Picture("runs", run_name="[red]x", sites={"[link=http://x]a[/link]": {"state": "[bold]"}})
    text = shown(picture, color_system="truecolor", force_terminal=True)
    assert "[red]x" in text
    assert "[link=http://x]a[/link]" in text
    assert "\x1b]8" not in text


@pytest.mark.parametrize("width", [20, 40, 69, 70])
def test_narrow_terminals_show_less_and_no_line_is_too_long(width):
    text = shown(width=width)
    assert max(map(len, text.splitlines())) <= width
    assert ("samples" in text) == (width >= 70)


def test_a_terminal_without_unicode_gets_ascii():
    text = shown(encoding="ascii", safe_box=True)
    assert "AUC" in text
    assert "▁" not in text


def test_a_terminal_without_colour_gets_none():
    assert "\x1b[3" not in shown(force_terminal=True, no_color=True)


def test_a_level_curve_is_a_level_line():
    assert sparkline([0.5, 0.5]) == "▁▁"
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""


def test_the_last_line_says_what_came_out():
    assert last_line(PICTURE) == "PHANTOM finished: 2 rounds, test AUC 0.700"
    assert last_line(Picture("finished", done=3)) == "finished: 3 rounds,"
    assert last_line(Picture("finished", done=1)) == "finished: 1 round,"


def test_a_picture_file_loads_nothing_from_other_hosts(tmp_path):
    console = Console(record=True, file=io.StringIO(), width=100)
    console.print(draw(PICTURE, silent=0, console=console))
    save_svg(console, tmp_path / "a.svg", "watch")
    svg = (tmp_path / "a.svg").read_text()
    assert "site-1" in svg
    assert "@font-face" not in svg
    assert not re.search(r"(src|href|url)\W*https?:", svg)


def test_a_frame_shows_the_model_at_each_site():
    sites = {"site-1": {"state": "training", "round": 2, "value": 0.7654}, "site-2": {"state": "training", "round": 2}}
    text = shown(replace(PICTURE, metric="auc", sites=sites))
    assert row(text, "site-1") == ["site-1", "training", "2", "–", "–", "0.765"]
    assert row(text, "site-2") == ["site-2", "training", "2", "–", "–", "–"]
    assert "test AUC" in text
