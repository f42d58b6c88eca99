import re
import sys

import pytest
from run_factories import make_run, rows_of

from fedmend.report import parts, sections
from fedmend.report.parts import find_parts
from fedmend.report.report import summary_text, write_report

GUESS = """
from collections.abc import Mapping

from fedmend.basics.page import Section, section
from fedmend.report.parts import Part

OWN = {"guess": Mapping}


def guesses(run):
    found = run.decided("guess", OWN)
    return section("guesses", "Guesses", f"<p>{len(found)} rounds</p>") if found else Section()


def guess_lines(run):
    return [f"Guesses: {len(run.decided('guess', OWN))}"]


PART = Part(
    sections=(guesses,),
    lines=guess_lines,
    own=OWN,
    words={"guess": {"Guess": "What a site believes without having looked."}},
)
"""


@pytest.fixture
def new_method(tmp_path, monkeypatch):
    """A module beside those of the other methods, in another folder of the same package."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "a_new_method.py").write_text(GUESS)
    monkeypatch.setattr(sections, "__path__", [*sections.__path__, str(folder)])
    yield
    sys.modules.pop("fedmend.report.sections.a_new_method", None)


def run_with_guesses(folder):
    decisions = [{"round": r, "what": "guess", "value": {"site-1": r}} for r in (1, 2)]
    make_run(folder, decisions=[*decisions, {"round": 2, "what": "guess", "value": "none"}])
    return folder


def test_one_new_module_is_a_new_section_with_its_words_and_lines(tmp_path, new_method):
    page = write_report(run_with_guesses(tmp_path)).read_text(encoding="utf-8")
    anchors = re.findall('<section id="([^"]+)"', page)
    assert anchors[anchors.index("guesses") - 1] == "pseudo-labels"
    assert anchors[anchors.index("guesses") + 1] == "decisions"
    assert "<p>2 rounds</p>" in page
    assert rows_of(page, "decisions")[1:] == [["guess", "2", "none"]]  # only what has another type than declared
    assert re.findall("<dt>(.*?)</dt>", page)[-1] == "Guess"
    lines = summary_text(tmp_path).splitlines()
    assert lines.index("Guesses: 2") == lines.index("best model: models/best.pt") - 1


def test_without_the_module_its_decisions_are_listed(tmp_path):
    page = write_report(run_with_guesses(tmp_path)).read_text(encoding="utf-8")
    assert [row[1] for row in rows_of(page, "decisions")[1:]] == ["1", "2", "2"]


def test_parts_come_in_the_order_of_their_places_and_then_of_their_names(monkeypatch, new_method):
    names = [part.sections[0].__name__ for part in find_parts()]
    assert names == [
        "key_numbers",
        "pseudo_labels",
        "learning_degree",
        "uncertainty",
        "noisy_sites",
        "completeness",
        "guesses",
        "spent",
        "refused",
    ]


def test_no_decision_belongs_to_two_parts():
    own = [what for part in find_parts() for what in part.own]
    assert len(own) == len(set(own)) == len(parts.own_decisions())
