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
