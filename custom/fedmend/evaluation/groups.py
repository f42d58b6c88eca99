"""Groups of samples by what a table says of them, and which of them are too small to be told.

Groups of one column and the samples in none of them add up to the whole, which is told too. So a single small group
that is held back would follow by subtraction: the smallest of the others is held back with it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmend.data.site import Split
from fedmend.data.slices import VolumeSplit
from fedmend.errors import FedMendError
from fedmend.evaluation.held_out import labels_of, persons_of

MOST_GROUPS = 20  # of a column
REST = "not given"  # a blank, or what is in no group
AGE = re.compile(r"(\d{3})([DWMY])")  # DICOM's value representation AS
A_YEAR = {"D": 365.25, "W": 365.25 / 7, "M": 12, "Y": 1}


@dataclass(frozen=True)
class Column:
    """A column, and how its values become groups.

    Attributes:
        name: of the column.
        values: the values that are groups, in order; empty: bands, or every value that is found.
        edges: of bands of numbers, ascending; each belongs to the band above it.
    """

    name: str
    values: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()

    @classmethod
    def of(cls, words: str) -> "Column":
        """Reads ``sex`` (every value is a group), ``sex:F,M`` (these are) or ``age:40,60`` (below 40, 40 to below 60,
        from 60 on).

        Raises:
            FedMendError: it reads otherwise.
        """
        name, colon, listed = (part.strip() for part in words.partition(":"))
        parts = [part.strip() for part in listed.split(",")] if colon else []
        numbers = [_number(part) for part in parts]
        edges = tuple(n for n in numbers if n is not None)
        whole = len(edges) == len(parts)
        if not name or not all(parts) or len({*parts}) < len(parts) or (whole and list(edges) != sorted({*edges})):
            expected = "a column, with values or ascending numbers behind it if wanted, such as sex:F,M or age:40,60"
            raise FedMendError(f"subgroups: expected {expected}, got {words!r:.100}")
        return cls(name, edges=edges) if whole else cls(name, values=tuple(parts))

    @property
    def fixed(self) -> tuple[str, ...]:
        """Names of the groups, where they do not depend on the values that are found."""
        if not self.edges:
            return self.values
        between = [f"{a:g} to {b:g}" for a, b in zip(self.edges, self.edges[1:], strict=False)]
        return (f"below {self.edges[0]:g}", *between, f"from {self.edges[-1]:g}")

    def groups(self, found: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
        """Names of G groups, and (M,) int64, for each of M values the number of its group, G where it is in none.

        Args:
            found: M texts of the column; bands take ages as DICOM writes them, too, in years.

        Raises:
            FedMendError: the column has more values than a person reads.
        """
        names = self.fixed or tuple(sorted({value for value in found if value}))
        if len(names) > MOST_GROUPS:
            raise FedMendError(
                f"subgroups: expected at most {MOST_GROUPS} groups of {self.name}, got {len(names)}; give bands of"
                f" numbers, such as {self.name}:40,60"
            )
        if self.edges:
            numbers = [_years(value) if AGE.fullmatch(value) else _number(value) for value in found]
            places = [len(names) if n is None else int(np.searchsorted(self.edges, n, "right")) for n in numbers]
        else:
            known = {name: place for place, name in enumerate(names)}
            places = [known.get(value, len(names)) for value in found]
        return names, np.array(places, dtype=np.int64)


def columns_of(text: str) -> list[str]:
    """What stands on a command line, ``sex,scanner,age:40,60``, column by column: numbers belong to the name before."""
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if found and ":" in found[-1] and _number(part) is not None:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _years(age: str) -> float:
    """An age as DICOM writes it, such as 045Y or 018M, in years."""
    return int(age[:-1]) / A_YEAR[age[-1]]


def held_back(
    split: Split | VolumeSplit, place: np.ndarray, groups: int, fewest: int, *, one_label: bool, told: bool
) -> np.ndarray:
    """Which numbers of the groups of one column stay behind, so that none describes, or by subtraction gives away, 1 to
    ``fewest`` - 1 people.

    Args:
        split: of a site.
        place: (M,) group of each image or volume, ``groups`` for those in none.
        groups: G.
        fewest: people that a number may describe. An image without a patient counts as one.
        one_label: each sample has one class, so that the classes of a group add up.
        told: those in no group are told as a group of their own, the last one.

    Returns:
        (G + 1, C) bool, the last row for those in none.
    """
    labels, persons = labels_of(split), persons_of(split)
    behind = np.zeros((groups + 1, labels.shape[1], 2), dtype=np.int64)
    everybody = np.zeros((groups + 1, 1, 1), dtype=np.int64)
    for group in range(groups + 1):
        inside = place == group
        everybody[group] = len(np.unique(persons[inside]))
        for value in (0, 1):
            for c in range(labels.shape[1]):
                behind[group, c, value] = len(np.unique(persons[inside & (labels[:, c] == value)]))
    hidden = np.zeros(behind.shape[:2], dtype=bool)
    hidden[groups] = not told
    whole = _complete(everybody, hidden[:, :1], fewest, across=False)
    return _complete(behind, hidden | whole, fewest, across=one_label)


def _complete(behind: np.ndarray, hidden: np.ndarray, fewest: int, *, across: bool) -> np.ndarray:
    """Hides more cells until no sum of hidden ones is small.

    Args:
        behind: (G, C, M) people behind M numbers of each cell.
        hidden: (G, C) bool, cells that are hidden in any case.
        fewest: people that a number may describe.
        across: the last number of the classes of a group adds up too.
    """
    small = np.any((behind > 0) & (behind < fewest), axis=-1)
    hidden = hidden | small
    while True:
        before = hidden.copy()
        lines = [(behind[:, c], hidden[:, c]) for c in range(hidden.shape[1])]  # views: a line is hidden in place
        lines += [(behind[g, :, -1:], hidden[g]) for g in range(len(hidden))] if across else []
        for numbers, line in lines:
            left = np.where(line[:, None], numbers, 0).sum(0)
            shown = np.flatnonzero(~line & numbers.any(-1))
            if np.any((left > 0) & (left < fewest)) and len(shown):
                line[shown[numbers[shown].sum(-1).argmin()]] = True
        if np.array_equal(before, hidden):
            return hidden
