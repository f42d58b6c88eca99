"""How a module of ``fedmend.report.sections`` says what it adds to the report, and how all of them are found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType

from fedmend.basics.discovery import modules_of
from fedmend.basics.page import Section
from fedmend.records.run_folder import RunFiles
from fedmend.report import sections


@dataclass(frozen=True)
class Part:
    """What one module adds to the report of a run, as its ``PART``.

    Attributes:
        place: parts follow one another in the order of this number, then of their modules' names. The results have 0,
            the decisions and files of the server 1000.
        sections: functions run → section, in the order of the page; an empty one where the run has nothing to show.
        lines: run → lines of the plain text.
        own: decision that these sections show → type of its value; other decisions are listed one by one.
        words: decision → (word → meaning); the glossary of a run with that decision explains them.
        words_before: the word of the glossary before which these are put; where it is missing, they come last.
    """

    place: int = 100
    sections: Sequence[Callable[[RunFiles], Section]] = ()
    lines: Callable[[RunFiles], list[str]] = lambda run: []
    own: Mapping[str, type | UnionType] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    words_before: str = ""


def find_parts() -> list[Part]:
    """The parts of all modules in ``fedmend.report.sections``, in the order of the page."""
    found = modules_of(sections.__name__)
    return sorted((module.PART for module in found if hasattr(module, "PART")), key=lambda part: part.place)


def own_decisions() -> dict[str, type | UnionType]:
    """The decisions of all parts → types of their values."""
    return {what: kind for part in find_parts() for what, kind in part.own.items()}
