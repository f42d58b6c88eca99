"""Pictures of runs, which come out of a log or folder of another party and go to a terminal."""

import io

from fuzzing import json_files, number_of_cases, try_all
from rich.console import Console

from fedmend.records.picture import read_picture
from fedmend.report.live import draw, last_line

GOOD = {
    "state": "runs",
    "reason": "x",
    "run_name": "spring",
    "phantom": True,
    "num_rounds": 4,
    "done": 1,
    "elapsed": 3.5,
    "remaining": 9,
    "split": "test",
    "sites": {"site-1": {"state": "training", "round": 2, "samples": 9, "seconds": 1.5, "refused": 1}},
    "curves": {"auc": [[0, 0.5], [1, 0.75]]},
    "highest": {"auc": [1, 0.75]},
    "repairs": {"a": {"positive": 3, "correct_positive": 2, "untagged": 4}},
    "decisions": [{"time": "t", "round": 1, "what": "best_model", "value": "x"}],
}


@number_of_cases
def test_any_picture_is_drawn_or_refused_in_one_sentence(cases):
    def show(content):
        picture = read_picture(content.decode(errors="replace"))
        file = io.StringIO()
        console = Console(file=file, width=80, color_system=None)
        console.print(draw(picture, silent=0, console=console))
        said = file.getvalue() + last_line(picture)
        assert said.replace("\n", "").isprintable()
        assert max(map(len, file.getvalue().splitlines())) <= 80

    try_all(json_files(GOOD), show, cases)
