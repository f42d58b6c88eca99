import warnings

import pytest

from fedmend.report.figures import Line, Panel, grid_figure

OTHER = {"chinese": "脑出血", "arabic": "نزيف", "devanagari": "रक्तस्राव", "an emoji": "🧠", "mathematics": "a $^$"}


@pytest.mark.parametrize("name", OTHER.values(), ids=OTHER)
def test_a_class_in_another_script_stays_text_for_the_readers_fonts_and_nobody_warns(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = grid_figure(
            "k", [Panel(name, [Line([0, 1], [0.5, 0.6])])], alt="a", ylim=(0, 1), last_round=1, legend={"main": name}
        )
    assert figure.svg.count(f">{name}</text>") == 2


def test_a_share_of_ten_and_more_has_no_more_signs_than_a_metric():
    lines = [Line([0, 1], [20.0, 23.69], "positive"), Line([0, 1], [9.0, 5.94], "negative")]
    figure = grid_figure("k", [Panel("a", lines)], alt="a", ylim=(0, 30), last_round=1, legend={"positive": "p"})
    assert ">23.7</text>" in figure.svg
    assert ">5.94</text>" in figure.svg


def test_the_mark_of_the_best_model_is_whole_at_the_edge_of_its_panel():
    panel = Panel("a", [Line([0, 1], [0.5, 1.0])])
    figure = grid_figure("k", [panel], alt="a", ylim=(0, 1), last_round=1, legend={"main": "AUC"}, best=1)
    marks = [
        line for line in figure.svg.splitlines() if "stroke: #0072b2; stroke-width: 1.4" in line and "<use" in line
    ]
    assert marks
    parts = figure.svg.split("<g ")
    group = next(part for part in parts if marks[0] in part)
    assert "clip-path" not in group
