"""Job variables of a method as fields of a dataclass, each of which says in its annotation what it takes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

from fedmend.errors import check_variables


class Range(NamedTuple):
    """Which values a setting takes, as metadata of its annotation.

    Attributes:
        holds: value → whether it is taken.
        expected: words for what is taken.
    """

    holds: Callable[[Any], bool]
    expected: str


Weight = Annotated[float, Range(lambda value: 0 <= value < math.inf, ">= 0")]
Positive = Annotated[float, Range(lambda value: 0 < value < math.inf, "> 0")]
Share = Annotated[float, Range(lambda value: 0 <= value <= 1, "0 to 1")]
SomeShare = Annotated[float, Range(lambda value: 0 < value <= 1, "above 0 to 1")]
PartialShare = Annotated[float, Range(lambda value: 0 <= value < 1, "0 to below 1")]
PositiveThreshold = Annotated[float, Range(lambda value: 0.5 <= value <= 1, "0.5 to 1")]
MarkThreshold = Annotated[float, Range(lambda value: 0.5 <= value < 1, "0.5 to below 1")]  # of a pixel that is marked
NegativeThreshold = Annotated[float, Range(lambda value: 0 <= value < 0.5, "0 to below 0.5")]
Count = Annotated[int, Range(lambda value: value >= 1, "at least 1")]


def one_of(*words: str) -> Range:
    """Takes one of some words."""
    return Range(words.__contains__, f"one of {list(words)}")


@dataclass(kw_only=True, eq=False)
class Settings:
    """A method or workflow whose settings are the fields of a dataclass; to be put before the other base class.

    A field is checked where its annotation is ``Annotated`` with a :class:`Range`. A class also takes the settings of
    its parents, which their docstrings describe. ``field()`` asks for a setting of which the contract has a value.
    """

    def __post_init__(self) -> None:
        for f in fields(self):
            for holds, expected in getattr(f.type, "__metadata__", ()):
                check_variables(holds(getattr(self, f.name)), expected, **{f.name: getattr(self, f.name)})
